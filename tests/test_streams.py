"""`torch.cuda`'s streams and events on simulated ranks: what runs beside what, and who waits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import Cluster, Link, Run, launch
from course_lib.cluster.device import Device
from course_lib.launch.failures import RankFailed
from course_lib.runtime.communication.events import Kind

cuda: Any = torch.cuda
LARGE = torch.ones(10, 10)
"""A product of it takes the device 2 s; an operation takes the host 1 s, an all-reduce of two ranks 10 s."""
LINK = Link(latency=5.0, bandwidth=1e9)


def on(function: Callable[..., Any], ranks: int = 1, dispatch: float = 1.0) -> Run:
    device = Device(flops=1e3, dispatch_seconds=dispatch)
    cluster = Cluster(devices_per_node=ranks, intra_node=LINK, host=LINK, device=device)
    return launch(function, LARGE, ranks=ranks, cluster=cluster)


def spans(run: Run, kind: Kind, rank: int = 0) -> list[tuple[float, float]]:
    return [(round(e.start, 3), round(e.end, 3)) for e in run.events if e.kind is kind and e.rank == rank]


def reduces_beside(x: Tensor) -> None:
    """A product, its sum over the ranks in a side stream, and three products that do not need it."""
    side = cuda.Stream()
    y = x @ x
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        assert cuda.current_stream() is side
        dist.all_reduce(y)
    for _ in range(3):
        x @ x
    cuda.current_stream().wait_stream(side)
    y @ x


def reduces_in_line(x: Tensor) -> None:
    y = x @ x
    dist.all_reduce(y)
    for _ in range(3):
        x @ x
    y @ x


@pytest.mark.parametrize("dispatch", [1.0, 0.0])
def test_a_collective_in_a_side_stream_runs_beside_the_computing(dispatch: float) -> None:
    beside, in_line = (on(each, 2, dispatch) for each in (reduces_beside, reduces_in_line))
    ((start, end),) = spans(beside, Kind.COLLECTIVE)
    assert (start, end) == (dispatch + 2, dispatch + 12)
    assert any(begin < end and start < over for begin, over in spans(beside, Kind.COMPUTE))
    assert spans(beside, Kind.COMPUTE)[-1] == (dispatch + 12, dispatch + 14), (
        "what needs the sum waits for it"
    )
    assert in_line.seconds == pytest.approx(beside.seconds + 3 * 2)


def forgets_to_wait(x: Tensor) -> None:
    """The side stream reads a product that is not there yet: on a GPU its numbers would be wrong."""
    y = x @ x
    with cuda.stream(cuda.Stream()):
        dist.all_reduce(y)


def test_a_stream_that_does_not_wait_begins_before_its_data_is_there() -> None:
    ((start, _),) = spans(on(forgets_to_wait, 2), Kind.COLLECTIVE)
    assert start == 2, "when the host has queued it; the product is over at 3"


def computes_in_two(x: Tensor) -> list[float]:
    """Four products in turn in two streams, with an event before and after in each."""
    streams = [cuda.default_stream(), cuda.Stream()]
    events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in streams]
    for number in range(4):
        with cuda.stream(streams[number % 2]):
            if number < 2:
                events[number][0].record()
            x @ x
            events[number % 2][1].record()
    cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def test_two_streams_share_one_device() -> None:
    run = on(computes_in_two)
    assert spans(run, Kind.COMPUTE)[-1][1] == 1 + 4 * 2, "one product after the other"
    assert run.results == [[1e3 * (7 - 0), 1e3 * (9 - 1)]]
    assert spans(run, Kind.HOST)[-1][1] == 9, "the program waits for all streams"


def asks(x: Tensor) -> tuple[bool, bool, bool]:
    event, early = cuda.Event(), cuda.Event()
    early.record()
    x @ x
    event.record()
    x @ x
    before = event.query()
    event.synchronize()
    return early.query(), before, event.query()


def test_an_event_is_waited_for_and_what_comes_after_it_is_not() -> None:
    run = on(asks)
    assert run.results == [(True, False, True)]
    assert spans(run, Kind.HOST)[1] == (2, 3)
    assert run.seconds == 5


def hands_over(x: Tensor) -> None:
    side, ready = cuda.Stream(), cuda.Event()
    y = x @ x
    ready.record()
    x @ x
    ready.wait(side)
    with cuda.stream(side):
        dist.all_reduce(y)
    y.record_stream(side)
    side.synchronize()


def test_a_stream_waits_for_an_event_and_no_longer() -> None:
    run = on(hands_over, 2)
    assert spans(run, Kind.COLLECTIVE) == [(3, 13)], "the second product ends at 5"
    assert spans(run, Kind.HOST)[1] == (3, 13)


def test_off_ranks_torchs_own_are_there_before_and_after() -> None:
    before = cuda.Stream, cuda.Event, cuda.stream, cuda.synchronize
    on(asks)
    assert (cuda.Stream, cuda.Event, cuda.stream, cuda.synchronize) == before


def times_without_timing(x: Tensor) -> float:
    first, second = cuda.Event(), cuda.Event()
    first.record()
    second.record()
    return float(first.elapsed_time(second))


def test_an_event_without_timing_has_none() -> None:
    with pytest.raises(RankFailed, match="enable_timing=True"):
        on(times_without_timing)
