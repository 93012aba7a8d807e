"""Grades and submissions are for those who grade: closed to everybody else, whatever the umask is."""

import os
from pathlib import Path

from sqlalchemy import make_url

from graders.classroom.gradebook import Course


def keep_private(course: Course) -> None:
    """Close the gradebook and the folders of what was handed in, of grades and of feedback.

    With nbgrader's `CourseDirectory.groupshared` they stay open to their group. What belongs to somebody else
    is left as it is.
    """
    shared = course.directory.groupshared
    steps = ("submitted", "autograded", "feedback")
    names = [getattr(course.directory, f"{step}_directory") for step in steps]
    for folder in (course.root / name for name in ("results", *names)):
        folder.mkdir(parents=True, exist_ok=True)
        _close(folder, 0o2770 if shared else 0o700)
    url = make_url(course.directory.db_url)
    if url.get_backend_name() == "sqlite" and url.database and Path(url.database).parent.is_dir():
        Path(url.database).touch(0o600)
        _close(Path(url.database), 0o660 if shared else 0o600)


def _close(path: Path, mode: int) -> None:
    if path.stat().st_uid == os.geteuid():
        path.chmod(mode)
