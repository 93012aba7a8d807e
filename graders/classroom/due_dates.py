"""When a unit is to be handed in, by nbgrader's gradebook; from it come lateness and penalties."""

from datetime import UTC, datetime

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory


def due_date(book: Gradebook, unit: str) -> datetime | None:
    """When a released unit is due, in this machine's time zone; None if it has no due date."""
    due: datetime | None = book.find_assignment(unit).duedate
    return due.replace(tzinfo=UTC).astimezone() if due else None


def let_be_due(directory: CourseDirectory, unit: str, due: datetime) -> bool:
    """Set a released unit's due date, and say whether: one that it has may have been moved, and stays."""
    with Gradebook(directory.db_url, directory.course_id) as book:
        if due_date(book, unit) is not None:
            return False
        book.update_or_create_assignment(unit, duedate=due.isoformat())
        return True
