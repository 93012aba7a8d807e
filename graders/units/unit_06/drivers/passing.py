"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import sent, transposed
from graders.units.ranks.drivers import copied
from graders.units.unit_06.drivers.makers import MAKERS, Given, Made


@dataclass(frozen=True, slots=True)
class PassedReply(DriverReply):
    """result: of forward. gradients: after two steps, by name. arguments: what was given, afterwards, by
    name. held: what a module was made with, by name. kept: bytes of its floating tensors' memory.
    """

    result: PlainData
    gradients: dict[str, PlainData]
    arguments: dict[str, PlainData]
    held: dict[str, PlainData]
    kept: int


def both_passes(
    answer: AnswerFunction, kind: str, cases: list[Given | None], members: list[list[int] | None]
) -> list[PassedReply]:
    """Both passes of each case that this rank takes part in (not None). members: of each case the ranks of
    the group that calls; None: the default group, and no `group` argument. kind: one of MAKERS.
    """
    groups: dict[tuple[int, ...], Any] = {}
    for ranks in members:
        if ranks is not None and tuple(ranks) not in groups:
            groups[tuple(ranks)] = dist.new_group(ranks)
    told = []
    for number, (given, several) in enumerate(zip(cases, members, strict=True)):
        if given is not None:
            options = {} if several is None else {"group": groups[tuple(several)]}
            mark(f"{number} making")
            told.append(_passes(number, MAKERS[kind](answer, given, options), given))
    return told


def _passes(number: int, made: Made, given: Given) -> PassedReply:
    x, spread, backward = given["x"], given["layout"] == "spread", given["backward"]
    # Where only forward is looked at, x is data, as in the first layer of a model.
    leaf = x.clone().requires_grad_(x.is_floating_point() and backward)
    for _ in range(2 if backward else 1):
        inside = transposed(leaf) if spread else leaf.clone()
        arriving = given["arriving"].clone()
        if spread:
            arriving = arriving.narrow(-1, 0, 1).expand_as(arriving)
        mark(f"{number} forward")
        result = made.forward(inside)
        if backward:
            mark(f"{number} backward")
            through = [sent(result, arriving)] if result.requires_grad else []
            # In each step x may get a gradient of ones by another way.
            beside = [sent(inside, torch.ones_like(inside))] if given["beside"] else []
            if through or beside:
                torch.autograd.backward([*through, *beside])
    gradients = {name: copied(each.grad) for name, each in {**made.leaves, "x": leaf}.items()}
    tensors = {name: each for name, each in given["rest"].items() if isinstance(each, Tensor)}
    arguments = {"x": inside, "the gradient that arrived": arriving, **tensors, **made.given()}
    left = {name: copied(each) for name, each in arguments.items()}
    return PassedReply(copied(result), gradients, left, made.held, made.kept)
