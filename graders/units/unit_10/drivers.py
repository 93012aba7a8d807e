"""Drivers of unit 10: they run beside the student's code, which could read an expected value here.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.groups import group_option
from graders.units.models import floating_bytes, sent, transposed
from graders.units.ranks.drivers import call_once
from graders.units.unit_10.models import whole_layer
from graders.units.unit_10.replies import LayerReply


@dataclass(frozen=True, slots=True)
class Passed(Called):
    """gradients: of each argument after backward; None where there is none. needed: which of them need a
    gradient after the call.
    """

    gradients: list[PlainData]
    needed: list[bool]


def passes(answer: AnswerFunction, calls: list[list[PlainData]], groups: list[list[int]]) -> list[Passed]:
    """The forwards of these calls, one after the other, then their backwards, the last one first.

    calls: of each the arguments, which of them need a gradient, a layout of all tensors (also of what arrives
    in backward), the members of the group, None for no group, and the own place in it.
    """
    made = {tuple(members): dist.new_group(members) for members in groups}
    forwards: list[Any] = []
    earlier: list[Any] = []
    for given, needs, layout, members, place in calls:
        leaves = [_leaf(each, its) for each, its in zip(given, needs, strict=True)]
        laid = [_laid_out(each, layout) for each in leaves]
        options = {} if members is None else {"group": made[tuple(members)]}
        results: list[Any] = []
        mark("forward")
        called = call_once(_noted(answer, results), laid, options, "contiguous", earlier)
        needed = [isinstance(each, Tensor) and each.requires_grad for each in laid]
        forwards.append((leaves, results[0], layout, place, called, needed))
    passed = []
    for leaves, result, layout, place, called, needed in reversed(forwards):
        mark("backward")
        _backward(result, layout, place)
        gradients = [each.grad if isinstance(each, Tensor) else None for each in leaves]
        fields = {each: getattr(called, each) for each in Called.__slots__}
        passed.append(Passed(**fields, gradients=gradients, needed=needed))
    return passed[::-1]


def _noted(answer: AnswerFunction, results: list[Any]) -> AnswerFunction:
    """The answer, whose results are noted as they are, with their history."""

    def call(*given: Any, **options: Any) -> Any:
        results.append(answer(*given, **options))
        return results[-1]

    return call


def _leaf(value: PlainData, needs: bool) -> PlainData:
    return value.clone().requires_grad_(needs) if isinstance(value, Tensor) else value


def _laid_out(value: PlainData, layout: str) -> PlainData:
    """No leaf of autograd, so that what writes into it is told so by the grader."""
    if isinstance(value, tuple):
        return tuple(_laid_out(each, layout) for each in value)
    if not isinstance(value, Tensor):
        return value
    return transposed(value) if layout == "transposed" and value.dim() else value.clone()


def _backward(result: Any, layout: str, place: int) -> None:
    """What arrives at the result, or at the first of several, goes back to the leaves."""
    first = result[0] if isinstance(result, tuple | list) and result else result
    if isinstance(first, Tensor) and first.requires_grad:
        gradient = arriving(first, place)
        torch.autograd.backward(sent(first, _laid_out(gradient, layout)))


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another multiple of it."""
    return (rank + 2) * result.detach()


def layer(
    answer: AnswerFunction,
    made: tuple[list[Tensor], int, list[int], float | None, list[list[int]]],
    batches: list[Tensor],
    gaps: bool,
    x_learns: bool,
) -> LayerReply:
    """A step for each of the batches [..., D], then the average, then a forward in eval mode, under no_grad.

    made: values, k and frozen of `whole_layer`, a capacity factor, and groups. x_learns: whether batches need
    a gradient. What arrives at the results is as `arriving` says; gradients add up over steps. A gate that
    has seen no token has none.
    """
    values, k, frozen, factor, groups = made
    whole = whole_layer(values, k, frozen)
    options = {**group_option(groups), **({} if factor is None else {"capacity_factor": factor})}
    mark("making")
    module = answer(whole, **options)
    kept, names = floating_bytes(module), sorted(name for name, _ in module.named_parameters())
    changed = changed_by_making(whole, values, module)
    results: list[PlainData] = []
    routing: list[PlainData] = []
    gradients: dict[str, Tensor | None] = {}
    given = batches[0]
    for number, batch in enumerate(batches):
        leaf = batch.clone().requires_grad_(x_learns)
        given = transposed(leaf) if gaps else leaf.clone()
        mark("forward")
        result = module(given)
        gate_learns = learns(module)
        mark("backward")
        (gradient,) = _gradients(result, [leaf], gaps)
        gradients[f"x of step {number}"] = gradient
        results.append(_detached(result))
        routing.append((_detached(module.routing), gate_learns))
    if not given.numel():
        module.gate.weight.grad = None  # as if this rank had made no backward
    before = {name: parameter.grad for name, parameter in module.named_parameters()}
    mark("average")
    module.average_gradients()
    replaced = []
    for name, parameter in module.named_parameters():
        moved = before[name] is not None and parameter.grad is not before[name]
        gradients[name] = parameter.grad
        replaced += [name] if moved else []
    mark("forward under no_grad")
    module.eval()
    with torch.no_grad():
        results.append(module(batches[0].clone()))
        routing.append((_detached(module.routing), None))
    changed += [f"{name} has a gradient" for name, each in whole.named_parameters() if each.grad is not None]
    rows = [list(expert.rows) for expert in module.experts]
    return LayerReply(names, kept, changed, results, routing, rows, gradients, replaced, given.detach())


def changed_by_making(whole: nn.Module, values: list[Tensor], module: nn.Module) -> list[str]:
    """What making `module` did to `whole`: names of those with other values, and of those that both have."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    named = list(whole.named_parameters())
    return [
        *(name for (name, each), value in zip(named, values, strict=True) if not torch.equal(each, value)),
        *(f"{name} is shared" for name, each in named if each.untyped_storage().data_ptr() in own),
    ]


def learns(module: Any) -> PlainData:
    """What the gate gets where half the sum of squares of routing's probabilities is the loss."""
    probabilities, weight = module.routing[0], module.gate.weight
    if not isinstance(probabilities, Tensor) or not (probabilities.requires_grad and weight.requires_grad):
        return None
    number = sent(probabilities, probabilities.detach())
    return torch.autograd.grad(number, weight, allow_unused=True, retain_graph=True)[0]


def placed(answer: AnswerFunction, cases: list[tuple[list[int], int, int]]) -> list[PlainData]:
    """What the answer makes of loads, ranks and slots, and the loads afterwards."""
    results = []
    for loads, ranks, slots in cases:
        given = list(loads)
        results.append((answer(given, ranks, slots), given))
    return results


def _gradients(result: PlainData, leaves: list[Tensor], gaps: bool) -> list[PlainData]:
    """What the leaves get where `arriving` arrives at the result; parameters get theirs as .grad."""
    if not isinstance(result, Tensor) or not result.requires_grad:
        return [None] * len(leaves)
    gradient = arriving(result, dist.get_rank())
    torch.autograd.backward(sent(result, transposed(gradient) if gaps else gradient))
    return [leaf.grad for leaf in leaves]


def _detached(result: PlainData) -> PlainData:
    """The same without a history."""
    if isinstance(result, Tensor):
        return result.detach()
    return tuple(map(_detached, result)) if isinstance(result, tuple | list) else result
