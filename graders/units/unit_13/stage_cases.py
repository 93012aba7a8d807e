"""Stages and submeshes that a plan is asked for, and how that is judged."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations, product
from typing import Any

from graders.grading.kit import Finding, Rng, compare

MANY = 20
"""Layers."""

Table = dict[tuple[int, int, int], float]
"""(begin, end, size) -> seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments; table instead of the function."""

    table: Table
    layers: int
    devices: int
    micro_batches: int
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        """In words, with the table if it is short."""
        text = (
            f"layers={self.layers}, devices={self.devices}, micro_batches={self.micro_batches}, "
            f"sizes={self.sizes}"
        )
        return f"{text}, (begin, end, size): seconds {self.table}" if len(self.table) < 90 else text

    def plan(self, plan: list[tuple[int, int]]) -> float:
        """Seconds of a step with these stages."""
        ends = accumulate(length for length, _ in plan)
        each = [self.table[end - length, end, size] for end, (length, size) in zip(ends, plan, strict=True)]
        return sum(each) + (self.micro_batches - 1) * max(each)

    def optimum(self) -> float:
        """Of the best plan. For the layers from one on, on so many devices, it keeps what is worth having:
        pairs of sum and slowest of which none is better than another in both.
        """

        @cache
        def pairs(begin: int, devices: int) -> tuple[tuple[float, float], ...]:
            if begin == self.layers:
                return ((0.0, 0.0),) if devices == 0 else ()
            found = {
                (taken + total, max(taken, slowest))
                for size in self.sizes
                if size <= devices
                for end in range(begin + 1, self.layers + 1)
                if (taken := self.table[begin, end, size]) < math.inf
                for total, slowest in pairs(end, devices - size)
            }
            kept: list[tuple[float, float]] = []
            for pair in sorted(found):
                if not kept or pair[1] < kept[-1][1]:
                    kept.append(pair)
            return tuple(kept)

        return min(
            (total + (self.micro_batches - 1) * slowest for total, slowest in pairs(0, self.devices)),
            default=math.inf,
        )

    @property
    def arguments(self) -> list[Any]:
        """Those of the exercise, with a table in place of the function."""
        table = [(*stage, seconds) for stage, seconds in self.table.items()]
        return [table, self.layers, self.devices, self.micro_batches, self.sizes]

    @classmethod
    def of(cls, arguments: list[Any]) -> "Case":
        """The case with these arguments."""
        table, *rest = arguments
        return cls({(begin, end, size): seconds for begin, end, size, seconds in table}, *rest)

    def as_good(self, reply: Any, what: str = "") -> Finding:
        """Whether the plan is one, and its step as short as it can be; or ValueError where there is none."""
        optimum, plan = self.optimum(), reply["gave"]
        if plan == "ValueError" or optimum == math.inf:
            wanted = "ValueError" if optimum == math.inf else f"a plan of {optimum:.6g} s"
            same = plan == "ValueError" and optimum == math.inf
            return Finding(same, f"{self}: got {compare.shown(plan)}; expected {wanted}.")
        if not _is_plan(plan, self.sizes):
            text = "expected a list of (layers, devices), the latter one of the sizes"
            return Finding(False, f"{self}: got {compare.shown(plan)}; {text}.")
        layers, devices = (sum(pair[place] for pair in plan) for place in (0, 1))
        if (layers, devices) != (self.layers, self.devices):
            return Finding(False, f"{self}: {compare.shown(plan)} has {layers} layers on {devices} devices.")
        taken = self.plan(plan)
        text = f"{self}: with {plan} a step takes {taken:.9g} s; {optimum:.9g} s is possible"
        return Finding(taken <= optimum * (1 + 1e-9), f"{text}.")


def _is_plan(plan: Any, sizes: tuple[int, ...]) -> bool:
    return (
        type(plan) is list
        and all(type(pair) is tuple and len(pair) == 2 for pair in plan)
        and all(type(length) is int and length >= 1 and size in sizes for length, size in plan)
    )


def stages(layers: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """All stages: (begin, end, size)."""
    yield from ((*run, size) for run, size in product(combinations(range(layers + 1), 2), sizes))


def table_of(rng: Rng, layers: int, sizes: tuple[int, ...], most: float = math.inf) -> Table:
    """A stage takes its work by its devices, and for each layer a wait that depends on their number; what is
    more work than `most` a device does not fit.
    """
    work = [rng.choice((10, 20, 30, 40, 120, 200)) + rng.integer(0, 9) for _ in range(layers)]
    waits = {size: rng.integer(0, 3) * (size - 1) * 2.5 for size in sizes}
    return {
        (begin, end, size): (
            5 + sum(work[begin:end]) / size + waits[size] * (end - begin)
            if sum(work[begin:end]) <= most * size
            else math.inf
        )
        for begin, end, size in stages(layers, sizes)
    }


def large(rng: Rng) -> Case:
    """Many layers on sixteen devices, which wait the longer the more there are of them in a stage."""
    sizes = (1, 2, 4, 8, 16)
    work = [rng.integer(20, 99) for _ in range(MANY)]
    waits = {size: rng.integer(1, 4) * (size - 1) / 3 for size in sizes}
    table = {
        (begin, end, size): sum(work[begin:end]) / size + waits[size] * (end - begin)
        for begin, end, size in stages(MANY, sizes)
    }
    return Case(table, MANY, 16, rng.integer(5, 30), sizes)


def measured(rng: Rng, layers: int, sizes: tuple[int, ...]) -> Table:
    """Seconds that follow no rule: more layers may be faster, and more devices slower."""
    return {
        (begin, end, size): float(rng.integer(20, 99) * rng.integer(1, end - begin))
        for begin, end, size in stages(layers, sizes)
    }
