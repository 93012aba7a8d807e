"""Unit 09, out of core: keep, swap or recompute, layer by layer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from course_lib.training.out_of_core import DoesNotFit, Way, step
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
from graders.units.unit_09 import drivers

SECONDS = 4.0
"""What a plan for many layers may take."""

WAYS = tuple(map(str, Way))


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "within the memory",
            1,
            "step raises DoesNotFit for a plan that needs too much. With which plan is least memory needed?",
        ),
        Criterion(
            "better than one way for all",
            3,
            "What is swapped early has time to come back; what is needed soon is better kept.",
        ),
        Criterion(
            "within 5 % of the best",
            6,
            "Which single change makes a plan faster? And which two or three at once, where none alone does?",
            needs=("better than one way for all",),
        ),
        Criterion("arguments unchanged", 1, "The caller still needs the lists."),
        Criterion(
            "many layers",
            3,
            "Of 11 layers there are 177,147 plans. Begin with one that fits, and improve it.",
            needs=("within 5 % of the best", "arguments unchanged"),
        ),
    ),
    hints=(
        "Which plan fits if any does? What would make it a little faster?",
        "step tells what a plan takes. A plan that does not fit takes for ever.",
        "Change one layer as long as that helps; then two or three at once: one may have to make room for "
        "the other.",
    ),
)
def out_of_core_plan(answer: Answer, rng: Rng) -> Findings:
    """Few layers, for which all plans are tried, of four kinds; then many."""
    cases = [*_telling(rng), _drawn(rng, 6), _stubborn(rng), *_odd()]
    replies = [answer.call(drivers.listed, *case.arguments()) for case in cases]
    plans = [reply.result for reply in replies]
    pairs = list(zip(cases, plans, strict=True))
    yield "within the memory", compare.first_failure(case.fits(plan) for case, plan in pairs)
    yield (
        "better than one way for all",
        compare.first_failure(case.no_longer(plan, case.simple(), "one way for all") for case, plan in pairs),
    )
    yield (
        "within 5 % of the best",
        compare.first_failure(
            case.no_longer(plan, 1.05 * case.best(), "5 % more than the best") for case, plan in pairs
        ),
    )
    yield (
        "arguments unchanged",
        compare.first_failure(
            compare.equal(reply.arguments, list(case.arguments()), "The arguments after the call")
            for case, reply in zip(cases, replies, strict=True)
        ),
    )
    yield "many layers", _in_time(answer, _drawn(rng, 11))


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments: bytes and seconds of each layer, bytes of the device, bytes a second of the link."""

    bytes_: list[float]
    seconds: list[float]
    capacity: float
    bandwidth: float

    def __str__(self) -> str:
        return (
            f"bytes_={compare.shown(self.bytes_)}, seconds={compare.shown(self.seconds)}, "
            f"capacity={self.capacity:g}, bandwidth={self.bandwidth:g}"
        )

    def arguments(self) -> tuple[list[float], list[float], float, float]:
        return list(self.bytes_), list(self.seconds), self.capacity, self.bandwidth

    def of(self, plan: Iterable[str]) -> float:
        """Seconds of a step; infinitely many if it does not fit."""
        try:
            return step(list(plan), *self.arguments()).seconds
        except DoesNotFit:
            return float("inf")

    def fits(self, plan: Any) -> Finding:
        """Whether it is a plan, and never above the capacity."""
        if type(plan) is not list or len(plan) != len(self.bytes_) or any(way not in WAYS for way in plan):
            expected = f'a list of "keep", "swap" or "recompute", one for each of {len(self.bytes_)} layers'
            return Finding(False, f"{self}: got {compare.shown(plan)}; expected {expected}.")
        try:
            peak = step(plan, *self.arguments()).peak
        except DoesNotFit as error:
            return Finding(False, f"{self}: the plan {plan} does not fit: {error}")
        return Finding(True, f"At most {peak:g} of {self.capacity:g} bytes are held.")

    def no_longer(self, plan: list[str], limit: float, what: str) -> Finding:
        seconds = self.of(plan)
        return Finding(
            seconds <= limit * (1 + 1e-9),
            f"{self}: with {plan} a step takes {seconds:.4g} s; {what}: {limit:.4g} s.",
        )

    def simple(self) -> float:
        """The best of the plans that take one way for all, or keep the first or the last layers that fit."""
        layers = len(self.bytes_)
        plans = [[way] * layers for way in WAYS]
        for kept, way in product(range(layers), WAYS[1:]):
            plans += [["keep"] * kept + [way] * (layers - kept), [way] * (layers - kept) + ["keep"] * kept]
        return min(map(self.of, plans))

    def best(self) -> float:
        """By trying all plans."""
        return min(map(self.of, product(WAYS, repeat=len(self.bytes_))))

    def found(self) -> float:
        """By changing one layer or two as long as that helps."""
        plan = ["recompute"] * len(self.bytes_)
        seconds, before = self.of(plan), float("inf")
        while seconds < before:
            before = seconds
            for changed in _changes(plan):
                taken = self.of(changed)
                if taken < seconds:
                    plan[:], seconds = changed, taken
        return seconds


def _changes(plan: list[str]) -> Iterator[list[str]]:
    """Plans that differ from the present one in at most two layers."""
    for places in combinations(range(len(plan)), 2):
        for ways in product(WAYS, repeat=2):
            changed = list(plan)
            for place, way in zip(places, ways, strict=True):
                changed[place] = way
            yield changed


def _drawn(rng: Rng, layers: int, scale: float = 1.0) -> Case:
    bytes_ = [scale * rng.integer(1, 9) for _ in range(layers)]
    seconds = [rng.integer(1, 9) / 4 for _ in range(layers)]
    capacity = max(*bytes_, rng.integer(35, 60) / 100 * sum(bytes_))
    return Case(bytes_, seconds, capacity, scale * rng.integer(2, 8) / 2)


def _telling(rng: Rng) -> list[Case]:
    """Cases in which the best plan has all three ways, and is much faster than the simple ones."""
    found: list[Case] = []
    while len(found) < 2:
        case = _drawn(rng, 5, rng.choice((1.0, 1e9)))
        if case.simple() > 1.08 * case.best():
            found.append(case)
    return found


def _stubborn(rng: Rng) -> Case:
    """Where changes of one layer or two, from all computed again or the best simple plan, end 8 % above
    the best, which is recompute, swap, keep, recompute, keep.
    """
    unit, second = rng.choice((1.0, 1e9)), rng.integer(1, 5) / 4
    seconds = [second * each for each in (8.0, 6.0, 9.0, 2.0, 1.0)]
    return Case([unit * each for each in (7.0, 2.0, 6.0, 2.0, 7.0)], seconds, 13.44 * unit, unit / second / 4)


def _odd() -> list[Case]:
    """One layer, all that fit, a link so fast, or so slow, that one way is best, and hardly any room, where a
    layer keeps nothing.
    """
    return [
        Case([4.0], [1.0], 4.0, 1.0),
        Case([4.0, 3.0, 2.0], [1.0, 2.0, 1.0], 9.0, 1.0),
        Case([4.0, 4.0, 4.0, 4.0], [1.0, 1.0, 1.0, 1.0], 8.0, 1e6),
        Case([4.0, 4.0, 4.0, 4.0], [1.0, 1.0, 1.0, 1.0], 8.0, 1e-3),
        Case([4.0, 0.0, 4.0, 2.0], [2.0, 1.0, 2.0, 1.0], 4.0, 2.0),
    ]


def _in_time(answer: Answer, case: Case) -> Finding:
    try:
        plan = answer.call(drivers.listed, *case.arguments(), timeout=SECONDS).result
    except AnswerFailed as error:
        if error.kind is FailureKind.TIMED_OUT:
            return Finding(False, f"{len(case.bytes_)} layers: no plan after {SECONDS:g} s.")
        raise
    fits = case.fits(plan)
    return case.no_longer(plan, 1.05 * case.found(), "5 % more than the best known") if fits.passed else fits
