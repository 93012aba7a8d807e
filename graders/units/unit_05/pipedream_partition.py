"""The grader of `pipedream_partition`."""

from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, product
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.drivers import call
from graders.units.functions.stage import Arguments, of_function

SECONDS = 10.0
"""What the plan of a large model may take."""
ROUNDING = 1e-9

Plan = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Given:
    """A model, and what it is to run on."""

    layers: int = feature(4, "{} layers")
    workers: int = feature(4, "{} workers")
    bandwidth: float = feature(1e6, "{:g} bytes/s")


def a_model(rng: Rng, given: Given) -> Arguments:
    """Layers of which the first have large activations and the last large weights, more or less."""
    places = range(given.layers)
    seconds = [rng.integer(1, 20) / 10 for _ in places]
    activations = [rng.integer(1, max(1, 30 // (place + 1))) for place in places]
    weights = [rng.integer(1, 4) * (1 + place * rng.integer(0, 4)) for place in places]
    return [seconds, activations, weights, given.bandwidth, given.workers]


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the plan of a large model is the best, and comes in time."""
    arguments = a_model(rng, Given(40, 16, 300.0))
    costs = PartCosts(*arguments)
    plan = answer.call(call, *arguments, computing=SECONDS)
    return as_fast_as_can_be(plan, f"{len(costs.seconds)} layers on {costs.workers} workers", costs)


@of_function(
    base=Given(),
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "on a fast network",
            3,
            "Where sending is nearly free, k replicas are k times as fast as one; all workers have a share.",
            vary=vary(layers=(1, 2, 5), workers=(1, 2, 3, 5)),
        ),
        Criterion(
            "on a slow network",
            5,
            "A cut is crossed by activations and by their gradients, and k replicas exchange gradients once "
            "in k batches. A plan is as slow as its slowest part, be it a stage or a cut.",
            vary=vary(bandwidth=(2.0, 3.0, 4.0, 6.0, 20.0, 40.0, 100.0)),
        ),
        Criterion(
            "a large model",
            1,
            "Of 40 layers on 16 workers there are too many plans to try. The best plan of the first layers "
            "on so many workers does not depend on what follows.",
            needs=("on a fast network", "on a slow network"),
            ask=in_time,
        ),
    ),
    hints=(
        "If you knew the last stage, its layers and its replicas, what would be left to be planned, and "
        "on how many workers?",
        "best[n][k]: the slowest part of the best plan for the first n layers on k workers. It is one stage "
        "of all of them, or a best plan of fewer layers on fewer workers, a cut, and one stage more.",
        "Keep with each best value where the last stage begins and how many replicas it has; then walk back.",
    ),
    arguments=a_model,
)
def pipedream_partition(given: Given, arguments: Arguments) -> Expected:
    """Narayanan et al. (2019), section 3.1: any plan whose slowest part is as fast as can be."""
    names = ("seconds", "activation_bytes", "weight_bytes", "bandwidth", "workers")
    best = Checked(partial(as_fast_as_can_be, costs=PartCosts(*arguments)))
    return Expected(best, dict.fromkeys(names, ANYTHING), returned=None)


@dataclass(frozen=True)
class PartCosts:
    """What the parts of a plan take."""

    seconds: list[float]
    activations: list[int]
    weights: list[int]
    bandwidth: float
    workers: int

    def stage(self, begin: int, end: int, replicas: int) -> float:
        """Seconds a batch of these layers on so many workers."""
        exchange = 2 * (replicas - 1) * sum(self.weights[begin:end]) / self.bandwidth
        return max(sum(self.seconds[begin:end]), exchange) / replicas

    def cut(self, place: int) -> float:
        """Seconds a batch to cross the cut before layer `place`."""
        return 2 * self.activations[place - 1] / self.bandwidth

    def slowest(self, plan: Plan) -> float:
        """The slowest part of a plan."""
        ends = list(accumulate(layers for layers, _ in plan))
        parts = zip(ends, plan, strict=True)
        stages = [self.stage(end - layers, end, replicas) for end, (layers, replicas) in parts]
        return max([*stages, *map(self.cut, ends[:-1])])

    def best(self) -> float:
        """The slowest part of the best plan, from the last stage on."""

        @cache
        def of(end: int, workers: int) -> float:
            found = self.stage(0, end, workers)
            for begin, replicas in product(range(1, end), range(1, workers)):
                last = max(self.cut(begin), self.stage(begin, end, replicas))
                if last < found:
                    found = min(found, max(last, of(begin, workers - replicas)))
            return found

        return of(len(self.seconds), self.workers)


def as_fast_as_can_be(plan: Any, what: str, costs: PartCosts) -> Finding:
    """Passes if this is a plan that uses all workers, and no other is faster."""
    text = f"{what}: {compare.shown(plan)}"
    if type(plan) is not list or not all(map(_is_stage, plan)):
        return Finding(False, f"{text}; expected a list of (layers, replicas), whole numbers from 1 on.")
    layers, workers = (sum(pair[place] for pair in plan) for place in (0, 1))
    if (layers, workers) != (len(costs.seconds), costs.workers):
        return Finding(False, f"{text} has {layers} layers on {workers} workers.")
    taken, optimum = costs.slowest(plan), costs.best()
    text += f". Its slowest part takes {taken:.6g} s; {optimum:.6g} s is possible."
    return Finding(taken <= optimum * (1 + ROUNDING), text)


def _is_stage(pair: Any) -> bool:
    return type(pair) is tuple and len(pair) == 2 and all(type(each) is int and each >= 1 for each in pair)
