"""Models whose forward leaves tensors of many kinds for backward, for unit 09's drivers and graders.

Shapes: N samples, W the width of all layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def forward(kind: str, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The loss of a model. x [N, W], weights each [W, W]."""
    return _MODELS[kind](x, weights)


def _chain(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Linear layers: each leaves its input, and a view of its weights. What is between two of them is looked
    at, and thrown away. The last operation saves two tensors, which backward asks for in that order.
    """
    for number, weight in enumerate(weights):
        x = x @ weight.mT
        if number == len(weights) // 2:
            (x.sin() * x).sum()
    return (x[:, :5].sin() * x[:, :1].cos()).sum()


def _mixed(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Whole numbers, truth values, a transposed and an expanded view, a scalar, what is saved twice."""
    first, second, *rest = weights
    rows = torch.arange(len(x)).flip(0) % len(first)
    x = functional.embedding(rows, first) + x @ second
    x = torch.where(x > 0, x, x.exp())
    x = (x.mT.square() * x.mT).mT
    x = x * x.mean() + x[:, :1].expand_as(x) * x.cumsum(0)
    values, places = x.sort(dim=1)
    for weight in rest:
        values = functional.tanh(values @ weight)
    values = values @ first.detach()
    return (values * values).sum() + x.gather(1, places[:, :2]).sin().sum() + values[:, 1:1].square().sum()


_MODELS = {"chain": _chain, "mixed": _mixed}
