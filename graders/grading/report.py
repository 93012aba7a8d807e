"""What a student sees of a grading: a table in a notebook, on a terminal, in the feedback; and as JSON."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from graders.grading.exercise import Verdict
from graders.grading.run import CriterionResult, ExerciseResult

PRINTED_LINES = 20
"""So many lines of what an answer printed are shown with its table."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a verdict is shown: a sign and a word, and a colour that nothing depends on."""

    sign: str
    style: str
    """For rich."""
    background: str
    """For HTML: grey or of Okabe and Ito's palette, under black text in light and dark pages alike."""


LOOKS = {
    Verdict.PASSED: Look("✔", "green", "#3fbf97"),
    Verdict.FAILED: Look("✘", "bold red", "#f08a4b"),
    Verdict.NOT_JUDGED: Look("–", "bright_black", "#cccccc"),
    Verdict.BLOCKED: Look("■", "yellow", "#f0e442"),
    Verdict.NOT_ATTEMPTED: Look("○", "cyan", "#9ccff0"),
}


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one exercise, or of a unit's. In a notebook it shows itself as a table.

    notes: sentences about the submission as a whole, such as a cell that raised.
    """

    unit: str
    exercises: tuple[ExerciseResult, ...]
    notes: tuple[str, ...] = field(default=())

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
        return "".join([*map(_html_note, self.notes), *map(_html_exercise, self.exercises)])

    def text(self) -> str:
        """The tables as text, without colours."""
        return as_text(self)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Text(note) for note in self.notes]
        for result in self.exercises:
            parts.append(_rich_exercise(result))
            parts.extend(_rich_printed(result))
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


def earned(points: float, max_points: float) -> str:
    """`2 of 3 points`."""
    return f"{points:g} of {max_points:g} point{'' if max_points == 1 else 's'}"


def verdict_words(verdict: Verdict) -> str:
    """`✔ passed`."""
    return f"{LOOKS[verdict].sign} {verdict.value}"


def _exercise_to_json(result: ExerciseResult) -> dict[str, Any]:
    return {
        "name": result.exercise.name,
        "points": result.points,
        "max_points": result.exercise.points,
        "criteria": [_criterion_to_json(each) for each in result.criteria],
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


def _shown_hint(result: CriterionResult) -> str:
    """The hint of a criterion that failed; the others need none."""
    return result.hint if result.verdict is Verdict.FAILED else ""


def _shown_seen(results: Sequence[CriterionResult]) -> list[str]:
    """What each row says; that the stub is still there is said once."""
    rows = [(each.verdict, each.seen) for each in results]
    return [
        "" if number and row == rows[number - 1] and row[0] is Verdict.NOT_ATTEMPTED else row[1]
        for number, row in enumerate(rows)
    ]


def _first_to_mend(result: ExerciseResult) -> Text:
    """The first criterion that failed, or else did not pass, in the colour of its verdict."""
    left = [each for each in result.criteria if each.verdict is not Verdict.PASSED]
    if not left:
        return Text(verdict_words(Verdict.PASSED), style=LOOKS[Verdict.PASSED].style)
    missed = next((each for each in left if each.verdict is Verdict.FAILED), left[0])
    name = f": {missed.criterion.name}" if result.attempted else ""
    return Text(verdict_words(missed.verdict) + name, style=LOOKS[missed.verdict].style)


def _headline(result: ExerciseResult) -> str:
    return f"{result.exercise.name}: {earned(result.points, result.exercise.points)}"


def _advice(result: ExerciseResult, hint: str) -> str:
    """One line on what to do next. hint: how to ask for one, with {} for the exercise."""
    if result.passed or result.mistake:
        return ""
    advice = "Mend the first row that failed, then check again."
    if not result.attempted:
        advice = 'Write the answer in place of "raise NotImplementedError".'
    return advice + (f" More help: {hint.format(result.exercise.name)}" if result.exercise.hints else "")


def _printed_lines(result: ExerciseResult) -> list[str]:
    lines = result.printed.splitlines()
    if len(lines) <= PRINTED_LINES:
        return lines
    return [*lines[:PRINTED_LINES], f"... and {len(lines) - PRINTED_LINES} more lines"]


# ------------------------------------------------------------------------------------------ on a terminal


def _rich_exercise(result: ExerciseResult) -> RenderableType:
    advice = _advice(result, "course hint {}")
    table = Table(
        title=Text(_headline(result)),
        title_justify="left",
        caption=Text(advice) if advice else None,
        caption_justify="left",
        expand=False,
        show_lines=True,
    )
    table.add_column("Criterion", overflow="fold")
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Points", justify="right", no_wrap=True)
    table.add_column("What was seen", overflow="fold")
    for each, seen in zip(result.criteria, _shown_seen(result.criteria), strict=True):
        look = LOOKS[each.verdict]
        hint = _shown_hint(each)
        table.add_row(
            Text(each.criterion.name),
            Text(verdict_words(each.verdict), style=look.style),
            f"{each.points:g}/{each.criterion.points:g}",
            Text(seen + (f"\nHint: {hint}" if hint else "")),
        )
    return table


def _rich_printed(result: ExerciseResult) -> list[RenderableType]:
    lines = _printed_lines(result)
    return [Text("\n".join(["Your code printed:", *(f"  {line}" for line in lines)]))] if lines else []


# ------------------------------------------------------------------------------------------------- in HTML

_CELL = "text-align:left;vertical-align:top;padding:4px 10px;border:1px solid rgba(128,128,128,.45);"
_BOX = (
    "margin:4px 0;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;"
    "background:transparent;color:inherit;"
)
_BADGE = "display:inline-block;padding:1px 8px;border-radius:9px;white-space:nowrap;color:#000;"


def _html_exercise(result: ExerciseResult) -> str:
    head = "".join(
        f'<th scope="col" style="{_CELL}">{name}</th>'
        for name in ("Criterion", "Verdict", "Points", "What was seen")
    )
    texts = _shown_seen(result.criteria)
    rows = "".join(_html_row(each, seen) for each, seen in zip(result.criteria, texts, strict=True))
    advice = _advice(result, 'hint("{}").')
    printed = _printed_lines(result)
    return (
        f'<table style="border-collapse:collapse;margin:6px 0;color:inherit;font-size:inherit;">'
        f'<caption style="text-align:left;caption-side:top;font-weight:bold;padding:4px 0;color:inherit;">'
        f"{escape(_headline(result))}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        + (f'<p style="margin:4px 0;">{escape(advice)}</p>' if advice else "")
        + (f"Your code printed:{_html_box(chr(10).join(printed))}" if printed else "")
    )


def _html_row(result: CriterionResult, seen: str) -> str:
    look = LOOKS[result.verdict]
    badge = f'<span style="{_BADGE}background:{look.background};">{verdict_words(result.verdict)}</span>'
    hint = _shown_hint(result)
    story = _html_box(seen) if "\n" in seen else escape(seen)
    said = (
        story
        + result.figure
        + (f'<div style="margin-top:4px;"><b>Hint:</b> {escape(hint)}</div>' if hint else "")
    )
    return (
        f'<tr><th scope="row" style="{_CELL}font-weight:normal;">{escape(result.criterion.name)}</th>'
        f'<td style="{_CELL}">{badge}</td>'
        f'<td style="{_CELL}white-space:nowrap;">{result.points:g} of {result.criterion.points:g}</td>'
        f'<td style="{_CELL}">{said}</td></tr>'
    )


def _html_box(text: str) -> str:
    return f'<pre style="{_BOX}">{escape(text)}</pre>'


def _html_note(note: str) -> str:
    return _html_box(note) if "\n" in note else f'<p style="margin:4px 0;">{escape(note)}</p>'
