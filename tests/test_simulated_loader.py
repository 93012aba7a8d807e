"""Batches on their way to a simulated device: who prepares them, and who waits."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from course_lib import Cluster, Link, launch
from course_lib.cluster.device import Device
from course_lib.errors import BadLaunch
from course_lib.launch.run import Run
from course_lib.published import h100, on_h100
from course_lib.runtime.communication.events import Kind
from course_lib.training.simulated_loader import SimulatedLoader

X = torch.ones(10, 10)
"""A product of it takes the device 2 s."""
LINK = Link(latency=3.0, bandwidth=1e9)


def goes_through(loader: SimulatedLoader) -> list[float]:
    return [float((x @ X).sum()) for (x,) in loader]


def computes(loader: SimulatedLoader) -> None:
    for (x,) in loader:
        x @ X


def on(loader: SimulatedLoader, dispatch: float = 1.0) -> Run:
    cluster = Cluster(device=Device(flops=1e3, dispatch_seconds=dispatch), host=LINK)
    return launch(computes, loader, ranks=1, cluster=cluster)


def starts(run: Run, op: str) -> list[float]:
    return [event.start for event in run.events if event.op == op]


def test_without_workers_preparing_holds_the_program_up() -> None:
    # Each batch: 4 s of preparing, 1 s to queue the copy, 1 s to queue the product.
    run = on(SimulatedLoader([(X,)] * 3, seconds=4.0))
    assert starts(run, "to device") == [5.0, 11.0, 17.0]
    assert run.seconds == pytest.approx(17 + 3 + 2)


def test_workers_prepare_beside_the_program() -> None:
    # Two workers of 8 s each bring two batches every 8 s.
    run = on(SimulatedLoader([(X,)] * 4, seconds=8.0, workers=2))
    assert starts(run, "to device") == pytest.approx([9.0, 12.0, 17.0, 20.0], abs=1e-5)


def pauses(loader: SimulatedLoader) -> None:
    """Waits for what it computes of the first batch, longer than three batches take to prepare."""
    for number, (x,) in enumerate(loader):
        for _ in range(0 if number else 20):
            y = x @ X
        y[0, 0].item()


@pytest.mark.parametrize(("prefetch", "waited_for"), [(1, 3), (3, 1)])
def test_workers_prepare_no_further_ahead_than_they_may(prefetch: int, waited_for: int) -> None:
    # Invariant: after a pause of the program, as many batches are ready as may be.
    loader = SimulatedLoader([(X,)] * 4, seconds=9.0, workers=1, prefetch=prefetch)
    cluster = Cluster(device=Device(flops=1e3, dispatch_seconds=1.0))
    run = launch(pauses, loader, ranks=1, cluster=cluster)
    waits = [event for event in run.events if event.op == "waits" and "enumerate" in str(event.line)]
    assert len(waits) == waited_for


def test_from_memory_that_is_not_pinned_the_program_waits_for_each_copy() -> None:
    pinned, other = (on(SimulatedLoader([(X,)] * 3, seconds=0.0, pinned=pinned)) for pinned in (True, False))
    # From pinned memory only the link is in the way.
    assert starts(pinned, "to device") == pytest.approx([1.0, 4.0, 7.0], abs=1e-5)
    assert starts(other, "to device") == pytest.approx([1.0, 6.0, 11.0], abs=1e-5)


def test_in_step_with_its_program_a_device_waits_too() -> None:
    run = on(SimulatedLoader([(X,)] * 3, seconds=4.0), dispatch=0)
    assert run.seconds == pytest.approx(3 * (4 + 3 + 2))


def test_the_batches_are_those_given() -> None:
    run = launch(goes_through, SimulatedLoader([(X,), (2 * X,)], seconds=1.0), ranks=1)
    assert run.results == [[1000.0, 2000.0]]


def test_elsewhere_it_is_refused() -> None:
    def batches() -> Iterator[tuple[Tensor, ...]]:
        yield (X,)

    with pytest.raises(BadLaunch, match="only simulated ranks"):
        next(iter(SimulatedLoader(batches(), seconds=1.0)))


@pytest.mark.parametrize("batch", [128, 1024])
def test_workers_hide_what_the_h100s_host_needs_for_its_batches(batch: int) -> None:
    """Four of them: within 2 % of a loader that needs no time; and the device waits where there are none."""
    alone, helped = (on_h100.run_epoch(batch, "a sample at a time", workers, 12) for workers in (0, 4))
    preparing = sum(least + each * batch for least, each in [on_h100.PREPARING["a sample at a time"]])
    waits = sum(each.seconds for each in alone.events if each.kind is Kind.HOST and each.op == "waits")
    assert waits == pytest.approx(12 * preparing, rel=0.02)
    assert helped.seconds < alone.seconds - 9 * preparing


def test_epochs_of_the_h100_are_met_within_a_third_and_in_the_right_order() -> None:
    predicted = {key: on_h100.epoch_seconds(*key) for key in h100.EPOCHS}
    errors = [predicted[key] / seconds - 1 for key, seconds in h100.EPOCHS.items()]
    assert max(map(abs, errors)) < 1 / 3
    assert sum(abs(error) < 0.15 for error in errors) == 3
    assert sorted(predicted, key=predicted.__getitem__) == sorted(h100.EPOCHS, key=h100.EPOCHS.__getitem__)
