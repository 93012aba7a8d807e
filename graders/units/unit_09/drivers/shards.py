"""The drivers of answers that are given shards: of gradients, of a state."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.unit_09.replies import StateReply


def clipped(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[PlainData],
    layouts: list[str],
    members: list[PlainData],
    meet: list[bool],
) -> list[Called]:
    """As `graders.units.ranks.drivers.calls`, of an answer that is given parameters with gradients."""
    told = []
    for (weights, gradients, max_norm), together in zip(cases, meet, strict=True):
        if together:
            dist.barrier()
        shards = [nn.Parameter(each.clone()) for each in weights]
        given = [None if each is None else each.clone() for each in gradients]
        for shard, gradient in zip(shards, given, strict=True):
            shard.grad = gradient
        norm: Any = answer(iter(shards), max_norm)
        result = {
            "norm": norm.detach().clone() if isinstance(norm, Tensor) else norm,
            "gradients": [None if shard.grad is None else shard.grad.clone() for shard in shards],
            "in place": all(shard.grad is own for shard, own in zip(shards, given, strict=True)),
            "shards": [shard.detach().clone() for shard in shards],
        }
        told.append(Called(result, None, [None, None, max_norm]))
    return told


def gathered(answer: AnswerFunction, shards: dict[str, Tensor], shapes: dict[str, list[int]]) -> StateReply:
    """What the answer makes of this rank's shards, and what is left of these when it is written into."""
    given = {name: torch.Size(shape) for name, shape in shapes.items()}
    mark("begins")
    state = answer(shards, given)
    mark("done")
    left = {name: list(each) if isinstance(each, tuple) else each for name, each in given.items()}
    if type(state) is not dict or not all(isinstance(each, Tensor) for each in state.values()):
        return StateReply(state, shards, left)
    seen = {name: each.detach().clone() for name, each in state.items()}
    for each in state.values():
        each.detach().zero_()
    return StateReply(seen, shards, left)
