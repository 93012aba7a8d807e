"""What an answer is built of: other exercises' answers, which may still be wrong."""

from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING

from course_lib.runtime.processes.serialization import global_names
from graders.student.progress_log import read_records, records_of

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise


def unsolved_parts(answer: object, exercise: "Exercise") -> str:
    """A sentence on the exercises of the same unit that the answer uses, and whose last check lacks points.

    Empty if there are none: then what is wrong is the answer's own.
    """
    from graders.grading.registry import load_all

    others = load_all().get(exercise.unit, {})
    used = [name for name in others if name in set(_names(answer)) and name != exercise.name]
    records = list(read_records())
    lacking = []
    for name in used:
        checks = list(records_of(records, "check", exercise.unit, name))
        if checks and checks[-1]["points"] < others[name].points:
            lacking.append(f"{name} ({checks[-1]['points']:g} of {others[name].points:g} points)")
    if not lacking:
        return ""
    return f"This answer uses {' and '.join(lacking)}: what is wrong may be wrong there. Mend that first."


def _names(answer: object) -> Iterator[str]:
    """The global names that a function uses, or the methods of a class."""
    members = vars(answer).values() if isinstance(answer, type) else (answer,)
    for member in members:
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            yield from global_names(function.__code__)
