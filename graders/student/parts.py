"""What an answer is built of: other exercises' answers, which may still be wrong."""

from typing import TYPE_CHECKING

from course_lib.runtime.processes.serialization import functions_of, global_names
from graders.student.progress_log import read_records, records_of

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise


def unsolved_parts(answer: object, exercise: "Exercise") -> str:
    """A sentence on the exercises of the same unit that the answer uses, and whose last check lacks points.

    Empty if there are none: then what is wrong is the answer's own.
    """
    from graders.grading.registry import exercises

    others = exercises(exercise.unit)
    names = {name for each in functions_of(answer) for name in global_names(each.__code__)}
    used = [name for name in others if name in names and name != exercise.name]
    records = list(read_records())
    lacking = []
    for name in used:
        checks = list(records_of(records, "check", exercise.unit, name))
        if checks and checks[-1]["points"] < others[name].points:
            lacking.append(f"{name} ({checks[-1]['points']:g} of {others[name].points:g} points)")
    if not lacking:
        return ""
    return f"This answer uses {' and '.join(lacking)}: what is wrong may be wrong there. Fix that first."
