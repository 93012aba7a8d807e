"""Costs of communication calls, against what the papers say of the algorithms."""

import math

import pytest

from course_lib import Link
from course_lib.runtime.communication.costs import (
    ALGORITHMS,
    seconds_of,
    traffic_of,
    tree_children,
    tree_rounds,
    uneven_all_to_all_traffic,
)

COLLECTIVES = [name for name in ALGORITHMS if name not in ("send", "recv")]
LINK = Link(latency=3e-6, bandwidth=2e9)


@pytest.mark.parametrize("operation", COLLECTIVES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_what_is_sent_is_received(operation: str, ranks: int) -> None:
    for root in range(ranks):
        traffic = [traffic_of(operation, 120 * ranks, ranks, rank, root) for rank in range(ranks)]
        assert sum(each.sent for each in traffic) == sum(each.received for each in traffic)


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_a_group_of_one_communicates_nothing_and_takes_no_time(operation: str) -> None:
    assert traffic_of(operation, 1000, 1) == (0, 0, 0)
    assert seconds_of(operation, 1000, 1, LINK) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_the_ring_sends_the_least_that_an_all_reduce_can(ranks: int) -> None:
    nbytes = 1000 * ranks
    traffic = traffic_of("all_reduce", nbytes, ranks)
    # Patarasuk and Yuan 2009, theorem 1.
    assert traffic.sent == traffic.received == 2 * (ranks - 1) * nbytes // ranks
    assert traffic.messages == 2 * (ranks - 1)
    # It is a reduce-scatter, and an all-gather of what that leaves on each rank.
    halves = [
        traffic_of("reduce_scatter", nbytes, ranks),
        traffic_of("all_gather", nbytes // ranks, ranks),
    ]
    assert traffic == tuple(map(sum, zip(*halves, strict=True)))
    assert seconds_of("all_reduce", nbytes, ranks, LINK) == pytest.approx(
        seconds_of("reduce_scatter", nbytes, ranks, LINK)
        + seconds_of("all_gather", nbytes // ranks, ranks, LINK)
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 13, 64])
def test_a_binomial_tree_reaches_every_rank_once_in_the_fewest_rounds(ranks: int) -> None:
    round_of = {0: 0}
    for parent in range(ranks):
        # A rank sends to one child a round, beginning in the round after the one that reached it.
        for number, child in enumerate(tree_children(parent, ranks), start=1):
            assert child not in round_of
            round_of[child] = round_of[parent] + number
    assert sorted(round_of) == list(range(ranks))
    assert max(round_of.values()) <= tree_rounds(ranks) == math.ceil(math.log2(ranks))


def test_the_tree_of_eight_is_the_one_in_the_text() -> None:
    assert [tree_children(position, 8) for position in range(8)] == [
        (4, 2, 1),
        (),
        (3,),
        (),
        (6, 5),
        (),
        (7,),
        (),
    ]


def test_the_root_decides_who_sends() -> None:
    # Rank 2 of 4 as the root has two children, and rank 0, opposite to it, one.
    assert [traffic_of("broadcast", 10, 4, rank, 2).messages for rank in range(4)] == [1, 0, 2, 0]
    assert [traffic_of("reduce", 10, 4, rank, 2).messages for rank in range(4)] == [1, 1, 0, 1]
    assert [traffic_of("gather", 10, 4, rank, 1).received for rank in range(4)] == [0, 30, 0, 0]
    assert [traffic_of("scatter", 10, 4, rank, 1).sent for rank in range(4)] == [0, 30, 0, 0]


def test_times_are_those_of_the_table() -> None:
    p, n = 4, 4_000_000
    alpha, beta = LINK.latency, 1 / LINK.bandwidth
    expected = {
        "all_reduce": 2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta,
        "all_gather": (p - 1) * (alpha + n * beta),
        "reduce_scatter_tensor": (p - 1) * alpha + (p - 1) / p * n * beta,
        "broadcast": 2 * (alpha + n * beta),
        "gather": (p - 1) * (alpha + n * beta),
        "all_to_all": (p - 1) * alpha + (p - 1) / p * n * beta,
        "barrier": 2 * alpha,
        "send": alpha + n * beta,
    }
    for operation, seconds in expected.items():
        assert seconds_of(operation, n, p, LINK) == pytest.approx(seconds)


def test_a_coalesced_call_costs_what_its_tensors_cost_together() -> None:
    assert traffic_of("all_reduce_coalesced", 800, 4) == traffic_of("all_reduce", 800, 4)


def test_a_rank_keeps_its_own_part_of_an_uneven_exchange() -> None:
    assert uneven_all_to_all_traffic((5, 10, 20), (5, 40, 80), 0) == (30, 120, 2)
