"""A unit as it is written: a jupytext percent file in `solutions/`, read and checked."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jupytext
from nbformat import NotebookNode

from workbook.errors import CommandFailed

PARAMETERS = frozenset({"ranks", "on", "dataset", "epochs"})
"""What a unit may take from papermill."""

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


class BadUnit(CommandFailed):
    """A unit's source breaks the rules. Each complaint says what to do."""


@dataclass(frozen=True, slots=True)
class AnswerCell:
    """A cell that students fill in: the exercise's name and what it is worth."""

    name: str
    points: float


@dataclass(frozen=True, slots=True)
class Unit:
    """A checked unit. `notebook` holds its cells as written, solutions included.

    before, after: the names of the units that it stands between; empty at the ends, or where it is alone.
    """

    name: str
    title: str
    notebook: NotebookNode
    answers: tuple[AnswerCell, ...]
    parameters: frozenset[str]
    before: str = ""
    after: str = ""

    @property
    def points(self) -> float:
        return sum(answer.points for answer in self.answers)


def read_units(solutions: Path) -> list[Unit]:
    """Every unit of the directory, in order. Raises BadUnit with the complaints about all of them."""
    units: list[Unit] = []
    complaints: list[str] = []
    for path in sorted(solutions.glob("*.py")):
        try:
            units.append(read_unit(path))
        except BadUnit as error:
            complaints += error.complaints
    if not units and not complaints:
        complaints = [f"There are no units in {solutions}; a unit is a file named NN_name.py."]
        if not solutions.exists():
            complaints = [
                f"There are no units in {solutions}, for there is no such folder. "
                "The students' edition has none: make lab opens its notebooks."
            ]
    if complaints:
        raise BadUnit(complaints)
    return [*in_order(units)]


def in_order(units: Sequence[Unit]) -> Iterator[Unit]:
    """The same units, each with the names of those before and after it."""
    names = ["", *(unit.name for unit in units), ""]
    for unit, before, after in zip(units, names, names[2:], strict=False):
        yield replace(unit, before=before, after=after)


def read_unit(path: Path) -> Unit:
    """The unit that `path` describes. Raises BadUnit with everything that is wrong with it."""
    notebook = jupytext.read(path, fmt="py:percent")
    for cell in notebook.cells:
        # A formatter puts blank lines above a function; of a folded cell JupyterLab shows the first line.
        cell.source = cell.source.lstrip("\n")
    complaints = [f"{path.name}: {complaint}" for complaint in _complaints(path, notebook.cells)]
    if complaints:
        raise BadUnit(complaints)
    return Unit(
        name=path.stem,
        title=_title(notebook.cells),
        notebook=notebook,
        answers=tuple(
            AnswerCell(cell.metadata.exercise, cell.metadata.points) for cell in _answer_cells(notebook.cells)
        ),
        parameters=frozenset(_assigned_names(_parameter_cells(notebook.cells)[0])),
    )


def _complaints(path: Path, cells: list[NotebookNode]) -> Iterator[str]:
    """One sentence for every rule that the unit breaks."""
    if not re.fullmatch(r"\d\d_[a-z0-9_]+\.py", path.name):
        yield "a unit's file is named NN_name.py: two digits, then a name in small letters."
    if not _title(cells):
        yield 'the first cell is not a markdown title; begin the file with "# %% [markdown]" and "# # Title".'
    yield from _syntax_complaints(cells)
    yield from _parameter_complaints(cells)
    yield from _exercise_complaints(cells)
    if _answer_cells(cells) and not any(_imports_check(cell) for cell in cells):
        yield (
            "no cell imports check, which the check cells call; "
            'add "from graders import check" to the imports.'
        )


def _title(cells: list[NotebookNode]) -> str:
    """The text of the heading that the first cell begins with, or nothing."""
    if not cells or cells[0].cell_type != "markdown":
        return ""
    match = re.match(r"# +(.+)", cells[0].source)
    return match[1].strip() if match else ""


def _answer_cells(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if "exercise" in cell.metadata]


def _parameter_cells(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]


def _syntax_complaints(cells: list[NotebookNode]) -> Iterator[str]:
    for cell in cells:
        if cell.cell_type == "code" and _parsed(cell) is None and not _has_magic(cell):
            yield f'the cell that begins with "{_first_line(cell)}" is not valid Python.'


def _parameter_complaints(cells: list[NotebookNode]) -> Iterator[str]:
    found = _parameter_cells(cells)
    if len(found) != 1:
        yield (
            f"{len(found)} cells are tagged as parameters; papermill needs exactly one: "
            f'# %% tags=["parameters"].'
        )
        return
    unknown = sorted(_assigned_names(found[0]) - PARAMETERS)
    if unknown:
        known = ", ".join(sorted(PARAMETERS))
        yield f"the parameters cell sets {', '.join(unknown)}; a unit's parameters are among {known}."


def _exercise_complaints(cells: list[NotebookNode]) -> Iterator[str]:
    names: list[str] = []
    for cell in cells:
        name = cell.metadata.get("exercise")
        if name is None:
            if _marker_lines(cell):
                yield (
                    f'the cell that begins with "{_first_line(cell)}" holds {BEGIN} or {END} '
                    f'but is no answer cell; mark it: # %% exercise="name" points=1.'
                )
            continue
        if name in names:
            yield f"exercise {name} stands here twice; give each answer cell a name of its own."
        names.append(name)
        yield from (f"exercise {name} {complaint}" for complaint in _answer_complaints(cell, name))


def _answer_complaints(cell: NotebookNode, name: str) -> Iterator[str]:
    """What is wrong with one answer cell."""
    points = cell.metadata.get("points")
    if isinstance(points, bool) or not isinstance(points, int | float) or points <= 0:
        yield 'has no points; write them into the cell\'s marker: exercise="name" points=3.'
    markers = [text for _, text in _marker_lines(cell)]
    if not markers or markers != [BEGIN, END] * (len(markers) // 2):
        yield f"needs its answer between {BEGIN} and {END}, so that the build can take it out."
        return
    definition = definition_in(cell, name)
    if definition is None:
        yield f"defines no function or class named {name}."
        return
    if not ast.get_docstring(definition):
        yield f"has no docstring; {name}'s docstring is its specification."
        return
    # What stands before the first marker is what the student gets: it must be the whole specification.
    docstring_end = definition.body[0].end_lineno or 0
    if docstring_end >= _marker_lines(cell)[0][0]:
        yield f"must have the head of {name} and its docstring before {BEGIN}."


def _marker_lines(cell: NotebookNode) -> list[tuple[int, str]]:
    """Line number, from 1, and text of each marker in the cell."""
    lines = enumerate((line.strip() for line in cell.source.splitlines()), start=1)
    return [(number, line) for number, line in lines if line in (BEGIN, END)]


def definition_in(cell: NotebookNode, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The function or class of this name that the cell defines at its top level."""
    tree = _parsed(cell)
    for node in tree.body if tree else []:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


def summary(definition: ast.FunctionDef | ast.ClassDef) -> str:
    """The first paragraph of its docstring, in one line; empty if it has none."""
    return (ast.get_docstring(definition) or "").split("\n\n")[0].replace("\n", " ")


def _imports_check(cell: NotebookNode) -> bool:
    tree = _parsed(cell) if cell.cell_type == "code" else None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)] if tree else []
    return any(node.module == "graders" and "check" in [a.name for a in node.names] for node in imports)


def _assigned_names(cell: NotebookNode) -> set[str]:
    """The names that a cell assigns to at its top level."""
    tree = _parsed(cell)
    targets = [
        t for node in (tree.body if tree else []) if isinstance(node, ast.Assign) for t in node.targets
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _parsed(cell: NotebookNode) -> ast.Module | None:
    """The cell's syntax tree; None if Python cannot read it."""
    try:
        return ast.parse(str(cell.source))
    except SyntaxError:
        return None


def _has_magic(cell: NotebookNode) -> bool:
    """Whether IPython rather than Python reads the cell: %%ranks 4, !ls."""
    return any(line.lstrip().startswith(("%", "!")) for line in cell.source.splitlines())


def _first_line(cell: NotebookNode) -> str:
    return str(cell.source).strip().split("\n")[0]
