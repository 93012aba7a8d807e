"""What the drivers of unit 02 watch while the answer works: what autograd sees of a broadcast."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def broadcasts_in_autograd() -> list[bool]:
    """A list that gets, with each tensor that this rank broadcasts from now on, whether autograd sees it.

    Simulated ranks run what PyTorch has above the group. Below it, on processes, autograd notes the operation
    and warns in the next backward.
    """
    seen: list[bool] = []
    group: Any = dist.group.WORLD
    broadcast = group.broadcast

    def noted(tensors: list[Tensor], *options: Any) -> Any:
        seen.extend(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
        return broadcast(tensors, *options)

    group.broadcast = noted
    return seen
