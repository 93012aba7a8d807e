"""What an answer is built of: other exercises' answers, which may still be wrong."""

from typing import TYPE_CHECKING

from graders.student.progress_log import key_of_answer, read_records, records_of

if TYPE_CHECKING:
    from graders.grading.answer import Answer
    from graders.grading.exercise import Exercise


def unsolved_parts(answer: "Answer", exercise: "Exercise") -> str:
    """A sentence on the exercises of the same unit that the answer uses, and whose last check lacks points.

    Empty if there are none: then what is wrong is the answer's own. A check of what has been written anew
    since then does not count.
    """
    from graders.grading.prerequisites import names_in
    from graders.grading.registry import exercises

    others = exercises(exercise.unit)
    names = names_in(answer.source)
    used = [name for name in others if name in names and name != exercise.name]
    records = list(read_records())
    lacking = []
    for name in used:
        key = key_of_answer(answer.source_of(name))
        checks = [
            r for r in records_of(records, "check", exercise.unit, name) if key and r.get("answer") == key
        ]
        if checks and checks[-1]["points"] < others[name].points:
            lacking.append(f"{name} ({checks[-1]['points']:g} of {others[name].points:g} points)")
    if not lacking:
        return ""
    return f"This answer uses {' and '.join(lacking)}: what is wrong may be wrong there. Fix that first."
