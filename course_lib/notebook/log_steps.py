"""The steps of a run from its event log alone: who spoke to whom, and whose data can be where.

Works for every run, on real processes too, whatever the tensors. A log knows messages and not what is in
them, so a rank has one cell for all that it holds, with the ranks whose data can have reached it. A message's
step is one more than the last that its sender had been through (L. Lamport, Time, clocks, and the ordering of
events in a distributed system, Communications of the ACM 21(7), 1978): messages of one step need not wait for
each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from course_lib.launch.run import Run
from course_lib.notebook.collective_steps import MOST_RANKS, Step, StepMessage, Steps
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.messages import messages

_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather", "gather_single")
_NOTHING = ("barrier", "monitored_barrier")


@dataclass(slots=True)
class _Transfer:
    """Data on its way: a message, or all that one collective moves."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    departure: float
    arrival: float
    nbytes: int = 0
    frees_sender: float | None = None
    """When a blocking send returns; its sender has then been through the step."""
    step: int = 0
    payload: frozenset[int] = frozenset()

    @property
    def is_message(self) -> bool:
        return len(self.sources) == len(self.targets) == 1


def steps_of_log(run: Run) -> Steps:
    """What happened in a run, step by step, from its events. Raises ValueError for more than eight ranks."""
    if run.ranks > MOST_RANKS:
        raise ValueError(f"Steps can be shown of 1 to {MOST_RANKS} ranks; the run has {run.ranks}.")
    transfers = [*_messages(run.events), *_collectives(run.events)]
    _go_through(transfers, run.ranks)
    last = max((transfer.step for transfer in transfers), default=0)
    steps = tuple(_step(number, transfers, run.ranks) for number in range(last + 1))
    return Steps("the run", run.ranks, 1, steps, run, chunk_bytes=None)


def _messages(events: Iterable[Event]) -> Iterator[_Transfer]:
    for pair in messages(events):
        send, receive = pair.send, pair.receive
        returned = None if send.asynchronous else send.end
        yield _Transfer((send.rank,), (receive.rank,), send.start, receive.end, send.nbytes, returned)


def _collectives(events: Iterable[Event]) -> Iterator[_Transfer]:
    """The k-th collective of a group is one for all of its members."""
    count: defaultdict[tuple[object, ...], int] = defaultdict(int)
    calls: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind is Kind.COLLECTIVE:
            calls[event.group, count[event.group, event.rank]].append(event)
            count[event.group, event.rank] += 1
    for members in calls.values():
        first = members[0]
        everyone = tuple(event.rank for event in members)
        if first.op in _NOTHING:
            continue
        root = everyone if first.peer is None else (first.peer,)
        yield _Transfer(
            root if first.op in _FROM_ROOT else everyone,
            root if first.op in _TO_ROOT else everyone,
            max(event.start for event in members),
            max(event.end for event in members),
        )


def _go_through(transfers: list[_Transfer], ranks: int) -> None:
    """Fill in each transfer's step and payload, in the order of time; what ends at a time ends before
    anything begins."""
    been_through = [0] * ranks
    held = [frozenset({rank}) for rank in range(ranks)]
    moments = sorted(
        [(each.departure, 2, number) for number, each in enumerate(transfers)]
        + [(max(each.arrival, each.departure), 1, number) for number, each in enumerate(transfers)]
        + [
            (each.frees_sender, 0, number)
            for number, each in enumerate(transfers)
            if each.frees_sender is not None
        ]
    )

    def depart(transfer: _Transfer) -> None:
        if not transfer.step:
            transfer.step = 1 + max(been_through[rank] for rank in transfer.sources)
            transfer.payload = frozenset().union(*(held[rank] for rank in transfer.sources))

    for _, what, number in moments:
        transfer = transfers[number]
        depart(transfer)
        for rank in (transfer.sources, transfer.targets, ())[what]:
            been_through[rank] = max(been_through[rank], transfer.step)
        if what == 1:
            for rank in transfer.targets:
                held[rank] |= transfer.payload


def _step(number: int, transfers: Iterable[_Transfer], ranks: int) -> Step:
    """The state after a step: what has come in it and in those before."""
    held = [{rank} for rank in range(ranks)]
    for transfer in transfers:
        if transfer.step <= number:
            for rank in transfer.targets:
                held[rank] |= transfer.payload
    contents = tuple((tuple(int(source in mine) for source in range(ranks)),) for mine in held)
    sent = tuple(
        StepMessage(transfer.sources[0], transfer.targets[0], transfer.nbytes)
        for transfer in transfers
        if transfer.step == number and transfer.is_message
    )
    return Step(number, contents, sent)
