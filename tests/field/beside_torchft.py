"""Answers by torchft, which stands beside the workbook: unit 08."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.field.answers import field


class Everybody:
    """In place of torchft's manager, whose lighthouse counts who is alive: all ranks of the default group."""

    def start_quorum(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def should_commit(self) -> bool:
        return True

    def allreduce(self, tensor: Tensor) -> Any:
        with torch.no_grad():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
        return self

    def wait(self) -> None:
        """What is returned has been waited for."""


@field("08_asynchrony", "local_sgd", "torchft", ["what stays a rank's own"], beside="torchft")
def local_sgd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    period: int,
) -> list[float]:
    from torchft.local_sgd import LocalSGD

    losses = []
    with LocalSGD(Everybody(), model, optimizer, period) as training:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if len(batches) % period:
            training.sync()
    return losses
