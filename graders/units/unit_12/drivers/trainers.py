"""The driver of tournaments, their models, and how trainers score these."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import group_option
from graders.units.models import copies_of, load_values, state_of


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


@dataclass(frozen=True, slots=True)
class TournamentReply(DriverReply):
    """returned: by the answer. values: what the model holds then. same: whether in the same tensors. drawn:
    PyTorch's next random number.
    """

    returned: PlainData
    values: list[Tensor]
    same: bool
    drawn: float


def met(
    answer: AnswerFunction,
    whole: bool,
    groups: list[list[int]],
    values: list[Tensor],
    likes: list[float],
    seed: int,
) -> TournamentReply:
    """A round. values: what this rank's model holds before it. likes: how it weights these."""
    options = group_option(groups)
    model = Player(whole)
    before = state_of(model)
    load_values(before, values)
    torch.manual_seed(7)
    returned = answer(model, lambda each: score_of(state_of(each), likes), seed, **options)
    after = state_of(model)
    same = len(after) == len(before) and all(map(lambda one, other: one is other, after, before))
    return TournamentReply(returned, copies_of(after), same, float(torch.rand(())))
