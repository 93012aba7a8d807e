"""Matching messages and moving the clock: the simulator without ranks, threads or `torch.distributed`.

Ranks post operations; the network finds what matches, moves the data and asks
`course_lib.runtime.simulator.network_model` when each operation ends. As long as operations are posted in the
order of their virtual time, which the scheduler sees to, this is an exact discrete-event simulation.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.costs import CallTraffic, traffic_of, uneven_all_to_all_traffic
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind, SourceLine
from course_lib.runtime.simulator.network_model import NEVER, Timing


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A process group. Two ranks speak in the same group if they hold the same object (`Network.group`)."""

    name: str
    members: tuple[int, ...]
    """Global ranks, in the order of the group."""


Shape = tuple[torch.dtype, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Operation:
    """One call of one rank, from its post to its completion.

    inputs and outputs are the caller's own tensors, let go on completion. `end` is set when `done` is.
    """

    rank: int
    op: str
    group: Group
    posted: float
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    peer: int | None = None
    """Global rank of the other side or of the root; None for a receive from anyone."""
    tag: int = 0
    reduction: str = ""
    """How a collective combines; for the making of a group, its ranks."""
    shape: Shape | None = None
    """Dtype and shape of the tensor that the call is about."""
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """For an all-to-all: bytes for and from each rank of the group."""
    nbytes: int = 0
    shape_only: bool = False
    """Its tensors are meta tensors: they have a shape and no data, so nothing is moved."""
    asynchronous: bool = False
    line: SourceLine | None = None
    landing: tuple[Tensor, ...] = ()
    """The caller's tensors while `outputs` are copies: an asynchronous call fills them when waited for."""
    awaited: bool = False
    """Whether its rank has waited for it, or has been told that it is over."""
    done: bool = False
    end: float = 0.0
    arrival: float = 0.0
    """When a buffered message reaches its receiver; its send has ended long before."""
    sequence: int = 0

    @property
    def signature(self) -> tuple[object, ...]:
        """What all members of a collective must agree on. The parts of an all-to-all differ by right."""
        return (
            self.op,
            self.reduction,
            self.peer,
            self.shape if self.parts is None else None,
            self.shape_only,
        )

    @property
    def detail(self) -> str:
        """What the call was about: `float32[4], SUM`."""
        words = [] if self.shape is None else [shape_in_words(self.shape)]
        if self.shape_only:
            words.append("meta")
        if self.reduction:
            words.append(self.reduction)
        if self.parts is not None:
            sent, received = self.parts
            words.append(f"sends {list(sent)} bytes, receives {list(received)} bytes")
        return ", ".join(words)

    @property
    def call(self) -> str:
        """The call for people: `recv(float32[4]) from rank 1, tag 0`, `broadcast(float32[4]) from rank 0`."""
        text = f"{self.op}({self.detail})"
        if self.op == "send":
            return f"{text} to rank {self.peer}, tag {self.tag}"
        if self.op == "recv":
            source = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{text} from {source}, tag {self.tag}"
        if self.peer is not None:
            text += f" {ROOT_WORDS.get(self.op, 'at')} rank {self.peer}"
        return text


ROOT_WORDS = {"broadcast": "from", "scatter": "from", "gather": "to", "reduce": "to"}


@lru_cache(maxsize=1024)
def shape_in_words(shape: Shape) -> str:
    """`float32[3, 4]`."""
    dtype, size = shape
    return f"{str(dtype).removeprefix('torch.')}{list(size)}"


@dataclass(slots=True)
class CollectiveSlot:
    """The k-th collective of a group: the calls that its members have made so far."""

    calls: dict[int, Operation] = field(default_factory=dict)
    mismatched: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Calls that do not fit together; `position` counts the group's collectives, None for a message."""

    calls: tuple[Operation, ...]
    position: int | None


NEW_GROUP = "new_group"
"""The making of a group, in which all ranks take part with the same list of ranks. No event shows it."""


class PartsDiffer(ValueError):
    """A part that one rank sends is not as large as its receiver expects."""


Move = Callable[[Sequence[Operation]], None]
"""Moves the data of one collective, given the members' calls in the order of the group."""


class Network:
    """All messages and collectives of one run on `cluster`, and the log of every operation posted."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self.cluster = cluster
        self.ranks = ranks
        self.log: list[Operation] = []
        self.mismatches: list[Mismatch] = []
        self._sends: defaultdict[tuple[Group, int, int, int], deque[Operation]] = defaultdict(deque)
        self._receives: defaultdict[tuple[Group, int, int, int], deque[Operation]] = defaultdict(deque)
        self._receives_from_anyone: defaultdict[tuple[Group, int, int], deque[Operation]] = defaultdict(deque)
        self._slots: dict[tuple[Group, int], CollectiveSlot] = {}
        self._next_slot: defaultdict[tuple[Group, int], int] = defaultdict(int)
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.timing = Timing(cluster, ranks)
        self.lost: set[int] = set()
        """Ranks that have been found to answer nothing any more."""
        self._never_over: list[Operation] = []
        """Calls that met their other side, and that a lost rank keeps from ending."""

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        key = (name, tuple(members))
        return self._groups.setdefault(key, Group(*key))

    def post_send(self, send: Operation) -> list[Operation]:
        """Offer a message to its receiver. Returns the operations that this completes."""
        self._record(send)
        assert send.peer is not None
        waiting = self._receives[send.group, send.rank, send.peer, send.tag]
        open_to_all = self._receives_from_anyone[send.group, send.peer, send.tag]
        if waiting:
            return self._transfer(send, waiting.popleft())
        if open_to_all:
            return self._transfer(send, open_to_all.popleft())
        self._sends[send.group, send.rank, send.peer, send.tag].append(send)
        if send.nbytes <= self.cluster.eager_limit:
            if not send.shape_only:
                # Buffered: the sender may go on and reuse its tensor, so the network keeps a copy.
                send.inputs = tuple(tensor.detach().clone() for tensor in send.inputs)
            send.done, send.end = True, send.posted
            send.arrival = self.timing.message(send.rank, send.peer, send.nbytes, send.posted)
            return [send]
        return []

    def post_receive(self, receive: Operation) -> list[Operation]:
        """Accept a message. Returns the operations that this completes."""
        self._record(receive)
        _stage(receive)
        if receive.peer is None:
            return self._receive_from_anyone(receive)
        offered = self._sends[receive.group, receive.peer, receive.rank, receive.tag]
        if offered:
            return self._transfer(offered.popleft(), receive)
        self._receives[receive.group, receive.peer, receive.rank, receive.tag].append(receive)
        return []

    def post_collective(self, call: Operation, move: Move) -> list[Operation]:
        """Join the next collective of the group. Returns the operations that this completes: none or all."""
        self._record(call)
        _stage(call)
        position = self._next_slot[call.group, call.rank]
        self._next_slot[call.group, call.rank] += 1
        slot = self._slots.setdefault((call.group, position), CollectiveSlot())
        slot.calls[call.rank] = call
        first = next(iter(slot.calls.values()))
        slot.mismatched |= call.signature != first.signature
        members = call.group.members
        if slot.mismatched or len(slot.calls) < len(members):
            return []
        calls = [slot.calls[rank] for rank in members]
        try:
            if call.shape_only:
                _check_exchange(calls)
            else:
                move(calls)
        except PartsDiffer:
            slot.mismatched = True
            return []
        if not self._time_collective(calls):
            return self._lose(call.group.members)
        del self._slots[call.group, position]
        for each in calls:
            each.inputs = ()
            if not each.landing:
                each.outputs = ()
        return calls

    def deliver(self, operation: Operation) -> None:
        """Fill the caller's tensors, now that it has waited for an asynchronous call."""
        if not operation.shape_only:
            for target, source in zip(operation.landing, operation.outputs, strict=True):
                target.detach().copy_(source)
        operation.landing = operation.outputs = ()

    def collective_mismatches(self) -> list[Mismatch]:
        """Everything that does not fit together: messages whose sizes differ, collectives that differ."""
        differing = [
            Mismatch(tuple(slot.calls.values()), position)
            for (_, position), slot in self._slots.items()
            if slot.mismatched
        ]
        return self.mismatches + differing

    def pending(self, operation: Operation, waits_at: SourceLine | None = None) -> PendingCall:
        """An operation as a report shows it: for whom it waits, and to do what.

        waits_at: the line that the rank waits in, where that is not the line of the call.
        """
        if operation.op == "recv":
            anyone = tuple(r for r in operation.group.members if r != operation.rank)
            peers = anyone if operation.peer is None else (operation.peer,)
            expects = "send"
        elif operation.op == "send":
            assert operation.peer is not None
            peers, expects = (operation.peer,), "receive"
        else:
            peers, expects = self._missing(operation), f"call {operation.op}"
        detail, line = operation.call, operation.line
        if waits_at not in (None, line):
            detail, line = f"{detail}, called at {line.place if line else '?'}", waits_at
        return PendingCall(operation.rank, operation.op, peers, expects, detail, line)

    def unmatched(self) -> list[Operation]:
        """Operations that were posted and never ended, or that nothing ever matched: buffered sends too.

        Those of lost ranks are left out.
        """
        waiting = [queue for queues in (self._sends, self._receives) for queue in queues.values()]
        waiting.extend(self._receives_from_anyone.values())
        calls = [operation for queue in waiting for operation in queue]
        calls.extend(call for slot in self._slots.values() for call in slot.calls.values())
        calls.extend(self._never_over)
        return sorted(
            (call for call in calls if call.rank not in self.lost), key=lambda operation: operation.sequence
        )

    def not_waited_for(self) -> list[Operation]:
        """Asynchronous calls that are over and that nobody has asked for."""
        return [call for call in self.log if call.asynchronous and call.done and not call.awaited]

    def events(self) -> list[Event]:
        """The log as events; an operation that never completed ends where it began."""
        return [self._event(operation) for operation in self.log if operation.op != NEW_GROUP]

    def _record(self, operation: Operation) -> None:
        operation.sequence = len(self.log)
        self.log.append(operation)

    def _receive_from_anyone(self, receive: Operation) -> list[Operation]:
        """Take the message that was offered first."""
        offers = [
            queue
            for source in receive.group.members
            if (queue := self._sends.get((receive.group, source, receive.rank, receive.tag)))
        ]
        if not offers:
            self._receives_from_anyone[receive.group, receive.rank, receive.tag].append(receive)
            return []
        return self._transfer(min(offers, key=lambda queue: queue[0].sequence).popleft(), receive)

    def _transfer(self, send: Operation, receive: Operation) -> list[Operation]:
        """Move one message; the operations it completes. Tensors that do not fit complete nothing."""
        if _message_type(send) != _message_type(receive):
            self.mismatches.append(Mismatch((send, receive), None))
            return []
        arrival = send.arrival
        if not send.done:
            ready = max(send.posted, receive.posted)
            arrival = self.timing.message(send.rank, receive.rank, send.nbytes, ready)
        receive.peer = send.rank
        if arrival == NEVER:
            self._never_over.extend(call for call in (send, receive) if not call.done)
            return self._lose((send.rank, receive.rank))
        if not send.shape_only:
            _copy(send.inputs[0], receive.outputs[0])
        receive.done, receive.end = True, max(arrival, receive.posted)
        send.inputs = ()
        if not receive.landing:
            receive.outputs = ()
        if send.done:
            return [receive]
        send.done = True
        send.end = send.posted if send.nbytes <= self.cluster.eager_limit else arrival
        return [send, receive]

    def _lose(self, members: Sequence[int]) -> list[Operation]:
        """Note who is gone before these could end what they are at. Completes nothing."""
        first = self.timing.lost_at(*members)
        self.lost.update(rank for rank in members if self.timing.lost_at(rank) == first)
        return []

    def _time_collective(self, calls: Sequence[Operation]) -> bool:
        """All members end together. False if they never do, since one of them is lost."""
        call = calls[0]
        payload = max(each.nbytes for each in calls)
        last = max(each.posted for each in calls)
        end = self.timing.collective(call.op, payload, call.group.members, last, call.peer)
        if end == NEVER:
            return False
        for each in calls:
            each.done, each.end = True, end
        return True

    def _missing(self, call: Operation) -> tuple[int, ...]:
        """Members of a collective that have not made the call."""
        for (group, _), slot in self._slots.items():
            if group is call.group and slot.calls.get(call.rank) is call:
                return tuple(r for r in group.members if r not in slot.calls or r in self.lost)
        return ()

    @staticmethod
    def _event(operation: Operation) -> Event:
        point_to_point = operation.op in ("send", "recv")
        traffic = _traffic(operation)
        return Event(
            rank=operation.rank,
            op=operation.op,
            kind=Kind.POINT_TO_POINT if point_to_point else Kind.COLLECTIVE,
            start=operation.posted,
            end=max(operation.end, operation.posted),
            sequence=operation.sequence,
            nbytes=operation.nbytes,
            sent=traffic.sent,
            received=traffic.received,
            messages=traffic.messages,
            peer=operation.peer,
            group=operation.group.members,
            tag=operation.tag,
            asynchronous=operation.asynchronous,
            detail=operation.detail,
            line=operation.line,
            finished=operation.done or operation.end > 0,
        )


def _stage(operation: Operation) -> None:
    """Keep an asynchronous call's results apart until it is waited for, as a real network might.

    Otherwise a program that never waits would find its data there, which elsewhere it finds only sometimes.
    """
    if operation.asynchronous and operation.outputs:
        operation.landing = operation.outputs
        if not operation.shape_only:
            operation.outputs = tuple(tensor.detach().clone() for tensor in operation.landing)


def _message_type(operation: Operation) -> tuple[torch.dtype, int, bool]:
    """What a send and its receive must agree on: dtype and size, and whether there is data at all."""
    assert operation.shape is not None
    return (operation.shape[0], operation.nbytes, operation.shape_only)


def _copy(source: Tensor, target: Tensor) -> None:
    # Detached, so that no history is recorded, and cheaper than no_grad.
    target = target.detach()
    target.copy_(source.detach() if source.shape == target.shape else source.detach().view_as(target))


def _check_exchange(calls: Sequence[Operation]) -> None:
    """Raise PartsDiffer if a part of an all-to-all does not have the size that its receiver expects."""
    parts = [call.parts for call in calls if call.parts is not None]
    for (_, expected), sent in zip(
        parts, zip(*(outgoing for outgoing, _ in parts), strict=True), strict=True
    ):
        if expected != sent:
            raise PartsDiffer


def _traffic(operation: Operation) -> CallTraffic:
    """Bytes and messages of one call, whether or not it was matched: a message offered is a message sent."""
    if operation.op == "send":
        return CallTraffic(operation.nbytes, 0, 1)
    if operation.op == "recv":
        return CallTraffic(0, operation.nbytes, 0)
    members = operation.group.members
    position = members.index(operation.rank)
    if operation.parts is not None:
        return uneven_all_to_all_traffic(*operation.parts, position)
    root = 0 if operation.peer is None else members.index(operation.peer)
    return traffic_of(operation.op, operation.nbytes, len(members), position, root)
