"""The driver of tournaments."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import group_option
from graders.units.unit_12.trainers import held, player, score_of


@dataclass(frozen=True, slots=True)
class TournamentReply(DriverReply):
    """returned: by the answer. values: what the model holds then. changed: what is otherwise not as it was.
    random: a number drawn afterwards.
    """

    returned: PlainData
    values: list[Tensor]
    changed: list[str]
    random: Tensor


def met(
    answer: AnswerFunction,
    made: tuple[str, int, list[list[int]]],
    values: list[Tensor],
    likes: list[float],
    seed: int,
) -> TournamentReply:
    """One round of the answer. made: kind and width of the model, and groups."""
    kind, width, groups = made
    options = group_option(groups)
    model = player(kind, width, values).eval()
    before, modes = held(model), [each.requires_grad for each in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    torch.manual_seed(7)

    def score(model: nn.Module) -> float:
        return score_of(held(model), likes)

    returned = answer(model, score, seed, **options)
    changed = []
    if any(one is not other for one, other in zip(before, held(model), strict=True)):
        changed.append("a parameter or buffer is another object")
    if [each.requires_grad for each in model.parameters()] != modes:
        changed.append("requires_grad of some parameter")
    if any(each.requires_grad and each.grad is None for each in model.parameters()):
        changed.append("a gradient is gone")
    if any(module.training for module in model.modules()):
        changed.append("the model is in training mode")
    return TournamentReply(returned, [each.detach() for each in held(model)], changed, torch.rand(3))
