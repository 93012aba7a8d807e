"""Watches the ranks of one launch from its start to its end, and finds out why they do not return, if so."""

import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.diagnosis import (
    deadlock_report,
    message_mismatch_report,
    mismatch_report,
    rank_failed_report,
    timed_out_report,
)
from course_lib.runtime.communication.errors import PendingCall, RankTraceback
from course_lib.runtime.communication.matching import Mismatch
from course_lib.runtime.communication.wait_cycle import find_cycle
from course_lib.runtime.processes.agents import Agents
from course_lib.runtime.processes.call_log import Record, RecordParser, line_of
from course_lib.runtime.processes.observed_run import ObservedRank, ObservedRun, merged
from course_lib.runtime.processes.protocol import LEFT_OUT, OUTPUT_BYTES, RankProgress
from course_lib.runtime.processes.rank_failures import failures_of
from course_lib.runtime.processes.stacks import Stack
from course_lib.runtime.request import LaunchRequest

_LOOK_SECONDS = 0.05
"""How often to ask whether the launch can still go on when no rank says anything."""

_SETTLE_SECONDS = 0.3
"""How long the other ranks have, after something went wrong on one, to say what they were doing."""

_GRACE_SECONDS = 1.0
"""So long nothing may happen on any rank before it counts as a deadlock."""

_START_SECONDS = 120.0
"""How long the ranks have to find each other before the launch's own time begins."""


@dataclass(frozen=True, slots=True)
class AllReturned:
    """Every rank's function has returned."""

    results: list[Any]


@dataclass(frozen=True, slots=True)
class RanksFailed:
    """Ranks raised, or their processes ended. The root cause comes first."""

    report: str
    failures: list[RankTraceback]


@dataclass(frozen=True, slots=True)
class Deadlocked:
    """No rank can go on."""

    report: str
    waiting: list[PendingCall]
    cycle: tuple[int, ...]
    finished: list[int]


@dataclass(frozen=True, slots=True)
class Mismatched:
    """Calls met that do not fit each other."""

    report: str
    calls: list[PendingCall]


@dataclass(frozen=True, slots=True)
class PastDeadline:
    """The deadline passed. places: the lines that ranks were in which waited in no call that is logged."""

    report: str
    places: dict[int, str]


BadEnding = RanksFailed | Deadlocked | Mismatched | PastDeadline
Ending = AllReturned | BadEnding


@dataclass(frozen=True, slots=True)
class Watched:
    """How a launch has ended, and all that is known of its ranks."""

    ending: Ending
    run: ObservedRun
    outputs: list[str]


class Watchdog:
    """Watches one launch."""

    def __init__(self, request: LaunchRequest, agents: Agents) -> None:
        self._request = request
        self._agents = agents
        self._observed = ObservedRun(request.ranks)
        self._parsers = [RecordParser() for _ in range(request.ranks)]
        self._outputs = [bytearray() for _ in range(request.ranks)]
        self._results: dict[int, bytes] = {}
        self._crashes: dict[int, Stack] = {}
        """Where the ranks were whose processes have ended."""
        self._last_change = time.monotonic()
        self._trouble_since: float | None = None

    def watch(self) -> Watched:
        """Wait until the ranks have returned, or cannot."""
        ending = None
        while ending is None:
            self._take_in(self._agents.read(_LOOK_SECONDS))
            ending = self._loaded_results() if self._observed.all_returned else self._trouble()
        return Watched(ending, self._observed, [_as_text(output) for output in self._outputs])

    def _take_in(self, progress: Sequence[RankProgress]) -> None:
        """What the ranks have left since the last look."""
        if not progress:
            return
        self._last_change = time.monotonic()
        fresh: dict[int, list[Record]] = {}
        for each in progress:
            fresh.setdefault(each.rank, []).extend(self._parsers[each.rank].feed(each.log))
            self._outputs[each.rank] += each.output
            if each.result is not None:
                self._results[each.rank] = each.result
        self._observed.add(merged(fresh))
        for each in progress:
            if each.exit_code is not None:
                self._observed.add_exit(each.rank, each.exit_code)
                self._crashes[each.rank] = each.stack

    def _loaded_results(self) -> AllReturned | RanksFailed | Mismatched:
        # Calls that differ in their reduction alone end all the same, with other numbers on every rank.
        if mismatches := self._observed.mismatches():
            return self._mismatched(mismatches[0])
        results = []
        for rank in range(self._request.ranks):
            try:
                results.append(pickle.loads(self._results[rank]))
            except Exception as error:
                # Whatever an object's own unpickling raises: there is no common class.
                message = f"the result of rank {rank} cannot be read back: {error}"
                failure = RankTraceback(rank, type(error).__name__, message, message)
                return RanksFailed(rank_failed_report([failure]), [failure])
        return AllReturned(results)

    # --- Why the ranks cannot come to a good end any more

    def _trouble(self) -> BadEnding | None:
        mismatches = self._observed.mismatches()
        if (mismatches or self._observed.has_failure) and self._settled():
            return self._mismatched(mismatches[0]) if mismatches else self._failed()
        if self._agents.lost:
            lost = RankTraceback(0, "AgentLost", self._agents.lost, "")
            return RanksFailed(self._agents.lost, [lost])
        silent = time.monotonic() - self._last_change
        if silent >= _GRACE_SECONDS and (calls := self._deadlocked_calls()):
            waiting = self._observed.pending(calls)
            cycle, finished = find_cycle(waiting), self._observed.returned
            return Deadlocked(deadlock_report(waiting, cycle, finished), waiting, cycle, finished)
        return self._out_of_time() if time.monotonic() >= self._deadline else None

    def _settled(self) -> bool:
        """Whether all ranks have said what they can about the trouble that there is."""
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
        if time.monotonic() - self._trouble_since >= _SETTLE_SECONDS:
            return True
        return all(rank.stuck for rank in self._observed.running)

    def _mismatched(self, mismatch: Mismatch) -> Mismatched:
        calls = self._observed.pending(sorted(mismatch.calls, key=lambda call: call.rank))
        if mismatch.position is None:
            return Mismatched(message_mismatch_report(calls), calls)
        members = mismatch.calls[0].call.group.members
        return Mismatched(mismatch_report(calls, mismatch.position, members), calls)

    def _failed(self) -> RanksFailed:
        stacks = {rank: stack.own for rank, stack in self._crashes.items()}
        failures = failures_of(self._observed.ranks, stacks, [_as_text(output) for output in self._outputs])
        return RanksFailed(rank_failed_report(failures, self._observed.waiting), failures)

    @property
    def _deadline(self) -> float:
        """On the machine's clock. The launch's time begins when its first rank's function does."""
        if self._observed.zero:
            return self._observed.zero + self._request.timeout
        return self._last_change + _START_SECONDS

    def _out_of_time(self) -> PastDeadline:
        computing = [rank.rank for rank in self._observed.running if rank.waiting is None]
        places = {
            rank: "\n".join(f"    at {line_of(place)}" for place in stack.own)
            for rank, stack in self._agents.stacks(computing).items()
        }
        waiting = self._observed.waiting
        receivers = {call.rank for call in waiting if call.op == "recv"}
        # Gloo sends nothing more once the handle of a send has been dropped.
        sends = [
            call
            for call in self._observed.forgotten()
            if call.op == "send" and receivers.intersection(call.peers)
        ]
        return PastDeadline(timed_out_report(self._request.timeout, places, waiting, sends), places)

    # --- Deadlocks

    def _deadlocked_calls(self) -> list[Operation]:
        """The calls that the unfinished ranks wait in, if that is for ever; empty if one may go on."""
        running = self._observed.running
        if not running or any(rank.waiting is not None and not rank.stuck for rank in running):
            return []
        silent = [rank for rank in running if not rank.stuck]
        if silent and not self._all_wait_inside_torch(silent):
            return []
        calls = [rank.waiting or rank.open_call for rank in running]
        return [call for call in calls if call is not None]

    def _all_wait_inside_torch(self, ranks: Sequence[ObservedRank]) -> bool:
        """Whether the ranks sleep in torch's own code with a call that nobody has answered.

        DistributedDataParallel waits for its buckets in C++, where nothing is recorded.
        """
        if any(rank.open_call is None for rank in ranks):
            return False
        folder = os.path.dirname(torch.__file__)
        stacks = self._agents.stacks(rank.rank for rank in ranks)
        return all(stack.asleep and stack.innermost_in(folder) for stack in stacks.values())


def _as_text(output: bytes | bytearray) -> str:
    text = output[:OUTPUT_BYTES].decode(errors="replace")
    return text + LEFT_OUT if len(output) > OUTPUT_BYTES else text
