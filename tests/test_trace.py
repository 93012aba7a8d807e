"""A launch without data comes to the same whether its ranks are recorded or take turns as threads.

To the same in everything: events, clocks, traffic, outputs, reports, warnings, results.
"""

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import isend as imported_isend
from torch.utils._pytree import tree_map

from course_lib import Cluster, Link, RankFailed, TimedOut, launch, mark, per_rank, span
from course_lib.launch import simulated
from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from course_lib.runtime.request import moves_shapes_only
from course_lib.runtime.simulator.trace import batched_replay, capture
from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission
from tests.answers import right_answers

UNIT = "07_collectives"
SOLUTIONS = Path(__file__).parents[1] / "solutions"

TWO_NODES = Cluster(2, 4, intra_node=Link(1e-6, 1e10), inter_node=Link(1e-5, 1e9))
CLUSTERS = {
    "rendezvous": TWO_NODES,
    "eager": replace(TWO_NODES, eager_limit=100),
    "no latency": replace(TWO_NODES, intra_node=Link(0.0, 1e10), eager_limit=50),
    "computing": replace(TWO_NODES, flops=1e9, memory_bandwidth=1e9),
}
DISTURBED = {
    "one card a node": replace(TWO_NODES, cards_per_node=1),
    "jitter, a straggler and slow parts": CLUSTERS["computing"]
    .with_jitter(1)
    .with_straggler(0)
    .with_slow_link(0, 1)
    .with_slow_node(1),
    "a lost rank": CLUSTERS["computing"].with_lost_rank(1, after=4e-6),
}


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


# --- Both ways


def come_to(function: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
    """Everything that can be known of a launch, in a form that compares."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            run: Run | None = launch(function, *arguments, quiet=True, **options)
            told: dict[str, Any] = {}
        except LaunchError as error:
            run = error.run
            told = {
                name: value for name, value in vars(error).items() if name not in ("run", "_figure_shown")
            }
            told["error"] = type(error).__name__
    assert run is not None
    return told | {
        "events": tuple(run.events),
        "seconds": run.seconds,
        "traffic": run.traffic,
        "outputs": run.outputs,
        "unmatched": run.unmatched,
        "lost": run.lost,
        "results": tree_map(_comparable, run.results),
        "warned": [str(warning.message) for warning in warned],
    }


def _comparable(result: Any) -> Any:
    return (result.dtype, result.shape, result.stride()) if isinstance(result, Tensor) else result


@pytest.fixture
def both(monkeypatch):
    """Run a program recorded, by the ways named, and in turns; assert that it comes to the same."""

    def run(function: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(simulated, "moves_shapes_only", lambda arguments: False)
            in_turns = come_to(function, *arguments, **options)
        for least_width in (1, sys.maxsize):
            with monkeypatch.context() as patch:
                patch.setattr(simulated, "_in_turns", _not_recorded)
                patch.setattr(batched_replay, "_LEAST_WIDTH", least_width)
                patch.setattr(batched_replay, "_LOOK_EVERY", sys.maxsize)
                recorded = come_to(function, *arguments, **options)
            for what, value in in_turns.items():
                assert recorded[what] == value, what
            assert recorded.keys() == in_turns.keys()
        return in_turns

    return run


def _not_recorded(request: Any) -> None:
    raise AssertionError("the program could not be recorded")


@pytest.fixture
def batches_used(monkeypatch):
    """For each launch from now on, whether it was carried out in batches."""
    used: list[bool] = []

    def replayed_in_batches(*arguments: Any) -> Any:
        messages = batched_replay.replayed_in_batches(*arguments)
        used.append(messages is not None)
        return messages

    monkeypatch.setattr(simulated, "replayed_in_batches", replayed_in_batches)
    return used


@pytest.fixture(autouse=True)
def no_rank_left():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


# --- Unit 07


@cache
def solved() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "solution"}
    run_cells(read_submission(SOLUTIONS / f"{UNIT}.py").cells, names)
    return names


def called(
    answer: Callable[..., Any], exercise: str, x: Tensor, group: dist.ProcessGroup | None = None
) -> Any:
    """A collective of unit 07 on tensors like x; roots are the group's second rank."""
    size = dist.get_world_size(group)
    root = dist.get_process_group_ranks(group)[1 % size]
    parts = [torch.empty_like(x) for _ in range(size)]
    match exercise:
        case "scatter_from" | "gather_to":
            return answer(x, parts if dist.get_rank() == root else None, root, group)
        case "broadcast_tree" | "reduce_tree":
            return answer(x, root, group)
        case "hierarchical_all_reduce":
            return answer(x, 2 if size % 2 == 0 else 1, group)
        case "all_to_all_pairwise":
            return answer([x.clone() for _ in range(size)], parts, group)
    return answer(x, group)


def in_two_groups(answer: Callable[..., Any], exercise: str, x: Tensor) -> Any:
    """The collective in two groups at once, each of every other rank."""
    groups = [dist.new_group(list(range(first, dist.get_world_size(), 2))) for first in (0, 1)]
    return called(answer, exercise, x, groups[dist.get_rank() % 2])


COLLECTIVES = [
    "scatter_from",
    "gather_to",
    "broadcast_tree",
    "reduce_tree",
    "ring_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "all_to_all_pairwise",
]


@pytest.mark.parametrize("exercise", COLLECTIVES)
def test_collectives_from_messages(exercise, both):
    for ranks, elements in ((1, 6), (3, 50), (4, 3), (8, 1000)):
        for cluster in CLUSTERS.values():
            both(called, solved()[exercise], exercise, meta(elements), ranks=ranks, cluster=cluster)
    both(in_two_groups, solved()[exercise], exercise, meta(100), ranks=6, cluster=TWO_NODES)
    # A tensor with gaps, of another dtype.
    both(called, solved()[exercise], exercise, meta(40, dtype=torch.int64)[::2], ranks=5, cluster=TWO_NODES)


def test_what_only_some_ranks_do(both):
    def f(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        # Groups that ranks come to know early, late and never.
        halves = [dist.new_group(list(range(size // 2))), dist.new_group(list(range(size // 2, size)))]
        dist.all_reduce(x, group=halves[rank >= size // 2])
        with span(f"of rank {rank}"):
            dist.broadcast(x, 3)
        if rank % 3 == 0:
            print("before", rank)
            dist.barrier(dist.new_group([0, 3, 6], use_local_synchronization=True))
        partner = size - 1 - rank
        work = dist.isend(x[: min(rank, partner)], partner, tag=min(rank, partner))
        if rank < partner:
            dist.recv(x[:rank], partner, tag=rank)
            work.wait()
        else:
            dist.irecv(x[:partner], partner, tag=partner).wait()
            print("waited", rank)
            work.wait()
        return rank, [x.sum()], {"text": f"of rank {rank}"}, None

    both(f, meta(10), ranks=8)


def test_other_right_answers_come_to_the_same_recorded_or_not(monkeypatch):
    # Some make tensors of their own, with data, so they are not recorded, and are told that these do not fit.
    for proof in right_answers(UNIT):
        if proof.exercise not in COLLECTIVES:
            continue
        recorded = come_to(called, proof.answer, proof.exercise, meta(50), ranks=5)
        with monkeypatch.context() as patch:
            patch.setattr(simulated, "moves_shapes_only", lambda arguments: False)
            assert come_to(called, proof.answer, proof.exercise, meta(50), ranks=5) == recorded


def test_programs_that_hang(both):
    """Those of the deadlock lab that can be recorded."""

    def swap(x):
        partner = dist.get_rank() ^ 1
        arriving = torch.empty_like(x)
        dist.recv(arriving, partner)
        dist.send(x, partner)

    def shift(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.send(x, (rank + 1) % size)
        dist.recv(torch.empty_like(x), (rank - 1) % size)

    def report(x):
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        dist.barrier()

    def grid_sums(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        row = [r for r in range(size) if r // 2 == rank // 2]
        column = [r for r in range(size) if r % 2 == rank % 2]
        for line in sorted([row, column]):
            dist.all_reduce(x, group=dist.new_group(line))

    def collect(x, count):
        if dist.get_rank() != 0:
            for _ in range(count):
                dist.send(x, 0)
            return
        for rank in range(1, dist.get_world_size()):
            for _ in range(count):
                dist.recv(x, rank)

    def chain(x, fails):
        rank, size = dist.get_rank(), dist.get_world_size()
        try:
            if rank > 0:
                dist.recv(x, rank - 1)
            if fails:
                raise ValueError("no square root")
            if rank < size - 1:
                dist.send(x, rank + 1)
        finally:
            dist.barrier()

    for program, arguments, ranks, error in (
        (swap, (), 2, "Deadlock"),
        (shift, (), 4, "Deadlock"),
        (report, (), 3, "CollectiveMismatch"),
        (grid_sums, (), 4, "CollectiveMismatch"),
        (collect, (per_rank([3, 3, 2]),), 3, "Deadlock"),
        (chain, (per_rank([False, True, False]),), 3, "Deadlock"),
    ):
        told = both(program, meta(3), *arguments, ranks=ranks)
        assert told["error"] == error, program.__name__
        assert "test_trace.py" in told["report"]


# --- What else a program may do


def test_reports_warnings_and_failures(both):
    def stuck_behind_a_wait(x):
        rank = dist.get_rank()
        print("before", rank)
        work = dist.irecv(x, 1 - rank)
        work.wait()
        print("never")

    def never_waited(x):
        rank = dist.get_rank()
        dist.all_reduce(x, async_op=True)
        work = dist.isend(x, 1 - rank)
        dist.irecv(x, 1 - rank)
        work.wait()

    def nobody_receives(x):
        if dist.get_rank() == 0:
            dist.isend(x, 1, tag=3)

    def sizes_differ(x):
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x[:2], 0)

    def roots_differ(x):
        dist.broadcast(x, dist.get_rank())

    def one_leaves(x):
        if dist.get_rank():
            dist.barrier()

    def one_fails(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.barrier()
        if rank == 1:
            print("about to")
            x.view(7)
        dist.recv(x, (rank + 1) % size)
        print("after")

    def fails_only_if_it_gets_there(x):
        rank = dist.get_rank()
        if rank == 0:
            dist.recv(x, 1)
        raise ValueError(f"rank {rank}")

    def wrong_calls(x):
        for call in (lambda: dist.send(x, dist.get_rank()), lambda: dist.send(x, 9), lambda: dist.send(x)):
            try:
                call()
            except (ValueError, TypeError) as error:
                print(type(error).__name__, error)
        dist.isend(x.view(2, 2).t(), 0)

    expected = {
        stuck_behind_a_wait: "Deadlock",
        never_waited: "LeftOpen",
        nobody_receives: "LeftOpen",
        sizes_differ: "CollectiveMismatch",
        roots_differ: "CollectiveMismatch",
        one_leaves: "Deadlock",
        one_fails: "RankFailed",
        fails_only_if_it_gets_there: "RankFailed",
        wrong_calls: "RankFailed",
    }
    for function, error in expected.items():
        assert both(function, meta(4), ranks=2).get("error") == error, function.__name__


def test_phases_and_computing(both):
    def f(x):
        with span("whole"):
            for step in range(3):
                with span(f"step {step}"):
                    x += 1
                    work = dist.all_reduce(x, async_op=True)
                    x.view(10, 10) @ x.view(10, 10)
                    mark("product")
                    work.wait()
            dist.barrier()

    told = both(f, meta(100), cluster=CLUSTERS["computing"])
    assert {"compute", "whole", "step 2", "product", "all_reduce"} <= {event.op for event in told["events"]}


def test_every_way_to_send_and_receive(both):
    def f(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % size, (rank - 1) % size
        everyone = dist.new_group(list(reversed(range(size))))
        seen = []
        for repeat in range(3):
            works = [
                dist.isend(x, right),
                imported_isend(x, right, tag=repeat),
                dist.isend(x, group_dst=right),
            ]
            works.append(dist.isend(x, right, everyone))
            works.append(dist.isend(x, group=dist.group.WORLD, dst=right))
            works.append(dist.isend(torch.nn.Parameter(x), right))
            works.append(dist.isend(x.to(torch.complex64), right))
            seen.append(dist.recv(x, left))
            seen.append(dist.recv(x, left, tag=repeat))
            seen.append(dist.recv(x, group_src=left))
            seen.append(dist.recv(x, left, everyone))
            seen.append(dist.recv(x, group=dist.group.WORLD, src=left))
            works.append(dist.irecv(x, left))
            works.append(dist.irecv(x.to(torch.complex64), group_src=left))
            assert all(isinstance(work, dist.Work) for work in works)
            seen.append(works[-1]._source_rank())
            for work in works:
                work.wait()
                work.wait()
            batch = [dist.P2POp(dist.isend, x, right), dist.P2POp(imported_isend, x, right)]
            batch += [dist.P2POp(dist.irecv, x, left), dist.P2POp(dist.irecv, x, left)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            to_myself = dist.isend(x, rank)
            dist.irecv(x, rank).wait()
            to_myself.wait()
        return seen

    both(f, meta(6), ranks=3)


def test_what_ranks_keep_to_themselves(both):
    def f(x, model):
        rank = dist.get_rank()
        torch.manual_seed(rank)
        torch.set_grad_enabled(rank == 0)
        torch.set_default_dtype(torch.float32)
        print(rank, random.random(), torch.rand(1).item(), torch.is_grad_enabled())
        y = model(x)
        dist.all_reduce(y.detach())
        return y.detach(), [p.numel() for p in model.parameters()]

    both(f, meta(2, 4), nn.Linear(4, 3, device="meta"), ranks=3)


# --- Random programs


def perform(x: Tensor, steps: Sequence[tuple[Any, ...]], split: int) -> str:
    """Carry out a program of steps."""
    size, rank = dist.get_world_size(), dist.get_rank()
    halves = [dist.new_group(list(range(split))), dist.new_group(list(range(split, size)))] if split else []
    works: list[dist.Work] = []
    for step in steps:
        match step:
            case ("send", peer, tag, elements):
                dist.send(x[:elements], peer, tag=tag)
            case ("isend", peer, tag, elements):
                works.append(dist.isend(x[:elements], peer, tag=tag))
            case ("recv", peer, tag, elements):
                dist.recv(x[:elements], peer, tag=tag)
            case ("irecv", peer, tag, elements):
                works.append(dist.irecv(x[:elements], peer, tag=tag))
            case ("wait", which):
                if works:
                    works.pop(which % len(works)).wait()
            case ("all_reduce", where, elements, asynchronous):
                group = halves[rank >= split] if halves and where else None
                work = dist.all_reduce(x[:elements], group=group, async_op=asynchronous)
                if asynchronous:
                    works.append(work)
            case ("broadcast", root):
                dist.broadcast(x, root)
            case ("barrier",):
                dist.barrier()
            case ("compute", elements):
                x[:elements] += 1
            case ("phase", label):
                with span(label):
                    x += 1
            case ("print", text):
                print(text)
            case ("raise", text):
                raise ValueError(text)
    for work in works:
        work.wait()
    return f"rank {rank}"


def random_programs(draw: random.Random, ranks: int) -> list[list[tuple[Any, ...]]]:
    """Programs in which most calls have their counterparts, mostly in an order that does not hang."""
    programs: list[list[tuple[Any, ...]]] = [[] for _ in range(ranks)]
    careless = draw.random() < 0.4
    for _ in range(draw.randint(1, 25)):
        kind, everyone = draw.random(), range(ranks)
        if kind < 0.6 and ranks > 1:
            source, target = draw.sample(everyone, 2)
            message = (draw.choice([0, 0, 1]), draw.choice([1, 5, 20, 60]))
            calls = [
                (source, ("send" if draw.random() < 0.4 else "isend", target, *message)),
                (target, ("recv" if draw.random() < 0.6 else "irecv", source, *message)),
            ]
            for rank, call in calls:
                if not (careless and draw.random() < 0.02):
                    programs[rank].append(call)
        elif kind < 0.7:
            call = ("all_reduce", draw.choice([0, 1]), draw.choice([1, 40]), draw.random() < 0.5)
            for rank in everyone:
                programs[rank].append(call)
        elif kind < 0.76:
            call = draw.choice([("barrier",), ("broadcast", draw.choice(everyone))])
            for rank in everyone:
                if not (careless and draw.random() < 0.05):
                    programs[rank].append(call)
        else:
            step = draw.choice(
                [("compute", 30), ("phase", "phase"), ("wait", draw.randint(0, 5)), ("print", "here")]
            )
            if careless and draw.random() < 0.1:
                step = ("raise", "no more")
            programs[draw.choice(everyone)].append(step)
    if careless:
        for program in programs:
            if draw.random() < 0.1 and len(program) > 1:
                place = draw.randrange(len(program) - 1)
                program[place], program[place + 1] = program[place + 1], program[place]
    return programs


@pytest.mark.parametrize("cluster", [*CLUSTERS, *DISTURBED])
def test_random_programs(cluster, both):
    endings = set()
    for seed in range(50):
        draw = random.Random(f"{cluster} {seed}")
        ranks = draw.randint(1, 6)
        split = draw.randrange(ranks)
        programs = per_rank(random_programs(draw, ranks))
        told = both(perform, meta(60), programs, split, ranks=ranks, cluster=(CLUSTERS | DISTURBED)[cluster])
        endings.add(told.get("error"))
    assert endings >= {None, "RankFailed", "RankLost" if cluster == "a lost rank" else "Deadlock"}


def exchanges(x: Tensor, rounds: Sequence[tuple[list[int], list[int], int]]) -> None:
    """In each round every rank sends to one, receives from one, and waits; some sit out."""
    rank = dist.get_rank()
    for targets, elements, tag in rounds:
        source = targets.index(rank)
        if targets[rank] != rank:
            sending = dist.isend(x[: elements[rank]], targets[rank], tag=tag)
            dist.recv(x[: elements[source]], source, tag=tag)
            sending.wait()


@pytest.mark.parametrize(
    ("cluster", "in_batches"),
    [
        (Cluster(4, 3, Link(0, 1e10), Link(1e-5, 3e7)), 18),
        # Buffered messages may stand behind others, and are replayed then.
        (Cluster(4, 3, Link(1e-6, 1e9), Link(1e-5, 1e9), eager_limit=2000), 5),
    ],
)
def test_random_exchanges_go_in_batches(cluster, in_batches, both, batches_used):
    for seed in range(20):
        draw = random.Random(seed)
        ranks = draw.randint(2, 12)
        rounds = [
            (
                draw.sample(range(ranks), ranks),
                [draw.randint(1, 1000) for _ in range(ranks)],
                draw.choice([0, 0, 0, 1]),
            )
            for _ in range(draw.randint(1, 6))
        ]
        both(exchanges, meta(1000), rounds, ranks=ranks, cluster=cluster)
    # A third of the launches were told not to; in a few all ranks sit out.
    assert batches_used[1::2] == [False] * 20
    assert sum(batches_used[0::2]) >= in_batches
    run = launch(exchanges, meta(10), [([*range(1, 16), 0], [10] * 16, 0)], ranks=16)
    assert run.traffic.messages == 16
    assert batches_used[-1]


# --- Programs that cannot be recorded


@pytest.fixture
def in_turns_too(monkeypatch):
    """The launches from now on that had to take turns after they could not be recorded."""
    by_turns, taken = simulated._in_turns, []

    def noted(request):
        taken.append(request)
        return by_turns(request)

    monkeypatch.setattr(simulated, "_in_turns", noted)
    return taken


def polls(x):
    work = dist.isend(x, (dist.get_rank() + 1) % dist.get_world_size())
    dist.recv(x, (dist.get_rank() - 1) % dist.get_world_size())
    polls = 0
    while not work.is_completed():
        polls += 1
    return polls


def receives_from_anyone(x):
    if dist.get_rank() == 0:
        return [dist.recv(x) for _ in range(dist.get_world_size() - 1)]
    return dist.send(x, 0)


def sums_data(x):
    y = torch.ones(3)
    dist.all_reduce(y)
    return y.tolist()


def sends_objects(x):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, dist.get_rank())
    return every


def asks_a_future(x):
    return dist.all_reduce(x, async_op=True).get_future().wait()[0].shape


def takes_no_for_an_answer(x):
    try:
        work = dist.irecv(x)
        work.wait()
    except:  # noqa: E722 - as careless as people are
        print("something went wrong")
    dist.barrier()


@pytest.mark.parametrize(
    "program", [polls, receives_from_anyone, sums_data, sends_objects, asks_a_future, takes_no_for_an_answer]
)
def test_what_depends_on_time_or_data_takes_turns(program, in_turns_too, monkeypatch):
    def f(x):
        print("once")
        return program(x)

    told = come_to(f, meta(4), ranks=3)
    assert len(in_turns_too) == 1
    assert told["outputs"][1].count("once") == 1
    monkeypatch.setattr(simulated, "moves_shapes_only", lambda arguments: False)
    assert come_to(f, meta(4), ranks=3) == told


def test_a_launch_is_recorded_only_if_all_its_tensors_are_meta():
    module = nn.Linear(2, 2)
    assert not moves_shapes_only(())
    assert not moves_shapes_only((1, "two"))
    assert not moves_shapes_only((meta(1), [torch.ones(1)]))
    assert not moves_shapes_only((meta(1), per_rank([{"x": torch.ones(1)}])))
    assert not moves_shapes_only((meta(1), module))
    assert moves_shapes_only((1, {"x": [meta(1)]}))
    assert moves_shapes_only((per_rank([meta(1)]), module.to("meta")))


# --- The end of a recording


def test_a_loop_without_end_is_stopped_and_named():
    def f(x):
        print("begins")
        dist.barrier()
        while dist.get_rank() == 1:
            pass

    with pytest.raises(TimedOut, match="rank 1 was not communicating") as caught:
        launch(f, meta(1), ranks=3, timeout=0.4, quiet=True)
    assert "while dist.get_rank() == 1" in caught.value.report
    assert caught.value.run.outputs == ["begins\n", "begins\n", ""]
    assert [event.op for event in caught.value.run.events] == ["barrier", "barrier"]


def test_an_interrupt_ends_the_recording():
    def f(x):
        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGINT)
        while dist.get_rank() == 2:
            pass

    with pytest.raises(KeyboardInterrupt):
        launch(f, meta(1), ranks=3)
    assert launch(lambda x: x.shape, meta(1), ranks=2).results == [(1,), (1,)]


def test_an_interrupt_while_a_rank_starts_ends_the_recording(monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(capture, "rank_thread", lambda rank, body: Interrupted(target=body))
    with pytest.raises(KeyboardInterrupt):
        launch(lambda x: x.shape, meta(1), ranks=2)


def test_torchs_functions_are_put_back():
    before = [getattr(dist, name) for name in ("send", "recv", "isend", "irecv")], dist.P2POp.__init__
    launch(lambda x: dist.barrier(), meta(1), ranks=2)
    with pytest.raises(RankFailed):
        launch(lambda x: x.view(9), meta(1), ranks=2)
    assert before == ([getattr(dist, n) for n in ("send", "recv", "isend", "irecv")], dist.P2POp.__init__)


def test_a_handle_outlives_its_run_without_harm():
    def f(x):
        work = dist.isend(x, 1 - dist.get_rank())
        dist.recv(x, 1 - dist.get_rank())
        work.wait()
        return lambda: (work.wait(), work.is_completed())

    ask, _ = launch(f, meta(1), ranks=2).results
    with pytest.raises(RuntimeError, match="has ended"):
        ask()


# --- Scale


def test_many_ranks_take_the_time_of_the_formulas(batches_used):
    alpha, beta, elements = 1e-5, 1e-9, 1 << 14
    cluster = Cluster(devices_per_node=1024, intra_node=Link(alpha, 1 / beta))
    for ranks, exercise, messages in (
        (128, "ring_all_reduce", 2 * 127),
        (1024, "halving_doubling_all_reduce", 2 * 10),
    ):
        run = launch(solved()[exercise], meta(elements), ranks=ranks, cluster=cluster)
        seconds = messages * alpha + 2 * (ranks - 1) / ranks * 4 * elements * beta
        assert run.seconds == pytest.approx(seconds, rel=1e-12)
        assert {rank.messages for rank in run.traffic.ranks} == {messages}
        assert {rank.sent for rank in run.traffic.ranks} == {2 * (ranks - 1) * 4 * elements // ranks}
    assert batches_used == [True, True]
    assert run.events[0].line.function == "swap"
