"""`%ranks start 4`, `%%ranks`, `%%rank 2`: cells on ranks that stay until `%ranks stop`.

`%ranks start 4`                     4 simulated ranks
`%ranks start 4 --on processes`      real processes of this machine
`%ranks start --cluster cluster`     on the simulated Cluster in a variable
`%ranks start 4 --memory`            the timeline shows what their tensors hold, too; slower
`%ranks status`, `%ranks timeline`   what each rank has defined; what all have done so far
`%ranks put name`                    a copy of the notebook's variable for each rank
`%ranks stop`                        the end of the ranks and their variables

A cell under `%%ranks`, without a number, runs on all of them, one under `%%rank 0,3` on some. What it assigns
stays on the rank. What it uses of the notebook's variables is copied to the ranks when they have none of that
name. While it runs the notebook shows what each rank prints; in the end those with the same output are shown
together. The stop button ends the cell on all ranks, and not the ranks.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from IPython.core.getipython import get_ipython

from course_lib.errors import BadLaunch
from course_lib.notebook.cell import running_cell
from course_lib.notebook.staying import Ranks
from course_lib.notebook.staying import ranks as start_ranks
from course_lib.notebook.staying_engine import RankAnswer

_HELP = "%ranks start 4, status, timeline, put NAME, or stop"
_present: list[Ranks] = []
"""The notebook's ranks, while there are any."""


def present() -> Ranks | None:
    """The ranks that `%ranks start` has started, unless they have been stopped."""
    return _present[0] if _present else None


def printed() -> Mapping[int, str]:
    """What each of them has printed in the last cell, or so far in the present one."""
    there = present()
    return {} if there is None else there.printed


def command(words: list[str], options: Any, cluster: Any, variables: Mapping[str, Any]) -> Any:
    """Carry out `%ranks WORDS`. options: on, timeout, memory. cluster: the `Cluster` that the line names."""
    match words:
        case ["start", *number] if len(number) <= 1:
            return _start(number, options, cluster)
        case ["status"]:
            print(_there().status())
        case ["timeline"]:
            return _there().timeline()
        case ["put", *names] if names:
            for name in names:
                if name not in variables:
                    raise BadLaunch(f"The notebook has no variable {name!r}.")
                _there().put(name, variables[name])
        case ["stop"]:
            stop()
        case _:
            raise BadLaunch(f"%ranks {shlex.join(words)}: that is none of {_HELP}.")
    return None


def run(line: str, cell: str, chosen: list[int] | None, magic: str) -> dict[int, RankAnswer]:
    """Run the notebook's present cell on the ranks that stay, or on some of them."""
    shell = get_ipython()
    assert shell is not None
    code = running_cell(shell, f"%%{magic} {line}\n{cell}")
    return _there().run_cell(code, shell.user_ns, chosen)


def stop() -> None:
    """End the ranks, if there are any."""
    while _present:
        _present.pop().stop()


def chosen_ranks(line: str) -> list[int]:
    """`0,3` and `0-3` as numbers. Raises BadLaunch."""
    try:
        return [
            rank
            for part in line.replace(" ", "").split(",")
            for first, _, last in (part.partition("-"),)
            for rank in range(int(first), int(last or first) + 1)
        ]
    except ValueError:
        raise BadLaunch(f"%%rank {line}: which ranks? For example %%rank 2, or %%rank 0,3.") from None


def _start(number: list[str], options: Any, cluster: Any) -> None:
    if number and not number[0].isdigit():
        raise BadLaunch(f"%ranks start {number[0]}: how many ranks? For example %ranks start 4.")
    stop()
    count = int(number[0]) if number else None
    _present.append(
        start_ranks(count, on=options.on, cluster=cluster, timeout=options.timeout, memory=options.memory)
    )
    print(f"{len(_there())} ranks on {options.on}. Cells under %%ranks run on them, until %ranks stop.")


def _there() -> Ranks:
    if not _present:
        raise BadLaunch("No ranks have been started. %ranks start 4 starts four; %%ranks 4 runs one cell.")
    return _present[0]
