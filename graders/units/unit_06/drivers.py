"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ConjugateReply(DriverReply):
    """result: what came out of forward, without_gradient: of a second forward, under no_grad.

    gradient: what arrived at x in backward, by both ways. x, arriving: the arguments afterwards.
    """

    result: PlainData
    without_gradient: PlainData
    gradient: PlainData
    x: Tensor
    arriving: Tensor


def conjugate(
    answer: AnswerFunction, x: Tensor, arriving: Tensor, beside: Tensor, groups: list[list[int]]
) -> ConjugateReply:
    """Both passes of the answer on x, of any shape. arriving: the gradient of what it returns, of x's shape
    or one number for all of it. beside: the gradient that x gets by another way. groups: see `own_group`.
    """
    options = {"group": own_group(groups)} if groups else {}
    leaf = x.clone().requires_grad_()
    given = leaf.clone()
    gradient = arriving.clone().expand_as(x)
    mark("forward")
    result = answer(given, **options)
    mark("backward")
    (found,) = torch.autograd.grad([result, given], leaf, [gradient, beside])
    mark("forward without gradient")
    with torch.no_grad():
        without = answer(x.clone(), **options)
    return ConjugateReply(result.detach(), without, found, given.detach(), gradient)


def own_group(groups: list[list[int]]) -> dist.ProcessGroup | None:
    """The group of these lists of ranks that this rank is in; every rank makes all of them."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    return next((group for ranks, group in made if dist.get_rank() in ranks), None)
