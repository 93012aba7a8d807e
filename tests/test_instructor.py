"""What a lecturer does beside grading, with nbgrader: feedback, due dates, what nobody else may read."""

import copy
import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeFactory
from nbgrader.plugins import CsvExportPlugin
from nbgrader.validator import Validator
from traitlets.config import Config

from graders.classroom.gradebook import Course
from tests.classroom import ROOT, UNIT, JudgesHere, answer_cell, blank, hand_in, new_course, run_here, solved

# One worker grades the class for all tests.
pytestmark = pytest.mark.xdist_group("instructor")

ANSWERED, ALL = ("amdahl_speedup", "rank_coordinates"), 9.0
"""What those solve who hand in: what is graded at once, and its points."""


def answered(*names: str) -> nbformat.NotebookNode:
    """A notebook with the right answers to some exercises."""
    notebook, right = blank(), solved()
    for name in names:
        answer_cell(notebook, name).source = answer_cell(right, name).source
    return notebook


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


def twice() -> nbformat.NotebookNode:
    """An answer, and below it the stub once more, as it came back from a copy."""
    notebook = answered(*ANSWERED)
    cell = answer_cell(notebook, "rank_coordinates")
    again = copy.deepcopy(answer_cell(blank(), "rank_coordinates"))
    notebook.cells.insert(notebook.cells.index(cell) + 1, nbformat.from_dict({**again, "id": "again"}))
    return notebook


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
        for name, file in (("ann", f"{UNIT}.ipynb"), ("renamed", "homework 1.ipynb")):
            Student(root, name).submit(answered(*ANSWERED), file)
        nbgrader(root, "collect", UNIT)
        hand_in(root, "by_mail", twice())
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
        assert "passed: " in page
    assert "by_mail did not hand in a notebook with nbgrader submit" in said
    assert str(graded / "feedback" / "by_mail" / UNIT / f"{UNIT}.html") in said


def test_an_answer_with_a_stub_below_it_is_told(graded: Path) -> None:
    # Invariant: who loses an exercise for a copy of its cell reads so: here, and in nbgrader's feedback.
    said = "rank_coordinates is defined in 2 cells: the last one counts, and is no answer yet."
    results = graded / "results" / UNIT
    page = (results / "feedback" / "by_mail.html").read_text()
    assert page.index("To know</h2>") < page.index(said)
    assert said in (results / "class.html").read_text()
    assert "defined in 2 cells" not in (results / "feedback" / "ann.html").read_text()
    nbgrader(graded, "generate_feedback", UNIT, "--student", "by_mail")
    assert said in (graded / "feedback" / "by_mail" / UNIT / f"{UNIT}.html").read_text()


def test_grades_are_closed_to_others(collected: Path, tmp_path: Path) -> None:
    # Invariant: whatever the umask and whatever was there before, grades and what was handed in are the
    # grader's alone.
    root = Path(shutil.copytree(collected, tmp_path / "course"))
    (root / "gradebook.db").chmod(0o666)
    before = os.umask(0)
    try:
        assert run_here(root, "grade", UNIT, "--student", "ann").returncode == 0
        nbgrader(root, "generate_feedback", UNIT)
        nbgrader(root, "export")
    finally:
        os.umask(before)
    for name in ("submitted", "autograded", "feedback"):
        assert (root / name).stat().st_mode & 0o7777 == 0o700
    for path in (
        root / "results",
        *(root / "results").rglob("*"),
        root / "gradebook.db",
        root / "grades.csv",
    ):
        assert path.stat().st_mode & 0o7777 == (0o700 if path.is_dir() else 0o600), path


def test_graders_who_share_a_group_all_see_the_grades(collected: Path, tmp_path: Path) -> None:
    # Invariant: nbgrader's own setting for that opens the same to the group, and to nobody else.
    root = Path(shutil.copytree(collected, tmp_path / "course"))
    with (root / "nbgrader_config.py").open("a") as file:
        file.write("\nc.CourseDirectory.groupshared = True\n")
    assert run_here(root, "grade", UNIT, "--student", "ann").returncode == 0
    for path in (root / "results", *(root / "results").rglob("*"), root / "gradebook.db"):
        if path.name != ".lock":
            assert path.stat().st_mode & 0o777 == (0o770 if path.is_dir() else 0o660), path


def set_penalty(root: Path, lines: str) -> None:
    with (root / "nbgrader_config.py").open("a") as file:
        file.write(f"\n{lines}\n")


def printed(root: Path, *, judged: bool = False) -> dict[str, tuple[str, str]]:
    """Of each student the points and the state that `course grade` prints; nobody may be judged anew."""
    with pytest.MonkeyPatch.context() as patch:
        if not judged:
            patch.setattr(JudgesHere, "grade", lambda *_: pytest.fail("it was judged again"))
        done = run_here(root, "grade", UNIT)
    assert done.returncode == 0, done.stderr
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    return {row[1].strip(): (row[2].strip(), row[5].strip()) for row in rows if row[1].strip()}


def exported(root: Path) -> dict[str, str]:
    """The points that the gradebook holds, as nbgrader exports them."""
    with Gradebook(f"sqlite:///{root}/gradebook.db", "distributed_training") as gradebook:
        CsvExportPlugin(to=str(root / "grades.csv")).export(gradebook)
    with (root / "grades.csv").open() as file:
        return {row["student_id"]: f"{float(row['score']):g}/21" for row in csv.DictReader(file)}


DAYS = """
from nbgrader.plugins import BasePlugin

class Days(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 2.0

c.AssignLatePenalties.plugin_class = Days
"""


def test_due_dates_and_penalties_count_at_the_next_call(graded: Path, tmp_path: Path) -> None:
    # Invariant: after a due date, a penalty or points by hand the next `course grade` changes what they
    # change, judges nobody again, and prints, here and on the pages, what the gradebook holds.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    nbgrader(root, "db", "assignment", "add", UNIT, "--duedate", "2020-01-01 12:00 CET")
    assert {state for _, state in printed(root).values()} == {"unchanged"}, "late, and there is no penalty"
    set_penalty(root, "c.LateSubmissionPlugin.penalty_method = 'zero'")
    first = printed(root)
    assert first["ann"] == first["renamed"] == ("0/21", "graded")
    assert first["by_mail"][1] == "unchanged", "nobody knows when it came"
    with Gradebook(f"sqlite:///{root}/gradebook.db", "distributed_training") as gradebook:
        gradebook.find_grade("check_amdahl_speedup", UNIT, UNIT, "by_mail").manual_score = 0.5
        gradebook.find_grade("check_mend_statistics", UNIT, UNIT, "ann").manual_score = 4
        gradebook.db.commit()
    second = printed(root)
    assert second["by_mail"] == ("0.5/21", "unchanged")
    assert second["ann"] == ("0/21", "graded"), "the penalty takes the new points as well"
    set_penalty(root, DAYS)
    third = printed(root)
    assert third["ann"] == ("11/21", "graded")
    assert third["renamed"] == ("7/21", "graded")
    assert {student: points for student, (points, _) in third.items()} == exported(root)
    page = (root / "results" / UNIT / "class.html").read_text()
    assert re.search(r"\d+ d(?: \d+ h)?, 2 points taken off", page), "a whole number of days has no hours"
    assert "mend_statistics 4 instead of 0 points" in page
    assert "11 of 21 points</h1>" in (root / "results" / UNIT / "feedback" / "ann.html").read_text()
    assert {state for _, state in printed(root).values()} == {"unchanged"}


def test_a_later_hand_in_is_collected_graded_and_late(graded: Path, tmp_path: Path) -> None:
    # Invariant: `collect --update` takes what was handed in again, and its penalty is that of the new points.
    root = Path(shutil.copytree(graded, tmp_path / "course"))
    nbgrader(root, "db", "assignment", "add", UNIT, "--duedate", "2020-01-01 12:00")
    set_penalty(root, "c.LateSubmissionPlugin.penalty_method = 'zero'")
    Student(root, "ann").submit(answered("amdahl_speedup"))
    nbgrader(root, "collect", UNIT, "--update")
    assert printed(root, judged=True)["ann"] == ("0/21", "graded")
    with Gradebook(f"sqlite:///{root}/gradebook.db", "distributed_training") as gradebook:
        submission = gradebook.find_submission(UNIT, "ann")
        assert submission.score == submission.late_submission_penalty == 3


def test_validating_tells_untouched_from_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: of an untouched exercise nbgrader's Validate says so, of a wrong answer what is wrong with
    # it, and of a right one nothing.
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    notebook = answered("rank_coordinates")
    answer_cell(notebook, "amdahl_speedup").source = "def amdahl_speedup(fraction, workers):\n    return 1.0"
    setup = next(cell for cell in notebook.cells if cell.source.startswith("import os"))
    notebook.cells = [setup, *(cell for cell in notebook.cells if "nbgrader" in cell.metadata)]
    nbformat.write(notebook, tmp_path / f"{UNIT}.ipynb")
    told = Validator().validate(str(tmp_path / f"{UNIT}.ipynb"))
    errors = {each["source"]: " ".join(each["raw_error"].split()) for each in told["failed"]}
    assert "check(rank_coordinates)" not in errors
    assert errors["check(pass_the_token)"].startswith("pass_the_token: not attempted yet.")
    assert errors["check(mend_statistics)"].startswith("mend_statistics: not attempted yet.")
    assert re.match(r"amdahl_speedup: 0 of 3 points\. ✘ failed: .*expected", errors["check(amdahl_speedup)"])
