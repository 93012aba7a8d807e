"""Data-parallel training: one loop, whatever keeps the replicas equal, and a single process to compare with.

Every rank trains its replica on its shard of the data. What makes the replicas one model (broadcasting,
averaging, dealing out the samples, summing counts, loading) comes in as arguments; PyTorch's own
DistributedDataParallel fits in the same place.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Dataset, Samples, load
from course_lib.launch.run import Run
from course_lib.models import SmallCNN
from course_lib.runtime.communication.events import Kind, span


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is trained, and how: the same on every rank, and for the single process.

    batch_size: samples of all ranks together in one step. seed: of the weights and of the shuffling.
    """

    dataset: str = "digits"
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Replication:
    """What makes the ranks' models one.

    wrap: called once with the rank's new model; returns the module to train, on every rank with the same
        parameters. synchronize: called with that module after every backward; when it returns, the gradients
        are means over ranks.
    """

    name: str
    wrap: Callable[[nn.Module], nn.Module]
    synchronize: Callable[[nn.Module], None]


def _already_done(module: nn.Module) -> None:
    """DistributedDataParallel's hooks have averaged the gradients when backward returns."""


TORCH_DDP = Replication("torch DistributedDataParallel", DistributedDataParallel, _already_done)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How ranks share data and results.

    shard_indices(length, epoch, seed): this rank's part of the samples. global_accuracy(correct, total): over
    all ranks. load_once(load): calls load on every rank, first on one of each node.
    """

    shard_indices: Callable[[int, int, int], Tensor]
    global_accuracy: Callable[[int, int], float]
    load_once: Callable[[Callable[[], Dataset]], Dataset]


@dataclass(frozen=True, slots=True)
class History:
    """How a training went.

    losses: the mean over each step's whole batch, all ranks' samples together. accuracies: on the test set,
    after each epoch. fingerprint: SHA-256 of the final parameters; equal exactly if every bit is.
    """

    losses: list[float]
    accuracies: list[float]
    fingerprint: str


def train(recipe: Recipe, replication: Replication, pieces: Pieces) -> History:
    """Train one replica: call it on every rank, as `launch` does.

    Rank 0 prints a line an epoch. The ranks' models start with different weights, as they would without a
    common seed; `replication.wrap` makes them equal.
    """
    data = pieces.load_once(partial(load, recipe.dataset))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = replication.wrap(build_model(data, recipe.seed + rank))
    optimizer = _optimizer(module, recipe)
    losses: list[float] = []
    accuracies: list[float] = []
    for epoch in range(recipe.epochs):
        shard = pieces.shard_indices(len(data.train), epoch, recipe.seed)
        batches = local_batches(shard, len(data.train), recipe.batch_size // ranks, ranks)
        totals = _summed(torch.tensor([len(batch) for batch in batches])).tolist()
        sums = []
        for batch, total in zip(batches, totals, strict=True):
            loss = _loss_sum(module, data.train, batch)
            _step(loss * ranks / total, optimizer, partial(replication.synchronize, module))
            sums.append(loss.detach())
        # One collective an epoch, not one a step: nobody needs the curve before.
        losses += (_summed(torch.stack(sums)) / torch.tensor(totals)).tolist()
        mine = torch.arange(rank, len(data.test), ranks)
        accuracies.append(pieces.global_accuracy(count_correct(module, data.test, mine), len(mine)))
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, test accuracy {accuracies[-1]:.2%}")
    return History(losses, accuracies, fingerprint(module))


def train_alone(recipe: Recipe, shards: Sequence[Sequence[Tensor]]) -> History:
    """The same training in a single process: each step's batch is what all ranks have in that step.

    shards[r][e]: rank r's indices in epoch e. It computes on one thread, as each rank does: for batches this
    small a second thread costs more than it brings.
    """
    with _one_thread():
        return _train_alone(recipe, shards)


def _train_alone(recipe: Recipe, shards: Sequence[Sequence[Tensor]]) -> History:
    data = load(recipe.dataset)
    model = build_model(data, recipe.seed)
    optimizer = _optimizer(model, recipe)
    losses: list[float] = []
    accuracies: list[float] = []
    for epoch in range(recipe.epochs):
        of_ranks = [
            local_batches(rank[epoch], len(data.train), recipe.batch_size // len(shards), len(shards))
            for rank in shards
        ]
        for batch in (torch.cat(parts) for parts in zip(*of_ranks, strict=True)):
            loss = _loss_sum(model, data.train, batch) / len(batch)
            _step(loss, optimizer, _nothing)
            losses.append(loss.item())
        accuracies.append(count_correct(model, data.test, torch.arange(len(data.test))) / len(data.test))
    return History(losses, accuracies, fingerprint(model))


def deal_epochs(
    shard_indices: Callable[[int, int, int], Tensor], length: int, epochs: int, seed: int
) -> list[Tensor]:
    """This rank's indices in every epoch; launched, its results are what `train_alone` takes."""
    return [shard_indices(length, epoch, seed) for epoch in range(epochs)]


def local_batches(shard: Tensor, length: int, batch_size: int, ranks: int) -> list[Tensor]:
    """A rank's shard of `length` samples in batches, as many on every rank.

    Shards differ by one in size, so some rank's last batch may be empty. It takes part all the same: the
    others wait for it in their all-reduce.
    """
    longest = -(-length // ranks)
    return [shard[start : start + batch_size] for start in range(0, longest, batch_size)]


def build_model(data: Dataset, seed: int) -> nn.Module:
    """The classifier of unit 01 for this data, with weights drawn from `seed`."""
    channels, _, size = data.image_shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(channels, len(data.classes), size)


def count_correct(module: nn.Module, samples: Samples, indices: Tensor) -> int:
    """How many of the samples at `indices` are classified correctly; the module's mode is restored."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        predicted = module(samples.images[indices]).argmax(dim=1)
    module.train(was_training)
    return int((predicted == samples.labels[indices]).sum())


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of all parameters, in order."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def timed_step(replication: Replication, layers: int, width: int, samples: int) -> None:
    """One training step of a chain of equal linear layers, its phases named on the timeline.

    Parameters: layers * (width^2 + width). Run it on a cluster with `flops`, or computing takes no time.
    """
    chain = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.Tanh())]
    module = replication.wrap(nn.Sequential(*chain))
    inputs = torch.randn(samples, width)
    dist.barrier()
    with span("forward"):
        loss = module(inputs).square().mean()
    with span("backward"):
        loss.backward()
    with span("synchronize"):
        replication.synchronize(module)


def step_limits(run: Run) -> tuple[float, float]:
    """When the step of a launched `timed_step` began and ended, in seconds: its setting up is left out."""
    phases = [event for event in run.events if event.kind is Kind.SPAN]
    return min(phase.start for phase in phases), max(phase.end for phase in phases)


def _optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)


def _loss_sum(module: nn.Module, samples: Samples, indices: Tensor) -> Tensor:
    """The sum over the samples at `indices`: 0 for an empty batch, where the mean would be NaN."""
    with span("forward"):
        logits = module(samples.images[indices])
        return functional.cross_entropy(logits, samples.labels[indices], reduction="sum")


def _step(loss: Tensor, optimizer: torch.optim.Optimizer, synchronize: Callable[[], Any]) -> None:
    optimizer.zero_grad()
    with span("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    with span("synchronize"):
        synchronize()
    with span("optimizer"):
        optimizer.step()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread in this block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _nothing() -> None:
    """A single process has nobody to agree with."""


def _summed(tensor: Tensor) -> Tensor:
    """The sum over ranks."""
    dist.all_reduce(tensor)
    return tensor
