"""Drivers of what is cut in space and by channels: both passes of the answer on this rank's part.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction
from graders.units.groups import group_option
from graders.units.models import sent, transposed
from graders.units.unit_12.space_replies import PassesReply


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another one, and not 0 where the result is 0."""
    return (rank + 2) * result.detach() + 1


def exchanged(
    answer: AnswerFunction, x: Tensor, width: int, dim: int | None, gaps: bool, groups: list[list[int]]
) -> PassesReply:
    """Both passes of the answer on a strip x, and forward under no_grad. dim: None for the default.

    gaps: x, and what arrives in backward, stand transposed in memory.
    """
    options = group_option(groups) | ({} if dim is None else {"dim": dim})
    return _passes(lambda strip: answer(strip, width, **options), [x], gaps)


def _passes(function: AnswerFunction, tensors: list[Tensor], gaps: bool) -> PassesReply:
    """What a function makes of tensors, and what they get where `arriving` arrives at its result."""
    leaves = [each.clone().requires_grad_() for each in tensors]
    given = [transposed(leaf) if gaps else leaf.clone() for leaf in leaves]
    mark("forward")
    result = function(*given)
    mark("backward")
    gradients: list[Tensor | None] = [None] * len(leaves)
    arrived = None
    if isinstance(result, Tensor):
        arrived = arriving(result, dist.get_rank())
        arrived = transposed(arrived) if gaps else arrived
        if result.requires_grad:
            torch.autograd.backward(sent(result, arrived))
            gradients = [leaf.grad for leaf in leaves]
        result = result.detach()
    mark("forward under no_grad")
    with torch.no_grad():
        without = function(*given)
    return PassesReply(result, without, gradients, [each.detach() for each in given], arrived)
