"""The code cells of a submission, and what became of those that failed."""

import ast
import linecache
import re
from dataclasses import dataclass
from functools import lru_cache

from graders.grading.answer import FailureKind

_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell. Its name stands where Python wants a file name: `<cell of average_gradients>`."""

    name: str
    source: str

    @property
    def definitions(self) -> list[str]:
        """The functions and classes that begin in its first column, whether or not it is valid Python."""
        return _DEFINITION.findall(self.source)

    def defines(self, name: str) -> bool:
        """Whether it defines `name`, or assigns to it."""
        assigned = re.search(rf"^{re.escape(name)}\s*=(?!=)", self.source, re.MULTILINE)
        return name in self.definitions or assigned is not None


@dataclass(frozen=True, slots=True)
class CellFailure:
    """A cell that did not run to its end. See `graders.grading.answer.AnswerFailed`."""

    cell: str
    kind: FailureKind
    report: str
    error: str = ""

    @property
    def is_stub(self) -> bool:
        return self.kind is FailureKind.NOT_ATTEMPTED


def timed_out(cell: str, seconds: float) -> CellFailure:
    """The failure of a cell that did not end in time."""
    return CellFailure(cell, FailureKind.TIMED_OUT, f"It was still running after {seconds:g} s.")


def remember_source(cell: Cell) -> None:
    """Let tracebacks, `inspect` and `SourceLine.text` find the cell's lines under its name."""
    lines = [line + "\n" for line in cell.source.splitlines()]
    linecache.cache[cell.name] = (len(cell.source), None, lines, cell.name)


def definition_source(text: str, name: str) -> str:
    """The source of the last function or class of this name at the top level of `text`; empty without one."""
    return _definitions(text).get(name, "")


@lru_cache(maxsize=16)
def _definitions(text: str) -> dict[str, str]:
    """Of each function and class at the top level of `text` the source, as `ast.get_source_segment` has it.

    Kept, for a file with many answers is asked for each: to parse it may take longer than to grade one.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name: node for node in tree.body if isinstance(node, kinds)}
    lines = _LINE.findall(text)
    return {name: _segment(lines, node) for name, node in found.items()}


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python counts them: a form feed ends none."""


def _segment(lines: list[str], node: ast.stmt) -> str:
    """The text of a statement. Columns are counted in bytes."""
    assert node.end_lineno is not None
    whole = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
    whole[-1] = whole[-1][: node.end_col_offset]
    whole[0] = whole[0][node.col_offset :]
    return b"".join(whole).decode()
