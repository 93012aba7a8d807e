"""The text of a notebook's cell, run as the notebook would run it: in other variables, or on another rank."""

import ast
import functools
import linecache
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, cast

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.lib.pretty import pretty


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's text, the magic's line included so that line numbers are the cell's, and its file name."""

    text: str
    file: str

    def parse(self) -> ast.Module:
        """The cell as a syntax tree, the magic's line blank. Raises CellSyntaxError."""
        _, _, body = self.text.partition("\n")
        try:
            return ast.parse("\n" + body, self.file)
        except SyntaxError as error:
            raise CellSyntaxError(error) from None

    @property
    def names(self) -> set[str]:
        """The names that the cell's code mentions."""
        return {node.id for node in ast.walk(self.parse()) if isinstance(node, ast.Name)}

    @property
    def assigned(self) -> set[str]:
        """The names to which the cell's code assigns, in whatever way."""
        tree = [*ast.walk(self.parse())]
        stored = {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        defined = {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        imported = {
            node.asname or node.name.partition(".")[0] for node in tree if isinstance(node, ast.alias)
        }
        return stored | defined | imported


class CellSyntaxError(ValueError):
    """The cell is not Python. A notebook shows its line, without the frames of this library."""

    def __init__(self, error: SyntaxError) -> None:
        super().__init__(str(error))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        shell: Any = get_ipython()
        return list(shell.SyntaxTB.structured_traceback(SyntaxError, self.error, []))


def running_cell(shell: InteractiveShell, text: str) -> Cell:
    """The cell that runs now, with its magic's line, under the name by which IPython knows it in tracebacks.

    Raises CellSyntaxError.
    """
    file = shell.compile.cache(text, _number(shell), raw_code=text)
    cell = Cell(text, file)
    cell.parse()
    return cell


def run_cell(cell: Cell, names: Mapping[str, Any]) -> str | None:
    """Run a cell as a module's top level that begins with `names`. Runs on a rank.

    Returns the value of the last expression as text; None if the cell ends with a statement or a semicolon,
    or if the value is None.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    bind_functions(namespace)
    return value_as_text(cell, namespace)


def value_as_text(cell: Cell, namespace: dict[str, Any]) -> str | None:
    """Run a cell in a namespace that lasts, and tell the value of its last expression as `run_cell` does."""
    remember(cell)
    value = last_value(cell, namespace)
    return None if value is None else str(pretty(value))  # type: ignore[no-untyped-call]


def remember(cell: Cell) -> None:
    """Let tracebacks of this process show the cell's lines."""
    linecache.cache.setdefault(
        cell.file, (len(cell.text), None, cell.text.splitlines(keepends=True), cell.file)
    )


def last_value(cell: Cell, namespace: dict[str, Any]) -> Any:
    """Run a cell in a namespace; the value of its last expression, None if it ends otherwise or with `;`."""
    statements, expression = _compiled(cell)
    exec(statements, namespace)
    if expression is None:
        return None
    value = eval(expression, namespace)
    return None if cell.text.rstrip().endswith(";") else value


@functools.lru_cache(maxsize=8)
def _compiled(cell: Cell) -> tuple[CodeType, CodeType | None]:
    """A cell's statements and its last expression, once for all ranks of this process."""
    tree = cell.parse()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    statements = compile(tree, cell.file, "exec", dont_inherit=True)
    if not isinstance(last, ast.Expr):
        return statements, None
    return statements, compile(ast.Expression(last.value), cell.file, "eval", dont_inherit=True)


def bind_functions(namespace: dict[str, Any]) -> None:
    """Let the notebook's functions read and set the rank's variables, as they do in the notebook.

    A function that came to a rank brought copies of the variables that it uses, other functions among them.
    """
    unseen = list(namespace)
    while unseen:
        name = unseen.pop()
        value = namespace[name]
        if isinstance(value, FunctionType) and value.__module__ == "__main__":
            brought = {other: own for other, own in value.__globals__.items() if other not in namespace}
            namespace.update(brought)
            unseen.extend(brought)
            namespace[name] = _with_globals(value, namespace)


def _with_globals(function: FunctionType, namespace: dict[str, Any]) -> FunctionType:
    """The same function with other global variables."""
    bound = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return cast(FunctionType, functools.update_wrapper(bound, function, updated=("__dict__",)))


def _number(shell: InteractiveShell) -> int:
    """The number of the cell that runs now: of the innermost caller that is a cell."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        named = shell.compile.format_code_name(frame.f_code.co_filename)
        if named is not None:
            return int(re.sub(r"\D", "", named[1]))
        frame = frame.f_back
    return shell.execution_count
