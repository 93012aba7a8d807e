"""What a lecturer does beside grading, with nbgrader itself: feedback, due dates, what nobody else may read."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeFactory
from traitlets.config import Config

from graders.classroom.gradebook import Course
from tests.classroom import ROOT, UNIT, answer_cell, blank, folder_of, hand_in, new_course, run_here, solved

# One worker grades the class for all tests.
pytestmark = pytest.mark.xdist_group("instructor")

STUDENTS = ("ann", "renamed", "python")
"""Those who hand in through the exchange."""


def nbgrader(root: Path, *arguments: str) -> str:
    """What an nbgrader command says in the course's folder."""
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(root),
            "JUPYTER_CONFIG_DIR": str(root / "none"),
        },
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


class Student:
    """Somebody with a folder and a cache of their own, who uses the course's exchange."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / "homes" / name
        config = Config(Course(root).config)
        config.CourseDirectory.root = str(self.folder)
        config.CourseDirectory.assignment_id = UNIT
        config.CourseDirectory.student_id = name
        config.Exchange.cache = str(self.folder / "cache")
        config.Exchange.assignment_dir = str(self.folder)
        coursedir = CourseDirectory(config=config)
        authenticator = Authenticator(config=config)
        self._given = {"coursedir": coursedir, "authenticator": authenticator, "config": config}
        self._exchange = ExchangeFactory(config=config)

    def submit(self, notebook: nbformat.NotebookNode, file: str = f"{UNIT}.ipynb") -> None:
        (self.folder / UNIT).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, self.folder / UNIT / file)
        self._exchange.Submit(**self._given).start()

    def feedback(self) -> list[str]:
        """Fetch it: the pages that have come."""
        self._exchange.FetchFeedback(**self._given).start()
        return [path.read_text() for path in (self.folder / UNIT / "feedback").glob("*/*.html")]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A course whose students have handed in through the exchange, but for one whose file came by mail."""
    root = new_course(tmp_path_factory.mktemp("instructor") / "course")
    (root / "exchange").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_EXCHANGE", raising=False)
        nbgrader(root, "release_assignment", UNIT)
        for name, file in (("ann", f"{UNIT}.ipynb"), ("renamed", "homework 1.ipynb"), ("python", "a.ipynb")):
            Student(root, name).submit(solved(), file)
        nbgrader(root, "collect", UNIT)
        hand_in(root, "by_mail", solved())
        (folder_of(root, "python") / "a.ipynb").rename(folder_of(root, "python") / "a.py")
        yield root


@pytest.fixture(scope="module")
def graded(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(collected, tmp_path_factory.mktemp("graded") / "course"))
    done = run_here(root, "grade", UNIT)
    assert done.returncode == 0, done.stderr
    return root


def test_feedback_reaches_everybody_who_can_fetch_it(graded: Path) -> None:
    # Invariant: whatever is missing, releasing ends well; who renamed the notebook finds the page, and of who
    # cannot fetch one it is said where it is.
    nbgrader(graded, "generate_feedback", UNIT)
    said = nbgrader(graded, "release_feedback", UNIT)
    for name in ("ann", "renamed"):
        (page,) = Student(graded, name).feedback()
        assert "answered" in page
    assert "by_mail did not hand in a notebook with nbgrader submit" in said
    assert str(graded / "feedback" / "by_mail" / UNIT / f"{UNIT}.html") in said
