"""The small models that the drivers of unit 04 build, and graders beside them."""

import torch
from torch import Tensor, nn

from graders.units.models import mark_in_backward


def plain_model() -> nn.Module:
    """A single layer."""
    return nn.Linear(3, 2)


class Normed(nn.Module):
    """A trainable layer, a batch norm with its buffers, a frozen layer, and a buffer outside the state
    dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("positions", torch.zeros(2, dtype=torch.float64), persistent=False)


class Layer(nn.Module):
    """Three parameters of different sizes: gain [gains], weight [width, width], bias [width]."""

    def __init__(self, width: int, gains: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(gains, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(width, width, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.linear(torch.tanh(inputs.to(self.weight.dtype)), self.weight, self.bias)
        return hidden * (1 + self.gain.mean())


class Paths(nn.Module):
    """Layers through which each call goes in an order of its own; a layer left out has no gradient then.

    gains: one number a layer, see `Layer`. dtypes: of the layers, by name. frozen, tied: numbers of layers
    that are not trained, and that have the weight of layer 0. Inputs and outputs [B, width], float64 inside.
    """

    def __init__(
        self, width: int, gains: list[int], dtypes: list[str], frozen: list[int], tied: list[int]
    ) -> None:
        super().__init__()
        kinds = [getattr(torch, name) for name in dtypes]
        self.layers = nn.ModuleList(Layer(width, *each) for each in zip(gains, kinds, strict=True))
        for number in frozen:
            self.layers[number].requires_grad_(False)
        for number in tied:
            self.layers[number].weight = self.layers[0].weight

    def forward(self, inputs: Tensor, order: list[int], micro_batch: int = 0) -> Tensor:
        hidden = inputs
        for number in order:
            hidden = mark_in_backward(self.layers[number](hidden), reaches(number, micro_batch))
        return hidden


def reaches(layer: int, micro_batch: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward {micro_batch} reaches layer {layer}"


class Shifted(nn.Module):
    """A linear classifier of inputs that a buffer is added to. Inputs [B, 6], outputs [B, 3].

    values: weight [3, 6], bias [3] and the buffer, shift [6].
    """

    shift: Tensor

    def __init__(self, values: list[Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(value.clone()) for value in values[:2])
        self.register_buffer("shift", values[2].clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs + self.shift, self.weight, self.bias)
