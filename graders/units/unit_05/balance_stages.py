"""The grader of `balance_stages`."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.drivers import call, outcome
from graders.units.functions.stage import Arguments, kept, of_function

SECONDS = 5.0
"""What a cut of many layers may take."""
ROUNDING = 1e-9
"""Relative; sums of the same costs in another order may differ by so much."""


@dataclass(frozen=True, slots=True)
class Layers:
    """layers, stages: how many. scale: of the costs. free: every so many layers cost something."""

    layers: int = feature(24, "{} layers")
    stages: int = feature(5, "{} stages")
    scale: float = feature(1.0, "costs around {:g}")
    free: int = 1


def costs_and_stages(rng: Rng, case: Layers) -> Arguments:
    """What each layer takes, a few far more than the others, and how many stages there are to be."""
    drawn = [case.scale * abs(cost) ** 3 for cost in rng.normal(case.layers).tolist()]
    return [[cost * (place % case.free == 0) for place, cost in enumerate(drawn)], case.stages]


def too_few_layers(answer: Answer, rng: Rng) -> Finding:
    """Passes if fewer layers than stages make it raise a ValueError."""
    layers = rng.integer(1, 4)
    seen = answer.call(outcome, [1.0] * layers, layers + 1)
    got = f"raised {seen['raised'][0]}" if "raised" in seen else f"gave {compare.shown(seen['gave'])}"
    text = f"{layers} layers in {layers + 1} stages {got}; expected a ValueError."
    return Finding("ValueError" in seen.get("raised", ()), text)


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if many layers are cut as well as can be, in time."""
    costs, stages = costs_and_stages(rng, Layers(layers=300, stages=24))
    lengths = answer.call(call, costs, stages, computing=SECONDS)
    return as_fast_as_can_be(lengths, f"300 layers in {stages} stages", costs, stages)


@of_function(
    base=Layers(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "the slowest stage",
            4,
            "No cut into as many stages has a faster slowest stage. Filling one stage after the other up to "
            "the mean is not enough: the last one gets what is left.",
            vary=vary(stages=(1, 2, 4), layers=(7, 8, 25), scale=(1e-6,)),
        ),
        Criterion("arguments unchanged", 1, "The caller still needs the costs.", how=kept),
        Criterion(
            "no empty stage",
            1,
            "Every stage gets a layer, or the rank would have nothing to compute.",
            vary=vary(free=(4,)) + both(layers=4, stages=4),
        ),
        Criterion(
            "too few layers",
            1,
            "More stages than layers: raise a ValueError. (DeepSpeed leaves stages empty.)",
            ask=too_few_layers,
        ),
        Criterion(
            "many layers",
            1,
            "There are more than 10**30 cuts of 300 layers into 24 stages. What do all those share that "
            "begin with the same layers in the first stages?",
            ask=in_time,
        ),
    ),
    hints=(
        "If you knew where the last stage begins, what would be left to decide, and is it a problem of "
        "the same kind?",
        "best[s][n]: the slowest stage of the first n layers, cut into s stages as well as can be.",
        "best[s][n] is the smallest max(best[s - 1][k], costs k to n) over all k. Keep the k as well, to "
        "find the cut again.",
    ),
    arguments=costs_and_stages,
)
def balance_stages(case: Layers, given: Arguments) -> Expected:
    """Any cut whose slowest stage is as fast as can be."""
    costs, stages = given
    best = Checked(partial(as_fast_as_can_be, costs=costs, stages=stages))
    return Expected(best, {"costs": costs, "stages": stages}, returned=None)


def as_fast_as_can_be(lengths: Any, what: str, costs: list[float], stages: int) -> Finding:
    """Passes if these are the lengths of stages, and no other cut has a faster slowest stage."""
    if type(lengths) is not list or any(type(length) is not int for length in lengths):
        return Finding(False, f"{what}: {compare.shown(lengths)}, which is no list of whole numbers.")
    text = f"{what}: {compare.shown(lengths)}"
    if len(lengths) != stages or sum(lengths) != len(costs) or min(lengths) < 1:
        return Finding(False, f"{text}; expected {stages} numbers of at least 1 that add up to {len(costs)}.")
    ends = accumulate(lengths)
    slowest = max(sum(costs[end - length : end]) for end, length in zip(ends, lengths, strict=True))
    optimum = best_bound(costs, stages)
    text += f". Its slowest stage takes {slowest:.6g}; {optimum:.6g} is possible."
    return Finding(slowest <= optimum * (1 + ROUNDING), text)


def best_bound(costs: list[float], stages: int) -> float:
    """The smallest bound within which stages can be filled, one after the other, so that they suffice.

    More stages than are needed make none slower. A bound that is tight is the sum of some run of layers.
    """
    until = [0.0, *accumulate(costs)]
    bounds = sorted({end - begin for begin, end in combinations(until, 2)} | {0.0})

    def suffices(bound: float) -> bool:
        used, filled = 1, 0.0
        for cost in costs:
            filled += cost
            if filled > bound * (1 + ROUNDING):
                used, filled = used + 1, cost
        return used <= stages and max(costs) <= bound * (1 + ROUNDING)

    return bounds[bisect_left(bounds, True, key=suffices)]
