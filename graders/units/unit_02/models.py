"""The small models that the drivers of unit 02 build, and graders beside them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from graders.grading.answer import PlainData
from graders.units.models import load_values, mark_in_backward


class Normed(nn.Module):
    """Two trainable layers round a batch norm, one of whose weights has two names, one frozen layer in half
    precision, and a buffer outside the state dict, which is in double precision and has two names, too.

    Inputs [B, 5], outputs [B, 2].
    """

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 2).half().requires_grad_(False)
        self.again = nn.Linear(4, 3, bias=False)
        self.again.weight = self.last.weight
        positions = torch.zeros(2, 4, dtype=torch.float64)
        for module in (self, self.last):
            module.register_buffer("positions", positions, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.last(self.norm(self.first(inputs)) + self.positions[0].float())
        outputs: Tensor = self.frozen(hidden.half())
        return outputs


def chain_of(values: list[Tensor]) -> nn.Sequential:
    """Linear layers with the given weights [out, in] and biases [out], in turn, and a scalar if one more is
    given. The first weight has a second name, in a module of its own, which the scalar is in, too.
    """
    pairs = zip(values[::2], values[1::2], strict=False)
    layers = [nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype) for weight, _ in pairs]
    scalars = [nn.Parameter(torch.zeros_like(value)) for value in values[2 * len(layers) :]]
    model = nn.Sequential(*layers, nn.ParameterList([layers[0].weight, *scalars]))
    load_values(model.parameters(), values)
    return model


def shapes_of(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Of the parameters of a `Chain`, in their order."""
    return [shape for wide, narrow in pairwise(widths) for shape in ((narrow, wide), (narrow,))]


class _Linear(nn.Linear):
    """A layer whose numbers are all given to it: drawing them takes most of the time of making it."""

    def reset_parameters(self) -> None:
        """Zeros, until they are given."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Chain(nn.Module):
    """Linear layers with tanh between them; backward marks when it reaches each. Inputs [B, widths[0]]."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Linear(wide, narrow) for wide, narrow in pairwise(widths))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for number, layer in enumerate(self.layers):
            hidden = mark_in_backward(layer(torch.tanh(hidden)), reaches(number))
        return hidden


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches layer {layer}"


ALL = 3
"""What stands for all of the branches of a `Branches`."""


class Branches(nn.Module):
    """A shared first layer and three branches, of which each call uses one, and the others get no gradient,
    or all.

    The shared layer is registered last: its bucket is the first, and the last to be complete. Backward marks
    when it reaches that layer. Inputs and outputs [B, width].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(_Linear(width, width) for _ in range(3))
        self.shared = _Linear(width, width)

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        """branch: the number of one, or `ALL`."""
        hidden = torch.tanh(mark_in_backward(self.shared(inputs), REACHES_SHARED))
        used = self.branches if branch == ALL else [self.branches[branch]]
        return torch.stack([each(hidden) for each in used]).sum(0)


REACHES_SHARED = "backward reaches the shared layer"
"""The mark that backward makes before it computes that layer's gradients."""


class Tied(nn.Module):
    """Words to words: the embedding is also the weight of the last layer; the layer between is frozen. The
    scores are multiplied by the last parameter, a scalar. There is a buffer, of which nothing comes.

    Inputs: numbers of words [B]; outputs: scores [B, words].
    """

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.mixing = nn.Linear(width, width)
        self.output = nn.Linear(width, words, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("heard", torch.zeros(width))
        self.factors = nn.ParameterList([torch.ones(())])

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.mixing(torch.tanh(self.frozen(self.embedding(words))))
        scores: Tensor = self.output(hidden) * self.factors[0]
        return scores


def descend(model: nn.Module, rate: float) -> None:
    """One step of plain gradient descent; importing torch.optim's would take longer than all the rest."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=rate)


def names_of(model: nn.Module) -> list[str]:
    """The names of its parameters, in their order."""
    return [name for name, _ in model.named_parameters()]


def numbers_in(buckets: Any, model: nn.Module) -> PlainData:
    """Buckets with the numbers of the parameters in place of these; what is no list of lists, as a text."""
    if not isinstance(buckets, list | tuple) or not all(isinstance(each, list | tuple) for each in buckets):
        return f"a {type(buckets).__name__}"
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return [[numbers.get(id(each), type(each).__name__) for each in bucket] for bucket in buckets]
