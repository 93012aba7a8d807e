"""A second way to do an exercise, there to read once it is solved."""

from pathlib import Path
from typing import TYPE_CHECKING

from graders.student.progress_log import read_records, records_of
from graders.submissions.cells import definition_source

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise

FOLDER = Path(__file__).parents[2] / "solutions" / "second_ways"
"""Beside the solutions, and like them out of the sandbox's sight: no answer reads it while it is graded."""


def second_way(exercise: "Exercise") -> str:
    """The source of another right answer; empty where there is none, or where no solutions are installed."""
    path = FOLDER / f"{exercise.unit}.py"
    return definition_source(path.read_text(), exercise.name) if path.exists() else ""


def second_way_if_solved(exercise: "Exercise") -> str:
    """The same, or a sentence that says why it cannot be read; by what is recorded of one's progress."""
    checks = records_of(read_records(), "check", exercise.unit, exercise.name)
    if max((float(check["points"]) for check in checks), default=0.0) < exercise.points:
        return f"Solve {exercise.name} first: a check with all points opens the second way."
    return second_way(exercise) or f"There is no second way to read for {exercise.name}."
