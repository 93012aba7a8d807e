"""An exception as text, with the student's own frames only."""

import traceback

from course_lib.errors import RankTraceback
from course_lib.timeline.lines import own_lines


def rank_traceback(rank: int, error: BaseException, secondary: bool = False) -> RankTraceback:
    """What ended `rank`, as text that can cross to another process."""
    frames = own_lines(traceback.walk_tb(error.__traceback__))
    lines = [f"    at {frame}" for frame in frames]
    lines.extend(traceback.format_exception_only(error))
    return RankTraceback(rank, type(error).__name__, str(error), "\n".join(lines), secondary)
