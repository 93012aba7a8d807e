"""Answers to exercises of unit 02."""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from tests.field.answers import field

UNIT = "02_data_parallel"


@field(UNIT, "shard_indices", "DistributedSampler", lacks=["any number of samples"])
def distributed_sampler(length: int, epoch: int, seed: int) -> Tensor:
    sampler: DistributedSampler[int] = DistributedSampler(range(length), seed=seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler), dtype=torch.int64)


@field(UNIT, "broadcast_parameters", "_sync_module_states")
def sync_module_states(model: nn.Module, src: int = 0) -> None:
    from torch.distributed.utils import _sync_module_states

    _sync_module_states(model, dist.group.WORLD, 2**28, src, params_and_buffers_to_ignore=())


@field(UNIT, "average_gradients", "average_parameters", lacks=["in place", "missing gradients"])
def averaged(model: nn.Module) -> None:
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    gradients = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
    average_parameters(gradients, dist.group.WORLD)


@field(UNIT, "make_buckets", "_compute_bucket_assignment_by_size", lacks=["cut at bucket_bytes"])
def bucket_assignment(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    trained = [p for p in model.parameters() if p.requires_grad][::-1]
    if not trained:
        return []
    buckets, _ = dist._compute_bucket_assignment_by_size(trained, [bucket_bytes])
    return [[trained[number] for number in bucket] for bucket in buckets]


@field(UNIT, "Bucket", "Reducer", lacks=["never waits in backward"])
class Reduced:
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        numbers = [list(range(len(parameters)))]
        self.reducer = dist.Reducer(parameters, numbers, [2**40], dist.group.WORLD)
        self.reducer.prepare_for_backward([])

    def finish(self) -> None:
        """Backward has waited: only the next one is prepared."""
        self.reducer.prepare_for_backward([])


@field(
    UNIT,
    "BucketedDDP",
    "DistributedDataParallel",
    lacks=["never waits in backward", "starts equal", "no_sync", "buckets"],
)
class Replica(nn.Module):
    def __init__(self, model: nn.Module, bucket_bytes: int = 1_000_000) -> None:
        super().__init__()
        self.replica = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.replica(*inputs, **options)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.replica.no_sync()

    def finish(self) -> None:
        """Nothing: backward ends when all is averaged."""


@field(UNIT, "train_ddp", "DistributedSampler", lacks=["any number of samples"])
def trained(
    model: nn.Module,
    dataset: Dataset[Any],
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batch_size: int,
    seed: int,
    device: torch.device,
) -> list[float]:
    """As PyTorch's examples do, with DistributedDataParallel."""
    replica = nn.parallel.DistributedDataParallel(model.to(device))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=seed)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for inputs, targets in DataLoader(dataset, batch_size, sampler=sampler):
            optimizer.zero_grad()
            loss = functional.cross_entropy(replica(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(targets), len(targets)], device=device)
        dist.all_reduce(total)
        history.append(float(total[0] / total[1]))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {history[-1]:.4f}")
    return history
