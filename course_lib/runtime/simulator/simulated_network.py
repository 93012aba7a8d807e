"""What calls of simulated ranks come to once they have met: data that moves, and ends in virtual time.

As long as operations are posted in the order of their virtual time, which `VirtualTime` sees to, this is an
exact discrete-event simulation. When each ends says `course_lib.runtime.simulator.network_model`.
"""

from collections.abc import Sequence

from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.call import Operation
from course_lib.runtime.communication.matching import CallMatcher, CollectiveSlot
from course_lib.runtime.communication.semantics import PartsDiffer, check_exchange, move
from course_lib.runtime.simulator.network_model import NEVER, Timing


class SimulatedNetwork(CallMatcher):
    """All messages and collectives of one run on `cluster`."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.timing = Timing(cluster, ranks)
        self._never_over: list[Operation] = []
        """Calls that met their other side, and that a lost rank keeps from ending."""

    def post(self, operation: Operation) -> list[Operation]:
        """Take in a call at the time that it is posted. Returns the operations that this completes."""
        if operation.outputs and operation.call.asynchronous:
            _stage(operation)
        return super().post(operation)

    def buffer(self, send: Operation) -> bool:
        """A small message leaves at once: the sender may go on and reuse its tensor."""
        call = send.call
        if call.nbytes > self.cluster.eager_limit:
            return False
        if not call.shape_only:
            send.inputs = tuple(tensor.detach().clone() for tensor in send.inputs)
        assert send.peer is not None
        send.done, send.end = True, send.posted
        send.arrival = self.timing.message(send.rank, send.peer, call.nbytes, send.posted)
        return True

    def complete_message(self, send: Operation, receive: Operation) -> list[Operation]:
        """Move the data. A lost rank keeps both from ending."""
        call, arrival = send.call, send.arrival
        if not send.done:
            ready = max(send.posted, receive.posted)
            arrival = self.timing.message(send.rank, receive.rank, call.nbytes, ready)
        if arrival == NEVER:
            self._never_over.extend(each for each in (send, receive) if not each.done)
            self._lose((send.rank, receive.rank))
            return []
        if not call.shape_only:
            _copy(send.inputs[0], receive.outputs[0])
        receive.done, receive.end = True, max(arrival, receive.posted)
        send.inputs = ()
        if not receive.landing:
            receive.outputs = ()
        if send.done:
            return [receive]
        send.done = True
        send.end = send.posted if call.nbytes <= self.cluster.eager_limit else arrival
        return [send, receive]

    def complete_collective(self, calls: Sequence[Operation], slot: CollectiveSlot) -> bool:
        """Move the data; all members end together."""
        call = calls[0].call
        try:
            if call.shape_only:
                check_exchange(calls)
            else:
                move(calls)
        except PartsDiffer:
            slot.mismatched = True
            return False
        payload = max(each.call.nbytes for each in calls)
        last = max(each.posted for each in calls)
        end = self.timing.collective(call.op, payload, call.group.members, last, call.root)
        if end == NEVER:
            self._lose(call.group.members)
            return False
        for each in calls:
            each.done, each.end, each.inputs = True, end, ()
            if not each.landing:
                each.outputs = ()
        return True

    def deliver(self, operation: Operation) -> None:
        """Fill the caller's tensors, now that it has waited for an asynchronous call."""
        if not operation.call.shape_only:
            for target, source in zip(operation.landing, operation.outputs, strict=True):
                target.detach().copy_(source)
        operation.landing = operation.outputs = ()

    def unmatched(self) -> list[Operation]:
        """Operations that never ended, or that nothing ever matched; those of lost ranks are left out."""
        open_ = [*super().unmatched(), *(call for call in self._never_over if call.rank not in self.lost)]
        return sorted(open_, key=lambda operation: operation.sequence)

    def not_waited_for(self) -> list[Operation]:
        """Asynchronous calls that are over and that nobody has asked for."""
        return [each for each in self.log if each.call.asynchronous and each.done and not each.awaited]

    def _lose(self, members: Sequence[int]) -> None:
        """Remember who is gone before these could end what they are at."""
        first = self.timing.lost_at(*members)
        self.lost.update(rank for rank in members if self.timing.lost_at(rank) == first)


def _stage(operation: Operation) -> None:
    """Keep an asynchronous call's results apart until it is waited for, as a real network might.

    Otherwise a program that never waits would find its data there, which elsewhere it finds only sometimes.
    """
    operation.landing = operation.outputs
    if not operation.call.shape_only:
        operation.outputs = tuple(tensor.detach().clone() for tensor in operation.landing)


def _copy(source: Tensor, target: Tensor) -> None:
    # Detached, so that no history is recorded, and cheaper than no_grad.
    target = target.detach()
    target.copy_(source.detach() if source.shape == target.shape else source.detach().view_as(target))
