"""What a simulated run comes to: a Run, or the error that it deserves."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from course_lib.launch.failures import (
    CollectiveMismatch,
    Deadlock,
    LeftOpen,
    RankFailed,
    RankLost,
    TimedOut,
)
from course_lib.launch.run import Run
from course_lib.runtime.communication.diagnosis import (
    deadlock_report,
    left_open_report,
    lost_report,
    message_mismatch_report,
    mismatch_report,
    never_waited_for,
    rank_failed_report,
    timed_out_report,
)
from course_lib.runtime.communication.errors import PendingCall, RankTraceback
from course_lib.runtime.communication.events import LazyEvents, SourceLine
from course_lib.runtime.communication.matching import Mismatch
from course_lib.runtime.communication.traffic import CountedEvents
from course_lib.runtime.communication.wait_cycle import find_cycle
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.engine import Ending
from course_lib.runtime.simulator.trace.batched_replay import MessageTable
from course_lib.runtime.simulator.virtual_time import VirtualTime


@dataclass(frozen=True, slots=True)
class CountedOutcome:
    """A run that has ended well, and of which nobody may ever want the events."""

    request: LaunchRequest
    messages: MessageTable
    results: list[Any]
    outputs: list[str]
    started: float
    """time.perf_counter() at the launch."""

    def run(self) -> Run:
        """The run."""
        return Run(
            results=self.results,
            outputs=self.outputs,
            events=CountedEvents(self.messages.events, self.messages.traffic),
            cluster=self.request.cluster,
            engine="simulated",
            seconds=self.messages.seconds,
            wall_seconds=time.perf_counter() - self.started,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is known when the ranks of a launch have stopped."""

    request: LaunchRequest
    ending: Ending
    virtual_time: VirtualTime
    results: list[Any]
    outputs: list[str]
    failures: Sequence[RankTraceback]
    waiting: Sequence[PendingCall]
    """What each unfinished rank waited for."""
    started: float
    """time.perf_counter() at the launch."""
    places: Mapping[int, Sequence[SourceLine]] = field(default_factory=dict)
    """Where the rank was that still ran: the student's lines on its stack, outermost first."""

    def run(self) -> Run:
        """The run; raises what an unfinished one deserves, or one with a call still open."""
        if self.ending is Ending.OUT_OF_TIME and not self.failures:
            self._raise_timed_out()
        if self.failures:
            report = rank_failed_report(self.failures, self.waiting)
            raise RankFailed(report, self.failures, self.record())
        if self.ending is Ending.STUCK:
            self._raise_stuck()
        finished = self.record()
        if finished.unmatched and not self.virtual_time.lost:
            raise LeftOpen(left_open_report(finished.unmatched), finished)
        return finished

    def record(self) -> Run:
        """The run as it stands, complete or not."""
        return Run(
            results=self.results,
            outputs=self.outputs,
            events=LazyEvents(self.virtual_time.events),
            cluster=self.request.cluster,
            engine="simulated",
            seconds=self.virtual_time.seconds,
            wall_seconds=time.perf_counter() - self.started,
            unmatched=tuple(self._still_open()),
            lost=tuple(rank for rank in self.virtual_time.lost if not self.virtual_time.ranks[rank].finished),
        )

    def _still_open(self) -> Iterator[PendingCall]:
        """Calls that nothing matched, and asynchronous ones whose results were never asked for."""
        network = self.virtual_time.network
        for operation in network.unmatched():
            yield network.pending(operation)
        for operation in network.not_waited_for():
            yield never_waited_for(network.pending(operation))

    def _raise_timed_out(self) -> NoReturn:
        places = {rank: "\n".join(f"    at {line}" for line in lines) for rank, lines in self.places.items()}
        raise TimedOut(timed_out_report(self.request.timeout, places, self.waiting), self.record())

    def _raise_stuck(self) -> NoReturn:
        mismatches = self.virtual_time.network.mismatches()
        if mismatches:
            self._raise_mismatch(mismatches[0])
        cycle = find_cycle(self.waiting)
        finished = [state.number for state in self.virtual_time.ranks if state.finished]
        if lost := self.virtual_time.lost:
            report = lost_report(self.waiting, cycle, finished, lost)
            raise RankLost(report, self.waiting, cycle, finished, self.record(), lost=lost)
        report = deadlock_report(self.waiting, cycle, finished)
        raise Deadlock(report, self.waiting, cycle, finished, self.record())

    def _raise_mismatch(self, mismatch: Mismatch) -> NoReturn:
        calls = [self.virtual_time.network.pending(operation) for operation in mismatch.calls]
        if mismatch.position is None:
            report = message_mismatch_report(calls)
        else:
            report = mismatch_report(calls, mismatch.position, mismatch.calls[0].call.group.members)
        raise CollectiveMismatch(report, calls, self.record())
