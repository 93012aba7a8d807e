"""Steps of training with buckets: what must come of them, and when calls start."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments
from graders.units.unit_02.models import Layers, inputs_of, older_gradients

FORWARD = "012"
"""The way through a `Layers` in the order of its layers."""


def told_steps(steps: tuple[str, ...]) -> str:
    """`2 steps in which layers run in the order 201/210 (one rank/the next)`, or how many there are."""
    ways = dict.fromkeys(step for step in steps if step != FORWARD)
    many = f"{len(steps)} steps" if len(steps) > 1 else "a step" if ways else ""
    if not ways:
        return many
    named = ", ".join("; ".join(step.split()) for step in ways)
    by_rank = " (one rank/the next)" if "/" in named else ""
    silent = "; all but the last pass within no_sync" if " " in "".join(ways) else ""
    return f"{many} in which layers run in the order {named}{by_rank}{silent}"


@dataclass(frozen=True, slots=True)
class Steps(Ranks):
    """steps: what each does: passes with a space between, all but the last silent; of a pass the numbers of
    the layers in the order in which they run, of one rank, then of the next, in turn. older:
    whether .grad holds something before the first step, of rank 0 an infinity and a NaN, too.
    """

    ranks: int = feature(2, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    steps: tuple[str, ...] = feature((FORWARD,), told_steps)
    double: bool = feature(False, lambda double: "float64" if double else "float32")
    older: bool = feature(False, lambda older: "older gradients, with an inf and a NaN" if older else "")

    @property
    def made(self) -> dict[str, Any]:
        """How the `Layers` is made."""
        return {"double": self.double}

    @property
    def model(self) -> Layers:
        """One like those of the ranks, with whatever values."""
        return _model_like(self)

    @property
    def buckets(self) -> list[list[int]]:
        """The numbers of the parameters in each."""
        raise NotImplementedError

    @property
    def in_turn(self) -> bool:
        """Whether a bucket waits for those before it."""
        return False

    @property
    def tolerance(self) -> float:
        return 1e-11 if self.double else 1e-5

    @property
    def passes(self) -> list[list[list[list[int]]]]:
        """Step -> pass -> rank -> layers."""
        return [[_by_rank(each.split("/"), self.ranks) for each in step.split()] for step in self.steps]

    @property
    def plain(self) -> bool:
        """Whether all layers run in their order, in all steps."""
        return set(self.steps) == {FORWARD}


@cache
def _model_like(case: Steps) -> Layers:
    return Layers(0, **case.made)


def _by_rank(ways: list[str], ranks: int) -> list[list[int]]:
    return [[*map(int, ways[rank % len(ways)])] for rank in range(ranks)]


def drawn_steps(
    rng: Rng, case: Steps, given: Any, apart: bool = False, raises: bool = False
) -> list[Arguments]:
    """See `drivers.steps`. given: what the answer gets beside the model. apart: whether each rank has a state
    of its own.
    """
    seeds = rng.integers(0, 2**40, 2, case.ranks).tolist()
    states, own = seeds if apart else ([seeds[0][0]] * case.ranks, seeds[1])
    return [
        [case.made, (states[rank], own[rank]), _of_rank(case, rank), case.older, raises, given]
        for rank in range(case.ranks)
    ]


def _of_rank(case: Steps, rank: int) -> list[list[list[int]]]:
    """Step -> pass -> layers."""
    return [[ways[rank] for ways in passes] for passes in case.passes]


def own_gradients(model: Layers, given: Arguments) -> list[list[Tensor]]:
    """Of each step what one rank's passes leave in .grad, zeros where nothing comes. model: as rank 0's."""
    _, (_, seed), steps, older, *_ = given
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    told = []
    for step, passes in enumerate(steps):
        losses = [
            model(inputs_of(model, seed, step, turn), way).square().mean() for turn, way in enumerate(passes)
        ]
        new = iter(torch.autograd.grad(torch.stack(losses).sum(), trained, materialize_grads=True))
        sums = [next(new) if each.requires_grad else torch.zeros_like(each) for each in parameters]
        zeros = [torch.zeros_like(each) for each in sums]
        before = older_gradients(model, seed) if older and step == 0 else zeros
        told.append([own + old for own, old in zip(sums, before, strict=True)])
    return told


def mean_gradients(of_ranks: list[list[list[Tensor]]]) -> list[list[Tensor]]:
    """Of each step the means over ranks."""
    return [
        [torch.stack(each).mean(0) for each in zip(*step, strict=True)]
        for step in zip(*of_ranks, strict=True)
    ]


# ---------------------------------------------------------------------- rows that ask when calls start
