"""Stages and submeshes that a plan is asked for, and how that is judged."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from graders.grading.kit import Finding, compare

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
        """In words; the table if it is short, or most of it is alike."""
        text = (
            f"{compare.counted(self.layers, 'layer')} on {compare.counted(self.devices, 'device')}, "
            f"{compare.counted(self.micro_batches, 'micro-batch')}, sizes {self.sizes}"
        ).replace("batchs", "batches")
        (most, count), *_ = Counter(self.table.values()).most_common(1)
        alike = most if count > len(self.table) / 2 else None
        told = {stage: seconds for stage, seconds in self.table.items() if seconds != alike}
        others = "" if alike is None else f", any other stage {alike}"
        return f"{text}, (begin, end, size): seconds {told}{others}" if len(told) < 90 else text

    def with_batches(self, micro_batches: int) -> "Case":
        return Case(self.table, self.layers, self.devices, micro_batches, self.sizes)

    def in_units(self, unit: float) -> "Case":
        """The same, with all seconds in another unit."""
        table = {stage: seconds * unit for stage, seconds in self.table.items()}
        return Case(table, self.layers, self.devices, self.micro_batches, self.sizes)

    def step(self, each: list[float]) -> float:
        """Seconds of a step of stages that take so long each."""
        return sum(each) + (self.micro_batches - 1) * max(each)

    def plan(self, plan: list[tuple[int, int]]) -> float:
        """Seconds of a step with these stages."""
        ends = accumulate(length for length, _ in plan)
        return self.step(
            [self.table[end - length, end, size] for end, (length, size) in zip(ends, plan, strict=True)]
        )

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
        optimum = self.optimum()
        raised = reply["raised"]
        if raised or optimum == math.inf:
            text = "ValueError" if raised else compare.shown(reply["gave"])
            wanted = "ValueError" if optimum == math.inf else f"a plan of {optimum:.6g} s"
            return Finding(raised is True and optimum == math.inf, f"{self}: got {text}; expected {wanted}.")
        plan = reply["gave"]
        if not _is_plan(plan, self.sizes):
            text = (
                "expected a list of (layers, devices), whole numbers from 1 on, the latter one of the sizes"
            )
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
        and all(type(number) is int and number >= 1 for pair in plan for number in pair)
        and all(size in sizes for _, size in plan)
    )
