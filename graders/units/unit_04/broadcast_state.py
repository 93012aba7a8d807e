"""The grader of `broadcast_state`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.models import state_of
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_04.drivers import replicas as drivers
from graders.units.unit_04.models import Normed, plain_model

STATES = {
    "alike": "",
    "rank 0's": "a state on rank 0 only",
    "its own": "a state of its own on each rank",
    "others'": "no state on rank 0, one on others",
    "nobody's": "no state on any rank",
}
"""Which optimizers have a state, and how that is told."""
STAYS = (
    "which tensors the model has, and where in memory: whether these",
    "which parameters the optimizer has: whether these",
    "gradients: whether these",
)


@dataclass(frozen=True, slots=True)
class Replicas(Ranks):
    """normed: whether the model has buffers and a frozen layer. states: see STATES. options: whether those of
    other ranks have other values.
    """

    ranks: int = feature(3, "{} ranks")
    normed: bool = feature(False, lambda normed: "a model with buffers and a frozen layer" * normed)
    states: str = feature("alike", STATES.__getitem__)
    options: bool = feature(False, lambda other: "other values of options" * other)
    groups: int = feature(1, lambda groups: f"{groups} groups of parameters" if groups > 1 else "")

    @property
    def tolerance(self) -> float:
        return 0.0


def possible(case: Replicas) -> bool:
    """Models and the two parts of an optimizer have nothing to do with each other: a case differs in one."""
    differs = case.ranks != 3, case.normed, case.states != "alike", case.options
    return sum(differs) < 2


def models_and_optimizers(rng: Rng, case: Replicas) -> list[Arguments]:
    """Of each rank the model's values, the options of the optimizer's groups, and its states."""
    model = Normed() if case.normed else plain_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given: list[Arguments] = []
    for rank in range(case.ranks):
        values = [_like(rng, tensor) for tensor in state_of(model)]
        drawn_options = [_options(rng) for _ in range(case.groups)]
        drawn_states = [{"momentum": _like(rng, each), "steps": rng.integer(2, 99)} for each in trained]
        options = drawn_options if case.options or not rank else given[0][2]
        states = drawn_states if case.states != "alike" or not rank else given[0][3]
        has = _how_many_have_one(case.states, rank, len(trained))
        given.append([case.normed, values, options, [own if n < has else {} for n, own in enumerate(states)]])
    return given


def _how_many_have_one(states: str, rank: int, parameters: int) -> int:
    """Of how many parameters a rank's optimizer has a state."""
    match states, rank:
        case ("nobody's", _) | ("others'", 0):
            return 0
        case ("rank 0's", other) if other:
            return 0
        case _:
            return parameters


def _options(rng: Rng) -> dict[str, float]:
    return {name: rng.integer(1, 999) / 1000 for name in ("lr", "momentum", "decay", "damping")}


def _like(rng: Rng, tensor: Tensor) -> Tensor:
    """Numbers of which a smaller dtype loses some."""
    if tensor.is_floating_point():
        return rng.normal(*tensor.shape, dtype=tensor.dtype).abs()
    return torch.as_tensor(2 * rng.integer(2**54, 2**55) + 1, dtype=tensor.dtype)


@on_ranks(
    base=Replicas(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("parameters", 1, "Every rank ends with rank 0's values.", vary=vary(ranks=(2,))),
        Criterion(
            "buffers and frozen parameters",
            1,
            "All of rank 0's: model.buffers() has also those that are in no state dict, and the optimizer "
            "lacks what is frozen. Not all have one dtype. Horovod is given a state dict, and misses buffers "
            "that are in none.",
            vary=vary(normed=(True,)),
        ),
        Criterion(
            "options",
            1,
            "Each of param_groups has options: lr, momentum, and whatever else there is.",
            vary=vary(options=(True,)) + both(options=True, groups=2),
        ),
        Criterion(
            "state",
            3,
            "Which tensors and numbers rank 0's optimizer keeps, other ranks cannot know: they have to be "
            "told, and what they had has to go. A new optimizer has no state. Horovod makes one by a step "
            "with zero gradients: with decay that changes the weights.",
            vary=vary(states=("rank 0's", "its own", "others'", "nobody's"))
            + both(states="its own", groups=2),
        ),
        Criterion(
            "in place",
            1,
            "Copy into the tensors that are there: model and optimizer share them. Nothing takes a step, as "
            "Horovod does where there is no state.",
            how=kept,
        ),
    ),
    hints=(
        "What does a rank that has just been started know about the optimizer that rank 0 has loaded?",
        "Which calls of torch.distributed send something whose shape the receiver does not know?",
    ),
    arguments=models_and_optimizers,
    calls=None,
    possible=possible,
    driver=drivers.broadcast,
    what="rank {}",
)
def broadcast_state(case: Replicas, given: list[Arguments]) -> list[Expected]:
    """Rank 0's model and optimizer on every rank, and nothing else changed."""
    _, values, options, states = given[0]
    model: Any = Normed() if case.normed else plain_model()
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    result = {"tensors": dict(zip(names, values, strict=True)), "options": options, "states": states}
    stays = dict.fromkeys(STAYS, True)
    return [Expected(result, {**stays, "the optimizer's steps": 0}, returned=None) for _ in given]
