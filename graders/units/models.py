"""What the models of several units share: their drivers build them, and graders beside them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark

Gradients = list[Tensor | None]
"""Of a model's parameters in their order; None where there is none."""


def state_of(model: nn.Module) -> list[Tensor]:
    """Parameters, then buffers, each of its own shape."""
    return [*model.parameters(), *model.buffers()]


def load_values(tensors: Iterable[Tensor], values: Sequence[Tensor]) -> None:
    """Copy drawn values into a model's tensors, of the same shapes."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def copies_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What tensors hold now."""
    return [tensor.detach().clone() for tensor in tensors]


def gradients_of(model: nn.Module) -> Gradients:
    """A copy of each parameter's gradient, None where there is none."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


class _MarkInBackward(torch.autograd.Function):
    """The identity, whose backward puts a mark on the timeline."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, label: str) -> Tensor:
        ctx.label = label
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        mark(ctx.label)
        return gradients[0], None


def mark_in_backward(hidden: Tensor, label: str) -> Tensor:
    """The tensor itself; backward puts a mark on the timeline when it comes by here."""
    passed: Tensor = _MarkInBackward.apply(hidden, label)  # type: ignore[no-untyped-call]
    return passed


class _Arrives(torch.autograd.Function):
    """A zero, whose backward hands on a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return result.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


def sent(result: Tensor, gradient: Tensor) -> Tensor:
    """A number whose backward sends this very gradient, of the result's shape, to the result.

    `result.backward(gradient)` does so too, and imports sympy for it, which takes half a second.
    """
    number: Tensor = _Arrives.apply(result, gradient)  # type: ignore[no-untyped-call]
    return number


def floating_bytes(module: nn.Module) -> int:
    """Bytes of the memory that floating tensors keep which a module has as attributes, in modules, lists and
    dictionaries too.
    """
    kept: dict[int, Any] = {}
    left: list[Any] = [module]
    while left:
        each = left.pop()
        if id(each) in kept:
            continue
        kept[id(each)] = each
        if isinstance(each, nn.Module):
            left += vars(each).values()
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    tensors = [each for each in kept.values() if isinstance(each, Tensor) and each.is_floating_point()]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


def transposed(x: Tensor) -> Tensor:
    """The same numbers, which stand in memory in another order if x has more than one dimension."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)
