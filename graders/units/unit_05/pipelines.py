"""Pipelines of stages, of which each rank has one: what varies in them, and how they are drawn."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments

FROZEN = (("weight", "bias"), ("bias",))
"""Parameters of the first stages that are not trained, if some are frozen."""


@dataclass(frozen=True, slots=True)
class Pipeline(Ranks):
    """times: calls, each for a batch of its own, which has this share of a whole one. doubled: stage 0 makes
    float64 of it. turned: what stages return lies column by column. training: the mode of the stages.
    """

    ranks: int = feature(3, lambda ranks: compare.counted(ranks, "stage"))
    times: int = feature(1, lambda times: f"{times} calls" * (times > 1))
    share: float = feature(1.0, lambda share: f"share={share:.3g}" * (share < 1))
    doubled: bool = feature(False, lambda doubled: "float64 from the first stage on" * doubled)
    turned: bool = feature(False, lambda turned: "outputs that lie column by column" * turned)
    frozen: bool = feature(False, lambda frozen: "the first stages are frozen" * frozen)
    training: bool = feature(True, lambda training: "" if training else "stages in evaluation")


def shapes(case: Pipeline) -> list[list[int]]:
    """What comes into each stage, and what leaves the last."""
    return [[3, width] for width in [4, 2, 5, 3, 6][: case.ranks + 1]]


def a_pipeline(rng: Rng, case: Pipeline) -> list[Arguments]:
    """By rank: what `Piece` takes, x of each call or of all, targets of each call, the mode, the share."""
    *inputs, output = shapes(case)
    dtype = torch.float64 if case.doubled else torch.float32
    given: list[Arguments] = []
    for rank, (x, y) in enumerate(pairwise([*inputs, output])):
        of_rank = dtype if rank else torch.float32
        values = [rng.normal(x[-1], y[-1], dtype=of_rank), rng.normal(y[-1], dtype=of_rank)]
        xs = [torch.full(x, -7.0, dtype=of_rank)]
        if rank == 0:
            xs = [rng.normal(*x) for _ in range(case.times)]
        targets: list[Tensor | None] = [None] * case.times
        if rank == case.ranks - 1:
            targets = [rng.normal(*output, dtype=dtype) for _ in range(case.times)]
        frozen = [*FROZEN[rank]] if case.frozen and rank < len(FROZEN) else []
        stage = [values, case.turned, case.doubled and rank == 0, frozen]
        given.append([stage, xs, targets, case.training, case.share])
    return given
