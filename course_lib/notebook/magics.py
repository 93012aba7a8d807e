"""`%%ranks 4`: run a notebook's cell on every rank, and show each rank's output apart.
`%ranks start 4`: ranks that stay, for `%%ranks` and `%%rank 2` (`course_lib.notebook.staying_magics`).
`%%needs my_answer`: run a cell that uses answers, or say which of them is still to be written.
`%%holds my_answer`: run a folded cell that asserts what the text says, if the answers are there and right.

%load_ext course_lib.notebook.magics

%%ranks 4
x = torch.full((2,), float(dist.get_rank()))
dist.all_reduce(x)
x
"""

import argparse
import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from course_lib.beside import missing
from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch import launch
from course_lib.launch.failures import LaunchError
from course_lib.notebook import staying_magics
from course_lib.notebook.cell import CellSyntaxError, last_value, run_cell, running_cell
from course_lib.notebook.rank_output import TOGETHER, RankOutput, shown_as_it_comes
from course_lib.notebook.staying_engine import RankAnswer
from course_lib.notebook.verdicts import not_right
from course_lib.runtime.communication.torch_versions import before
from course_lib.runtime.processes.serialization import functions_of

_BESIDE = "beside:"
"""How a line of `%%needs` names what the command `course beside` installs."""
_TORCH = "torch>="
"""How it names the first PyTorch that can do what the cell does."""


def ranks(line: str, cell: str | None = None) -> Any:
    """Run the cell on every rank of an initialised process group, each with a copy of your variables.

        %%ranks 4                     on 4 simulated ranks
        %%ranks $ranks                as many as the variable says
        %%ranks 4 --on processes      on 4 real processes
        %%ranks --cluster cluster     on the simulated Cluster in a variable
        %%ranks 4 --run run           keep the Run in a variable: run.timeline(), run.traffic
        %%ranks 4 --memory --run run  with run.memory, too; slower

    Shows what each rank printed and the value of the last expression, which `Run.results` has as text. What
    the cell assigns does not come back; on ranks that stay it lasts: see `%ranks start` in
    `course_lib.notebook.staying_magics`.
    """
    shell = get_ipython()
    assert shell is not None
    if cell is None:
        options = _parser("words", nargs="*").parse_intermixed_args(shlex.split(line))
        cluster = _cluster(shell.user_ns, options.cluster)
        return staying_magics.command(options.words, options, cluster, shell.user_ns)
    parser = _parser("ranks", type=int, nargs="?")
    options = parser.parse_args(shlex.split(line))
    if options.ranks is None and options.cluster is None:
        if staying_magics.present() is not None:
            return _on_those_that_stay(line, cell, None, "ranks")
        parser.error("how many ranks?")
    code = running_cell(shell, f"%%ranks {line}\n{cell}")
    names = {name: shell.user_ns[name] for name in code.names & set(shell.user_ns)}
    cluster = _cluster(shell.user_ns, options.cluster)
    try:
        run = launch(
            run_cell,
            code,
            names,
            ranks=options.ranks,
            on=options.on,
            cluster=cluster,
            timeout=options.timeout,
            quiet=True,
            memory=options.memory,
        )
    except LaunchError as error:
        if error.run is not None:
            RankOutput().show(
                {rank: RankAnswer(printed, None) for rank, printed in enumerate(error.run.outputs)}
            )
        raise
    answers = enumerate(zip(run.outputs, run.results, strict=True))
    RankOutput().show({rank: RankAnswer(*each) for rank, each in answers})
    if options.run:
        shell.user_ns[options.run] = run
    return None


def rank(line: str, cell: str) -> None:
    """Run the cell on some of the ranks that stay: `%%rank 2`, `%%rank 0,3`."""
    _on_those_that_stay(line, cell, staying_magics.chosen_ranks(line), "rank")


def _on_those_that_stay(line: str, cell: str, chosen: list[int] | None, magic: str) -> None:
    with shown_as_it_comes(staying_magics.printed) as output:
        answers = staying_magics.run(line, cell, chosen, magic)
    output.show(answers, TOGETHER)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext course_lib.notebook.magics`."""
    for magic in (needs, holds, rank):
        InteractiveShell.register_magic_function(shell, magic, magic_kind="cell")
    InteractiveShell.register_magic_function(shell, ranks, magic_kind="line_cell")


def needs(line: str, cell: str) -> Any:
    """Run the cell if these exercises are answered; otherwise say which are not, and raise nothing.

        %%needs broadcast_tree reduce_tree
        %%needs beside:horovod my_answer
        %%needs torch>=2.8 my_answer

    `beside:NAME` asks for what `course beside NAME` installs, `torch>=` for a PyTorch. Returns the value of
    the last expression, which the notebook then shows. An answer whose last check saw a mistake may end the
    cell with an error: then the cell says so, too, and raises nothing.
    """
    if sentence := _what_is_missing(line):
        print(sentence)
        return None
    try:
        return _run(f"%%needs {line}\n{cell}")
    except Exception as error:
        print(f"{_of_a_wrong_answer(line, error)} The cell ended with {_in_a_line(error)}")


def holds(line: str, cell: str) -> Any:
    """Run a cell of assertions if these exercises are answered; otherwise do nothing.

    It stands, folded, behind a cell that `%%needs` the same: there has been said what is missing. Where an
    assertion fails and the last check of an answer saw a mistake, the cell says so and raises nothing.
    """
    if _what_is_missing(line):
        return None
    try:
        return _run(f"%%holds {line}\n{cell}")
    except Exception as error:
        print(_of_a_wrong_answer(line, error))


def _of_a_wrong_answer(line: str, error: Exception) -> str:
    """Which of the line's answers are not right yet, as a sentence. Raises `error` if all of them are."""
    wrong = not_right(_answers(line))
    if isinstance(error, CellSyntaxError) or not wrong:
        raise error
    told = ", ".join(f"{name} ({points})" for name, points in wrong.items())
    return f"What stands here needs a right answer, and the last check saw a mistake in your {told}."


def _in_a_line(error: Exception) -> str:
    """An error's class and the first line of what it says."""
    said = str(error).strip()
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else f"{type(error).__name__}."


def _answers(line: str) -> list[str]:
    """The names of the answers in a magic's line."""
    return [word for word in line.split() if not word.startswith((_BESIDE, _TORCH))]


def _too_old(version: str) -> str:
    """Empty if the PyTorch here is as new as "2.8"; else a sentence that says so."""
    if not before(tuple(map(int, version.split(".")))):
        return ""
    return (
        f"This cell needs PyTorch {version} or later, and here is {torch.__version__}. The rest of the unit "
        "goes on without it."
    )


def _what_is_missing(line: str) -> str:
    """What to install or to solve first, in a sentence; empty if all that the line names is there."""
    shell = get_ipython()
    assert shell is not None
    libraries = [word.removeprefix(_BESIDE) for word in line.split() if word.startswith(_BESIDE)]
    answers = _answers(line)
    sentences = list(filter(None, map(missing, libraries)))
    versions = [word.removeprefix(_TORCH) for word in line.split() if word.startswith(_TORCH)]
    sentences += filter(None, map(_too_old, versions))
    if absent := [name for name in answers if name not in shell.user_ns]:
        sentences.append(
            f"This cell uses your {', '.join(absent)}, which this kernel has not met yet. Run its cell "
            "first, solved; after a restart all cells have to be run again."
        )
    unsolved = [name for name in answers if name not in absent and not is_written(shell.user_ns[name])]
    if unsolved:
        sentences.append(
            f"This cell uses your {', '.join(unsolved)}. Solve that first, then run the cell again."
        )
    return " ".join(sentences)


def _run(text: str) -> Any:
    """Run a cell, given with its magic's line, in the notebook; the value of its last expression."""
    shell = get_ipython()
    assert shell is not None
    return last_value(running_cell(shell, text), shell.user_ns)


def is_written(answer: Any) -> bool:
    """Whether an exercise's function or class is there and is no stub, which raises NotImplementedError; nor
    is what it uses of the same cell.
    """
    own = functions_of(answer)
    beside = [
        function
        for each in own
        for name in each.__code__.co_names
        for function in functions_of(each.__globals__.get(name))
        if function.__code__.co_filename == each.__code__.co_filename
    ]
    return bool(own) and not any("NotImplementedError" in each.__code__.co_names for each in (*own, *beside))


class _Parser(argparse.ArgumentParser):
    """Raises BadLaunch for a magic line that it does not understand, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise BadLaunch(f"%%ranks: {message}. For example: %%ranks 4, or %%ranks 4 --on processes.")


def _parser(what: str, **how: Any) -> _Parser:
    """Of a magic's line, which begins with `what` and may have options."""
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument(what, **how)
    parser.add_argument("--on", default="simulated")
    parser.add_argument("--cluster")
    parser.add_argument("--run")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--memory", action="store_true")
    return parser


def _cluster(variables: Mapping[str, Any], name: str | None) -> Cluster | None:
    if name is None:
        return None
    cluster = variables.get(name)
    if not isinstance(cluster, Cluster):
        raise BadLaunch(f"--cluster takes the name of a variable that holds a Cluster; {name!r} does not.")
    return cluster
