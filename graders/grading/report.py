"""What a student sees of a grading: a table in a notebook, on a terminal, in the feedback; and as JSON."""

import io
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from graders.grading.exercise import Verdict
from graders.grading.report_html import exercise_as_html, note_as_html, second_way_as_html
from graders.grading.run import CriterionResult, ExerciseResult
from graders.grading.words import (
    LOOKS,
    Rows,
    advice_on,
    earned,
    folded_and_open,
    headline,
    not_judged_lines,
    passed_in_a_line,
    printed_lines,
    shown_hint,
    verdict_words,
)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one exercise, or of a unit's. In a notebook it shows itself as a table.

    notes: sentences about the submission as a whole, such as a cell that raised. second_way: source of
    another right answer to the one exercise, which has passed.
    """

    unit: str
    exercises: tuple[ExerciseResult, ...]
    notes: tuple[str, ...] = field(default=())
    second_way: str = ""

    @property
    def points(self) -> float:
        return sum(result.points for result in self.exercises)

    @property
    def max_points(self) -> float:
        return sum(result.exercise.points for result in self.exercises)

    @property
    def passed(self) -> bool:
        """Whether all points are earned."""
        return all(result.passed for result in self.exercises)

    def to_json(self) -> dict[str, Any]:
        """The results as plain data for `course check --json`."""
        return {
            "unit": self.unit,
            "points": self.points,
            "max_points": self.max_points,
            "exercises": [_exercise_to_json(result) for result in self.exercises],
        }

    def shortfalls(self) -> "Report":
        """The part of it about exercises that were attempted and have not earned all their points."""
        left = tuple(result for result in self.exercises if result.attempted and not result.passed)
        return Report(self.unit, left, self.notes)

    def summary(self) -> Table:
        """One row an exercise: its points, and what to look at first."""
        table = Table(title=Text(self.unit), title_justify="left", show_footer=True)
        table.add_column("Exercise", "together")
        table.add_column("Points", f"{self.points:g}/{self.max_points:g}", justify="right")
        table.add_column("Look at")
        for result in self.exercises:
            points = f"{result.points:g}/{result.exercise.points:g}"
            table.add_row(result.exercise.name, points, _first_to_mend(result))
        return table

    def html(self) -> str:
        """The tables as HTML that needs no style sheet."""
        tables = [*map(note_as_html, self.notes), *map(exercise_as_html, self.exercises)]
        # A class that keeps JupyterLab from taking what stands between two dollar signs for a formula.
        return f'<div class="mathjax_ignore">{"".join([*tables, second_way_as_html(self.second_way)])}</div>'

    def text(self) -> str:
        """The tables as text, without colours."""
        return as_text(self)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Text(note) for note in self.notes]
        for result in self.exercises:
            parts.append(_rich_exercise(result))
            parts.extend(_rich_printed(result))
        if self.second_way:
            parts.append(Text(f"A second way to do it: course second-way {self.exercises[0].exercise.name}"))
        return Group(*parts)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # nbgrader reads the points of a check cell from the plain text, so nothing else may stand there.
        return {"text/html": self.html(), "text/plain": f"{self.points:g}"}

    def __repr__(self) -> str:
        names = ", ".join(result.exercise.name for result in self.exercises)
        return f"<Report: {names}, {earned(self.points, self.max_points)}>"


def as_text(shown: RenderableType) -> str:
    """What rich makes of it, a hundred characters wide, without colours."""
    # In a kernel rich would show what it renders, besides returning it.
    console = Console(file=io.StringIO(), width=100, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def _exercise_to_json(result: ExerciseResult) -> dict[str, Any]:
    return {
        "name": result.exercise.name,
        "points": result.points,
        "max_points": result.exercise.points,
        "criteria": [_criterion_to_json(each) for each in result.criteria],
        **({"lacks": result.lacks} if result.lacks else {}),
    }


def _criterion_to_json(result: CriterionResult) -> dict[str, Any]:
    return {
        "name": result.criterion.name,
        "verdict": result.verdict.value,
        "points": result.points,
        "max_points": result.criterion.points,
        "seen": result.seen,
        "hint": result.hint,
    }


def _first_to_mend(result: ExerciseResult) -> Text:
    """The first criterion that failed, or else did not pass, in the colour of its verdict."""
    left = [each for each in result.criteria if each.verdict is not Verdict.PASSED]
    if not left:
        return Text(verdict_words(Verdict.PASSED), style=LOOKS[Verdict.PASSED].style)
    missed = next((each for each in left if each.verdict is Verdict.FAILED), left[0])
    name = f": {missed.criterion.name}" if result.attempted else ""
    return Text(verdict_words(missed.verdict) + name, style=LOOKS[missed.verdict].style)


def _rich_exercise(result: ExerciseResult) -> RenderableType:
    advice = advice_on(result, "course hint {}")
    parts: list[RenderableType] = [Text(headline(result), style="bold")]
    passed, left = folded_and_open(result)
    if left:
        parts.append(_rich_table(left))
    parts += [Text(each, style=LOOKS[Verdict.NOT_JUDGED].style) for each in not_judged_lines(result)]
    if passed:
        parts.append(Text(passed_in_a_line(passed), style=LOOKS[Verdict.PASSED].style))
    return Group(*parts, *([Text(advice)] if advice else []))


def _rich_table(rows: Rows) -> Table:
    table = Table(expand=False, show_lines=True)
    table.add_column("Criterion", overflow="fold")
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Points", justify="right", no_wrap=True)
    table.add_column("What was seen", overflow="fold")
    for each, seen in rows:
        look = LOOKS[each.verdict]
        hint = shown_hint(each)
        table.add_row(
            Text(each.criterion.name),
            Text(verdict_words(each.verdict), style=look.style),
            f"{each.points:g}/{each.criterion.points:g}",
            Text(seen + (f"\nHint: {hint}" if hint else "")),
        )
    return table


def _rich_printed(result: ExerciseResult) -> list[RenderableType]:
    lines = printed_lines(result)
    return [Text("\n".join(["Your code printed:", *(f"  {line}" for line in lines)]))] if lines else []
