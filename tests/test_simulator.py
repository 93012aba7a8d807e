"""The simulated engine does what `torch.distributed` promises, the same every time, and lets nothing leak."""

import contextlib
import importlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import (
    BadLaunch,
    Cluster,
    CollectiveMismatch,
    Deadlock,
    LeftOpen,
    Link,
    RankFailed,
    TimedOut,
    launch,
    mark,
    per_rank,
    span,
)
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.semantics import check_reducible
from course_lib.runtime.simulator.engine import RankStopped
from course_lib.runtime.simulator.rank_threads import interrupt, rank_thread
from tests.newer_torch import SINCE_2_8

RANKS = [1, 2, 3, 5]


def me() -> int:
    return dist.get_rank()


@pytest.fixture(autouse=True)
def no_rank_left():
    """Whatever a run ends with, no thread of it goes on."""
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


# --- Collectives: each against its definition


def all_reduce(op):
    x = torch.tensor([me() + 1.0, 2.0 * me()])
    dist.all_reduce(x, op=op)
    return x


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("op", "reduce"),
    [
        (dist.ReduceOp.SUM, lambda t: t.sum(0)),
        (dist.ReduceOp.AVG, lambda t: t.mean(0)),
        (dist.ReduceOp.PRODUCT, lambda t: t.prod(0)),
        (dist.ReduceOp.MIN, lambda t: t.min(0).values),
        (dist.ReduceOp.MAX, lambda t: t.max(0).values),
    ],
)
def test_all_reduce_is_the_reduction_over_all_ranks(ranks, op, reduce):
    everyone = torch.stack([torch.tensor([r + 1.0, 2.0 * r]) for r in range(ranks)])
    for result in launch(all_reduce, op, ranks=ranks).results:
        torch.testing.assert_close(result, reduce(everyone))


@pytest.mark.parametrize(("op", "expected"), [("BAND", 0), ("BOR", 7), ("BXOR", 7)])
def test_bitwise_reductions(op, expected):
    def f():
        x = torch.tensor(1 << me())
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        return int(x)

    assert launch(f, ranks=3).results == [expected] * 3


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.uint8, torch.complex64],
)
def test_every_dtype_travels_and_is_summed(dtype):
    def f():
        x = torch.ones(3, dtype=dtype)
        dist.all_reduce(x)
        y = torch.zeros(3, dtype=dtype)
        right, left = (me() + 1) % 3, (me() - 1) % 3
        work = dist.isend(x, right)
        dist.recv(y, left)
        work.wait()
        return y

    for result in launch(f, ranks=3).results:
        assert result.dtype == dtype
        assert torch.equal(result, torch.full((3,), 3, dtype=dtype))


def rooted(root: int) -> dict[str, Any]:
    p = dist.get_world_size()
    seen = {}
    x = torch.tensor([float(me())])
    dist.broadcast(x, src=root)
    seen["broadcast"] = x
    x = torch.tensor([me() + 1.0])
    dist.reduce(x, dst=root)
    seen["reduce"] = x if me() == root else None
    parts = [torch.zeros(2) for _ in range(p)] if me() == root else None
    dist.gather(torch.full((2,), float(me())), parts, dst=root)
    seen["gather"] = parts
    mine = torch.zeros(2)
    dist.scatter(mine, [torch.full((2,), 10.0 * r) for r in range(p)] if me() == root else None, src=root)
    seen["scatter"] = mine
    return seen


@pytest.mark.parametrize("ranks", RANKS)
def test_rooted_collectives_with_every_root(ranks):
    for root in range(ranks):
        for rank, seen in enumerate(launch(rooted, root, ranks=ranks).results):
            assert seen["broadcast"].item() == root
            assert torch.equal(seen["scatter"], torch.full((2,), 10.0 * rank))
            if rank == root:
                assert seen["reduce"].item() == ranks * (ranks + 1) / 2
                assert [part[0].item() for part in seen["gather"]] == list(range(ranks))


def exchanges() -> dict[str, Any]:
    p = dist.get_world_size()
    seen: dict[str, Any] = {}
    parts = [torch.zeros(2, 2) for _ in range(p)]
    dist.all_gather(parts, torch.full((2, 2), float(me())))
    seen["all_gather"] = [part[0, 0].item() for part in parts]
    whole = torch.zeros(p, 3)
    dist.all_gather_into_tensor(whole, torch.full((1, 3), float(me())))
    seen["all_gather_into_tensor"] = whole[:, 0].tolist()
    mine = torch.zeros(2)
    dist.reduce_scatter(mine, [torch.full((2,), float(r + me())) for r in range(p)])
    seen["reduce_scatter"] = mine[0].item()
    mine = torch.zeros(2)
    dist.reduce_scatter_tensor(mine, torch.arange(2.0 * p) + me())
    seen["reduce_scatter_tensor"] = mine.tolist()
    received = [torch.zeros(1) for _ in range(p)]
    dist.all_to_all(received, [torch.tensor([10.0 * me() + r]) for r in range(p)])
    seen["all_to_all"] = [t.item() for t in received]
    whole = torch.zeros(p)
    dist.all_to_all_single(whole, 10.0 * me() + torch.arange(float(p)))
    seen["all_to_all_single"] = whole.tolist()
    dist.barrier()
    return seen


@pytest.mark.parametrize("ranks", RANKS)
def test_unrooted_collectives(ranks):
    everyone = range(ranks)
    for rank, seen in enumerate(launch(exchanges, ranks=ranks).results):
        assert seen["all_gather"] == list(everyone)
        assert seen["all_gather_into_tensor"] == list(everyone)
        assert seen["reduce_scatter"] == sum(rank + r for r in everyone)
        base = sum(everyone)
        assert seen["reduce_scatter_tensor"] == [
            base + ranks * (2 * rank),
            base + ranks * (2 * rank + 1),
        ]
        assert seen["all_to_all"] == [10.0 * r + rank for r in everyone]
        assert seen["all_to_all_single"] == [10.0 * r + rank for r in everyone]


def test_all_to_all_single_with_uneven_splits():
    def f():
        # Rank r sends j + 1 elements to rank j, so it receives r + 1 from each.
        sends = [j + 1 for j in range(3)]
        out = torch.zeros(3 * (me() + 1))
        dist.all_to_all_single(out, torch.full((6,), float(me())), [me() + 1] * 3, sends)
        return out.tolist()

    for rank, got in enumerate(launch(f, ranks=3).results):
        assert got == [float(r) for r in range(3) for _ in range(rank + 1)]


def test_object_collectives():
    def f():
        p = dist.get_world_size()
        every: list[Any] = [None] * p
        dist.all_gather_object(every, {"rank": me()})
        shared = [f"from {me()}"]
        dist.broadcast_object_list(shared, src=1)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [(r, "x") for r in range(p)] if me() == 0 else None, src=0)
        gathered = [None] * p if me() == 2 else None
        dist.gather_object(me() ** 2, gathered, dst=2)
        if me() == 0:
            dist.send_object_list([1, "two"], dst=1)
        got: list[Any] = [None, None]
        if me() == 1:
            dist.recv_object_list(got, src=0)
        return every, shared, mine, gathered, got

    for rank, (every, shared, mine, gathered, got) in enumerate(launch(f, ranks=3).results):
        assert every == [{"rank": r} for r in range(3)]
        assert shared == ["from 1"]
        assert mine == [(rank, "x")]
        assert gathered == ([0, 1, 4] if rank == 2 else None)
        assert got == ([1, "two"] if rank == 1 else [None, None])


# --- Point to point


def test_messages_of_one_pair_keep_their_order_and_tags_keep_them_apart():
    def f():
        if me() == 0:
            works = [dist.isend(torch.tensor([float(i)]), 1, tag=i % 2) for i in range(6)]
            for work in works:
                work.wait()
            return None
        odd = [torch.zeros(1) for _ in range(3)]
        even = [torch.zeros(1) for _ in range(3)]
        for x in odd:
            dist.recv(x, 0, tag=1)
        for x in even:
            dist.recv(x, 0, tag=0)
        return [int(x) for x in odd + even]

    assert launch(f, ranks=2).results[1] == [1, 3, 5, 0, 2, 4]


def test_receive_from_anyone_says_from_whom():
    def f():
        if me() == 0:
            x = torch.zeros(1)
            return sorted((dist.recv(x), x.item()) for _ in range(2))
        dist.send(torch.tensor([10.0 * me()]), 0)
        return None

    assert launch(f, ranks=3).results[0] == [(1, 10.0), (2, 20.0)]


def test_batched_messages_both_ways():
    def f():
        p = dist.get_world_size()
        x, y = torch.tensor([float(me())]), torch.zeros(1)
        ops = [dist.P2POp(dist.isend, x, (me() + 1) % p), dist.P2POp(dist.irecv, y, (me() - 1) % p)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return y.item()

    assert launch(f, ranks=4).results == [3, 0, 1, 2]


def test_a_rank_that_only_asks_lets_the_others_go_on():
    def f():
        x = torch.zeros(1)
        if me() == 0:
            work = dist.irecv(x, 1)
            while not work.is_completed():
                pass
            return x.item()
        dist.send(torch.ones(1), 0)
        return None

    assert launch(f, ranks=2).results[0] == 1.0


def test_asking_several_in_turn_sees_each_when_it_is_over():
    # Rank 0 serves whoever is there; ranks 1 to 3 send after 10, 13 and 80 ms, three times.
    def f():
        if me():
            x = torch.zeros(7)
            for _ in range(3):
                busy([0, 10, 13, 80][me()])
                dist.send(x, 0)
            return
        left = dict.fromkeys(range(1, 4), 3)
        open_ = {k: dist.irecv(torch.empty(7), k) for k in left}
        while open_:
            for k in list(open_):
                if open_[k].is_completed():
                    open_.pop(k).wait()
                    left[k] -= 1
                    if left[k]:
                        open_[k] = dist.irecv(torch.empty(7), k)
        return

    cluster = Cluster(devices_per_node=4, intra_node=Link(latency=1e-6, bandwidth=1e9), flops=1e9)
    run = launch(f, cluster=cluster)
    for peer in range(1, 4):
        received = [event for event in run.events if event.op == "recv" and event.peer == peer]
        assert len(received) == 3
        # The next receive is opened some questions after the last one's message has come.
        assert all(b.start - a.end < 20e-6 for a, b in itertools.pairwise(received))


def busy(milliseconds):
    """Compute for so long on a device of 1 GFLOP/s."""
    torch.ones(milliseconds, 100) @ torch.ones(100, 5000)


def test_asking_all_before_any_is_served_does_not_jump_ahead():
    # Invariant: what comes after 10, 20 and 30 ms is seen then, in whatever order a program asks.
    def f():
        if me():
            busy(10 * me())
            dist.send(torch.zeros(7), 0)
            return
        left = [dist.irecv(torch.empty(7), peer) for peer in (1, 2, 3)]
        while left:
            over = [work for work in left if work.is_completed()]
            for work in over:
                mark("served")
                left.remove(work)

    cluster = Cluster(devices_per_node=4, intra_node=Link(latency=1e-6, bandwidth=1e9), flops=1e9)
    events = launch(f, cluster=cluster).events
    served = [event.start for event in events if event.op == "served"]
    come = sorted(event.end for event in events if event.op == "recv")
    assert [round(end, 3) for end in come] == [0.01, 0.02, 0.03]
    assert all(0 <= b - a < 20e-6 for a, b in zip(come, served, strict=True))


def test_asking_one_goes_on_where_another_is_over_and_never_asked_again():
    def f():
        if me():
            busy(200 if me() == 1 else 1)
            dist.send(torch.ones(1), 0)
            return None
        late, early = dist.irecv(torch.empty(1), 1), dist.irecv(torch.empty(1), 2)
        assert not early.is_completed()
        asked = 0
        while not late.is_completed():
            asked += 1
        early.wait()
        return asked

    cluster = Cluster(devices_per_node=3, intra_node=Link(latency=1e-6, bandwidth=1e9), flops=1e9)
    assert launch(f, cluster=cluster).results[0] < 200


def test_asynchronous_collectives_complete_on_wait():
    def f():
        xs = [torch.full((4,), float(me() + i)) for i in range(3)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        for work in reversed(works):
            work.wait()
        futures = [dist.all_reduce(x, async_op=True).get_future() for x in xs]
        for future in futures:
            future.wait()
        return [x[0].item() for x in xs]

    assert launch(f, ranks=2).results == [[2.0, 6.0, 10.0]] * 2


def test_a_callback_waits_for_a_future_that_is_over():
    # What is chained to a future runs when it is done: there, waiting for it does not move the clock.
    def f():
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        future = work.get_future()
        chained = future.then(lambda done: (work.wait(), future.wait(), done.wait()[0])[-1])
        mark("chained")
        torch.futures.wait_all([chained])
        mark("waited")

    ends = {event.op: event.end for event in launch(f, ranks=2).events}
    assert ends["chained"] == 0
    assert ends["waited"] == ends["all_reduce"] > 0


def test_messages_need_contiguous_tensors_as_on_gloo():
    with pytest.raises(RankFailed, match=r"contiguous.*\.contiguous\(\)"):
        launch(lambda: dist.send(torch.ones(3, 3).t(), 1 - me()), ranks=2)


@pytest.mark.parametrize("peer", [2, -1])
def test_a_peer_that_does_not_exist_is_named(peer):
    with pytest.raises(RankFailed, match=f"There is no rank {peer} in a group of 2"):
        launch(lambda: dist.send(torch.ones(1), peer), ranks=2)


# --- Groups


def test_subgroups_and_meshes():
    def f():
        from torch.distributed.device_mesh import init_device_mesh

        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.tensor([float(me())])
        dist.all_reduce(x, group=pairs[me() // 2])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        y, z = torch.tensor([float(me())]), torch.tensor([float(me())])
        dist.all_reduce(y, group=mesh["tp"].get_group())
        dist.all_reduce(z, group=mesh["dp"].get_group())
        return x.item(), y.item(), z.item(), mesh.get_local_rank("dp")

    assert launch(f, ranks=4).results == [(1, 1, 2, 0), (1, 1, 4, 0), (5, 5, 2, 1), (5, 5, 4, 1)]


def test_ranks_of_a_subgroup_are_translated():
    def f():
        group = dist.new_group([1, 3])
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            return None
        x = torch.tensor([float(me())])
        dist.broadcast(x, src=3, group=group)
        return x.item(), dist.get_rank(group), dist.get_world_size(group)

    assert launch(f, ranks=4).results == [None, (3, 0, 2), None, (3, 1, 2)]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:nccl", dist.Backend.GLOO])
def test_a_subgroup_may_name_gloo(backend: str):
    # Invariant: what runs with Gloo runs on simulated ranks, also where it says so.
    def f():
        x = torch.ones(())
        dist.all_reduce(x, group=dist.new_group([0, 1], backend=backend))
        return x.item()

    assert launch(f, ranks=2).results == [2, 2]


# --- Autograd and torch's own parallel modules


def test_ranks_with_fewer_batches_join():
    # Invariant: no call is left open in `with model.join():`, which both engines run alike.
    def f():
        model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with model.join():
            for _ in range(1 + me()):
                model.zero_grad()
                model(torch.full((1, 1), 6.0)).sum().backward()
        return model.module.weight.grad.item()

    assert launch(f, ranks=3).results == [6, 4, 2]


class SumForward(torch.autograd.Function):
    """All-reduce forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def test_a_backward_pass_may_communicate():
    def f():
        x = torch.ones(2, requires_grad=True)
        (SumForward.apply(x * (me() + 1)) * (me() + 1)).sum().backward()
        return x.grad

    results = launch(f, ranks=3).results
    for rank, grad in enumerate(results):
        # d/dx of rank r's input: the sum over ranks of (s + 1), times its own factor r + 1.
        assert torch.equal(grad, torch.full((2,), 6.0 * (rank + 1)))


def small_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def inputs_of(rank: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))


def mean_gradients(ranks: int) -> list[Tensor]:
    model = small_model()
    sum(model(inputs_of(r)).square().mean() / ranks for r in range(ranks)).backward()
    return [p.grad for p in model.parameters()]


def test_torchs_ddp_runs_on_simulated_ranks():
    def f():
        model = nn.parallel.DistributedDataParallel(small_model())
        model(inputs_of(me())).square().mean().backward()
        return [p.grad for p in model.parameters()]

    expected = mean_gradients(3)
    for grads in launch(f, ranks=3).results:
        for grad, wanted in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, wanted)


@SINCE_2_8
def test_fsdp2_runs_on_simulated_ranks():
    def f():
        from torch.distributed.fsdp import fully_shard

        model = small_model()
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        model(inputs_of(me())).square().mean().backward()
        return [p.grad.full_tensor() for p in model.parameters()]

    expected = mean_gradients(4)
    for grads in launch(f, ranks=4).results:
        for grad, wanted in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, wanted)


def test_a_state_dict_comes_from_rank_0_to_shards():
    # Invariant: a whole state that only rank 0 has is what all shards hold afterwards. On the way torch asks
    # the group for which devices it is.
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard

    def loaded(weight: Tensor) -> Tensor:
        model = fully_shard(nn.Linear(3, 4, bias=False))
        options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        whole = {"weight": weight} if dist.get_rank() == 0 else {}
        state_dict.set_model_state_dict(model, whole, options=options)
        return model.weight.full_tensor().detach()

    weight = torch.arange(12.0).view(4, 3)
    for result in launch(loaded, weight, ranks=2).results:
        torch.testing.assert_close(result, weight)

    def devices() -> set[str]:
        return {device.type for device in dist.group.WORLD._device_types}  # type: ignore[union-attr]

    assert launch(devices, ranks=2).results == launch(devices, ranks=2, on="processes").results


def test_dtensor_runs_on_simulated_ranks():
    def f():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        a = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0), Replicate()])
        b = distribute_tensor(torch.eye(4) * 2, mesh, [Replicate(), Shard(1)])
        product = a @ b
        return product.to_local().shape, product.full_tensor()

    for shape, product in launch(f, ranks=4).results:
        assert shape == (2, 2)
        assert torch.equal(product, 2 * torch.arange(16.0).view(4, 4))


# --- What ranks do not share


def noisy() -> dict[str, Any]:
    before = torch.rand(1).item(), random.random(), np.random.rand()
    dist.barrier()
    if me() == 0:
        torch.rand(5), random.random(), np.random.rand(3)
    dist.barrier()
    print("I am", me())
    print("to stderr", file=sys.stderr)
    os.environ["MINE"] = str(me())
    dist.barrier()
    after = torch.rand(1).item(), random.random(), np.random.rand()
    return {
        "before": before,
        "after": after,
        "env": (os.environ["RANK"], os.environ["WORLD_SIZE"], os.getenv("LOCAL_RANK"), os.environ["MINE"]),
        "node": os.environ["GROUP_RANK"],
    }


def test_each_rank_has_its_own_random_state_output_and_environment():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    run = launch(noisy, ranks=4, cluster=Cluster(nodes=2, devices_per_node=2), quiet=True)
    kernels = torch.rand(1).item(), random.random(), np.random.rand()
    # Every rank starts alike, and what one draws does not move another's state.
    assert len({seen["before"] for seen in run.results}) == 1
    assert len({seen["after"] for seen in run.results[1:]}) == 1
    assert run.results[0]["after"] != run.results[1]["after"]
    assert [seen["env"] for seen in run.results] == [(str(r), "4", str(r % 2), str(r)) for r in range(4)]
    assert [seen["node"] for seen in run.results] == ["0", "0", "1", "1"]
    assert run.outputs == [f"I am {r}\nto stderr\n" for r in range(4)]
    # And the kernel's own state is what it would have been without the launch.
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    assert kernels == (torch.rand(1).item(), random.random(), np.random.rand())
    assert "MINE" not in os.environ
    assert "RANK" not in os.environ


def test_the_kernels_own_hooks_are_put_back():
    kept = sys.excepthook, sys.stdout, sys.stderr, os.environ, torch.get_num_threads()
    launch(me, ranks=3)
    assert kept == (sys.excepthook, sys.stdout, sys.stderr, os.environ, torch.get_num_threads())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_handle_kept_beyond_its_run_says_so(device):
    # Threads and recorded ranks alike; what ends a rank must not end the notebook's cell.
    def f(x):
        return dist.irecv(x, 0) if dist.get_rank() else dist.isend(x, 1)

    with pytest.raises(LeftOpen) as stopped:
        launch(f, torch.zeros(3, device=device), ranks=2)
    handle = stopped.value.run.results[1]
    with pytest.raises(RuntimeError, match="has ended, and the run with it"):
        handle.wait()


def test_output_is_shown_with_its_rank(capsys):
    launch(lambda: print("one\ntwo"), ranks=2)
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] one",
        "[rank 0] two",
        "[rank 1] one",
        "[rank 1] two",
    ]


def notebook(code: str) -> dict[str, Any]:
    """Run code as a notebook does: in a module called __main__ that nobody can import."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(code, namespace)
    return namespace


def test_global_variables_of_a_notebook_are_not_shared_between_ranks():
    cell = notebook(
        "import torch, torch.distributed as dist\n"
        "model = torch.nn.Linear(2, 2)\n"
        "counts = []\n"
        "def f():\n"
        "    with torch.no_grad():\n"
        "        model.weight.fill_(float(dist.get_rank()))\n"
        "    counts.append(1)\n"
        "    dist.barrier()\n"
        "    return model.weight.sum().item(), len(counts)\n"
    )
    before = cell["model"].weight.clone()
    assert launch(cell["f"], ranks=3).results == [(0.0, 1), (4.0, 1), (8.0, 1)]
    assert torch.equal(cell["model"].weight, before)
    assert cell["counts"] == []


def test_a_function_that_mentions_a_part_of_torch_is_copied_too():
    # torch.classes is a module of a kind that pickle refuses, and `data.classes` looks like a mention of it.
    cell = notebook(
        "import torch\n"
        "counts = []\n"
        "def f(data):\n"
        "    counts.append(torch.ones(1))\n"
        "    return len(counts), getattr(data, 'classes', None), data.classes if False else 0\n"
    )
    assert [count for count, *_ in launch(cell["f"], {}, ranks=2).results] == [1, 1]
    assert cell["counts"] == []


def test_a_notebooks_classes_stay_its_own():
    cell = notebook("class Result:\n    def __init__(self, x): self.x = x\ndef f():\n    return Result(3)\n")
    (result,) = launch(cell["f"], ranks=1).results
    assert type(result) is cell["Result"]


def test_a_rank_has_the_results_that_a_function_keeps_for_itself():
    # Invariant: as in processes, what functools.cache keeps is what this rank has computed.
    @cache
    def who():
        return dist.get_rank()

    assert launch(lambda: (who(), who()), ranks=3).results == [(0, 0), (1, 1), (2, 2)]
    assert who.cache_info().currsize == 0


def test_arguments_are_copies_and_keep_their_ties():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def f(model, optimizer, rank):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return rank, model.bias.tolist()

    before = model.bias.tolist()
    run = launch(f, model, optimizer, per_rank([10, 20]), ranks=2)
    assert [rank for rank, _ in run.results] == [10, 20]
    # The optimizer's parameters are the model's on every rank, and none of them the caller's.
    assert all(bias == pytest.approx([b - 1 for b in before]) for _, bias in run.results)
    assert model.bias.tolist() == before


def test_what_cannot_be_copied_is_shared():
    lock = threading.Lock()
    assert launch(lambda held: held.acquire(blocking=False), lock, ranks=1).results == [True]
    assert lock.locked()


class CoresAndPolicy(torch.utils.data.Dataset):
    """Its one item says where the process that reads it may run."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return len(os.sched_getaffinity(0)), os.sched_getscheduler(0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no threads")
def test_workers_of_a_ranks_data_loader_may_run_on_all_cores():
    def f():
        loader = torch.utils.data.DataLoader(CoresAndPolicy(), batch_size=None, num_workers=1)
        return next(iter(loader))

    expected = [len(os.sched_getaffinity(0)), os.sched_getscheduler(0)]
    assert launch(f, ranks=2).results == [expected] * 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no threads")
def test_programs_that_a_rank_starts_may_run_on_all_cores():
    said = "import os; print(len(os.sched_getaffinity(0)), os.sched_getscheduler(0))"

    def f():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            spawned = len(pool.apply(os.sched_getaffinity, (0,)))
        program = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
        return spawned, program.stdout.split(), len(os.sched_getaffinity(0))

    cores = len(os.sched_getaffinity(0))
    assert launch(f, ranks=2).results == [(cores, [f"{cores}", f"{os.sched_getscheduler(0)}"], 1)] * 2


def test_a_rank_computes_on_one_thread():
    # A team of threads for each product would wait for its members, busily, on the one core that ranks share.
    program = """
import os
import torch
from course_lib import launch
def threads_of_a_product():
    x = torch.randn(50, 50)
    before = len(os.listdir("/proc/self/task"))
    x @ x.mT
    return len(os.listdir("/proc/self/task")) - before
print(launch(threads_of_a_product, ranks=2).results[0], torch.get_num_threads())
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0 2\n"


def test_launches_of_two_threads_go_one_after_another():
    streams, environment = (sys.stdout, sys.stderr), os.environ
    results, begun = [], threading.Event()

    def f(name):
        begun.set()
        for _ in range(50):
            dist.barrier()
        return name, os.environ["RANK"]

    def start(name):
        results.extend(launch(f, name, ranks=3, quiet=True).results)

    threads = [threading.Thread(target=start, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(name, str(rank)) for name in "ab" for rank in range(3)]
    assert (sys.stdout, sys.stderr) == streams
    assert os.environ is environment
    assert "RANK" not in os.environ


def test_a_launch_that_another_thread_holds_up_says_so():
    inside, over = threading.Event(), threading.Event()

    def first():
        inside.set()
        over.wait()

    thread = threading.Thread(target=launch, args=(first,), kwargs={"ranks": 1})
    thread.start()
    try:
        inside.wait()
        with pytest.raises(BadLaunch, match="one after another"):
            launch(lambda: None, ranks=1, timeout=0.01)
    finally:
        over.set()
        thread.join()


# --- Time and traffic

ALPHA, BETA = 1e-5, 1e-9
SWITCH = Cluster(devices_per_node=8, intra_node=Link(ALPHA, 1 / BETA))


def ring_steps(x: Tensor) -> None:
    """Pass chunks round a ring as a ring all-reduce does; the sums are not what is looked at."""
    p = dist.get_world_size()
    buffer = torch.empty(x.numel() // p)
    for _ in range(2 * (p - 1)):
        work = dist.isend(x[: x.numel() // p], (me() + 1) % p)
        dist.recv(buffer, (me() - 1) % p)
        work.wait()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_takes_the_time_of_its_formula(ranks):
    # 2 (p - 1) (alpha + n / p beta), with n = 8192 floats.
    run = launch(ring_steps, torch.ones(8192), ranks=ranks, cluster=SWITCH)
    assert run.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + 4 * 8192 / ranks * BETA))


def test_an_incast_shares_the_receivers_way_in():
    def f(x):
        if me() == 0:
            works = [dist.irecv(torch.empty_like(x), r) for r in range(1, 8)]
            for work in works:
                work.wait()
        else:
            dist.send(x, 0)

    run = launch(f, torch.ones(1000), ranks=8, cluster=SWITCH)
    assert run.seconds == pytest.approx(ALPHA + 7 * 4000 * BETA)


def test_messages_between_nodes_take_the_slower_link():
    cluster = Cluster(2, 2, intra_node=Link(1e-6, 1e10), inter_node=Link(1e-4, 1e9))

    def f(peer):
        if me() == 0:
            dist.send(torch.ones(250), peer)
        elif me() == peer:
            dist.recv(torch.ones(250), 0)

    assert launch(f, 1, cluster=cluster).seconds == pytest.approx(1e-6 + 1000 / 1e10)
    assert launch(f, 2, cluster=cluster).seconds == pytest.approx(1e-4 + 1000 / 1e9)


def test_short_messages_are_buffered_up_to_the_eager_limit():
    def f(elements):
        x, y = torch.full((elements,), float(me())), torch.zeros(elements)
        dist.send(x, 1 - me())
        x.zero_()
        dist.recv(y, 1 - me())
        return y[0].item()

    cluster = Cluster(devices_per_node=2, eager_limit=1000)
    # The buffer holds what was sent, not what became of the tensor.
    assert launch(f, 250, cluster=cluster).results == [1.0, 0.0]
    with pytest.raises(Deadlock):
        launch(f, 251, cluster=cluster)


def test_bytes_and_messages_are_counted():
    def f():
        x = torch.ones(100)
        if me() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        dist.all_reduce(x)

    run = launch(f, ranks=2)
    assert (run.traffic[0].sent, run.traffic[0].messages) == (400 + 400, 1 + 2)
    assert (run.traffic[1].received, run.traffic[1].messages) == (400 + 400, 2)
    assert run.traffic[0].calls == {"send": 1, "all_reduce": 1}


def test_a_monitored_barrier_is_a_barrier_and_the_report_names_who_is_missing():
    def f(missing):
        if me() != missing:
            dist.monitored_barrier()

    assert [event.op for event in launch(f, None, ranks=3).events] == ["monitored_barrier"] * 3
    with pytest.raises(Deadlock) as caught:
        launch(f, 1, ranks=3)
    assert "monitored_barrier" in caught.value.report
    assert "rank 1" in caught.value.report


def test_collectives_with_gradients_use_the_group_of_the_rank_that_calls():
    def f():
        from torch.distributed.nn import functional

        x = torch.ones(1, requires_grad=True)
        y = functional.all_reduce(x * (me() + 1))
        y.sum().backward()
        return y.item(), x.grad.item()

    for _ in range(2):
        assert launch(f, ranks=2).results == [(3.0, 2.0), (3.0, 4.0)]


def test_a_store_holds_what_its_rank_has_set_and_says_that_it_is_not_shared():
    def f(name):
        store = dist.distributed_c10d._get_default_store()
        store.set(f"from {me()}", "here")
        assert store.add("count", 2) + store.add("count", 3) == 7
        assert store.compare_set("count", "5", "6") == b"6"
        assert store.check(["count"])
        assert not store.check(["from nobody"])
        assert store.delete_key("count")
        return store.get(name.format(me()))

    assert launch(f, "from {}", ranks=2).results == [b"here"] * 2
    with pytest.raises(RankFailed, match="has not set 'from 1', and simulated ranks share no store"):
        launch(f, "from 1", ranks=2)


WITH_GAPS = {
    "all_reduce": dist.all_reduce,
    "reduce": lambda x: dist.reduce(x, dst=0),
    "broadcast": lambda x: dist.broadcast(x, src=0),
    "scatter": lambda x: dist.scatter(torch.ones(3), None if me() else [x, x], src=0),
    "reduce_scatter": lambda x: dist.reduce_scatter(x, [torch.ones(3), torch.ones(3)]),
}


@pytest.mark.parametrize("on", ["simulated", "processes"])
@pytest.mark.parametrize("op", WITH_GAPS)
def test_tensors_with_gaps_are_refused_where_gloo_would_fill_the_gaps(op, on):
    with pytest.raises(RankFailed, match=rf"{op} needs tensors .* has strides \[2\].*\.contiguous\(\)"):
        launch(lambda: WITH_GAPS[op](torch.arange(6.0)[::2]), ranks=2, on=on, quiet=True)


IN_PARTS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
}
TAKE_ONE = {
    "all_reduce": dist.all_reduce,
    "all_gather": lambda x: dist.all_gather([x, x], x),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(torch.empty(18), x),
    "scatter": lambda x: dist.scatter(torch.ones(3), None if me() else [x, x], src=0),
    "send": lambda x: dist.send(x, dst=1 - me()),
}


@pytest.mark.parametrize("kind", IN_PARTS)
@pytest.mark.parametrize("op", TAKE_ONE)
def test_a_tensor_made_of_several_is_refused_by_name(op, kind):
    with pytest.raises(RankFailed, match=rf"{op} got a {kind} tensor .* Send those"):
        launch(lambda: TAKE_ONE[op](IN_PARTS[kind]()), ranks=2)


def test_a_report_says_what_other_strides_do():
    def f():
        x = torch.zeros(2, 3)
        dist.broadcast(x if me() else x.view(3, 2).t(), src=0)

    with pytest.raises(
        CollectiveMismatch, match=r"at the same place in memory.* Pass tensor\.contiguous\(\)"
    ):
        launch(f, ranks=2)


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_tensors_with_gaps_are_gathered_as_anywhere(on):
    def f():
        table = torch.zeros(2, 4)
        dist.all_gather([table[0, ::2], table[1, ::2]], torch.arange(4.0)[::2] + me())
        return table.tolist()

    assert launch(f, ranks=2, on=on, quiet=True).results == [[[0, 0, 2, 0], [1, 0, 3, 0]]] * 2


def test_whole_numbers_are_not_averaged():
    with pytest.raises(RankFailed, match="cannot average int64"):
        launch(lambda: dist.all_reduce(torch.tensor([1, 2]), op=dist.ReduceOp.AVG), ranks=2)


def test_an_exchange_of_one_tensor_needs_a_contiguous_one():
    with pytest.raises(RankFailed, match=r"all_to_all_single needs a contiguous tensor, .* strides \[1, 2\]"):
        launch(lambda: dist.all_to_all_single(torch.zeros(2, 2), torch.ones(2, 2).t()), ranks=2)


def test_a_reduction_of_nccl_alone_is_refused_by_both_engines():
    def f():
        dist.all_reduce(torch.ones(1), op=dist._make_nccl_premul_sum(2.0))

    with pytest.raises(RankFailed, match="cannot combine by PREMUL_SUM here: of all backends only NCCL can"):
        launch(f, ranks=2)
    with pytest.raises(RankFailed, match="PREMUL_SUM"):
        launch(f, ranks=2, on="processes", quiet=True)


COMPUTING = Cluster(devices_per_node=2, flops=1e9, memory_bandwidth=1e12)


def test_waiting_is_not_computing():
    def f():
        work = dist.isend(torch.ones(1), 1 - me())
        dist.recv(torch.ones(1), 1 - me())
        work.wait()

    assert {e.kind for e in launch(f, ranks=2, cluster=COMPUTING).events} >= {Kind.POINT_TO_POINT}
    waiting = [e for e in launch(f, ranks=2, cluster=COMPUTING).events if e.kind is Kind.COMPUTE]
    # Making the tensors is computing; nothing between the send and the end of the wait is.
    assert all(e.end <= 2 * 4 * 3 / 1e12 for e in waiting)


def test_computing_takes_the_time_of_its_operations():
    def f():
        a, b = torch.ones(100, 100), torch.ones(100, 100)
        with span("product"):
            a @ b

    run = launch(f, ranks=2, cluster=COMPUTING)
    (product,) = [e for e in run.events if e.op == "product" and e.rank == 0]
    # 2 n^3 operations at 1e9 a second.
    assert product.seconds == pytest.approx(2 * 100**3 / 1e9)
    assert any(e.kind is Kind.COMPUTE for e in run.events)


def test_a_rank_does_not_compute_the_copies_of_what_it_is_called_with():
    kept = torch.ones(1000)

    def f(x, y):
        return len(kept)

    for y in (torch.ones(1000), per_rank([torch.ones(1000), torch.ones(9)])):
        assert not launch(f, torch.ones(1000), y, ranks=2, cluster=COMPUTING).events


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_first_collective_of_a_process_computes_nothing_more(device):
    # Whether torch can reduce a dtype is tried once, and that is nobody's computing.
    check_reducible.cache_clear()
    x = torch.ones(4, device=device)
    first, second = (launch(dist.all_reduce, x, ranks=2, cluster=COMPUTING).seconds for _ in range(2))
    assert first == second


def test_asynchronous_communication_overlaps_computing():
    def f(asynchronous):
        x, a = torch.ones(1_000_000), torch.ones(200, 200)
        work = dist.all_reduce(x, async_op=True)
        if not asynchronous:
            work.wait()
        a @ a
        work.wait()
        dist.barrier()

    alone = launch(f, False, ranks=2, cluster=COMPUTING).seconds
    overlapped = launch(f, True, ranks=2, cluster=COMPUTING).seconds
    (reduce,) = {
        e.seconds for e in launch(f, False, ranks=2, cluster=COMPUTING).events if e.op == "all_reduce"
    }
    product = 2 * 200**3 / 1e9
    assert alone - overlapped == pytest.approx(min(product, reduce), rel=1e-3)


def test_collectives_of_one_rank_share_its_link():
    def f(count):
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(count)]
        for work in works:
            work.wait()

    one, three = (launch(f, count, ranks=4, cluster=SWITCH).seconds for count in (1, 3))
    assert three == pytest.approx(3 * one)


def test_torchs_ddp_overlaps_its_buckets_with_the_backward_pass():
    def f():
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)])
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.07)
        for _ in range(2):
            loss = model(torch.ones(64, 128)).sum()
            with span("backward"):
                loss.backward()

    run = launch(f, ranks=2, cluster=COMPUTING)
    last = [e for e in run.events if e.op == "backward" and e.rank == 0][-1]
    inside = [e for e in run.events if e.op == "all_reduce" and e.rank == 0 and e.start >= last.start]
    assert len(inside) >= 3
    assert inside[0].end < last.end, "the first bucket is through before the backward pass is over"


def test_the_same_run_twice_gives_the_same_events():
    def f(x):
        for step in range(3):
            with span(f"step {step}"):
                ring_steps(x)
            dist.all_reduce(x)
            mark("done")

    first, second = (launch(f, torch.ones(64), ranks=5, cluster=SWITCH) for _ in range(2))
    assert first.events == second.events
    assert len(first.events) > 100


def test_events_name_the_line_of_the_call():
    def f():
        dist.barrier()

    event = next(e for e in launch(f, ranks=2).events if e.op == "barrier")
    assert event.line.text == "dist.barrier()"
    assert event.line.function == "f"


# --- Errors


def stops(error: type, f: Callable[..., Any], ranks: int = 2, **options: Any) -> Any:
    with pytest.raises(error) as caught:
        launch(f, ranks=ranks, quiet=True, **options)
    return caught.value


def test_both_receive_first():
    def f():
        x = torch.zeros(4)
        dist.recv(x, 1 - me())
        dist.send(x, 1 - me())

    deadlock = stops(Deadlock, f)
    assert deadlock.cycle == (0, 1)
    assert "rank 0 waits for rank 1 to send; rank 1 waits for rank 0 to send" in deadlock.report
    assert "dist.recv(x, 1 - me())" in deadlock.report
    assert "test_simulator.py" in deadlock.report
    assert [call.peers for call in deadlock.waiting] == [(1,), (0,)]


def test_a_ring_of_blocking_sends():
    deadlock = stops(Deadlock, lambda: dist.send(torch.ones(1), (me() + 1) % 5), ranks=5)
    assert deadlock.cycle == (0, 1, 2, 3, 4)


def test_one_rank_skips_a_collective():
    def f():
        if me() != 2:
            dist.all_reduce(torch.ones(1))

    deadlock = stops(Deadlock, f, ranks=4)
    assert deadlock.finished == (2,)
    assert "waits for rank 2 to call all_reduce, but rank 2 has already returned" in deadlock.report


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.all_reduce(torch.ones(3 + me())), ["float32[3]", "float32[4]"]),
        (lambda: dist.all_reduce(torch.ones(3, dtype=[torch.float, torch.long][me()])), ["int64[3]"]),
        (
            lambda: dist.all_reduce(torch.ones(3), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][me()]),
            ["SUM", "MAX"],
        ),
        (lambda: dist.broadcast(torch.ones(3), src=me()), ["from rank 0", "from rank 1"]),
        (lambda: dist.barrier() if me() else dist.all_reduce(torch.ones(3)), ["barrier", "all_reduce"]),
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 1], [[1, 1], [2, 0]][me()]),
            ["sends [8, 0] bytes"],
        ),
    ],
)
def test_collectives_that_differ_are_a_mismatch(call, words):
    mismatch = stops(CollectiveMismatch, call)
    assert {call.rank for call in mismatch.calls} == {0, 1}
    for word in words:
        assert word in mismatch.report


def test_a_message_that_does_not_fit_its_receive():
    def f():
        dist.send(torch.ones(3), 1) if me() == 0 else dist.recv(torch.ones(4), 0)

    report = stops(CollectiveMismatch, f).report
    assert "send(float32[3])" in report
    assert "recv(float32[4])" in report


def test_a_rank_that_exits_early():
    deadlock = stops(Deadlock, lambda: None if me() else dist.recv(torch.ones(1), 1))
    assert deadlock.cycle == ()
    assert deadlock.finished == (1,)


def test_a_rank_that_raises_while_others_wait():
    def f():
        if me() == 1:
            raise ValueError("no luck")
        dist.barrier()

    failed = stops(RankFailed, f, ranks=3)
    assert (failed.root.rank, failed.root.type, failed.root.message) == (1, "ValueError", "no luck")
    assert 'raise ValueError("no luck")' in failed.root.traceback
    assert "torch/distributed" not in failed.report
    assert "rank 0: barrier()" in failed.report


def test_a_dtype_that_cannot_be_added_up_is_told_on_every_rank():
    failed = stops(RankFailed, lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)), ranks=3)
    assert [failure.rank for failure in failed.failures] == [0, 1, 2]
    assert "all_reduce cannot combine float8_e4m3fn by SUM" in failed.report


def test_the_same_failure_everywhere_is_told_once():
    failed = stops(RankFailed, lambda: [].remove(1), ranks=4)
    assert len(failed.failures) == 4
    assert failed.report.count("x not in list") == 2, "in the headline and in the one traceback"
    assert "ranks 0-3" in failed.report


def test_an_endless_loop_ends_at_the_deadline():
    def f():
        if me() == 1:
            while True:
                pass
        dist.barrier()

    started = time.monotonic()
    report = stops(TimedOut, f, timeout=0.5).report
    assert time.monotonic() - started < 60
    assert "rank 1 was not communicating" in report
    assert "while True:" in report or "pass" in report


def test_a_rank_that_is_stuck_for_ever_keeps_no_other_from_being_profiled():
    # Invariant: a run that was stopped changes nothing for those after it, also if a thread of it has stayed.
    held = threading.Lock()
    held.acquire()

    def waits_for_itself():
        if me() == 1:
            held.acquire()
        dist.barrier()

    def profiled():
        sys.setprofile(lambda *_: None)
        dist.barrier()
        sys.setprofile(None)

    stops(TimedOut, waits_for_itself, timeout=0.5)
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "rank 1"]
    launch(profiled, ranks=2, timeout=30)
    held.release()
    stuck.join(30)


def test_a_module_is_imported_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: the time that a module takes to load is not the run's, and no half of it stays behind.
    (tmp_path / "slow_to_load.py").write_text(
        "import time\nfor _ in range(30):\n    time.sleep(0.1)\ndone = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def loads() -> int:
        import slow_to_load

        return int(slow_to_load.done)

    assert launch(loads, ranks=1, timeout=2).results == [1]

    def loads_and_goes_on() -> None:
        import slow_too

        while slow_too:
            pass

    (tmp_path / "slow_too.py").write_text((tmp_path / "slow_to_load.py").read_text())
    stops(TimedOut, loads_and_goes_on, timeout=2)
    assert sys.modules["slow_too"].done == 1


def test_who_is_stopped_imports_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Invariant: also when the kernel is interrupted while a rank imports, no half of a module stays behind.
    (tmp_path / "slow_and_stopped.py").write_text("import time\nbegun = 1\ntime.sleep(1)\ndone = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def loads_for_ever() -> None:
        with contextlib.suppress(RankStopped):
            importlib.import_module("slow_and_stopped")
            while True:
                pass

    thread = rank_thread(0, loads_for_ever)
    thread.start()
    while not hasattr(sys.modules.get("slow_and_stopped"), "begun"):
        assert thread.is_alive()
        time.sleep(0.01)
    interrupt(thread)
    thread.join(30)
    assert sys.modules["slow_and_stopped"].done == 1


def test_asking_for_ever_is_a_deadlock():
    def f():
        work = dist.irecv(torch.ones(1), 1 - me())
        while not work.is_completed():
            pass

    assert stops(Deadlock, f).cycle == (0, 1)


def test_a_send_that_nobody_receives_is_reported_at_the_end():
    def f():
        if me() == 0:
            dist.isend(torch.ones(3), 1)

    stopped = stops(LeftOpen, f, ranks=2)
    assert "send(float32[3]) to rank 1" in stopped.report
    assert [call.rank for call in stopped.run.unmatched] == [0]


@pytest.mark.parametrize("ranks", [([0, 1], [1, 2]), ([0, 1], [0, 1, 2])])
def test_groups_that_are_not_the_same_everywhere_are_a_mismatch(ranks):
    def f():
        first, second = ranks if me() else reversed(ranks)
        dist.new_group(first)
        dist.new_group(second)

    report = stops(CollectiveMismatch, f, ranks=3).report
    assert f"new_group({ranks[0]})" in report
    assert f"new_group({ranks[1]})" in report


def test_a_group_that_only_some_ranks_make():
    deadlock = stops(Deadlock, lambda: dist.new_group([0, 1]) if me() == 0 else None, ranks=2)
    assert "waits for rank 1 to call new_group" in deadlock.report


def test_the_wrong_one_of_two_groups():
    def f():
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        dist.all_reduce(torch.ones(1), group=groups[me()])

    assert stops(Deadlock, f).cycle == (0, 1)


def test_results_are_there_only_after_waiting():
    def f():
        x, y = torch.zeros(1), torch.full((1,), float(me()))
        if me() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.irecv(x, 0)
        work = dist.all_reduce(y, async_op=True)
        dist.barrier()
        seen = x.item(), y.item()
        work.wait()
        return *seen, y.item()

    with pytest.raises(LeftOpen, match=r"recv\(float32\[1\]\) from rank 0.*never waited for") as stopped:
        launch(f, ranks=2)
    run = stopped.value.run
    assert run.results == [(0, 0, 1), (0, 1, 1)]
    assert [call.rank for call in run.unmatched] == [1]


def test_a_send_that_is_never_waited_for_is_reported_at_the_end():
    # The message has arrived here, but the program cannot know: elsewhere its tensor may still be on its way.
    def f():
        x = torch.zeros(1)
        if me() == 0:
            dist.isend(torch.ones(1), 1)
        else:
            dist.recv(x, 0)
        return x.item()

    with pytest.raises(LeftOpen, match=r"send\(float32\[1\]\) to rank 1.*never waited for") as stopped:
        launch(f, ranks=2)
    run = stopped.value.run
    assert run.results == [0, 1]
    assert [call.rank for call in run.unmatched] == [0]


def test_a_deep_recursion_is_told_in_short():
    def deeper(n):
        return deeper(n + 1)

    report = stops(RankFailed, lambda: deeper(0), ranks=1).report
    assert "more calls" in report
    assert len(report.splitlines()) < 40


def test_a_wait_names_its_own_line_and_that_of_the_call():
    def f():
        work = dist.irecv(torch.ones(1), 1 - me())
        work.wait()

    report = stops(Deadlock, f).report
    assert "work.wait()" in report
    assert "called at test_simulator.py" in report


def test_finally_blocks_run_when_a_run_is_stopped():
    ended = []

    def f():
        try:
            dist.recv(torch.ones(1), 1 - me())
        finally:
            ended.append(1)
            dist.barrier()

    f.keep = threading.Lock()  # type: ignore[attr-defined]  # what cannot be copied is shared
    stops(Deadlock, f)
    assert ended == [1, 1]


def test_an_interrupt_ends_the_run_and_its_ranks():
    def f():
        while True:
            dist.barrier()

    main = threading.main_thread().ident
    timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launch(f, ranks=2, timeout=20)
    timer.join()
    assert launch(lambda: me(), ranks=2).results == [0, 1]


def test_events_and_output_up_to_a_failure_are_kept():
    def f():
        print("so far")
        dist.barrier()
        raise KeyError("x")

    failed = stops(RankFailed, f)
    assert failed.run.outputs == ["so far\n"] * 2
    assert [e.op for e in failed.run.events] == ["barrier", "barrier"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "at least one rank"),
        ({"ranks": -3}, "at least one rank"),
        ({"ranks": 2.0}, "whole number"),
        ({}, "How many ranks"),
        ({"ranks": 2, "on": "gpus"}, 'no engine "gpus"'),
        ({"ranks": 3, "cluster": Cluster(1, 2)}, "do not fit"),
        ({"ranks": 2, "timeout": 0}, "above 0"),
    ],
)
def test_a_launch_that_makes_no_sense(options, words):
    with pytest.raises(BadLaunch, match=words):
        launch(lambda: None, **options)


def test_other_launches_that_make_no_sense():
    with pytest.raises(BadLaunch, match="Pass the function itself"):
        launch(3, ranks=2)  # type: ignore[arg-type]
    with pytest.raises(BadLaunch, match="3 values, but the launch has 2 ranks"):
        launch(lambda x: x, per_rank([1, 2, 3]), ranks=2)
    with pytest.raises(RankFailed, match="cannot launch ranks"):
        launch(lambda: launch(me, ranks=2), ranks=2)
    with pytest.raises(BadLaunch, match="at least one node"):
        Cluster(nodes=0)
    with pytest.raises(BadLaunch, match="bandwidth above 0"):
        Link(1e-6, 0)
