"""Drivers of what is cut in space and by channels: both passes of the answer on this rank's part.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.groups import group_option
from graders.units.models import sent, transposed
from graders.units.unit_12.space_replies import PassesReply, SeveralReply


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another one, and not 0 where the result is 0, but
    infinite if the result is infinite elsewhere.
    """
    result = result.detach()
    arrived = (rank + 2) * result + 1
    return arrived.masked_fill(result == 0, math.inf) if result.isinf().any() else arrived


def passes(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[PassesReply]:
    """The passes of each case, one after another. cases: the arguments of `_passes`."""
    return [_passes(answer, *case) for case in cases]


def _passes(
    answer: AnswerFunction,
    tensors: list[Tensor],
    options: dict[str, PlainData],
    groups: list[list[int]],
    gaps: bool,
    frozen: list[int],
    backward: bool,
) -> PassesReply:
    """What the answer makes of tensors, and what they get where `arriving` arrives at its result, if backward
    is asked for; and what it makes of them under no_grad.

    gaps: tensors, and what arrives, stand transposed in memory. frozen: which need no gradient, by number.
    """
    given_options = options | group_option(groups)
    leaves = [each.clone().requires_grad_(number not in frozen) for number, each in enumerate(tensors)]
    given = [transposed(leaf) if gaps and leaf.dim() > 1 else leaf.clone() for leaf in leaves]
    mark("forward")
    result = answer(*given, **given_options)
    mark("backward")
    gradients: list[Tensor | None] = [None] * len(leaves)
    kept = True
    if backward and isinstance(result, Tensor):
        arrived = arriving(result, dist.get_rank())
        arrived = transposed(arrived) if gaps else arrived
        before = arrived.clone()
        if result.requires_grad:
            torch.autograd.backward(sent(result, arrived))
            # PyTorch's functional collectives wait when their result is first used: it is copied.
            gradients = list(map(copied, leaves))
        kept = arrived.equal(before)
    mark("forward under no_grad")
    with torch.no_grad():
        result, without = (
            each.detach().clone() if isinstance(each, Tensor) else each
            for each in (result, answer(*given, **given_options))
        )
    learning = [each.requires_grad for each in given]
    return PassesReply(result, without, gradients, [each.detach() for each in given], learning, kept)


def copied(leaf: Tensor) -> Tensor | None:
    """A copy of the gradient that a leaf has."""
    return None if leaf.grad is None else leaf.grad.detach().clone()


def paced(answer: AnswerFunction, x: Tensor, width: int) -> None:
    """Both passes of the answer on a strip x, each of which all ranks begin at the same time."""
    leaf = x.clone().requires_grad_()
    dist.barrier()
    mark("forward")
    result = answer(leaf, width)
    dist.barrier()
    mark("backward")
    torch.autograd.backward(sent(result, arriving(result, dist.get_rank())))


def several(
    answer: AnswerFunction,
    tensors: list[Tensor],
    calls: list[tuple[list[int], dict[str, PlainData], list[list[int]]]],
) -> SeveralReply:
    """Several calls in one graph, where a gradient arrives at the tensors themselves, too, and whose backward
    runs twice; and then all of it again, with the same tensors.

    calls: for each the numbers of the tensors that it is given, its other arguments, and groups.
    """
    made = [(numbers, options | group_option(groups)) for numbers, options, groups in calls]
    leaves = [each.clone().requires_grad_() for each in tensors]
    results: list[Tensor] = []
    rounds: list[list[PlainData]] = []
    for _ in range(2):
        results = [answer(*(leaves[each] for each in numbers), **options) for numbers, options in made]
        number = torch.zeros(())
        for result in (*leaves, *results):
            number = number + sent(result, arriving(result, dist.get_rank()))
        for _ in range(2):
            torch.autograd.backward(number, retain_graph=True)
            rounds.append(list(map(copied, leaves)))
            for leaf in leaves:
                leaf.grad = None
    return SeveralReply([each.detach().clone() for each in results], rounds)
