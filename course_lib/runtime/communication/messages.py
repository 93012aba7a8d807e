"""Which receive got which send: pairs of point-to-point events."""

from collections.abc import Iterable
from dataclasses import dataclass

from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.matching import MessageQueues

RECEIVES = frozenset({"recv", "irecv"})


@dataclass(frozen=True, slots=True)
class Message:
    """A send and the receive that took it."""

    send: Event
    receive: Event

    @property
    def departure(self) -> float:
        """When the message can have left at the earliest, in seconds: within the send.

        A send that waits for its receiver starts to move data when the receive is posted; a buffered one has
        returned by then.
        """
        return max(self.send.start, min(self.receive.start, self.send.end))

    @property
    def arrival(self) -> float:
        """When the receiver had the data, in seconds."""
        return self.receive.end


def messages(events: Iterable[Event]) -> tuple[Message, ...]:
    """Pair sends with receives, in the order of the sends.

    A call without a partner is left out, and a message that never arrived.
    """
    queues: MessageQueues[Event] = MessageQueues()
    pairs = []
    for event in sorted(events, key=lambda each: each.sequence):
        if event.kind is not Kind.POINT_TO_POINT:
            continue
        if event.op in RECEIVES:
            send = queues.receive(event, (event.group, event.peer, event.rank, event.tag))
            pairs.extend([] if send is None else [Message(send, event)])
        else:
            receive = queues.send(event, (event.group, event.rank, event.peer, event.tag))
            pairs.extend([] if receive is None else [Message(event, receive)])
    pairs.sort(key=lambda pair: pair.send.sequence)
    return tuple(pair for pair in pairs if pair.receive.finished)
