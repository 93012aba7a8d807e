"""What a student has done so far: kept outside of every notebook, so that a lost browser loses nothing.

One line of JSON a check or hint, appended to `progress.jsonl` in `course_lib.home.course_home()`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.home import course_home
from graders.notice import shows_html

if TYPE_CHECKING:
    from rich.table import Table

    from graders.exercise import Exercise
    from graders.grading import ExerciseResult

FILE = "progress.jsonl"

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a student has come with one exercise; `points` is the best that a check has given."""

    exercise: "Exercise"
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
class ProgressTable:
    """Every exercise of every unit, and how far the student has come."""

    standings: tuple[Standing, ...]

    @property
    def minutes_left(self) -> int:
        return sum(standing.minutes_left for standing in self.standings)

    def __rich__(self) -> "Table":
        from rich.table import Table

        table = Table(title="Progress", title_justify="left", show_footer=True)
        for (name, right), foot in zip(_COLUMNS, self._total(), strict=True):
            table.add_column(name, foot, justify="right" if right else "left")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                s.exercise.unit,
                s.exercise.name,
                f"{_SIGNS[s.state]} {s.state}",
                f"{s.points:g}/{s.exercise.points:g}",
                str(s.attempts),
                f"{s.hints}/{len(s.exercise.hints)}",
                str(s.minutes_left),
            )
            for s in self.standings
        ]

    def _total(self) -> tuple[str, ...]:
        solved = sum(s.state == "solved" for s in self.standings)
        points = (
            f"{sum(s.points for s in self.standings):g}/{sum(s.exercise.points for s in self.standings):g}"
        )
        attempts, hints = sum(s.attempts for s in self.standings), sum(s.hints for s in self.standings)
        done = f"{solved} of {len(self.standings)} solved"
        return ("together", "", done, points, str(attempts), str(hints), str(self.minutes_left))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": repr(self)}

    def _html(self) -> str:
        cell = "text-align:{};padding:3px 10px;border:1px solid rgba(128,128,128,.45);"
        sides = ["right" if right else "left" for _, right in _COLUMNS]

        def row(texts: Iterable[str], tag: str) -> str:
            cells = zip(texts, sides, strict=True)
            return "".join(
                f'<{tag} style="{cell.format(side)}">{escape(text)}</{tag}>' for text, side in cells
            )

        body = "".join(f"<tr>{row(texts, 'td')}</tr>" for texts in self._rows())
        head = row((name for name, _ in _COLUMNS), "th")
        foot = row(self._total(), "th")
        return (
            f'<table style="border-collapse:collapse;color:inherit;font-size:inherit;">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot><tr>{foot}</tr></tfoot></table>"
        )

    def __repr__(self) -> str:
        from graders.report import as_text

        return as_text(self)


_COLUMNS = (
    ("Unit", False),
    ("Exercise", False),
    ("State", False),
    ("Points", True),
    ("Checks", True),
    ("Hints", True),
    ("Minutes left", True),
)
"""Heading, and whether its numbers stand to the right."""

_SIGNS = {"solved": "✔", "under way": "…", "not attempted": "○"}


def progress() -> ProgressTable:
    """How far you have come, over all units."""
    table = progress_table()
    if not shows_html():
        print(table)
    return table


def progress_table() -> ProgressTable:
    """The table that `progress` shows."""
    return ProgressTable(tuple(_standings(list(read_records()))))


def record_check(result: "ExerciseResult") -> None:
    """Note the outcome of a check. Raises OSError if it cannot be written."""
    exercise = result.exercise
    _append(
        {
            "event": "check",
            "unit": exercise.unit,
            "exercise": exercise.name,
            "time": _now(),
            "points": result.points,
            "max_points": exercise.points,
            "verdicts": {each.criterion.name: each.verdict.value for each in result.criteria},
            "hints": hints_seen(exercise.unit, exercise.name),
        }
    )


def record_hint(exercise: "Exercise", number: int) -> None:
    """Note that a hint was shown. Raises OSError if it cannot be written."""
    _append(
        {"event": "hint", "unit": exercise.unit, "exercise": exercise.name, "time": _now(), "number": number}
    )


def hints_seen(unit: str, exercise: str) -> int:
    """The number of the furthest hint that was shown for an exercise; 0 if none was."""
    return max((int(r["number"]) for r in _of(read_records(), "hint", unit, exercise)), default=0)


def read_records() -> Iterator[Record]:
    """What was recorded, oldest first; nothing if it cannot be read. A line that is torn is passed over."""
    with suppress(OSError), progress_file().open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError):
                record = json.loads(line)
                if _is_record(record):
                    yield record


def progress_file() -> Path:
    """Where it is recorded."""
    return course_home() / FILE


def _append(record: Record) -> None:
    line = json.dumps(record, ensure_ascii=False) + "\n"
    # One write of a whole line: kernels of several notebooks may append at the same time.
    with progress_file().open("ab", buffering=0) as file:
        file.write(line.encode("utf-8"))


def _is_record(record: Any) -> bool:
    """Whether a line's content is one that this module wrote."""
    if not isinstance(record, dict) or not {"event", "unit", "exercise"} <= record.keys():
        return False
    number = record.get("points") if record["event"] == "check" else record.get("number")
    return isinstance(number, int | float)


def _of(records: Iterable[Record], event: str, unit: str, exercise: str) -> Iterator[Record]:
    wanted = (event, unit, exercise)
    return (r for r in records if (r["event"], r["unit"], r["exercise"]) == wanted)


def _standings(records: list[Record]) -> Iterator[Standing]:
    from graders.catalogue import load_all

    for unit, exercises in sorted(load_all().items()):
        for exercise in exercises.values():
            checks = [r for r in _of(records, "check", unit, exercise.name) if _was_attempted(r)]
            points = max((float(r["points"]) for r in checks), default=0.0)
            hints = max((int(r["number"]) for r in _of(records, "hint", unit, exercise.name)), default=0)
            yield Standing(exercise, points, len(checks), hints)


def _was_attempted(check: Record) -> bool:
    """Whether the answer was more than the stub when it was checked."""
    verdicts = check.get("verdicts")
    return not isinstance(verdicts, dict) or any(v != "not attempted" for v in verdicts.values())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
