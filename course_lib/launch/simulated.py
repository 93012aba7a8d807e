"""The engine "simulated": ranks are threads of this process, time is virtual, every run repeats itself.

Everything above the process group is torch's own, so DistributedDataParallel, FSDP2 (`fully_shard`), DTensor
and device meshes run too. What cannot run: code that needs a GPU's streams or NCCL itself, and threads or
subprocesses of a rank that want to communicate, for they are not the rank.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from course_lib.errors import (
    BadLaunch,
    CollectiveMismatch,
    Deadlock,
    PendingCall,
    RankFailed,
    RankTraceback,
    TimedOut,
    UnmatchedMessage,
)
from course_lib.launch import LaunchRequest
from course_lib.launch.run import PerRank, Run
from course_lib.launch.tracebacks import rank_traceback
from course_lib.simulator.compute import ComputeClock
from course_lib.simulator.diagnosis import (
    deadlock_report,
    find_cycle,
    message_mismatch_report,
    mismatch_report,
    rank_failed_report,
    timed_out_report,
)
from course_lib.simulator.isolation import Isolation, current_rank, private_copy
from course_lib.simulator.network import Mismatch
from course_lib.simulator.process_group import BACKEND, agreed_groups, current_scheduler
from course_lib.simulator.scheduler import Ending, RankStopped, Scheduler
from course_lib.timeline.events import Event, Kind, LazyEvents, span_recorder
from course_lib.timeline.lines import stack_lines


def run(request: LaunchRequest) -> Run:
    """Run a launch on simulated ranks. See `course_lib.launch.launch`."""
    if current_rank.get() is not None:
        raise BadLaunch(
            "This is a simulated rank already, and a rank cannot launch ranks. "
            "Call launch outside of the function that you launch."
        )
    return _Simulation(request).run()


class _SpanRecorder:
    """One rank's door to the timeline."""

    def __init__(self, scheduler: Scheduler, rank: int) -> None:
        self._scheduler = scheduler
        self._rank = rank

    def now(self) -> float:
        return self._scheduler.now(self._rank)

    def record_span(self, label: str, start: float, end: float) -> None:
        self._scheduler.record(self._rank, label, Kind.SPAN, start, end)


class _Simulation:
    """One run: its scheduler, and what became of each rank."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request
        self.isolation = Isolation(request.cluster, request.ranks, request.seed)
        self.scheduler = Scheduler(request.cluster, request.ranks, self.isolation.resume)
        self.results: list[Any] = [None] * request.ranks
        self.failures: list[RankTraceback] = []
        self.started = time.perf_counter()

    def run(self) -> Run:
        """Run all ranks; raise what the run deserves."""
        with self.isolation.entered(), agreed_groups():
            ending = self.scheduler.run(self._bodies(), self.request.timeout)
        if ending is Ending.OUT_OF_TIME and not self.failures:
            self._raise_timed_out()
        if self.failures:
            self._raise_rank_failed()
        if ending is Ending.STUCK:
            self._raise_stuck()
        finished = self._record()
        for call in finished.unmatched:
            warnings.warn(f"The run has ended with a call still open: {call}", UnmatchedMessage, stacklevel=4)
        return finished

    def _bodies(self) -> list[Callable[[], None]]:
        """What each rank's thread does: its own copy of the function, on its own copies of the arguments."""
        arguments = self.request.arguments
        common = tuple(None if isinstance(value, PerRank) else value for value in arguments)
        copies = private_copy((self.request.function, common))
        return [
            self._body(rank, copies, private_copy([v[rank] for v in arguments if isinstance(v, PerRank)]))
            for rank in range(self.request.ranks)
        ]

    def _body(
        self,
        rank: int,
        common: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]],
        own: Callable[[], list[Any]],
    ) -> Callable[[], None]:
        per_rank = [isinstance(value, PerRank) for value in self.request.arguments]

        def body() -> None:
            current_rank.set(rank)
            current_scheduler.set(self.scheduler)
            span_recorder.set(_SpanRecorder(self.scheduler, rank))
            try:
                with ExitStack() as stack:
                    self._initialise(rank, stack)
                    function, arguments = common()
                    values = iter(own())
                    self.results[rank] = function(
                        *(
                            next(values) if mine else value
                            for mine, value in zip(per_rank, arguments, strict=True)
                        )
                    )
            except RankStopped:
                raise
            except BaseException as error:
                self.failures.append(rank_traceback(rank, error))

        return body

    def _initialise(self, rank: int, stack: ExitStack) -> None:
        """What a launcher does for a process before the student's code: the group, and the clock."""
        # A thread's backward pass would otherwise go to a worker thread, which is no rank.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        dist.init_process_group(BACKEND, rank=rank, world_size=self.request.ranks, store=HashStore())
        cluster = self.request.cluster
        if cluster.flops is not None or cluster.memory_bandwidth is not None:
            stack.enter_context(ComputeClock(self.scheduler, rank, cluster))

    def _record(self) -> Run:
        """The run as it stands, complete or not."""
        return Run(
            results=self.results,
            outputs=self.isolation.outputs,
            events=LazyEvents(self._events),
            cluster=self.request.cluster,
            engine="simulated",
            seconds=self.scheduler.seconds,
            wall_seconds=time.perf_counter() - self.started,
            unmatched=tuple(self._still_open()),
        )

    def _still_open(self) -> Iterator[PendingCall]:
        """Calls that nothing matched, and asynchronous ones whose results were never asked for."""
        network = self.scheduler.network
        for operation in network.unmatched():
            yield network.pending(operation)
        for operation in network.not_waited_for():
            call = network.pending(operation)
            yield replace(call, detail=f"{call.detail}, never waited for, so its tensor was not filled,")

    def _events(self) -> tuple[Event, ...]:
        """Communication, computing and spans, in the order in which they began."""
        events = [*self.scheduler.network.events(), *self.scheduler.spans]
        return tuple(sorted(events, key=lambda event: event.sequence))

    def _raise_rank_failed(self) -> NoReturn:
        report = rank_failed_report(self.failures, self.scheduler.waiting)
        raise RankFailed(report, self.failures, self._record())

    def _raise_timed_out(self) -> NoReturn:
        places = {
            rank: "\n".join(f"    at {line}" for line in stack_lines(frame))
            for rank, frame in self.scheduler.stacks.items()
        }
        raise TimedOut(timed_out_report(self.request.timeout, places, self.scheduler.waiting), self._record())

    def _raise_stuck(self) -> NoReturn:
        mismatches = self.scheduler.network.collective_mismatches()
        if mismatches:
            self._raise_mismatch(mismatches[0])
        waiting = self.scheduler.waiting
        cycle = find_cycle(waiting)
        finished = [state.number for state in self.scheduler.ranks if state.finished]
        report = deadlock_report(waiting, cycle, finished)
        raise Deadlock(report, waiting, cycle, finished, self._record())

    def _raise_mismatch(self, mismatch: Mismatch) -> NoReturn:
        calls = [self.scheduler.network.pending(operation) for operation in mismatch.calls]
        if mismatch.position is None:
            report = message_mismatch_report(calls)
        else:
            report = mismatch_report(calls, mismatch.position, mismatch.calls[0].group.members)
        raise CollectiveMismatch(report, calls, self._record())
