"""The driver of tournaments, their models, and how trainers score these."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, load_values, state_of
from graders.units.ranks import drivers


class Player(nn.Module):
    """Some layers that are never called: only what they hold matters. whole: with buffers, and a parameter
    that two modules share.
    """

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2, bias=False)
        if whole:
            self.norm = nn.BatchNorm1d(2)
            self.second.weight = self.first.weight


def score_of(values: list[Tensor], likes: list[float]) -> float:
    """What a trainer thinks of a model: the sum of what it holds, weighted by what the trainer likes."""
    sums = [like * float(value.detach().double().sum()) for like, value in zip(likes, values, strict=True)]
    return float(torch.tensor(sums, dtype=torch.float64).sum())


def met(answer: AnswerFunction, *given: Any) -> list[Called]:
    """The round of each case, with the arguments of `graders.units.ranks.drivers.calls`."""
    return drivers.calls(partial(_met, answer), *given)


def _met(
    answer: AnswerFunction,
    values: list[Tensor],
    likes: list[float],
    seed: int,
    whole: bool,
    **group: Any,
) -> dict[str, PlainData]:
    """values: what this rank's model holds before the round. likes: how it weights these."""
    model = Player(whole)
    before = state_of(model)
    load_values(before, values)
    torch.manual_seed(7)
    score = answer(model, lambda each: score_of(state_of(each), likes), seed, **group)
    after = state_of(model)
    same = len(after) == len(before) and all(map(lambda one, other: one is other, after, before))
    return {"score": score, "model": copies_of(after), "same": same, "drawn": float(torch.rand(()))}
