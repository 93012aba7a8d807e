"""What ranks in one process must not share: torch's notion of the world, random state, output, environment.

Real ranks are processes. Here they are threads that take turns, so whatever is global to a process is either
swapped when the turn passes (cheap state) or looked up by the rank that asks (the rest).
"""

import copy
import io
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TextIO, TypeVar

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _set_thread_isolation_mode  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d

from course_lib.cluster.topology import Cluster

Value = TypeVar("Value")

current_rank: ContextVar[int | None] = ContextVar("current_rank", default=None)
"""The simulated rank that this thread is; None in every other thread."""


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


class TorchState(NamedTuple):
    """A state of torch's generator, and the same as bytes, which are compared in a third of the time."""

    tensor: torch.Tensor
    content: bytes


@dataclass(slots=True)
class RankGlobals:
    """Everything process-wide that one rank has for itself."""

    world: RankWorld
    torch_state: TorchState
    numpy_random: np.random.RandomState
    python_random: random.Random
    environment: dict[str, str | None]
    """Variables that the rank sees differently from the kernel; None for one that it has deleted."""
    output: io.StringIO


class Isolation:
    """Swaps and serves the globals of `ranks` ranks while it is entered."""

    def __init__(
        self, cluster: Cluster, ranks: int, seed: int, outputs: Callable[[], io.StringIO] = io.StringIO
    ) -> None:
        """outputs makes what a rank prints into."""
        state = torch.Generator().manual_seed(seed).get_state()
        torch_state = TorchState(state, state.numpy().tobytes())
        self._ranks = [
            RankGlobals(
                RankWorld(),
                torch_state,
                np.random.RandomState(seed),
                random.Random(seed),
                dict(_torchrun_variables(rank, ranks, cluster)),
                outputs(),
            )
            for rank in range(ranks)
        ]
        self._present: int | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Give every rank its own globals; afterwards the kernel has its own back."""
        with ExitStack() as undo:
            undo.enter_context(_kernels_state_kept())
            undo.enter_context(replaced(sys, "stdout", RankStream(sys.stdout, self._output)))
            undo.enter_context(replaced(sys, "stderr", RankStream(sys.stderr, self._output)))
            undo.enter_context(replaced(os, "environ", RankEnvironment(os.environ, self._environment)))
            for name in _RANDOM_FUNCTIONS:
                function = self._by_rank(getattr(random, name), lambda rank: rank.python_random)
                undo.enter_context(replaced(random, name, function))
            for name in _NUMPY_FUNCTIONS:
                function = self._by_rank(getattr(np.random, name), lambda rank: rank.numpy_random)
                undo.enter_context(replaced(np.random, name, function))
            yield

    def resume(self, rank: int) -> None:
        """Put the globals of `rank` in place of those of the rank that ran before it."""
        if rank == self._present:
            return
        globals_ = self._ranks[rank]
        self._swap_torch_state(globals_)
        distributed_c10d._world = globals_.world  # type: ignore[assignment]
        self._present = rank

    def _swap_torch_state(self, resumed: RankGlobals) -> None:
        """Put the random state of a rank in place of the present one, which is kept for its rank.

        Ranks that have drawn nothing yet share one state, and most turns pass without a draw: then nothing is
        copied to and fro, which with hundreds of ranks costs more than the message that passes the turn.
        """
        if self._present is None:
            torch.default_generator.set_state(resumed.torch_state.tensor)
            return
        left = self._ranks[self._present]
        state = torch.default_generator.get_state()
        content = state.numpy().tobytes()
        if content != left.torch_state.content:
            left.torch_state = TorchState(state, content)
        if resumed.torch_state is not left.torch_state:
            torch.default_generator.set_state(resumed.torch_state.tensor)

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

    def _by_rank(
        self, kernels: Callable[..., Any], source: Callable[[RankGlobals], object]
    ) -> Callable[..., Any]:
        """`random.<name>` or `numpy.random.<name>` that draws from the state of the rank that calls it."""
        name = kernels.__name__

        def function(*args: Any, **kwargs: Any) -> Any:
            rank = current_rank.get()
            own = kernels if rank is None else getattr(source(self._ranks[rank]), name)
            return own(*args, **kwargs)

        return function


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
        # One thread a rank: ranks take turns, and a pool of workers for each would only cost time.
        torch.set_num_threads(1)
        undo.callback(_set_thread_isolation_mode, False)
        _set_thread_isolation_mode(True)
        yield


_RANDOM_FUNCTIONS = tuple(
    name
    for name in random.__all__
    if not isinstance(getattr(random, name), type) and hasattr(random.Random, name)
)
_NUMPY_FUNCTIONS = tuple(
    name
    for name in np.random.__all__
    if not isinstance(getattr(np.random, name), type) and hasattr(np.random.RandomState, name)
)


class RankStream(io.TextIOBase):
    """Standard output or error that each rank has for itself, and everyone else as before."""

    def __init__(self, kernels: TextIO, output_of: Callable[[int], io.StringIO]) -> None:
        super().__init__()
        self._kernels = kernels
        self._output_of = output_of

    def write(self, text: str) -> int:
        """Write to the buffer of the rank that calls, or to the kernel's stream."""
        return self._target().write(text)

    def flush(self) -> None:
        """Flush where `write` writes."""
        self._target().flush()

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """A rank has no terminal."""
        return current_rank.get() is None and self._kernels.isatty()

    def fileno(self) -> int:
        """The kernel's, for code that asks; a rank's buffer has none."""
        if current_rank.get() is not None:
            raise io.UnsupportedOperation("a simulated rank's output is no file")
        return self._kernels.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def _target(self) -> TextIO:
        rank = current_rank.get()
        return self._kernels if rank is None else self._output_of(rank)


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


def private_copy(value: Value) -> Callable[[], Value]:
    """A maker of copies of `value`, one for each rank, as if it had been sent to another process.

    Functions written in a notebook come with copies of the global variables they use, so that no rank sees
    what another does to them; functions and classes of importable modules, and classes of the notebook, stay
    the same objects. What cannot be copied is shared.
    """
    shared: list[Any] = []
    buffer = io.BytesIO()
    try:
        _RankPickler(buffer, shared).dump(value)
    except Exception:
        # Anything may refuse, with any exception: an open file, a lock, a generator.
        return lambda: value
    written = buffer.getvalue()
    return lambda: _RankUnpickler(io.BytesIO(written), shared).load()


_SAME_FOR_ALL = type | ModuleType | CodeType


class _RankPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Copies values; leaves classes, modules, code alone, and tensors to `copy.deepcopy`, which is faster."""

    def __init__(self, buffer: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(buffer)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, _SAME_FOR_ALL | torch.Tensor):
            return None
        self._shared.append(value)
        return len(self._shared) - 1


class _RankUnpickler(pickle.Unpickler):
    """Reads what `_RankPickler` wrote in this same process."""

    def __init__(self, buffer: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(buffer)
        self._shared = shared
        self._memo: dict[int, Any] = {}

    def persistent_load(self, position: int) -> Any:
        value = self._shared[position]
        if isinstance(value, _SAME_FOR_ALL):
            return value
        if not value.is_leaf:
            # deepcopy refuses a tensor with history; another process would get its values.
            value = self._memo.setdefault(id(value), value.detach())
        return copy.deepcopy(value, self._memo)


def _torchrun_variables(rank: int, ranks: int, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The variables that torchrun sets for a worker (https://docs.pytorch.org/docs/stable/elastic/run.html)."""
    yield "RANK", str(rank)
    yield "WORLD_SIZE", str(ranks)
    yield "LOCAL_RANK", str(cluster.local_rank(rank))
    yield "LOCAL_WORLD_SIZE", str(min(cluster.devices_per_node, ranks))
    yield "GROUP_RANK", str(cluster.node_of(rank))


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value for a while."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)
