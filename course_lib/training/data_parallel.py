"""Data-parallel training: every rank trains a replica of the model on its shard of the data.

What makes the replicas one model comes in as data: a `Replication`, the student's, PyTorch's own
(`TORCH_DDP`) or Horovod's (`course_lib.training.horovod`), and the `Pieces` that load, deal out samples and
add up counts. The loop is the same with all of them, on CPUs and on GPUs; `train_alone` is the single
process to compare it with.

Shapes: B samples of a rank in a step, C channels, S pixels a side, K classes, T steps of an epoch. Indices
are on the CPU, as the samples are; what is computed with is on the rank's device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_lib.data import Dataset, Samples, load
from course_lib.runtime.communication.events import span
from course_lib.threads import one_thread
from course_lib.training.device import rank_device
from course_lib.training.recipe import Recipe, build_model, build_optimizer, set_learning_rate
from course_lib.training.results import TrainResult, count_correct, fingerprint


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who this rank is among how many, and the sum of a tensor over them, which may be the tensor itself."""

    rank: Callable[[], int]
    count: Callable[[], int]
    sum: Callable[[Tensor], Tensor]


def _summed(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


TORCH_RANKS = Ranks(dist.get_rank, dist.get_world_size, _summed)
"""Those of the default process group."""


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def _nothing_to_do(module: nn.Module) -> None:
    """A single process has nobody to agree with; DistributedDataParallel's hooks have agreed in backward."""


def _own_optimizer(optimizer: Optimizer, module: nn.Module) -> Optimizer:
    return optimizer


@dataclass(frozen=True, slots=True)
class Replication:
    """What makes the ranks' models one.

    wrap: called once with the rank's new model; returns the module to train, on every rank with the same
        parameters. synchronize: called with that module after every backward. wrap_optimizer: called once
        with the optimizer and that module; returns the one to step with, such as Horovod's. When `step`
        changes the parameters, by the one or the other, the gradients are means over ranks.
    """

    name: str
    wrap: Callable[[nn.Module], nn.Module]
    synchronize: Callable[[nn.Module], None] = _nothing_to_do
    wrap_optimizer: Callable[[Optimizer, nn.Module], Optimizer] = _own_optimizer
    ranks: Ranks = TORCH_RANKS


TORCH_DDP = Replication("torch DistributedDataParallel", DistributedDataParallel)
ALONE = Replication("a single process", _as_it_is)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How ranks share data and results.

    shard_indices(length, epoch, seed): this rank's part of the samples. global_accuracy(correct, total): over
    all ranks. load_once(load): calls load on every rank, first on one of each node.
    """

    shard_indices: Callable[[int, int, int], Tensor]
    global_accuracy: Callable[[int, int], float]
    load_once: Callable[[Callable[[], Dataset]], Dataset]


def train(
    recipe: Recipe, replication: Replication, pieces: Pieces, device: torch.device | str | None = None
) -> TrainResult:
    """Train one replica: call it on every rank, as `launch` does.

    device: as for `rank_device`. Rank 0 prints a line an epoch. The ranks' models start with different
    weights, as they would without a common seed; `replication.wrap` makes them equal.
    """
    here = rank_device(device)
    rank, ranks, summed = replication.ranks.rank(), replication.ranks.count(), replication.ranks.sum
    data = pieces.load_once(partial(load, recipe.dataset))
    replica = _Replica(recipe, replication, build_model(data, recipe.seed + rank, here), here)
    losses: list[float] = []
    accuracies: list[float] = []
    for epoch in range(recipe.epochs):
        shard = pieces.shard_indices(len(data.train), epoch, recipe.seed)
        batches = local_batches(shard, len(data.train), recipe.batch_size // ranks, ranks)
        sizes_T = summed(torch.tensor([len(batch) for batch in batches], device=here))
        sums_T = replica.train_epoch(data.train, batches, (sizes_T / ranks).tolist())
        # One collective an epoch, not one a step: nobody needs the curve before.
        losses += (summed(sums_T) / sizes_T).tolist()
        mine = torch.arange(rank, len(data.test), ranks)
        correct = count_correct(replica.module, data.test, mine, here)
        accuracies.append(pieces.global_accuracy(correct, len(mine)))
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}, test accuracy {accuracies[-1]:.2%}")
    return TrainResult(losses, accuracies, fingerprint(replica.module), here.type)


def train_alone(
    recipe: Recipe, shards: Sequence[Sequence[Tensor]], device: torch.device | str | None = None
) -> TrainResult:
    """The same training in a single process: each step's batch is what all ranks have in that step.

    shards[r][e]: rank r's indices in epoch e. device: by default the CPU. It computes on one thread, as each
    rank does: for batches this small a second thread costs more than it brings.
    """
    with one_thread():
        return _train_alone(recipe, shards, rank_device(device))


def _train_alone(recipe: Recipe, shards: Sequence[Sequence[Tensor]], here: torch.device) -> TrainResult:
    data = load(recipe.dataset)
    replica = _Replica(recipe, ALONE, build_model(data, recipe.seed, here), here)
    losses: list[float] = []
    accuracies: list[float] = []
    everything = torch.arange(len(data.test))
    for epoch in range(recipe.epochs):
        of_ranks = [
            local_batches(rank[epoch], len(data.train), recipe.batch_size // len(shards), len(shards))
            for rank in shards
        ]
        batches = [torch.cat(parts) for parts in zip(*of_ranks, strict=True)]
        sizes = [len(batch) for batch in batches]
        sums_T = replica.train_epoch(data.train, batches, sizes)
        losses += (sums_T / torch.tensor(sizes, device=here)).tolist()
        accuracies.append(count_correct(replica.module, data.test, everything, here) / len(data.test))
    return TrainResult(losses, accuracies, fingerprint(replica.module), here.type)


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


class _Replica:
    """A rank's copy of the model, which the replication keeps equal to the others', and its optimizer."""

    def __init__(
        self, recipe: Recipe, replication: Replication, model: nn.Module, device: torch.device
    ) -> None:
        self.module = replication.wrap(model)
        self._synchronize = replication.synchronize
        self._optimizer = replication.wrap_optimizer(build_optimizer(self.module, recipe), self.module)
        self._recipe = recipe
        self._steps = 0
        self._device = device

    def train_epoch(self, samples: Samples, batches: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
        """A step a batch; returns each step's loss, summed over this rank's samples, [T].

        shares: samples of the step's whole batch, divided by the ranks. A sum divided by it has gradients
        whose mean over ranks is the gradient of the whole batch's mean loss.
        """
        sums = []
        for indices_B, share in zip(batches, shares, strict=True):
            sums.append(self._step(*samples.batch(indices_B, self._device), share))
        return torch.stack(sums)

    def _step(self, images_BCSS: Tensor, labels_B: Tensor, share: float) -> Tensor:
        set_learning_rate(self._optimizer, self._recipe.rate_at(self._steps))
        self._steps += 1
        self._optimizer.zero_grad()
        with span("forward"):
            logits_BK = self.module(images_BCSS)
            # The sum over an empty batch is 0, where the mean would be NaN.
            loss = functional.cross_entropy(logits_BK, labels_B, reduction="sum")
        with span("backward"):
            (loss / share).backward()  # type: ignore[no-untyped-call]
        with span("synchronize"):
            self._synchronize(self.module)
        with span("optimizer"):
            self._optimizer.step()
        return loss.detach()
