"""The graders' part of the command `course`. Each function prints, and returns the exit status.

0: all points, or done. 1: graded, but not all points. 2: nothing could be done; stderr says why.
"""

import json
import sys
from pathlib import Path

from rich.console import Console

from graders.hints import hint_text
from graders.lookup import NoSuchExercise
from graders.report import Report

ALL_POINTS, NOT_ALL_POINTS, BAD_INPUT = 0, 1, 2


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
