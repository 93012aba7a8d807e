"""Unit 13, PipeDream's planner for a network of several levels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from math import prod
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
from graders.units.unit_13.drivers import stages

SECONDS = 10.0
"""What the plan of a large model may take: twice what is asked for, since other programs may be running."""

Levels = list[tuple[int, float]]
"""For each level, the innermost first, its units and the bytes a second of its network."""

Nested = list[tuple[int, int, list[Any]]]


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion("one level", 2, "With one level this is the planner of unit 05."),
        Criterion(
            "servers of several GPUs",
            4,
            "What a run of layers takes on a whole server is what its best plan there takes; each level has "
            "a bandwidth of its own.",
        ),
        Criterion(
            "three levels",
            2,
            "What holds for servers holds for racks of servers.",
            needs=("one level", "servers of several GPUs"),
        ),
        Criterion(
            "a large model",
            2,
            "Keep for each run of layers the best plan on each number of units; there are not many runs.",
            needs=("one level", "servers of several GPUs"),
        ),
    ),
    hints=(
        "What would you have to know about every run of layers, so that a server is what a GPU was?",
        "Take the planner of unit 05, for runs that begin anywhere, and let it give for each run of layers "
        "the best plan on all units of its level.",
    ),
)
def pipedream_hierarchy(answer: Answer, rng: Rng) -> Findings:
    """Small models on one level, on two and on three, for which all plans are tried; then a large one."""
    flat = [_drawn(rng, layers, (units,)) for layers, units in ((1, 1), (3, 3), (4, 4), (2, 5), (4, 3))]
    flat += _flat(rng.integer(1, 5))
    flat += [_dear_cuts(rng, (units,)) for units in (2, 3, 4, 2, 3)] + [_light(rng) for _ in range(5)]
    # One byte decides whether both layers are shared, or each has a GPU of its own.
    flat += [Case([9.0, 9.5], [1, 1], [5, last], [(2, 1.0)]) for last in (4, 5)]
    flat += [each.in_milliseconds() for each in _flat(1)]
    pairs = ((2, 2), (3, 2), (2, 3), (4, 2), (1, 3), (3, 1))
    two = [_drawn(rng, rng.integer(3, 5), pair, slow) for pair in pairs for slow in (2, 6, 20)]
    two += [*_telling(rng.integer(1, 4)), *(each.in_milliseconds() for each in _telling(1))]
    two += [_dear_cuts(rng, (2, 2)) for _ in range(3)]
    two += [_slow_within(rng, (units, 2), 0) for units in (3, 4) for _ in range(4)]
    three = [_drawn(rng, rng.integer(3, 4), (2, 2, 2), slow) for slow in (3, 9)]
    # Racks exchange gradients once for the batches of all their four GPUs, or else a cut would be better.
    three.append(Case([8.0, 8.0], [25, 25], [60, 60], [(2, 1e5), (2, 1e5), (2, 20.0)]))
    three += [_drawn(rng, 4, (2, 1, 3)), _drawn(rng, 3, (1, 2, 2))]
    three += [_slow_within(rng, (3, 2, 2), 0), _slow_within(rng, (2, 3, 2), 1)]
    one_level = (finding for case in flat for finding in (case.as_good(answer), case.keeps(answer)))
    yield "one level", compare.first_failure(one_level)
    for name, cases in (("servers of several GPUs", two), ("three levels", three)):
        yield name, compare.first_failure(case.as_good(answer) for case in cases)
    yield "a large model", _in_time(answer, _large(rng))


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments."""

    seconds: list[float]
    activations: list[int]
    weights: list[int]
    levels: Levels

    def __str__(self) -> str:
        """In words; the lists if they are short."""
        text = f"{compare.counted(len(self.seconds), 'layer')}, levels {self.levels}"
        if len(self.seconds) > 8:
            return text
        lists = f"seconds {self.seconds}, activation_bytes {self.activations}, weight_bytes {self.weights}"
        return f"{text}, {lists}"

    def in_milliseconds(self) -> "Case":
        """The same, a thousand times as fast."""
        levels = [(units, 1000 * bandwidth) for units, bandwidth in self.levels]
        return Case([each / 1000 for each in self.seconds], self.activations, self.weights, levels)

    def stage(self, begin: int, end: int, replicas: int, alone: float, level: int) -> float:
        """Seconds a batch of so many replicas of a stage on this level."""
        gpus = prod(units for units, _ in self.levels[:level])
        exchange = 2 * (replicas - 1) * sum(self.weights[begin:end]) / self.levels[level][1] / gpus
        return max(alone, exchange) / replicas

    def cut(self, place: int, level: int) -> float:
        """Seconds a batch to cross the cut before layer `place`, 0 where the plan begins."""
        return 2 * self.activations[place - 1] / self.levels[level][1]

    def plan(self, plan: Nested, level: int, begin: int = 0) -> float:
        """The slowest part of a plan for the layers from `begin` on, on all units of this level."""
        ends = [begin, *accumulate((length for length, _, _ in plan), initial=begin)][1:]
        parts = [self.cut(end, level) for end in ends[1:-1]]
        for first, last, (_, replicas, inside) in zip(ends, ends[1:], plan, strict=False):
            alone = self.plan(inside, level - 1, first) if level else sum(self.seconds[first:last])
            parts.append(self.stage(first, last, replicas, alone, level))
        return max(parts)

    def optimum(self) -> float:
        """The slowest part of the best plan, from the last stage of each level on."""

        @cache
        def whole(begin: int, end: int, level: int) -> float:
            """On all units of a level; below the innermost, on one GPU."""
            if level < 0:
                return sum(self.seconds[begin:end])
            return best(begin, end, self.levels[level][0], level)

        @cache
        def best(begin: int, end: int, units: int, level: int) -> float:
            found = self.stage(begin, end, units, whole(begin, end, level - 1), level)
            for middle, replicas in product(range(begin + 1, end), range(1, units)):
                cut = self.cut(middle, level)
                if cut >= found:
                    continue
                last = self.stage(middle, end, replicas, whole(middle, end, level - 1), level)
                if max(cut, last) < found:
                    found = min(found, max(cut, last, best(begin, middle, units - replicas, level)))
            return found

        return whole(0, len(self.seconds), len(self.levels) - 1)

    def arguments(self) -> list[list[Any]]:
        """Those of the exercise, as lists of their own."""
        return [list(self.seconds), list(self.activations), list(self.weights), list(self.levels)]

    def keeps(self, answer: Answer) -> Finding:
        """Whether the arguments stay as they are."""
        left = answer.call(stages.nested, *self.arguments()).left
        return compare.equal(left, self.arguments(), f"{self}: the four arguments afterwards")

    def as_good(self, answer: Answer, timeout: float | None = None) -> Finding:
        """Whether the answer's plan is one, and its slowest part as fast as can be."""
        plan = answer.call(stages.nested, *self.arguments(), timeout=timeout).result
        shown = compare.shown(plan)
        fault = _fault(plan, len(self.seconds), self.levels)
        if fault:
            return Finding(False, f"{self}: {shown}: {fault}.")
        taken, optimum = self.plan(plan, len(self.levels) - 1), self.optimum()
        text = f"{self}: the slowest part of {shown} takes {taken:.6g} s; {optimum:.6g} s is possible"
        return Finding(taken <= optimum * (1 + 1e-9), f"{text}.")


def _fault(plan: Any, layers: int, levels: Levels) -> str:
    """What is wrong with a plan for so many layers on all units of these levels, or nothing."""
    if not levels:
        return "" if plan == [] else f"below the innermost level stands {compare.shown(plan)} instead of []"
    if not (
        type(plan) is list
        and plan
        and all(type(stage) is tuple and len(stage) == 3 for stage in plan)
        and all(type(number) is int and number >= 1 for stage in plan for number in stage[:2])
    ):
        return "expected a list of (layers, replicas, plan of a replica), the numbers whole and from 1 on"
    found = sum(length for length, _, _ in plan), sum(replicas for _, replicas, _ in plan)
    if found != (layers, levels[-1][0]):
        return f"a level has {layers} layers for {levels[-1][0]} units, and the plan {found[0]} on {found[1]}"
    faults = (_fault(inside, length, levels[:-1]) for length, _, inside in plan)
    return next(filter(None, faults), "")


def _drawn(rng: Rng, layers: int, units: tuple[int, ...], slow: int = 4) -> Case:
    """Layers of which the first hand on much and the last have large weights; each level is slower."""
    bandwidth, levels = 400.0, []
    for count in units:
        levels.append((count, bandwidth))
        bandwidth /= slow
    return Case(
        [rng.integer(2, 20) / 2 for _ in range(layers)],
        [rng.integer(1, 60 // (place + 1)) for place in range(layers)],
        [rng.integer(1, 40) * (1 + place * rng.integer(0, 5)) for place in range(layers)],
        levels,
    )


def _flat(scale: int) -> Iterator[Case]:
    """Where half the price of a cut makes another plan the best one, and where the last stage is shared."""
    yield _large_in_the_middle(scale, [(2, 10.0)])
    yield Case([1.0, 9.0], [1, 1], [10**6 * scale, 1], [(3, 10.0)])
    for units in (4, 6, 7):
        yield Case([1.0, 30.0], [1, 1], [10**6 * scale, 1], [(units, 1000.0)])
    # Computing and exchange at the same time: two replicas are as fast as two stages in turn are not.
    yield Case([6.0, 10.0], [1, 1], [35, 35], [(2, 10.0)])


def _large_in_the_middle(scale: int, levels: Levels) -> Case:
    """Even halves would be best, were it not for what crosses the cut between them."""
    return Case([1.0 * scale, 2.0 * scale, 3.0 * scale], [scale, 30 * scale, scale], [10**6] * 3, levels)


def _telling(scale: int) -> Iterator[Case]:
    """Where the exchange between servers, shared by their GPUs, decides; and a cut within a server."""
    for weights in (150, 300, 600, 1200):
        yield Case([4.0, 4.0], [10, 10], [weights * scale] * 2, [(4, 5000.0 * scale), (2, 100.0 * scale)])
    # The same where each server has one GPU, and where there is one server.
    for levels in ([(1, 900.0), (2, 10.0)], [(2, 10.0), (1, 10.0)]):
        yield _large_in_the_middle(scale, levels)
    for handed_on in (20, 45, 80):
        yield Case(
            [4.0, 4.0, 1.0],
            [handed_on * scale] * 3,
            [9000 * scale] * 3,
            [(2, 30.0 * scale), (2, 20.0 * scale)],
        )


def _dear_cuts(rng: Rng, units: tuple[int, ...]) -> Case:
    """Weights that no two replicas can exchange; what crosses a cut says where to cut."""
    return Case(
        [float(rng.integer(4, 9)) for _ in range(5)],
        [rng.integer(5, 160) for _ in range(5)],
        [10**5] * 5,
        [(count, 20.0) for count in units],
    )


def _light(rng: Rng) -> Case:
    """Weights of a few bytes, and a network on which each byte counts."""
    seconds = [rng.integer(2, 9) / 2 for _ in range(4)]
    activations, weights = ([rng.integer(0, 3) for _ in range(4)] for _ in range(2))
    return Case(seconds, activations, weights, [(rng.integer(2, 4), 1.0)])


def _slow_within(rng: Rng, units: tuple[int, ...], slow: int) -> Case:
    """A network that is slow on one level below the outermost: only there has the plan to be a good one. The
    first layers' large weights must not be exchanged there, and those behind them take long.
    """
    large = rng.integer(2, 3)
    return Case(
        [float(rng.integer(4, 9) if place < large else rng.integer(8, 24)) for place in range(5)],
        [rng.integer(1, 3) for _ in range(5)],
        [rng.integer(300, 900) if place < large else rng.integer(0, 1) for place in range(5)],
        [(count, 20.0 if level == slow else 2e4) for level, count in enumerate(units)],
    )


def _large(rng: Rng) -> Case:
    return Case(
        [rng.integer(1, 20) / 10 for _ in range(40)],
        [rng.integer(1, 60) for _ in range(40)],
        [rng.integer(1, 9) * (50 if place > 30 else 1) for place in range(40)],
        [(4, 1500.0), (4, 300.0)],
    )


def _in_time(answer: Answer, case: Case) -> Finding:
    try:
        return case.as_good(answer, timeout=SECONDS)
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            return Finding(False, f"{case} take more than {SECONDS:.0f} s.")
        raise
