"""What leaves the course: feedback, whatever way a submission came, and the table of grades."""

import re
import shutil
from collections.abc import Iterator
from glob import glob
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.exchange.default import ExchangeReleaseFeedback
from nbgrader.plugins import CsvExportPlugin
from nbgrader.utils import notebook_hash

SECRET = "submission_secret.txt"
"""What `nbgrader submit` draws, and keeps with the student too: who knows it finds the feedback."""


class ReleaseFeedback(ExchangeReleaseFeedback):  # type: ignore[misc]
    """Releases the page of every submission that came through the exchange; of others it says where it is.

    `nbgrader fetch_feedback` asks for a page by the names of the notebooks that were handed in, so a page is
    released under each of them, and not under that of the unit alone.
    """

    def copy_files(self) -> None:
        """See nbgrader's own, which wants a timestamp and a secret of all."""
        excluded = self.coursedir.student_id_exclude.split(",")
        for student, page in self._pages():
            if student in excluded:
                continue
            names = self._fetched_as(student)
            secret = page.with_name(SECRET)
            if not names or not secret.is_file():
                self.log.warning(
                    "%s did not hand in a notebook with nbgrader submit, and cannot fetch feedback. Send %s",
                    student,
                    page,
                )
                continue
            for name in names | {page.stem}:
                self._release(page, notebook_hash(secret=secret.read_text(), notebook_id=name))
            self.log.info("Released for %s: %s", student, page.name)

    def _pages(self) -> Iterator[tuple[str, Path]]:
        """The students and their pages."""
        unit, folder = self.coursedir.assignment_id, self.coursedir.feedback_directory
        student = re.compile(self.coursedir.format_path(folder, "(.*)", unit, escape=True))
        for page in sorted(map(Path, glob(f"{self.src_path}/*.html"))):
            found = student.fullmatch(str(page.parent))
            if found:
                yield found[1], page

    def _fetched_as(self, student: str) -> set[str]:
        """The names of the notebooks that a student handed in."""
        unit, folder = self.coursedir.assignment_id, self.coursedir.submitted_directory
        return {path.stem for path in Path(self.coursedir.format_path(folder, student, unit)).glob("*.ipynb")}

    def _release(self, page: Path, name: str) -> None:
        """Put a page where students may look for it, in one step."""
        made = Path(self.dest_path) / f"{name}-tmp.html"
        shutil.copyfile(page, made)
        made.chmod(0o644)
        made.replace(made.with_name(f"{name}.html"))


class PrivateCsv(CsvExportPlugin):  # type: ignore[misc]
    """`nbgrader export` into a file that nobody else can read."""

    def export(self, gradebook: Gradebook) -> None:
        """See nbgrader's own."""
        self.to: str = self.to or "grades.csv"
        path = Path(self.to)
        path.touch(0o600)
        path.chmod(0o600)
        super().export(gradebook)
