"""Copies between a device and its host: what they take, what they hide behind, and what they leave."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib import Cluster, Link, Run, launch
from course_lib.cluster.device import Device
from course_lib.runtime.communication.events import Kind
from course_lib.training.host_memory import HostMemory
from course_lib.training.out_of_core import DoesNotFit, step

LINK = Link(latency=1.0, bandwidth=100.0)
DEVICE = Cluster(flops=1e3, memory_bandwidth=1e12, host=LINK)


def there_and_back(x: Tensor) -> tuple[list[bool], list[int]]:
    """Two tensors to the host and back, one of them twice: whether they are as they were, with their order in
    memory; and what lies there after each deletion.
    """
    host = HostMemory()
    sent = [x.mT, x > 0]
    first, second = map(host.to_host, sent)
    arriving = [first.to_device(), second.to_device(), first.to_device()]
    alike = [
        torch.equal(arrived, expected) and arrived.stride() == expected.stride()
        for arrived, expected in zip((each.wait() for each in arriving), [*sent, sent[0]], strict=True)
    ]
    held = [host.nbytes]
    del first
    held.append(host.nbytes)
    del second
    return alike, [*held, host.nbytes]


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_what_comes_back_is_what_went(on: str) -> None:
    # Values, dtype and order in memory are as they were, and nothing stays on the host without a reference.
    x = torch.arange(-6.0, 6.0).view(3, 4)
    run = launch(there_and_back, x, ranks=1, on=on, cluster=DEVICE if on == "simulated" else None)
    assert run.results == [([True] * 3, [48 + 12, 12, 0])]


def twenty_leave(x: Tensor, leaving: int | None) -> None:
    host = HostMemory(leaving)
    held = [host.to_host(x * number) for number in range(20)]
    del held


@pytest.mark.parametrize(("leaving", "most"), [(1, 3), (2, 4), (4, 6), (None, 21)])
def test_so_many_copies_leave_at_a_time(leaving: int | None, most: int) -> None:
    # Invariant: where the program is ahead of its device, the oldest copy is waited for before one too many
    # begins, and what has left is let go. On the device are those that leave, one at work, and the loop's.
    queued = Cluster(device=Device(memory_bandwidth=1e3, dispatch_seconds=1e-6), host=LINK)
    run = launch(twenty_leave, torch.ones(25), leaving, ranks=1, cluster=queued, memory=True)
    assert run.memory[0].peak_of("activations") <= most * 100
    in_step = Cluster(memory_bandwidth=1e3, host=LINK)
    with_its_device = launch(twenty_leave, torch.ones(25), leaving, ranks=1, cluster=in_step)
    assert not [event for event in with_its_device.events if event.kind is Kind.HOST]


@pytest.mark.gpu
def test_offloading_saves_memory_of_a_gpu() -> None:
    # Invariant: a program that is ahead of its GPU holds two of 20 tensors that leave, and one at work.
    device, host = torch.device("cuda", 0), HostMemory()
    x = torch.ones(1 << 24, device=device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = [host.to_host(x * number) for number in range(20)]
    nbytes = x.numel() * x.element_size()
    assert torch.cuda.max_memory_allocated() - before <= 4 * nbytes
    for number, each in enumerate(held):
        assert torch.equal(each.to_device().wait(), x * number)


def copied(run: Run) -> list[tuple[str, float, float, int]]:
    return [(e.op, e.start, e.end, e.nbytes) for e in run.events if e.kind is Kind.COPY]


def overlapping(x: Tensor, weight: Tensor) -> None:
    host = HostMemory()
    held = [host.to_host(x), host.to_host(x)]
    x @ weight
    arriving = [each.to_device() for each in held]
    arriving[0].wait()


def test_copies_of_a_direction_follow_each_other_beside_the_computing() -> None:
    # A copy takes the link's latency and its bytes, waits for those before it and for its way out, and the
    # rank's clock moves only where it waits.
    x, weight = torch.ones(5, 5), torch.ones(5, 5)
    run = launch(overlapping, x, weight, ranks=1, cluster=DEVICE)
    assert copied(run) == [
        ("to host", 0.0, 2.0, 100),
        ("to host", 2.0, 4.0, 100),
        ("to device", 2.0, 4.0, 100),
        ("to device", 4.0, 6.0, 100),
    ]
    assert run.seconds == pytest.approx(4.0)
    computing = 2 * 5**3 / 1e3
    assert sum(e.seconds for e in run.events if e.kind is Kind.COMPUTE) == pytest.approx(computing, rel=1e-3)


def test_without_a_link_copies_take_no_time() -> None:
    run = launch(overlapping, torch.ones(5, 5), torch.ones(5, 5), ranks=1)
    assert run.seconds == 0
    assert len(copied(run)) == 4


def held_on_device(x: Tensor) -> None:
    host = HostMemory()
    made = x + 1
    held = host.to_host(made)
    del made
    host.to_host(x[:0])
    back = held.to_device().wait()
    del back, held


def test_the_host_is_no_memory_of_the_device() -> None:
    # Activations on the device: one tensor until its copy is over, then, on its way back, one again.
    run = launch(held_on_device, torch.ones(5, 5), ranks=1, memory=True)
    assert run.memory[0].peak_of("activations") == 100
    assert run.memory[0].samples[-1].held["activations"] == 0


def offloaded(model: nn.Module, x: Tensor) -> Any:
    """A forward of meta tensors, whose copies take as long as those of data."""
    host = HostMemory()
    return host.to_host(model(x)).to_device().wait().shape


def test_tensors_without_data_take_their_time_too() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(5, 5), torch.empty(5, 5)
    run = launch(offloaded, model, x, ranks=2, cluster=Cluster(devices_per_node=2, host=LINK))
    assert run.seconds == 4.0
    assert run.results == [torch.Size((5, 5))] * 2


# --- the model of a step out of core


def test_a_step_out_of_core_by_hand() -> None:
    # Two layers of one second and 4 bytes; a copy takes 2 s, a backward 2 s.
    swapped = step(["swap", "keep"], [4, 4], [1, 1], capacity=8, bandwidth=2)
    assert [(span.layer, span.what, span.begin, span.end) for span in swapped.spans] == [
        (0, "forward", 0, 1),
        (0, "to host", 1, 3),
        (1, "forward", 1, 2),
        (1, "backward", 2, 4),
        (0, "to device", 3, 5),
        (0, "backward", 5, 7),
    ]
    assert (swapped.seconds, swapped.peak) == (7, 8)


@pytest.mark.parametrize(
    ("plan", "capacity", "seconds"),
    [
        (["keep", "keep"], 8, 6.0),
        (["recompute", "keep"], 4 + 4, 7.0),
        (["recompute", "recompute"], 4, 8.0),
        # Out from 1 to 3, so the second forward begins at 3; back from 6, when its backward is over.
        (["swap", "recompute"], 4, 11.0),
    ],
)
def test_what_a_plan_takes(plan: list[str], capacity: float, seconds: float) -> None:
    timed = step(plan, [4, 4], [1, 1], capacity, bandwidth=2)
    assert timed.seconds == seconds
    assert timed.peak <= capacity


def test_a_plan_that_does_not_fit_is_refused() -> None:
    for plan, capacity in ((["keep", "keep"], 7), (["keep", "swap"], 7), (["recompute"] * 2, 3)):
        with pytest.raises(DoesNotFit):
            step(plan, [4, 4], [1, 1], capacity, bandwidth=2)
