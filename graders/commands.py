"""The graders' part of the command `course`. Each function prints, and returns the exit status.

0: all points, or done. 1: graded, but not all points; of a class, not all submissions. 2: nothing could be
done; stderr says why. 130: stopped with Control-C.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graders.hints import hint_text
from graders.lookup import NoSuchExercise
from graders.report import Report

if TYPE_CHECKING:
    from graders.classroom import Outcome

ALL_POINTS, NOT_ALL_POINTS, BAD_INPUT = 0, 1, 2
DONE, NOT_ALL_GRADED, INTERRUPTED = 0, 1, 130


def check(file: Path, unit: str | None = None, as_json: bool = False) -> int:
    """Grade a notebook or Python file, its code in a sandbox: `course check FILE --unit NN_name [--json]`."""
    from graders.marking import mark_file
    from graders.submission import BadSubmission
    from graders.workers import SandboxFailed

    try:
        report = mark_file(file, unit)
    except (BadSubmission, SandboxFailed) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _show(report)
    return ALL_POINTS if report.passed else NOT_ALL_POINTS


def grade(root: Path, unit: str, students: Sequence[str], jobs: int, force: bool) -> int:
    """Grade all submissions of a unit: `course grade UNIT [--student NAME] [--jobs N] [--force]`."""
    from graders.classroom import Order, State, grade_class
    from graders.gradebook import Course
    from graders.grading_desk import Desk, class_table
    from graders.nbgrader_preprocessor import WrongCourse

    desk = Desk(Console(stderr=True))
    try:
        with desk:
            course = Course(root)
            outcomes = grade_class(course, Order(unit, tuple(students), jobs, force), desk)
    except WrongCourse as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"Stopped: {desk.told() or 'nothing graded yet'}. The same command goes on.", file=sys.stderr)
        return INTERRUPTED
    Console().print(class_table(unit, outcomes))
    print(f"The class page: {course.results(unit) / 'class.html'}")
    left = [outcome for outcome in outcomes if outcome.state is State.NOT_GRADED]
    for outcome in left:
        print(f"{outcome.student} was not graded. {outcome.why}", file=sys.stderr)
    mistaken = _mistaken_graders(outcomes)
    print(*mistaken, sep="\n", end="\n" if mistaken else "", file=sys.stderr)
    if not all(outcome.marked.walled for outcome in outcomes if outcome.marked):
        print("There was no bubblewrap: the submissions could read what you can read.", file=sys.stderr)
    return NOT_ALL_GRADED if left or mistaken else DONE


def progress() -> int:
    """Show how far the user has come: `course progress`."""
    from graders.progress import read_records
    from graders.standings import progress_table

    Console().print(progress_table(list(read_records())))
    return ALL_POINTS


def hint(exercise: str, number: int | None = None) -> int:
    """Show the next hint, or hint `number`: `course hint EXERCISE [NUMBER]`."""
    try:
        print(hint_text(exercise, number))
    except NoSuchExercise as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    return ALL_POINTS


def reset(file: Path, exercise: str) -> int:
    """Put the original of an answer back into a notebook: `course reset FILE EXERCISE`."""
    from graders.reset import CannotReset, reset_in_file

    try:
        print(reset_in_file(file, exercise))
    except (CannotReset, NoSuchExercise) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    return ALL_POINTS


def _show(report: Report) -> None:
    """The summary, and before it the tables of the exercises that have not earned all their points."""
    console = Console()
    console.print(report.shortfalls())
    console.print(report.summary())


def _mistaken_graders(outcomes: "Sequence[Outcome]") -> list[str]:
    """A sentence for every grader that stopped with an error of its own, with the first traceback."""
    told: dict[str, str] = {}
    for outcome in outcomes:
        for result in outcome.marked.report.exercises if outcome.marked else ():
            if result.mistake:
                name = result.exercise.name
                told.setdefault(
                    name, f"The grader of {name} stopped, first for {outcome.student}:\n{result.mistake}"
                )
    return list(told.values())
