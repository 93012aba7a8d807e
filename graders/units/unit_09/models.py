"""The models of unit 09: its drivers build them, and graders beside them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.units.models import load_values, mark_in_backward, transposed


class Ladder(nn.Module):
    """Linear layers of one width, tanh before each, called in any order; backward marks where it is.

    Inputs and outputs [B, width]. Tied: the first layer's weight is the last one's too. frozen: some layers.
    there: how many gradients there were whenever backward reached a layer.
    """

    def __init__(
        self, values: Sequence[Tensor], count: int, tied: bool, frozen: Sequence[int], gaps: bool
    ) -> None:
        """values: of all parameters, in their order, each once. gaps: the first weight's numbers, and those
        of its gradient, stand in memory column by column.
        """
        super().__init__()
        width, dtype = len(values[0]), values[0].dtype
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(count))
        if gaps:
            first: Any = self.layers[0]
            first.weight = nn.Parameter(transposed(first.weight.detach()))
        if tied:
            self.layers[-1].weight = self.layers[0].weight
        load_values(self.parameters(), values)
        for number in frozen:
            self.layers[number].requires_grad_(False)
        self.there: list[int] = []

    def forward(self, x: Tensor, order: Sequence[int]) -> Tensor:
        for number in order:
            x = mark_in_backward(self.layers[number](torch.tanh(x)), reaches(number))
            if x.requires_grad:
                x.register_hook(self._note)  # type: ignore[no-untyped-call]
        return x

    def _note(self, _: Tensor) -> None:
        self.there.append(sum(parameter.grad is not None for parameter in self.parameters()))


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches {layer}"


def over(number: int) -> str:
    """The mark that a driver makes after this pass."""
    return f"pass {number} is over"


def computes(layer: int) -> str:
    """The mark that forward makes before this layer computes."""
    return f"forward computes {layer}"


class Back(nn.Module):
    """Multiplies by the weight of another linear layer, from its outputs [B, inner] back to [B, width]."""

    def __init__(self, weight: Tensor) -> None:
        """weight: a parameter [inner, width]."""
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Rung(nn.Module):
    """tanh, two linear layers, the second without bias, and a shift, which is the first parameter; marks
    both passes. [B, width] to [B, width].
    """

    def __init__(self, number: int, values: Sequence[Tensor]) -> None:
        """values: shift [width], weight [inner, width], bias [inner], and the second weight [width, inner];
        without that, the first one is used once more.
        """
        super().__init__()
        width, inner, dtype = len(values[0]), len(values[2]), values[0].dtype
        self.number = number
        self.shift = nn.Parameter(torch.empty(width, dtype=dtype))
        self.first = nn.Linear(width, inner, dtype=dtype)
        self.second: nn.Module = Back(self.first.weight)
        if len(values) == 4:
            self.second = nn.Linear(inner, width, bias=False, dtype=dtype)
        load_values(self.parameters(), values)

    def forward(self, x: Tensor) -> Tensor:
        mark(computes(self.number))
        return mark_in_backward(self.second(self.first(torch.tanh(x))) + self.shift, reaches(self.number))


class Assorted(nn.Module):
    """What blocks of models have besides layers: whole numbers, buffers, dropout, and two results.

    tokens [B] of whole numbers and x [B, width] to [B, V] and [B]. between: called in the middle of forward.
    """

    def __init__(self, weight: Tensor, scale: Tensor, *, between: Callable[[], None]) -> None:
        """weight: [V, width]. scale: [width], a buffer. Another one, calls, counts the forward passes."""
        super().__init__()
        self.embedding = nn.Embedding(*weight.shape)
        load_values(self.parameters(), [weight])
        self.scale: Tensor
        self.register_buffer("scale", scale.clone())
        self.calls: Tensor
        self.register_buffer("calls", torch.tensor(0))
        self.dropout = nn.Dropout(0.5)
        self.between = between

    def forward(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        hidden = self.embedding(tokens) * self.scale + x
        self.between()
        scores = self.dropout(hidden) @ self.embedding.weight.mT
        return scores, hidden.square().sum(1)
