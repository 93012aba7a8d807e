"""A second process that records half of the ranks changes nothing but the time, and leaves nothing."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib import Cluster, Link, launch, span
from course_lib.launch import shape_only
from course_lib.runtime.processes.process_tree import _children
from course_lib.runtime.simulator.trace import forked as forking
from course_lib.runtime.simulator.trace.forked import forked
from tests.test_recording import come_to, meta, share_at_once, solved

ROOT = Path(__file__).parents[1]
SECONDS = 30.0
"""Longer than any answer takes here."""

RANKS = 8
LATER = range(5, RANKS)
"""Those that the second process records: two ranks of eight come before the fork, three after it."""


@pytest.fixture(autouse=True)
def nothing_left():
    processes, descriptors = set(_children()), set(os.listdir("/proc/self/fd"))
    yield
    assert set(_children()) <= processes
    assert set(os.listdir("/proc/self/fd")) <= descriptors


# --- A function in a copy of the process


def test_the_copy_answers_while_this_process_goes_on():
    seen = [1]
    with forked(lambda: (os.getpid(), [*seen, "there"])) as answer:
        seen.append(2)
        pid, there = answer(SECONDS)
    assert pid != os.getpid()
    assert there == [1, "there"]


def test_a_large_answer_comes_whole():
    with forked(lambda: random.Random(0).randbytes(10**7)) as answer:
        assert answer(SECONDS) == random.Random(0).randbytes(10**7)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: 1 / 0,
        lambda: sys.exit(3),
        lambda: lambda: "cannot be pickled",
        lambda: (b"long" * 10**6, threading.Lock()),
        lambda: os.kill(os.getpid(), signal.SIGKILL),
    ],
)
def test_no_answer(compute, capfd):
    with forked(compute) as answer:
        assert answer(SECONDS) is None
    assert capfd.readouterr() == ("", "")


def test_a_copy_that_is_late_is_ended():
    began = time.monotonic()
    with forked(lambda: time.sleep(SECONDS)) as answer:
        assert answer(0.05) is None
    assert time.monotonic() - began < SECONDS / 2


def test_a_copy_that_nobody_asks_is_ended():
    began = time.monotonic()
    with pytest.raises(ValueError, match="of the block"), forked(lambda: time.sleep(SECONDS)):
        raise ValueError("of the block")
    assert time.monotonic() - began < SECONDS / 2


def test_without_another_process_there_is_no_answer(monkeypatch):
    def no_process():
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_process)
    with forked(lambda: 1) as answer:
        assert answer(SECONDS) is None


def test_an_interrupt_does_not_reach_the_copy():
    with forked(lambda: os.kill(os.getpid(), signal.SIGINT) or "goes on") as answer:
        assert answer(SECONDS) == "goes on"


def test_an_interrupt_during_the_fork_comes_when_the_copy_can_be_ended(monkeypatch):
    fork = os.fork

    def interrupted():
        pid = fork()
        if pid:
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    monkeypatch.setattr(os, "fork", interrupted)
    with pytest.raises(KeyboardInterrupt), forked(lambda: time.sleep(SECONDS)):
        raise AssertionError("the interrupt has not come")


def test_warnings_that_were_shown_are_not_shown_again():
    def warn():
        warnings.warn("only once", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warn()
        with forked(warn) as answer:
            answer(SECONDS)
        warn()
    assert [str(warning.message) for warning in shown] == ["only once"]


def in_a_process_of_its_own(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_the_copy_leaves_streams_and_exit_handlers_to_the_parent():
    process = in_a_process_of_its_own(
        "import atexit\n"
        "from course_lib.runtime.simulator.trace.forked import forked\n"
        "atexit.register(print, 'exit')\n"
        "print('not written yet')\n"
        "with forked(lambda: 1) as answer:\n"
        "    print(answer(30))\n"
    )
    assert process.communicate() == ("not written yet\n1\nexit\n", None)


def test_the_copy_dies_with_its_parent():
    process = in_a_process_of_its_own(
        "import time\n"
        "from course_lib.runtime.simulator.trace.forked import forked\n"
        "with forked(lambda: time.sleep(60)):\n"
        "    print('under way', flush=True)\n"
        "    time.sleep(60)\n"
    )
    assert process.stdout.readline() == "under way\n"
    began = time.monotonic()
    process.kill()
    # The pipe's end comes when the last process that holds it has ended.
    assert process.communicate() == ("", None)
    assert time.monotonic() - began < 30


def test_a_second_process_needs_a_second_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert not forking.has_spare_core()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3})
    assert forking.has_spare_core()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert not forking.has_spare_core()


# --- Ranks


@pytest.fixture
def alone_and_shared(monkeypatch):
    """Record a program in one process and in two; assert that it comes to the same, and who recorded what."""

    def run(function, *arguments, taken_over=(LATER,), **options):
        alone = come_to(function, *arguments, **options)
        with monkeypatch.context() as patch:
            parts = share_at_once(patch)
            shared = come_to(function, *arguments, **options)
        for what, value in alone.items():
            assert shared[what] == value, what
        assert shared.keys() == alone.keys()
        assert parts == list(taken_over)
        return shared

    return run


@pytest.mark.parametrize("exercise", ["ring_all_reduce", "halving_doubling_all_reduce"])
def test_all_reduces(exercise, alone_and_shared):
    cluster = Cluster(4, 8, intra_node=Link(1e-6, 1e10), inter_node=Link(1e-5, 1e9))
    told = alone_and_shared(solved()[exercise], meta(100), cluster=cluster, taken_over=[range(17, 32)])
    assert told["results"] == [(torch.float32, (100,), (1,))] * 32


def test_what_only_later_ranks_do(alone_and_shared):
    """Entries and lines of both processes, in another order than in one."""

    def f(x):
        rank, size = dist.get_rank(), dist.get_world_size()
        # Groups that the first process comes to know early, late and never by its own ranks.
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

    alone_and_shared(f, meta(10), ranks=RANKS)


def test_where_ranks_of_both_processes_hang(alone_and_shared):
    def f(x):
        rank = dist.get_rank()
        print("begins")
        if rank in (3, 6):
            # Each in a line of its own: one is new in the first process, one in the second.
            message = dist.irecv(x, 9 - rank)
            if rank == 3:
                message.wait()
            else:
                message.wait()
        dist.barrier()
        print("never")

    told = alone_and_shared(f, meta(4), ranks=RANKS)
    assert told["error"] == "Deadlock"
    assert "rank 3" in told["report"]
    assert told["outputs"] == ["begins\n"] * RANKS


@pytest.mark.parametrize("rank", [3, 6])
def test_errors_come_from_this_process(rank, alone_and_shared):
    def f(x, fails):
        dist.barrier()
        if dist.get_rank() == fails:
            raise ValueError("once")

    # Ranks that have failed in the second process are recorded anew; those of this process stay.
    told = alone_and_shared(f, meta(4), rank, ranks=RANKS, taken_over=[LATER] if rank == 3 else [])
    assert told["error"] == "RankFailed"
    assert [failure.rank for failure in told["failures"]] == [rank]


def test_an_error_of_the_second_process_alone_is_no_error():
    launcher = os.getpid()

    def f(x):
        if os.getpid() != launcher:
            raise RuntimeError("cannot be done in a forked process")
        return dist.get_rank()

    with pytest.MonkeyPatch.context() as patch:
        assert share_at_once(patch) == []
        assert launch(f, meta(1), ranks=RANKS).results == [*range(RANKS)]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (lambda: Pair(1, torch.float32), True),
        (lambda: torch.ones(3, requires_grad=True), False),
        (lambda: torch.ones(3, requires_grad=True) * 2, False),
        (lambda: torch.nn.Linear(1, 1), False),
        (lambda: lambda: 1, False),
        (lambda: namedtuple("Pair", "left right")(1, 2), False),
        (lambda: Path(), False),
    ],
)
def test_results_that_are_not_plain_come_from_this_process(make, plain, monkeypatch):
    taken_over = share_at_once(monkeypatch)
    results = launch(lambda x: make(), meta(1), ranks=RANKS).results
    assert [type(result).__name__ for result in results] == [type(make()).__name__] * RANKS
    assert taken_over == ([LATER] if plain else [])


def test_a_later_rank_that_cannot_be_recorded(alone_and_shared):
    def f(x):
        work = dist.all_reduce(x, async_op=True)
        if dist.get_rank() == 6:
            work.is_completed()
        print("once")

    told = alone_and_shared(f, meta(4), ranks=RANKS)
    assert told["outputs"] == ["once\n"] * RANKS


def test_a_later_rank_in_a_loop_without_end_is_named(alone_and_shared):
    def f(x):
        print("begins")
        dist.barrier()
        while dist.get_rank() == 6:
            pass

    told = alone_and_shared(f, meta(4), ranks=RANKS, timeout=0.5)
    assert told["error"] == "TimedOut"
    assert "rank 6 was not communicating" in told["report"]
    assert "while dist.get_rank() == 6" in told["report"]


def test_an_earlier_rank_in_a_loop_without_end_is_named(alone_and_shared):
    def f(x):
        dist.barrier()
        while dist.get_rank() == 3:
            pass

    told = alone_and_shared(f, meta(4), ranks=RANKS, timeout=0.5, taken_over=[])
    assert "rank 3 was not communicating" in told["report"]


def test_a_second_process_that_is_gone_is_made_up_for(monkeypatch):
    taken_over, launcher = share_at_once(monkeypatch), os.getpid()

    def f(x):
        if os.getpid() != launcher:
            os.kill(os.getpid(), signal.SIGKILL)
        return dist.get_rank()

    assert launch(f, meta(1), ranks=RANKS).results == [*range(RANKS)]
    assert taken_over == []


@pytest.mark.parametrize("rank", [3, 6])
def test_an_interrupt_ends_both_processes(rank, monkeypatch):
    share_at_once(monkeypatch)
    launcher = os.getpid()

    def f(x):
        if dist.get_rank() == rank:
            os.kill(launcher, signal.SIGINT)
        while dist.get_rank() in (rank, max(LATER)):
            pass

    with pytest.raises(KeyboardInterrupt):
        launch(f, meta(1), ranks=RANKS, timeout=SECONDS)
    monkeypatch.undo()
    assert launch(lambda x: x.shape, meta(1), ranks=2).results == [(1,), (1,)]


def test_short_launches_stay_in_one_process(monkeypatch):
    def no_process():
        raise AssertionError("a process was forked")

    monkeypatch.setattr(os, "fork", no_process)
    assert launch(lambda x: dist.get_rank(), meta(1), ranks=RANKS).results == [*range(RANKS)]


class Clock:
    """A class, since ranks share classes."""

    seconds = 0.0


@pytest.mark.parametrize(
    ("slow", "seconds", "taken_over"),
    [
        # The first rank has torch import things, which says nothing of the others.
        (0, 10.0, []),
        (1, 10.0, [LATER]),
        # A fifth of a second has to pass, and the others have to take two at this rate.
        (1, 0.25, [LATER]),
        (1, 0.15, []),
        (3, 0.8, [range(6, RANKS)]),
        (5, 0.25, []),
        (6, 10.0, []),
    ],
)
def test_what_ranks_have_taken_so_far_decides(slow, seconds, taken_over, monkeypatch):
    limits = shape_only._ALONE_SECONDS, shape_only._WORTH_SECONDS
    taken = share_at_once(monkeypatch)
    monkeypatch.setattr(shape_only, "_ALONE_SECONDS", limits[0])
    monkeypatch.setattr(shape_only, "_WORTH_SECONDS", limits[1])
    monkeypatch.setattr(shape_only, "time", SimpleNamespace(perf_counter=lambda: Clock.seconds))

    def f(x):
        Clock.seconds += seconds * (dist.get_rank() == slow)

    launch(f, meta(1), ranks=RANKS)
    assert taken == taken_over
