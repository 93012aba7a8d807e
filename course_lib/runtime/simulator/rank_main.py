"""What a simulated rank does: its own copy of the launched function, on its own copies of the arguments."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.events import span_recorder
from course_lib.runtime.communication.rank_traceback import rank_traceback
from course_lib.runtime.request import LaunchRequest, PerRank, moves_shapes_only
from course_lib.runtime.simulator.backend import BACKEND
from course_lib.runtime.simulator.cuda_kernels import temporary_bytes
from course_lib.runtime.simulator.engine import RankEngine, RankStopped, current_engine, current_rank
from course_lib.runtime.simulator.private_copy import private_copy
from course_lib.runtime.simulator.roofline import ComputeClock
from course_lib.runtime.simulator.store import RankStore

_ON_META = (
    "This launch is on meta tensors, which have a shape and no data. DistributedDataParallel and fully_shard "
    "compare and copy parameters, so they need a model with data: launch them on ordinary tensors and fewer "
    "ranks, or call the collectives that they are made of yourself."
)

Stops = tuple[type[BaseException], ...]


Call = partial[Any]
"""The launched function with a rank's arguments."""

Calls = Callable[[int], Callable[[], Call]]
"""Rank -> what the rank does to be ready, once, which gives the launched function with the rank's arguments.

The preparation is not the rank's computing.
"""


def private_calls(request: LaunchRequest) -> Calls:
    """Calls on copies that each rank has for itself, for ranks of one process."""
    per_rank = [isinstance(value, PerRank) for value in request.arguments]
    common = private_copy(
        (
            request.function,
            tuple(None if isinstance(value, PerRank) else value for value in request.arguments),
        )
    )

    def preparation(rank: int) -> Callable[[], Call]:
        own = private_copy([value[rank] for value in request.arguments if isinstance(value, PerRank)])

        def prepare() -> Call:
            function, arguments = common()
            values = iter(own())
            return partial(
                function,
                *(next(values) if mine else value for mine, value in zip(per_rank, arguments, strict=True)),
            )

        return prepare

    return preparation


class RankMains:
    """The ranks of a launch as functions to call, each in a thread of its own, and what they came to."""

    def __init__(
        self,
        request: LaunchRequest,
        engine: RankEngine,
        stops: Stops = (RankStopped,),
        calls: Calls | None = None,
    ) -> None:
        """stops: exceptions with which the engine ends a rank; they pass through and are no failure.

        calls: what each rank calls; by default `private_calls`.
        """
        self.results: list[Any] = [None] * request.ranks
        self.failures: list[RankTraceback] = []
        self._request = request
        self._engine = engine
        self._calls = private_calls(request) if calls is None else calls
        self._stops = stops
        self._stores: list[RankStore] = []

    def main(self, rank: int) -> Callable[[], None]:
        """The function of a rank. It returns however the rank ends, unless the engine has stopped it."""
        prepare = self._calls(rank)

        def main() -> None:
            current_rank.set(rank)
            current_engine.set(self._engine)
            span_recorder.set(_Recorder(self._engine, rank))
            try:
                with ExitStack() as stack:
                    self._initialise(rank, stack)
                    call = prepare()
                    self.results[rank] = self._call(rank, call)
            except self._stops:
                raise
            except BaseException as error:
                self.failures.append(self._with_advice(rank_traceback(rank, error)))

        return main

    def _with_advice(self, failure: RankTraceback) -> RankTraceback:
        """Say what meta tensors are not for, if that may be why the rank has failed."""
        if "meta" not in failure.message or not moves_shapes_only(self._request.arguments):
            return failure
        return replace(failure, traceback=f"{failure.traceback}\n{_ON_META}")

    def _initialise(self, rank: int, stack: ExitStack) -> None:
        """What a launcher does for a process before the student's code."""
        # A thread's backward pass would otherwise go to a worker thread, which is no rank.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        store = RankStore()
        # torch itself does not keep what is Python's of it.
        self._stores.append(store)
        dist.init_process_group(BACKEND, rank=rank, world_size=self._request.ranks, store=store)

    def _call(self, rank: int, call: Call) -> Any:
        """Call the launched function, with its computing and its memory on the rank's clock."""
        if not self._request.memory:
            with self._clock(rank):
                return call()
        from course_lib.runtime.communication.memory_tracker import call_followed

        def clocked(*arguments: Any) -> Any:
            with self._clock(rank):
                return call.func(*arguments)

        temporary = temporary_bytes if self._request.cluster.computes.cuda_kernels else None
        return call_followed(_Recorder(self._engine, rank), clocked, call.args, temporary)

    def _clock(self, rank: int) -> AbstractContextManager[Any]:
        """Counts what the rank computes, if the cluster says how fast that is."""
        cluster = self._request.cluster
        if not cluster.computing_takes_time:
            return nullcontext()
        return ComputeClock(self._engine, rank, cluster)


class _Recorder:
    """One rank's door to the timeline."""

    def __init__(self, engine: RankEngine, rank: int) -> None:
        self._engine = engine
        self._rank = rank

    def now(self) -> float:
        return self._engine.now(self._rank)

    def record_span(self, label: str, start: float, end: float) -> None:
        self._engine.record_span(self._rank, label, start, end)

    @property
    def communicating(self) -> bool:
        return self._engine.communicating

    def record_memory(self, kind: str, nbytes: int) -> None:
        self._engine.record_memory(self._rank, kind, nbytes)
