"""Ranks on real GPUs: one each over NCCL, or shared over Gloo when asked for, or none."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.data import Dataset, load
from course_lib.training.data_parallel import TORCH_DDP, Pieces, deal_epochs, train, train_alone
from course_lib.training.device import rank_device
from course_lib.training.recipe import Recipe

pytestmark = pytest.mark.gpu

RECIPE = Recipe(epochs=1, batch_size=256)


def shard(length: int, epoch: int, seed: int) -> Tensor:
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


def accuracy(correct: int, total: int) -> float:
    counts = torch.tensor([correct, total], device=rank_device())
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def loaded(make: object) -> Dataset:
    return load("digits")


PIECES = Pieces(shard, accuracy, loaded)


def test_ranks_with_a_gpu_each_train_there_over_nccl() -> None:
    # Invariant: as many ranks as GPUs end with the same weights, and lose what one process on a GPU loses.
    ranks = torch.cuda.device_count()
    run = launch(train, RECIPE, TORCH_DDP, PIECES, ranks=ranks, on="processes", timeout=120)
    shards = launch(deal_epochs, shard, len(load("digits").train), 1, RECIPE.seed, ranks=ranks).results
    alone = train_alone(RECIPE, shards, "cuda")
    assert {result.device for result in run.results} == {"cuda"}
    assert len({result.fingerprint for result in run.results}) == 1
    torch.testing.assert_close(
        torch.tensor(run.results[0].losses), torch.tensor(alone.losses), rtol=1e-2, atol=1e-2
    )


def sums_of_both() -> list[float]:
    """A sum of tensors on the rank's device, and one of tensors on the CPU."""
    found = []
    for device in (rank_device(), torch.device("cpu")):
        x = torch.full((3,), float(dist.get_rank() + 1), device=device)
        dist.all_reduce(x)
        found.append(float(x[0]))
    return found


def test_tensors_on_the_cpu_still_go_by_gloo() -> None:
    ranks = torch.cuda.device_count()
    run = launch(sums_of_both, ranks=ranks, on="processes")
    assert run.results == [[ranks * (ranks + 1) / 2] * 2] * ranks


def power_sgd() -> tuple[str, bool, Tensor]:
    """The rank's device, whether it sees a GPU, and a gradient after two steps with torch's PowerSGD."""
    device = rank_device()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4).to(device))
    state = powerSGD_hook.PowerSGDState(None, 1, 2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 4), dist.get_rank() + 1.0, device=device)).sum().backward()
    return device.type, torch.cuda.is_available(), model.module.weight.grad.cpu()


def test_more_ranks_than_gpus_see_none() -> None:
    # Invariant: they compute on CPUs, and what waits "for the device" does not wait for a GPU.
    ranks = torch.cuda.device_count() + 1
    for kind, sees, gradient in launch(power_sgd, ranks=ranks, on="processes").results:
        assert (kind, sees) == ("cpu", False)
        torch.testing.assert_close(gradient, launch(power_sgd, ranks=ranks).results[0][2])


def test_ranks_share_a_gpu_over_gloo_when_asked_to() -> None:
    # Invariant: two ranks with backend="gloo" and the device "cuda" end with the same weights.
    arguments = RECIPE, TORCH_DDP, PIECES, "cuda"
    run = launch(train, *arguments, ranks=2, on="processes", backend="gloo", timeout=120)
    assert {result.device for result in run.results} == {"cuda"}
    assert len({result.fingerprint for result in run.results}) == 1
