"""What every rank holds after each step of a collective, and whose data is in it.

The collective is run on the simulator with numbers that tell where they come from: rank r's element is
16**r, so that the hexadecimal digits of a sum say how often each rank contributed. There is a run for each
chunk, in which all other chunks are zero: so a number that is not zero belongs to that chunk, wherever a rank
keeps it, in x, in a working copy or in a buffer of one chunk. A dispatch mode looks on while the function
works and notes each number with its virtual time. On links that take one second a message, that time is the
number of the step.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.cluster.topology import Cluster, Link
from course_lib.launch import launch
from course_lib.launch.run import Run
from course_lib.runtime.communication.events import span_recorder
from course_lib.runtime.eager_mode import EagerDispatchMode

MOST_RANKS = 8
"""Eight colours differ; and eight digits of 16 fit into int64 with room for sums."""

_ONE_SECOND = Link(latency=1.0, bandwidth=1e30)

Contents = tuple[tuple[int, ...], ...]
"""For each chunk, how often each rank contributed to it."""


@dataclass(frozen=True, slots=True)
class StepMessage:
    """A message that arrived in a step: global ranks, and bytes."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """The state after a step: `held[rank][chunk]` is what `Contents` says. `messages` are the step's."""

    number: int
    held: tuple[Contents, ...]
    messages: tuple[StepMessage, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """A collective, step by step; the first is the state before any message."""

    name: str
    ranks: int
    chunks: int
    steps: tuple[Step, ...]
    run: Run
    chunk_bytes: int | None = 8
    """Bytes of a chunk in a message; None if a cell stands for all that a rank holds."""

    def changed(self, step: int, rank: int, chunk: int) -> bool:
        """Whether the step changed what the rank holds of the chunk."""
        if step == 0:
            return False
        return self.steps[step].held[rank][chunk] != self.steps[step - 1].held[rank][chunk]


def steps_of(
    function: Callable[..., Any], *arguments: Any, ranks: int = 4, chunks: int | None = None
) -> Steps:
    """Run `function(x, *arguments)` on simulated ranks and note what every rank holds after each step.

    function: any collective on a tensor x that it sees as `chunks` elements (by default one a rank); it may
    communicate as it likes, with messages or with collectives. Raises ValueError for more than eight ranks.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"Steps can be shown of 1 to {MOST_RANKS} ranks; got {ranks}.")
    length = chunks or ranks
    runs = [_watched_run(function, arguments, ranks, length, chunk) for chunk in range(length)]
    arrivals = sorted({round(event.end) for event in runs[0].events if event.op == "recv"} | {0})
    steps = tuple(_step(runs, number, time) for number, time in enumerate(arrivals))
    return Steps(getattr(function, "__name__", "the collective"), ranks, length, steps, runs[0])


def _watched_run(
    function: Callable[..., Any], arguments: Sequence[Any], ranks: int, length: int, chunk: int
) -> Run:
    """A run in which only one chunk is not zero; each rank's result is the history of what it held of it."""
    cluster = Cluster(nodes=ranks, intra_node=_ONE_SECOND, inter_node=_ONE_SECOND)
    try:
        return launch(_watched, function, length, chunk, arguments, ranks=ranks, cluster=cluster, quiet=True)
    finally:
        _owners.clear()


_owners: "dict[int, _Watch]" = {}
"""Address of a storage -> the watch of the rank that it belongs to.

No argument of the launch, of which each rank would get a copy: a message moves in the turn of either side, so
every rank must know whose tensor it is.
"""


class _Watch(EagerDispatchMode):
    """Notes every number that appears in the rank's tensors of int64, with the rank's virtual time.

    Tensors are known by their storage, so that views of chunks count as the whole that they are part of.
    """

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._whole: dict[int, Tensor] = {}
        self._last: dict[int, list[int]] = {}
        self.seen: list[tuple[float, int]] = []
        self._know(x)
        self.look(0.0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _done_by_the_network():
            # A message's data moves when it is matched, and has arrived a second later.
            owner = _owners.get(result.untyped_storage().data_ptr())
            if owner is not None:
                owner.look(_virtual_time() + _ONE_SECOND.latency)
            return result
        if isinstance(result, Tensor):
            if "empty" in func.__name__:
                with _disable_current_modes():
                    result.zero_()  # What memory held before would be taken for numbers of a rank.
            self._know(result)
        self.look(_virtual_time())
        return result

    def look(self, time: float) -> None:
        """Note the numbers that have appeared since the last look, as of that time."""
        with _disable_current_modes():
            for key, whole in self._whole.items():
                now = whole.tolist()
                before, self._last[key] = self._last[key], now
                self.seen += [(time, new) for new, old in zip(now, before, strict=True) if new != old]

    def _know(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.dtype == torch.int64 and storage.nbytes() and storage.data_ptr() not in self._whole:
            with _disable_current_modes():
                length = storage.nbytes() // tensor.element_size()
                _owners[storage.data_ptr()] = self
                self._whole[storage.data_ptr()] = tensor.detach().as_strided((length,), (1,), 0)
                self._last[storage.data_ptr()] = [0] * length


def _watched(
    function: Callable[..., Any], length: int, chunk: int, arguments: Sequence[Any]
) -> list[tuple[float, int]]:
    """What one rank does: the function under a watch; returns the history of what it held of the chunk."""
    own = 16 ** dist.get_rank()
    x = torch.zeros(length, dtype=torch.int64)
    x[chunk] = own
    watch = _Watch(x)
    with watch:
        function(x, *arguments)
    watch.look(_virtual_time())
    return _history(own, sorted(watch.seen, key=lambda noted: noted[0]))


def _history(own: int, seen: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """What a rank held of a chunk: the last number that appeared, but for copies of what it held before.

    Those are its own number, and any in which nobody is that is not in the present one.
    """
    history = [(0.0, own)]
    for time, value in seen:
        present = _digits(history[-1][1])
        old = all(new <= there for new, there in zip(_digits(value), present, strict=True))
        if value > 0 and value != own and not old:
            history.append((time, value))
    return history


def _done_by_the_network() -> bool:
    """Whether the operation that is being dispatched is the simulator's, and not the function's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("torch."):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("course_lib.runtime.")


def _virtual_time() -> float:
    recorder = span_recorder.get()
    assert recorder is not None
    return recorder.now()


def _step(runs: Sequence[Run], number: int, time: float) -> Step:
    ranks = runs[0].ranks
    held = tuple(
        tuple(_digits(_at(run.results[rank], time))[:ranks] for run in runs) for rank in range(ranks)
    )
    messages = tuple(
        StepMessage(event.peer, event.rank, event.nbytes)
        for event in runs[0].events
        if event.op == "recv" and event.peer is not None and round(event.end) == time and time > 0
    )
    return Step(number, held, messages)


def _at(history: Sequence[tuple[float, int]], time: float) -> int:
    """What was held at that time."""
    return [value for noted, value in history if noted < time + 0.5][-1]


def _digits(value: int) -> tuple[int, ...]:
    """How often each of eight ranks contributed to a sum."""
    return tuple((value >> (4 * rank)) & 15 for rank in range(MOST_RANKS))
