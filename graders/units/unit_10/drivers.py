"""Drivers of unit 10: they run beside the student's code, which could read an expected value here.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.groups import group_option
from graders.units.models import floating_bytes, sent
from graders.units.ranks.drivers import call_once
from graders.units.unit_10.models import whole_layer


@dataclass(frozen=True, slots=True)
class Passed(Called):
    """gradients: of each argument after backward; None where there is none."""

    gradients: list[PlainData]


def passes(answer: AnswerFunction, calls: list[list[PlainData]], groups: list[list[int]]) -> list[Passed]:
    """The forwards of these calls, one after the other, then their backwards, the last one first.

    calls: of each the arguments, the members of the group, None for no group, and the own place in it.
    """
    made = {tuple(members): dist.new_group(members) for members in groups}
    forwards: list[Any] = []
    earlier: list[Any] = []
    for given, members, place in calls:
        leaves = [_leaf(each) for each in given]
        # No leaves of autograd, so that what writes into them is told so by the grader.
        copies = [each.clone() if isinstance(each, Tensor) else each for each in leaves]
        options = {} if members is None else {"group": made[tuple(members)]}
        results: list[Any] = []
        mark("forward")
        called = call_once(_noted(answer, results), copies, options, "contiguous", earlier)
        forwards.append((leaves, results[0], place, called))
    passed = []
    for leaves, result, place, called in reversed(forwards):
        mark("backward")
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, Tensor) and first.requires_grad:
            torch.autograd.backward(sent(first, arriving(first, place)))
        gradients = [each.grad if isinstance(each, Tensor) else None for each in leaves]
        fields = {each: getattr(called, each) for each in Called.__slots__}
        passed.append(Passed(**fields, gradients=gradients))
    return passed[::-1]


def _noted(answer: AnswerFunction, results: list[Any]) -> AnswerFunction:
    """The answer, whose results are noted as they are, with their history."""

    def call(*given: Any, **options: Any) -> Any:
        results.append(answer(*given, **options))
        return results[-1]

    return call


def _leaf(value: PlainData) -> PlainData:
    return value.clone().requires_grad_(value.is_floating_point()) if isinstance(value, Tensor) else value


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another multiple of it."""
    return (rank + 2) * result.detach()


Told = tuple[int, dict[str, PlainData], PlainData, list[list[int]]]
"""Bytes of the memory of a layer's floating tensors; its result, and by name the gradients of x and of its
parameters; its routing, with the gradient that the gate gets by it; and the rows of each call of its experts.
"""


def layer(
    answer: AnswerFunction,
    made: tuple[list[Tensor], int, float | None, list[list[int]]],
    x: Tensor,
) -> Told:
    """A step of a layer with x [..., D], then the average. A gate that has seen no token has no gradient.

    made: values and k of `whole_layer`, a capacity factor, and groups.
    """
    values, k, factor, groups = made
    options = {**group_option(groups), **({} if factor is None else {"capacity_factor": factor})}
    mark("making")
    module = answer(whole_layer(values, k), **options)
    kept = floating_bytes(module)
    leaf = x.clone().requires_grad_()
    mark("forward")
    result = module(leaf.clone())
    routing = [_detached(each) for each in module.routing], learns(module)
    mark("backward")
    if isinstance(result, Tensor) and result.requires_grad:
        torch.autograd.backward(sent(result, arriving(result, dist.get_rank())))
    if not x.numel():
        module.gate.weight.grad = None  # as if this rank had made no backward
    mark("average")
    module.average_gradients()
    gradients = {name: gradient(each) for name, each in module.named_parameters()}
    told = {"the result": _detached(result), "x": gradient(leaf), **gradients}
    return kept, told, routing, [list(expert.rows) for expert in module.experts]


def gradient(leaf: Tensor) -> Tensor:
    """Zeros where there is none."""
    return torch.zeros_like(leaf.detach()) if leaf.grad is None else leaf.grad


def learns(module: Any) -> PlainData:
    """What the gate gets where half the sum of squares of routing's probabilities is the loss."""
    probabilities = module.routing[0]
    if not isinstance(probabilities, Tensor) or not probabilities.requires_grad:
        return None
    number = sent(probabilities, probabilities.detach())
    return torch.autograd.grad(number, module.gate.weight, allow_unused=True, retain_graph=True)[0]


def _detached(result: PlainData) -> PlainData:
    """The same without a history."""
    return result.detach() if isinstance(result, Tensor) else result


def placed(answer: AnswerFunction, cases: list[tuple[list[int], int, int]]) -> list[PlainData]:
    """What the answer makes of loads, ranks and slots."""
    return [answer(*case) for case in cases]
