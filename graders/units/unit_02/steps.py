"""Steps of training with buckets, and what must come of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments
from graders.units.unit_02.models import Layers, inputs_of

FORWARD = "012"
"""The way through a `Layers` in the order of its layers."""


def told_steps(steps: tuple[str, ...]) -> str:
    """`steps in which layers run in the order 012, then 201/210 (one rank/the next)`"""
    if steps == (FORWARD,):
        return ""
    told = f"steps in which layers run in the order {', then '.join(steps)}"
    return told + " (one rank/the next)" * ("/" in told)


@dataclass(frozen=True, slots=True)
class Steps(Ranks):
    """steps: what each does: passes with a space between, all but the last silent; of a pass the numbers of
    the layers in the order in which they run, of one rank, then of the next, in turn.
    """

    ranks: int = feature(2, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    steps: tuple[str, ...] = feature((FORWARD,), told_steps)

    @property
    def buckets(self) -> list[list[int]]:
        """The numbers of the parameters in each, in the order in which they start; two of each layer."""
        raise NotImplementedError

    @property
    def plain(self) -> bool:
        """Whether all layers run in their order, in all steps."""
        return set(self.steps) == {FORWARD}

    def ways(self, rank: int) -> list[list[list[int]]]:
        """Step -> pass -> layers."""
        by_pass = [[each.split("/") for each in step.split()] for step in self.steps]
        return [[[*map(int, ways[rank % len(ways)])] for ways in passes] for passes in by_pass]


SIZES = [parameter.nbytes for parameter in Layers(0).parameters()]


def drawn_steps(
    rng: Rng, case: Steps, given: Any, frozen: tuple[int, ...] = (), apart: bool = False
) -> list[Arguments]:
    """See `drivers.steps`. given: what the answer gets beside the model. apart: whether each rank has a state
    of its own.
    """
    states, own = rng.integers(0, 2**40, 2, case.ranks).tolist()
    return [
        [(states[rank if apart else 0], own[rank]), case.ways(rank), [*frozen], given]
        for rank in range(case.ranks)
    ]


def own_gradients(given: list[Arguments]) -> list[list[list[Tensor | None]]]:
    """Of each rank and step what its passes leave in .grad of a model with rank 0's state, zeros where
    nothing comes.
    """
    (state, _), _, frozen, _ = given[0]
    told = []
    for (_, seed), steps, *_ in given:
        model, of_rank = Layers(state, frozen), []
        for number, passes in enumerate(steps):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            for turn, way in enumerate(passes):
                model(inputs_of(seed, number, turn), way).square().mean().backward()
            of_rank.append([parameter.grad for parameter in model.parameters()])
        told.append(of_rank)
    return told


def mean_gradients(of_ranks: list[list[list[Tensor | None]]]) -> list[list[Tensor | None]]:
    """Of each step the means over ranks."""
    return [
        [None if each[0] is None else torch.stack(each).mean(0) for each in zip(*step, strict=True)]
        for step in zip(*of_ranks, strict=True)
    ]
