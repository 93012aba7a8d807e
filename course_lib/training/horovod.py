"""Training by Horovod: its optimizer as a value that `data_parallel.train` takes in place of PyTorch's own.

Horovod wraps the optimizer and not the model: hooks submit each gradient when backward has made it, a
thread fuses and reduces what is ready on all ranks, and `step` waits for the last one. Call it where
`hvd.init()` has been called, as in launch(..., on="horovod").

Shapes as in `data_parallel`.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.data import Dataset
from course_lib.training.data_parallel import Pieces, Ranks, Replication, train
from course_lib.training.device import rank_device
from course_lib.training.recipe import Recipe
from course_lib.training.results import TrainResult

Options = Mapping[str, Any]
"""Of hvd.DistributedOptimizer: `compression`, `backward_passes_per_step`, `num_groups` ..."""


def horovod(**options: Any) -> Replication:
    """Horovod as a way to replicate. options: see `Options`."""
    return Replication("Horovod", _broadcast_model, wrap_optimizer=_wrapper(options), ranks=HOROVOD_RANKS)


def _summed(tensor: Tensor) -> Tensor:
    total: Tensor = hvd.allreduce(tensor, op=hvd.Sum)
    return total


HOROVOD_RANKS = Ranks(hvd.rank, hvd.size, _summed)


def _broadcast_model(model: nn.Module) -> nn.Module:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def _wrapper(options: Options) -> Callable[[Optimizer, nn.Module], Optimizer]:
    def wrap(optimizer: Optimizer, module: nn.Module) -> Optimizer:
        named = module.named_parameters()
        wrapped: Optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, **options)
        return wrapped

    return wrap


# --- How Horovod's own tools share data and results


def _shard_indices(length: int, epoch: int, seed: int) -> Tensor:
    """Every size-th sample, from this rank's on, in an order of the epoch's own."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    return order[hvd.rank() :: hvd.size()]


def _global_accuracy(correct: int, total: int) -> float:
    sums = _summed(torch.tensor([correct, total]))
    return float(sums[0] / sums[1])


def _load_once(load: Callable[[], Dataset]) -> Dataset:
    """Rank 0 of each node first, so that what has to be fetched is fetched once."""
    if hvd.local_rank() == 0:
        load()
    hvd.barrier()
    return load()


HOROVOD_PIECES = Pieces(_shard_indices, _global_accuracy, _load_once)


def train_by_horovod(recipe: Recipe, device: torch.device | str | None = None, **options: Any) -> TrainResult:
    """Train a recipe, on every rank of the group. device: as for `horovod_device`. options: `Options`."""
    return train(recipe, horovod(**options), HOROVOD_PIECES, horovod_device(device))


def horovod_device(wanted: torch.device | str | None = None) -> torch.device:
    """For a rank of Horovod's: its own GPU where Horovod is built with NCCL, else the CPU.

    wanted: as for `rank_device`.
    """
    # What tells a rank its GPU where there is no group of torch's.
    os.environ.setdefault("LOCAL_RANK", str(hvd.local_rank()))
    return rank_device(wanted or ("cuda" if hvd.nccl_built() and torch.cuda.is_available() else None))
