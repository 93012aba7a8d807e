"""What ranks in one process must not share: torch's notion of the world, random state, output, environment.

Real ranks are processes. Here they are threads that take turns, so whatever is global to a process is either
swapped when the turn passes (cheap state) or looked up by the rank that asks (the rest).
"""

import io
import os
import random
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _set_thread_isolation_mode  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d

from course_lib.cluster.topology import Cluster
from course_lib.runtime.simulator.dtensor_handlers import DTensorHandlers
from course_lib.runtime.simulator.engine import current_rank
from course_lib.runtime.simulator.random_state import RandomStates
from course_lib.runtime.simulator.rank_streams import RankStream
from course_lib.runtime.simulator.replaced import replaced


@dataclass(slots=True)
class RankWorld:
    """A rank's own copy of what `torch.distributed.distributed_c10d` keeps in its module's `_world`."""

    default_pg: dist.ProcessGroup | None = None
    pg_map: dict[Any, Any] = field(default_factory=dict)
    pg_names: dict[Any, Any] = field(default_factory=dict)
    pg_group_ranks: dict[Any, Any] = field(default_factory=dict)
    pg_backend_config: dict[Any, Any] = field(default_factory=dict)
    group_count: int = 0
    tags_to_pg: dict[Any, Any] = field(default_factory=dict)
    pg_to_tag: dict[Any, Any] = field(default_factory=dict)
    pg_coalesce_state: dict[Any, Any] = field(default_factory=dict)
    comms: list[Any] = field(default_factory=list)
    pg_config_info: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class RankGlobals:
    """What is process-wide and one rank has for itself, beside its random state."""

    world: RankWorld
    environment: dict[str, str | None]
    """Variables that the rank sees differently from the kernel; None for one that it has deleted."""
    output: io.StringIO


class SwappedGlobals:
    """Swaps and serves the globals of `ranks` ranks while it is entered."""

    def __init__(
        self, cluster: Cluster, ranks: int, seed: int, outputs: Callable[[], io.StringIO] = io.StringIO
    ) -> None:
        """outputs makes what a rank prints into."""
        self._ranks = [
            RankGlobals(RankWorld(), dict(_torchrun_variables(rank, ranks, cluster)), outputs())
            for rank in range(ranks)
        ]
        self._random_states = RandomStates(ranks, seed)
        self._dtensor_handlers = DTensorHandlers()
        self._present: int | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Give every rank its own globals; afterwards the kernel has its own back."""
        with (
            _kernels_state_kept(),
            replaced(
                sys,
                stdout=RankStream(sys.stdout, self._output),
                stderr=RankStream(sys.stderr, self._output),
            ),
            replaced(os, environ=RankEnvironment(os.environ, self._environment)),
            self._random_states.entered(),
            self._dtensor_handlers.entered(),
        ):
            try:
                yield
            finally:
                if self._present is not None:
                    # For ranks that stay, and go on later.
                    self._random_states.leave(self._present)
                    self._dtensor_handlers.leave(self._present)
                    self._present = None

    def resume(self, rank: int) -> None:
        """Put the globals of `rank` in place of those of the rank that ran before it."""
        if rank == self._present:
            return
        self._random_states.swap(self._present, rank)
        self._dtensor_handlers.swap(self._present, rank)
        distributed_c10d._world = self._ranks[rank].world  # type: ignore[assignment]
        self._present = rank

    def forget(self, rank: int) -> None:
        """Let go of the groups of a rank that has ended: with thousands of ranks they fill the memory."""
        self._ranks[rank].world = RankWorld()

    @property
    def outputs(self) -> list[str]:
        """What each rank has printed."""
        return [globals_.output.getvalue() for globals_ in self._ranks]

    def _output(self, rank: int) -> io.StringIO:
        return self._ranks[rank].output

    def _environment(self, rank: int) -> dict[str, str | None]:
        return self._ranks[rank].environment


@contextmanager
def alone(cluster: Cluster, rank: int, ranks: int, seed: int, printed: io.TextIOBase) -> Iterator[None]:
    """The same for a rank that has a process to itself, as long as this is entered.

    printed: what the rank prints into.
    """
    environment, python_random = dict(os.environ), random.getstate()
    with _kernels_state_kept(), redirect_stdout(printed), redirect_stderr(printed):
        try:
            os.environ.update(_torchrun_variables(rank, ranks, cluster))
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            distributed_c10d._world = RankWorld()  # type: ignore[assignment]
            yield
        finally:
            random.setstate(python_random)
            os.environ.clear()
            os.environ.update(environment)


@contextmanager
def _kernels_state_kept() -> Iterator[None]:
    """Let ranks have what torch and NumPy keep once a process, and give it back to the kernel."""
    with ExitStack() as undo:
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        undo.callback(setattr, distributed_c10d, "_world", distributed_c10d._world)
        # init_process_group wraps the hook, once a rank, to say which rank an error is from.
        undo.callback(setattr, sys, "excepthook", sys.excepthook)
        undo.callback(torch.set_rng_state, torch.get_rng_state())
        undo.callback(np.random.set_state, np.random.get_state())
        # As every rank's thread does for itself: `rank_thread`.
        torch.set_num_threads(1)
        undo.callback(_set_thread_isolation_mode, False)
        _set_thread_isolation_mode(True)
        yield


class RankEnvironment(MutableMapping[str, str]):
    """`os.environ` in which each rank has its own RANK, LOCAL_RANK ... and its own changes."""

    def __init__(
        self, kernels: MutableMapping[str, str], own_of: Callable[[int], dict[str, str | None]]
    ) -> None:
        self._kernels = kernels
        self._own_of = own_of

    def __getitem__(self, name: str) -> str:
        own = self._own()
        if own is None or name not in own:
            return self._kernels[name]
        value = own[name]
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str) -> None:
        own = self._own()
        if own is None:
            self._kernels[name] = value
        elif isinstance(value, str):
            own[name] = value
        else:
            raise TypeError(f"str expected, not {type(value).__name__}")

    def __delitem__(self, name: str) -> None:
        own = self._own()
        if own is None:
            del self._kernels[name]
        else:
            self[name]
            own[name] = None

    def __iter__(self) -> Iterator[str]:
        own = self._own() or {}
        yield from (name for name in self._kernels if name not in own)
        yield from (name for name, value in own.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, str]:
        """The variables as a dictionary, as `os.environ.copy()` gives them."""
        return dict(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def _own(self) -> dict[str, str | None] | None:
        rank = current_rank.get()
        return None if rank is None else self._own_of(rank)


def _torchrun_variables(rank: int, ranks: int, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The variables that torchrun sets for a worker (https://docs.pytorch.org/docs/stable/elastic/run.html)."""
    yield "RANK", str(rank)
    yield "WORLD_SIZE", str(ranks)
    yield "LOCAL_RANK", str(cluster.local_rank(rank))
    yield "LOCAL_WORLD_SIZE", str(min(cluster.devices_per_node, ranks))
    yield "GROUP_RANK", str(cluster.node_of(rank))
