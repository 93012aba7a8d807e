"""The engine "processes": real ranks, what is recorded of them, and how each kind of failure is told."""

import multiprocessing
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import nbclient
import nbformat
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import (
    BadLaunch,
    Cluster,
    CollectiveMismatch,
    Deadlock,
    LeftOpen,
    RankFailed,
    Run,
    TimedOut,
    launch,
    per_rank,
    span,
)
from course_lib.beside import missing
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.intercepted_group import InterceptedGroup
from course_lib.runtime.processes import gloo_gaps, protocol, watchdog
from course_lib.runtime.processes.agents import Agents, ranks_here
from course_lib.runtime.processes.call_log import (
    CallLog,
    CallLogLost,
    Failed,
    RecordParser,
    Spanned,
    Started,
    Waits,
)
from course_lib.runtime.processes.completion import CompletionPoller
from course_lib.runtime.processes.gloo_gaps import carried_out
from course_lib.runtime.processes.logged_group import LoggedGroup
from course_lib.runtime.processes.observed_run import ObservedRun
from course_lib.runtime.processes.rank_failures import failures_of
from course_lib.runtime.request import LaunchRequest
from tests.newer_torch import SINCE_2_8
from workbook.run_notebook import OwnSocketsManager

ROOT = Path(__file__).parents[1]


def on_processes(function: Any, *arguments: Any, ranks: int = 2, timeout: float = 30, **options: Any) -> Run:
    return launch(function, *arguments, ranks=ranks, on="processes", timeout=timeout, quiet=True, **options)


def descendants() -> set[int]:
    """Processes below this one, apart from the warm process itself."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid for pid, parent in parents.items() if parent == os.getpid()} - {os.getpid()}


def warm_processes() -> list[int]:
    """Children of this process that ranks are forked from."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            parent = int((command.parent / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"node_agent import serve_here" in command.read_bytes():
                found.append(int(command.parent.name))
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def gone(pids: list[int], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def launch_folders(folder: Path) -> list[Path]:
    return list(folder.glob("course-*"))


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However a launch ends, no process and no file of it is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    # Tests of grading that ran before keep a warm process.
    before = descendants()
    yield
    # The ranks are gone when launch returns; their agent follows within a moment.
    assert gone(list(descendants() - before))
    assert launch_folders(folder) == []


# --- What a run gives


def test_results_arguments_and_outputs_are_those_of_each_rank() -> None:
    def sum_up(mine: torch.Tensor, everyones: int) -> tuple[int, torch.Tensor]:
        print("I am", dist.get_rank())
        os.write(2, b"below Python\n")
        dist.all_reduce(mine)
        return dist.get_rank() * everyones, mine

    run = on_processes(sum_up, per_rank([torch.full((3,), float(r)) for r in range(4)]), 10, ranks=4)
    assert [rank for rank, _ in run.results] == [0, 10, 20, 30]
    assert all(torch.equal(total, torch.full((3,), 6.0)) for _, total in run.results)
    # Prints and what is written to the descriptors below them stay apart by rank, in order.
    assert run.outputs == [f"I am {rank}\nbelow Python\n" for rank in range(4)]
    assert run.engine == "processes"
    assert run.unmatched == ()
    assert 0 < run.seconds < run.wall_seconds


def test_environment_is_torchruns() -> None:
    def seen() -> tuple[list[str], int]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        return [os.environ[name] for name in names], dist.get_node_local_rank()

    run = on_processes(seen, cluster=Cluster(nodes=2, devices_per_node=2), ranks=4)
    assert run.results == [
        (["0", "4", "0", "2", "0"], 0),
        (["1", "4", "1", "2", "0"], 1),
        (["2", "4", "0", "2", "1"], 0),
        (["3", "4", "1", "2", "1"], 1),
    ]


def test_no_thread_of_a_rank_takes_the_core_of_another_when_it_wakes_up() -> None:
    def policies() -> set[int]:
        dist.barrier()
        return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

    assert on_processes(policies).results == [{os.SCHED_BATCH}] * 2


def test_a_second_wait_for_a_message_returns_and_says_that_gloos_own_does_not() -> None:
    def exchange() -> tuple[float, float]:
        got, total, other = torch.zeros(1), torch.ones(1), 1 - dist.get_rank()
        works = [dist.isend(torch.ones(1), other), dist.irecv(got, other)]
        works.append(dist.all_reduce(total, async_op=True))
        for work in [*works, *works]:
            work.wait()
        return got.item(), total.item()

    run = on_processes(exchange)
    assert run.results == launch(exchange, ranks=2).results == [(1.0, 2.0)] * 2
    assert all(output.count("has been waited for before") == 1 for output in run.outputs)


def test_every_rank_starts_from_the_seed_alone() -> None:
    def draw() -> tuple[Any, ...]:
        import random

        import numpy as np

        return torch.rand(2).tolist(), random.random(), float(np.random.rand())

    torch.rand(3)
    first, second, other = (on_processes(draw, seed=seed).results for seed in (1, 1, 2))
    assert first[0] == first[1] == second[0]
    assert first[0] != other[0]


def test_tensors_and_modules_travel_as_copies() -> None:
    model = torch.nn.Linear(2, 1)
    rows = torch.arange(6.0).view(3, 2)

    def grow(model: torch.nn.Module, row: torch.Tensor) -> tuple[Any, ...]:
        model(row).sum().backward()
        with torch.no_grad():
            model.weight.fill_(7.0)
        return model, row.untyped_storage().nbytes(), row.to(torch.bfloat16), row.sum() * model.weight.sum()

    before = model.weight.detach().clone()
    run = on_processes(grow, model, per_rank([rows[0], rows[1]]))
    assert torch.equal(model.weight, before)
    for rank, (grown, stored, halved, product) in enumerate(run.results):
        assert torch.equal(grown.weight, torch.full((1, 2), 7.0))
        assert torch.equal(grown.weight.grad, rows[rank : rank + 1])
        # Only the row travels, not the storage that it is part of.
        assert stored == rows[rank].nbytes
        assert torch.equal(halved, rows[rank].to(torch.bfloat16))
        # A result with a history comes without it.
        assert not product.requires_grad


def test_a_run_leaves_no_trace_in_the_next() -> None:
    def pollute() -> int:
        torch.polluted = getattr(torch, "polluted", 0) + 1  # type: ignore[attr-defined]
        os.environ["POLLUTED"] = "yes"
        return torch.polluted  # type: ignore[attr-defined,no-any-return]

    assert on_processes(pollute).results == on_processes(pollute).results == [1, 1]
    assert "POLLUTED" not in os.environ


# --- What is recorded


def test_events_carry_times_traffic_and_the_line_of_the_call() -> None:
    def talk() -> None:
        x = torch.ones(4)
        if dist.get_rank() == 0:
            dist.send(x, dst=1, tag=5)
        else:
            dist.recv(x, src=0, tag=5)
        with span("sum"):
            dist.all_reduce(x)
        dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()
        dist.broadcast(x, src=1)

    run = on_processes(talk)
    first_line = talk.__code__.co_firstlineno
    for rank in range(2):
        events = [event for event in run.events if event.rank == rank]
        message, total, maximum, broadcast = (e for e in events if e.kind != Kind.SPAN)
        assert (message.op, message.tag, message.peer) == (("send", "recv")[rank], 5, 1 - rank)
        assert (message.sent, message.received) == ((16, 0), (0, 16))[rank]
        assert message.line is not None
        assert message.line.file == __file__
        assert message.line.line == first_line + (3, 5)[rank]
        assert message.line.function == "talk"
        # Ring: 2(p-1)/p n bytes in 2(p-1) messages.
        assert (total.op, total.sent, total.messages, total.nbytes) == ("all_reduce", 16, 2, 16)
        assert (total.detail, total.asynchronous, total.group) == ("float32[4], SUM", False, (0, 1))
        assert (maximum.detail, maximum.asynchronous) == ("float32[4], MAX", True)
        assert (broadcast.op, broadcast.peer, broadcast.sent) == ("broadcast", 1, 16 * rank)
        (phase,) = (e for e in events if e.kind == Kind.SPAN)
        assert phase.op == "sum"
        assert phase.start <= total.start <= total.end <= phase.end
        for event in events:
            assert 0 <= event.start <= event.end <= run.seconds
    assert [event.sequence for event in run.events] == list(range(len(run.events)))


def test_an_asynchronous_call_ends_when_it_is_over_not_when_it_is_waited_for() -> None:
    def overlap() -> None:
        x = torch.ones(4)
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        time.sleep(1)
        work.wait()

    run = on_processes(overlap)
    # The first call waits for whoever starts later.
    for rank in range(2):
        assert [event.seconds < 1 for event in run.events if event.rank == rank][1:] == [True]


def test_every_collective_is_recorded_under_its_name_on_every_rank() -> None:
    def every_collective() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        one = torch.ones(1) * rank
        many = [torch.zeros(1) for _ in range(size)]
        flat = torch.zeros(size)
        root = rank == 0
        gathered: list[Any] = [None] * size
        dist.broadcast(one.clone(), src=0)
        dist.reduce(one.clone(), dst=0)
        dist.all_reduce(one.clone())
        dist.gather(one, many if root else None, dst=0)
        dist.all_gather(many, one)
        dist.all_gather_into_tensor(flat, one)
        dist.scatter(torch.zeros(1), many if root else None, src=0)
        dist.reduce_scatter(torch.zeros(1), many)
        dist.reduce_scatter_tensor(torch.zeros(1), flat)
        dist.all_to_all([torch.zeros(1) for _ in range(size)], many)
        dist.all_to_all_single(torch.zeros(size), flat)
        dist.barrier()
        dist.monitored_barrier()
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": r} for r in range(size)]
        dist.broadcast_object_list([rank], src=0)
        dist.gather_object(rank, gathered if root else None, dst=0)
        dist.scatter_object_list([None], gathered if root else None, src=0)

    names = [
        "broadcast",
        "reduce",
        "all_reduce",
        "gather",
        "all_gather",
        "all_gather_into_tensor",
        "scatter",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "monitored_barrier",
    ]
    run = on_processes(every_collective, ranks=3)
    for rank in range(3):
        calls = [event.op for event in run.events if event.rank == rank]
        assert calls[: len(names)] == names
        # The object forms are made of calls on tensors.
        assert len(calls) > len(names)
    assert run.traffic.sent == sum(r.received for r in run.traffic.ranks)


def test_batches_of_messages_and_receives_from_anyone() -> None:
    def exchange() -> tuple[float, int]:
        rank, size = dist.get_rank(), dist.get_world_size()
        received = torch.zeros(1)
        operations = [
            dist.P2POp(dist.isend, torch.ones(1) * rank, (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if rank:
            dist.send(received, dst=0)
            return received.item(), -1
        return received.item(), sum(dist.recv(torch.zeros(1)) for _ in range(size - 1))

    run = on_processes(exchange, ranks=3)
    assert run.results == [(2.0, 3), (0.0, -1), (1.0, -1)]
    assert run.unmatched == ()
    from_anyone = [event.peer for event in run.events if event.rank == 0 and event.op == "recv"]
    assert sorted(from_anyone[1:]) == [1, 2]
    assert [event.asynchronous for event in run.events if event.rank == 1] == [True, True, False]


def test_a_receive_from_anyone_meets_the_send_that_comes_first_not_the_one_logged_first() -> None:
    def serve() -> list[tuple[int, int]]:
        rank = dist.get_rank()
        dist.barrier()
        if rank == 0:
            served = []
            for _ in range(2):
                size = torch.zeros(1)
                source = dist.recv(size)
                parts = torch.zeros(int(size))
                dist.recv(parts, src=source)
                served.append((source, len(parts)))
            return served
        if rank == 1:
            # It loses its core each time between what it says and what it does.
            logger, posted = LoggedGroup.logger, LoggedGroup.logger.posted

            def then_sleeps(*call: Any) -> int:
                number = posted(*call)
                time.sleep(0.4)
                return number

            logger.posted = then_sleeps  # type: ignore[method-assign]
        else:
            time.sleep(0.2)
        dist.send(torch.full((1,), rank + 1.0), dst=0)
        dist.send(torch.zeros(rank + 1), dst=0)
        return []

    run = on_processes(serve, ranks=3)
    served = run.results[0]
    assert sorted(served) == [(1, 2), (2, 3)]
    assert run.unmatched == ()
    sources = [event.peer for event in run.events if event.rank == 0 and event.op == "recv"]
    assert sources == [source for source, _ in served for _ in range(2)]


def test_two_receives_from_anyone_and_one_send() -> None:
    def program() -> None:
        if dist.get_rank():
            dist.send(torch.zeros(4), dst=0)
        else:
            for work in [dist.irecv(torch.zeros(4)) for _ in range(2)]:
                work.wait()

    with pytest.raises(Deadlock) as caught:
        on_processes(program)
    assert "recv(float32[4]) from any rank" in caught.value.report


def test_groups_and_meshes() -> None:
    def grouped() -> list[float]:
        from torch.distributed.device_mesh import init_device_mesh

        rank = dist.get_rank()
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=pairs[rank // 2])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        y = torch.tensor([float(rank)])
        dist.all_reduce(y, group=mesh.get_group("data"))
        return [x.item(), y.item()]

    run = on_processes(grouped, ranks=4)
    assert run.results == [[1.0, 2.0], [1.0, 4.0], [5.0, 2.0], [5.0, 4.0]]
    sums = [event for event in run.events if event.rank == 3 and event.op == "all_reduce"]
    assert [event.group for event in sums] == [(2, 3), (1, 3)]
    # Making a group is no communication of the student's.
    assert "new_group" not in {event.op for event in run.events}


def test_distributed_data_parallel_works_and_its_buckets_are_recorded() -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.ones(3, 4) * (1 + dist.get_rank())
        model(inputs).square().mean().backward()
        optimizer.step()
        return model.module.weight.detach()

    run = on_processes(train)
    assert torch.equal(run.results[0], run.results[1])
    buckets = [event for event in run.events if event.op == "all_reduce" and event.asynchronous]
    assert [event.rank for event in buckets].count(0) == 1
    # Eight weights and two biases in one bucket of float32.
    assert {event.nbytes for event in buckets} == {40}
    assert all(event.line is not None and "backward()" in event.line.text for event in buckets)
    assert all(event.end > event.start for event in buckets)


class OlderGloo:
    """A group that refuses what Gloo did not have before PyTorch 2.7, in the same words."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        if name in ("alltoall", "reduce_scatter"):
            return self._refuse
        return getattr(self._group, name)

    def _refuse(self, *_: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support this")


def test_what_an_older_gloo_lacks_is_made_of_what_it_has() -> None:
    def exchange() -> tuple[list[float], list[float], list[float]]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        older = OlderGloo(dist.group.WORLD._inner)  # type: ignore[union-attr]
        parts = [torch.full((each + 1,), 10.0 * rank + each) for each in range(ranks)]
        received = [torch.empty(rank + 1) for _ in range(ranks)]
        carried_out(older, "alltoall", (received, parts)).wait()
        own, options = torch.empty(rank + 1), dist.ReduceScatterOptions()
        carried_out(older, "reduce_scatter", ([own], [parts], options)).get_future().wait()
        mean, averaging = torch.tensor([float(rank)]), dist.AllreduceOptions()
        averaging.reduceOp = dist.ReduceOp.AVG  # type: ignore[assignment]
        gloo_gaps._DOES_NOT_AVERAGE = True
        work = carried_out(older, "allreduce", ([mean], averaging))
        while not work.is_completed():
            pass
        return torch.cat(received).tolist(), own.tolist(), mean.tolist()

    for rank, (received, summed, mean) in enumerate(on_processes(exchange, ranks=3).results):
        assert received == [10.0 * sender + rank for sender in range(3) for _ in range(rank + 1)]
        assert summed == [30.0 + 3 * rank] * (rank + 1)
        assert mean == [1.0]


@SINCE_2_8
def test_fsdp2_and_dtensor_work_and_are_recorded() -> None:
    def shard() -> torch.Tensor:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        fully_shard(model, mesh=mesh)
        model(torch.ones(2, 4)).sum().backward()
        full = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]).full_tensor()
        assert torch.equal(full, torch.arange(8.0))
        gradient = model[1].bias.grad.full_tensor()  # type: ignore[union-attr,operator]
        assert isinstance(gradient, torch.Tensor)
        return gradient

    run = on_processes(shard)
    assert torch.equal(run.results[0], torch.tensor([2.0, 2.0]))
    calls = set(run.traffic[0].calls)
    assert {"all_gather_into_tensor", "reduce_scatter_tensor"} <= {
        c.removesuffix("_coalesced") for c in calls
    }


def test_an_autograd_function_that_communicates_backwards() -> None:
    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient

    def differentiate() -> torch.Tensor | None:
        x = torch.ones(2, requires_grad=True)
        (Copied.apply(x) * (1 + dist.get_rank())).sum().backward()  # type: ignore[no-untyped-call]
        return x.grad

    run = on_processes(differentiate)
    assert torch.equal(run.results[0], torch.tensor([3.0, 3.0]))
    assert {event.line.function for event in run.events if event.line} == {"backward"}


# --- Deadlocks and mismatches


def test_both_receive_first() -> None:
    def program() -> None:
        x = torch.zeros(4)
        other = 1 - dist.get_rank()
        dist.recv(x, src=other)
        dist.send(x, dst=other)

    began = time.monotonic()
    with pytest.raises(Deadlock) as caught:
        on_processes(program, timeout=200)
    # The watchdog decides long before the deadline.
    assert time.monotonic() - began < 100
    assert caught.value.cycle == (0, 1)
    assert caught.value.finished == ()
    assert [call.op for call in caught.value.waiting] == ["recv", "recv"]
    report = caught.value.report
    assert "rank 0 waits for rank 1 to send; rank 1 waits for rank 0 to send" in report
    assert "dist.recv(x, src=other)" in report
    assert "recv(float32[4]) from rank 1, tag 0" in report


def test_both_send_first() -> None:
    def program() -> None:
        x = torch.zeros(4)
        other = 1 - dist.get_rank()
        dist.send(x, dst=other)
        dist.recv(x, src=other)

    with pytest.raises(Deadlock) as caught:
        on_processes(program)
    assert caught.value.cycle == (0, 1)
    assert "to receive" in caught.value.report


def test_a_rank_skips_a_collective_and_returns() -> None:
    def program() -> str:
        print("here")
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2))
        return "done"

    with pytest.raises(Deadlock) as caught:
        on_processes(program, ranks=3)
    assert caught.value.finished == (1,)
    assert [call.peers for call in caught.value.waiting] == [(1,), (1,)]
    assert "rank 1 to call all_reduce, but rank 1 has already returned" in caught.value.report
    # What had happened until then is there.
    assert caught.value.run is not None
    assert caught.value.run.outputs == ["here\n"] * 3
    assert [event.op for event in caught.value.run.events] == ["all_reduce"] * 2


def test_a_collective_meets_another_one_in_a_message() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.barrier()
        else:
            dist.recv(torch.zeros(1), src=0)

    with pytest.raises(Deadlock) as caught:
        on_processes(program)
    assert caught.value.cycle == (0, 1)


def test_a_rank_skips_the_backward_pass_of_distributed_data_parallel() -> None:
    def program() -> None:
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        loss = model(torch.ones(1, 2)).sum()
        if dist.get_rank() == 0:
            loss.backward()

    with pytest.raises(Deadlock) as caught:
        on_processes(program)
    assert caught.value.finished == (1,)
    # The wait is inside C++; it is found all the same, and the line is the student's.
    assert "rank 0 waits for rank 1 to call all_reduce" in caught.value.report
    assert "loss.backward()" in caught.value.report


def test_different_shapes() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(2 + dist.get_rank()))

    with pytest.raises(CollectiveMismatch) as caught:
        on_processes(program)
    assert "rank 0: all_reduce(float32[2], SUM)" in caught.value.report
    assert "rank 1: all_reduce(float32[3], SUM)" in caught.value.report


def test_different_order_of_two_collectives() -> None:
    def program() -> None:
        x = torch.ones(2)
        if dist.get_rank() == 0:
            dist.broadcast(x, src=0)
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
            dist.broadcast(x, src=0)

    with pytest.raises(CollectiveMismatch) as caught:
        on_processes(program)
    assert [call.op for call in caught.value.calls] == ["broadcast", "all_reduce"]
    assert "dist.broadcast(x, src=0)" in caught.value.report


def test_different_reductions_and_dtypes() -> None:
    def reductions() -> None:
        operation = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[dist.get_rank()]
        dist.all_reduce(torch.ones(2), op=operation)

    def dtypes() -> None:
        dist.all_reduce(torch.ones(2, dtype=(torch.float32, torch.float64)[dist.get_rank()]))

    for program in (reductions, dtypes):
        with pytest.raises(CollectiveMismatch):
            on_processes(program)


@pytest.mark.parametrize("source", [0, None])
def test_a_message_larger_than_its_receive(source: int | None) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.ones(8), dst=1)
        else:
            dist.recv(torch.ones(4), src=source)

    with pytest.raises(CollectiveMismatch) as caught:
        on_processes(program)
    assert "float32[8]" in caught.value.report
    assert "float32[4]" in caught.value.report


def test_mismatched_subgroups() -> None:
    def program() -> None:
        dist.new_group([0, 1] if dist.get_rank() == 0 else [0, 1, 2])

    with pytest.raises(CollectiveMismatch) as caught:
        on_processes(program, ranks=3)
    assert "new_group([0, 1])" in caught.value.report
    assert "new_group([0, 1, 2])" in caught.value.report


def test_a_subgroup_that_only_some_ranks_make() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.new_group([0, 1])
        dist.barrier()

    with pytest.raises(Deadlock) as caught:
        on_processes(program, ranks=2)
    assert {call.op for call in caught.value.waiting} == {"new_group", "barrier"}


def test_a_collective_of_a_subgroup_meets_one_of_the_world() -> None:
    def program() -> None:
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=pair if dist.get_rank() == 0 else None)

    with pytest.raises(Deadlock) as caught:
        on_processes(program, ranks=2)
    assert caught.value.cycle == (0, 1)


def test_a_slow_rank_is_no_deadlock() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            time.sleep(2.5)
        dist.all_reduce(torch.ones(1))

    assert on_processes(program).unmatched == ()


def test_a_send_that_nobody_receives_is_told_at_the_end() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(3), dst=1)

    with pytest.raises(LeftOpen, match=r"send\(float32\[3\]\) to rank 1") as stopped:
        on_processes(program)
    (call,) = stopped.value.run.unmatched
    assert (call.rank, call.op, call.peers) == (0, "send", (1,))


def test_a_send_whose_handle_is_dropped_is_named_by_its_receivers_timeout() -> None:
    # Invariant: who waits in vain learns whose message it was, and why it never came.
    def program() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(3), dst=1)
        dist.barrier()
        if dist.get_rank() == 1:
            dist.recv(torch.ones(3), src=0)

    with pytest.raises(TimedOut) as caught:
        on_processes(program, timeout=3)
    said = str(caught.value)
    assert re.search(r"rank 0: send\(float32\[3\]\) to rank 1.*, never waited for", said)
    assert "rank 1: recv(float32[3]) from rank 0" in said


# --- Failures


def test_a_rank_raises_while_others_wait() -> None:
    def inner(value: int) -> None:
        raise KeyError(f"no {value}")

    def program() -> None:
        if dist.get_rank() == 2:
            inner(7)
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankFailed) as caught:
        on_processes(program, ranks=3)
    (failure,) = caught.value.failures
    assert (failure.rank, failure.type, failure.secondary) == (2, "KeyError", False)
    # The student's lines, and nobody else's.
    assert "inner(7)" in failure.traceback
    assert "course_lib" not in failure.traceback
    assert "The other ranks were stopped while they waited" in caught.value.report
    assert "rank 0: all_reduce(float32[1], SUM)" in caught.value.report


def test_every_rank_raises() -> None:
    def program() -> None:
        raise ValueError("the same everywhere")

    with pytest.raises(RankFailed) as caught:
        on_processes(program, ranks=3)
    assert sorted(failure.rank for failure in caught.value.failures) == [0, 1, 2]
    assert caught.value.report.count("the same everywhere") < 4


def test_a_wrong_peer() -> None:
    def program() -> None:
        dist.send(torch.ones(1), dst=5)

    with pytest.raises(RankFailed) as caught:
        on_processes(program)
    assert "dist.send(torch.ones(1), dst=5)" in caught.value.report
    assert "There is no rank 5 in a group of 2" in caught.value.report


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (lambda: os._exit(3), "ProcessExit"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os.abort(), "SIGABRT"),
        (lambda: sys.exit(4), "SystemExit"),
    ],
    ids=["os._exit", "SIGKILL", "abort", "sys.exit"],
)
def test_a_rank_that_dies_is_the_root_and_closed_connections_are_not(ending: Any, kind: str) -> None:
    def program() -> None:
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            print("last words")
            ending()
        dist.all_reduce(x)

    with pytest.raises(RankFailed) as caught:
        on_processes(program, ranks=3)
    assert (caught.value.root.rank, caught.value.root.type) == (1, kind)
    assert all(failure.secondary for failure in caught.value.failures[1:])
    if kind != "SystemExit":
        assert "last words" in caught.value.root.traceback


def test_a_crash_shows_the_line() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            os.abort()
        dist.barrier()

    with pytest.raises(RankFailed) as caught:
        on_processes(program)
    assert "os.abort()" in caught.value.root.traceback


def test_a_result_that_cannot_be_sent_back() -> None:
    def program() -> Any:
        return threading.Lock()

    with pytest.raises(RankFailed, match=r"rank \d returned lock, which cannot be sent back"):
        on_processes(program)


@pytest.mark.parametrize("waits", [False, True])
def test_an_infinite_loop_is_stopped_at_the_deadline_and_told_where_it_was(waits: bool) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            while not waits:
                pass
            for lock in [threading.Lock()] * 2:
                lock.acquire()
        dist.all_reduce(torch.ones(1))

    began = time.monotonic()
    with pytest.raises(TimedOut) as caught:
        on_processes(program, timeout=2)
    assert time.monotonic() - began < 60
    assert "rank 0 was not communicating" in caught.value.report
    assert "test_processes.py" in caught.value.report
    assert "rank 1: all_reduce" in caught.value.report


def test_the_deadline_kills_grandchildren(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def program() -> None:
        child = subprocess.Popen(["sleep", "100"])
        # Not even a session of its own saves it.
        other = subprocess.Popen(["sh", "-c", "sleep 100 & wait"], start_new_session=True)
        with pids.open("a") as file:
            file.write(f"{child.pid}\n{other.pid}\n")
        time.sleep(100)

    with pytest.raises(TimedOut):
        on_processes(program, timeout=1)
    assert len(pids.read_text().split()) == 4
    assert gone([int(pid) for pid in pids.read_text().split()])


def test_endless_output_is_bounded() -> None:
    def program() -> None:
        while True:
            print("x" * 1000)

    with pytest.raises(TimedOut) as caught:
        on_processes(program, timeout=2)
    assert caught.value.run is not None
    assert all(len(output) < 1_100_000 for output in caught.value.run.outputs)
    assert "the rest of the output is left out" in caught.value.run.outputs[0]


# --- Launches that make no sense


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def helper() -> bool:
        return lock.locked()

    def program() -> bool:
        return helper()

    with pytest.raises(BadLaunch, match="helper uses lock, a lock"):
        on_processes(program)
    with pytest.raises(BadLaunch, match="Argument 0, a generator"):
        on_processes(print, (each for each in "abc"))


def test_unsendable_things_that_are_not_used_do_no_harm() -> None:
    namespace = {"unrelated": threading.Lock(), "large": bytearray(1000), "torch": torch}
    exec("def program():\n    return torch.ones(1).item()\n", namespace)
    assert on_processes(namespace["program"]).results == [1.0, 1.0]


def test_a_function_that_mentions_a_part_of_torch_can_be_sent() -> None:
    # torch.classes is a module that pickle refuses, and `data.classes` looks like a mention of it.
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import torch\ndef f(data):\n    return torch.ones(1), getattr(data, 'classes', 0) or data.classes",
        cell,
    )
    data = type("Data", (), {"classes": ("a", "b")})
    assert on_processes(cell["f"], data).results[1][1] == ("a", "b")


def test_nccl_without_gpus_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(BadLaunch, match="NCCL needs a GPU for each rank: a node here has 0 GPUs and 2 ranks"):
        on_processes(print, backend="nccl")
    with pytest.raises(BadLaunch, match='There is no backend "mpi" here'):
        on_processes(print, backend="mpi")


def test_a_rank_cannot_launch() -> None:
    def program() -> None:
        launch(print, ranks=2, on="processes")

    with pytest.raises(RankFailed, match="a rank cannot launch ranks"):
        on_processes(program)


# --- From elsewhere than a function in this file


def test_a_function_of_a_module_that_was_loaded_by_its_path(tmp_path: Path) -> None:
    import importlib.util

    source = tmp_path / "by_path.py"
    source.write_text("import torch\n\ndef helper():\n    return 5\n\ndef program():\n    return helper()\n")
    spec = importlib.util.spec_from_file_location("loaded_by_path", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded_by_path"] = module
    try:
        spec.loader.exec_module(module)
        assert on_processes(module.program).results == [5, 5]
    finally:
        del sys.modules["loaded_by_path"]


def python(code: str, folder: Path) -> "subprocess.Popen[str]":
    """A script of its own, without a guard round its launch."""
    script = folder / "script.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(ROOT)},
    )


SLEEPERS = """
import os, time, pathlib
from course_lib import launch
def total():
    import torch, torch.distributed as dist
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()
def sleeper():
    pathlib.Path({folder!r}, f"pid-{{os.getpid()}}").touch()
    time.sleep(100)
if {on!r} == "processes":
    print(launch(total, ranks=2, on={on!r}).results, flush=True)
for _ in range({launches}):
    try:
        launch(sleeper, ranks=2, on={on!r})
    except KeyboardInterrupt:
        print("interrupted", list(pathlib.Path({temporary!r}).glob("course-*")), flush=True)
"""


def sleeping_launches(folder: Path, on: str, launches: int) -> "subprocess.Popen[str]":
    """A script that waits for two sleeping ranks, as often as this."""
    places = {"folder": str(folder), "temporary": str(folder / "temporary")}
    return python(SLEEPERS.format(on=on, launches=launches, **places), folder)


def sleeping_ranks(folder: Path) -> list[int]:
    """The process ids of the ranks that have begun to sleep since this was last asked, when there are two."""
    deadline = time.monotonic() + 60
    while len(found := list(folder.glob("pid-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    for path in found:
        path.unlink()
    return [int(path.name.removeprefix("pid-")) for path in found]


@pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "Horovod is here")
def test_a_keyboard_interrupt_leaves_nothing_of_horovod(tmp_path: Path) -> None:
    process = sleeping_launches(tmp_path, "horovod", 1)
    ranks = sleeping_ranks(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120) == ("interrupted []\n", "")
    assert len(ranks) == 2
    assert gone(ranks, seconds=0)


def test_a_plain_script_is_interrupted_and_killed(tmp_path: Path) -> None:
    # Invariant: a script launches without a guard round it. When it is interrupted, nothing of the launch is
    # left and the next one works; when it is killed, its ranks die with it.
    process = sleeping_launches(tmp_path, "processes", 2)
    assert process.stdout is not None
    assert process.stdout.readline() == "[2.0, 2.0]\n"
    interrupted = sleeping_ranks(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted []\n"
    assert len(interrupted) == 2
    assert gone(interrupted, seconds=0)
    killed = sleeping_ranks(tmp_path)
    process.kill()
    assert process.communicate(timeout=120) == ("", "")
    assert len(killed) == 2
    assert gone(killed)
    deadline = time.monotonic() + 60
    while launch_folders(tmp_path / "temporary") and time.monotonic() < deadline:
        time.sleep(0.05)


def test_launches_from_several_threads_at_once() -> None:
    def total(x: torch.Tensor) -> float:
        dist.all_reduce(x)
        return x.item()

    results: dict[int, list[Any]] = {}

    def one(number: int) -> None:
        results[number] = on_processes(total, torch.tensor(float(number))).results

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2.0 * number] * 2 for number in range(3)}


def test_a_warm_process_that_was_killed_is_replaced() -> None:
    def number() -> int:
        return os.getppid()

    on_processes(number)
    (warm,) = warm_processes()
    os.kill(warm, signal.SIGKILL)
    assert len(on_processes(number).results) == 2
    assert warm not in warm_processes()


def test_a_function_of_a_notebook_cell() -> None:
    cells = [
        "import threading, torch, torch.distributed as dist\n"
        "from course_lib import launch, per_rank, Deadlock\n"
        "lock, large = threading.Lock(), torch.zeros(1_000_000)\n"
        "class Box:\n"
        "    def __init__(self, value): self.value = value\n",
        "def helper(x):\n    dist.all_reduce(x)\n    return Box(x.item())\n",
        "def total(x):\n    print('rank', dist.get_rank())\n    return helper(x)\n"
        "run = launch(total, per_rank([torch.ones(1)] * 2), ranks=2, on='processes')\n"
        "print([box.value for box in run.results], isinstance(run.results[0], Box))\n"
        "print(run.events[0].line.place)",
        "def stuck():\n    dist.recv(torch.zeros(1), src=1 - dist.get_rank())\n"
        "try:\n    launch(stuck, ranks=2, on='processes')\n"
        "except Deadlock as error:\n    print(error.report)",
        "import inspect\nlaunch(lambda: print(inspect.getsource(helper)[:10]), ranks=1, on='processes')",
        "def wrong():\n    return undefined_name\nlaunch(wrong, ranks=2, on='processes')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=200, allow_errors=True, kernel_manager_class=OwnSocketsManager
    )
    client.execute(cwd=str(ROOT))
    printed = notebook.cells[2].outputs[0].text
    assert "[rank 0] rank 0\n[rank 1] rank 1\n[2.0, 2.0] True\ncell In[2], line 2" in printed
    assert "cell In[4], line 2: dist.recv(torch.zeros(1)" in notebook.cells[3].outputs[0].text
    assert "[rank 0] def helper" in notebook.cells[4].outputs[0].text
    failure = notebook.cells[5].outputs[0]
    assert failure.ename == "RankFailed"
    assert "cell In[6], line 2: return undefined_name" in "\n".join(failure.traceback)


# --- Pieces


def test_every_method_that_communicates_is_logged() -> None:
    words = ("reduce", "gather", "scatter", "to_all", "toall", "barrier", "broadcast", "send", "recv")
    names = [name for name in dir(dist.ProcessGroup) if not name.startswith("__")]
    methods = {name for name in names if any(word in name for word in words)}
    assert methods - (vars(InterceptedGroup).keys() | vars(LoggedGroup).keys()) == set()


def test_a_closed_connection_is_never_the_root_unless_there_is_nothing_else() -> None:
    def failed(at: float, message: str) -> Failed:
        return Failed(at, "RuntimeError", message, (), f"RuntimeError: {message}")

    observed = ObservedRun(3)
    observed.add([(0, failed(1.0, "Connection closed by peer [127.0.0.1]:1234"))])
    (lonely,) = failures_of(observed.ranks, {}, ["", "", ""])
    assert (lonely.rank, lonely.secondary) == (0, False)
    observed.add([(2, failed(3.0, "third")), (1, failed(2.0, "second"))])
    failures = failures_of(observed.ranks, {}, ["", "", ""])
    assert [(each.rank, each.secondary) for each in failures] == [(1, False), (2, False), (0, True)]


def test_calls_on_a_gpu_end_when_they_report_it() -> None:
    class Work:
        over = False

        def is_completed(self) -> bool:
            return self.over

    ended: list[int] = []
    poller = CompletionPoller(ended.append)
    first, second = Work(), Work()
    poller.watch(1, first)
    poller.watch(2, second)
    second.over = True
    poller.drain(seconds=0.1)
    assert ended == [2]
    first.over = True
    poller.drain()
    assert ended == [2, 1]


def test_calls_that_several_threads_watch_are_counted_each() -> None:
    class Over:
        def is_completed(self) -> bool:
            return True

    ended: list[int] = []
    poller = CompletionPoller(ended.append)
    # So often that a count without a lock would lose some.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda first: [poller.watch(first + n, Over()) for n in range(500)], args=(k,)
            )
            for k in range(0, 4000, 500)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        poller.drain(seconds=30)
    finally:
        sys.setswitchinterval(interval)
    assert poller._open == 0
    assert sorted(ended) == list(range(4000))


def test_a_call_log_is_readable_while_a_record_is_half_written(tmp_path: Path) -> None:
    path, parser = tmp_path / "call-log", RecordParser()
    CallLog(path).write(Started(1.5))
    CallLog(path).write(Waits(3))
    whole = path.read_bytes()
    assert parser.feed(b"") == []
    assert parser.feed(whole[:-4]) == [Started(1.5)]
    assert parser.feed(whole[-4:]) == [Waits(3)]


def test_a_full_disk_leaves_whole_records_and_is_a_sentence(tmp_path: Path) -> None:
    # Invariant: what could not be written as a whole is not there, and what comes later can be read.
    def write() -> None:
        log = CallLog(tmp_path / "call-log")
        record = Spanned("a phase", 1.0, 2.0)
        log.write(record)
        size = os.path.getsize(tmp_path / "call-log")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size - 3, resource.RLIM_INFINITY))
        with pytest.raises(CallLogLost, match=r"cannot be recorded .*: make room on the disk"):
            log.write(record)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.write(Waits(3))

    child = multiprocessing.get_context("fork").Process(target=write)
    child.start()
    child.join()
    assert child.exitcode == 0
    records = RecordParser().feed((tmp_path / "call-log").read_bytes())
    assert records == [Spanned("a phase", 1.0, 2.0), Waits(3)]


def test_a_rank_whose_calls_cannot_be_recorded_says_why() -> None:
    def program() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        dist.barrier()

    with pytest.raises(RankFailed, match="most likely the disk of temporary files is full"):
        on_processes(program)


def test_a_write_that_the_kernel_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    log = CallLog(tmp_path / "call-log")
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    log.write(Spanned("a phase", 1.0, 2.0))
    monkeypatch.undo()
    assert RecordParser().feed((tmp_path / "call-log").read_bytes()) == [Spanned("a phase", 1.0, 2.0)]


# --- What it costs to import


def test_the_door_loads_no_torch_and_engines_nothing_that_draws() -> None:
    # Invariant: a script pays for torch at its first launch, and for matplotlib only if it draws.
    code = (
        "import sys; from course_lib import launch; print('torch' in sys.modules)\n"
        "import course_lib.launch.simulated, course_lib.launch.processes, course_lib.launch.slurm\n"
        "print([name for name in ('matplotlib', 'IPython', 'sklearn', 'ipywidgets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "[]"]


# --- Agents that come to a halt or fail


def stalled_agents(monkeypatch: pytest.MonkeyPatch) -> "tuple[Agents, socket.socket]":
    """An agent that has begun a launch of rank 3, and the socket at which it sits."""
    monkeypatch.setattr(protocol, "_PATIENCE_SECONDS", 0.2)
    ours, theirs = socket.socketpair()
    agents = Agents()
    channel = protocol.Channel(ours)
    agents.add(channel)
    plan = protocol.Plan(4, "gloo", 60, 0, "/", (), (), {}, {})
    agents.start(channel.fileno(), protocol.Start(plan, b"", {3: b""}))
    assert isinstance(Connection(os.dup(theirs.fileno())).recv(), protocol.Start)
    return agents, theirs


def test_a_message_that_stops_half_way_is_no_death_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, theirs = stalled_agents(monkeypatch)
    with theirs:
        request = LaunchRequest(print, (), 4, Cluster(devices_per_node=4), 60, 0, None)
        theirs.sendall(struct.pack("!i", 1000) + b"half")
        watched = watchdog.Watchdog(request, agents).watch()
        assert isinstance(watched.ending, watchdog.RanksFailed)
        assert "The process that holds rank 3 has stopped in the middle of a message" in watched.ending.report
        assert "SIGKILL" not in watched.ending.report
    agents.close()


def test_an_agent_that_reads_nothing_does_not_hold_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, theirs = stalled_agents(monkeypatch)
    (descriptor,) = agents._channels
    with theirs:
        agents.start(descriptor, protocol.Start(cast("Any", None), bytes(10_000_000), {3: b""}))
        assert "The process that holds rank 3 takes no messages" in agents.lost
    agents.close()


def test_an_agent_that_fails_says_so_and_is_no_death_of_the_rank(tmp_path: Path) -> None:
    missing_folder = str(tmp_path / "missing")
    plan = protocol.Plan(1, "gloo", 60, 0, "/", (), (), {}, {}, temporary_directory=missing_folder)
    request = LaunchRequest(print, (), 1, Cluster(devices_per_node=1), 60, 0, None)
    with ranks_here(protocol.Start(plan, b"", {0: b""})) as agents:
        watched = watchdog.Watchdog(request, agents).watch()
    assert isinstance(watched.ending, watchdog.RanksFailed)
    assert "The process that holds rank 0 has failed" in watched.ending.report
    assert (
        f"FileNotFoundError: [Errno 2] No such file or directory: '{missing_folder}" in watched.ending.report
    )
    assert "SIGKILL" not in watched.ending.report
