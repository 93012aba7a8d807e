"""The code cells of a submission, and running them one after another."""

import builtins
import linecache
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from graders.grading.answer import NOT_ATTEMPTED
from graders.guest.execute import failure_of
from graders.guest.time_limits import BoundedText, Limits, OutOfTime, time_limit

TIMED_OUT = "TimedOut"
"""The kind of failure that says that time ran out; `course_lib.launch.failures.TimedOut` gives the same."""

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
    kind: str
    report: str

    @property
    def is_stub(self) -> bool:
        return self.kind == NOT_ATTEMPTED


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


def timed_out(cell: str, seconds: float) -> CellFailure:
    """The failure of a cell that did not end in time."""
    return CellFailure(cell, TIMED_OUT, f"It was still running after {seconds:g} s.")


def remember_source(cell: Cell) -> None:
    """Let tracebacks, `inspect` and `SourceLine.text` find the cell's lines under its name."""
    lines = [line + "\n" for line in cell.source.splitlines()]
    linecache.cache[cell.name] = (len(cell.source), None, lines, cell.name)


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
        return CellFailure(cell.name, failure.kind, failure.report)
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
