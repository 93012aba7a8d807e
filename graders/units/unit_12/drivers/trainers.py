"""The driver of tournaments."""

import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import group_option
from graders.units.models import copies_of, load_values
from graders.units.unit_12.trainers import held, player, score_of


@dataclass(frozen=True, slots=True)
class TournamentReply(DriverReply):
    """returned: by the answer. values: what the model holds then. changed: what is otherwise not as it was.
    random: numbers drawn afterwards, by PyTorch, Python and NumPy.
    """

    returned: PlainData
    values: list[Tensor]
    changed: list[str]
    random: list[float]


def met(
    answer: AnswerFunction,
    made: tuple[str, int, list[list[int]]],
    rounds: list[tuple[list[Tensor], list[float], int]],
) -> list[TournamentReply]:
    """Rounds of the answer, one after another, with one model. made: kind and width of it, and groups.

    rounds: what it holds before each, what this rank likes, and a seed.
    """
    kind, width, groups = made
    options = group_option(groups)
    model = player(kind, width, rounds[0][0]).train()
    if kind == "all":
        model.norm.eval()
        if dist.get_rank():  # in memory the same model may stand in another order elsewhere
            model.first.weight = nn.Parameter(model.first.weight.detach().contiguous())
    replies = []
    for values, likes, seed in rounds:
        load_values(held(model), values)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0) if parameter.requires_grad else None
        replies.append(_round(answer, model, likes, seed, options))
    return replies


def _round(
    answer: AnswerFunction,
    model: nn.Module,
    likes: list[float],
    seed: int,
    options: dict[str, dist.ProcessGroup | None],
) -> TournamentReply:
    """One of them."""
    tensors = held(model)
    before = [each.grad for each in model.parameters()]
    learning = [each.requires_grad for each in model.parameters()]
    modes = [module.training for module in model.modules()]
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)

    def score(model: nn.Module) -> float:
        return score_of(held(model), likes)

    mark("round")
    returned = answer(model, score, seed, **options)
    changed = []
    after = held(model)
    if len(after) != len(tensors) or any(a is not b for a, b in zip(tensors, after, strict=False)):
        changed.append("a parameter or buffer is another object, or there are more or fewer")
    parameters = list(model.parameters())
    if [each.requires_grad for each in parameters] != learning:
        changed.append("requires_grad of some parameter")
    if any(each.grad is not one for each, one in zip(parameters, before, strict=False)) or any(
        one is not None and not bool((one == 2).all()) for one in before
    ):
        changed.append("the gradient of some parameter")
    if [module.training for module in model.modules()] != modes:
        changed.append("the mode, training or not, of some module")
    if not torch.is_grad_enabled():
        changed.append("gradients are switched off")
    drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
    return TournamentReply(returned, copies_of(after), changed, drawn)
