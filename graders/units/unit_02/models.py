"""The small models that the drivers of unit 02 build, and graders beside them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading.answer import PlainData
from graders.units.models import load_values, mark_in_backward


class Normed(nn.Module):
    """Two trainable layers round a batch norm, one frozen layer in half precision, and a buffer outside the
    state dict. Inputs [B, 5], outputs [B, 2].
    """

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 2).half().requires_grad_(False)
        self.register_buffer("positions", torch.zeros(2, 4, dtype=torch.float64), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.last(self.norm(self.first(inputs)) + self.positions[0].float())
        outputs: Tensor = self.frozen(hidden.half())
        return outputs


def chain_of(values: list[Tensor]) -> nn.Sequential:
    """Linear layers with the given weights [out, in] and biases [out], in turn. The first weight has a second
    name, in a module of its own.
    """
    layers = [Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype) for weight in values[::2]]
    model = nn.Sequential(*layers, nn.ParameterList([layers[0].weight]))
    load_values(model.parameters(), values)
    return model


class Linear(nn.Linear):
    """A layer whose numbers are all given to it: drawing them takes most of the time of making it."""

    def reset_parameters(self) -> None:
        """Zeros, until they are given."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


LAYERS, WIDTH = 3, 4
"""Of a `Layers`."""


class Layers(nn.Module):
    """Square layers with tanh between them. Each call says which of them it uses, in which order. Backward
    marks when it reaches each. Inputs and outputs [B, WIDTH].

    Its parameters are its own: modules for the layers would take most of the time of making it.
    """

    shift: Tensor

    def __init__(self, seed: int, frozen: Sequence[int] = ()) -> None:
        """seed: of its values. frozen: numbers of layers."""
        super().__init__()
        drawn = normal(seed, LAYERS, WIDTH + 1, WIDTH)
        self.register_buffer("shift", drawn.mean((0, 1)))
        self.layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        for number, values in enumerate(drawn):
            pair = nn.Parameter(values[:-1].clone()), nn.Parameter(values[-1].clone())
            self.layers.append(pair)
            for name, parameter in zip(("weight", "bias"), pair, strict=True):
                self.register_parameter(f"{name}_{number}", parameter)
                parameter.requires_grad_(number not in frozen)

    def forward(self, inputs: Tensor, way: Sequence[int]) -> Tensor:
        """way: the numbers of the layers, each once at most."""
        hidden = inputs + self.shift
        for number in way:
            weighted = functional.linear(torch.tanh(hidden), *self.layers[number])
            hidden = mark_in_backward(weighted, reaches(number))
        return hidden


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches layer {layer}"


def inputs_of(seed: int, step: int, turn: int) -> Tensor:
    """[3, WIDTH]. seed: a rank's. turn: the number of a pass in the step."""
    return normal(seed + 10 * step + turn, 3, WIDTH)


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, which a driver and its grader can draw both."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def names_of(model: nn.Module) -> list[str]:
    """The names of its parameters, in their order."""
    return [name for name, _ in model.named_parameters()]


def numbers_in(buckets: Any, model: nn.Module) -> PlainData:
    """Buckets with the numbers of the parameters in place of these; what is no list of lists, as a text."""
    if not isinstance(buckets, list | tuple) or not all(isinstance(each, list | tuple) for each in buckets):
        return f"a {type(buckets).__name__}"
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return [[numbers.get(id(each), type(each).__name__) for each in bucket] for bucket in buckets]
