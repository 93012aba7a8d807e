"""An exception as text, with the student's own frames only."""

import traceback

from course_lib.runtime.communication.callsite import own_lines
from course_lib.runtime.communication.errors import RankTraceback

_SHOWN = 8
"""So many calls are shown at either end of a deep stack."""


def rank_traceback(rank: int, error: BaseException, secondary: bool = False) -> RankTraceback:
    """What ended `rank`, as text that can cross to another process."""
    frames = own_lines(traceback.walk_tb(error.__traceback__))
    lines = [f"    at {frame}" for frame in frames]
    if len(lines) > 2 * _SHOWN:
        # A recursion without end is hundreds of times the same.
        left_out = f"    ... {len(lines) - 2 * _SHOWN} more calls ..."
        lines = [*lines[:_SHOWN], left_out, *lines[-_SHOWN:]]
    lines.extend(traceback.format_exception_only(error))
    return RankTraceback(rank, type(error).__name__, str(error), "\n".join(lines), secondary)
