"""What the drivers of unit 05 build, and graders beside them. Shapes: B samples, I in, H within, O out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graders.units.models import load_values


class Piece(nn.Module):
    """A stage: [B, I] to tanh(x weight + bias) [B, O].

    values: weight [I, O] and bias [O]. turned: the output lies in memory column by column. doubled: it is
    float64. frozen: names of parameters that are not trained.
    """

    def __init__(
        self,
        values: Sequence[Tensor],
        turned: bool = False,
        doubled: bool = False,
        frozen: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(value.clone()) for value in values)
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)
        self.turned, self.doubled = turned, doubled
        self.modes: list[bool] = []
        """Of each forward, whether it was in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        output = torch.tanh(x @ self.weight + self.bias)
        if self.turned:
            output = output.mT.contiguous().mT
        return output.double() if self.doubled else output


def lopsided_loss(output: Tensor, target: Tensor) -> Tensor:
    """A mean over the samples in which output and target cannot change places, a scalar."""
    return (output.pow(3) - 2 * output * target.square()).mean()


def twice(values: Sequence[Tensor], frozen: bool) -> nn.Sequential:
    """A stage of two products with a tanh between them: [B, I] to [B, O]. values: [H, I], [O, H] and a bias
    [O], which may be frozen.
    """
    first, second, _ = values
    stage = nn.Sequential(
        nn.Linear(first.shape[1], first.shape[0], bias=False),
        nn.Tanh(),
        nn.Linear(second.shape[1], second.shape[0]),
    )
    load_values(stage.parameters(), values)
    list(stage.parameters())[-1].requires_grad_(not frozen)
    return stage
