"""Layers of experts as unit 10's drivers build them, and graders beside them."""

from torch import Tensor, nn

from graders.units.models import load_values


class _Empty(nn.Linear):
    """A linear layer that draws nothing: its numbers are loaded."""

    def reset_parameters(self) -> None:
        """Leave them."""


class Expert(nn.Module):
    """A small MLP, [n, D] to [n, D], that counts the rows of each call."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = _Empty(width, inner)
        self.down = _Empty(inner, width)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        y: Tensor = self.down(self.up(x).tanh())
        return y


class Whole(nn.Module):
    """What a layer of experts is made of: gate, experts, k."""

    def __init__(self, gate: nn.Linear, experts: list[nn.Module], k: int) -> None:
        super().__init__()
        self.gate, self.experts, self.k = gate, nn.ModuleList(experts), k


def whole_layer(values: list[Tensor], k: int) -> Whole:
    """A layer with these values: of the gate [E, D], then of each expert up [F, D], [F], down [D, F], [D]."""
    count, width = values[0].shape
    experts: list[nn.Module] = [Expert(width, len(values[1])) for _ in range(count)]
    whole = Whole(_Empty(width, count, bias=False), experts, k)
    load_values(whole.parameters(), values)
    return whole
