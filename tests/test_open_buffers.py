"""What a program may do with tensors of calls that are under way, and what is refused on simulated ranks."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import Cluster, launch
from course_lib.launch.failures import RankFailed

Program = Callable[[Tensor], None]
LARGE = 50_001
"""Elements of a tensor of which no copy is kept; their bytes are no whole number of words."""


def other() -> int:
    return 1 - dist.get_rank()


def receives_into_what_it_sends(x: Tensor) -> None:
    sending = dist.isend(x, other())
    dist.recv(x, other())
    sending.wait()


def sends_what_it_receives(x: Tensor) -> None:
    receiving = dist.irecv(x[2:], other())
    dist.send(x[1:3], other())
    receiving.wait()


def receives_twice_into_one(x: Tensor) -> None:
    works = [dist.irecv(x, other()), dist.irecv(x, other())]
    for _ in range(2):
        dist.send(torch.ones(4), other())
    for work in works:
        work.wait()


def sends_what_is_reduced(x: Tensor) -> None:
    reducing = dist.all_reduce(x, async_op=True)
    sending = dist.isend(x, other())
    dist.recv(torch.empty(4), other())
    for work in (reducing, sending):
        work.wait()


def writes_what_it_sends(x: Tensor) -> None:
    sending = dist.isend(x[:2], other())
    dist.recv(torch.empty(2), other())
    x[1] = 7
    sending.wait()


def writes_one_of_many(x: Tensor) -> None:
    """Whose tensor fills its memory."""
    many = torch.zeros(LARGE)
    sending = dist.isend(many, other())
    dist.recv(torch.empty(LARGE), other())
    many[4321] = 7
    sending.wait()


def writes_one_of_many_in_a_part(x: Tensor) -> None:
    """Whose memory is another tensor's too."""
    part = torch.zeros(2, LARGE)[1]
    sending = dist.isend(part, other())
    dist.recv(torch.empty(LARGE), other())
    part[4321] = 7
    sending.wait()


def writes_past_torch(x: Tensor) -> None:
    sending = dist.isend(x[:2], other())
    dist.recv(torch.empty(2), other())
    x.numpy()[1] = 7
    sending.wait()


def writes_many_past_torch(x: Tensor) -> None:
    many = torch.zeros(LARGE)
    sending = dist.isend(many, other())
    dist.recv(torch.empty(LARGE), other())
    many.data += 1
    sending.wait()


def two_futures_of_one(x: Tensor) -> None:
    futures = [dist.all_reduce(x, async_op=True).get_future() for _ in range(2)]
    for future in futures:
        future.wait()


def sends_what_a_future_waits_for(x: Tensor) -> None:
    future = dist.all_reduce(x, async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] / 2)
    sending = dist.isend(x, other())
    dist.recv(torch.empty(4), other())
    sending.wait()
    chained.wait()


def writes_before_its_future(x: Tensor) -> None:
    future = dist.all_reduce(x, async_op=True).get_future()
    x[2] = 2
    future.wait()


def writes_many_before_their_future(x: Tensor) -> None:
    many = torch.zeros(LARGE)
    chained = dist.all_reduce(many, async_op=True).get_future().then(lambda done: done.value()[0].add_(1))
    many[7] = 3
    chained.wait()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (two_futures_of_one, r"all_reduce\(.* still being read by all_reduce\("),
        (writes_before_its_future, r"all_reduce\(.* writes was written by this rank before its future"),
        (writes_many_before_their_future, r"all_reduce\(.* writes was written by this rank before its"),
        (sends_what_a_future_waits_for, r"send\(float32\[4\]\) .* still being written by all_reduce\("),
        (receives_into_what_it_sends, r"recv\(float32\[4\]\) .* still being read by send\(float32\[4\]\)"),
        (sends_what_it_receives, r"send\(float32\[2\]\) .* still being written by recv\(float32\[2\]\)"),
        (receives_twice_into_one, r"recv\(float32\[4\]\) .* still being written by recv\(float32\[4\]\)"),
        (sends_what_is_reduced, r"send\(float32\[4\]\) .* still being written by all_reduce\("),
        (writes_what_it_sends, r"The tensor of send\(float32\[2\]\) .* was written before wait\(\)"),
        (writes_past_torch, r"The tensor of send\(float32\[2\]\) .* was written before wait\(\)"),
        (writes_one_of_many, r"The tensor of send\(float32\[50001\]\) .* was written before wait\(\)"),
        (writes_one_of_many_in_a_part, r"The tensor of send\(float32\[50001\]\) .* was written before"),
        (writes_many_past_torch, r"The tensor of send\(float32\[50001\]\) .* was written before wait\(\)"),
    ],
)
@pytest.mark.parametrize("eager_limit", [0, 2**20])
def test_memory_of_an_open_call_is_its_own(program: Program, said: str, eager_limit: int) -> None:
    # Invariant: what differs from run to run elsewhere is refused here in every run, with both lines.
    cluster = Cluster(devices_per_node=2, eager_limit=eager_limit)
    with pytest.raises(RankFailed, match=said) as caught:
        launch(program, torch.arange(4.0), ranks=2, cluster=cluster)
    assert caught.value.root.type == "BufferInUse"
    assert re.search(r"called at test_open_buffers\.py, line \d+: ", caught.value.report)


def chunks_of_one_tensor(x: Tensor) -> None:
    work = [dist.isend(x[:2], other()), dist.irecv(x[2:], other())]
    for each in work:
        each.wait()


def one_tensor_to_many(x: Tensor) -> None:
    work = [dist.isend(x, other(), tag=tag) for tag in range(2)]
    for tag in range(2):
        dist.recv(torch.empty(4), other(), tag=tag)
    for each in work:
        each.wait()


def another_part_of_many(x: Tensor) -> None:
    many = torch.zeros(2, LARGE)
    for part, rest in (many, many.flip(0)):
        sending = dist.isend(part, other())
        dist.recv(rest, other())
        rest += 1
        sending.wait()


def again_after_waiting(x: Tensor) -> None:
    for _ in range(3):
        sending = dist.isend(x, other())
        dist.recv(torch.empty(4), other())
        sending.wait()
        x += 1
        dist.all_reduce(x)


def after_asking(x: Tensor) -> None:
    sending = dist.isend(x, other())
    dist.recv(torch.empty(4), other())
    while not sending.is_completed():
        pass
    x.zero_()


def through_a_future(x: Tensor) -> None:
    dist.all_reduce(x, async_op=True).get_future().wait()
    x.zero_()
    dist.all_reduce(x)


def through_many_futures(x: Tensor) -> None:
    for _ in range(2):
        parts = [dist.all_reduce(part, async_op=True).get_future() for part in x.split(2)]
        torch.futures.wait_all(parts)
    for _ in range(2):
        parts = [dist.all_reduce(part, async_op=True).get_future() for part in x.split(2)]
        torch.futures.collect_all(parts).then(lambda done: len(done.value())).wait()
    dist.all_reduce(x)


def again_in_a_callback(x: Tensor) -> None:
    """By then the first is over, and its memory may be given to another."""

    def twice(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        dist.all_reduce(done.value()[0], async_op=True).get_future().wait()
        return x

    dist.all_reduce(x, async_op=True).get_future().then(twice).wait()
    x.zero_()
    dist.all_reduce(x)


def written_in_a_callback(x: Tensor) -> None:
    many = torch.zeros(LARGE)
    for each in (x, many):
        mean = dist.all_reduce(each, async_op=True).get_future().then(lambda done: done.value()[0].div_(2))
        mean.then(lambda done: done.wait().add_(1)).wait()


def another_call_in_a_callback(x: Tensor) -> None:
    """It may be that by the clock the first is over too."""

    def add_up_again(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        half = done.value()[0].div_(2)
        dist.all_reduce(torch.ones(3))
        return half

    future = dist.all_reduce(x, async_op=True).get_future()
    dist.barrier()
    future.then(add_up_again).wait()


def filled_by_a_callback(x: Tensor) -> None:
    total: torch.futures.Future[float] = torch.futures.Future()
    future = dist.all_reduce(x, async_op=True).get_future()
    future.add_done_callback(lambda done: total.set_result(float(done.value()[0].sum())))
    assert total.wait() == 12
    future.wait()
    assert x.sum() == 12


def asked_until_it_is_over(x: Tensor) -> None:
    future = dist.all_reduce(x, async_op=True).get_future()
    while not future.done():
        pass
    x.zero_()
    dist.all_reduce(x)


def when_time_has_passed(x: Tensor) -> None:
    """Nobody waits for the future itself; what another call takes is longer."""
    dist.all_reduce(x, async_op=True).get_future()
    for _ in range(20):
        dist.all_reduce(torch.zeros(1000))
    dist.all_reduce(x)


def read_too_early(x: Tensor) -> None:
    """What is not there yet are no numbers; in a callback, and after waiting, they are there."""
    for wide in (x.double(), x.half(), torch.ones(LARGE)):
        future = dist.all_reduce(wide, async_op=True).get_future()
        assert wide.isnan().all()
        total = future.then(lambda done: done.value()[0].sum())
        assert not wide.isnan().any()
        assert total.wait() == wide.sum()
        dist.all_reduce(wide, async_op=True).get_future().wait()
        assert not wide.isnan().any()
    counts = torch.arange(4)
    future = dist.all_reduce(counts, async_op=True).get_future()
    assert counts.tolist() == [0, 2, 4, 6]
    future.wait()


def numbers_that_are_none(x: Tensor) -> None:
    x.fill_(torch.nan)
    again_after_waiting(x)


@pytest.mark.parametrize(
    "program",
    [
        chunks_of_one_tensor,
        one_tensor_to_many,
        another_part_of_many,
        again_after_waiting,
        after_asking,
        through_a_future,
        through_many_futures,
        again_in_a_callback,
        written_in_a_callback,
        another_call_in_a_callback,
        filled_by_a_callback,
        asked_until_it_is_over,
        when_time_has_passed,
        read_too_early,
        numbers_that_are_none,
    ],
)
def test_what_is_right_is_let_through(program: Program) -> None:
    # Twice, for what a launch leaves open must not disturb the next.
    for _ in range(2):
        launch(program, torch.arange(4.0), ranks=2)


def test_a_long_message_of_several_ranks_is_told_once() -> None:
    # It stands at the top; each rank's part has its lines, and says that it is the same.
    with pytest.raises(RankFailed) as caught:
        launch(receives_into_what_it_sends, torch.ones(3), ranks=2)
    report = str(caught.value)
    assert report.count("uses memory that is still being read") == 1
    assert report.count("BufferInUse, as above") == 2
