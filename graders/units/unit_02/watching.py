"""What the drivers of unit 02 watch while the answer works: random states, and what autograd sees."""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


def random_states() -> dict[str, bytes]:
    """This rank's random state in each library that has one."""
    numpy_state = np.random.get_state()
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "random": repr(random.getstate()).encode(),
        "numpy.random": repr(
            [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy_state]
        ).encode(),
    }


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
