"""Who runs next, and every rank's clock: the decisions of a scheduler, whatever its ranks are made of.

Ranks take turns, the one with the lowest virtual clock first, of equal clocks the lowest rank. The choice
depends on nothing else, so a run repeats itself exactly. What a rank does while it has the turn are
iterables here: at each item the rank gives its turn away (`next`), and asks for the following one when it
gets it again. A thread blocks there, a replay yields.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind, SourceLine
from course_lib.runtime.simulator.device_clock import DeviceClock
from course_lib.runtime.simulator.engine import RankStopped
from course_lib.runtime.simulator.simulated_network import SimulatedNetwork


@dataclass(slots=True)
class RankState(DeviceClock):
    """One rank: the clocks of its device and host, and what it waits for."""

    number: int = 0
    waits_for: Operation | None = None
    waits_at: SourceLine | None = None
    """The line that it waits in, for an operation that was posted in another."""
    finished: bool = False
    lost: bool = False
    """Stopped, since the cluster has lost it."""


Turns = Iterable[None]
"""Something that a rank does, with an item for each time that the rank gives its turn away.

What takes no turn is done when the method returns, and the iterable is empty: most messages are like that,
and a generator for each costs time.
"""

_NO_TURN: Turns = ()
_ONE_TURN: Turns = (None,)


class VirtualTime:
    """The ranks of one run, its network, and the order in which the ranks go on."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self.network = SimulatedNetwork(cluster, ranks)
        self.ranks = [
            RankState(partial(self.record, number), cluster.computes, cluster.host, number=number)
            for number in range(ranks)
        ]
        self.spans: list[Event] = []
        self.communicating = False
        """True while data is moved, which is not computing."""
        self._some_get_lost = bool(cluster.disturbances.lost_ranks)
        self._ready = [(0.0, number) for number in range(ranks)]
        self._dispatch = cluster.computes.dispatch_seconds

    @property
    def seconds(self) -> float:
        """Virtual time until the last rank ended."""
        return max(state.latest for state in self.ranks)

    @property
    def all_done(self) -> bool:
        """Whether every rank has returned, except for those that are lost."""
        return all(state.finished or state.number in self.network.lost for state in self.ranks)

    @property
    def lost(self) -> dict[int, float]:
        """Ranks that have been found to answer nothing any more, and since when, in virtual seconds."""
        return {rank: self.network.timing.lost_at(rank) for rank in sorted(self.network.lost)}

    def waiting(self) -> list[PendingCall]:
        """What each rank waits for that can not go on, and is not lost."""
        return [
            self.network.pending(state.waits_for, state.waits_at)
            for state in self.ranks
            if state.waits_for is not None and state.number not in self.network.lost
        ]

    # --- The order

    def next(self) -> int | None:
        """Take the ready rank with the lowest clock from the queue; None if no rank is ready."""
        return heapq.heappop(self._ready)[1] if self._ready else None

    def next_clock(self, default: float) -> float:
        """The clock of the rank that is due next."""
        return self._ready[0][0] if self._ready else default

    def advance(self, rank: int, clock: float) -> Turns:
        """Move the rank's clock forward, if that is forward; others may be due first then."""
        return _ONE_TURN if self._moves_past_others(rank, clock) else _NO_TURN

    def _moves_past_others(self, rank: int, clock: float) -> bool:
        """Move the rank's clock forward. Whether others are now due first: then the rank is queued."""
        state = self.ranks[rank]
        if clock > state.clock:
            state.clock = clock
        if self._ready and self._ready[0] < (state.clock, rank):
            heapq.heappush(self._ready, (state.clock, rank))
            return True
        return False

    def due(self, rank: int) -> None:
        """A rank that had finished goes on, at its clock."""
        self.ranks[rank].finished = False
        heapq.heappush(self._ready, (self.ranks[rank].clock, rank))

    def forget_open(self) -> None:
        """What ranks were at when a run broke off: nobody waits any more, and no call is open."""
        self._ready.clear()
        self.network.forget_open()
        for state in self.ranks:
            state.waits_for = state.computing_since = None
            state.finished = True

    # --- Communication

    def post(self, operation: Operation) -> Turns:
        """Hand an operation to the network, at the rank's present time."""
        if self._dispatch:
            self.ranks[operation.rank].queue()
            return self._post_after_computing(operation)
        if self._some_get_lost or self.ranks[operation.rank].computing_since is not None:
            return self._post_after_computing(operation)
        self._post_now(operation)
        return _NO_TURN

    def _post_after_computing(self, operation: Operation) -> Iterator[None]:
        yield from self.end_computing(operation.rank)
        if self._dispatch:  # an idle device may have been put forward
            yield from self.advance(operation.rank, 0.0)
        self._post_now(operation)

    def _post_now(self, operation: Operation) -> None:
        operation.posted = self.ranks[operation.rank].clock
        self.communicating = True
        try:
            completed = self.network.post(operation)
        finally:
            self.communicating = False
        for done in completed:
            state = self.ranks[done.rank]
            if state.waits_for is done:
                # It may go on once its clock has come.
                state.waits_for = None
                heapq.heappush(self._ready, (max(state.clock, done.end), state.number))

    def wait(self, operation: Operation, line: SourceLine | None = None) -> Turns:
        """Wait in that line until an operation is done; the rank's clock moves to the operation's end."""
        state = self.ranks[operation.rank]
        if self._some_get_lost or state.computing_since is not None:
            return self._wait_after_computing(operation, line)
        if not operation.done:
            state.waits_for, state.waits_at = operation, line
            return self._go_on_after(operation)
        self.deliver(operation)
        return self.advance(operation.rank, operation.end)

    def _wait_after_computing(self, operation: Operation, line: SourceLine | None) -> Iterator[None]:
        yield from self.wait_for_data(operation, line)
        yield from self.advance(operation.rank, operation.end)

    def _go_on_after(self, operation: Operation) -> Iterator[None]:
        yield
        self.deliver(operation)
        if self._moves_past_others(operation.rank, operation.end):
            yield

    def wait_for_data(self, operation: Operation, line: SourceLine | None = None) -> Iterator[None]:
        """Wait in that line until the operation's data is there, and leave the rank's clock alone."""
        state = self.ranks[operation.rank]
        if self._some_get_lost or state.computing_since is not None:
            yield from self.end_computing(operation.rank)
        if not operation.done:
            state.waits_for, state.waits_at = operation, line
            yield
        self.deliver(operation)

    def deliver(self, operation: Operation) -> None:
        """Fill the tensors of an asynchronous operation, now that its rank has waited for it."""
        operation.awaited = True
        if self._dispatch and operation.call.op == "barrier":
            self.host_wait(operation.rank, operation.end, operation.call.line)
        if operation.landing:
            self.communicating = True
            try:
                self.network.deliver(operation)
            finally:
                self.communicating = False

    # --- Computing

    def compute(self, rank: int, seconds: float) -> None:
        """Charge the rank for computing, without a change of turn: it has not spoken to anyone."""
        state = self.ranks[rank]
        if self._dispatch:
            state.queue()
        state.compute(self.network.timing.compute(rank, seconds))

    def host_now(self, rank: int) -> float:
        """When the rank's host has queued all that its device was given; in step, the rank's clock."""
        return self.ranks[rank].host_now

    def host_wait(self, rank: int, until: float | None = None, line: SourceLine | None = None) -> None:
        """The host waits in that line until its device has done all that is queued, or until an instant."""
        self.ranks[rank].host_wait(until, line)

    def end_computing(self, rank: int) -> Iterator[None]:
        """Close the stretch of computing before the rank communicates, or ends.

        Raises RankStopped if the rank is lost by its own clock: nobody sees what it does from now on.
        """
        state = self.ranks[rank]
        if state.computing_since is not None:
            state.end_stretch()
            if self._moves_past_others(rank, state.clock):
                yield
        if self._some_get_lost and self.network.timing.lost_at(rank) <= state.clock:
            self.network.lost.add(rank)
            state.lost = True
            raise RankStopped

    # --- Copies between device and host

    def copy(self, rank: int, nbytes: int, to_host: bool, earliest: float) -> float:
        """Begin a copy, after those under way in its direction. Returns when it ends, in virtual seconds."""
        return self.ranks[rank].copy(nbytes, to_host, earliest)

    def wait_until(self, rank: int, clock: float) -> Iterator[None]:
        """Move the rank's clock to an instant, if that is forward."""
        yield from self.end_computing(rank)
        yield from self.advance(rank, clock)

    def record(
        self,
        rank: int,
        label: str,
        kind: Kind,
        start: float,
        end: float,
        nbytes: int = 0,
        line: SourceLine | None = None,
    ) -> None:
        """Add an event that is no communication."""
        event = Event(rank, label, kind, start, end, len(self.network.log), nbytes, line=line)
        event.asynchronous = kind is Kind.COPY
        self.spans.append(event)

    def events(self) -> tuple[Event, ...]:
        """Communication, computing and spans, in the order in which they began."""
        for state in self.ranks:
            state.end_queueing()
        return tuple(sorted([*self.network.events(), *self.spans], key=lambda event: event.sequence))
