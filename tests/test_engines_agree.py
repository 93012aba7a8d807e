"""Programs of two ranks that give the same on simulated ranks and on real processes, number for number."""

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.launch.failures import LaunchError, LeftOpen, RankFailed
from tests.newer_torch import SINCE_2_8, SINCE_2_14

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}
NEED = {
    "a_pipeline": SINCE_2_8,
    "fully_sharded": SINCE_2_8,
    "a_gather_into_one_tensor": SINCE_2_14,
}
"""Which PyTorch a program needs, if not every one."""


def program(function: Program) -> Program:
    """Have this function run on both."""
    PROGRAMS[function.__name__] = function
    return function


def outcome(function: Program, on: str) -> str:
    """What the ranks return, what they call, and the bytes and messages of it.

    Or the kind of error, with its cause on a rank, since any rank may be first.
    """
    try:
        run = launch(function, ranks=2, on=on, timeout=200, quiet=True)
        return f"{run.results}\n{run.traffic}"
    except RankFailed as error:
        return f"{type(error).__name__}: {error.root.type}"
    except LaunchError as error:
        return type(error).__name__


def me() -> int:
    return dist.get_rank()


def other() -> int:
    return 1 - dist.get_rank()


def linear() -> nn.Linear:
    """The same layer on both ranks."""
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def grads(module: nn.Module) -> list[float]:
    return [round(p.grad.sum().item(), 4) for p in module.parameters() if p.grad is not None]


# --- messages


@program
def a_batch_of_messages() -> Any:
    x = torch.zeros(2)
    ring = [
        dist.P2POp(dist.isend, torch.full((2,), float(me())), other()),
        dist.P2POp(dist.irecv, x, other()),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    return x.tolist()


@program
def tags_in_another_order() -> Any:
    first, second = torch.zeros(1), torch.zeros(1)
    if me() == 0:
        works = [dist.isend(torch.ones(1) * tag, 1, tag=tag) for tag in (1, 2)]
    else:
        works = [dist.irecv(second, 0, tag=2), dist.irecv(first, 0, tag=1)]
    for work in works:
        work.wait()
    return first.item(), second.item()


@program
def from_anyone() -> Any:
    x = torch.zeros(1)
    if me() == 0:
        return dist.recv(x), x.item()
    return dist.send(torch.ones(1) * 5, 0)


@program
def a_message_in_another_shape() -> Any:
    x = torch.zeros(2, 2)
    if me() == 0:
        return dist.send(torch.arange(4.0), 1)
    dist.recv(x, 0)
    return x.tolist()


@program
def a_message_of_another_dtype() -> Any:
    if me() == 0:
        return dist.send(torch.ones(4), 1)
    return dist.recv(torch.zeros(4, dtype=torch.float64), 0)


@program
def a_message_to_oneself() -> Any:
    dist.send(torch.ones(1), me())


@program
def objects() -> Any:
    everyone, mine, part = [None] * 2, [me(), "x"], [None]
    dist.all_gather_object(everyone, {"rank": me()})
    dist.broadcast_object_list(mine, src=1)
    dist.scatter_object_list(part, [10, 20] if me() == 0 else None, src=0)
    return everyone, mine, part


# --- collectives


@program
def every_reduction() -> Any:
    done = []
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        x = torch.tensor([2.0, 3.0]) + me()
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        done.append(x.tolist())
    for name in ("BAND", "BOR", "BXOR"):
        bits = torch.tensor([6, 5]) + me()
        dist.all_reduce(bits, op=getattr(dist.ReduceOp, name))
        done.append(bits.tolist())
    return done


@program
def every_dtype() -> Any:
    sums = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32):
        x = torch.full((3,), 100.1).to(dtype)
        dist.all_reduce(x)
        sums.append(x.tolist())
    for x in (torch.tensor([me() == 0, True]), torch.tensor([1 + 1j]) * (me() + 1)):
        dist.all_reduce(x)
        sums.append(x.tolist())
    return sums


@program
def tensors_without_elements_and_without_dimensions() -> Any:
    nothing, number = torch.empty(0), torch.tensor(1.0 + me())
    dist.all_reduce(nothing)
    dist.all_reduce(number)
    return nothing.tolist(), number.item()


@program
def a_transposed_tensor() -> Any:
    x = (torch.arange(6.0) + 10 * me()).view(2, 3).t()
    dist.broadcast(x, 1)
    return x.tolist()


@program
def sums_of_tensors_with_other_strides() -> Any:
    x = torch.arange(6.0).view(2, 3)
    dist.all_reduce(x if me() == 0 else torch.arange(6.0).view(3, 2).t())
    return x.tolist()


@program
def parts_with_other_strides_than_their_whole() -> Any:
    parts = [torch.arange(6.0).view(3, 2).t() for _ in range(2)]
    dist.reduce_scatter(torch.zeros(2, 3), parts)


@program
def strides_that_say_nothing() -> Any:
    # A dimension of one element, and gathers, which lay every tensor end to end first.
    x, row = torch.arange(6.0).view(3, 2).t(), torch.arange(3.0).view(1, 3)
    parts = [torch.zeros(2, 3), torch.zeros(3, 2).t()]
    dist.all_reduce(row if me() == 0 else row.expand(1, 3).as_strided((1, 3), (7, 1)))
    dist.all_gather(parts, x.contiguous() if me() == 0 else x)
    both = [x.contiguous(), x] if me() == 0 else [x, x.contiguous()]
    dist.all_reduce_coalesced(both)
    return row.tolist(), [y.tolist() for y in (*parts, *both)]


@program
def gathers_into_another_dtype() -> Any:
    dist.all_gather_into_tensor(torch.zeros(4, dtype=torch.float64), torch.zeros(2))


@program
def parts_with_gaps() -> Any:
    table, gathered = torch.zeros(2, 6), torch.zeros(6)
    dist.all_gather([table[0, ::2], table[1, ::2]], torch.arange(3.0) + me())
    dist.all_gather_into_tensor(gathered, torch.arange(6.0)[::2] + me())
    return table.tolist(), gathered.tolist()


@program
def exchanges() -> Any:
    parts, flat = list(torch.zeros(2).split(1)), torch.zeros(3)
    dist.all_to_all(parts, list((torch.arange(2.0) + 10 * me()).split(1)))
    sizes = [1, 2] if me() == 0 else [2, 1]
    dist.all_to_all_single(flat, torch.arange(3.0) + 10 * me(), sizes, sizes)
    return [part.item() for part in parts], flat.tolist()


@program
def coalesced() -> Any:
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager():
        for x in tensors:
            dist.all_reduce(x)
    return [x.tolist() for x in tensors]


@program
def coalesced_gathers_and_scatters() -> Any:
    gathered, scattered = [torch.zeros(4), torch.zeros(2)], [torch.zeros(2), torch.zeros(1)]
    with dist._coalescing_manager(async_ops=True) as gathers:
        for output, x in zip(gathered, [torch.arange(2.0) + me(), torch.ones(1) * me()], strict=True):
            dist.all_gather_into_tensor(output, x)
    gathers.wait()
    with dist._coalescing_manager(async_ops=True) as scatters:
        for output, x in zip(scattered, [torch.arange(4.0) + me(), torch.arange(2.0) * me()], strict=True):
            dist.reduce_scatter_tensor(output, x)
    scatters.wait()
    return [x.tolist() for x in (*gathered, *scattered)]


@program
def functional_collectives() -> Any:
    from torch.distributed import _functional_collectives as functional

    world = dist.group.WORLD
    done = [
        functional.reduce_scatter_tensor(torch.arange(4.0) + me(), "sum", 0, world),
        *functional.reduce_scatter_tensor_coalesced([torch.arange(4.0), torch.ones(2)], "sum", [0, 0], world),
        *functional.all_gather_into_tensor_coalesced([torch.arange(2.0) + me(), torch.ones(1)], world),
    ]
    return [(x + 0).tolist() for x in done]


@program
def asynchronous_reduce_scatters() -> Any:
    first, second = torch.zeros(2), torch.zeros(2)
    dist.reduce_scatter_tensor(first, torch.arange(4.0) + me(), async_op=True).wait()
    dist.reduce_scatter(second, list(torch.arange(4.0).split(2)), async_op=True).wait()
    return first.tolist(), second.tolist()


@program
def exchanges_of_numpys_sizes() -> Any:
    x, even = torch.zeros(3), torch.zeros(2)
    sizes = np.array([1, 2] if me() == 0 else [2, 1])
    dist.all_to_all_single(x, torch.arange(3.0) + 10 * me(), sizes, sizes)
    none = np.array([], dtype=int)
    dist.all_to_all_single(even, torch.arange(2.0) + 10 * me(), none, none)
    return x.tolist(), even.tolist()


@program
def a_future() -> Any:
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * done.wait()[0] * 10).wait().tolist()


@program
def a_collective_in_a_thread() -> Any:
    x = torch.ones(1)
    thread = threading.Thread(target=lambda: dist.all_reduce(x))
    thread.start()
    thread.join()
    return x.item()


@program
def a_monitored_barrier() -> Any:
    return dist.monitored_barrier(timeout=timedelta(seconds=30))


@program
def another_root_than_there_is() -> Any:
    dist.broadcast(torch.ones(1), src=7)


# --- groups


@program
def groups() -> Any:
    both, alone = dist.new_group([1, 0]), dist.new_group([0])
    x, y = torch.ones(1), torch.ones(1)
    dist.all_reduce(x, group=both)
    dist.all_reduce(y, group=alone)
    return x.item(), y.item(), dist.get_rank(both), dist.get_rank(alone), dist.get_process_group_ranks(both)


@program
def subgroups() -> Any:
    group, groups_ = dist.new_subgroups(1)
    return len(groups_), dist.get_world_size(group), dist.get_global_rank(group, 0)


@program
def a_mesh() -> Any:
    mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    x = torch.ones(1)
    dist.all_reduce(x, group=mesh.get_group("dp"))
    return x.item(), mesh["dp"].get_local_rank(), mesh.get_coordinate()


@program
def a_group_that_names_gloo() -> Any:
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group([0, 1], backend="cpu:gloo"))
    return x.item()


@program
def an_end_of_the_group() -> Any:
    dist.destroy_process_group()
    return dist.is_initialized()


@program
def a_call_after_the_end() -> Any:
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(1))


@program
def the_environment() -> Any:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    return [os.environ.get(name) for name in names], random.random(), torch.rand(1).item()


# --- what is built on them


@program
def a_rank_with_fewer_batches() -> Any:
    model = DistributedDataParallel(linear())
    with model.join():
        for _ in range(1 + me()):
            model(torch.ones(1, 4)).sum().backward()
    return grads(model)


@program
def ddp_and_its_options() -> Any:
    done = []
    options: list[dict[str, bool]] = [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}]
    for chosen in options:
        model = DistributedDataParallel(linear(), **chosen)
        for _ in range(2):
            model(torch.ones(2, 4) * me()).sum().backward()
        done.append(grads(model))
    model = DistributedDataParallel(linear())
    with model.no_sync():
        model(torch.ones(2, 4) * me()).sum().backward()
    return done, grads(model)


@program
def ddp_with_parameters_that_a_rank_does_not_use() -> Any:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([linear(), linear()])

        def forward(self, x: Tensor) -> Tensor:
            chosen: Tensor = self.layers[me()](x)
            return chosen

    model = DistributedDataParallel(Either(), find_unused_parameters=True)
    model(torch.ones(1, 4)).sum().backward()
    return grads(model)


@program
def ddp_with_a_hook() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(linear())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.ones(1, 4) * (me() + 1)).sum().backward()
    return grads(model)


@program
def ddp_with_a_builtin_hook() -> Any:
    # C++ has a hook of its own, of the group that the model is of.
    groups = [dist.new_group([0]), dist.new_group([1])]
    found = []
    for group in (None, groups[me()]):
        model = DistributedDataParallel(linear(), process_group=group)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        model(torch.ones(1, 4) * (me() + 1) / 3).sum().backward()
        found.append(grads(model))
    return found


@program
def ddp_with_a_hook_that_calls_again() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    # Its second and third all-reduce start when the one before is over, in whatever thread tells of that.
    state = power.PowerSGDState(None, 1, 2, min_compression_rate=1)
    model = DistributedDataParallel(linear())
    model.register_comm_hook(state, power.powerSGD_hook)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 4) * (me() + 1)).sum().backward()
    return grads(model)


@program
def zero_redundancy() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(linear())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    model(torch.ones(2, 4) * (me() + 1)).sum().backward()
    optimizer.step()
    return round(sum(p.sum().item() for p in model.parameters()), 4)


@program
def fully_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(linear(), linear())
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4) * me()).sum().backward()
    optimizer.step()
    return round(sum(p.full_tensor().sum().item() for p in model.parameters()), 4)  # type: ignore[attr-defined]


@program
def a_sharded_tensor() -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
    return x.redistribute(mesh, [Replicate()]).to_local().tolist(), (x @ x.T).full_tensor().sum().item()


@program
def tensor_parallel_layers() -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    model = parallelize_module(model, dist.init_device_mesh("cpu", (2,)), plan)
    y = model(torch.ones(2, 4))
    y.sum().backward()
    return round(y.sum().item(), 4), [round(p.grad.full_tensor().sum().item(), 4) for p in model.parameters()]


@program
def a_sum_that_is_sharded() -> Any:
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = dist.init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.arange(8.0).view(4, 2) + me(), mesh, [Partial()])
    return x.redistribute(mesh, [Shard(0)]).to_local().tolist()


@program
def sequence_parallel_layers() -> Any:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    model = parallelize_module(model, dist.init_device_mesh("cpu", (2,)), plan)
    y = model(torch.ones(2, 4))
    y.sum().backward()
    return round(y.sum().item(), 4), [round(p.grad.full_tensor().sum().item(), 4) for p in model.parameters()]


@program
def a_parallel_loss() -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (2,))
    logits = distribute_tensor(torch.randn(4, 6, requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        # Rank 0 leaves this before rank 1 does.
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 2, 4, 5]))
        loss.backward()
    return round(loss.full_tensor().item(), 4), round(logits.grad.full_tensor().square().sum().item(), 4)


@program
def a_pipeline() -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(linear(), me(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: ((y - target) ** 2).sum())
    losses: list[Tensor] = []
    if me() == 0:
        schedule.step(torch.ones(4, 4))
    else:
        schedule.step(target=torch.zeros(4, 4), losses=losses)
    return grads(stage.submod), [round(loss.item(), 4) for loss in losses]


@program
def collectives_with_gradients() -> Any:
    from torch.distributed.nn import functional

    x = torch.ones(2, requires_grad=True)
    y = functional.all_reduce(x * (me() + 1))
    y.sum().backward()
    assert x.grad is not None
    return y.tolist(), x.grad.tolist()


@program
def a_checkpoint_of_both() -> Any:
    from torch.distributed import checkpoint

    folder = [tempfile.mkdtemp() if me() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save({"a": torch.ones(3) * 2}, checkpoint_id=folder[0])
    loaded = {"a": torch.zeros(3)}
    checkpoint.load(loaded, checkpoint_id=folder[0])
    dist.barrier()
    if me() == 0:
        shutil.rmtree(folder[0])
    return loaded["a"].tolist()


@program
def a_gather_into_one_tensor() -> Any:
    out = torch.zeros(2, 3) if me() == 1 else None
    dist.gather_single(torch.full((3,), float(me())), out, dst=1)
    return out


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_messages_that_nobody_waits_for_are_named(on: str) -> None:
    def f() -> None:
        work = dist.isend(torch.ones(1), 1) if me() == 0 else dist.irecv(torch.zeros(1), 0)
        dist.barrier()
        if me() == 1:
            work.wait()
        kept.append(work)

    kept: list[Any] = []
    with pytest.raises(LeftOpen) as stopped:
        launch(f, ranks=2, on=on)
    assert [(call.rank, call.op) for call in stopped.value.run.unmatched] == [(0, "send")]
    text = stopped.value.report
    assert "rank 0: send(float32[1]) to rank 1" in text
    assert "never waited for, so its tensor need not have been sent" in text
    assert "test_engines_agree.py, line " in text


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_a_collective_that_nobody_waits_for_is_named(on: str) -> None:
    # A future, or asking whether it is over, will do in place of wait().
    def f(how: str) -> None:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        match how:
            case "future":
                work.get_future().wait()
            case "asked":
                while not work.is_completed():
                    pass
        dist.barrier()

    for how in ("future", "asked"):
        assert launch(f, how, ranks=2, on=on).unmatched == ()
    with pytest.raises(LeftOpen, match="never waited for, so its tensor was not filled") as stopped:
        launch(f, "forgotten", ranks=2, on=on)
    assert [call.op for call in stopped.value.run.unmatched] == ["all_reduce", "all_reduce"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NEED.get(name, ())) for name in PROGRAMS],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_simulated_ranks_do_what_processes_do(name: str) -> None:
    simulated, real = (outcome(PROGRAMS[name], on) for on in ("simulated", "processes"))
    assert simulated == real


def group_of_its_members() -> None:
    if me() == 0:
        dist.new_group([0])


def a_group_of_its_own() -> None:
    dist.init_process_group("gloo")


def uneven_batches() -> None:
    replica = DistributedDataParallel(nn.Linear(2, 1))
    for _ in range(3 - me()):
        replica(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("on", ["simulated", "processes"])
@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (group_of_its_members, "all ranks of the default group must call new_group"),
        (a_group_of_its_own, "`if not dist.is_initialized():`"),
        (uneven_batches, "`with model.join():`"),
    ],
)
def test_what_to_do_fits_the_mistake(function: Program, advice: str, on: str) -> None:
    # A group that only its members make, a second default group, and ranks with unlike numbers of batches.
    with pytest.raises(LaunchError) as caught:
        launch(function, ranks=2, on=on, timeout=200, quiet=True)
    assert advice in caught.value.report
