"""Drivers of what is cut in space and by channels: both passes of the answer on this rank's part.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.groups import group_option
from graders.units.models import copies_of, sent


@dataclass(frozen=True, slots=True)
class PassesReply(DriverReply):
    """results: of each call. gradients: of the tensors given. changed: what is not as it was."""

    results: list[PlainData]
    gradients: list[PlainData]
    changed: list[str]


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another one, and not 0 where the result is 0."""
    return (rank + 2) * result.detach() + 1


def of_call(number: int, given: list[Tensor]) -> list[Tensor]:
    """What a call is given: of each call x, which comes first, is another one."""
    return [(number + 1) * given[0] if number else given[0], *given[1:]]


def passes(answer: AnswerFunction, cases: list[list[PlainData]]) -> list[PassesReply]:
    """The passes of each case, one after another. cases: the arguments of `_passes`."""
    return [_passes(answer, *case) for case in cases]


def _passes(
    answer: AnswerFunction,
    tensors: list[Tensor],
    options: dict[str, PlainData],
    groups: list[list[int]],
    frozen: int | None,
    calls: int,
    backward: bool,
) -> PassesReply:
    """What the answer makes of tensors, in so many calls; and, if backward is asked for, what gradients these
    get where `arriving` arrives at the results. frozen: which needs no gradient, by number.
    """
    given_options = options | group_option(groups)
    leaves = [each.clone().requires_grad_(number != frozen) for number, each in enumerate(tensors)]
    given = [leaf.clone() for leaf in leaves]
    mark("forward")
    results = [answer(*of_call(number, given), **given_options) for number in range(calls)]
    mark("backward")
    passed = [each for each in results if isinstance(each, Tensor) and each.requires_grad]
    changed = []
    if backward and passed:
        arrived = [arriving(each, dist.get_rank()) for each in passed]
        before = copies_of(arrived)
        ends = [sent(*each) for each in zip(passed, arrived, strict=True)]
        torch.autograd.backward(torch.stack(ends).sum())
        changed += ["the gradient that arrived"] * (not all(map(torch.equal, arrived, before)))
    changed += ["an argument"] * (not all(map(torch.equal, given, tensors)))
    # PyTorch's functional collectives wait when their result is first used: it is copied.
    gradients = [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in leaves]
    kept = [each.detach().clone() if isinstance(each, Tensor) else each for each in results]
    return PassesReply(kept, gradients, changed)


def paced(answer: AnswerFunction, x: Tensor, width: int) -> None:
    """Both passes of the answer on a strip x, each of which all ranks begin at the same time."""
    leaf = x.clone().requires_grad_()
    dist.barrier()
    mark("forward")
    result = answer(leaf, width)
    dist.barrier()
    mark("backward")
    torch.autograd.backward(sent(result, arriving(result, dist.get_rank())))
