"""Figures, traces and their words tell what the events tell: nothing is lost, added, hidden or cut off."""

import itertools
import json
import math
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch

from course_lib.cluster.topology import Cluster
from course_lib.figures.layout import MEMORY_HEIGHT, arrange, in_lanes, merged, most_lanes, time_unit
from course_lib.figures.timeline import MOST_ARROWS, timeline_figure
from course_lib.launch.failures import Deadlock
from course_lib.launch.run import Run
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.messages import messages
from course_lib.runtime.communication.traffic import Traffic
from tests.legible import assert_apart, assert_legible, drawn_texts

US = 1e-6
SIZES = (1, 2, 4, 8, 64, 256)


def event(rank, op, kind, start, end, sequence=0, **rest):
    return Event(rank, op, kind, start * US, end * US, sequence, **rest)


def make_run(events, ranks, *, nodes=1, engine="simulated"):
    cluster = Cluster(nodes=nodes, devices_per_node=-(-ranks // nodes))
    seconds = max((e.end for e in events), default=0.0)
    return Run([None] * ranks, [""] * ranks, tuple(events), cluster, engine, seconds, 0.1)


def ring_events(ranks, rounds=1):
    """Each rank computes, then sends to the next beside its receive from the previous one."""
    order = itertools.count()
    group = tuple(range(ranks))
    events = []
    for rank in range(ranks):
        events.append(event(rank, "compute", Kind.COMPUTE, 0, 5, next(order)))
        events.append(event(rank, "exchange", Kind.SPAN, 5, 5 + 3 * rounds, next(order)))
        events.append(event(rank, "ready", Kind.SPAN, 5, 5, next(order)))
    for k in range(rounds):
        for rank in range(ranks):
            common = {"group": group, "nbytes": 8}
            times = (Kind.POINT_TO_POINT, 5 + 3 * k, 8 + 3 * k, next(order))
            events.append(
                event(
                    rank,
                    "send",
                    *times,
                    peer=(rank + 1) % ranks,
                    sent=8,
                    messages=1,
                    asynchronous=True,
                    **common,
                )
            )
            events.append(event(rank, "recv", *times, peer=(rank - 1) % ranks, received=8, **common))
    return events


def ring_run(ranks, rounds=1):
    nodes = max(1, ranks // 8)
    return make_run(ring_events(ranks, rounds), ranks, nodes=nodes)


def buckets_run():
    """One rank whose three asynchronous all-reduces overlap its computing and each other."""
    events = [event(0, "compute", Kind.COMPUTE, 0, 30)]
    for k in range(3):
        start, end = 5 + 5 * k, 22 + 5 * k
        events.append(
            event(0, "all_reduce", Kind.COLLECTIVE, start, end, k + 1, asynchronous=True, group=(0,))
        )
    return make_run(events, 1)


# --- Messages


def test_a_message_pairs_the_kth_send_with_the_kth_receive():
    # Two messages from 0 to 1 with the same tag, one with another tag, received in another order.
    sends = [
        event(0, "send", Kind.POINT_TO_POINT, k, k + 1, k, peer=1, tag=tag) for k, tag in enumerate((0, 0, 7))
    ]
    receives = [
        event(1, "recv", Kind.POINT_TO_POINT, k, k + 1, 10 + k, peer=0, tag=tag)
        for k, tag in enumerate((7, 0, 0))
    ]
    pairs = [(m.send.sequence, m.receive.sequence) for m in messages([*receives, *sends])]
    assert pairs == [(0, 11), (1, 12), (2, 10)]


def test_calls_without_a_partner_make_no_message():
    lonely = [
        event(0, "send", Kind.POINT_TO_POINT, 0, 1, 0, peer=1),
        event(0, "recv", Kind.POINT_TO_POINT, 0, 1, 1, peer=1),
        event(1, "all_reduce", Kind.COLLECTIVE, 0, 1, 2),
    ]
    assert messages(lonely) == ()


def test_a_message_leaves_within_its_send():
    # A rendezvous send leaves when the receive is posted; a buffered one is over before that.
    receive = event(1, "recv", Kind.POINT_TO_POINT, 5, 9, 1, peer=0)
    for end, leaves in ((9, 5), (2, 2)):
        (message,) = messages([event(0, "send", Kind.POINT_TO_POINT, 1, end, 0, peer=1), receive])
        assert message.departure == pytest.approx(leaves * US)
        assert message.arrival == receive.end


# --- Layout


def test_every_event_has_one_place():
    events = ring_events(4, rounds=3)
    layout = arrange(events, range(4))
    placed = Counter(id(bar.event) for bar in (*layout.bars, *layout.phases, *layout.marks))
    assert placed == Counter(id(e) for e in events)


def test_asynchronous_calls_lie_at_half_height_under_what_the_rank_does_meanwhile():
    layout = arrange(buckets_run().events, (0,))
    computing = next(bar for bar in layout.bars if bar.event.kind is Kind.COMPUTE)
    beside = [bar for bar in layout.bars if bar.event.asynchronous]
    assert all(bar.height == computing.height / 2 for bar in beside)
    assert all(bar.top >= computing.top + computing.height for bar in beside)
    assert len({bar.top for bar in beside}) == 3, "three at a time need three lanes"


def test_bars_of_a_row_do_not_cover_each_other_nor_the_next_row():
    layout = arrange(ring_events(8, rounds=2), range(8))
    lanes = defaultdict(list)
    for bar in (*layout.bars, *layout.phases):
        row = bar.event.rank
        assert layout.row_top(row) <= bar.top
        assert bar.top + bar.height <= layout.row_top(row + 1)
        lanes[bar.top].append((bar.event.start, bar.event.end))
    for intervals in lanes.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(intervals)):
            assert start >= end


def test_a_phase_within_a_phase_is_below_it():
    outer, inner = (
        event(0, name, Kind.SPAN, 0, end, k) for k, (name, end) in enumerate((("step", 9), ("forward", 4)))
    )
    lanes = {e.op: lane for e, lane in in_lanes([inner, outer], most_lanes(1))}
    assert lanes == {"step": 0, "forward": 1}


def test_merging_keeps_what_can_be_seen():
    # Intervals that are wide enough stay as they are; a blur of narrow ones becomes one of the same extent.
    assert merged([(0, 10), (10.5, 20)], 1) == [(0, 10), (10.5, 20)]
    narrow = [(k * 0.2, k * 0.2 + 0.1) for k in range(100)]
    ((start, end),) = merged(narrow, 1)
    assert (start, end) == (0, pytest.approx(19.9))


@pytest.mark.parametrize(
    ("seconds", "name"),
    [(2.0, "s"), (1.0, "s"), (0.5, "ms"), (3e-6, "µs"), (5e-8, "ns"), (1e-12, "ns"), (0, "µs")],
)
def test_times_are_told_in_a_unit_of_which_there_is_at_least_one(seconds, name):
    assert time_unit(seconds).name == name


# --- The timeline


@pytest.mark.parametrize("ranks", SIZES)
def test_a_timeline_is_legible_at_every_size(ranks):
    figure = timeline_figure(ring_run(ranks, rounds=4))
    assert_legible(figure)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    labels = [(t, t.get_window_extent()) for t in axes.get_yticklabels()]
    assert_apart(labels)
    assert labels[0][0].get_text() == "rank 0"
    nodes = [(t, t.get_window_extent()) for t in axes.texts if t.get_text().startswith("node ")]
    assert_apart(nodes)
    assert bool(nodes) == (ranks > 8)


def test_each_rank_is_shown_with_its_node_where_every_rank_has_one_of_its_own():
    # Invariant: a name that does not fit beside one row, turned, is not left out but stands in the row.
    computing = [event(rank, "compute", Kind.COMPUTE, 0, 5, rank) for rank in range(4)]
    axes = timeline_figure(make_run(computing, 4, nodes=4)).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [f"node {rank}, rank {rank}" for rank in range(4)]
    assert not [text for text in axes.texts if text.get_text().startswith("node ")]


def test_the_bars_are_where_the_events_are():
    run = ring_run(4)
    axes = timeline_figure(run).axes[0]
    drawn = sorted(
        (round(x0, 6), round(x1, 6))
        for collection in axes.collections
        if isinstance(collection, PolyCollection)
        for path in collection.get_paths()
        for x0, x1 in [(path.vertices[:, 0].min(), path.vertices[:, 0].max())]
    )
    expected = sorted((round(e.start / US, 6), round(e.end / US, 6)) for e in run.events if e.end > e.start)
    assert drawn == expected


def test_there_is_an_arrow_a_message_from_its_sender_to_its_receiver():
    run = ring_run(4)
    layout = arrange(run.events, range(4))
    arrows = [p for p in timeline_figure(run).axes[0].patches if isinstance(p, FancyArrowPatch)]
    ends = set()
    for arrow in arrows:
        (_, y0), (_, y1) = arrow._posA_posB
        ends.add((int(y0 // layout.row_height), int(y1 // layout.row_height)))
    assert ends == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_too_many_arrows_are_left_out_and_the_figure_says_so():
    run = ring_run(8, rounds=MOST_ARROWS // 8 + 1)
    count = len(messages(run.events))
    assert count > MOST_ARROWS
    figure = timeline_figure(run)
    assert not [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert any(f"{count:,} messages are not drawn" in t.get_text() for t, _ in drawn_texts(figure))
    assert [p for p in timeline_figure(run, arrows=True).axes[0].patches if isinstance(p, FancyArrowPatch)]


@pytest.mark.parametrize(("engine", "clock"), [("simulated", "virtual"), ("processes", "measured")])
def test_the_time_axis_says_which_clock_and_which_unit(engine, clock):
    run = make_run(ring_events(2), 2, engine=engine)
    figure = timeline_figure(run)
    assert figure.axes[0].get_xlabel() == f"{clock} time (µs)"
    assert f"of {clock} time" in figure.alt


def test_a_timeline_can_be_cut_to_ranks_and_times():
    run = ring_run(4, rounds=5)
    figure = timeline_figure(run, ranks=[2, 1], start=5 * US, end=11 * US, title="a part")
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["rank 2", "rank 1"]
    left, right = axes.get_xlim()
    assert 4.5 < left < 5
    assert 11 < right < 11.5
    assert axes.get_title() == "a part"
    with pytest.raises(ValueError, match="ranks 0 to 3"):
        timeline_figure(run, ranks=[4])
    with pytest.raises(ValueError, match="before it starts"):
        timeline_figure(run, start=3.0, end=1.0)


def test_a_legend_with_long_names_stays_within_the_figure():
    names = [f"a phase with quite a long name, number {k}" for k in range(6)]
    events = [event(0, name, Kind.SPAN, k, k + 1, k) for k, name in enumerate(names)]
    assert_legible(timeline_figure(make_run(events, 1)))


def test_a_late_first_event_leaves_no_empty_half():
    late = [event(0, "send", Kind.POINT_TO_POINT, 900, 1000, peer=1)]
    left, _ = timeline_figure(make_run(late, 2, engine="processes")).axes[0].get_xlim()
    assert left > 800


def test_a_run_without_events_is_a_figure_too():
    figure = timeline_figure(make_run([], 2))
    assert "no events" in [t.get_text() for t, _ in drawn_texts(figure)]
    assert "no communication" in figure.alt


def test_kinds_differ_by_hatch_as_well_as_by_colour():
    collections = timeline_figure(ring_run(2)).axes[0].collections
    drawn = [c for c in collections if isinstance(c, PolyCollection) and c.get_paths()]
    looks = {(tuple(c.get_facecolor()[0]), c.get_hatch()) for c in drawn}
    hatches = [hatch for _, hatch in looks if hatch]
    assert len(hatches) == len(set(hatches)) == 2, "send and receive"


def test_the_words_of_a_timeline_count_the_calls():
    alt = timeline_figure(ring_run(4, rounds=3)).alt
    assert "4 ranks on 1 node" in alt
    assert "Rank 2: 3 send (asynchronous), 3 recv; computing for 5 µs; phases exchange, ready." in alt
    assert timeline_figure(ring_run(4), alt="other words").alt == "other words"
    assert len(timeline_figure(ring_run(256)).alt) < 300


def test_the_run_draws_itself():
    assert "Timeline of 2 ranks" in ring_run(2).timeline().alt


# --- Traffic


def test_the_traffic_is_summed_once(monkeypatch):
    run, sums = ring_run(4), []
    monkeypatch.setattr(Traffic, "of", lambda events, ranks: sums.append(ranks) or ranks)
    assert run.traffic == run.traffic == 4
    assert sums == [4]


# --- Deadlocks


def waiting(rank, peers, expects="send"):
    return PendingCall(rank, "recv", tuple(peers), expects, "recv(float32[4])")


def circle(ranks):
    calls = [waiting(rank, [(rank + 1) % ranks]) for rank in range(ranks)]
    return Deadlock("No rank can go on.", calls, cycle=range(ranks))


def skipped(ranks):
    calls = [waiting(rank, [ranks - 1], "call all_reduce") for rank in range(ranks - 1)]
    return Deadlock("No rank can go on.", calls, finished=[ranks - 1])


@pytest.mark.parametrize("ranks", SIZES[1:])
@pytest.mark.parametrize("make", [circle, skipped])
def test_a_deadlock_is_legible_at_every_size(make, ranks):
    figure = make(ranks).figure()
    assert_legible(figure)
    beside = [(t, box) for t, box in drawn_texts(figure) if "waits for" in t.get_text()]
    assert_apart(beside)
    assert len(figure.alt) < 1200


def test_each_waiting_rank_has_an_arrow_to_each_rank_that_it_waits_for():
    calls = [waiting(0, [1]), waiting(1, [0]), waiting(2, [0, 1, 3], "call barrier")]
    figure = Deadlock("", calls, cycle=(0, 1), finished=(3,)).figure()
    arrows = [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert len(arrows) == 5
    assert len({p.get_edgecolor() for p in arrows}) == 2, "the cycle's two have a colour of their own"
    texts = [t.get_text() for t, _ in drawn_texts(figure)]
    assert "in recv, waits for\nrank 1 to send" in texts
    assert "in recv, waits for\nranks 0, 1, 3 to call barrier" in texts
    assert texts.count("returned") == 2, "beside rank 3 and in the legend"
    assert "Rank 2 waits for ranks 0, 1, 3: barrier." in figure.alt
    assert "The cycle of waits goes from rank 0 to 1 to 0." in figure.alt


def test_ranks_that_nobody_waits_for_are_there_because_the_run_had_them():
    deadlock = Deadlock("", [waiting(0, [1]), waiting(1, [0])], (0, 1), (), make_run([], 6))
    numbers = {t.get_text() for t, _ in drawn_texts(deadlock.figure())}
    assert {"0", "1", "2", "3", "4", "5"} <= numbers


# --- The trace


def load(run, tmp_path):
    path = run.save_trace(tmp_path / "trace.json")
    return json.loads(
        path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )


REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "cat", "pid", "tid", "ts", "args"},
}


def check_trace(trace, run):
    """The rules of the Trace Event Format that a viewer relies on, and that the trace is the run's."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    records = trace["traceEvents"]
    for record in records:
        assert set(record) == REQUIRED[record["ph"]] | {"ph"}
        assert isinstance(record["pid"], int)
        assert isinstance(record["tid"], int)
        if record["ph"] != "M":
            assert math.isfinite(record["ts"])
            assert record["ts"] >= 0
            assert round(record["ts"] * 1000) == pytest.approx(record["ts"] * 1000, abs=1e-3), (
                "whole nanoseconds"
            )
    by_kind = defaultdict(list)
    for record in records:
        by_kind[record["ph"]].append(record)
    check_names(by_kind["M"], run)
    check_slices(by_kind["X"], by_kind["i"], run)
    check_flows(by_kind["s"], by_kind["f"], by_kind["X"], run)


def check_names(names, run):
    """One process a node, and for each rank a thread of its node."""
    processes = {r["pid"]: r["args"]["name"] for r in names if r["name"] == "process_name"}
    nodes = {run.cluster.node_of(rank) for rank in range(run.ranks)}
    assert processes == {node: f"node {node}" for node in nodes}
    threads = [(r["pid"], r["args"]["name"]) for r in names if r["name"] == "thread_name"]
    for rank in range(run.ranks):
        assert threads.count((run.cluster.node_of(rank), f"rank {rank}")) == 1
    numbers = [(r["pid"], r["tid"]) for r in names if r["name"] == "thread_name"]
    assert len(numbers) == len(set(numbers))


def check_slices(slices, instants, run):
    """Every event once, with its time and its bytes; slices of a thread lie apart or within each other."""
    told = Counter(
        (
            r["args"]["rank"],
            r["name"],
            r["cat"],
            r["args"]["sequence"],
            round(r["ts"] * 1000),
            round(r.get("dur", 0) * 1000),
        )
        for r in (*slices, *instants)
    )
    assert told == Counter(
        (
            e.rank,
            e.op,
            str(e.kind),
            e.sequence,
            round(e.start * 1e9),
            round(e.end * 1e9) - round(e.start * 1e9),
        )
        for e in run.events
    )
    assert sum(r["args"].get("sent", 0) for r in slices) == run.traffic.sent
    assert sum(r["args"].get("messages", 0) for r in slices) == run.traffic.messages
    threads = defaultdict(list)
    for record in slices:
        start = round(record["ts"] * 1000)
        threads[record["pid"], record["tid"]].append((start, start + round(record["dur"] * 1000)))
    for intervals in threads.values():
        for (a, b), (c, d) in itertools.combinations(intervals, 2):
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def check_flows(starts, ends, slices, run):
    """An arrow a message, from within its send's slice to within its receive's, never back in time."""
    assert len({r["id"] for r in starts}) == len(starts) == len(messages(run.events))
    leaves, arrives = {r["id"]: r for r in starts}, {r["id"]: r for r in ends}
    assert set(leaves) == set(arrives)
    for number, start in leaves.items():
        end = arrives[number]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        (sender,) = enclosing(start, slices, ("send", "isend"))
        (receiver,) = enclosing(end, slices, ("recv", "irecv"))
        assert sender["args"]["peer"] == receiver["args"]["rank"]
        assert receiver["args"]["peer"] == sender["args"]["rank"]


def enclosing(flow, slices, operations):
    return [
        s
        for s in slices
        if (s["pid"], s["tid"]) == (flow["pid"], flow["tid"])
        and s["name"] in operations
        and s["ts"] <= flow["ts"] < s["ts"] + s["dur"]
    ]


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_trace_of_a_ring_is_the_runs(ranks, tmp_path):
    run = ring_run(ranks, rounds=3)
    trace = load(run, tmp_path)
    check_trace(trace, run)
    assert trace["otherData"] == {"engine": "simulated", "clock": "virtual", "ranks": ranks}


def test_overlapping_asynchronous_calls_get_tracks_of_their_own(tmp_path):
    run = buckets_run()
    trace = load(run, tmp_path)
    check_trace(trace, run)
    names = {r["args"]["name"] for r in trace["traceEvents"] if r["name"] == "thread_name"}
    assert names == {"rank 0", "rank 0 asynchronous", "rank 0 asynchronous (2)", "rank 0 asynchronous (3)"}


def test_phases_that_straddle_a_slice_do_not_break_the_nesting(tmp_path):
    events = [
        event(0, "compute", Kind.COMPUTE, 0, 10, 0),
        event(0, "forward", Kind.SPAN, 1, 5, 1),
        event(0, "backward", Kind.SPAN, 5, 12, 2),
        event(0, "epoch", Kind.SPAN, 0, 20, 3),
        event(0, "mark", Kind.SPAN, 5, 5, 4),
    ]
    run = make_run(events, 1)
    check_trace(load(run, tmp_path), run)


def memory_run(ranks=2):
    """Ranks that compute; the second holds twice as much as the first, at most 3 kB, and so on."""
    events = []
    for rank in range(ranks):
        events.append(event(rank, "compute", Kind.COMPUTE, 0, 4000))
        for at, kind, nbytes in (
            (0, "parameters", 500),
            (1000, "activations", 1000),
            (3000, "activations", 0),
        ):
            events.append(event(rank, kind, Kind.MEMORY, at, at, nbytes=nbytes * (rank + 1)))
    return make_run(events, ranks)


@pytest.mark.parametrize("ranks", [1, 8, 256])
def test_a_timeline_with_memory_is_legible_at_every_size(ranks):
    assert_legible(memory_run(ranks).timeline())


def test_memory_is_a_line_under_each_row_to_one_scale():
    run = memory_run()
    layout = arrange(run.events, (0, 1))
    assert len(layout.bars) == 2, "a change of memory is no bar"
    figure = run.timeline()
    lines = [line.get_ydata() for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    peaks = [layout.memory_bottom(row) - min(line) for row, line in enumerate(lines)]
    assert peaks == pytest.approx([MEMORY_HEIGHT / 2, MEMORY_HEIGHT])
    for row, line in enumerate(lines):
        assert min(line) > max(bar.top + bar.height for bar in layout.bars if bar.event.rank == row)
        assert max(line) < layout.row_top(row + 1)
    assert "Rank 1: no communication; computing for 4 ms; holding at most 3 kB." in figure.alt


def test_memory_of_a_cut_begins_with_what_is_held_then():
    figure = memory_run().timeline(ranks=[1], start=2e-3, end=2.5e-3)
    # Invariant: the picture's words are the picture's: the peak beside the line is that of the whole run.
    assert "holding at most 3 kB" in figure.alt
    (line,) = [
        line for line in figure.axes[0].lines if len(line.get_xdata()) > 1 and "step" in line.get_drawstyle()
    ]
    assert set(line.get_ydata()) == {arrange(memory_run().events, (1,)).memory_bottom(0) - MEMORY_HEIGHT}


def test_memory_is_a_counter_a_rank_in_the_trace(tmp_path):
    run = memory_run()
    trace = load(run, tmp_path)
    check_trace(trace, make_run([e for e in run.events if e.kind is not Kind.MEMORY], 2))
    counters = [(r["name"], r["ts"], r["args"]) for r in trace["traceEvents"] if r["ph"] == "C"]
    assert len(counters) == 6
    assert ("memory of rank 1", 1000.0, {"parameters": 1000, "activations": 2000}) in counters


def test_a_trace_of_nothing_names_the_ranks(tmp_path):
    run = make_run([], 3)
    check_trace(load(run, tmp_path), run)


def test_a_simulated_run_makes_a_valid_trace_and_a_legible_timeline(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    torch = pytest.importorskip("torch")
    from course_lib import launch, mark, span

    def step():
        rank, size = dist.get_rank(), dist.get_world_size()
        ours, theirs = torch.ones(64), torch.empty(64)
        with span("exchange"):
            sending = dist.isend(ours, (rank + 1) % size)
            dist.recv(theirs, (rank - 1) % size)
            sending.wait()
        mark("exchanged")
        work = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        ours @ theirs
        for each in work:
            each.wait()

    cluster = Cluster(nodes=2, devices_per_node=2, flops=1e9, memory_bandwidth=1e9)
    run = launch(step, cluster=cluster)
    check_trace(load(run, tmp_path), run)
    assert_legible(run.timeline())


def test_the_figures_of_one_run_are_the_same_twice():
    from course_lib.figures.style import figure_png

    assert figure_png(timeline_figure(ring_run(4))) == figure_png(timeline_figure(ring_run(4)))


def test_a_figure_takes_anything_that_has_a_runs_fields():
    run = ring_run(2)
    same = SimpleNamespace(
        events=run.events,
        ranks=2,
        cluster=run.cluster,
        engine="simulated",
        seconds=run.seconds,
        traffic=run.traffic,
    )
    assert timeline_figure(same).alt == timeline_figure(run).alt
