"""`progress()`: how far a student has come."""

from typing import TYPE_CHECKING

from graders.student.display import shown
from graders.student.progress_log import read_records

if TYPE_CHECKING:
    from graders.student.progress_table import ProgressTable


def progress() -> "ProgressTable":
    """How far you have come, over all units."""
    from graders.student.progress_table import progress_table

    return shown(progress_table(list(read_records())))
