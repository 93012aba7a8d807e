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
from dataclasses import dataclass, replace
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


def _both_ways(nbytes: int, messages: int) -> CallTraffic:
    """As many bytes come as go."""
    return CallTraffic(nbytes, nbytes, messages)


def _one_way(nbytes: int, receives: int, sends: int) -> CallTraffic:
    """Of whole payloads."""
    return CallTraffic(sends * nbytes, receives * nbytes, sends)


def _parts_seconds(nbytes: int, ranks: int, link: Link) -> float:
    """p-1 messages of a p-th each."""
    return (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)


def _shifted(ranks: int, distance: int) -> tuple[tuple[int, int], ...]:
    """Every rank to the one so many places on."""
    return tuple((place, (place + distance) % ranks) for place in range(ranks))


def _ring(ranks: int, share: float, times: int) -> Iterator[Round]:
    yield Round(_shifted(ranks, 1), share, times)


def _tree_downwards(ranks: int) -> Iterator[Round]:
    for bit in reversed(range(tree_rounds(ranks))):
        senders = range(0, ranks - (1 << bit), 2 << bit)
        yield Round(tuple((place, place + (1 << bit)) for place in senders), 1.0)


def _tree_upwards(ranks: int) -> Iterator[Round]:
    for downwards in reversed(list(_tree_downwards(ranks))):
        yield Round(tuple((child, parent) for parent, child in downwards.messages), 1.0)


# Arguments: n bytes, p ranks, i places after the root.

_SEND = Algorithm(
    traffic=lambda n, p, i: _one_way(n, 0, 1),
    seconds=lambda n, p, link: link.seconds(n),
    rounds=lambda p: iter([Round(((0, 1),), 1.0)]),
)
_ALL_GATHER = Algorithm(
    traffic=lambda n, p, i: _both_ways((p - 1) * n, p - 1),
    seconds=lambda n, p, link: (p - 1) * link.seconds(n),
    rounds=lambda p: _ring(p, 1.0, p - 1),
)
_REDUCE_SCATTER = Algorithm(
    traffic=lambda n, p, i: _both_ways((p - 1) * n // p, p - 1),
    seconds=_parts_seconds,
    rounds=lambda p: _ring(p, 1 / p, p - 1),
)
_ALL_TO_ALL = replace(
    _REDUCE_SCATTER, rounds=lambda p: (Round(_shifted(p, distance), 1 / p) for distance in range(1, p))
)
# All messages pass through the root's link, one after another.
_GATHER = Algorithm(
    traffic=lambda n, p, i: _one_way(n, 0, 1) if i else _one_way(n, p - 1, 0),
    seconds=lambda n, p, link: (p - 1) * link.seconds(n),
    rounds=lambda p: (Round(((place, 0),), 1.0) for place in range(1, p)),
)
_BARRIER = Algorithm(
    traffic=lambda n, p, i: CallTraffic(0, 0, tree_rounds(p)),
    seconds=lambda n, p, link: tree_rounds(p) * link.seconds(0),
    rounds=lambda p: (Round(_shifted(p, 1 << bit), 0.0) for bit in range(tree_rounds(p))),
)

ALGORITHMS: dict[str, Algorithm] = {
    "send": _SEND,
    "recv": replace(_SEND, traffic=lambda n, p, i: _one_way(n, 1, 0)),
    "all_reduce": Algorithm(
        traffic=lambda n, p, i: _both_ways(2 * (p - 1) * n // p, 2 * (p - 1)),
        seconds=lambda n, p, link: 2 * _parts_seconds(n, p, link),
        rounds=lambda p: _ring(p, 1 / p, 2 * (p - 1)),
    ),
    "all_gather": _ALL_GATHER,
    "all_gather_into_tensor": _ALL_GATHER,
    "reduce_scatter": _REDUCE_SCATTER,
    "reduce_scatter_tensor": _REDUCE_SCATTER,
    "all_to_all": _ALL_TO_ALL,
    "all_to_all_single": _ALL_TO_ALL,
    "broadcast": Algorithm(
        traffic=lambda n, p, i: _one_way(n, min(i, 1), len(tree_children(i, p))),
        seconds=lambda n, p, link: tree_rounds(p) * link.seconds(n),
        rounds=_tree_downwards,
    ),
    "reduce": Algorithm(
        traffic=lambda n, p, i: _one_way(n, len(tree_children(i, p)), min(i, 1)),
        seconds=lambda n, p, link: tree_rounds(p) * link.seconds(n),
        rounds=_tree_upwards,
    ),
    "gather": _GATHER,
    "gather_single": _GATHER,
    # As a gather, the other way.
    "scatter": Algorithm(
        traffic=lambda n, p, i: _one_way(n, 1, 0) if i else _one_way(n, 0, p - 1),
        seconds=lambda n, p, link: (p - 1) * link.seconds(n),
        rounds=lambda p: (Round(((0, place),), 1.0) for place in range(1, p)),
    ),
    "barrier": _BARRIER,
    "monitored_barrier": _BARRIER,
    # Making a group is bookkeeping: it goes by way of the rendezvous, not over the links.
    "new_group": Algorithm(lambda n, p, i: CallTraffic(0, 0, 0), lambda n, p, link: 0.0, lambda p: iter(())),
}
"""Operation, by its name in `torch.distributed` -> its algorithm."""
