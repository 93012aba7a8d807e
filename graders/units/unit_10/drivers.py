"""Drivers of unit 10: they run beside the student's code, which could read an expected value here.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.groups import group_option
from graders.units.models import floating_bytes, sent, transposed
from graders.units.unit_10.models import whole_layer
from graders.units.unit_10.replies import (
    BalanceReply,
    ExchangeReply,
    GateReply,
    LayerReply,
    PlanReply,
    TravelReply,
)


def gates(answer: AnswerFunction, cases: list[tuple[Tensor, int, bool]]) -> list[GateReply]:
    """What the answer makes of logits [N, E] and k, and the gradient of the sum of the weights' squares.

    gaps: the logits stand transposed in memory.
    """
    replies = []
    for logits, k, gaps in cases:
        leaf = logits.clone().requires_grad_()
        given = transposed(leaf) if gaps else leaf.clone()
        result = answer(given, k)
        weights = result[0] if isinstance(result, tuple | list) and result else None
        gradient = None
        if isinstance(weights, Tensor) and weights.requires_grad:
            (gradient,) = torch.autograd.grad((weights.float() ** 2).sum(), leaf)
        replies.append(GateReply(_detached(result), gradient, given.detach()))
    return replies


def plans(answer: AnswerFunction, cases: list[tuple[Tensor, int, int | None, bool]]) -> list[PlanReply]:
    """What the answer makes of each case: experts [N, k], count, capacity, and whether experts stand
    transposed in memory.
    """
    replies = []
    for experts, count, capacity, gaps in cases:
        given = transposed(experts) if gaps else experts.clone()
        options = () if capacity is None else (capacity,)
        replies.append(PlanReply(answer(given, count, *options), given))
    return replies


def dispatched(
    answer: AnswerFunction, x: Tensor, counts: Tensor, gaps: bool, learns: bool, groups: list[list[int]]
) -> TravelReply:
    """Both passes of dispatch on rows [R, D], with a forward of no rows between them, and forward under
    no_grad. gaps: x, and what arrives in backward, stand transposed in memory. learns: whether x needs a
    gradient.
    """
    options = group_option(groups)
    leaf = x.clone().requires_grad_(learns)
    given = transposed(leaf) if gaps else leaf.clone()
    mark("forward")
    result, received = answer(given, counts, **options)
    mark("forward of no rows")
    answer(leaf[:0].clone(), torch.zeros_like(counts), **options)
    mark("backward")
    gradients = _gradients(result, [leaf], gaps)
    mark("forward under no_grad")
    with torch.no_grad():
        without, _ = answer(given, counts, **options)
    arguments, needed = [given.detach(), counts], [given.requires_grad]
    return TravelReply(_detached(result), without, received, gradients, arguments, needed)


def combined(
    answer: AnswerFunction,
    y: Tensor,
    plan: tuple[Tensor, Tensor],
    received: Tensor,
    weights: Tensor,
    gaps: bool,
    learns: tuple[bool, bool],
    groups: list[list[int]],
) -> TravelReply:
    """Both passes of combine on rows [T, D] and weights [N, k], with a forward of no rows between them, and
    forward under no_grad. learns: whether rows and weights need a gradient.
    """
    options = group_option(groups)
    leaves = [each.clone().requires_grad_(its) for each, its in zip((y, weights), learns, strict=True)]
    given = [transposed(each) if gaps else each.clone() for each in leaves]
    mark("forward")
    result = answer(given[0], plan, received, given[1], **options)
    mark("forward of no rows")
    nobody = plan[0][:0], torch.zeros_like(plan[1])
    answer(leaves[0][:0].clone(), nobody, torch.zeros_like(received), leaves[1].clone(), **options)
    mark("backward")
    gradients = _gradients(result, leaves, gaps)
    mark("forward under no_grad")
    with torch.no_grad():
        without = answer(given[0], plan, received, given[1], **options)
    arguments = [*(each.detach() for each in given), *plan, received]
    needed = [each.requires_grad for each in given]
    return TravelReply(_detached(result), without, None, gradients, arguments, needed)


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


def balance(
    answer: AnswerFunction,
    probabilities: Tensor,
    experts: Tensor,
    gaps: bool,
    learns: bool,
    groups: list[list[int]],
) -> BalanceReply:
    """What the answer makes of probabilities [N, E], experts [N, k]; and the gradient of three times it.

    learns: whether probabilities need a gradient.
    """
    options = group_option(groups)
    leaf = probabilities.clone().requires_grad_(learns)
    given = transposed(leaf) if gaps else leaf.clone()
    chosen = transposed(experts) if gaps else experts.clone()
    mark("forward")
    result = answer(given, chosen, **options)
    mark("backward")
    gradient = None
    if isinstance(result, Tensor) and result.requires_grad:
        (gradient,) = torch.autograd.grad(sent(result, torch.full_like(result, 3)), leaf)
    return BalanceReply(_detached(result), gradient, given.detach(), chosen)


def exchanged(
    answer: AnswerFunction, x: Tensor, gpus_per_node: int, gaps: bool, groups: list[list[int]]
) -> ExchangeReply:
    """What the answer makes of blocks [p, ...]; gaps: they stand transposed in memory."""
    options = group_option(groups)
    given = transposed(x) if gaps else x.clone()
    result = answer(given, gpus_per_node, **options)
    shared = isinstance(result, Tensor) and result.untyped_storage()._cdata == given.untyped_storage()._cdata
    return ExchangeReply(result, given, shared)


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
