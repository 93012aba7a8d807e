"""Ranks as threads that hold the turn or wait for it.

Because exactly one runs at a time, in an order that depends on clocks and rank numbers alone (see
`course_lib.runtime.simulator.virtual_time`), a run repeats itself exactly; because a rank that waits says for
what, a deadlock is known at once: nobody holds the turn, somebody has not finished.
"""

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from course_lib.runtime.communication.call import Group, Operation
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Kind, SourceLine
from course_lib.runtime.simulator.engine import Ending, RankStopped
from course_lib.runtime.simulator.rank_threads import (
    GRACE_SECONDS,
    RUN_ENDED,
    cheap_turns,
    frame_of,
    free_programs,
    interrupt,
    over_in_time,
    rank_thread,
    rare_collections,
)
from course_lib.runtime.simulator.virtual_time import Turns, VirtualTime

POLL_SECONDS = 1e-6
"""Virtual time that asking an operation whether it is completed takes, so that others get their turn."""

_VAIN_POLLS = 10_000
"""After so many questions in a row without an operation in between, asking again counts as waiting."""
_PATIENCE = 100
"""For so many questions to others the next one to an operation that is over is waited for."""


class ThreadDriver:
    """Runs one body a rank and lends each the turn; see the module's text."""

    def __init__(self, virtual_time: VirtualTime, on_resume: Callable[[int], None]) -> None:
        """on_resume(rank) is called in the rank's thread each time it gets the turn."""
        self.virtual_time = virtual_time
        self.running = -1
        """The rank that holds the turn; -1 before the first and after the last."""
        self._locks = [threading.Lock() for _ in virtual_time.ranks]
        """A rank's is open while it has the turn."""
        self._threads: list[threading.Thread] = []
        self._on_resume = on_resume
        self._all_done = threading.Semaphore(0)
        self._stopping = self._resuming = False
        self._vain_polls = 0
        self._asked: dict[int, dict[Operation, int]] = {}
        self._since_news: dict[int, set[Operation]] = {}
        """Rank -> the operations that it has asked in vain whether they are over -> patience with each."""
        self.stacks: dict[int, FrameType] = {}
        """After a run: where the rank was that held the turn."""
        self.waiting: list[PendingCall] = []
        """After a run: what each unfinished rank waited for."""

    def run(self, bodies: Sequence[Callable[[], None]], timeout: float) -> Ending:
        """Run all bodies to their end, or until none can go on, or for `timeout` seconds of real time.

        A body must not raise. Whatever happens, KeyboardInterrupt included, no rank runs on afterwards.
        """
        try:
            self._start(bodies)
            return self._go_on(timeout)
        finally:
            self.stacks = self._stacks()
            self.waiting = self.virtual_time.waiting()
            self._unwind()

    def _start(self, bodies: Sequence[Callable[[], None]]) -> None:
        with cheap_turns():
            for number, body in enumerate(bodies):
                self._locks[number].acquire()
                self._threads.append(rank_thread(number, partial(self._live, number, body)))
                self._threads[number].start()

    def _go_on(self, timeout: float) -> Ending:
        with rare_collections(), free_programs():
            self._pass_turn_on()
            if not over_in_time(self._all_done, timeout, self._at_work):
                return Ending.OUT_OF_TIME
        return Ending.FINISHED if self.virtual_time.all_done else Ending.STUCK

    # --- For the rank that holds the turn

    @property
    def communicating(self) -> bool:
        """Whether data is being moved, or a rank's state put in place, which is not computing."""
        return self._resuming or self.virtual_time.communicating

    def now(self, rank: int) -> float:
        """The rank's clock, in virtual seconds."""
        return self.virtual_time.ranks[rank].clock

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        return self.virtual_time.network.group(name, members)

    def post(self, operation: Operation) -> None:
        """Hand an operation to the network, at the rank's present time."""
        if self._stopping:
            self._check_open()
        self._vain_polls = 0
        for _ in self.virtual_time.post(operation):
            self._give_turn_away(operation.rank)

    def wait(self, operation: Operation, at: SourceLine | None = None) -> None:
        """Block the rank until the operation is done; its clock moves to the operation's end.

        at: the line that the rank waits in; by default the student's line of this very call.
        """
        if self._stopping:
            self._check_open()
        for _ in self.virtual_time.wait(operation, _waits_in(operation, at)):
            self._give_turn_away(operation.rank)

    def wait_for_data(self, operation: Operation, at: SourceLine | None = None) -> None:
        """Block the rank until the operation's data is there, and leave its clock alone."""
        self._check_open()
        self._take_turns(operation.rank, self.virtual_time.wait_for_data(operation, _waits_in(operation, at)))

    def poll(self, operation: Operation, at: SourceLine | None = None) -> bool:
        """Whether the operation is over by now. A rank that asks in vain lets the others go on first."""
        self._check_open()
        rank, time = operation.rank, self.virtual_time
        self._take_turns(rank, time.end_computing(rank))
        clock = self.now(rank)
        in_vain = self._since_news.setdefault(rank, set())
        if operation.done and operation.end <= clock:
            if not operation.awaited:
                in_vain.clear()
            time.deliver(operation)
            return True
        ends = self._ends_of_asked(operation)
        if not ends:
            self._vain_polls += 1
            if self._vain_polls > _VAIN_POLLS:
                # Nothing has been posted for so long that all who still run do nothing but ask.
                self.wait_for_data(operation, at)
        # Who has just heard that another is over may ask all the rest before turning to that one.
        ahead = min([time.next_clock(math.inf), *ends]) if operation in in_vain else 0.0
        in_vain.add(operation)
        self._take_turns(
            rank, time.advance(rank, max(clock + POLL_SECONDS, ahead if ahead < math.inf else 0))
        )
        return False

    def _ends_of_asked(self, operation: Operation) -> list[float]:
        """When the operations are over that this rank has asked in vain, as far as that is known.

        A program may ask several in turn: the first to be over must not be jumped over. One that is not asked
        again for a while counts no longer.
        """
        asked = self._asked.setdefault(operation.rank, {})
        asked[operation] = _PATIENCE
        for each in list(asked):
            asked[each] -= each.done
            if each.awaited or not asked[each]:
                del asked[each]
        return [each.end for each in asked if each.done]

    def is_done(self, operation: Operation) -> bool:
        """Whether the operation is over, without a change of turn."""
        return operation.done

    def compute(self, rank: int, seconds: float) -> None:
        """Charge the rank for computing."""
        self.virtual_time.compute(rank, seconds)

    def copy(self, rank: int, nbytes: int, to_host: bool, earliest: float) -> float:
        """Begin a copy between the rank's device and its host. Returns when it ends, in virtual seconds."""
        return self.virtual_time.copy(rank, nbytes, to_host, earliest)

    def wait_until(self, rank: int, clock: float) -> None:
        """Move the rank's clock to an instant, if that is forward."""
        self._check_open()
        self._take_turns(rank, self.virtual_time.wait_until(rank, clock))

    def host_now(self, rank: int) -> float:
        """When the rank's host has queued all that its device was given."""
        return self.virtual_time.host_now(rank)

    def host_wait(self, rank: int, until: float | None = None, at: SourceLine | None = None) -> None:
        """The rank's host waits for its device, or until an instant; by default in the student's line."""
        self.virtual_time.host_wait(rank, until, at or caller_line())

    def switch_stream(self, rank: int, number: int) -> None:
        """What the rank queues from now on goes to this stream of its device."""
        self.virtual_time.ranks[rank].switch_stream(number)

    def record_span(self, rank: int, label: str, start: float, end: float) -> None:
        """Add a phase that the program has named."""
        self.virtual_time.record(rank, label, Kind.SPAN, start, end)

    def record_memory(self, rank: int, kind: str, nbytes: int) -> None:
        """Add that the rank now holds so many bytes of a `MemoryKind`."""
        now = self.host_now(rank)
        self.virtual_time.record(rank, kind, Kind.MEMORY, now, now, nbytes)

    def _check_open(self) -> None:
        """Raise what ends a rank if the run is over; RuntimeError in code that is no rank of it any more."""
        if self._stopping:
            if threading.current_thread() in self._threads:
                raise RankStopped
            raise RuntimeError(RUN_ENDED)

    def _take_turns(self, rank: int, turns: Turns) -> None:
        """Do something as the rank that holds the turn; where the turn is given away, block."""
        for _ in turns:
            self._give_turn_away(rank)

    # --- Turns

    def _live(self, rank: int, body: Callable[[], None]) -> None:
        """A rank's thread, from its first turn to its last."""
        try:
            self._await_turn(rank)
            body()
            self._check_open()
            self._take_turns(rank, self.virtual_time.end_computing(rank))
        except RankStopped:
            pass
        state = self.virtual_time.ranks[rank]
        state.finished = not (self._stopping or state.lost)
        if self._stopping:
            self._all_done.release()
        else:
            self._pass_turn_on()

    def _give_turn_away(self, rank: int) -> None:
        """Let the next rank run, and wait until it is this one's turn again."""
        if self._pass_turn_on() != rank:
            self._await_turn(rank)

    def _pass_turn_on(self) -> int | None:
        """Wake the rank that is due next; the launcher, if no rank can go on."""
        due = self.virtual_time.next()
        if due is None:
            self.running = -1
            self._all_done.release()
        elif due != self.running:
            self.running = due
            self._locks[due].release()
        return due

    def _await_turn(self, rank: int) -> None:
        self._locks[rank].acquire()
        if self._stopping:
            raise RankStopped
        self._take_turn(rank)

    def _take_turn(self, rank: int) -> None:
        self.running = rank
        self._resuming = True
        try:
            self._on_resume(rank)
        finally:
            self._resuming = False

    # --- The end

    def _at_work(self) -> threading.Thread | None:
        """The thread that holds the turn, if one does."""
        return self._threads[self.running] if self.running >= 0 else None

    def _stacks(self) -> dict[int, FrameType]:
        """Where the rank that holds the turn is in its code."""
        thread = self._at_work()
        frame = frame_of(thread) if thread else None
        return {self.running: frame} if frame else {}

    def _unwind(self) -> None:
        """End every rank's thread that has not ended, one after another, running its `finally` blocks."""
        self._stopping = True
        holder = self.running
        if holder >= 0:
            interrupt(self._threads[holder])
        for rank, thread in enumerate(self._threads):
            state = self.virtual_time.ranks[rank]
            if thread.is_alive() and not (state.finished or state.lost) and rank != holder:
                self._locks[rank].release()
                if not self._all_done.acquire(timeout=GRACE_SECONDS):
                    interrupt(thread)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(GRACE_SECONDS)


def _waits_in(operation: Operation, at: SourceLine | None) -> SourceLine | None:
    """The line that a rank waits in, for an operation that it may have posted in another."""
    if operation.done or not operation.call.asynchronous:
        return None
    return at or caller_line()
