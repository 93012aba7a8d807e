"""Drivers of unit 02: what belongs to the data: shares, loading."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import span
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.random_states import random_states

LOAD_SIDE = 64
"""Side of the square matrices that the driver's `load` multiplies, so that loading takes virtual time."""


@dataclass(frozen=True, slots=True)
class ShardsReply(DriverReply):
    """parts: what one rank got each time that it asked. changed: libraries that drew numbers."""

    parts: list[PlainData]
    changed: list[str]


@dataclass(frozen=True, slots=True)
class LoadingReply(DriverReply):
    """result: what the answer returned on this rank. calls: how often it called `load`. raised: what it
    raised, as text.
    """

    result: PlainData
    calls: int
    raised: str


def shards(answer: AnswerFunction, asked: list[tuple[int, int, int]]) -> ShardsReply:
    """This rank's indices for every (length, epoch, seed). The ranks' own random states differ, as they do
    in training with dropout or augmentation.
    """
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    before = random_states()
    parts = [answer(*each) for each in asked]
    after = random_states()
    return ShardsReply(parts, [library for library, state in before.items() if after[library] != state])


def loading(answer: AnswerFunction, value: Tensor, failing: list[int]) -> LoadingReply:
    """How the answer loads `value`, of any shape, or that `load` fails on some ranks with a KeyError.

    `load` takes virtual time on a cluster with `flops`, and marks its phase "load".
    """
    calls = 0

    def load() -> Tensor:
        nonlocal calls
        calls += 1
        with span("load"):
            square = torch.ones(LOAD_SIDE, LOAD_SIDE)
            torch.mm(square, square)
        if dist.get_rank() in failing:
            raise KeyError("no such data set")
        return value

    if not failing:
        return LoadingReply(answer(load), calls, "")
    # Every rank's exception is caught, so that the run ends unless some rank is left waiting.
    try:
        return LoadingReply(answer(load), calls, "")
    except Exception as error:
        return LoadingReply(None, calls, f"{type(error).__name__}: {error}")
