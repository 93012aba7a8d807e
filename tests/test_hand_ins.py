"""Submissions as they come: each is graded for what is in it, or gets 0 with a reason to act on."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from graders.classroom.grade_class import State, StudentResult
from graders.submissions.folder import digest, read_hand_in
from tests.classroom import UNIT, answer_cell, blank, folder_of, hand_in, new_course
from tests.classroom import solved as all_solved
from tests.test_classroom import grade, scores

# One worker grades the class for all tests.
pytestmark = pytest.mark.xdist_group("hand-ins")

ANSWERED, ALL = ("amdahl_speedup", "rank_coordinates"), 9.0
"""What those solve who hand in their work: what is graded at once, and its points."""
NAME = f"{UNIT}.ipynb"
Put = Callable[[Path], None]
"""Hands something in: is given the student's folder."""


def solved() -> nbformat.NotebookNode:
    """The notebook of somebody who has not come far."""
    notebook, right = blank(), all_solved()
    for name in ANSWERED:
        answer_cell(notebook, name).source = answer_cell(right, name).source
    return notebook


def edited(edit: Callable[[nbformat.NotebookNode], None]) -> Put:
    """The solved notebook after an edit."""

    def put(folder: Path) -> None:
        notebook = solved()
        edit(notebook)
        (folder / NAME).write_text(json.dumps(notebook))

    return put


def written(name: str, content: str | bytes) -> Put:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data) and None


def checks(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.source.startswith("check(")]


def delete_checks(notebook: nbformat.NotebookNode) -> None:
    gone = checks(notebook)
    notebook.cells = [cell for cell in notebook.cells if cell not in gone]


def edit_checks(notebook: nbformat.NotebookNode) -> None:
    for cell in checks(notebook):
        cell.source = "14"


def strip(notebook: nbformat.NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata = {}


def spoil_marks(notebook: nbformat.NotebookNode) -> None:
    for cell, nonsense in zip(notebook.cells, [[], "x", 7, {"grade_id": []}, None] * 9, strict=False):
        cell.metadata["nbgrader"] = nonsense


def age(notebook: nbformat.NotebookNode) -> None:
    """As a release that did not yet have one exercise, and had another one instead."""
    cell = answer_cell(notebook, "amdahl_speedup")
    check = notebook.cells[notebook.cells.index(cell) + 1]
    cell.source, check.source = "def retired(): ...", "check(retired)"
    cell.metadata["nbgrader"]["grade_id"] = "retired"
    check.metadata["nbgrader"]["grade_id"] = "check_retired"


def flood(notebook: nbformat.NotebookNode) -> None:
    notebook.cells[2].outputs = [new_output("stream", text="x" * 50_000_000)]


as_it_is = edited(lambda _: None)


def link_outside(folder: Path) -> None:
    """To another student's work."""
    (folder / NAME).symlink_to(folder.parents[1] / "deleted_checks" / UNIT / NAME)


def several(*puts: Put) -> Put:
    def put(folder: Path) -> None:
        for each in puts:
            each(folder)

    return put


PYTHON = "\n".join(
    cell.source
    for cell in solved().cells
    if cell.cell_type == "code" and not cell.metadata.get("demo") and not cell.source.startswith("%")
)
CONFLICT = json.dumps(blank(), indent=1).replace('"cells"', '\n<<<<<<< HEAD\n"cells"', 1)
WINDOWS = "\ufeff" + json.dumps(solved(), indent=1).replace("\n", "\r\n")

HANDED_IN: dict[str, tuple[Put, float, str]] = {
    "deleted_checks": (edited(delete_checks), ALL, ""),
    "edited_checks": (edited(edit_checks), ALL, ""),
    "stripped": (edited(strip), ALL, ""),
    "nonsense_marks": (edited(spoil_marks), ALL, ""),
    "old_release": (edited(age), ALL - 3, ""),
    "flooded": (edited(flood), ALL, ""),
    "conflict": (written(NAME, CONFLICT), 0, "holds the marks of a merge conflict, the first in line 3"),
    "broken_json": (written(NAME, '{"cells": ['), 0, "is a damaged notebook: it is no valid JSON"),
    "not_a_notebook": (written(NAME, "[1, 2]"), 0, "is no notebook: it has no cells"),
    "binary": (written(NAME, b"PK\x03\x04\xff\xfe"), 0, "is no text file in UTF-8"),
    "empty_file": (written(NAME, ""), 0, "is empty. Save the notebook again"),
    "nothing": (lambda _: None, 0, f"it holds nothing. Hand in {NAME} itself"),
    "a_zip": (written("work.zip", b"PK"), 0, f"it holds work.zip. Hand in {NAME} itself, not an archive."),
    "list_bomb": (
        written(NAME, f'{{"cells": [{"[]," * 5_000_000}[]]}}'),
        0,
        "characters outside of its texts",
    ),
    "code_bomb": (
        written(NAME, json.dumps({**blank(), "cells": [new_code_cell("x = " + "1," * 10_000_000)]})),
        0,
        "characters of code; allowed are",
    ),
    "python_bomb": (written(f"{UNIT}.py", "x = " + "1," * 10_000_000), 0, "characters; allowed are"),
    "another_name": (written("mine.ipynb", json.dumps(solved())), ALL, f"it should be named {NAME}"),
    "with_a_draft": (several(as_it_is, written("draft.ipynb", json.dumps(blank()))), ALL, "draft.ipynb"),
    "two_alike": (
        several(written("a.ipynb", json.dumps(solved())), written("b.ipynb", json.dumps(solved()))),
        0,
        "It is not clear which file counts: a.ipynb and b.ipynb.",
    ),
    "python": (written(f"{UNIT}.py", PYTHON), ALL, ""),
    "windows": (written(NAME, WINDOWS), ALL, ""),
    "other_unit": (
        written(NAME, json.dumps({**blank(), "cells": [new_code_cell("x = 1")]})),
        0,
        "defines none",
    ),
    "Zoë Ångström 学生": (written("Lösung ü.ipynb", json.dumps(solved())), ALL, "Lösung ü.ipynb was graded"),
    "[o'brien] {x}": (as_it_is, ALL, ""),
    "link_outside": (link_outside, 0, f"{NAME} is a link out of the folder"),
    "a_pipe": (several(as_it_is, lambda folder: os.mkfifo(folder / "pipe")), ALL, ""),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_course(tmp_path_factory.mktemp("hand_ins") / "course")


@pytest.fixture(scope="module")
def outcomes(root: Path) -> dict[str, StudentResult]:
    """All of them in one class, with one who hands in as one should."""
    for student, (put, _, _) in HANDED_IN.items():
        put(folder_of(root, student))
    hand_in(root, "zz_ordinary", solved())
    return grade(root)


@pytest.mark.parametrize("student", HANDED_IN)
def test_each_is_graded_for_what_is_in_it(
    outcomes: dict[str, StudentResult], root: Path, student: str
) -> None:
    # Invariant: a grade for everybody, never NULL; where something is wrong, a sentence on it.
    _, points, said = HANDED_IN[student]
    outcome = outcomes[student]
    assert outcome.state is State.GRADED, outcome.why
    assert outcome.graded is not None
    told = " ".join([outcome.graded.reason, *outcome.graded.report.notes])
    assert said in told
    assert str(root) not in told
    total, each = scores(root)[student]
    assert total == points
    assert None not in each


def test_none_affects_another(outcomes: dict[str, StudentResult], root: Path) -> None:
    assert len(outcomes) == len(HANDED_IN) + 1
    assert scores(root)["zz_ordinary"][0] == ALL


def test_nothing_beside_the_notebook_leads_out(outcomes: dict[str, StudentResult], root: Path) -> None:
    # Invariant: what is kept for those who grade by hand is plain files, and no flood of output.
    for path in (root / "autograded").rglob("*"):
        assert not path.is_symlink()
        assert path.is_dir() or (path.is_file() and path.stat().st_size < 2**20)


def test_every_file_counts_for_the_digest(tmp_path: Path) -> None:
    # Invariant: another content, name or link is another hand-in; the same again is not.
    seen = set()
    for change in (
        lambda: None,
        lambda: (tmp_path / "a.py").write_text("x"),
        lambda: (tmp_path / "a.py").write_text("y"),
        lambda: (tmp_path / "a.py").rename(tmp_path / "b.py"),
        lambda: (tmp_path / "c.py").symlink_to("b.py"),
    ):
        change()
        assert digest(tmp_path) == digest(tmp_path)
        seen.add(digest(tmp_path))
    assert len(seen) == 5


def test_the_largest_is_told_to_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graders.submissions.read.LARGEST", 10)
    (tmp_path / NAME).write_text(json.dumps(blank()))
    assert "Clear the notebook's outputs" in read_hand_in(tmp_path, UNIT).reason
