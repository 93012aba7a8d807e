"""Meta tensors have a shape and no data: a run with them does and costs what the run with data does."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import Cluster, CollectiveMismatch, Link, RankFailed, launch
from course_lib.runtime.communication.events import Event

TWO_NODES = Cluster(2, 2, intra_node=Link(1e-6, 1e10), inter_node=Link(1e-5, 1e9))


def every_collective(x: Tensor) -> Tensor:
    """Each collective of torch.distributed once or more, synchronous and not, on tensors like x."""
    rank, p = dist.get_rank(), dist.get_world_size()
    parts = [x.clone() for _ in range(p)]
    whole = torch.cat(parts)
    for root in range(p):
        dist.broadcast(x, root)
        dist.reduce(x, root, op=dist.ReduceOp.MAX)
        dist.gather(x, parts if rank == root else None, root)
        dist.scatter(x, parts if rank == root else None, root)
    sums, means = x.clone(), x.clone()
    works = [
        dist.all_reduce(sums, op=dist.ReduceOp.SUM, async_op=True),
        dist.all_reduce(means, op=dist.ReduceOp.AVG, async_op=True),
    ]
    dist.all_gather(parts, x)
    for work in works:
        work.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
    dist.reduce_scatter(x, parts)
    dist.all_to_all(parts, [x.clone() for _ in range(p)])
    dist.all_to_all_single(torch.empty_like(whole), whole)
    sizes = [rank + 1] * p
    dist.all_to_all_single(
        whole.new_empty(p * (rank + 1)), whole.new_empty(sum(range(p + 1))), sizes, [*range(1, p + 1)]
    )
    pairs = [dist.new_group([first, first + 1]) for first in range(0, p - 1, 2)]
    if rank // 2 < len(pairs):
        dist.all_reduce(x, group=pairs[rank // 2])
    dist.barrier()
    return x


def messages(x: Tensor) -> Tensor:
    """Messages of every kind: blocking, asynchronous, with tags, from anyone, batched."""
    rank, p = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    sending = [dist.isend(x, (rank + 1) % p, tag=tag) for tag in (1, 2)]
    dist.recv(y, (rank - 1) % p, tag=2)
    dist.recv(y, tag=1)
    for work in sending:
        work.wait()
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, (rank + 1) % p), dist.P2POp(dist.irecv, y, (rank - 1) % p)]
    ):
        work.wait()
    if rank == 0:
        dist.send(x, 1)
    if rank == 1:
        dist.recv(y, 0)
    return y


def on(device: str, program, *shape: int) -> Tensor:
    """The program on a tensor that the ranks make themselves, so that they take turns, data or not."""
    return program(torch.ones(*shape, device=device))


def without_the_word(event: Event) -> Event:
    return replace(event, detail=event.detail.replace(", meta", ""))


@pytest.mark.parametrize("cluster", [TWO_NODES, replace(TWO_NODES, eager_limit=10_000)])
@pytest.mark.parametrize("program", [every_collective, messages])
def test_a_run_without_data_has_the_events_of_the_run_with_data(program, cluster):
    with_data = launch(on, "cpu", program, 30, cluster=cluster)
    without = launch(on, "meta", program, 30, cluster=cluster)
    assert [without_the_word(event) for event in without.events] == list(with_data.events)
    assert without.seconds == with_data.seconds
    assert without.traffic == with_data.traffic
    for result, shape in zip(without.results, with_data.results, strict=True):
        assert result.is_meta
        assert result.shape == shape.shape


def test_data_and_no_data_do_not_meet():
    def f(call):
        x = torch.ones(4, device="meta" if dist.get_rank() else "cpu")
        call(x)

    def message(x):
        dist.recv(x, 1) if dist.get_rank() == 0 else dist.send(x, 0)

    with pytest.raises(CollectiveMismatch, match=r"send\(float32\[4\], meta\) to rank 0") as caught:
        launch(f, message, ranks=2)
    assert "recv(float32[4]) from rank 1" in caught.value.report
    assert "A meta tensor has no data" in caught.value.report
    with pytest.raises(CollectiveMismatch, match=r"all_reduce\(float32\[4\], meta, SUM\)"):
        launch(f, dist.all_reduce, ranks=2)


def test_a_list_of_tensors_with_and_without_data_is_refused():
    def f():
        dist.all_gather([torch.empty(2, device="meta"), torch.empty(2)], torch.empty(2))

    with pytest.raises(RankFailed, match=r"all_gather got 1 meta tensors.*among 3 tensors"):
        launch(f, ranks=2)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: dist.all_gather([x], x), "needs 2 parts.*got 1"),
        (lambda x: dist.all_to_all([x], [x, x]), "needs 2 parts.*got 1"),
        (lambda x: dist.all_gather([x, x[:2]], x), "of 4 elements, and at position 1 of its list one of 2"),
        (lambda x: dist.reduce_scatter(x, [x, x, x]), "needs 2 parts.*got 3"),
    ],
)
def test_lists_that_do_not_fit_the_group_are_named_where_they_are_passed(call, words, device):
    def f():
        call(torch.ones(4, device=device))

    with pytest.raises(RankFailed, match=words):
        launch(f, ranks=2)


def test_parts_of_an_all_to_all_that_do_not_fit_are_a_mismatch():
    def f():
        x = torch.empty(5, device="meta")
        dist.all_to_all_single(torch.empty(4, device="meta"), x, [2, 2], [2, 3])

    with pytest.raises(CollectiveMismatch, match="all_to_all_single"):
        launch(f, ranks=2)


def of_dtensors(device: str) -> Any:
    """What DTensor does between layouts, and in a product."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))

    def sharded(placement: Any, *shape: int) -> Any:
        return DTensor.from_local(torch.empty(*shape, device=device), mesh, [placement], run_check=False)

    for source, target in (
        (Partial(), Replicate()),
        (Partial(), Shard(0)),
        (Shard(0), Replicate()),
        (Shard(0), Shard(1)),
    ):
        _ = sharded(source, 4, 8).redistribute(mesh, [target]).to_local() + 1
    return (sharded(Shard(1), 4, 8) @ sharded(Shard(0), 8, 3)).full_tensor().shape


def test_dtensor_on_meta_is_counted_and_timed_as_with_data():
    runs = [
        launch(lambda x: of_dtensors(x.device.type), torch.ones(1, device=device), ranks=4)
        for device in ("cpu", "meta")
    ]
    events = [
        [(e.rank, e.op, e.nbytes, e.start, e.end, e.detail.replace(", meta", "")) for e in run.events]
        for run in runs
    ]
    assert events[0] == events[1]
    assert len(events[0]) == 5 * 4
    assert runs[0].results == runs[1].results


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_wrappers_that_need_data_say_so_on_meta(wrapper):
    def f(model):
        if wrapper == "DDP":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
        model(torch.empty(2, 4, device="meta")).sum().backward()

    with pytest.raises(RankFailed, match="so they need a model with data"):
        launch(f, nn.Linear(4, 4, device="meta"), ranks=2)
