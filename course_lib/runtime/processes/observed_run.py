"""What the records of all ranks say together: who waits for whom, what does not fit, what has happened.

Nothing here waits, reads or kills; `watchdog` feeds it and acts on what it finds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from course_lib.runtime.communication.call import Call, Group, Operation
from course_lib.runtime.communication.diagnosis import never_waited_for
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.matching import Mismatch
from course_lib.runtime.processes.call_log import (
    Done,
    Failed,
    Holds,
    Known,
    Posted,
    Record,
    Resumed,
    Returned,
    Spanned,
    Started,
    Waits,
    line_of,
)
from course_lib.runtime.processes.observed_network import ObservedNetwork


@dataclass(slots=True)
class ObservedRank:
    """What is known of one rank."""

    rank: int
    started: float | None = None
    returned: float | None = None
    failed: Failed | None = None
    exit_code: int | None = None
    known: dict[int, Call] = field(default_factory=dict)
    """What it calls, by the places in its log."""
    calls: dict[int, Operation] = field(default_factory=dict)
    """Its calls that are not over, by their number."""
    last_call: Operation | None = None
    unasked: dict[int, Operation] = field(default_factory=dict)
    """Asynchronous collectives, which end by themselves, that nobody has waited for, by their number."""
    waits_for: int | None = None
    spans: list[Spanned] = field(default_factory=list)
    memory: list[Holds] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.returned is not None or self.failed is not None or self.exit_code is not None

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and its function has not returned."""
        return self.failed is not None or (self.exit_code is not None and self.returned is None)

    @property
    def waiting(self) -> Operation | None:
        """The call in which its main thread waits."""
        return None if self.waits_for is None or self.ended else self.calls.get(self.waits_for)

    @property
    def stuck(self) -> bool:
        """Whether it waits for something that nobody has done yet."""
        waiting = self.waiting
        return waiting is not None and not waiting.done

    @property
    def open_call(self) -> Operation | None:
        """The first of its calls that nobody has answered."""
        return next((call for call in self.calls.values() if not call.done), None)


class ObservedRun:
    """All ranks of one launch."""

    def __init__(self, ranks: int) -> None:
        self.network = ObservedNetwork()
        self.ranks = [ObservedRank(rank) for rank in range(ranks)]
        self.told: Sequence[Event] = ()
        """What another library says that it did, on the machine's clock."""

    # --- Feeding

    def add(self, records: Iterable[tuple[int, Record]]) -> None:
        """Take in fresh records, each with its rank; those of one rank in their order."""
        for rank, record in records:
            self._add(self.ranks[rank], record)

    def add_exit(self, rank: int, code: int) -> None:
        """Take in that a rank's process has ended."""
        self.ranks[rank].exit_code = code

    def _add(self, view: ObservedRank, record: Record) -> None:
        match record:
            case Known():
                view.known[record.place] = _call_of(record, self.network.group)
            case Posted():
                self._post(view, record)
            case Waits(number):
                view.waits_for = number
                view.unasked.pop(number, None)
            case Resumed(number):
                view.unasked.pop(number, None)
                if view.waits_for == number:
                    view.waits_for = None
            case Done():
                self._complete(view, record)
            case Spanned():
                view.spans.append(record)
            case Holds():
                view.memory.append(record)
            case Started(at):
                view.started = at if view.started is None else view.started
            case Returned(at):
                view.returned = at
            case Failed():
                view.failed = record

    def _post(self, view: ObservedRank, record: Posted) -> None:
        operation = view.known[record.call].operation(view.rank, record.peer)
        operation.posted = record.at
        view.calls[record.number] = view.last_call = operation
        if operation.call.asynchronous and not operation.call.is_message:
            view.unasked[record.number] = operation
        if record.waits:
            view.waits_for = record.number
        self.network.post(operation)

    def _complete(self, view: ObservedRank, record: Done) -> None:
        if view.waits_for == record.number:
            view.waits_for = None
        operation = view.calls.pop(record.number, None)
        if operation is not None:
            operation.end = record.at
            if operation.call.op == "recv" and operation.peer is None:
                self.network.complete_from_anyone(operation, record.source)

    def begin_again(self, ranks: Iterable[int]) -> None:
        """What these ranks did is over, well or not, and they begin something else."""
        for view in self.ranks:
            if view.failed is not None:
                view.returned, view.failed = view.failed.at, None
        for rank in ranks:
            self.ranks[rank].returned = self.ranks[rank].last_call = None

    def forget_open(self) -> None:
        """No call that is open will ever be over."""
        self.network.forget_open()
        for view in self.ranks:
            view.calls, view.unasked, view.waits_for = {}, {}, None

    def replace(self, rank: int, at: float) -> None:
        """Another process is this rank from now on, and has done nothing yet."""
        view = self.ranks[rank]
        view.known, view.exit_code, view.failed, view.last_call, view.returned = {}, None, None, None, at

    # --- Asking

    def mismatches(self) -> list[Mismatch]:
        """Everything that does not fit; sends too that a failed rank's receive would not take."""
        failed = [view.rank for view in self.ranks if view.has_failed]
        return self.network.mismatches() + self.network.refused_from_anyone(failed)

    @property
    def all_returned(self) -> bool:
        return all(view.returned is not None for view in self.ranks)

    @property
    def running(self) -> list[ObservedRank]:
        """The ranks from which more is to come."""
        return [view for view in self.ranks if not view.ended]

    @property
    def has_failure(self) -> bool:
        return any(view.has_failed for view in self.ranks)

    @property
    def waiting(self) -> list[PendingCall]:
        """The calls in which ranks wait."""
        return [self.network.pending(call) for view in self.ranks if (call := view.waiting) is not None]

    def pending(self, operations: Iterable[Operation]) -> list[PendingCall]:
        """Operations as a report shows them."""
        return [self.network.pending(operation) for operation in operations]

    @property
    def returned(self) -> list[int]:
        """The ranks whose function has returned."""
        return [view.rank for view in self.ranks if view.returned is not None]

    @property
    def zero(self) -> float:
        """When the first rank began, on the machine's clock."""
        return min((view.started for view in self.ranks if view.started is not None), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first rank's begin to the last one's end, as far as they have come."""
        return max(
            (view.returned - self.zero for view in self.ranks if view.returned is not None), default=0.0
        )

    def events(self) -> tuple[Event, ...]:
        """Everything that has happened, in the order of its beginning, in seconds since `zero`."""
        calls = self.network.events()
        spans = [
            Event(view.rank, span.label, Kind.SPAN, span.start, span.end, 0)
            for view in self.ranks
            for span in view.spans
        ]
        memory = [
            Event(view.rank, held.kind, Kind.MEMORY, held.at, held.at, 0, held.nbytes)
            for view in self.ranks
            for held in view.memory
        ]
        ordered = sorted([*calls, *spans, *memory, *self.told], key=lambda event: event.start)
        zero = self.zero
        return tuple(
            replace(event, start=event.start - zero, end=event.end - zero, sequence=position)
            for position, event in enumerate(ordered)
        )

    def unmatched(self) -> tuple[PendingCall, ...]:
        """Calls that nobody has answered, and those that nobody has waited for."""
        open_calls = sorted(self.network.unmatched(), key=lambda call: call.posted)
        return (*self.pending(open_calls), *self.forgotten())

    def forgotten(self) -> list[PendingCall]:
        """Calls that have met their counterparts, and that nobody has waited for."""
        calls = (call for view in self.ranks for call in view.calls.values())
        found = [call for call in calls if call.done and call.call.is_message and call.call.asynchronous]
        found += [call for view in self.ranks for call in view.unasked.values() if call.done]
        found.sort(key=lambda call: call.posted)
        return [never_waited_for(call) for call in self.pending(found)]


def merged(records: dict[int, list[Record]]) -> list[tuple[int, Record]]:
    """Fresh records of all ranks in the order of their times; one without a time follows the one before."""
    timed = []
    latest: defaultdict[int, float] = defaultdict(float)
    for rank, own in records.items():
        for record in own:
            latest[rank] = max(latest[rank], getattr(record, "at", 0.0))
            timed.append((latest[rank], rank, record))
    timed.sort(key=lambda each: each[0])
    return [(rank, record) for _, rank, record in timed]


def _call_of(known: Known, group: Callable[[str, Sequence[int]], Group]) -> Call:
    """The call again. group: see `CallMatcher.group`."""
    return Call(
        known.op,
        group(known.group, known.members),
        known.root,
        known.tag,
        known.reduction,
        None if known.shape is None else (getattr(torch, known.shape[0]), known.shape[1]),
        known.parts,
        known.nbytes,
        known.strides,
        asynchronous=known.asynchronous,
        line=line_of(known.line),
    )
