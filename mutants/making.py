"""From the source of a solution to its mutants."""

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

from mutants.operators import OPERATORS, Edit
from workbook.unit import BEGIN, END


@dataclass(frozen=True, slots=True)
class Solution:
    """An exercise's cell, and where it stands."""

    unit: str
    exercise: str
    file: Path
    first_line: int
    """The number of the cell's first line in the file."""
    source: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A solution in which one thing was changed.

    before, after: the lines that change, without and with the change, each joined to one. With `occurrence`,
    which counts those that read alike, they name the mutant among all of its exercise.
    """

    solution: Solution
    operator: str
    line: int
    """In the file."""
    before: str
    after: str
    occurrence: int
    source: str
    """The whole cell."""


def read_solutions(path: Path) -> list[Solution]:
    """The solutions of a unit, in its order."""
    return solutions_in(path, path.read_text())


def solutions_in(path: Path, text: str) -> list[Solution]:
    """The solutions in a text that stands, or has stood, in a unit's file."""
    return [
        Solution(path.stem, cell.metadata["exercise"], path, _line_of(text, cell.source), cell.source)
        for cell in jupytext.reads(text, fmt="py:percent").cells
        if "exercise" in cell.metadata
    ]


def make_mutants(solution: Solution) -> list[Mutant]:
    """Every mutant of the lines that students write, each once, in the order of the lines."""
    tree = ast.parse(solution.source)
    # One object for all trees, on which IPython leaves the trees of its tracebacks: not to be copied along.
    shared = {id(node): node for node in ast.walk(tree) if not node._fields}
    seen = {_meaning(ast.dump(tree))}
    found = []
    for operator, edit in _edits(solution.source, tree):
        # The memo makes deepcopy put the new node where the old one was.
        wanted = ast.dump(copy.deepcopy(tree, shared | {id(edit[0]): edit[1]}))
        if _meaning(wanted) in seen:
            continue
        seen.add(_meaning(wanted))
        spliced = _splice(solution.source, edit, wanted)
        if spliced is not None:
            found.append((operator, edit[0], spliced))
    found.sort(key=lambda each: _start(each[1]))
    return _named(solution, found)


def _meaning(dump: str) -> str:
    """The same for programs that differ only in a name that stands alone, where `sending.wait()` was."""
    return re.sub(r"Expr\(value=Name\(id='\w+', ctx=Load\(\)\)\)", "Pass()", dump)


def _named(solution: Solution, found: list[tuple[str, ast.AST, str]]) -> list[Mutant]:
    times: Counter[tuple[str, str]] = Counter()
    mutants = []
    for operator, node, source in found:
        first, last = _lines_of(node)
        longer = len(source.splitlines()) - len(solution.source.splitlines())
        before = _joined(solution.source, first, last)
        after = _joined(source, first, last + longer)
        times[before, after] += 1
        line = solution.first_line + first - 1
        mutants.append(Mutant(solution, operator, line, before, after, times[before, after], source))
    return mutants


def _edits(source: str, tree: ast.AST) -> Iterator[tuple[str, Edit]]:
    """Name of the operator and edit, for all edits within the solution's markers."""
    allowed = _solution_lines(source)
    for node in _mutable(tree):
        for operator in OPERATORS:
            for edit in operator(node):
                if set(range(_lines_of(edit[0])[0], _lines_of(edit[0])[1] + 1)) <= allowed:
                    yield operator.__name__, edit


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without what an answer is not judged by: annotations and messages."""
    yield node
    skipped: list[ast.AST | None] = []
    match node:
        case ast.Raise():
            skipped = [node.exc, node.cause]
        case ast.FunctionDef():
            skipped = [node.args, node.returns]
        case ast.AnnAssign():
            skipped = [node.annotation]
        case ast.keyword(arg="strict"):  # see `mutants.operators.arguments`
            skipped = [node.value]
    for child in ast.iter_child_nodes(node):
        # Python 3.11 does not know where in its line a node of an f-string stands.
        if child not in skipped and not isinstance(child, ast.JoinedStr):
            yield from _mutable(child)


def _splice(source: str, edit: Edit, wanted: str) -> str | None:
    """The source with the edit in it, all else as it was written; `wanted` is the dump of what it means.

    None for an `elif` that is left out: it cannot stand alone, and its condition made false is the same.
    """
    old, new = edit
    start, end = _start(old), _end(old)
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: start[0] - 1]) + lines[start[0] - 1][: start[1]]
    after = lines[end[0] - 1][end[1] :] + b"".join(lines[end[0] :])
    text = ast.unparse(new).replace("'", '"')
    bare = [text[1:-1]] if isinstance(new, ast.Tuple) else []
    for candidate in (*bare, text, f"({text})"):
        spliced = (before + candidate.encode() + after).decode()
        if _dump(spliced) == wanted:
            return spliced
    if isinstance(old, ast.If) and source.splitlines()[start[0] - 1].lstrip().startswith("elif"):
        return None
    raise ValueError(f"no text means what the mutant should: {text!r} in line {start[0]}:\n{source}")


def _dump(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return ""


def _solution_lines(source: str) -> set[int]:
    """The numbers of the lines between the markers."""
    allowed: set[int] = set()
    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside:
            allowed.add(number)
    return allowed


def _start(node: ast.AST) -> tuple[int, int]:
    """Line, from 1, and byte in it, from 0."""
    assert isinstance(node, ast.expr | ast.stmt)
    return node.lineno, node.col_offset


def _end(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _lines_of(node: ast.AST) -> tuple[int, int]:
    return _start(node)[0], _end(node)[0]


def _joined(source: str, first: int, last: int) -> str:
    return " ".join(line.strip() for line in source.splitlines()[first - 1 : last])


def _line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1
