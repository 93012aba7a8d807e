"""Writing verdicts into nbgrader's gradebook and its folder of autograded notebooks.

nbgrader's own converter and preprocessors do it, those of `nbgrader_config.py`, so that formgrader, manual
grading, penalties, feedback and export find what `nbgrader autograde` would have left. But nbgrader commits
after every cell; here a submission is one transaction, and its folder appears in one step.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import nbformat
import nbgrader.converters.autograde
import nbgrader.preprocessors.latesubmissions
import nbgrader.preprocessors.overwritecells
import nbgrader.preprocessors.overwritekernelspec
import nbgrader.preprocessors.saveautogrades
from nbconvert.writers.files import FilesWriter
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, CheckCellMetadata
from nbgrader.utils import parse_utc
from traitlets.config import Config
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

import graders.classroom.preprocessors
from graders.classroom.due_dates import due_date
from graders.classroom.entries import Entry, entry_of
from graders.classroom.preprocessors import REPORT, WrongCourse
from graders.classroom.result_store import Graded, write_whole
from graders.grading.report import Report
from graders.submissions.folder import TIMESTAMP, copy_beside, read_hand_in

_OPEN_GRADEBOOKS: tuple[Any, ...] = (
    nbgrader.converters.autograde,
    nbgrader.preprocessors.latesubmissions,
    nbgrader.preprocessors.overwritecells,
    nbgrader.preprocessors.overwritekernelspec,
    nbgrader.preprocessors.saveautogrades,
    graders.classroom.preprocessors,
)
"""The modules that open a gradebook of their own while a submission is graded."""

_CHECKS_OF_METADATA = (CheckCellMetadata, "nbgrader.preprocessors.CheckCellMetadata")
"""They compile their schema anew for each cell, which takes a sixth of the time of recording."""

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
"""nbgrader tells its log at length what it does."""


class Course:
    """A folder with an `nbgrader_config.py`: where submissions, gradebook and notebooks are."""

    def __init__(self, root: Path) -> None:
        """Raises WrongCourse if there is no course in the folder."""
        self.root = root.resolve()
        try:
            self.config = PyFileConfigLoader("nbgrader_config.py", path=str(self.root)).load_config()
        except ConfigFileNotFound as error:
            raise WrongCourse(
                f"There is no nbgrader_config.py in {self.root}. Call it in the course's folder."
            ) from error
        self.config.merge(Config({"CourseDirectory": {"root": str(self.root)}}))
        self.directory = CourseDirectory(config=self.config)

    def submitted(self, student: str, unit: str) -> Path:
        """Where a submission stands."""
        return self._path(self.directory.submitted_directory, student, unit)

    def autograded(self, student: str, unit: str) -> Path:
        """Where its notebook with the verdicts stands."""
        return self._path(self.directory.autograded_directory, student, unit)

    def feedback(self, student: str, unit: str) -> Path:
        """Where its pages for the student stand."""
        return self._path(self.directory.feedback_directory, student, unit)

    def results(self, unit: str) -> Path:
        """The folder of a unit's verdicts and class pages."""
        return self.root / "results" / unit

    def students(self, unit: str) -> list[str]:
        """Those who have handed in something for a unit."""
        marker = "\0student\0"
        before, _, after = str(self.submitted(marker, unit)).partition(marker)
        base = Path(before)
        if not base.is_dir():
            return []
        return sorted(path.name for path in base.iterdir() if Path(f"{path}{after}").is_dir())

    def _path(self, step: str, student: str, unit: str) -> Path:
        return Path(self.directory.format_path(step, student, unit))


class GradebookWriter:
    """An open gradebook into which submissions of one unit are recorded, one transaction each."""

    def __init__(self, course: Course, unit: str) -> None:
        """Raises WrongCourse if the gradebook does not know the unit."""
        self.course = course
        self.unit = unit
        self._url = course.directory.db_url
        self._book = _HeldOpen(self._url, course.directory.course_id)
        self._staging = Path(tempfile.mkdtemp(prefix=".recording-", dir=course.root))

    def __enter__(self) -> Self:
        try:
            self._book.find_notebook(self.unit, self.unit)
        except MissingEntry as error:
            self.__exit__()
            raise WrongCourse(
                f"The gradebook does not know {self.unit}. Let it know with: course release {self.unit}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._book.close_now()
        shutil.rmtree(self._staging, ignore_errors=True)

    def due(self) -> datetime | None:
        """When the unit is to be handed in; None if it has no due date."""
        try:
            return due_date(self._book, self.unit)
        finally:
            self._book.db.remove()

    def entries(self) -> Mapping[str, Entry]:
        """What the gradebook has for each student."""
        try:
            submissions = self._book.assignment_submissions(self.unit)
            return {each.student_id: entry_of(each) for each in submissions}
        finally:
            self._book.db.remove()

    def entry(self, student: str) -> Entry | None:
        """What the gradebook has for a student; None if it has nothing."""
        try:
            return entry_of(self._book.find_submission(self.unit, student))
        except MissingEntry:
            return None
        finally:
            self._book.db.remove()

    def has(self, graded: Graded, entries: Mapping[str, Entry]) -> bool:
        """Whether gradebook and folder have these verdicts already."""
        expected = {f"check_{each.exercise.name}": each.points for each in graded.report.exercises}
        notebook = self.course.autograded(graded.student, self.unit) / f"{self.unit}.ipynb"
        entry = entries.get(graded.student)
        return graded.recorded and notebook.exists() and entry is not None and entry.automatic == expected

    def settle(self, student: str) -> bool:
        """Take off for being late what due date, plugin and score ask for today; whether that is new."""
        place = {"notebook": self.unit, "assignment": self.unit, "student": student, "db_url": self._url}
        penalties = AssignLatePenalties(config=self.course.config, log=_LOG)
        try:
            submission = self._book.find_submission(self.unit, student)
            before = submission.late_submission_penalty
            with _one_gradebook(self._book):
                penalties.preprocess(new_notebook(), {"nbgrader": place})
            if submission.late_submission_penalty == before:
                return False
            self._book.commit_now()
            return True
        finally:
            self._book.db.remove()

    def record(self, graded: Graded) -> None:
        """Write a submission's verdicts. Raises whatever stops nbgrader; then nothing has been written.

        The folder follows the gradebook. Between the two `Graded.recorded` is not yet true: who stops there
        records it again.
        """
        shutil.rmtree(self._staging, ignore_errors=True)
        submitted = self._stage(graded)
        converter = _Converter(self._staged_course(), graded)
        target = self.course.autograded(graded.student, self.unit)
        try:
            with _one_gradebook(self._book):
                converter.convert(submitted)
            made = _beside(target, self._staging / "autograded" / graded.student / self.unit)
            self._book.commit_now()
        except BaseException:
            self._book.db.rollback()
            raise
        finally:
            self._book.db.remove()
        _swap(made, target)

    def _stage(self, graded: Graded) -> Path:
        """Write the submission as a well-formed notebook where nbgrader will find it."""
        folder = self.course.submitted(graded.student, self.unit)
        staged = self._staging / "submitted" / graded.student / self.unit
        copy_beside(folder, staged)
        path = staged / f"{self.unit}.ipynb"
        write_whole(path, nbformat.writes(read_hand_in(folder, self.unit).notebook()))
        with suppress(OSError, ValueError, OverflowError):
            timestamp = (folder / TIMESTAMP).read_text().strip()
            parse_utc(timestamp)
            (staged / TIMESTAMP).write_text(timestamp)
        return path

    def _staged_course(self) -> CourseDirectory:
        config = Config(self.course.config)
        config.CourseDirectory.submitted_directory = str(self._staging / "submitted")
        config.CourseDirectory.autograded_directory = str(self._staging / "autograded")
        config.CourseDirectory.directory_structure = "{nbgrader_step}/{student_id}/{assignment_id}"
        config.CourseDirectory.assignment_id = self.unit
        return CourseDirectory(config=config)


class _Converter(Autograde):  # type: ignore[misc]
    """nbgrader's `autograde` for one submission whose verdicts are known."""

    def __init__(self, coursedir: CourseDirectory, graded: Graded) -> None:
        super().__init__(coursedir=coursedir, config=coursedir.config)
        self._report: Report = graded.report
        self._student = graded.student
        self.log = _LOG
        # Each cell has its metadata from the gradebook itself (MendCells).
        for name in ("sanitize_preprocessors", "autograde_preprocessors"):
            setattr(self, name, [each for each in getattr(self, name) if each not in _CHECKS_OF_METADATA])

    def convert(self, path: Path) -> None:
        """Sanitise, grade and write the notebook."""
        self.notebooks = [str(path)]
        self.writer = FilesWriter(parent=self, config=self.config)
        self.exporter = self.exporter_class(parent=self, config=self.config)
        # One look at the notebook after all preprocessors, and not one after each.
        self.exporter.optimistic_validation = True
        unit = self.coursedir.assignment_id
        self.run_pre_convert_hook()
        self.init_assignment(unit, self._student)
        for notebook in self.notebooks:
            self.convert_single_notebook(notebook)
        self.set_permissions(unit, self._student)
        self.run_post_convert_hook()

    def init_single_notebook_resources(self, notebook_filename: str) -> dict[str, Any]:
        resources: dict[str, Any] = super().init_single_notebook_resources(notebook_filename)
        resources[REPORT] = self._report
        return resources


class _HeldOpen(Gradebook):  # type: ignore[misc]
    """A gradebook that whoever opens it cannot commit or close: what they write is one transaction."""

    def __init__(self, db_url: str, course_id: str) -> None:
        super().__init__(db_url, course_id)
        self.commit_now = self.db.commit
        self.db.commit = self.db.flush

    def close(self) -> None:
        """Send what has been written, and stay open; sums are computed anew."""
        self.db.flush()
        self.db.expire_all()

    def close_now(self) -> None:
        """Close it."""
        super().close()


@contextmanager
def _one_gradebook(book: Gradebook) -> Iterator[None]:
    """Let nbgrader use this gradebook wherever it opens one."""
    for module in _OPEN_GRADEBOOKS:
        module.Gradebook = lambda *_, **__: book
    try:
        yield
    finally:
        for module in _OPEN_GRADEBOOKS:
            module.Gradebook = Gradebook


def _beside(target: Path, source: Path) -> Path:
    """Copy a folder to where renaming makes it `target`: that may be on another file system."""
    made = target.parent / f".{target.name}.new"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(source, made)
    return made


def _swap(made: Path, target: Path) -> None:
    """Put a folder in the place of another, which must not be seen half-written."""
    old = target.parent / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)
