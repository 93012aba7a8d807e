"""Unit 05, PipeDream's partition: which layers a stage gets, and on how many workers it is replicated."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
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
from graders.units import drivers

SECONDS = 10.0
"""What the plan of a large model may take."""

ROUNDING = 1e-9

Plan = list[tuple[int, int]]


@exercise(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "on a fast network",
            3,
            "Where sending is nearly free, k replicas are k times as fast as one; all workers have a share.",
        ),
        Criterion(
            "on a slow network",
            3,
            "A cut is crossed by activations and by their gradients, and k replicas exchange gradients once "
            "in k batches.",
        ),
        Criterion(
            "between the two",
            2,
            "A plan is as slow as its slowest part, be it a stage or a cut. Stages may have different "
            "numbers of replicas, the last one too.",
            needs=("on a fast network", "on a slow network"),
        ),
        Criterion(
            "a large model",
            1,
            "Of 40 layers on 16 workers there are too many plans to try. The best plan of the first layers "
            "on so many workers does not depend on what follows.",
            needs=("on a fast network", "on a slow network", "between the two"),
        ),
    ),
    hints=(
        "If you knew the last stage, its layers and its replicas, what would be left to be planned, and "
        "on how many workers?",
        "best[n][k]: the slowest part of the best plan for the first n layers on k workers. It is one stage "
        "of all of them, or a best plan of fewer layers on fewer workers, a cut, and one stage more.",
        "Keep with each best value where the last stage begins and how many replicas it has; then walk back.",
    ),
)
def pipedream_partition(answer: Answer, rng: Rng) -> Findings:
    """Small models, for which all plans are tried, on networks of different speed; then a large one."""
    for name, speeds in (
        ("on a fast network", (1e6, 1e5, 1e6)),
        ("on a slow network", (2.0, 6.0, 3.0)),
        ("between the two", (20.0, 40.0, 60.0, 100.0, 200.0)),
    ):
        cases = [_drawn(rng, speeds[0], rng.integer(1, 2), rng.integer(1, 3))]
        if name == "on a slow network":
            cases += _telling(rng.integer(1, 5))
        cases += [_drawn(rng, speed, rng.integer(3, 5), rng.integer(2, 5)) for speed in speeds]
        yield name, compare.first_failure(_as_good(answer, case, case.by_trying_all()) for case in cases)
    yield "a large model", _in_time(answer, rng)


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments: seconds, activation_bytes and weight_bytes by layer, bytes a second, workers."""

    seconds: list[float]
    activations: list[int]
    weights: list[int]
    bandwidth: float
    workers: int

    def stage(self, begin: int, end: int, replicas: int) -> float:
        """Seconds a batch of these layers on so many workers."""
        computing = sum(self.seconds[begin:end])
        exchange = 2 * (replicas - 1) * sum(self.weights[begin:end]) / self.bandwidth
        return max(computing, exchange) / replicas

    def cut(self, place: int) -> float:
        """Seconds a batch to cross the cut before layer `place`."""
        return 2 * self.activations[place - 1] / self.bandwidth

    def plan(self, plan: Plan) -> float:
        """The slowest part of a plan."""
        ends = list(accumulate(layers for layers, _ in plan))
        stages = [
            self.stage(end - layers, end, replicas)
            for end, (layers, replicas) in zip(ends, plan, strict=True)
        ]
        return max([*stages, *(self.cut(end) for end in ends[:-1])])

    def by_trying_all(self) -> float:
        """The slowest part of the best plan."""
        return min(self.plan(plan) for plan in _plans(len(self.seconds), self.workers))

    def by_stages(self) -> float:
        """The same from the last stage on, for a model that has too many plans."""

        @cache
        def best(end: int, workers: int) -> float:
            found = self.stage(0, end, workers)
            for begin, replicas in product(range(1, end), range(1, workers)):
                last = max(self.cut(begin), self.stage(begin, end, replicas))
                if last < found:
                    found = min(found, max(last, best(begin, workers - replicas)))
            return found

        return best(len(self.seconds), self.workers)


def _plans(layers: int, workers: int) -> Iterator[Plan]:
    """Every way to deal out layers and workers to stages in order."""
    yield [(layers, workers)]
    for first, replicas in product(range(1, layers), range(1, workers)):
        for rest in _plans(layers - first, workers - replicas):
            yield [(first, replicas), *rest]


def _drawn(rng: Rng, bandwidth: float, layers: int, workers: int) -> Case:
    """Layers of which the first have large activations and the last large weights, more or less."""
    return Case(
        [rng.integer(1, 20) / 10 for _ in range(layers)],
        [rng.integer(1, 30 // (place + 1)) for place in range(layers)],
        [rng.integer(1, 4) * (1 + place * rng.integer(0, 4)) for place in range(layers)],
        bandwidth,
        workers,
    )


def _telling(scale: int) -> list[Case]:
    """Where half the price of a cut, or of an exchange, makes another plan the best one."""
    return [
        Case([1.0 * scale, 2.0 * scale, 3.0 * scale], [scale, 30 * scale, scale], [10**6] * 3, 10.0, 2),
        Case([1.0 * scale, 2.0 * scale], [scale, scale], [5 * scale, 20 * scale], 10.0, 2),
        # A byte of weights more or less, and half a second at a cut, decide.
        *(Case([2.0, 3.95], [1, 1], [19, heavy], 10.0, 2) for heavy in (20, 21)),
        Case([0.3, 0.3, 0.1], [9, 1, 1], [10**6] * 3, 20.0, 2),
        # Half as much again at the cut, and replicas are better.
        Case([1.0, 1.0], [4, 1], [5, 6], 10.0, 2),
        # The fewer workers the better, but all have to be used.
        Case([1.0], [1], [100], 10.0, 2),
    ]


def _as_good(answer: Answer, case: Case, optimum: float, timeout: float | None = None) -> Finding:
    """Whether the answer's plan is one, and its slowest part no slower than the optimum."""
    result = answer.call(
        drivers.call,
        list(case.seconds),
        list(case.activations),
        list(case.weights),
        case.bandwidth,
        case.workers,
        timeout=timeout,
    )
    shown = compare.shown(result)
    given = f"{len(case.seconds)} layers on {compare.counted(case.workers, 'worker')}"
    if not _is_plan(result):
        text = f"{given}: got {shown}; expected a list of (layers, replicas), whole numbers from 1 on"
        return Finding(False, f"{text}.")
    layers, workers = (sum(pair[place] for pair in result) for place in (0, 1))
    if (layers, workers) != (len(case.seconds), case.workers):
        return Finding(False, f"{given}: {shown} has {layers} layers on {workers} workers.")
    taken = case.plan(result)
    text = f"{given}, {case.bandwidth:g} bytes/s: the slowest part of {shown} takes {taken:.6g} s"
    text += f"; {optimum:.6g} s is possible."
    told = f"{text} (seconds {case.seconds}, activation_bytes "
    told += f"{case.activations}, weight_bytes {case.weights})"
    return Finding(taken <= optimum * (1 + ROUNDING), told if len(case.seconds) < 9 else text)


def _is_plan(result: Any) -> bool:
    return (
        type(result) is list
        and all(type(pair) is tuple and len(pair) == 2 for pair in result)
        and all(type(number) is int and number >= 1 for pair in result for number in pair)
    )


def _in_time(answer: Answer, rng: Rng) -> Finding:
    """Models with heavy weights at their end, in the middle, and here and there."""
    return compare.first_failure(
        _as_good_in_time(answer, case)
        for case in (
            _large(rng, 40, 16, range(31, 40)),
            _large(rng, 24, 12, range(8, 14)),
            _large(rng, 24, 15, (5, 11, 12, 17)),
        )
    )


def _large(rng: Rng, layers: int, workers: int, heavy: Collection[int]) -> Case:
    return Case(
        [rng.integer(1, 20) / 10 for _ in range(layers)],
        [rng.integer(1, 60) for _ in range(layers)],
        [rng.integer(1, 9) * (50 if place in heavy else 1) for place in range(layers)],
        bandwidth=300.0,
        workers=workers,
    )


def _as_good_in_time(answer: Answer, case: Case) -> Finding:
    try:
        return _as_good(answer, case, case.by_stages(), timeout=SECONDS)
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            text = f"{len(case.seconds)} layers on {case.workers} workers take more than {SECONDS:.0f} s."
            return Finding(False, text)
        raise
