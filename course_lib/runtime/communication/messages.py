"""Which receive got which send: pairs of point-to-point events."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from course_lib.runtime.communication.events import Event, Kind

SENDS = frozenset({"send", "isend"})
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

    Messages between two ranks do not overtake each other: the k-th send from a to b in a group, with a tag,
    goes to the k-th such receive of b from a. A call without a partner is left out, and a message that never
    arrived.
    """
    point_to_point = [event for event in events if event.kind is Kind.POINT_TO_POINT]
    receives: defaultdict[tuple[object, ...], deque[Event]] = defaultdict(deque)
    for event in sorted(point_to_point, key=lambda e: e.sequence):
        if event.op in RECEIVES:
            receives[event.peer, event.rank, event.group, event.tag].append(event)
    pairs = []
    for event in sorted(point_to_point, key=lambda e: e.sequence):
        offered = receives[event.rank, event.peer, event.group, event.tag]
        if event.op in SENDS and offered:
            pairs.append(Message(event, offered.popleft()))
    return tuple(pair for pair in pairs if pair.receive.finished)
