"""Tensors that cross from one stage to the next: what they look like, before any of them is sent.

A head is the shape and dtype of a tensor as int64 numbers [2 + LONGEST_SHAPE], to be sent ahead of it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LONGEST_SHAPE = 8


def empty_head(device: torch.device) -> Tensor:
    """Room for a head."""
    return torch.empty(2 + LONGEST_SHAPE, dtype=torch.int64, device=device)


def head_of(crossing: Tensor, device: torch.device) -> Tensor:
    """The head of a tensor."""
    numbers = [DTYPES.index(crossing.dtype), crossing.dim(), *crossing.shape]
    return torch.tensor(numbers + [0] * (2 + LONGEST_SHAPE - len(numbers)), device=device)


def tensor_of(head: Tensor) -> Tensor:
    """A tensor without data that has this head."""
    dtype, dim, *shape = head.tolist()
    return torch.empty(shape[:dim], dtype=DTYPES[dtype], device="meta")


def output_on_meta(module: nn.Module, given: Tensor) -> Tensor:
    """What the module makes of a tensor without data; the module stays as it is."""
    state = {name: tensor.detach().to("meta") for name, tensor in _state(module)}
    with torch.no_grad():
        output: Tensor = functional_call(module, state, (given,))
    return output


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
