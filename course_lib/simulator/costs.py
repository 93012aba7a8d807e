"""What a communication call costs: messages and bytes of a rank, and seconds, by the usual algorithm.

The algorithms and their times (p ranks, n bytes, a link of latency alpha and bandwidth 1/beta):

    all_reduce           ring: reduce-scatter, then all-gather    2(p-1) alpha + 2 (p-1)/p n beta
    all_gather           ring                                      (p-1) alpha + (p-1) n beta
    reduce_scatter       ring                                      (p-1) alpha + (p-1)/p n beta
    broadcast, reduce    binomial tree                     ceil(log2 p) (alpha + n beta)
    gather, scatter      directly to or from the root              (p-1) (alpha + n beta)
    all_to_all           directly, in p-1 rounds                   (p-1) alpha + (p-1)/p n beta
    barrier              dissemination                     ceil(log2 p) alpha
    send, recv           one message                                     alpha + n beta

Sources: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH,
Int. J. High Performance Computing Applications 19(1), 2005 (trees, rings, all-to-all); P. Patarasuk, X. Yuan,
Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel and Distributed Computing
69(2), 2009 (the ring, and that 2(p-1)/p n is the least that any all-reduce can send); D. Hensgen, R. Finkel,
U. Manber, Two algorithms for barrier synchronization, Int. J. Parallel Programming 17(1), 1988
(dissemination). Times follow the Hockney model, see `course_lib.cluster`; the arithmetic of a reduction is
left out.

`nbytes` is always the payload of the tensor that the call was given: for all_gather this rank's shard, for
reduce_scatter and all_to_all the whole input, for gather and scatter one rank's part, for broadcast, reduce
and all_reduce the tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.cluster import Link


class CallTraffic(NamedTuple):
    """What one call makes one rank send and receive, in bytes, and how many messages it sends."""

    sent: int
    received: int
    messages: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How an operation is carried out.

    traffic: (nbytes, ranks, position) -> the traffic of the rank that many places after the root.
    seconds: (nbytes, ranks, link) -> time until the last rank is done.
    """

    traffic: Callable[[int, int, int], CallTraffic]
    seconds: Callable[[int, int, Link], float]


def traffic_of(operation: str, nbytes: int, ranks: int, rank: int = 0, root: int = 0) -> CallTraffic:
    """Traffic of one rank in one call of `operation` (its name in `torch.distributed`) over `ranks` ranks.

    rank, root: places in the group, from 0; they matter for rooted operations only. Bytes are rounded down
    where n does not divide by p.

    A coalesced call has the name and the costs of the same call on all its tensors together. Raises KeyError
    for an operation that is not in the table.
    """
    return _algorithm(operation).traffic(nbytes, ranks, (rank - root) % ranks)


def seconds_of(operation: str, nbytes: int, ranks: int, link: Link) -> float:
    """Time in seconds of `operation` over `ranks` ranks whose slowest connection is `link`.

    A message of n bytes takes `link.seconds(n)`; messages that an algorithm sends at once, on different
    links, take the time of one. Raises KeyError for an operation that is not in the table.
    """
    return _algorithm(operation).seconds(nbytes, ranks, link)


def uneven_all_to_all_traffic(
    sent_parts: Sequence[int], received_parts: Sequence[int], rank: int
) -> CallTraffic:
    """Traffic of an all_to_all whose parts differ: bytes for and from each rank of the group.

    The part that `rank` keeps for itself crosses no link.
    """
    return CallTraffic(
        sent=sum(sent_parts) - sent_parts[rank],
        received=sum(received_parts) - received_parts[rank],
        messages=len(sent_parts) - 1,
    )


def tree_rounds(ranks: int) -> int:
    """ceil(log2 p): the rounds of a binomial tree or of a dissemination barrier."""
    return (ranks - 1).bit_length()


def tree_children(position: int, ranks: int) -> tuple[int, ...]:
    """The positions that a position of a binomial tree sends to in a broadcast, the largest subtree first.

    A position's parent is itself without its lowest set bit (Thakur et al. 2005; so MPICH does it); so its
    children add one bit below that: with 8 ranks 0 sends to 4, 2, 1; then 4 to 6, 5; 2 to 3; 6 to 7.
    """
    lowest = position & -position if position else 1 << tree_rounds(ranks)
    steps = (1 << bit for bit in reversed(range(lowest.bit_length() - 1)))
    return tuple(position + step for step in steps if position + step < ranks)


def _algorithm(operation: str) -> Algorithm:
    return ALGORITHMS[operation.removesuffix("_coalesced")]


def _send_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    return CallTraffic(nbytes, 0, 1)


def _recv_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    return CallTraffic(0, nbytes, 0)


def _message_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return link.seconds(nbytes)


def _all_reduce_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    moved = 2 * (ranks - 1) * nbytes // ranks
    return CallTraffic(moved, moved, 2 * (ranks - 1))


def _all_reduce_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return 2 * _parts_seconds(nbytes, ranks, link)


def _all_gather_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    moved = (ranks - 1) * nbytes
    return CallTraffic(moved, moved, ranks - 1)


def _all_gather_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return (ranks - 1) * link.seconds(nbytes)


def _parts_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    """A p-th of the input in each of p-1 messages: the ring's reduce-scatter, the direct all-to-all."""
    moved = (ranks - 1) * nbytes // ranks
    return CallTraffic(moved, moved, ranks - 1)


def _parts_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)


def _broadcast_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    children = len(tree_children(position, ranks))
    return CallTraffic(children * nbytes, nbytes if position else 0, children)


def _reduce_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    """The broadcast's tree upside down."""
    sends = 1 if position else 0
    return CallTraffic(sends * nbytes, len(tree_children(position, ranks)) * nbytes, sends)


def _tree_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return tree_rounds(ranks) * link.seconds(nbytes)


def _gather_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    return CallTraffic(nbytes, 0, 1) if position else CallTraffic(0, (ranks - 1) * nbytes, 0)


def _scatter_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    return CallTraffic(0, nbytes, 0) if position else CallTraffic((ranks - 1) * nbytes, 0, ranks - 1)


def _root_link_seconds(nbytes: int, ranks: int, link: Link) -> float:
    """All messages pass through the root's link, one after another."""
    return (ranks - 1) * link.seconds(nbytes)


def _barrier_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    return CallTraffic(0, 0, tree_rounds(ranks))


def _barrier_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return tree_rounds(ranks) * link.seconds(0)


def _no_traffic(nbytes: int, ranks: int, position: int) -> CallTraffic:
    """Making a group is bookkeeping: it goes by way of the rendezvous, not over the links."""
    return CallTraffic(0, 0, 0)


def _no_seconds(nbytes: int, ranks: int, link: Link) -> float:
    return 0.0


_SEND = Algorithm(_send_traffic, _message_seconds)
_RECV = Algorithm(_recv_traffic, _message_seconds)
_ALL_GATHER = Algorithm(_all_gather_traffic, _all_gather_seconds)
_PARTS = Algorithm(_parts_traffic, _parts_seconds)
_BARRIER = Algorithm(_barrier_traffic, _barrier_seconds)

ALGORITHMS: dict[str, Algorithm] = {
    "send": _SEND,
    "recv": _RECV,
    "all_reduce": Algorithm(_all_reduce_traffic, _all_reduce_seconds),
    "all_gather": _ALL_GATHER,
    "all_gather_into_tensor": _ALL_GATHER,
    "reduce_scatter": _PARTS,
    "reduce_scatter_tensor": _PARTS,
    "all_to_all": _PARTS,
    "all_to_all_single": _PARTS,
    "broadcast": Algorithm(_broadcast_traffic, _tree_seconds),
    "reduce": Algorithm(_reduce_traffic, _tree_seconds),
    "gather": Algorithm(_gather_traffic, _root_link_seconds),
    "scatter": Algorithm(_scatter_traffic, _root_link_seconds),
    "barrier": _BARRIER,
    "monitored_barrier": _BARRIER,
    "new_group": Algorithm(_no_traffic, _no_seconds),
}
"""Operation, by its name in `torch.distributed` -> its algorithm."""
