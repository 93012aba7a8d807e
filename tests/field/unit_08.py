"""Answers to exercises of unit 08."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.field.answers import field

UNIT = "08_asynchrony"
Loss = Callable[[Tensor, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, loss_fn: Loss
) -> Iterator[float]:
    """A step a batch; the loss of each."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        yield loss.item()


@field(UNIT, "local_sgd", "PeriodicModelAverager", lacks=["layers that only some ranks train"])
def periodic_averager(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, loss_fn: Loss, period: int
) -> list[float]:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    parameters = [p for p in model.parameters() if p.requires_grad]
    # It counts steps from 0: without these it would average after the first one already.
    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    losses = []
    for loss in _steps(model, optimizer, batches, loss_fn):
        losses.append(loss)
        averager.average_parameters(parameters)
    if len(batches) % period:
        PeriodicModelAverager(period=1).average_parameters(parameters)
    return losses


@field(UNIT, "local_sgd", "PostLocalSGDOptimizer", lacks=["layers that only some ranks train"])
def post_local_sgd(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, loss_fn: Loss, period: int
) -> list[float]:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.utils import average_parameters_or_parameter_groups
    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    averaging = PostLocalSGDOptimizer(optimizer, averager)
    losses = [*_steps(model, averaging, batches, loss_fn)]
    if len(batches) % period:
        average_parameters_or_parameter_groups(averaging.param_groups, dist.group.WORLD)
    return losses
