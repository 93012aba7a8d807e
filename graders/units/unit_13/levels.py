"""Nested plans for the levels of a network: what one takes, and what is possible."""

from functools import cache
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

from graders.grading.kit import Finding, compare

Levels = list[tuple[int, float]]
"""For each level, the innermost first, its units and the bytes a second of its network."""

Nested = list[tuple[int, int, list[Any]]]


class Layers(NamedTuple):
    """The arguments."""

    seconds: list[float]
    activations: list[int]
    weights: list[int]
    levels: Levels

    def __str__(self) -> str:
        """In words; the lists if they are short."""
        if len(self.seconds) > 8:
            return f"{len(self.seconds)} layers, levels {self.levels}"
        return f"{self.seconds}, {self.activations}, {self.weights}, {self.levels}"

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

    def as_good(self, plan: Any, what: str = "") -> Finding:
        """Whether this is a plan, and its slowest part as fast as can be."""
        shown = compare.shown(plan)
        fault = fault_of(plan, len(self.seconds), self.levels)
        if fault:
            return Finding(False, f"{self}: {shown}: {fault}.")
        taken, optimum = self.plan(plan, len(self.levels) - 1), self.optimum()
        text = f"{self}: the slowest part of {shown} takes {taken:.6g} s; {optimum:.6g} s is possible"
        return Finding(taken <= optimum * (1 + 1e-9), f"{text}.")


def fault_of(plan: Any, layers: int, levels: Levels) -> str:
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
    faults = (fault_of(inside, length, levels[:-1]) for length, _, inside in plan)
    return next(filter(None, faults), "")
