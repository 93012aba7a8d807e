"""Drivers of unit 02: what belongs to the data: shares, weights of shares, loading."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import span
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.hashing import hashes_salted
from graders.units.random_states import random_states
from graders.units.unit_02.replies import FailingLoadReply, LoadingReply, ShardsReply

LOAD_SIDE = 64
"""Side of the square matrices that the drivers' `load` multiplies, so that loading takes virtual time."""
AGAIN = 6
"""So much of what is asked for, the first of it, is asked for once more."""


def shards(answer: AnswerFunction, lengths: list[int], epochs: list[int], seeds: list[int]) -> ShardsReply:
    """This rank's indices for every (length, epoch, seed), for the first ones twice.

    The ranks' own random states differ, as they do in training with dropout or augmentation; and so does
    what `hash` makes of a text, as in processes that torchrun starts.
    """
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    before = random_states()
    asked = list(zip(lengths, epochs, seeds, strict=True))
    with hashes_salted(answer, dist.get_rank):
        given = [answer(*each) for each in asked]
        after = random_states()
        torch.rand(1 + dist.get_rank())
        first = [_copy(part) for part in given]
        for part in given:
            if isinstance(part, Tensor):
                part.zero_()
        # Backwards: nothing may depend on what was asked before, nor on what the caller did with it.
        again = [_copy(answer(*each)) for each in asked[:AGAIN][::-1]][::-1]
    # Simulated ranks have one cache; another process would have one of its own.
    for part, copy in zip(given, first, strict=True):
        if isinstance(part, Tensor):
            part.copy_(copy)
    return ShardsReply(
        first, again, [library for library, state in before.items() if after[library] != state]
    )


def _copy(part: PlainData) -> PlainData:
    return part.clone() if isinstance(part, Tensor) else part


def loading(answer: AnswerFunction, value: Tensor | None) -> LoadingReply:
    """How the answer loads `value`, of any shape.

    `load` takes virtual time on a cluster with `flops`, and marks its phase "load".
    """
    calls = 0

    def load() -> Tensor | None:
        nonlocal calls
        calls += 1
        _take_time()
        return value

    return LoadingReply(answer(load), calls)


def failing_load(answer: AnswerFunction, value: Tensor, failing: list[int]) -> FailingLoadReply:
    """How the answer takes it that `load`, of a value of any shape, fails on these ranks with a KeyError.

    Every rank's exception is caught, so that the run ends unless some rank is left waiting.
    """
    calls = 0

    def load() -> Tensor:
        nonlocal calls
        calls += 1
        _take_time()
        if dist.get_rank() in failing:
            raise KeyError("no such data set")
        return value

    try:
        answer(load)
    except Exception as error:
        return FailingLoadReply(f"{type(error).__name__}: {error}", calls)
    return FailingLoadReply(None, calls)


def _take_time() -> None:
    with span("load"):
        square = torch.ones(LOAD_SIDE, LOAD_SIDE)
        torch.mm(square, square)
