"""Which calls of real ranks belong together, as far as their logs tell."""

from collections import defaultdict
from collections.abc import Sequence

from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.matching import CallMatcher, Channel, CollectiveSlot, Mismatch


class ObservedNetwork(CallMatcher):
    """Calls match as they do in the simulator, but nothing is moved or timed.

    An operation is `done` once its counterpart exists: then it will complete without anyone else's doing.
    Which send a receive from anyone meets is known when it is over, and not before: until then it meets none,
    and is `done` once there is a send for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._from_anyone: defaultdict[Channel, list[Operation]] = defaultdict(list)
        """Receives that are not over, by their channels without a source."""

    def complete_message(self, send: Operation, receive: Operation) -> list[Operation]:
        """Both will complete."""
        send.done = receive.done = True
        return []

    def complete_collective(self, calls: Sequence[Operation], slot: CollectiveSlot) -> bool:
        """All will complete."""
        for call in calls:
            call.done = True
        return True

    def complete_from_anyone(self, receive: Operation, source: int | None) -> None:
        """A receive from anyone is over. source: who sent it; None if its rank has not asked."""
        channel = _without_source(receive, receive.rank)
        self._from_anyone[channel].remove(receive)
        receive.peer = source
        super()._post_receive(receive)
        self._promise(channel)

    def forget_open(self) -> None:
        """Calls that have not met never will."""
        super().forget_open()
        self._from_anyone.clear()

    def refused_from_anyone(self, ranks: Sequence[int]) -> list[Mismatch]:
        """Receives from anyone of these ranks that no send fits, where there are sends."""
        found = []
        for channel, receives in self._from_anyone.items():
            sends = [send for _, send in self._messages.offered_to(channel)]
            for receive in receives if sends else ():
                if receive.rank in ranks and not any(send.call.same_message(receive.call) for send in sends):
                    found.append(Mismatch((sends[0], receive), None))
        return found

    def unmatched(self) -> list[Operation]:
        """Operations that nothing ever matched, and that nothing could."""
        receives = [receive for waiting in self._from_anyone.values() for receive in waiting]
        return [call for call in (*super().unmatched(), *receives) if not call.done]

    def _post_send(self, send: Operation) -> list[Operation]:
        completed = super()._post_send(send)
        self._promise(_without_source(send, send.peer))
        return completed

    def _post_receive(self, receive: Operation) -> list[Operation]:
        if receive.peer is not None:
            return super()._post_receive(receive)
        channel = _without_source(receive, receive.rank)
        self._from_anyone[channel].append(receive)
        self._promise(channel)
        return []

    def _promise(self, channel: Channel) -> None:
        """Of the receives from anyone and the sends for them, as many will complete as there are of both."""
        if channel not in self._from_anyone:
            return
        receives = self._from_anyone[channel]
        sends = [send for _, send in self._messages.offered_to(channel)]
        for number, call in (*enumerate(receives), *enumerate(sends)):
            call.done = number < min(len(receives), len(sends))


def _without_source(message: Operation, target: int | None) -> Channel:
    """Where a message waits for a receive from anyone, or such a receive for a message."""
    return (message.call.group, None, target, message.call.tag)
