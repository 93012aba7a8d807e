"""Cells on simulated ranks that stay."""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch.failures import LeftOpen
from course_lib.launch.outcome import Outcome
from course_lib.launch.run import Run
from course_lib.launch.simulated import alone_in_the_process
from course_lib.notebook.cell import Cell, bind_functions, value_as_text
from course_lib.notebook.staying_engine import RankAnswer
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.engine import Ending, current_rank
from course_lib.runtime.simulator.private_copy import private_copy
from course_lib.runtime.simulator.staying import StayingRanks


class SimulatedRanks:
    """See `course_lib.notebook.staying_engine.StayingEngine`. The virtual clock goes on from cell to cell."""

    def __init__(self, size: int, cluster: Cluster, timeout: float, seed: int, memory: bool) -> None:
        if cluster.disturbances.lost_ranks:
            raise BadLaunch("Ranks that get lost cannot stay: leave out with_lost_rank, or use launch.")
        _check_no_rank()
        self.size = size
        self._timeout = timeout
        self._request = LaunchRequest(print, (), size, cluster, timeout, seed, None, memory=memory)
        self._namespaces: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in range(size)]
        with alone_in_the_process(timeout):
            self._ranks = StayingRanks(self._request)
        self._started = time.perf_counter()
        self._values: list[Any] = [None] * size
        self._before: dict[int, int] = {}
        """How much each rank had printed before the last cell."""

    def run(
        self, cell: Cell, names: Mapping[int, Mapping[str, Any]], chosen: tuple[int, ...]
    ) -> dict[int, RankAnswer]:
        """Run a cell on some ranks."""
        _check_no_rank()
        self._values = [None] * self.size
        self._before = {rank: len(self._ranks.outputs[rank]) for rank in chosen}
        own = {rank: private_copy(dict(names[rank])) for rank in chosen if names.get(rank)}

        def task(rank: int) -> None:
            namespace = self._namespaces[rank]
            if rank in own:
                namespace.update(own[rank]())
                bind_functions(namespace)
            self._values[rank] = value_as_text(cell, namespace)

        with alone_in_the_process(self._timeout):
            ending = self._ranks.do({rank: partial(task, rank) for rank in chosen})
        outputs = [self.printed.get(rank, "") for rank in range(self.size)]
        with suppress(LeftOpen):  # a later cell may receive what this one has sent
            self._outcome(ending, outputs).run()
        return {rank: RankAnswer(outputs[rank], self._values[rank]) for rank in chosen}

    @property
    def printed(self) -> dict[int, str]:
        """What each rank has printed in the last cell, or so far in the present one."""
        outputs = self._ranks.outputs
        return {rank: outputs[rank][before:] for rank, before in self._before.items()}

    def fetch(self, rank: int, name: str) -> Any:
        """A copy of a rank's variable."""
        if name.startswith("__"):
            raise KeyError(name)
        return private_copy(self._namespaces[rank][name])()

    def defined(self, rank: int) -> list[str]:
        """The names in a rank's namespace."""
        return [name for name in self._namespaces[rank] if not name.startswith("__")]

    def record(self) -> Run:
        """All cells so far as one run."""
        return self._outcome(Ending.FINISHED, self._ranks.outputs, failed=False).record()

    def close(self) -> None:
        """End the ranks."""
        with alone_in_the_process(self._timeout):
            self._ranks.close()

    def _outcome(self, ending: Ending, outputs: list[str], failed: bool = True) -> Outcome:
        return Outcome(
            self._request,
            ending,
            self._ranks.virtual_time,
            self._values,
            outputs,
            self._ranks.failures if failed else [],
            self._ranks.waiting,
            self._started,
            self._ranks.places,
        )


def _check_no_rank() -> None:
    if current_rank.get() is not None:
        raise BadLaunch("This is a simulated rank already, and a rank cannot start ranks.")
