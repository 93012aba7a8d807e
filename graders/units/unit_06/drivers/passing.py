"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from collections.abc import Callable
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
    """result: of forward; again: of two more, where they are asked for, under no_grad and for an x that
    needs no gradient. gradients: after two steps, by name.

    arguments: what was given, afterwards, by name. held: what a module was made with, by name. kept: bytes
    of its floating tensors' memory.
    """

    result: PlainData
    again: list[PlainData]
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
    for calling in (each for each in members if each is not None):
        # Beside each group one of each of its ranks alone.
        for ranks in (calling, *([rank] for rank in calling)):
            if tuple(ranks) not in groups:
                groups[tuple(ranks)] = dist.new_group(ranks)
    told = []
    for number, (given, several) in enumerate(zip(cases, members, strict=True)):
        if given is None:
            continue
        options = {} if several is None else {"group": groups[tuple(several)]}
        mark(f"{number} making")
        made = MAKERS[kind](answer, given, options)
        between = (
            _in_a_group_alone(answer, given, groups) if several and _twice(kind, given) else lambda: None
        )
        told.append(_passes(number, made, given, between))
    return told


def _twice(kind: str, given: Given) -> bool:
    """Whether x may be given to the answer in a group of one rank, too."""
    return kind == "tensor" and not given["rest"]


def _in_a_group_alone(
    answer: AnswerFunction, given: Given, groups: dict[tuple[int, ...], Any]
) -> Callable[[], Any]:
    """With two groups in one model both forward passes come before both backward passes."""
    x = torch.zeros_like(given["x"]).requires_grad_()
    # Looked at, for what comes out of a functional collective waits until then.
    return lambda: copied(answer(x, group=groups[(dist.get_rank(),)]))


def _passes(number: int, made: Made, given: Given, between: Callable[[], Any]) -> PassedReply:
    x, spread = given["x"], given["layout"] == "spread"
    leaf = x.clone().requires_grad_(x.is_floating_point())
    for step in ("first", "second") if given["backward"] else ("first",):
        inside = transposed(leaf) if spread else leaf.clone()
        arriving = given["arriving"].clone()
        if spread:
            arriving = arriving.narrow(-1, 0, 1).expand_as(arriving)
        mark(f"{number} {step} forward")
        result = made.forward(inside)
        mark(f"{number} {step} backward")
        if given["backward"]:
            between()
            mark(f"{number} {step} backward begins")
            through = [sent(result, arriving)] if result.requires_grad else []
            # In each step x may get a gradient of ones by another way.
            beside = [sent(inside, torch.ones_like(inside))] if given["beside"] else []
            if through or beside:
                torch.autograd.backward([*through, *beside])
    again = []
    if given["again"]:
        mark(f"{number} without gradients")
        with torch.no_grad():
            again.append(copied(made.forward(x.clone())))
        mark(f"{number} x without gradient")
        again.append(copied(made.forward(x.clone())))
    gradients = {name: copied(each.grad) for name, each in {**made.leaves, "x": leaf}.items()}
    tensors = {name: each for name, each in given["rest"].items() if isinstance(each, Tensor)}
    arguments = {"x": inside, "the gradient that arrived": arriving, **tensors, **made.given()}
    return PassedReply(
        copied(result),
        again,
        gradients,
        {name: copied(each) for name, each in arguments.items()},
        made.held,
        made.kept,
    )
