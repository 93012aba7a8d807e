"""Reading what a student hands in: a notebook or a Python file."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graders.submissions.cells import Cell
from graders.submissions.released_cells import is_demonstration

LARGEST = 100 * 2**20
"""Bytes of a submission; beyond that it holds outputs that nobody needs."""
MOST_STRUCTURE = 4 * 2**20
"""Characters of a notebook outside of its texts: each becomes some hundred bytes of Python objects here."""
MOST_CODE = 2**20
"""Characters of all code; a syntax tree takes some hundred bytes for each."""


class BadSubmission(ValueError):
    """What was handed in cannot be graded; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The code that graders run: no demonstrations, no checks.

    main: whether its cells run as `__main__`, as a notebook's do.
    """

    name: str
    cells: tuple[Cell, ...]
    main: bool

    def defines(self, name: str) -> bool:
        """Whether one of its cells defines `name`."""
        return any(cell.defines(name) for cell in self.cells)


def read_submission(path: Path) -> Submission:
    """The submission in a file. Raises BadSubmission."""
    return from_cells(read_cells(path), path.name, main=path.suffix == ".ipynb")


def read_cells(path: Path) -> Iterable[Any]:
    """All cells of a notebook or Python file, as `nbformat.NotebookNode`s. Raises BadSubmission."""
    if path.suffix == ".ipynb":
        return read_notebook(path).cells  # type: ignore[no-any-return]
    if path.suffix == ".py":
        return _python_cells(path)
    raise BadSubmission(f"{path} is neither a notebook (.ipynb) nor a Python file (.py). Give one of these.")


def from_cells(cells: Iterable[Any], name: str, main: bool) -> Submission:
    """The submission that these cells are, without demonstrations and checks. Raises BadSubmission."""
    cells = list(cells)
    code = sum(len(cell.source) for cell in cells if cell.cell_type == "code")
    if code > MOST_CODE:
        raise BadSubmission(
            f"{name} has {code:,} characters of code; allowed are {MOST_CODE:,}. Keep data out of its cells."
        )
    graded = tuple(_graded(cells))
    if len(graded) == 1 and not main:
        # A file without "# %%" lines: its name says more than any of the definitions in it.
        graded = (Cell(f"<file {name}>", graded[0].source),)
    return Submission(name, graded, main)


def read_notebook(path: Path) -> Any:
    """The notebook in a file, an `nbformat.NotebookNode`. Raises BadSubmission."""
    import nbformat

    text = _text(path)
    structure = len(_TEXTS.sub("", text))
    if structure > MOST_STRUCTURE:
        raise BadSubmission(
            f"{path} holds {structure:,} characters outside of its texts; allowed are {MOST_STRUCTURE:,}. "
            f"Clear the notebook's outputs and save it again."
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSubmission(_no_json(path, text, error)) from error
    if not isinstance(content, dict) or not ("cells" in content or "worksheets" in content):
        raise BadSubmission(f"{path} is no notebook: it has no cells. Give the file that JupyterLab saved.")
    try:
        return nbformat.reads(text, as_version=4)
    except Exception as error:  # nbformat lets pass whatever a malformed notebook causes
        raise BadSubmission(_damaged(path, f"{type(error).__name__}: {str(error)[:200]}")) from error


_TEXTS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""The texts of a JSON file. Possessive: one that has no end is looked through once."""


def from_notebook(notebook: Any, name: str) -> Submission:
    """The submission in a notebook that has been read (an `nbformat.NotebookNode`)."""
    return from_cells(notebook.cells, name, main=True)


_LONGEST_CHECK = 10_000


def check_cell_exercise(cell: Any) -> str:
    """The exercise that a cell checks, if it does nothing but call `check(exercise)`; else nothing."""
    if len(cell.source) > _LONGEST_CHECK:
        return ""
    try:
        statements = ast.parse(cell.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    match statements:
        case [ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name), *_]))]:
            return name
    return ""


def is_graded_cell(cell: Any) -> bool:
    """Whether nbgrader takes points from this cell, and not by hand."""
    metadata = cell.metadata.get("nbgrader")
    return isinstance(metadata, dict) and bool(metadata.get("grade")) and not metadata.get("solution")


def _text(path: Path) -> str:
    """The file's text, with a sentence for every way in which it cannot be had."""
    if not path.exists():
        raise BadSubmission(f"There is no file {path}. Look at its name and at the folder that you are in.")
    if not path.is_file():
        raise BadSubmission(f"{path} is a folder. Give the notebook or the Python file in it.")
    if path.stat().st_size > LARGEST:
        raise BadSubmission(
            f"{path} has {path.stat().st_size:,} bytes. Clear the notebook's outputs and save it again."
        )
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows puts a mark in front
    except UnicodeDecodeError as error:
        raise BadSubmission(
            f"{path} is no text file in UTF-8 ({error.reason}). Save it again from JupyterLab."
        ) from error
    except OSError as error:
        raise BadSubmission(f"{path} cannot be read: {error.strerror}.") from error


def _no_json(path: Path, text: str, error: Exception) -> str:
    """Why a file that should be a notebook is none, by what people usually do to it."""
    if not text.strip():
        return f"{path} is empty. Save the notebook again and look at its size before you hand it in."
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_CONFLICT):
            return (
                f"{path} holds the marks of a merge conflict, the first in line {number}. "
                f"Keep one of the two versions there, and open it in JupyterLab before you hand it in."
            )
    return _damaged(path, f"it is no valid JSON ({error})")


_CONFLICT = ("<<<<<<< ", ">>>>>>> ")
"""How git begins the lines that show two versions of a text."""


def _damaged(path: Path, how: str) -> str:
    return (
        f"{path} is a damaged notebook: {how}. "
        f"Open it in JupyterLab and save it again, or take an earlier version of it."
    )


def _python_cells(path: Path) -> Iterable[Any]:
    """The cells of a Python file in the percent format; without markers it is one cell."""
    import jupytext

    text = _text(path)
    if len(text) > MOST_CODE:
        raise BadSubmission(f"{path} has {len(text):,} characters; allowed are {MOST_CODE:,}.")
    try:
        return jupytext.reads(text, fmt="py:percent").cells  # type: ignore[no-any-return]
    except Exception as error:  # jupytext reads metadata out of comments, which may hold anything
        raise BadSubmission(f'{path} cannot be cut into cells at its "# %%" lines: {error}') from error


def _graded(cells: Iterable[Any]) -> Iterator[Cell]:
    """The code cells that graders run, each with a name of its own."""
    taken: Counter[str] = Counter()
    number = 0
    for cell in cells:
        if cell.cell_type != "code":
            continue
        number += 1
        if cell.metadata.get("demo") or is_demonstration(cell.source):
            continue
        if is_graded_cell(cell) or check_cell_exercise(cell):
            continue
        subject = _subject(cell)
        name = f"cell of {subject}" if subject else f"code cell {number}"
        taken[name] += 1
        yield Cell(f"<{name}>" if taken[name] == 1 else f"<{name}, again ({taken[name]})>", cell.source)


def _subject(cell: Any) -> str:
    """What a cell is about: its exercise, or what it defines, or of much of that the first and the last."""
    exercise = cell.metadata.get("exercise", "")
    if isinstance(exercise, str) and exercise.isidentifier():
        return exercise
    defined = Cell("", cell.source).definitions
    named = [name for name in defined if not name.startswith("_")] or defined
    return " and ".join(named) if len(named) < 3 else f"{named[0]} to {named[-1]}"
