"""How far a student has come with every exercise of every unit: the table that `progress()` shows.

A unit that nobody has begun is one line, so that the table fits on a screen for as long as it can.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from graders.grading.exercise import Exercise
from graders.grading.registry import counted_units
from graders.grading.report import as_text
from graders.student.progress_log import Record, records_of


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a student has come with one exercise; `points` is the best that a check has given."""

    exercise: Exercise
    points: float
    attempts: int
    hints: int

    @property
    def state(self) -> str:
        if not self.attempts:
            return "not attempted"
        return "solved" if self.points >= self.exercise.points else "under way"

    @property
    def minutes_left(self) -> int:
        return 0 if self.state == "solved" else self.exercise.minutes


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, and whether it sums up others."""

    texts: tuple[str, ...]
    total: bool


HEADINGS = ("Exercise", "State", "Points", "Checks", "Hints", "Left")
NUMBERS_FROM = 2
"""From this column on there are numbers, which stand to the right."""

SIGNS = {"solved": "✔", "under way": "…", "not attempted": "○"}


@dataclass(frozen=True, slots=True)
class ProgressTable:
    """Every exercise of the units that were begun and of the next one; a line a unit, and one for all."""

    standings: tuple[Standing, ...]

    def rows(self) -> Iterator[Row]:
        """The rows from top to bottom."""
        for unit, group in groupby(self.standings, lambda standing: standing.exercise.unit):
            of_unit = list(group)
            yield _total(unit, of_unit)
            begun = any(standing.attempts or standing.hints for standing in of_unit)
            if begun or (self._next is not None and self._next.unit == unit):
                yield from map(_row, of_unit)
        yield _total("together", self.standings)

    @property
    def _next(self) -> Exercise | None:
        """The first exercise that is not solved, if there is one."""
        left = (standing.exercise for standing in self.standings if standing.state != "solved")
        return next(left, None)

    @property
    def next_step(self) -> str:
        """Where to go on, in words."""
        exercise = self._next
        return f"Next: {exercise.name}, in {exercise.unit}." if exercise else "All exercises are solved."

    def __rich__(self) -> Table:
        table = Table(title="Progress", title_justify="left", caption=self.next_step, caption_justify="left")
        for column, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if column >= NUMBERS_FROM else "left")
        for row in self.rows():
            table.add_row(*map(Text, row.texts), style="bold" if row.total else None)
        return table

    def html(self) -> str:
        """The table as HTML that needs no style sheet."""
        body = "".join(
            f"<tr>{_html_cells(row.texts, 'th' if row.total else 'td')}</tr>" for row in self.rows()
        )
        return (
            f'<table style="border-collapse:collapse;color:inherit;font-size:inherit;">'
            f'<caption style="caption-side:bottom;text-align:left;padding:6px 10px;color:inherit;">'
            f"{escape(self.next_step)}</caption>"
            f"<thead><tr>{_html_cells(HEADINGS, 'th')}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return as_text(self)


def progress_table(records: Sequence[Record]) -> ProgressTable:
    """The table of what was recorded."""
    return ProgressTable(tuple(_standings(records)))


def _standings(records: Sequence[Record]) -> Iterator[Standing]:
    for unit, exercises in counted_units().items():
        for name, exercise in exercises.items():
            checks = [record for record in records_of(records, "check", unit, name) if _was_attempted(record)]
            points = max((float(record["points"]) for record in checks), default=0.0)
            given = records_of(records, "hint", unit, name)
            hints = max((int(record["number"]) for record in given), default=0)
            yield Standing(exercise, points, len(checks), hints)


def _was_attempted(check: Record) -> bool:
    """Whether the answer was more than the stub when it was checked."""
    verdicts = check.get("verdicts")
    return not isinstance(verdicts, dict) or any(verdict != "not attempted" for verdict in verdicts.values())


def _row(standing: Standing) -> Row:
    exercise = standing.exercise
    texts = (
        exercise.name,
        f"{SIGNS[standing.state]} {standing.state}",
        f"{standing.points:g}/{exercise.points:g}",
        str(standing.attempts),
        f"{standing.hints}/{len(exercise.hints)}",
        f"{standing.minutes_left} min",
    )
    return Row(texts, total=False)


def _total(name: str, standings: Sequence[Standing]) -> Row:
    solved = sum(standing.state == "solved" for standing in standings)
    points = sum(standing.points for standing in standings)
    texts = (
        name,
        f"{SIGNS['solved'] + ' all' if solved == len(standings) else f'{solved} of {len(standings)}'} solved",
        f"{points:g}/{sum(standing.exercise.points for standing in standings):g}",
        str(sum(standing.attempts for standing in standings)),
        str(sum(standing.hints for standing in standings)),
        f"{sum(standing.minutes_left for standing in standings)} min",
    )
    return Row(texts, total=True)


def _html_cells(texts: Iterable[str], tag: str) -> str:
    cells = []
    for column, text in enumerate(texts):
        side = "right" if column >= NUMBERS_FROM else "left"
        style = (
            f"text-align:{side};padding:3px 10px;white-space:nowrap;border:1px solid rgba(128,128,128,.45);"
        )
        cells.append(f'<{tag} style="{style}">{escape(text)}</{tag}>')
    return "".join(cells)
