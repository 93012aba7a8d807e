"""Models and submeshes that unit 13's grader of stages draws, and how a plan for them is judged."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from typing import Any

from graders.grading.kit import Answer, Finding, Rng, compare
from graders.units.unit_13.drivers import stages
from graders.units.unit_13.drivers.stages import StagesReply

Table = dict[tuple[int, int, int], float]
"""(begin, end, size) -> seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments; table instead of the function."""

    table: Table
    layers: int
    devices: int
    micro_batches: int
    sizes: list[int]

    def __str__(self) -> str:
        """In words; the table if it is short."""
        text = (
            f"{compare.counted(self.layers, 'layer')} on {compare.counted(self.devices, 'device')}, "
            f"{compare.counted(self.micro_batches, 'micro-batch')}, sizes {self.sizes}"
        ).replace("batchs", "batches")
        return f"{text}, (begin, end, size): seconds {self.table}" if len(self.table) < 50 else text

    def with_batches(self, micro_batches: int) -> "Case":
        return Case(self.table, self.layers, self.devices, micro_batches, self.sizes)

    def in_units(self, unit: float) -> "Case":
        """The same, with all seconds in another unit."""
        table = {stage: seconds * unit for stage, seconds in self.table.items()}
        return Case(table, self.layers, self.devices, self.micro_batches, self.sizes)

    def asked(self, answer: Answer, timeout: float | None = None) -> StagesReply:
        table = [(*stage, seconds) for stage, seconds in self.table.items()]
        return answer.call(
            stages.stages,
            table,
            self.layers,
            self.devices,
            self.micro_batches,
            list(self.sizes),
            timeout=timeout,
        )

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

    def as_good(self, answer: Answer, timeout: float | None = None) -> Finding:
        """Whether the answer's plan is one, and its step as short as it can be."""
        reply, optimum = self.asked(answer, timeout), self.optimum()
        if reply.raised or optimum == math.inf:
            text = "ValueError" if reply.raised else compare.shown(reply.result)
            wanted = "ValueError" if optimum == math.inf else f"a plan of {optimum:.6g} s"
            return Finding(reply.raised and optimum == math.inf, f"{self}: got {text}; expected {wanted}.")
        plan = reply.result
        if not _is_plan(plan, self.sizes):
            text = (
                "expected a list of (layers, devices), whole numbers from 1 on, the latter one of the sizes"
            )
            return Finding(False, f"{self}: got {compare.shown(plan)}; {text}.")
        layers, devices = (sum(pair[place] for pair in plan) for place in (0, 1))
        if (layers, devices) != (self.layers, self.devices):
            return Finding(False, f"{self}: {compare.shown(plan)} has {layers} layers on {devices} devices.")
        taken = self.plan(plan)
        text = f"{self}: with {plan} a step takes {taken:.6g} s; {optimum:.6g} s is possible"
        return Finding(taken <= optimum * (1 + 1e-9), f"{text}.")

    def asks(self, answer: Answer) -> Finding:
        """Whether no stage was asked for twice, and none on more devices than there are."""
        reply = self.asked(answer)
        if reply.largest > self.devices:
            return Finding(False, f"{self}: stage_seconds was asked for a size of {reply.largest}.")
        return compare.at_most(reply.most, 1, f"{self}: calls of stage_seconds for one stage")


def _is_plan(plan: Any, sizes: list[int]) -> bool:
    return (
        type(plan) is list
        and all(type(pair) is tuple and len(pair) == 2 for pair in plan)
        and all(type(number) is int and number >= 1 for pair in plan for number in pair)
        and all(size in sizes for _, size in plan)
    )


def _table(
    work: list[int], sizes: list[int], waits: dict[int, float], most: float = math.inf, start: float = 0.5
) -> Table:
    """A stage takes its work by its devices, and for each layer a wait that depends on their number; what is
    more work than `most` a device does not fit.
    """
    return {
        (begin, end, size): (
            start + sum(work[begin:end]) / size + waits[size] * (end - begin)
            if sum(work[begin:end]) <= most * size
            else math.inf
        )
        for begin, end in combinations(range(len(work) + 1), 2)
        for size in sizes
    }


def drawn(rng: Rng, layers: int, devices: int, of_sizes: tuple[int, ...] = ()) -> Case:
    """Layers of which some are dear; on many devices a layer waits longer than it gains."""
    sizes = list(of_sizes) or [size for size in (1, 2, 4, 8) if size <= devices]
    work = [rng.choice((1, 2, 3, 4, 12, 20)) for _ in range(layers)]
    waits = {size: rng.integer(0, 3) * (size - 1) / 4 for size in sizes}
    return Case(_table(work, sizes, waits), layers, devices, 1, sizes)


def telling(scale: float) -> Case:
    """The best plan of two layers has two stages; beside the slow last one a single one is better."""
    quick, table = float(scale), {}
    for begin, end in combinations(range(4), 2):
        for size in (1, 2):
            table[begin, end, size] = 40 * quick
    table |= {
        (0, 1, 1): 6 * quick,
        (0, 1, 2): 5 * quick,
        (1, 2, 1): 6 * quick,
        (1, 2, 2): 9 * quick,
        (2, 3, 2): 20 * quick,
        (0, 2, 2): 10 * quick,
    }
    return Case(table, 3, 4, 3, [1, 2])


def nearly_alike(scale: float, apart: float = 1e-6) -> Case:
    """The slowest stage of the best plan is slower, by this share, than that of a plan with a larger sum."""
    table = {
        (begin, end, size): 400.0 * scale for begin, end in combinations(range(3), 2) for size in (1, 2, 3)
    }
    table |= {(0, 1, 2): 100.0 * scale, (1, 2, 2): 100.0 * scale}
    table |= {(0, 1, 1): 100.0 * (1 + apart) * scale, (1, 2, 3): 10.0 * scale}
    return Case(table, 2, 4, 9, [1, 2, 3])


def two_valleys(scale: float) -> Case:
    """Four equal stages are better than all that have a little more time for the slowest; one stage of all
    layers, which has twice as much, is better still.
    """
    table = {
        (begin, end, size): 90.0 * scale for begin, end in combinations(range(5), 2) for size in (1, 2, 4)
    }
    for layer in range(4):
        table[layer, layer + 1, 1] = 10.0 * scale
        table[layer, layer + 1, 2] = (11.0 + layer) * scale
        table[layer, layer + 1, 4] = (15.0 + layer) * scale
    table[0, 4, 4] = 20.0 * scale
    return Case(table, 4, 4, 2, [1, 2, 4])


def faster_together(scale: float) -> Case:
    """Layers 0 and 1 take less time together than each alone. With one stage the sum is a little smaller."""
    table = {(begin, end, size): 50.0 * scale for begin, end in combinations(range(4), 2) for size in (1, 2)}
    table |= {(0, 2, 1): 10.0 * scale, (2, 3, 1): 10.0 * scale, (0, 3, 2): 19.0 * scale}
    return Case(table, 3, 2, 9, [1, 2])


def merging(rng: Rng) -> Iterator[Case]:
    """Runs of seven quick layers, each layer with a device: the longer they are, the less their sum, and the
    more the slowest takes. Beside a slow last layer it is good to merge up to a certain length; beside a
    quick one, where each stage takes a moment to start, neither few stages nor many are best.
    """
    unit, sizes = rng.integer(1, 9), [*range(1, 8)]
    for slow, start, micro_batches in ((2.5, 0.0, 9), (4.5, 0.0, 5), (30.0, 0.0, 9), (0.5, 1.0, 2)):
        table = {
            (begin, end, size): 900.0 * unit for begin, end in combinations(range(9), 2) for size in sizes
        }
        for begin, end in combinations(range(8), 2):
            length = end - begin
            table[begin, end, length] = unit * (start + length * (1 - 0.02 * length))
        table[7, 8, 1] = unit * slow
        yield Case(table, 8, 8, micro_batches, sizes)


def measured(rng: Rng, layers: int, devices: int) -> Case:
    """Seconds that follow no rule: more layers may be faster, and more devices slower."""
    sizes = [1, 2, 3, 4]
    table = {
        (begin, end, size): float(rng.integer(20, 99) * rng.integer(1, end - begin))
        for begin, end in combinations(range(layers + 1), 2)
        for size in sizes
    }
    return Case(table, layers, devices, rng.integer(2, 12), sizes)


def full(rng: Rng) -> Iterator[Case]:
    """Stages of which some do not fit, or none; devices that no stages can fill; each also for a single
    micro-batch.
    """
    for case in _too_full(rng):
        yield from (case, case.with_batches(1))


def _too_full(rng: Rng) -> Iterator[Case]:
    for layers, devices, most in ((4, 4, 7), (5, 6, 5), (3, 2, 2)):
        sizes = [size for size in (1, 2, 4) if size <= devices]
        work = [rng.integer(4, 6) for _ in range(layers)]
        waits = {size: float(size) for size in sizes}
        yield Case(_table(work, sizes, waits, most), layers, devices, rng.integer(2, 6), sizes)
    yield Case(_table([3], [1, 2], {1: 0.0, 2: 1.0}), 1, 3, 4, [1, 2])
    yield Case(_table([3, 4, 5], [2, 4], {2: 0.0, 4: 1.0}), 3, 5, 4, [2, 4])


def large(rng: Rng) -> Iterator[Case]:
    """Sixteen layers on sixteen devices."""
    sizes = [1, 2, 4, 8, 16]
    for micro_batches in (rng.integer(3, 6), rng.integer(20, 40)):
        work = [rng.integer(20, 99) for _ in range(16)]
        waits = {size: rng.integer(0, 4) * (size - 1) / 3 for size in sizes}
        yield Case(_table(work, sizes, waits), 16, 16, micro_batches, sizes)
