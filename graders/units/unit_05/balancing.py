"""Unit 05, where to cut: the slowest stage as fast as can be."""

import re
from bisect import bisect_left
from itertools import accumulate, combinations
from typing import Any

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.drivers import outcome
from graders.units.unit_05 import drivers

SECONDS = 5.0
"""What a cut of many layers may take."""

ROUNDING = 1e-9
"""Relative; sums of the same costs in another order may differ by so much."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "the slowest stage",
            4,
            "No cut into as many stages has a faster slowest stage. Filling one stage after the other up to "
            "the mean is not enough: the last one gets what is left.",
        ),
        Criterion("arguments unchanged", 1, "The caller still needs the costs."),
        Criterion(
            "no empty stage", 1, "Every stage gets a layer, or the rank would have nothing to compute."
        ),
        Criterion(
            "too few layers",
            1,
            "More stages than layers: raise a ValueError that says how many of each there are.",
        ),
        Criterion(
            "many layers",
            1,
            "There are more than 10**30 cuts of 300 layers into 24 stages. What do all those share that "
            "begin with the same layers in the first stages?",
        ),
    ),
    hints=(
        "If you knew where the last stage begins, what would be left to decide, and is it a problem of "
        "the same kind?",
        "best[s][n]: the slowest stage of the first n layers, cut into s stages as well as can be.",
        "best[s][n] is the smallest max(best[s - 1][k], costs k to n) over all k. Keep the k as well, to "
        "find the cut again.",
    ),
)
def balance_stages(answer: Answer, rng: Rng) -> Findings:
    """Few layers and some more, then many."""
    cases: list[tuple[Costs, int]] = [([rng.integer(1, 9)], 1)]
    cases += [_drawn(rng, rng.integer(5, 8)) for _ in range(6)] + [_drawn(rng, 24) for _ in range(16)]
    # Where equal parts, or parts that differ little, are not those of which the slowest is fastest.
    cases += [([1.0, 1.0, 1.0, 1.0, 1.0, 4.0], 3), ([5, 1, 1, 1, 1], 2), ([2.0, 3.0, 5.0, 1.0], 3)]
    told = [answer.call(drivers.cut, list(costs), stages) for costs, stages in cases]
    yield (
        "the slowest stage",
        compare.first_failure(
            _slowest(reply.result, costs, stages) for reply, (costs, stages) in zip(told, cases, strict=True)
        ),
    )
    yield (
        "arguments unchanged",
        compare.first_failure(
            compare.equal(reply.costs, list(costs), "The costs after the call")
            for reply, (costs, _) in zip(told, cases, strict=True)
        ),
    )
    yield "no empty stage", compare.first_failure(_with_free_layers(answer, rng))
    yield "too few layers", _refuses(answer, rng)
    yield "many layers", _in_time(answer, rng)


Costs = list[float]


def _drawn(rng: Rng, layers: int) -> tuple[Costs, int]:
    """Layers of which some cost far more than others, in seconds, microseconds or operations."""
    scale = rng.choice((1e-6, 1.0, 1e9))
    costs = [scale * abs(cost) ** 3 for cost in rng.normal(layers).tolist()]
    return costs, rng.integer(2, min(layers - 1, 6))


def _with_free_layers(answer: Answer, rng: Rng) -> list[Finding]:
    """Layers that cost nothing, such as a reshaping, and as many stages as layers."""
    cases = [
        ([0.0, 0.0, float(rng.integer(1, 9)), 0.0], 3),
        ([0.0] * 3, 3),
        ([float(rng.integer(1, 9)) for _ in range(4)], 4),
    ]
    return [
        _slowest(answer.call(drivers.cut, list(costs), stages).result, costs, stages)
        for costs, stages in cases
    ]


def _slowest(result: Any, costs: Costs, stages: int) -> Finding:
    """Whether the result is a cut, and its slowest stage no slower than it must be."""
    optimum = _optimum(costs, stages)
    shown = compare.shown(result)
    layers = compare.shown(costs) if len(costs) < 100 else f"{len(costs)} layers"
    given = f"{layers} in {compare.counted(stages, 'stage')}"
    if type(result) is not list or any(type(length) is not int for length in result):
        return Finding(False, f"{given}: got {shown}, which is no list of whole numbers.")
    if len(result) != stages or sum(result) != len(costs) or min(result) < 1:
        text = f"{given}: got {shown}; expected {stages} numbers of at least 1 that add up to {len(costs)}"
        return Finding(False, f"{text}.")
    slowest = max(_sums(costs, result))
    text = f"{given}: the slowest stage of {shown} takes {slowest:.6g}"
    return Finding(slowest <= optimum * (1 + ROUNDING), f"{text}; {optimum:.6g} is possible.")


def _sums(costs: Costs, lengths: list[int]) -> list[float]:
    ends = list(accumulate(lengths))
    return [sum(costs[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _optimum(costs: Costs, stages: int) -> float:
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


def _refuses(answer: Answer, rng: Rng) -> Finding:
    layers = rng.integer(1, 4)
    case = f"{layers} layers in {layers + 1} stages"
    seen = answer.call(outcome, [1.0] * layers, layers + 1)
    if "raised" not in seen:
        return Finding(False, f"{case}: got {compare.shown(seen['gave'])}, where a ValueError was expected.")
    said = f"{seen['raised'][0]}: {seen['said']}"
    if "ValueError" not in seen["raised"]:
        return Finding(False, f"{case}: expected a ValueError, got {said}.")
    named = {str(layers), str(layers + 1)} <= set(re.findall(r"\d+", seen["said"]))
    return Finding(named, f"{case}: {said!r} has to name both numbers.")


def _in_time(answer: Answer, rng: Rng) -> Finding:
    """300 layers in 24 stages."""
    stages = 24
    costs, _ = _drawn(rng, 300)
    try:
        result = answer.call(drivers.cut, list(costs), stages, timeout=SECONDS).result
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            return Finding(False, f"300 layers in {stages} stages take more than {SECONDS:.0f} s.")
        raise
    return _slowest(result, costs, stages)
