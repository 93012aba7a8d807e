"""The drivers of answers that are given shards: of gradients, of a state."""

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData


def clipped(
    answer: AnswerFunction, gradients: list[Tensor | None], max_norm: float
) -> tuple[PlainData, list[Tensor | None]]:
    """What the answer returns for parameters with these gradients, and what these hold afterwards."""
    shards = [nn.Parameter(torch.zeros(3) if each is None else torch.zeros_like(each)) for each in gradients]
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = gradient
    norm: PlainData = answer(iter(shards), max_norm)
    return norm.detach() if isinstance(norm, Tensor) else norm, gradients


def gathered(
    answer: AnswerFunction, shards: dict[str, Tensor], shapes: dict[str, list[int]]
) -> tuple[PlainData, dict[str, Tensor], dict[str, list[int]]]:
    """What the answer returns, and the arguments, after zeros have been written into what it returned."""
    given = {name: torch.Size(shape) for name, shape in shapes.items()}
    mark("begins")
    state = answer(shards, given)
    mark("done")
    seen = state
    if type(state) is dict and all(isinstance(each, Tensor) for each in state.values()):
        seen = {name: each.detach().clone() for name, each in state.items()}
        for each in state.values():
            each.detach().zero_()
    return seen, shards, {name: list(shape) for name, shape in given.items()}
