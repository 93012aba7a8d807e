"""What a student has done so far: kept outside of every notebook, so that a lost browser loses nothing.

One line of JSON a check, hint, prediction or measurement, appended to `progress.jsonl` in
`course_lib.home.course_home()`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.home import course_home

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise
    from graders.grading.run import ExerciseResult

FILE = "progress.jsonl"

Record = Mapping[str, Any]

Value = int | float | str
"""What is predicted, and what is measured."""

PREDICTION, MEASUREMENT = "prediction", "measurement"


def record_check(result: "ExerciseResult", source: str = "") -> None:
    """Note the outcome of a check. source: the answer's. Raises OSError if it cannot be written."""
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
            "kind": result.kind.value,
            "answer": key_of_answer(source),
        }
    )


def key_of_answer(source: str) -> str:
    """What tells one answer to an exercise from another; empty if its source is not to be had."""
    return hashlib.sha256(source.encode()).hexdigest()[:16] if source else ""


def record_hint(exercise: "Exercise", number: int) -> None:
    """Note that a hint was shown. Raises OSError if it cannot be written."""
    _append(
        {"event": "hint", "unit": exercise.unit, "exercise": exercise.name, "time": _now(), "number": number}
    )


def record_hint_on(exercise: "Exercise", kind: str) -> None:
    """Note that the hint on a kind of failure was shown. Raises OSError if it cannot be written."""
    _append(
        {
            "event": "hint",
            "unit": exercise.unit,
            "exercise": exercise.name,
            "time": _now(),
            "number": 0,
            "kind": kind,
        }
    )


def kind_to_explain(unit: str, exercise: str) -> str:
    """The kind of failure that the last check of an exercise saw, if its hint has not been shown; else ""."""
    records = list(read_records())
    checks = list(records_of(records, "check", unit, exercise))
    last = str(checks[-1].get("kind", "")) if checks else ""
    shown = {record.get("kind") for record in records_of(records, "hint", unit, exercise)}
    return "" if last in shown else last


def record_value(event: str, unit: str, question: str, value: Value) -> None:
    """Note a prediction or a measurement. Raises OSError if it cannot be written."""
    _append({"event": event, "unit": unit, "question": question, "time": _now(), "value": value})


def hints_seen(unit: str, exercise: str) -> int:
    """The number of the furthest hint that was shown for an exercise; 0 if none was."""
    return max((int(r["number"]) for r in records_of(read_records(), "hint", unit, exercise)), default=0)


def records_of(records: Iterable[Record], event: str, unit: str, exercise: str) -> Iterator[Record]:
    """Those of the records that are of one kind and about one exercise."""
    wanted = (event, unit, exercise)
    return (r for r in records if (r["event"], r["unit"], r.get("exercise")) == wanted)


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
    if not isinstance(record, dict) or not {"event", "unit"} <= record.keys():
        return False
    if record["event"] in (PREDICTION, MEASUREMENT):
        return isinstance(record.get("question"), str) and isinstance(record.get("value"), Value)
    if "exercise" not in record:
        return False
    number = record.get("points") if record["event"] == "check" else record.get("number")
    return isinstance(number, int | float)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
