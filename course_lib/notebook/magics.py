"""`%%ranks 4`: run a notebook's cell on every rank, and show each rank's output apart.
`%%needs my_answer`: run a cell that uses answers, or say which of them is still to be written.

%load_ext course_lib.notebook.magics

%%ranks 4
x = torch.full((2,), float(dist.get_rank()))
dist.all_reduce(x)
x
"""

import argparse
import ast
import functools
import html
import linecache
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, NoReturn, cast

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.lib.pretty import pretty

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.figures.style import rank_colour
from course_lib.launch import launch
from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from course_lib.runtime.communication.diagnosis import ranks_in_words

_MOST_APART = 8
"""Of more ranks those with the same output are shown together."""


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


@dataclass(frozen=True, slots=True)
class RankOutput:
    """What one rank, or several alike, printed; and the value of the cell's last expression, as text."""

    printed: str
    value: str | None

    @property
    def text(self) -> str:
        """Both, the value after an arrow."""
        shown = [self.printed.rstrip("\n")] if self.printed.strip() else []
        if self.value is not None:
            shown.append(f"→ {self.value}")
        return "\n".join(shown) or "(no output)"


class CellSyntaxError(ValueError):
    """The cell is not Python. A notebook shows its line, without the frames of this library."""

    def __init__(self, error: SyntaxError) -> None:
        super().__init__(str(error))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        shell: Any = get_ipython()
        return list(shell.SyntaxTB.structured_traceback(SyntaxError, self.error, []))


def ranks(line: str, cell: str) -> None:
    """Run the cell on every rank of an initialised process group, each with a copy of your variables.

        %%ranks 4                     on 4 simulated ranks
        %%ranks $ranks                as many as the variable says
        %%ranks 4 --on processes      on 4 real processes
        %%ranks --cluster cluster     on the simulated Cluster in a variable
        %%ranks 4 --run run           keep the Run in a variable: run.timeline(), run.traffic

    Shows what each rank printed and the value of the last expression, which `Run.results` has as text. What
    the cell assigns does not come back.
    """
    shell = get_ipython()
    assert shell is not None
    parser = _parser()
    options = parser.parse_args(shlex.split(line))
    if options.ranks is None and options.cluster is None:
        parser.error("how many ranks?")
    code = _cell(shell, f"%%ranks {line}\n{cell}")
    names = {name: shell.user_ns[name] for name in code.names & set(shell.user_ns)}
    cluster = _cluster(shell.user_ns, options.cluster)
    try:
        run = launch(run_cell, code, names, ranks=options.ranks, on=options.on, cluster=cluster, quiet=True)
    except LaunchError as error:
        if error.run is not None:
            _show([RankOutput(printed, None) for printed in error.run.outputs])
        raise
    _show(_outputs(run))
    if options.run:
        shell.user_ns[options.run] = run


def run_cell(cell: Cell, names: Mapping[str, Any]) -> str | None:
    """Run a cell as a module's top level that begins with `names`. Runs on a rank.

    Returns the value of the last expression as text; None if the cell ends with a statement or a semicolon,
    or if the value is None.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    _bind_functions(namespace)
    linecache.cache.setdefault(
        cell.file, (len(cell.text), None, cell.text.splitlines(keepends=True), cell.file)
    )
    value = _last_value(cell, namespace)
    return None if value is None else str(pretty(value))  # type: ignore[no-untyped-call]


def _last_value(cell: Cell, namespace: dict[str, Any]) -> Any:
    """Run a cell in a namespace; the value of its last expression, None if it ends otherwise or with `;`."""
    tree = cell.parse()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell.file, "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return None
    expression = compile(ast.Expression(last.value), cell.file, "eval", dont_inherit=True)
    value = eval(expression, namespace)
    return None if cell.text.rstrip().endswith(";") else value


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext course_lib.notebook.magics`."""
    for magic in (ranks, needs):
        InteractiveShell.register_magic_function(shell, magic, magic_kind="cell")


def needs(line: str, cell: str) -> Any:
    """Run the cell if these exercises are answered; otherwise say which are not, and raise nothing.

        %%needs broadcast_tree reduce_tree

    Returns the value of the last expression, which the notebook then shows.
    """
    shell = get_ipython()
    assert shell is not None
    missing = [name for name in line.split() if not is_written(shell.user_ns.get(name))]
    if missing:
        print(f"This cell uses your {', '.join(missing)}. Solve that first, then run the cell again.")
        return None
    code = _cell(shell, f"%%needs {line}\n{cell}")
    return _last_value(code, shell.user_ns)


def is_written(answer: Any) -> bool:
    """Whether an exercise's function or class is there and is no stub, which raises NotImplementedError."""
    members = vars(answer).values() if isinstance(answer, type) else (answer,)
    codes = [member.__code__ for member in members if isinstance(member, FunctionType)]
    return bool(codes) and not any("NotImplementedError" in code.co_names for code in codes)


def _bind_functions(namespace: dict[str, Any]) -> None:
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


class _Parser(argparse.ArgumentParser):
    """Raises BadLaunch for a magic line that it does not understand, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise BadLaunch(f"%%ranks: {message}. For example: %%ranks 4, or %%ranks 4 --on processes.")


def _parser() -> _Parser:
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument("ranks", type=int, nargs="?")
    parser.add_argument("--on", default="simulated")
    parser.add_argument("--cluster")
    parser.add_argument("--run")
    return parser


def _cell(shell: InteractiveShell, text: str) -> Cell:
    """The cell under the name by which IPython knows it in tracebacks. Raises CellSyntaxError."""
    file = shell.compile.cache(text, _number(shell), raw_code=text)
    cell = Cell(text, file)
    cell.parse()
    return cell


def _number(shell: InteractiveShell) -> int:
    """The number of the cell that runs now: of the innermost caller that is a cell."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        named = shell.compile.format_code_name(frame.f_code.co_filename)
        if named is not None:
            return int(re.sub(r"\D", "", named[1]))
        frame = frame.f_back
    return shell.execution_count


def _cluster(variables: Mapping[str, Any], name: str | None) -> Cluster | None:
    if name is None:
        return None
    cluster = variables.get(name)
    if not isinstance(cluster, Cluster):
        raise BadLaunch(f"--cluster takes the name of a variable that holds a Cluster; {name!r} does not.")
    return cluster


def _outputs(run: Run) -> list[RankOutput]:
    return [RankOutput(printed, value) for printed, value in zip(run.outputs, run.results, strict=True)]


def _show(outputs: list[RankOutput]) -> None:
    """Show each rank's output under its number; nothing at all if no rank has any."""
    if all(not output.printed.strip() and output.value is None for output in outputs):
        return
    groups = _groups(outputs)
    plain = "\n".join(
        f"{ranks_in_words(ranks)}:\n" + "\n".join(f"    {line}" for line in output.text.splitlines())
        for output, ranks in groups
    )
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;vertical-align:top;white-space:nowrap;'
        f'border-left:6px solid {rank_colour(ranks[0])}">{ranks_in_words(ranks)}</th>'
        f'<td style="text-align:left"><pre style="margin:0;background:transparent">'
        f"{html.escape(output.text)}</pre></td></tr>"
        for output, ranks in groups
    )
    table = f'<table aria-label="output of each rank"><tbody>{rows}</tbody></table>'
    display({"text/plain": plain, "text/html": table}, raw=True)  # type: ignore[no-untyped-call]


def _groups(outputs: list[RankOutput]) -> list[tuple[RankOutput, list[int]]]:
    """Outputs with the ranks that have them, in the order of the lowest rank."""
    if len(outputs) <= _MOST_APART:
        return [(output, [rank]) for rank, output in enumerate(outputs)]
    groups: dict[RankOutput, list[int]] = {}
    for rank, output in enumerate(outputs):
        groups.setdefault(output, []).append(rank)
    return list(groups.items())
