"""Which calls belong together: the one place where sends meet receives and collectives their members.

Messages between two ranks do not overtake each other: the k-th send from a to b in a group, under a tag,
meets the k-th such receive of b from a. The k-th collective that one member of a group calls is the k-th of
every other. What calls that have met come to (data, times) is a subclass's business.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from course_lib.runtime.communication.call import NEW_GROUP, Group, Operation
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, SourceLine


class _Offered(Protocol):
    """One side of a message."""

    @property
    def sequence(self) -> int: ...


Side = TypeVar("Side", bound=_Offered)


Channel = tuple[Hashable, int | None, int | None, int]
"""Where messages are in order: a group, source and target as global ranks, a tag."""


class MessageQueues(Generic[Side]):
    """Sends and receives that have not met, in the order of their offers."""

    def __init__(self) -> None:
        self._sends: defaultdict[Channel, deque[Side]] = defaultdict(deque)
        self._receives: defaultdict[Channel, deque[Side]] = defaultdict(deque)
        """Those from anyone wait in a channel without a source."""
        self._offers: dict[Channel, deque[tuple[deque[Side], Side]]] = {}
        """For channels without a source from which somebody has received: sends, and the queue of each."""

    def send(self, side: Side, channel: Channel) -> Side | None:
        """The receive that a send meets; None if it has to wait for one."""
        group, _, target, tag = channel
        from_anyone = (group, None, target, tag)
        if waiting := self._receives.get(channel) or self._receives.get(from_anyone):
            return waiting.popleft()
        queue = self._sends[channel]
        queue.append(side)
        if from_anyone in self._offers:
            self._offers[from_anyone].append((queue, side))
        return None

    def receive(self, side: Side, channel: Channel) -> Side | None:
        """The send that a receive meets; None if it has to wait for one."""
        if offered := self._sends.get(channel):
            return offered.popleft()
        self._receives[channel].append(side)
        return None

    def receive_from_anyone(self, side: Side, channel: Channel) -> Side | None:
        """The same for a channel without a source: the send that was offered first."""
        if channel not in self._offers:
            self._offers[channel] = self.offered_to(channel)
        offers = self._offers[channel]
        while offers:
            queue, offered = offers.popleft()
            # Or it has been received by its source.
            if queue and queue[0] is offered:
                return queue.popleft()
        self._receives[channel].append(side)
        return None

    def offered_to(self, channel: Channel) -> deque[tuple[deque[Side], Side]]:
        """The sends of all sources that wait for a receive in a channel without one, in their order."""
        group, _, target, tag = channel
        queues = [
            queue
            for (of, _, to, under), queue in self._sends.items()
            if (of, to, under) == (group, target, tag)
        ]
        offers = ((queue, each) for queue in queues for each in queue)
        return deque(sorted(offers, key=lambda offer: offer[1].sequence))

    def waiting(self) -> Iterator[Side]:
        """All that have not met the other side."""
        for queues in (self._sends, self._receives):
            for queue in queues.values():
                yield from queue


def matched_at_once(
    channels: npt.NDArray[np.int64], sends: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64] | None:
    """For each of many messages' sides, in their order, the number of the other; None if one is left over.

    channels: a number for the channel of each. sends: which of them are sends.
    """
    outgoing, incoming = np.flatnonzero(sends), np.flatnonzero(~sends)
    outgoing = outgoing[np.argsort(channels[outgoing], kind="stable")]
    incoming = incoming[np.argsort(channels[incoming], kind="stable")]
    if not np.array_equal(channels[outgoing], channels[incoming]):
        return None
    other = np.empty_like(channels)
    other[outgoing], other[incoming] = incoming, outgoing
    return other


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


class CallMatcher:
    """All calls of one run in the order of their posts, and those that wait for their other side."""

    def __init__(self) -> None:
        self.log: list[Operation] = []
        self.mismatched_messages: list[Mismatch] = []
        self.lost: set[int] = set()
        """Ranks that have been found to answer nothing any more."""
        self._messages: MessageQueues[Operation] = MessageQueues()
        self._slots: dict[tuple[Group, int], CollectiveSlot] = {}
        self._next_slot: defaultdict[tuple[Group, int], int] = defaultdict(int)
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        key = (name, tuple(members))
        return self._groups.setdefault(key, Group(*key))

    def post(self, operation: Operation) -> list[Operation]:
        """Take in a call. Returns the operations that this completes."""
        operation.sequence = len(self.log)
        self.log.append(operation)
        op = operation.call.op
        if op == "send":
            return self._post_send(operation)
        if op == "recv":
            return self._post_receive(operation)
        return self._post_collective(operation)

    # --- What calls come to, for subclasses

    def complete_message(self, send: Operation, receive: Operation) -> list[Operation]:
        """A send has met its receive, and they fit. Returns the operations that this completes."""
        raise NotImplementedError

    def complete_collective(self, calls: Sequence[Operation], slot: CollectiveSlot) -> bool:
        """All members have made the call, and it is the same. False if it is not over nevertheless."""
        raise NotImplementedError

    def buffer(self, send: Operation) -> bool:
        """Nobody has received this message yet. Whether the send is over all the same."""
        return False

    # --- Matching

    def _post_send(self, send: Operation) -> list[Operation]:
        receive = self._messages.send(send, (send.call.group, send.rank, send.peer, send.call.tag))
        if receive is None:
            return [send] if self.buffer(send) else []
        return self._meet(send, receive)

    def _post_receive(self, receive: Operation) -> list[Operation]:
        group = receive.call.group
        channel = (group, receive.peer, receive.rank, receive.call.tag)
        if receive.peer is None:
            send = self._messages.receive_from_anyone(receive, channel)
        else:
            send = self._messages.receive(receive, channel)
        return [] if send is None else self._meet(send, receive)

    def _meet(self, send: Operation, receive: Operation) -> list[Operation]:
        if not send.call.same_message(receive.call):
            self.mismatched_messages.append(Mismatch((send, receive), None))
            return []
        receive.peer = send.rank
        return self.complete_message(send, receive)

    def _post_collective(self, operation: Operation) -> list[Operation]:
        """Join the next collective of the group. Completes none of its calls or all."""
        group, rank = operation.call.group, operation.rank
        position = self._next_slot[group, rank]
        self._next_slot[group, rank] += 1
        slot = self._slots.setdefault((group, position), CollectiveSlot())
        slot.calls[rank] = operation
        first = next(iter(slot.calls.values()))
        slot.mismatched |= operation.call.signature != first.call.signature
        if slot.mismatched or len(slot.calls) < len(group.members):
            return []
        calls = [slot.calls[member] for member in group.members]
        if not self.complete_collective(calls, slot):
            return []
        del self._slots[group, position]
        return calls

    def forget_open(self) -> None:
        """Calls that have not met never will, and the next collectives of a group's members meet."""
        self._messages = MessageQueues()
        self._slots.clear()
        self.mismatched_messages.clear()
        for group in {group for group, _ in self._next_slot}:
            position = max(self._next_slot[group, member] for member in group.members)
            self._next_slot.update({(group, member): position for member in group.members})

    # --- Asking

    def mismatches(self) -> list[Mismatch]:
        """Everything that does not fit together: messages whose sizes differ, collectives that differ."""
        differing = [
            Mismatch(tuple(slot.calls.values()), position)
            for (_, position), slot in self._slots.items()
            if slot.mismatched
        ]
        return self.mismatched_messages + differing

    def pending(self, operation: Operation, waits_at: SourceLine | None = None) -> PendingCall:
        """An operation as a report shows it: for whom it waits, and to do what.

        waits_at: the line that the rank waits in, where that is not the line of the call.
        """
        call = operation.call
        if call.op == "recv":
            anyone = tuple(member for member in call.group.members if member != operation.rank)
            peers = anyone if operation.peer is None else (operation.peer,)
            expects = "send"
        elif call.op == "send":
            assert operation.peer is not None
            peers, expects = (operation.peer,), "receive"
        else:
            peers, expects = self._missing(operation), f"call {call.op}"
        detail, line = str(operation), call.line
        if waits_at not in (None, line):
            detail, line = f"{detail}, called at {line.place if line else '?'}", waits_at
        return PendingCall(operation.rank, call.op, peers, expects, detail, line)

    def unmatched(self) -> list[Operation]:
        """Operations that nothing ever matched, buffered sends too; those of lost ranks are left out."""
        calls = list(self._messages.waiting())
        calls.extend(call for slot in self._slots.values() for call in slot.calls.values())
        return sorted((call for call in calls if call.rank not in self.lost), key=lambda call: call.sequence)

    def events(self) -> list[Event]:
        """The calls that communicate as events."""
        return [operation.event() for operation in self.log if operation.call.op != NEW_GROUP]

    def _missing(self, operation: Operation) -> tuple[int, ...]:
        """Members of a collective that have not made the call."""
        group = operation.call.group
        for (each, _), slot in self._slots.items():
            if each is group and slot.calls.get(operation.rank) is operation:
                return tuple(r for r in group.members if r not in slot.calls or r in self.lost)
        return ()
