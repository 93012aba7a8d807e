"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import floating_bytes, sent, transposed
from graders.units.ranks.drivers import copied
from graders.units.unit_06.modules import load_named, named_copies

Given = dict[str, PlainData]
"""What a rank is given in a case: x, arriving, rest and parameters (see `Place`), kind of pass, layout."""


@dataclass(frozen=True, slots=True)
class PassedReply(DriverReply):
    """result: of forward; again: of two more, under no_grad and for an x that needs no gradient. gradients:
    after two steps, by name.

    arguments: what was given, afterwards, by name. held: what a module was made with, by name. kept: bytes of
    its floating tensors' memory.
    """

    result: PlainData
    again: list[PlainData]
    gradients: dict[str, PlainData]
    arguments: dict[str, PlainData]
    held: dict[str, PlainData]
    kept: int


@dataclass(frozen=True, slots=True)
class Made:
    """What the passes go through, and what a module was made with: see `PassedReply`."""

    forward: Callable[[Tensor], Any]
    leaves: dict[str, Tensor]
    held: dict[str, PlainData] = field(default_factory=dict)
    kept: int = 0


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
        between = _in_a_group_alone(answer, given, groups) if several and kind == "tensor" else lambda: None
        told.append(_passes(number, made, given, between))
    return told


def _in_a_group_alone(
    answer: AnswerFunction, given: Given, groups: dict[tuple[int, ...], Any]
) -> Callable[[], Any]:
    """With two groups in one model both forward passes come before both backward passes."""
    x = torch.zeros_like(given["x"]).requires_grad_()
    return lambda: answer(x, group=groups[(dist.get_rank(),)])


def _passes(number: int, made: Made, given: Given, between: Callable[[], Any]) -> PassedReply:
    x, spread = given["x"], given["layout"] == "spread"
    leaf = x.clone().requires_grad_()
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
    mark(f"{number} without gradients")
    with torch.no_grad():
        again = made.forward(x.clone())
    mark(f"{number} x without gradient")
    of_data = made.forward(x.clone())
    gradients = {name: copied(each.grad) for name, each in {**made.leaves, "x": leaf}.items()}
    arguments = {"x": inside, "the gradient that arrived": arriving}
    return PassedReply(
        copied(result),
        [copied(again), copied(of_data)],
        gradients,
        {name: copied(each.detach()) for name, each in arguments.items()},
        made.held,
        made.kept,
    )


# ---------------------------------------------------------------------- what the passes go through


def _tensor(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    return Made(lambda x: answer(x, *given["rest"], **options), {})


def _layer(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    """rest: inputs, outputs, whether there is a bias, and a seed."""
    inputs, outputs, bias, seed = given["rest"]
    torch.manual_seed(seed)
    torch.rand(1)
    module = answer(inputs, outputs, **options) if bias else answer(inputs, outputs, bias, **options)
    held = {**named_copies(module), "torch.rand(3)": torch.rand(3)}
    kept = floating_bytes(module)
    load_named(module, given["parameters"])
    if not bias and module.bias is not None:
        raise LookupError("With bias=False, the attribute bias is to be None.")
    return Made(module, dict(module.named_parameters()), held=held, kept=kept)


MAKERS: dict[str, Callable[[AnswerFunction, Given, dict[str, Any]], Made]] = {
    "tensor": _tensor,
    "layer": _layer,
}
