"""Unit 12, models for tournaments, and how trainers score them: for the driver and for the grader."""

import torch
from torch import Tensor, nn

from graders.units.models import load_values


class Player(nn.Module):
    """Some layers that are never called: only what they hold matters. kind: "plain", "all" or "tied".

    "all" has parameters that are frozen, that stand in memory in another order, or are of another type, and
    buffers, of which one is not persistent. "tied" has a parameter and a buffer twice.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)
        if kind == "all":
            self.norm = nn.BatchNorm1d(width)
            self.second = self.second.double()
            self.first.bias.requires_grad_(False)
            self.first.weight = nn.Parameter(torch.zeros(width + 1, width).t())
            self.register_buffer("mask", torch.zeros(2, 3).t(), persistent=False)
        if kind == "tied":
            self.second.weight = self.first.weight
            scale = torch.zeros(2)
            self.first.register_buffer("scale", scale)
            self.second.register_buffer("scale", scale)


def held(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def player(kind: str, width: int, values: list[Tensor]) -> Player:
    """A model that holds these values."""
    model = Player(kind, width)
    load_values(held(model), values)
    return model


def score_of(values: list[Tensor], likes: list[float]) -> float:
    """What a trainer thinks of a model: the sum of what it holds, weighted by what the trainer likes."""
    sums = [like * float(value.detach().double().sum()) for like, value in zip(likes, values, strict=True)]
    return float(torch.tensor(sums, dtype=torch.float64).sum())


def alike(seen: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are the same in all, where NaN is the same as NaN."""
    if seen.dtype != expected.dtype or seen.shape != expected.shape:
        return False
    return bool(((seen == expected) | (seen.isnan() & expected.isnan())).all())
