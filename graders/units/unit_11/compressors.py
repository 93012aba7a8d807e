"""What the drivers of unit 11 hand to an answer, and what the grader reckons with beside it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.answer import PlainData


class Compressor:
    """A function of a tensor that loses something of it, and counts its calls.

    kind: "sign": signs and one scale. "largest": the number with the largest magnitude, alone. "in place":
    half of it, written into the tensor itself. "itself": nothing is lost, and the tensor itself comes back.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        match self.kind:
            case "sign":
                return x.sign() * x.abs().mean()
            case "largest":
                return torch.where(x.abs() == x.abs().max(), x, torch.zeros_like(x))
            case "in place":
                return x.mul_(0.5)
        return x


def plain_copy(value: PlainData) -> PlainData:
    """A value with its tensors copied; lists and tuples too."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [*map(plain_copy, value)] if isinstance(value, list) else (*map(plain_copy, value),)
    return value


def loss(weights: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error of a network with one hidden layer. x: [N, in], y: [N, out].

    weights: [hidden, in], [hidden], [out, hidden], [out].
    """
    inner, inner_bias, outer, outer_bias = weights
    hidden = torch.tanh(x @ inner.T + inner_bias)
    return (hidden @ outer.T + outer_bias - y).square().mean()
