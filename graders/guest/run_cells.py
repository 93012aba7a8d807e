"""Running the code cells of a submission one after another."""

import builtins
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from graders.grading.text import BoundedText
from graders.guest.time_limits import OutOfTime, time_limit
from graders.protocol.failures import failure_of
from graders.protocol.limits import Limits
from graders.submissions.cells import Cell, CellFailure, remember_source, timed_out


def run_cells(
    cells: Iterable[Cell],
    namespace: dict[str, Any],
    seconds: float = Limits().cell,
    begin: Callable[[str], None] = lambda name: None,
) -> list[CellFailure]:
    """Run the cells in order in one namespace, as a kernel would; one that fails does not stop the others.

    seconds: what each may take. begin: is told the name of each before it runs. What they print is dropped.
    """
    shell = _Shell(namespace)
    namespace.setdefault("get_ipython", lambda: shell)
    namespace.setdefault("display", lambda *_, **__: None)
    failures = []
    for cell in cells:
        begin(cell.name)
        failure = _run_cell(cell, namespace, seconds)
        if failure is not None:
            failures.append(failure)
    return failures


def _run_cell(cell: Cell, namespace: dict[str, Any], seconds: float) -> CellFailure | None:
    remember_source(cell)
    printed = BoundedText()
    try:
        with redirect_stdout(printed), redirect_stderr(printed), time_limit(seconds):
            exec(_compiled(cell), namespace)
    except OutOfTime:
        return timed_out(cell.name, seconds)
    except BaseException as error:  # the cell may call sys.exit() or raise what it likes
        failure = failure_of(error)
        return CellFailure(cell.name, failure.kind, failure.report, failure.error)
    return None


def _compiled(cell: Cell) -> Any:
    """The cell's code. Lines that only IPython understands become calls of `get_ipython()`."""
    try:
        return builtins.compile(cell.source, cell.name, "exec", dont_inherit=True)
    except SyntaxError:
        # IPython is imported here: reading a submission, which needs `Cell` only, does without it.
        from IPython.core.inputtransformer2 import TransformerManager

        source = TransformerManager().transform_cell(cell.source)  # type: ignore[no-untyped-call]
        return builtins.compile(source, cell.name, "exec", dont_inherit=True)


class _Shell:
    """What a cell finds in the place of IPython: magics and shell commands do nothing.

    Only a cell magic that measures or hides what its cell does lets the cell run.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def run_cell_magic(self, name: str, _line: str, body: str) -> None:
        if name in ("time", "timeit", "capture", "prun"):
            exec(builtins.compile(body, f"<%%{name}>", "exec", dont_inherit=True), self._namespace)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None
