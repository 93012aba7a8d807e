"""The graders' part of the command `course`. Each function prints, and returns the exit status.

0: all points, or done. 1: graded, but not all points; of a class, not all submissions. 2: nothing could be
done; stderr says why. 130: stopped with Control-C.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graders.grading.report import Report
from graders.student.hints import hint_text
from graders.student.lookup import NoSuchExercise

if TYPE_CHECKING:
    from graders.classroom.grade_class import Order, StudentResult

ALL_POINTS, NOT_ALL_POINTS, BAD_INPUT = 0, 1, 2
DONE, NOT_ALL_GRADED, INTERRUPTED = 0, 1, 130


def check(
    file: Path,
    unit: str | None = None,
    as_json: bool = False,
    require_sandbox: bool = False,
    unsafe: bool = False,
) -> int:
    """Grade a notebook or Python file, its code in a sandbox: `course check FILE --unit NN_name [--json]`.

    One's own work is checked on any machine, with a note where there is no sandbox. The work of others is
    not: what lies among a course's submissions, or is checked with `require_sandbox`, needs one unless it is
    `unsafe`.
    """
    from graders.host.fork_server_client import SandboxFailed
    from graders.host.grade_submission import grade_file
    from graders.isolation.backends import UNSANDBOXED, NoSandbox, backend_for_grading, backend_here
    from graders.submissions.read import BadSubmission

    try:
        backend_for_grading(unsafe or backend_here().stands or not (require_sandbox or _is_handed_in(file)))
        report = grade_file(file, unit)
    except (BadSubmission, NoSandbox, SandboxFailed) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
        if UNSANDBOXED in report.notes:
            print(UNSANDBOXED, file=sys.stderr)
    else:
        _show(report)
        if not (require_sandbox or _is_handed_in(file)):
            _record(report)
    return ALL_POINTS if report.passed else NOT_ALL_POINTS


def _record(report: Report) -> None:
    """Note how one's own work was judged, as `check` in the notebook does."""
    from graders.student.progress_log import record_check

    with suppress(OSError):  # verdicts are worth more than the note that they were given
        for result in report.exercises:
            if result.attempted:
                record_check(result)


def grade(root: Path, order: "Order") -> int:
    """Grade all submissions of a unit: `course grade UNIT [--student NAME] [--jobs N] [--force]`."""
    try:
        return _grade(root, order)
    except KeyboardInterrupt:  # while what it needs was being loaded
        print("Stopped: nothing graded yet. The same command goes on.", file=sys.stderr)
        return INTERRUPTED


def _grade(root: Path, order: "Order") -> int:
    from course_lib.slurm.scripts import Refused
    from graders.classroom.grade_class import State, batches_folder, grade_class
    from graders.classroom.gradebook import Course
    from graders.classroom.preprocessors import WrongCourse
    from graders.classroom.terminal import Terminal, class_table
    from graders.isolation.backends import NoSandbox

    terminal = Terminal(Console(stderr=True))
    try:
        course = Course(root)
        with terminal:
            results = grade_class(course, order, terminal)
    except (NoSandbox, Refused, WrongCourse) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(
            f"Stopped: {terminal.told() or 'nothing graded yet'}. The same command goes on.", file=sys.stderr
        )
        if order.cluster is not None:
            _tell_of_jobs(batches_folder(course, order.unit))
        return INTERRUPTED
    Console().print(class_table(order.unit, results))
    print(f"The class page: {course.results(order.unit) / 'class.html'}")
    left = [result for result in results if result.state is State.NOT_GRADED]
    for result in left:
        print(f"{result.student} was not graded. {result.why}", file=sys.stderr)
    mistaken = _mistaken_graders(results)
    print(*mistaken, sep="\n", end="\n" if mistaken else "", file=sys.stderr)
    return NOT_ALL_GRADED if left or mistaken else DONE


def report(unit: str, file: Path, page: Path) -> int:
    """Write a page about one's own work on a unit: `course report UNIT`."""
    from graders.host.fork_server_client import SandboxFailed
    from graders.host.grade_submission import grade_file
    from graders.student.progress_log import read_records
    from graders.student.unit_report import unit_page
    from graders.submissions.read import BadSubmission, read_cells

    try:
        graded = grade_file(file, unit)
        page.write_text(unit_page(graded, file, read_cells(file), list(read_records())), encoding="utf-8")
    except (BadSubmission, SandboxFailed) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    print(f"Written: {page.resolve()}")
    return ALL_POINTS if graded.passed else NOT_ALL_POINTS


def progress() -> int:
    """Show how far the user has come: `course progress`."""
    from graders.student.progress_log import read_records
    from graders.student.progress_table import progress_table

    Console().print(progress_table(list(read_records())))
    return ALL_POINTS


def hint(exercise: str, number: int | None = None) -> int:
    """Show the next hint, or hint `number`: `course hint EXERCISE [NUMBER]`."""
    try:
        print(hint_text(exercise, number, "course hint {}", "course hint {} 1"))
    except NoSuchExercise as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    return ALL_POINTS


def second_way(exercise: str) -> int:
    """Show another right answer to a solved exercise: `course second-way EXERCISE`."""
    from graders.student.lookup import find_exercise
    from graders.student.second_way import second_way_if_solved

    try:
        print(second_way_if_solved(find_exercise(exercise)))
    except NoSuchExercise as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    return ALL_POINTS


def reset(file: Path, exercise: str) -> int:
    """Put the original of an answer back into a notebook: `course reset FILE EXERCISE`."""
    from graders.student.reset_cell import CannotReset, reset_in_file

    try:
        print(reset_in_file(file, exercise))
    except (CannotReset, NoSuchExercise) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    return ALL_POINTS


def _tell_of_jobs(folder: Path) -> None:
    """Say which jobs of a cluster go on, and how to end them."""
    from graders.classroom.batches import batches_in
    from graders.classroom.job_array import is_under_way

    jobs = [batch.job for batch in batches_in(folder) if is_under_way(batch.job)]
    if jobs:
        print(
            f"On the cluster it goes on; to end that: scancel {' '.join(jobs)}. The same command, with or "
            f"without --slurm, records what has been graded by then.",
            file=sys.stderr,
        )


def _is_handed_in(file: Path) -> bool:
    """Whether a file lies among the submissions of a course."""
    from graders.classroom.gradebook import Course

    place = file.resolve()
    for folder in place.parents:
        if (folder / "nbgrader_config.py").exists():
            course = Course(folder)
            return place.is_relative_to(course.root / course.directory.submitted_directory)
    return False


def _show(report: Report) -> None:
    """The summary, and before it the tables of the exercises that have not earned all their points."""
    console = Console()
    console.print(report.shortfalls())
    console.print(report.summary())


def _mistaken_graders(results: "Sequence[StudentResult]") -> list[str]:
    """A sentence for every grader that stopped with an error of its own, with the first traceback."""
    told: dict[str, str] = {}
    for each in results:
        for result in each.graded.report.exercises if each.graded else ():
            if result.mistake:
                name = result.exercise.name
                told.setdefault(
                    name, f"The grader of {name} stopped, first for {each.student}:\n{result.mistake}"
                )
    return list(told.values())
