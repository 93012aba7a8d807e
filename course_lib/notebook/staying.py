"""Ranks that stay: `with ranks(4) as four: four.run("...")`, each with variables of its own that last.

In a notebook `%ranks start 4`, then `%%ranks` cells run on them (`course_lib.notebook.staying_magics`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch import check_timeout, placed
from course_lib.launch.run import Run
from course_lib.notebook.cell import Cell, remember
from course_lib.notebook.staying_engine import RankAnswer, StayingEngine
from course_lib.notebook.staying_processes import ProcessRanks
from course_lib.notebook.staying_simulated import SimulatedRanks
from course_lib.runtime.request import PerRank
from course_lib.runtime.simulator.staying import RanksLeftBehind


class Ranks:
    """Ranks that stay until `stop`, or until the `with` block ends. Made by `ranks`.

    four[2]["loss"] is a copy of rank 2's variable.
    """

    def __init__(self, engine: StayingEngine, on: str) -> None:
        self.on = on
        self._engine = engine
        self._number = 0
        self._given: dict[tuple[int, str], Any] = {}
        """Rank and name -> the notebook's object that the rank has got."""
        self.running = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __len__(self) -> int:
        return self._engine.size

    def __getitem__(self, rank: int) -> "RankVariables":
        self._check((rank,))
        return RankVariables(self._engine, rank)

    def run(self, code: str, on: Iterable[int] | None = None) -> list[RankAnswer]:
        """Run Python code on all ranks, or on some of them; what each printed, and its last value as text.

        Raises what `launch` raises. The ranks can be used afterwards: what the code has set by then is set,
        and no call is open.
        """
        self._number += 1
        cell = Cell(f"#\n{code}", f"<ranks {id(self)}, {self._number}>")
        cell.parse()
        remember(cell)
        return list(self.run_cell(cell, {}, on).values())

    def run_cell(
        self, cell: Cell, variables: Mapping[str, Any], on: Iterable[int] | None = None
    ) -> dict[int, RankAnswer]:
        """Run a notebook's cell. variables: the notebook's; those that the cell mentions are copied to the
        ranks when they are first used, and again when the notebook has others, unless a cell on the ranks
        has assigned to that name.
        """
        chosen = tuple(range(len(self))) if on is None else tuple(dict.fromkeys(on))
        self._check(chosen)
        try:
            return self._engine.run(cell, self._news(cell, variables, chosen), chosen)
        except RanksLeftBehind:
            self.running = False
            raise
        finally:
            # From now on it is the ranks' own, whatever becomes of the notebook's.
            for rank in chosen:
                for name in cell.assigned:
                    self._given.pop((rank, name), None)

    def put(self, name: str, value: Any) -> None:
        """Give every rank a copy of a value under a name, or with `per_rank(values)` each its own."""
        if not name.isidentifier():
            raise BadLaunch(f"{name!r} is no name of a variable.")
        if isinstance(value, PerRank) and len(value) != len(self):
            raise BadLaunch(f"per_rank has {len(value)} values, and there are {len(self)} ranks.")
        each = value if isinstance(value, PerRank) else [value] * len(self)
        names = {rank: {name: own} for rank, own in enumerate(each)}
        self._engine.run(Cell("#\n", "<put>"), names, tuple(names))

    @property
    def printed(self) -> dict[int, str]:
        """What each rank has printed in the last cell, also if it broke off."""
        return self._engine.printed

    @property
    def record(self) -> Run:
        """All that the ranks have done so far: its timeline, traffic and events."""
        return self._engine.record()

    def timeline(self, **options: Any) -> Any:
        """What all ranks have done so far, as a figure; see `Run.timeline`."""
        return self.record.timeline(**options)

    def status(self) -> str:
        """How many ranks there are, where, and what each has defined."""
        clock = f", {self.record.seconds:.6f} s on their clock" if self.on == "simulated" else ""
        head = f"{len(self)} ranks on {self.on}{clock}."
        lines = [f"rank {rank}: {', '.join(self._engine.defined(rank)) or '-'}" for rank in range(len(self))]
        return "\n".join([head, *lines])

    def stop(self) -> None:
        """End the ranks; their variables are gone."""
        if self.running:
            self.running = False
            self._engine.close()

    def _news(
        self, cell: Cell, variables: Mapping[str, Any], chosen: tuple[int, ...]
    ) -> dict[int, dict[str, Any]]:
        """What the cell uses of the notebook's variables and a rank has not, or has an older one of."""
        names = sorted(cell.names & set(variables))
        news: dict[int, dict[str, Any]] = {}
        for rank in chosen:
            there = set(self._engine.defined(rank))
            news[rank] = {
                name: variables[name] for name in names if self._needs(rank, name, there, variables)
            }
            self._given |= {(rank, name): value for name, value in news[rank].items()}
        return news

    def _needs(self, rank: int, name: str, there: set[str], variables: Mapping[str, Any]) -> bool:
        given = self._given.get((rank, name), _NOTHING)
        return name not in there or (given is not _NOTHING and given is not variables[name])

    def _check(self, chosen: tuple[int, ...]) -> None:
        if not self.running:
            raise BadLaunch("These ranks have ended. Start others: %ranks start 4, or ranks(4).")
        for rank in chosen:
            if not 0 <= rank < len(self):
                raise BadLaunch(f"There is no rank {rank}: the ranks are 0 to {len(self) - 1}.")


_NOTHING = object()


@dataclass(frozen=True, slots=True)
class RankVariables:
    """Copies of one rank's variables, by name."""

    engine: StayingEngine
    rank: int

    def __getitem__(self, name: str) -> Any:
        try:
            return self.engine.fetch(self.rank, name)
        except KeyError:
            known = ", ".join(self.engine.defined(self.rank)) or "nothing"
            raise BadLaunch(f"Rank {self.rank} has no {name!r}; it has {known}.") from None


def ranks(
    number: int | None = None,
    *,
    on: str = "simulated",
    cluster: Cluster | None = None,
    timeout: float = 60.0,
    seed: int = 0,
    memory: bool = False,
) -> Ranks:
    """Start ranks that stay.

    number: how many; by default as many as `cluster` holds, or on "slurm" as the allocation has tasks. on:
    "simulated", "processes" or "slurm". timeout: seconds of real time that a cell may take. The rest as
    `launch` has it. Raises BadLaunch.
    """
    if on not in ("simulated", "processes", "slurm"):
        raise BadLaunch(f'Ranks stay on "simulated", "processes" or "slurm"; got "{on}".')
    size, where = placed(number, on, cluster)
    check_timeout(timeout)
    if on == "simulated":
        return Ranks(SimulatedRanks(size, where, timeout, seed, memory), on)
    return Ranks(ProcessRanks(size, where, timeout, seed, memory, on), on)
