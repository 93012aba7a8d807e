"""The models of unit 09: its drivers build them, and graders beside them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.units.models import load_values, mark_in_backward


class Ladder(nn.Module):
    """Linear layers of one width, tanh before each, called in any order; backward marks where it is.

    Inputs and outputs [B, width].
    """

    def __init__(self, values: Sequence[Tensor], frozen: Sequence[int]) -> None:
        """values: of weight and bias of each layer. frozen: numbers of layers that are not trained."""
        super().__init__()
        width = len(values[0])
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in values[::2])
        load_values(self.parameters(), values)
        for number in frozen:
            self.layers[number].requires_grad_(False)

    def forward(self, x: Tensor, order: Sequence[int]) -> Tensor:
        for number in order:
            x = mark_in_backward(self.layers[number](torch.tanh(x)), reaches(number))
        return x


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches {layer}"


def over(number: int) -> str:
    """The mark that a driver makes after this pass."""
    return f"pass {number} is over"


def computes(layer: int) -> str:
    """The mark that forward makes before this layer computes."""
    return f"forward computes {layer}"


class Rung(nn.Module):
    """tanh, two linear layers, the second without bias, and a shift, which is the first parameter; marks
    both passes. [B, width] to [B, width]. No weight has the shape of another one's transposed view.
    """

    def __init__(self, number: int, values: Sequence[Tensor]) -> None:
        """values: shift [width], weight [inner, width], bias [inner], second weight [width, inner - 1]."""
        super().__init__()
        width, inner = len(values[0]), len(values[2])
        self.number = number
        self.shift = nn.Parameter(torch.empty(width))
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner - 1, width, bias=False)
        load_values(self.parameters(), values)

    def forward(self, x: Tensor) -> Tensor:
        mark(computes(self.number))
        hidden = self.first(torch.tanh(x))[:, :-1]
        return mark_in_backward(self.second(hidden) + self.shift, reaches(self.number))


class Assorted(nn.Module):
    """What blocks of models have besides layers: whole numbers, dropout, and two results.

    tokens [B] of whole numbers and x [B, width] to [B, V] and [B].
    """

    def __init__(self, weight: Tensor) -> None:
        """weight: [V, width]."""
        super().__init__()
        self.embedding = nn.Embedding(*weight.shape)
        load_values(self.parameters(), [weight])
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(tokens) + x
        return self.dropout(hidden) @ self.embedding.weight.mT, hidden.square().sum(1)
