"""The drivers of answers that are given shards: of gradients, of a state."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class StateReply(DriverReply):
    """state: what the answer returned. shards, shapes: the arguments, after what was returned has changed."""

    state: PlainData
    shards: dict[str, Tensor]
    shapes: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class ClippedReply(DriverReply):
    """norm: what the answer returned. gradients: afterwards. in_place: whether in the tensors given."""

    norm: PlainData
    gradients: list[Tensor | None]
    in_place: bool


def clipped(answer: AnswerFunction, gradients: list[Tensor | None], max_norm: float) -> ClippedReply:
    """What the answer makes of parameters with these gradients."""
    shards = [nn.Parameter(torch.zeros(3) if each is None else torch.zeros_like(each)) for each in gradients]
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = gradient
    norm: PlainData = answer(iter(shards), max_norm)
    after = [shard.grad for shard in shards]
    in_place = all(map(lambda one, other: one is other, after, gradients))
    return ClippedReply(norm.detach() if isinstance(norm, Tensor) else norm, after, in_place)


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
