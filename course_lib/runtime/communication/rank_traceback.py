"""An exception that ended a rank, as text with the student's own lines."""

import traceback

from course_lib.runtime.communication.arguments import given_by_a_grader
from course_lib.runtime.communication.callsite import own_lines
from course_lib.runtime.communication.errors import RankTraceback

_SHOWN_CALLS = 8
"""So many calls are shown at either end of a deep stack."""


def rank_traceback(rank: int, error: BaseException) -> RankTraceback:
    """What ended `rank`, as text that can cross to another process."""
    frames = own_lines(traceback.walk_tb(error.__traceback__))
    lines = [f"    at {frame}" for frame in frames]
    if len(lines) > 2 * _SHOWN_CALLS:
        # A recursion without end is hundreds of times the same.
        left_out = f"    ... {len(lines) - 2 * _SHOWN_CALLS} more calls ..."
        lines = [*lines[:_SHOWN_CALLS], left_out, *lines[-_SHOWN_CALLS:]]
    if given := given_by_a_grader(error.__traceback__):
        lines.append(f"    with {given}")
    lines.extend(traceback.format_exception_only(error))
    return RankTraceback(rank, type(error).__name__, str(error), "\n".join(lines))
