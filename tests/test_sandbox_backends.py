"""Sandbox backends: what is built here, and what is refused and reported where none can be."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.apps.api import NbGraderAPI

from graders import check_process, commands
from graders.classroom.gradebook import Course
from graders.isolation import backends
from graders.isolation.backends import (
    NO_ISOLATION,
    UNSANDBOXED,
    Backend,
    NoSandbox,
    backend_for_grading,
    backend_here,
    works,
)
from graders.isolation.bubblewrap import NOBODY, sandboxed
from tests.classroom import ROOT, UNIT, blank, command, hand_in, new_course, run_here, solved

pytestmark = pytest.mark.xdist_group("sandboxes")


@contextmanager
def without_sandboxes() -> Iterator[None]:
    """A machine where PATH leads to no program that could build a sandbox."""
    backend_here.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(Path(sys.executable).parent))
            yield
    finally:
        backend_here.cache_clear()


def run_unsandboxed(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on such a machine, in this process, which has imported everything."""
    with without_sandboxes(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_process, "run", commands.check)
        return run_here(root, *arguments)


def start_unsandboxed(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own."""
    with without_sandboxes():
        return subprocess.run(
            command(*arguments),
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course with two submissions that nobody has graded."""
    root = new_course(tmp_path_factory.mktemp("sandboxes") / "course")
    hand_in(root, "right", solved())
    hand_in(root, "blank", blank())
    return root


@pytest.fixture
def course(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "course"))


# --------------------------------------------------------------------------------------- what is a sandbox


def test_a_backend_that_keeps_nothing_in_is_not_taken() -> None:
    # Invariant: a sandbox counts only if what is behind it has been seen to be kept in.
    assert not works(Backend("leaky", lambda command, _: list(command)))
    assert not works(Backend("absent", lambda command, _: ["/nowhere/sandbox", *command]))
    assert [each.stands for each in backends.BACKENDS] == [True] * len(backends.BACKENDS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's submissions change their user")
@pytest.mark.skipif(backend_here().name != "bubblewrap", reason="bubblewrap is not here, or not allowed")
def test_root_s_submissions_run_as_nobody() -> None:
    command = [sys.executable, "-I", "-S", "-c", "import os; print(*os.getresuid(), *os.getresgid())"]
    done = subprocess.run(sandboxed(command), capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {str(NOBODY)}


def test_apptainers_command_line(tmp_path: Path) -> None:
    # Invariant: no network, no home, own processes; what is shown is read-only, and has a place.
    words = backends.apptainer(["python", "-c", "pass"], tmp_path)
    options, rest = words[: words.index(str(tmp_path))], words[words.index(str(tmp_path)) + 1 :]
    assert Path(words[0]).name in ("apptainer", "singularity")
    assert {"exec", "--userns", "--pid", "--ipc", "--contain", "--no-home", "--no-privs"} <= set(options)
    assert options[options.index("--network") + 1] == "none"
    bound = [options[i + 1] for i, word in enumerate(options) if word == "--bind"]
    assert all(each.endswith(":ro") for each in bound)
    assert f"{sys.prefix}:{sys.prefix}:ro" in bound
    assert all((tmp_path / each.split(":")[0][1:]).exists() for each in bound)
    assert rest == ["/usr/bin/env", "HOME=/tmp", "python", "-c", "pass"]


@pytest.mark.skipif(
    not (shutil.which("apptainer") or shutil.which("singularity")),
    reason="Apptainer is not installed: https://apptainer.org/docs/admin/main/installation.html",
)
def test_apptainer_keeps_in(tmp_path: Path) -> None:
    assert works(Backend("apptainer", backends.apptainer))


# ------------------------------------------------------------------------------------- where there is none


def test_grades_need_a_sandbox_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "backend_here", lambda: NO_ISOLATION)
    with pytest.raises(NoSandbox, match=r"apt-get install bubblewrap.*--unsafe"):
        backend_for_grading(unsafe=False)
    assert backend_for_grading(unsafe=True) is NO_ISOLATION


def test_a_class_is_not_graded_without_a_sandbox(course: Path) -> None:
    # Invariant: a sentence, exit status 2, no verdict, no grade.
    done = run_unsandboxed(course, "grade", UNIT)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("There is no sandbox here to keep submissions in")
    assert not list(course.glob("results/*/*.json"))
    # The release has made the folder, closed to others; nobody's work is in it.
    assert not list(course.glob("autograded/*"))


def test_unsafe_grades_and_every_report_says_so(course: Path) -> None:
    # Invariant: table, feedback, class page, CSV and the autograded notebook, which nbgrader shows.
    done = run_unsandboxed(course, "grade", UNIT, "--unsafe")
    assert done.returncode == 0, done.stderr
    results = course / "results" / UNIT
    notebook = nbformat.read(course / "autograded" / "right" / UNIT / f"{UNIT}.ipynb", as_version=4)
    tables = [cell.outputs[0]["data"] for cell in notebook.cells if cell.get("outputs")]
    assert f"2 of 2: {UNSANDBOXED}" in " ".join(done.stdout.split())
    assert UNSANDBOXED in (results / "feedback" / "right.html").read_text()
    assert f"2 of 2: {UNSANDBOXED}" in (results / "class.html").read_text()
    assert {row["sandbox"] for row in csv.DictReader((results / "class.csv").open())} == {"none"}
    assert all(UNSANDBOXED in table["text/html"] for table in tables)
    assert [float(table["text/plain"]) > 0 for table in tables] == [True] * len(tables)
    assert_a_wall_grades_again(course)


def assert_a_wall_grades_again(course: Path) -> None:
    """What was graded without a sandbox does not stand where there is one."""
    if not backend_here().stands:
        return
    done = run_here(course, "grade", UNIT)
    assert done.returncode == 0, done.stderr
    assert "[2/2]" in done.stderr
    assert "unchanged" not in done.stderr
    assert UNSANDBOXED not in (course / "results" / UNIT / "class.html").read_text()


def test_one_s_own_work_is_checked_without_a_sandbox(course: Path, tmp_path: Path) -> None:
    # Invariant: a student on any laptop gets the table, or the JSON and nothing else on stdout, and the note.
    own = tmp_path / "mine.ipynb"
    nbformat.write(solved(), own)
    table = run_unsandboxed(tmp_path, "check", str(own), "--unit", UNIT)
    assert (table.returncode, UNSANDBOXED in " ".join(table.stdout.split())) == (0, True)
    plain = start_unsandboxed(tmp_path, "check", str(own), "--unit", UNIT, "--json")
    assert json.loads(plain.stdout).keys() == {"unit", "points", "max_points", "exercises"}
    assert plain.stderr.strip() == UNSANDBOXED


def test_somebody_else_s_is_not(course: Path, tmp_path: Path) -> None:
    # Invariant: what lies among the submissions, or is said to be another's, needs a sandbox or --unsafe.
    theirs = f"submitted/right/{UNIT}/{UNIT}.ipynb"
    copied = tmp_path / f"{UNIT}.ipynb"
    shutil.copyfile(course / theirs, copied)
    for arguments in ([theirs], [str(copied), "--require-sandbox"]):
        refused = run_unsandboxed(course, "check", *arguments, "--json")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "There is no sandbox here" in refused.stderr


def test_nbgrader_refuses_as_well_and_can_be_told(course: Path) -> None:
    # Invariant: no grade and the reason in its log; with c.GradeInSandbox.unsafe, a grade. What its command
    # calls runs in this process, which has imported everything.
    refused = autograded_without_a_sandbox(course)
    assert not refused["success"]
    assert "There is no sandbox here" in refused["log"]
    assert not (course / "autograded" / "right" / UNIT).exists()
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text() + "\nc.GradeInSandbox.unsafe = True\n")
    done = autograded_without_a_sandbox(course)
    assert done["success"], done
    assert UNSANDBOXED in (course / "autograded" / "right" / UNIT / f"{UNIT}.ipynb").read_text()


def autograded_without_a_sandbox(course: Path) -> dict[str, Any]:
    """What nbgrader makes of the right submission where PATH leads to no program that builds a sandbox."""
    directory = Course(course).directory
    with without_sandboxes():
        outcome: dict[str, Any] = NbGraderAPI(directory, config=directory.config).autograde(UNIT, "right")
    return outcome


def test_there_is_a_sandbox_here() -> None:
    # A machine with bubblewrap, as CI is, must not pass these tests without having built a sandbox.
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    if os.geteuid() != 0:
        pytest.skip("containers may forbid a user who is not root to build sandboxes")
    assert backend_here().stands
