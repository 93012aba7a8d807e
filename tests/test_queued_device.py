"""A simulated device with a queue: what the host does, what the device does, and who waits for whom."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib import Cluster, Link, Run, launch
from course_lib.cluster.device import Device
from course_lib.errors import BadLaunch
from course_lib.figures.chrome_trace import trace_events
from course_lib.published import h100, on_h100
from course_lib.runtime.communication.events import Event, Kind
from course_lib.training.host_memory import HostMemory
from graders.protocol.records import cluster_from_plain, cluster_to_plain
from tests.answers import solved

QUEUE = Device(flops=1e3, dispatch_seconds=1.0)
"""A product of two 10 x 10 matrices takes it 2 s; an operation takes the host 1 s, and any other operation of
the device none."""
LINK = Link(latency=5.0, bandwidth=1e9)
SMALL, LARGE = torch.ones(1, 1), torch.ones(10, 10)


def on(function: Callable[..., Any], *arguments: Any, ranks: int = 1, **device: Any) -> Run:
    cluster = Cluster(devices_per_node=ranks, intra_node=LINK, host=LINK, device=Device(**device))
    return launch(function, *arguments, ranks=ranks, cluster=cluster, memory=True)


def queued(function: Callable[..., Any], *arguments: Any, ranks: int = 1) -> Run:
    return on(function, *arguments, ranks=ranks, flops=1e3, dispatch_seconds=1.0)


def told(run: Run, kind: Kind, rank: int = 0) -> list[tuple[str, float, float]]:
    return [(e.op, e.start, e.end) for e in run.events if e.kind is kind and e.rank == rank]


def four_products(x: Tensor) -> Tensor:
    for _ in range(4):
        y = x @ x
    return y


def test_small_operations_are_bound_by_the_host() -> None:
    run = queued(four_products, SMALL)
    assert run.seconds == pytest.approx(4, abs=0.1)
    assert told(run, Kind.HOST) == [("queues", 0, 4)]
    assert [start for _, start, _ in told(run, Kind.COMPUTE)] == [1, 2, 3, 4], "idle until the next one comes"


def test_large_operations_are_bound_by_the_device_and_the_host_runs_ahead() -> None:
    run = queued(four_products, LARGE)
    assert run.seconds == 1 + 4 * 2
    assert told(run, Kind.HOST) == [("queues", 0, 4)]
    assert told(run, Kind.COMPUTE) == [("compute", 1, 9)]


def asks_in_between(x: Tensor) -> tuple[bool, float]:
    four_products(x)
    number = (x @ x).sum().item()
    four_products(x)
    return torch.equal(x, x), number


def test_who_asks_for_a_number_waits_for_the_device() -> None:
    run = queued(asks_in_between, LARGE)
    first_wait = ("waits", 6, 11)
    assert told(run, Kind.HOST)[:2] == [("queues", 0, 6), first_wait]
    assert [str(e.line).split(": ")[1] for e in run.events if e.op == "waits"] == [
        "number = (x @ x).sum().item()",
        "return torch.equal(x, x), number",
    ]
    assert [op for op, *_ in told(run, Kind.HOST)].count("waits") == 2, "for .item(), and for torch.equal"
    assert run.results == [(True, 1000.0)]


def updates(model: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_an_optimizer_that_counts_its_steps_waits_for_nothing() -> None:
    # Adam reads its counters as numbers, and PyTorch has them on the host.
    run = queued(updates, nn.Linear(10, 10), LARGE)
    assert [op for op, *_ in told(run, Kind.HOST)] == ["queues"]


def fills(x: Tensor) -> list[Tensor]:
    return [x @ x for _ in range(4)]


def test_memory_is_taken_when_the_program_asks() -> None:
    samples = queued(fills, LARGE).memory[0].samples
    full = next(sample.seconds for sample in samples if sample.held.get("activations") == 4 * 400)
    assert full == 3, "three operations are queued, none of the device's is over before 3 s"
    in_step = on(fills, LARGE, flops=1e3).memory[0].samples
    assert next(s.seconds for s in in_step if s.held.get("activations") == 4 * 400) == 6


def exchanges(x: Tensor) -> None:
    y = x @ x
    work = dist.all_reduce(y, async_op=True)
    z = x @ x
    work.wait()
    z + y
    dist.barrier()
    x @ x


def test_a_collective_waits_for_what_was_queued_and_the_host_for_neither() -> None:
    run = queued(exchanges, LARGE, ranks=2)
    ((_, posted, ended),) = [each for each in told(run, Kind.COLLECTIVE) if each[0] == "all_reduce"]
    assert posted == 3, "the first product is over"
    assert ended == pytest.approx(3 + 2 * 5)
    assert [each for each in told(run, Kind.COMPUTE) if each[1] == 3] == [("compute", 3, 5)], "beside it"
    queues, waits, *_ = told(run, Kind.HOST)
    assert queues == ("queues", 0, 5), "two products, two collectives, one sum: a barrier alone holds it up"
    assert waits[0] == "waits"
    assert waits[2] == max(end for op, _, end in told(run, Kind.COLLECTIVE) if op == "barrier")


def returns(x: Tensor) -> None:
    host = HostMemory()
    held = host.to_host(x @ x)
    x @ x
    held.to_device().wait()
    x @ x


@pytest.mark.parametrize(("engines", "second"), [(2, 8), (1, 8)])
def test_what_leaves_waits_for_its_computing_and_what_comes_back_for_its_way_out(
    engines: int, second: int
) -> None:
    run = on(returns, LARGE, flops=1e3, dispatch_seconds=1.0, copy_engines=engines)
    (_, left, gone), (_, called, back) = told(run, Kind.COPY)
    assert (left, round(gone)) == (3, 8)
    assert (round(called), round(back)) == (second, second + 5)


def both_ways(x: Tensor) -> None:
    host = HostMemory()
    first = host.to_host(x)
    host.to_host(x)
    first.to_device().wait()


@pytest.mark.parametrize(("engines", "copies"), [(2, [0, 5, 5]), (1, [0, 5, 10])])
def test_one_copy_engine_serves_both_directions(engines: int, copies: list[int]) -> None:
    run = on(both_ways, LARGE, copy_engines=engines)
    assert [round(start) for _, start, _ in told(run, Kind.COPY)] == copies


def trains(model: nn.Module, x: Tensor) -> float:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(x * (dist.get_rank() + 1)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, async_op=True).wait()
        optimizer.step()
        optimizer.zero_grad()
    return float(model(x).sum())


def _without_sequence(events: Any) -> list[Event]:
    return sorted(events, key=lambda e: (e.sequence, e.rank, e.start))


def test_without_a_queue_a_device_is_the_clusters_two_rates() -> None:
    # Invariant: results, times and events are those of the shorthand, exactly.
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(4, 8)
    rates: dict[str, Any] = {"flops": 1e6, "memory_bandwidth": 1e7}
    short = launch(trains, model, x, ranks=3, cluster=Cluster(devices_per_node=3, **rates))
    whole = launch(trains, model, x, ranks=3, cluster=Cluster(devices_per_node=3, device=Device(**rates)))
    assert short.results == whole.results
    assert short.seconds == whole.seconds
    assert _without_sequence(short.events) == _without_sequence(whole.events)
    ahead = Device(**rates, dispatch_seconds=1e-9)
    nearly = launch(trains, model, x, ranks=3, cluster=Cluster(devices_per_node=3, device=ahead))
    assert nearly.results == short.results
    assert nearly.seconds == pytest.approx(short.seconds, rel=0.01), "a fast host hardly counts"


def filled(x: Tensor) -> Tensor:
    """Compares 400 bytes with a number into 100, then moves 900."""
    return x.masked_fill(x > 2, 0.0)


@pytest.mark.parametrize(
    ("rates", "operation", "seconds"),
    [
        ({"flops": 1e3, "half_flops": 1e4}, lambda x: x.bfloat16() @ x.bfloat16(), 0.2),
        ({"flops": 1e3, "half_flops": 1e4}, lambda x: x @ x, 2.0),
        ({"memory_bandwidth": 100.0}, filled, 5 + 9),
        ({"memory_bandwidth": 100.0, "cuda_kernels": True}, filled, 5 + 2 * 9),
    ],
)
def test_rates(rates: dict[str, Any], operation: Callable[[Tensor], Tensor], seconds: float) -> None:
    assert on(operation, LARGE, **rates).seconds == pytest.approx(seconds, rel=0.01)


def softmax_there_and_back(x: Tensor) -> None:
    x.softmax(-1).sum().backward()


def test_a_cuda_kernel_holds_more_than_its_result() -> None:
    x = torch.ones(50, 50, requires_grad=True)
    peaks = [
        on(softmax_there_and_back, x, cuda_kernels=cuda).memory[0].peak_of("activations")
        for cuda in (False, True)
    ]
    assert peaks[1] - peaks[0] == x.nbytes


def test_a_device_crosses_to_another_process_and_back() -> None:
    cluster = on_h100.CARD
    assert cluster_from_plain(cluster_to_plain(cluster)) == cluster


def test_host_and_device_have_rows_of_their_own() -> None:
    run = queued(asks_in_between, LARGE)
    assert "its host queues for" in run.timeline().alt  # type: ignore[attr-defined]
    names = {
        e["args"]["name"] for e in trace_events(run.events, run.cluster, 1) if e["name"] == "thread_name"
    }
    assert {"rank 0", "rank 0 host"} <= names


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Device(flops=0), "above 0, or None; got 0"),
        (lambda: Device(dispatch_seconds=-1), "at least 0 s; got -1"),
        (lambda: Device(copy_engines=3), "1 or 2 copy engines here; got 3"),
        (lambda: Cluster(flops=1.0, device=Device(flops=2.0)), "flops=2.0; the cluster was given 1.0"),
    ],
)
def test_numbers_that_make_no_device_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadLaunch, match=says):
        make()


# --- Offloading on the H100


def _offload_of(solution: Any, host: HostMemory, stays: list[Tensor], ahead: int) -> Any:
    """The solution's, which tells tensors by where their data lie: those without data lie nowhere."""
    offload = solution(host, stays, ahead)
    offload.known = {id(None)}
    pack, own = offload.pack, {tensor.untyped_storage()._cdata for tensor in stays}
    offload.pack = lambda tensor: tensor if tensor.untyped_storage()._cdata in own else pack(tensor)
    return offload


def _offloaded(model: nn.Module, x: Tensor, solution: Any, leaving: int | None, ahead: int) -> None:
    hooks: Any = nullcontext()
    if ahead:
        offload = _offload_of(solution, HostMemory(leaving), list(model.parameters()), ahead)
        hooks = saved_tensors_hooks(offload.pack, offload.unpack)
    with hooks:
        loss = model(x).square().mean()
    loss.backward()


def test_offloading_on_the_h100_is_met_in_seconds_and_bytes() -> None:
    # Invariant: six ways to keep activations are each met within 6 % in time and in peak memory, and in kind:
    # without a bound on the copies that leave, offloading saves nothing.
    solution = solved("09_memory")["HostOffload"]
    with on_h100.META:
        layers = [nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12)]
        model, x = nn.Sequential(*layers), torch.empty(16384, 4096)
    ways: list[tuple[int | None, int]] = [(None, 0), (None, 1), (1, 1), (2, 1), (2, 2), (4, 1)]
    seen = [
        launch(_offloaded, model, x, solution, *way, ranks=1, cluster=on_h100.CARD, memory=True)
        for way in ways
    ]
    for measured, run in zip(h100.OFFLOADS, seen, strict=False):
        assert run.seconds == pytest.approx(measured.seconds, rel=0.06), measured.way
        assert run.memory.peak / 2**30 == pytest.approx(measured.peak_gib, rel=0.06), measured.way
    kept, unbounded, *bounded = (run.memory.peak for run in seen)
    assert unbounded > kept
    assert all(peak < kept / 2 for peak in bounded)
