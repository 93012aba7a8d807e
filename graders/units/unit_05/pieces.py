"""The stages that the drivers of unit 05 build, and graders beside them. Shapes: B samples, I in, O out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Piece(nn.Module):
    """A stage: [B, I] to tanh(x weight + bias) [B, O]. weight [I, O], bias [O].

    tokens: the input is numbers of rows [B], int64, of a table [V, I] that the stage has in front. turned:
    the output lies in memory column by column.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        tokens: Tensor | None = None,
        turned: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self.table = None if tokens is None else nn.Parameter(tokens.clone())
        self.turned = turned
        self.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is not None:
            x = self.table[x]
        output = torch.tanh(x @ self.weight + self.bias)
        return output.mT.contiguous().mT if self.turned else output


def piece_of(values: Sequence[Tensor], turned: bool, frozen: bool) -> Piece:
    """A piece with these values: weight, bias and, where there are three, the table of its tokens."""
    return Piece(*values[:2], tokens=values[2] if len(values) > 2 else None, turned=turned, frozen=frozen)
