"""Who runs next: ranks take turns, one at a time, the one with the lowest virtual clock first.

A rank here is a thread that holds the turn or waits for it. Because exactly one runs at a time and the
choice depends on clocks and rank numbers alone, a run repeats itself exactly; because a rank that waits says
for what, a deadlock is known at once: nobody holds the turn, somebody has not finished.
"""

import ctypes
import gc
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType

from course_lib.cluster import Cluster
from course_lib.errors import PendingCall
from course_lib.simulator.network import Move, Network, Operation
from course_lib.timeline.events import Event, Kind, SourceLine
from course_lib.timeline.lines import caller_line


class RankStopped(BaseException):
    """Unwinds a rank when its run is over. Not an Exception, so that `except Exception` lets it pass."""


class Ending(Enum):
    """How a run ended, as the scheduler saw it."""

    FINISHED = "every rank returned"
    STUCK = "no rank can go on"
    OUT_OF_TIME = "the deadline passed"


POLL_SECONDS = 1e-6
"""Virtual time that asking an operation whether it is completed takes, so that others get their turn."""

_VAIN_POLLS = 10_000
"""After so many questions in a row without an operation in between, asking again counts as waiting."""

_GRACE_SECONDS = 1.0
"""Real time that a stopped rank has to unwind before it is left behind."""


@dataclass(slots=True)
class RankState:
    """One rank: its clock, its turn, and what it waits for."""

    number: int
    clock: float = 0.0
    turn: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    waits_for: Operation | None = None
    waits_at: SourceLine | None = None
    """The line that it waits in, for an operation that was posted in another."""
    finished: bool = False
    computing_since: float | None = None

    def __post_init__(self) -> None:
        self.turn.acquire()


class Scheduler:
    """Runs one body a rank and lends each the turn; see the module's text."""

    def __init__(self, cluster: Cluster, ranks: int, on_resume: Callable[[int], None]) -> None:
        """on_resume(rank) is called in the rank's thread each time it gets the turn."""
        self.network = Network(cluster, ranks)
        self.ranks = [RankState(number) for number in range(ranks)]
        self.spans: list[Event] = []
        self.running = -1
        """The rank that holds the turn; -1 before the first and after the last."""
        self._ready: list[tuple[float, int]] = []
        self._on_resume = on_resume
        self._all_done = threading.Semaphore(0)
        self._stopping = False
        self._vain_polls = 0
        self.communicating = False
        """True while data is moved, which is not computing."""
        self.stacks: dict[int, FrameType] = {}
        """After a run: where the rank was that held the turn."""
        self.waiting: list[PendingCall] = []
        """After a run: what each unfinished rank waited for."""

    # --- For the caller of a run

    def run(self, bodies: Sequence[Callable[[], None]], timeout: float) -> Ending:
        """Run all bodies to their end, or until none can go on, or for `timeout` seconds of real time.

        A body must not raise. Whatever happens, KeyboardInterrupt included, no rank runs on afterwards.
        """
        with _cheap_turns():
            for state, body in zip(self.ranks, bodies, strict=True):
                state.thread = threading.Thread(
                    target=self._live, args=(state, body), name=f"rank {state.number}", daemon=True
                )
                state.thread.start()
                self._ready.append((0.0, state.number))
        try:
            with _rare_collections():
                self._pass_turn_on()
                ended = self._all_done.acquire(timeout=timeout)
            if not ended:
                return Ending.OUT_OF_TIME
            return Ending.FINISHED if all(s.finished for s in self.ranks) else Ending.STUCK
        finally:
            self.stacks = self._stacks()
            self.waiting = [
                self.network.pending(state.waits_for, state.waits_at)
                for state in self.ranks
                if state.waits_for is not None
            ]
            self._unwind()

    @property
    def seconds(self) -> float:
        """Virtual time until the last rank ended."""
        return max(state.clock for state in self.ranks)

    # --- For the rank that holds the turn

    def now(self, rank: int) -> float:
        """The rank's clock, in virtual seconds."""
        return self.ranks[rank].clock

    def post(self, operation: Operation, move: Move | None = None) -> None:
        """Hand an operation to the network, at the rank's present time; `move` for a collective."""
        if self._stopping:
            raise RankStopped
        self.end_computing(operation.rank)
        operation.posted = self.ranks[operation.rank].clock
        self._vain_polls = 0
        self.communicating = True
        try:
            if operation.op == "send":
                completed = self.network.post_send(operation)
            elif operation.op == "recv":
                completed = self.network.post_receive(operation)
            else:
                assert move is not None
                completed = self.network.post_collective(operation, move)
        finally:
            self.communicating = False
        for done in completed:
            self._wake_waiter(done)

    def wait(self, operation: Operation) -> None:
        """Block the rank until the operation is done; its clock moves to the operation's end."""
        self.wait_for_data(operation)
        self.advance_to(operation.rank, operation.end)

    def wait_for_data(self, operation: Operation) -> None:
        """Block the rank until the operation's data is there, and leave its clock alone."""
        if self._stopping:
            raise RankStopped
        self.end_computing(operation.rank)
        if not operation.done:
            state = self.ranks[operation.rank]
            state.waits_for = operation
            state.waits_at = caller_line() if operation.asynchronous else None
            self._give_turn_away(state)
        if operation.landing:
            self._deliver(operation)

    def poll(self, operation: Operation) -> bool:
        """Whether the operation is over by now. A rank that asks in vain lets the others go on first."""
        if self._stopping:
            raise RankStopped
        state = self.ranks[operation.rank]
        self.end_computing(state.number)
        if operation.done and operation.end <= state.clock:
            if operation.landing:
                self._deliver(operation)
            return True
        if operation.done:
            self.advance_to(state.number, operation.end)
            return False
        self._vain_polls += 1
        if self._vain_polls > _VAIN_POLLS:
            # Nothing has been posted for so long that all who still run do nothing but ask.
            self.wait_for_data(operation)
        self.advance_to(state.number, max(state.clock + POLL_SECONDS, self._next_clock(state.clock)))
        return False

    def advance_to(self, rank: int, clock: float) -> None:
        """Move the rank's clock forward, and let those run first whose clocks are now behind it."""
        state = self.ranks[rank]
        if clock > state.clock:
            state.clock = clock
        if self._ready and self._ready[0] < (state.clock, rank):
            heapq.heappush(self._ready, (state.clock, rank))
            self._give_turn_away(state)

    def compute(self, rank: int, seconds: float) -> None:
        """Charge the rank for computing, without a change of turn: it has not spoken to anyone."""
        state = self.ranks[rank]
        if state.computing_since is None:
            state.computing_since = state.clock
        state.clock += seconds

    def end_computing(self, rank: int) -> None:
        """Close the stretch of computing before the rank communicates, so that turns follow the clocks."""
        state = self.ranks[rank]
        if state.computing_since is None:
            return
        self.record(rank, "compute", Kind.COMPUTE, state.computing_since, state.clock)
        state.computing_since = None
        self.advance_to(rank, state.clock)

    def record(self, rank: int, label: str, kind: Kind, start: float, end: float) -> None:
        """Add an event that is no communication."""
        self.spans.append(Event(rank, label, kind, start, end, sequence=len(self.network.log)))

    # --- Turns

    def _live(self, state: RankState, body: Callable[[], None]) -> None:
        """A rank's thread, from its first turn to its last."""
        try:
            self._await_turn(state)
            body()
            self.end_computing(state.number)
        except RankStopped:
            pass
        state.finished = not self._stopping
        if self._stopping:
            self._all_done.release()
        else:
            self._pass_turn_on()

    def _give_turn_away(self, state: RankState) -> None:
        """Let the next rank run, and wait until it is this one's turn again."""
        if self._ready and self._ready[0][1] == state.number:
            heapq.heappop(self._ready)
            return
        self._pass_turn_on()
        self._await_turn(state)

    def _pass_turn_on(self) -> None:
        """Wake the ready rank with the lowest clock; the launcher, if there is none."""
        if not self._ready:
            self.running = -1
            self._all_done.release()
            return
        _, number = heapq.heappop(self._ready)
        self.running = number
        self.ranks[number].turn.release()

    def _await_turn(self, state: RankState) -> None:
        state.turn.acquire()
        if self._stopping:
            raise RankStopped
        self.running = state.number
        self._on_resume(state.number)

    def _deliver(self, operation: Operation) -> None:
        self.communicating = True
        try:
            self.network.deliver(operation)
        finally:
            self.communicating = False

    def _wake_waiter(self, operation: Operation) -> None:
        """An operation is done: whoever waits for it may run once its clock has come."""
        state = self.ranks[operation.rank]
        if state.waits_for is operation:
            state.waits_for = None
            heapq.heappush(self._ready, (max(state.clock, operation.end), state.number))

    def _next_clock(self, default: float) -> float:
        return self._ready[0][0] if self._ready else default

    # --- The end

    def _stacks(self) -> dict[int, FrameType]:
        """Where the rank that holds the turn is in its code, if one does."""
        if self.running < 0:
            return {}
        thread = self.ranks[self.running].thread
        frame = sys._current_frames().get(thread.ident) if thread and thread.ident else None
        return {self.running: frame} if frame else {}

    def _unwind(self) -> None:
        """End every rank's thread that has not ended, one after another, running its `finally` blocks."""
        self._stopping = True
        holder = self.running
        if holder >= 0:
            self._interrupt(self.ranks[holder])
        for state in self.ranks:
            alive = state.thread is not None and state.thread.is_alive()
            if alive and not state.finished and state.number != holder:
                state.turn.release()
                if not self._all_done.acquire(timeout=_GRACE_SECONDS):
                    self._interrupt(state)
        for state in self.ranks:
            if state.thread is not None and state.thread.is_alive():
                state.thread.join(_GRACE_SECONDS)

    def _interrupt(self, state: RankState) -> None:
        """Raise RankStopped in a thread that computes. Python code ends at once, a C call when it returns."""
        deadline = time.monotonic() + _GRACE_SECONDS
        thread = state.thread
        while thread is not None and thread.ident and thread.is_alive() and time.monotonic() < deadline:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(RankStopped)
            )
            thread.join(0.05)


@contextmanager
def _cheap_turns() -> Iterator[None]:
    """Threads started here pass the turn faster, where the system lets us choose (Linux).

    They stay on the core that this thread is on, for only one of them ever runs; and their policy is
    SCHED_BATCH, with which a thread that is woken does not interrupt the one that woke it, which has not let
    go of the interpreter yet. Together that makes a turn three times as fast.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, policy, param = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    present = ctypes.CDLL(None).sched_getcpu()
    os.sched_setaffinity(0, {present} if present in allowed else allowed)
    if policy == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, param)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, param)
        os.sched_setaffinity(0, allowed)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and only at what the run itself has made.

    A run allocates fast and keeps nearly everything (its log), and torch alone has half a million objects.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
