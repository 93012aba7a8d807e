"""The rules of time: shared cards, slow and lost parts, jitter, and collectives on clusters of every kind."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.collectives import reference
from course_lib import BadLaunch, Cluster, Deadlock, Link, RankLost, launch
from course_lib.cluster import presets
from course_lib.figures.chrome_trace import trace_events
from course_lib.runtime.communication.costs import ALGORITHMS, rounds_of, seconds_of, traffic_of
from course_lib.runtime.communication.messages import messages
from course_lib.runtime.simulator.network_model import NEVER, Timing

ALPHA, BETA = 1e-5, 1e-9
LINK = Link(ALPHA, 1 / BETA)
FAST = Link(1e-6, 1e11)
MEGABYTE = 1_000_000
MESSAGE = ALPHA + MEGABYTE * BETA


def pairs_of_nodes(cards: int | None, devices: int = 4) -> Cluster:
    """Two nodes whose devices share so many cards."""
    return Cluster(2, devices, intra_node=FAST, inter_node=LINK, cards_per_node=cards)


def send_across(nbytes: int) -> None:
    """Each rank of the first half sends to its partner in the second."""
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    x = torch.zeros(nbytes, dtype=torch.uint8)
    dist.send(x, rank + half) if rank < half else dist.recv(x, rank - half)


# --- Cards


@pytest.mark.parametrize(("cards", "sharers"), [(None, 1), (4, 1), (2, 2), (1, 4)])
def test_transfers_through_one_card_take_the_time_of_all_their_bytes(cards: int | None, sharers: int) -> None:
    run = launch(send_across, MEGABYTE, cluster=pairs_of_nodes(cards))
    assert run.seconds == pytest.approx(ALPHA + sharers * MEGABYTE * BETA)


def test_transfers_through_one_card_take_turns() -> None:
    run = launch(send_across, MEGABYTE, cluster=pairs_of_nodes(1))
    ends = sorted(event.end for event in run.events if event.op == "recv")
    assert ends == pytest.approx([ALPHA + k * MEGABYTE * BETA for k in (1, 2, 3, 4)])
    # The trace shows the same: whole nanoseconds, an arrow a message, none that arrives before it left.
    flows = [each for each in trace_events(run.events, run.cluster, run.ranks) if each["ph"] in ("s", "f")]
    assert len(flows) == 8


def test_the_receivers_card_is_shared_like_the_senders() -> None:
    timing = Timing(Cluster(3, 2, inter_node=LINK, cards_per_node=1), 6)
    ends = [timing.message(source, target, MEGABYTE, 0.0) for source, target in ((0, 4), (2, 5))]
    assert ends == pytest.approx([MESSAGE, MESSAGE + MEGABYTE * BETA])


def test_what_goes_out_does_not_wait_for_what_comes_in() -> None:
    timing = Timing(Cluster(2, 2, inter_node=LINK, cards_per_node=1), 4)
    ends = [timing.message(source, target, MEGABYTE, 0.0) for source, target in ((0, 2), (3, 1))]
    assert ends == pytest.approx([MESSAGE, MESSAGE])


def test_messages_within_a_node_pass_no_card() -> None:
    timing = Timing(pairs_of_nodes(1), 8)
    assert timing.message(0, 4, MEGABYTE, 0.0) == pytest.approx(MESSAGE)
    assert timing.message(2, 3, MEGABYTE, 0.0) == pytest.approx(FAST.seconds(MEGABYTE))


@pytest.mark.parametrize("cards", [None, 1])
def test_who_can_go_does_not_stand_behind_who_waits(cards: int | None) -> None:
    # 0 sends to 4; 2 sends to 4, which is busy, and to 6, which is not: that one goes first.
    timing = Timing(Cluster(4, 2, inter_node=LINK, cards_per_node=cards), 8)
    ends = [timing.message(source, target, MEGABYTE, 0.0) for source, target in ((0, 4), (2, 4), (2, 6))]
    assert ends == pytest.approx([MESSAGE, MESSAGE + MEGABYTE * BETA, MESSAGE])


def test_no_two_messages_are_on_one_way_at_once() -> None:
    # Whatever is sent between whom: what passes a way never overlaps, and nobody starts before it is ready.
    cluster = Cluster(3, 4, intra_node=FAST, inter_node=LINK, cards_per_node=2)
    timing, generator = Timing(cluster, 12), torch.Generator().manual_seed(3)
    busy: dict[object, list[tuple[float, float]]] = {}
    ready = 0.0
    for _ in range(400):
        source, target, nbytes = (int(torch.randint(n, (), generator=generator)) for n in (12, 11, 10**6))
        target += target >= source
        ready += float(torch.rand((), generator=generator)) * 2e-4
        within = cluster.node_of(source) == cluster.node_of(target)
        link = FAST if within else LINK
        start = timing.message(source, target, nbytes, ready) - link.seconds(nbytes)
        assert start >= ready - 1e-12
        cards = () if within else (("out", cluster.card_of(source)), ("in", cluster.card_of(target)))
        for way in (("from", source), ("to", target), *cards):
            busy.setdefault(way, []).append((start, start + nbytes / link.bandwidth))
    for times in busy.values():
        times.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(times))


def test_devices_next_to_each_other_share_a_card() -> None:
    cluster = Cluster(2, 8, cards_per_node=4)
    assert [cluster.card_of(rank) for rank in range(16)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]


# --- Collectives


@pytest.mark.parametrize("operation", [name for name in ALGORITHMS if name not in ("send", "recv")])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 12])
def test_rounds_take_the_time_of_the_formula_where_links_are_alike(operation: str, ranks: int) -> None:
    nbytes = 1000 * ranks
    # A jitter of nothing makes the timing go by rounds.
    by_rounds = Timing(Cluster(nodes=ranks, inter_node=LINK).with_jitter(1, 0), ranks)
    members = tuple(range(ranks))
    for root in members:
        begin = by_rounds.collective("barrier", 0, members, 0.0)
        end = by_rounds.collective(operation, nbytes, members, begin, root)
        assert end - begin == pytest.approx(seconds_of(operation, nbytes, ranks, LINK), abs=1e-15)


@pytest.mark.parametrize("operation", [name for name in ALGORITHMS if name not in ("send", "recv")])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_rounds_carry_the_bytes_and_messages_of_the_traffic(operation: str, ranks: int) -> None:
    nbytes, sent, messages = 120 * ranks, [0.0] * ranks, [0] * ranks
    for each in rounds_of(operation, ranks):
        for source, _ in each.messages:
            sent[source] += each.times * each.share * nbytes
            messages[source] += each.times
    traffic = [traffic_of(operation, nbytes, ranks, rank) for rank in range(ranks)]
    assert sent == pytest.approx([each.sent for each in traffic])
    if operation != "barrier" and "monitored" not in operation:
        assert messages == [each.messages for each in traffic]


def collective_seconds(operation: str, cluster: Cluster, nbytes: int = MEGABYTE, root: int = 0) -> float:
    members = tuple(range(cluster.size))
    return Timing(cluster, cluster.size).collective(operation, nbytes, members, 0.0, root)


def test_a_tree_pays_for_the_links_that_its_messages_cross() -> None:
    # Of three rounds on two nodes of four only the first, 0 to 4, leaves a node.
    cluster = pairs_of_nodes(None)
    expected = LINK.seconds(MEGABYTE) + 2 * FAST.seconds(MEGABYTE)
    assert collective_seconds("broadcast", cluster) == pytest.approx(expected)


def test_a_ring_crosses_each_card_once_and_an_all_to_all_with_all_devices() -> None:
    own, shared = pairs_of_nodes(None), pairs_of_nodes(1)
    assert collective_seconds("all_reduce", own) == pytest.approx(collective_seconds("all_reduce", shared))
    part = MEGABYTE / 8
    # At distance k, min(k, 8 - k) of a node's 4 messages leave it and share its card.
    expected = sum(ALPHA + min(k, 8 - k) * part * BETA for k in range(1, 8))
    assert collective_seconds("all_to_all", shared) == pytest.approx(expected)


@pytest.mark.parametrize("disturbed", ["slow node", "slow link"])
def test_one_slow_part_slows_a_whole_ring(disturbed: str) -> None:
    cluster = Cluster(nodes=8, inter_node=LINK)
    slow = cluster.with_slow_node(3, 10) if disturbed == "slow node" else cluster.with_slow_link(3, 4, 10)
    assert collective_seconds("all_reduce", slow) == pytest.approx(
        10 * collective_seconds("all_reduce", cluster)
    )
    # A link that no message of the algorithm crosses slows nothing.
    aside = cluster.with_slow_link(0, 4, 10)
    assert collective_seconds("all_reduce", aside) == collective_seconds("all_reduce", cluster)


def test_groups_that_share_a_card_share_its_bytes() -> None:
    def rails() -> None:
        # Rank i of each node all-reduces with its partner on the other node.
        groups = [dist.new_group([place, place + 4]) for place in range(4)]
        dist.all_reduce(torch.ones(MEGABYTE // 4), group=groups[dist.get_rank() % 4])

    own, shared = (launch(rails, cluster=pairs_of_nodes(cards)).seconds for cards in (None, 1))
    assert own == pytest.approx(2 * ALPHA + MEGABYTE * BETA)
    assert shared == pytest.approx(2 * ALPHA + 4 * MEGABYTE * BETA)


# --- Disturbances


def test_a_slow_link_slows_both_ways_and_nobody_else() -> None:
    timing = Timing(Cluster(nodes=4, inter_node=LINK).with_slow_link(1, 2, 5), 4)
    ends = [timing.message(*pair, MEGABYTE, 0.0) for pair in ((1, 2), (2, 1), (0, 3), (3, 0))]
    assert ends == pytest.approx([5 * MESSAGE, 5 * MESSAGE, MESSAGE, MESSAGE])
    # The bad cable takes one message at a time, while the ranks at its ends go on with others.
    assert timing.message(1, 2, MEGABYTE, 0.0) == pytest.approx(5 * MESSAGE + 5 * MEGABYTE * BETA)
    assert timing.message(1, 3, MEGABYTE, 0.0) <= 4 * MESSAGE


def test_a_straggler_computes_longer() -> None:
    cluster = Cluster(devices_per_node=3, flops=1e9, memory_bandwidth=1e12)

    def product() -> None:
        torch.ones(100, 100) @ torch.ones(100, 100)

    ends = [0.0] * 3
    for event in launch(product, cluster=cluster.with_straggler(1, 3)).events:
        ends[event.rank] = max(ends[event.rank], event.end)
    assert ends[0] == ends[2] > 2 * 100**3 / 1e9
    assert ends[1] == pytest.approx(3 * ends[0])


def some_messages() -> None:
    """A ring of messages, then a collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.ones(1000)
    for _ in range(5):
        work = dist.isend(x, (rank + 1) % ranks)
        dist.recv(torch.empty(1000), (rank - 1) % ranks)
        work.wait()
    dist.all_reduce(x)


def test_jitter_makes_times_uneven_and_repeats_itself() -> None:
    cluster = Cluster(nodes=4, inter_node=LINK)
    plain = launch(some_messages, cluster=cluster)
    runs = [launch(some_messages, cluster=cluster.with_jitter(seed, 0.3)) for seed in (1, 1, 2)]
    assert runs[0].events == runs[1].events
    assert runs[0].seconds != runs[2].seconds
    assert min(run.seconds for run in runs) > plain.seconds
    assert launch(some_messages, cluster=cluster.with_jitter(1, 0.0)).seconds == pytest.approx(plain.seconds)


def test_jitter_has_the_mean_that_it_says() -> None:
    timing = Timing(Cluster(nodes=2, inter_node=LINK).with_jitter(7, 0.25), 2)
    times = [timing.message(0, 1, 0, ready=float(k)) - k for k in range(4000)]
    assert sum(times) / len(times) == pytest.approx(1.25 * ALPHA, rel=0.02)
    assert min(times) >= ALPHA * (1 - 1e-9)


def lost(f: Callable[..., Any], cluster: Cluster) -> RankLost:
    with pytest.raises(RankLost) as caught:
        launch(f, cluster=cluster, quiet=True)
    return caught.value


FOUR = Cluster(nodes=4, inter_node=LINK, flops=1e9, memory_bandwidth=1e12)


def test_a_lost_rank_is_named_with_those_who_wait_for_it() -> None:
    error = lost(some_messages, FOUR.with_lost_rank(2, after=3e-5))
    assert error.lost == {2: 3e-5}
    assert isinstance(error, Deadlock)
    assert "Rank 2 was lost: from 3e-05 s of virtual time on it answers nothing." in error.report
    assert "rank 3 waits for rank 2 to send." in error.report
    assert "rank 1 waits for rank 2 to receive." in error.report
    assert {call.rank for call in error.waiting} == {0, 1, 3}
    # Two rings of messages were over by then, and the third was not.
    received = [event for event in error.run.events if event.op == "recv" and event.end > event.start]
    assert max(event.end for event in received if event.rank == 3) < 3e-5
    assert "rank 2 was lost" in error.figure().alt.lower()
    # What never arrived is no message on the timeline or in the trace.
    assert all(each.arrival > each.departure for each in messages(error.run.events))
    assert [event.op for event in error.run.events if not event.finished and event.rank == 3] == ["recv"]


def test_a_collective_with_a_lost_rank_never_ends() -> None:
    error = lost(lambda: dist.all_reduce(torch.ones(MEGABYTE)), FOUR.with_lost_rank(1, after=1e-3))
    assert error.lost == {1: 1e-3}
    assert "rank 0 waits for rank 1 to call all_reduce." in error.report
    # Lost a moment after its end, it has taken part.
    whole = launch(lambda: dist.all_reduce(torch.ones(MEGABYTE)), cluster=FOUR).seconds
    after = launch(
        lambda: dist.all_reduce(torch.ones(MEGABYTE)), cluster=FOUR.with_lost_rank(1, after=1.01 * whole)
    )
    assert after.lost == ()


def test_a_rank_is_lost_while_it_computes() -> None:
    def f() -> str:
        if dist.get_rank() == 3:
            torch.ones(200, 200) @ torch.ones(200, 200)
            dist.send(torch.ones(1), 0)
        return "done"

    run = launch(f, cluster=FOUR.with_lost_rank(3, after=1e-3))
    # Nobody waits for it: the others return, and the run says who did not.
    assert run.results == ["done", "done", "done", None]
    assert run.lost == (3,)


def test_a_message_that_is_under_way_when_its_receiver_is_lost_never_arrives() -> None:
    def f() -> None:
        x = torch.ones(MEGABYTE // 4)
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)

    two = Cluster(nodes=2, inter_node=LINK)
    error = lost(f, two.with_lost_rank(1, after=MESSAGE / 2))
    assert [call.rank for call in error.waiting] == [0]
    assert launch(f, cluster=two.with_lost_rank(1, after=1.01 * MESSAGE)).lost == ()


def test_a_buffered_send_to_a_lost_rank_returns() -> None:
    def f() -> str:
        x = torch.ones(4)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        return "done"

    cluster = Cluster(nodes=2, eager_limit=64).with_lost_rank(1)
    run = launch(f, cluster=cluster)
    assert run.results == ["done", None]
    assert ["to rank 1" in str(call) for call in run.unmatched] == [True]


def test_a_buffered_send_returns_at_once_even_if_its_receiver_waits() -> None:
    def f(nbytes: int) -> None:
        x = torch.ones(nbytes, dtype=torch.uint8)
        if dist.get_rank() == 1:
            dist.recv(x, 0)
            return
        torch.ones(100, 100) @ torch.ones(100, 100)
        dist.send(x, 1)

    cluster = Cluster(nodes=2, inter_node=LINK, eager_limit=1000, flops=1e9)
    sends = [
        event
        for nbytes in (1000, 1001)
        for event in launch(f, nbytes, cluster=cluster).events
        if event.op == "send"
    ]
    assert [send.seconds for send in sends] == pytest.approx([0, LINK.seconds(1001)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cluster(1, 4, cards_per_node=5), "1 to 4 network cards"),
        (lambda: Cluster(1, 4, cards_per_node=0), "1 to 4 network cards"),
        (lambda: Cluster(2, 2).with_straggler(1), "no virtual time"),
        (lambda: FOUR.with_straggler(4), "its ranks are 0 to 3"),
        (lambda: FOUR.with_straggler(0, 0.5), "at least 1"),
        (lambda: FOUR.with_slow_link(1, 1), "rank 1 twice"),
        (lambda: FOUR.with_slow_link(1, 2, math.nan), "at least 1"),
        (lambda: FOUR.with_slow_node(4), "the nodes are 0 to 3"),
        (lambda: FOUR.with_lost_rank(0, after=-1), "at least 0 s"),
        (lambda: FOUR.with_jitter(0, -0.1), "at least 0"),
        (lambda: launch(print, cluster=FOUR.with_jitter(1), on="processes"), "Only simulated ranks"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(BadLaunch, match=words):
        make()


def test_of_several_disturbances_of_one_part_the_worst_counts() -> None:
    timing = Timing(
        FOUR.with_straggler(1, 2).with_straggler(1, 3).with_lost_rank(0, 5).with_lost_rank(0, 4), 4
    )
    assert timing.compute(1, 1.0) == 3.0
    assert timing.compute(0, 1.0) == 1.0
    assert timing.lost_at(0, 1) == 4
    assert timing.lost_at(1) == NEVER


# --- Closed formulas, and the machines


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("nbytes", [48, 48_000_000])
@pytest.mark.parametrize("algorithm", ["tree", "ring", "halving_doubling"])
def test_algorithms_take_the_time_of_their_formulas(algorithm: str, nbytes: int, ranks: int) -> None:
    # Chunks and halves must be whole for the formula to be exact.
    elements = ranks * (nbytes // 4 // ranks)
    if algorithm == "halving_doubling" and ranks & (ranks - 1):
        elements -= elements % 4
    solved = reference()
    functions = {
        "tree": lambda x: solved["broadcast_tree"](solved["reduce_tree"](x)),
        "ring": solved["ring_all_reduce"],
        "halving_doubling": solved["halving_doubling_all_reduce"],
    }
    run = launch(
        functions[algorithm],
        torch.empty(elements, device="meta"),
        cluster=Cluster(nodes=ranks, inter_node=LINK),
    )
    expected = solved["predict_time"](algorithm, 4 * elements, ranks, ALPHA, BETA)
    assert run.seconds == pytest.approx(expected, rel=1e-12)


MACHINES = [presets.pcie_box, presets.nvlink_node, presets.frontera_rtx, presets.lumi_g, presets.h100_pod]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_preset_says_where_its_numbers_come_from(machine: Callable[[], Cluster]) -> None:
    cluster, text = machine(), str(machine.__doc__)
    assert cluster.name
    # What a device computes and moves stands in the text, in the units of the source.
    flops, memory = cluster.flops or 0, cluster.memory_bandwidth or 0
    assert f"{flops / 1e12:g} TFLOP/s" in text
    assert f"{memory / 1e9:,.0f} GB/s" in text or f"{memory / 1e12:g} TB/s" in text
    assert launch(some_messages, cluster=cluster).seconds > 0


def test_lumi_g_is_the_machine_of_its_user_guide() -> None:
    # 4 MI250X with 2 GCDs each, and 4 x 200 Gbit/s.
    cluster = presets.lumi_g(nodes=3)
    assert (cluster.size, cluster.devices_per_node, cluster.cards_per_node) == (24, 8, 4)
    assert cluster.inter_node.bandwidth * 8 == 200e9
