"""Drivers of what is cut in space and by channels: both passes of the answer on this rank's part.

What arrives in backward at an answer's result is made of the result itself (see `arriving`), so a result of
another shape ends in a finding about its shape.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, sent
from graders.units.ranks import drivers


def arriving(result: Tensor, rank: int) -> Tensor:
    """The gradient that arrives at a result: on each rank another one, and not 0 where the result is 0."""
    return (rank + 2) * result.detach() + 1


def of_call(number: int, given: list[Tensor]) -> list[Tensor]:
    """What a call is given: of each call x, which comes first, is another one."""
    return [(number + 1) * given[0] if number else given[0], *given[1:]]


def passes(answer: AnswerFunction, *given: Any) -> list[Called]:
    """The passes of each case, with the arguments of `graders.units.ranks.drivers.calls`."""
    return drivers.calls(partial(_passes, answer), *given)


def _passes(
    answer: AnswerFunction,
    tensors: list[Tensor],
    options: dict[str, PlainData],
    frozen: int | None,
    times: int,
    backward: bool,
    **group: Any,
) -> list[PlainData]:
    """The result of each call; the gradient of each tensor, where `arriving` arrives at the results, if
    backward is asked for; and what is not as it was. frozen: which tensor needs no gradient, by number.
    """
    leaves = [each.clone().requires_grad_(number != frozen) for number, each in enumerate(tensors)]
    given = [leaf.clone() for leaf in leaves]
    mark("forward")
    results = [answer(*of_call(number, given), **options, **group) for number in range(times)]
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
    return [results, [leaf.grad for leaf in leaves], changed]
