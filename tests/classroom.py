"""A small course for the tests of grading a class: unit 00, which is cheap to grade."""

import atexit
import copy
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Self

import nbformat
import pytest

from graders.classroom import grade_class
from graders.classroom.judge_process import grade_folder
from graders.classroom.pool import Task
from graders.classroom.result_store import Graded
from workbook import cli
from workbook.cli import _efforts
from workbook.paths import Places
from workbook.release import source_notebook
from workbook.unit import BEGIN, END, read_unit

ROOT = Path(__file__).parents[1]
UNIT = "00_hello_ranks"
Notebook = nbformat.NotebookNode


def new_course(root: Path, extra_configuration: str = "") -> Path:
    """A folder in which the unit is released and nobody has handed in anything."""
    shutil.copytree(_released(), root)
    with (root / "nbgrader_config.py").open("a") as file:
        file.write(extra_configuration)
    return root


@cache
def _released() -> Path:
    """One such folder, made once in this process and copied for each course."""
    folder = Path(tempfile.mkdtemp(prefix="course-released-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = folder / "course"
    (root / "solutions").mkdir(parents=True)
    shutil.copyfile(ROOT / "solutions" / f"{UNIT}.py", root / "solutions" / f"{UNIT}.py")
    shutil.copyfile(ROOT / "nbgrader_config.py", root / "nbgrader_config.py")
    done = run_here(root, "release", UNIT)
    assert done.returncode == 0, done.stderr
    return root


class JudgesHere:
    """Stands in for the pool of judges: grades in this process, which need not start one and import torch."""

    def __init__(self, *_: object) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def grade(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, "Future[Graded]"]]:
        for task in tasks:
            future: Future[Graded] = Future()
            future.set_result(grade_folder(**asdict(task)))
            yield task, future


def run_here(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as somebody in the course's folder gives it; a class is judged in this process too."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(root)
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", ["course", *arguments])
        patch.setattr(grade_class, "JudgePool", JudgesHere)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "workbook.cli", *arguments]


def environment() -> dict[str, str]:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": programs, "COLUMNS": "200"}


def blank() -> Notebook:
    """The notebook as it is given to students."""
    places = Places(ROOT)
    return nbformat.read(places.of_unit(places.notebooks, UNIT), as_version=4)


def solved() -> Notebook:
    """The notebook with all answers."""
    return copy.deepcopy(_solved())


@cache
def _solved() -> Notebook:
    unit = read_unit(ROOT / "solutions" / f"{UNIT}.py")
    notebook = source_notebook(unit, _efforts(UNIT))
    for cell in notebook.cells:
        cell.source = "\n".join(line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END))
    return notebook


def answer_cell(notebook: Notebook, exercise: str) -> Notebook:
    return next(cell for cell in notebook.cells if cell.metadata.get("exercise") == exercise)


def folder_of(root: Path, student: str) -> Path:
    folder = root / "submitted" / student / UNIT
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def hand_in(root: Path, student: str, notebook: Notebook) -> Path:
    """Put a notebook where nbgrader would collect it."""
    path = folder_of(root, student) / f"{UNIT}.ipynb"
    nbformat.write(notebook, path)
    return path
