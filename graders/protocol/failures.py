"""What it means that the student's code came to no end: exceptions and failed launches as failures."""

import traceback
from collections.abc import Sequence

from course_lib.launch.failures import Deadlock, LaunchError, RankFailed
from course_lib.runtime.communication.arguments import given_by_a_grader
from course_lib.runtime.communication.callsite import is_grader, is_library, own_lines
from course_lib.runtime.communication.events import SourceLine
from graders.grading.answer import FailureKind
from graders.grading.text import bounded, joined
from graders.protocol.requests import Failure

STUB_SEEN = "`raise NotImplementedError()` is still there: replace it by your answer."


def tell(error: BaseException) -> str:
    """An exception for the student: what it says, and the lines of their code that it passed through."""
    said = "".join(traceback.format_exception_only(error)).strip()
    return "\n".join([bounded(said), *told_place(error)])


def told_place(error: BaseException) -> list[str]:
    """The lines of the student's code that an exception passed through, and what it was called with."""
    given = given_by_a_grader(error.__traceback__)
    lines = _told_lines(own_lines(traceback.walk_tb(error.__traceback__)))
    return [*lines, f"  with {given}"] if given else lines


def failure_of(error: BaseException) -> Failure:
    """What an exception in the student's code means."""
    # PyTorch raises NotImplementedError too, for an operation that a device lacks, but never without a word.
    if type(error) is NotImplementedError and not str(error):
        return Failure(FailureKind.NOT_ATTEMPTED, STUB_SEEN, "")
    return Failure(FailureKind.RAISED, tell(error), "", type(error).__name__[:100])


def launch_failure(error: LaunchError) -> Failure:
    """What the end of a launch means."""
    printed = joined(error.run.outputs) if error.run else ""
    if isinstance(error, RankFailed) and error.root.type == "NotImplementedError" and not error.root.message:
        return Failure(FailureKind.NOT_ATTEMPTED, STUB_SEEN, printed)
    raised = error.root.type if isinstance(error, RankFailed) else ""
    deadlock = error if isinstance(error, Deadlock) else None
    return Failure(FailureKind(type(error).__name__), bounded(error.report), printed, raised, deadlock)


_SHOWN = 3
"""Of a long way through the student's code, so many lines are told from each end."""


def _told_lines(lines: Sequence[SourceLine]) -> list[str]:
    """Lines of code for the student; of very many the first and the last. What is not theirs is left out."""
    told = [
        f"  in {line.function}, {line}"
        for line in lines
        if not (is_grader(line.file) or is_library(line.file))
    ]
    if len(told) <= 2 * _SHOWN:
        return told
    return [*told[:_SHOWN], f"  ... {len(told) - 2 * _SHOWN} more lines ...", *told[-_SHOWN:]]
