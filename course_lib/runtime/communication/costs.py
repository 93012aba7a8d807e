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
(dissemination). Times follow the Hockney model, see `course_lib.cluster.topology`; the arithmetic of a
reduction is left out.

Those are the times where all links are alike. Where they are not, the same messages are timed one by one,
from `rounds_of`.

`nbytes` is always the payload of the tensor that the call was given: for all_gather this rank's shard, for
reduce_scatter and all_to_all the whole input, for gather and scatter one rank's part, for broadcast, reduce
and all_reduce the tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.cluster.topology import Link


class CallTraffic(NamedTuple):
    """What one call makes one rank send and receive, in bytes, and how many messages it sends."""

    sent: int
    received: int
    messages: int


class Round(NamedTuple):
    """Messages that an algorithm sends at the same time, `times` times in a row.

    messages: (source, target), as places after the root. share: the bytes of one, as a part of the payload.
    """

    messages: tuple[tuple[int, int], ...]
    share: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How an operation is carried out.

    traffic: (nbytes, ranks, position) -> the traffic of the rank that many places after the root.
    seconds: (nbytes, ranks, link) -> time until the last rank is done, where all links are alike.
    rounds: ranks -> the messages, round by round.
    """

    traffic: Callable[[int, int, int], CallTraffic]
    seconds: Callable[[int, int, Link], float]
    rounds: Callable[[int], Iterator[Round]]


def traffic_of(operation: str, nbytes: int, ranks: int, rank: int = 0, root: int = 0) -> CallTraffic:
    """Traffic of one rank in one call of `operation` (its name in `torch.distributed`) over `ranks` ranks.

    rank, root: places in the group, from 0; they matter for rooted operations only. Bytes are rounded down
    where n does not divide by p.

    A coalesced call has the name and the costs of the same call on all its tensors together. Raises KeyError
    for an operation that is not in the table.
    """
    return _algorithm(operation).traffic(nbytes, ranks, (rank - root) % ranks)


def seconds_of(operation: str, nbytes: int, ranks: int, link: Link) -> float:
    """Time in seconds of `operation` over `ranks` ranks that are all connected by links like `link`.

    A message of n bytes takes `link.seconds(n)`; messages that an algorithm sends at once, on different
    links, take the time of one. Raises KeyError for an operation that is not in the table.
    """
    return _algorithm(operation).seconds(nbytes, ranks, link)


def rounds_of(operation: str, ranks: int) -> Iterator[Round]:
    """The messages of `operation` over `ranks` ranks, round by round: a round begins when the last is over.

    Raises KeyError for an operation that is not in the table.
    """
    return _algorithm(operation).rounds(ranks)


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


def _message_rounds(ranks: int) -> Iterator[Round]:
    yield Round(((0, 1),), 1.0)


def _shifted(ranks: int, distance: int) -> tuple[tuple[int, int], ...]:
    """Every rank to the one so many places on."""
    return tuple((place, (place + distance) % ranks) for place in range(ranks))


def _all_reduce_rounds(ranks: int) -> Iterator[Round]:
    yield Round(_shifted(ranks, 1), 1 / ranks, 2 * (ranks - 1))


def _all_gather_rounds(ranks: int) -> Iterator[Round]:
    yield Round(_shifted(ranks, 1), 1.0, ranks - 1)


def _reduce_scatter_rounds(ranks: int) -> Iterator[Round]:
    yield Round(_shifted(ranks, 1), 1 / ranks, ranks - 1)


def _all_to_all_rounds(ranks: int) -> Iterator[Round]:
    for distance in range(1, ranks):
        yield Round(_shifted(ranks, distance), 1 / ranks)


def _broadcast_rounds(ranks: int) -> Iterator[Round]:
    for bit in reversed(range(tree_rounds(ranks))):
        senders = range(0, ranks - (1 << bit), 2 << bit)
        yield Round(tuple((place, place + (1 << bit)) for place in senders), 1.0)


def _reduce_rounds(ranks: int) -> Iterator[Round]:
    for downwards in reversed(list(_broadcast_rounds(ranks))):
        yield Round(tuple((child, parent) for parent, child in downwards.messages), 1.0)


def _gather_rounds(ranks: int) -> Iterator[Round]:
    for place in range(1, ranks):
        yield Round(((place, 0),), 1.0)


def _scatter_rounds(ranks: int) -> Iterator[Round]:
    for place in range(1, ranks):
        yield Round(((0, place),), 1.0)


def _barrier_rounds(ranks: int) -> Iterator[Round]:
    for bit in range(tree_rounds(ranks)):
        yield Round(_shifted(ranks, 1 << bit), 0.0)


def _no_rounds(ranks: int) -> Iterator[Round]:
    return iter(())


_SEND = Algorithm(_send_traffic, _message_seconds, _message_rounds)
_RECV = Algorithm(_recv_traffic, _message_seconds, _message_rounds)
_ALL_GATHER = Algorithm(_all_gather_traffic, _all_gather_seconds, _all_gather_rounds)
_REDUCE_SCATTER = Algorithm(_parts_traffic, _parts_seconds, _reduce_scatter_rounds)
_ALL_TO_ALL = Algorithm(_parts_traffic, _parts_seconds, _all_to_all_rounds)
_BARRIER = Algorithm(_barrier_traffic, _barrier_seconds, _barrier_rounds)

ALGORITHMS: dict[str, Algorithm] = {
    "send": _SEND,
    "recv": _RECV,
    "all_reduce": Algorithm(_all_reduce_traffic, _all_reduce_seconds, _all_reduce_rounds),
    "all_gather": _ALL_GATHER,
    "all_gather_into_tensor": _ALL_GATHER,
    "reduce_scatter": _REDUCE_SCATTER,
    "reduce_scatter_tensor": _REDUCE_SCATTER,
    "all_to_all": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Algorithm(_broadcast_traffic, _tree_seconds, _broadcast_rounds),
    "reduce": Algorithm(_reduce_traffic, _tree_seconds, _reduce_rounds),
    "gather": Algorithm(_gather_traffic, _root_link_seconds, _gather_rounds),
    "scatter": Algorithm(_scatter_traffic, _root_link_seconds, _scatter_rounds),
    "barrier": _BARRIER,
    "monitored_barrier": _BARRIER,
    "new_group": Algorithm(_no_traffic, _no_seconds, _no_rounds),
}
"""Operation, by its name in `torch.distributed` -> its algorithm."""
