"""When a unit is to be handed in, by nbgrader's gradebook; from it come lateness and penalties."""

from datetime import UTC, datetime

from nbgrader.api import Gradebook

from graders.classroom.gradebook import Course


def due_date(course: Course, unit: str) -> datetime | None:
    """When a released unit is due, in this machine's time zone; None if it has no due date."""
    with Gradebook(course.directory.db_url, course.directory.course_id) as book:
        due: datetime | None = book.find_assignment(unit).duedate
    return due.replace(tzinfo=UTC).astimezone() if due else None


def let_be_due(course: Course, unit: str, due: datetime) -> bool:
    """Set a released unit's due date, and say whether: one that it has may have been moved, and stays."""
    if due_date(course, unit) is not None:
        return False
    with Gradebook(course.directory.db_url, course.directory.course_id) as book:
        book.update_or_create_assignment(unit, duedate=due.isoformat())
    return True
