"""Stages and submeshes that a plan is asked for, and how that is judged.

What the exercise is given: a table of (begin, end, size, seconds), in place of the function; layers, devices,
micro-batches, and sizes.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import accumulate, combinations
from typing import Any

from graders.grading.kit import Finding, Rng, compare
from graders.units.functions.stage import Arguments

Table = list[tuple[int, int, int, float]]


def table_of(layers: int, sizes: tuple[int, ...], seconds: Callable[[int, int, int], float]) -> Table:
    """Of all stages: seconds(begin, end, size)."""
    runs = combinations(range(layers + 1), 2)
    return [(begin, end, size, seconds(begin, end, size)) for begin, end in runs for size in sizes]


def drawn(rng: Rng, layers: int, sizes: tuple[int, ...], most: float = math.inf) -> Table:
    """A stage takes its work by its devices, and for each layer a wait that depends on their number; what is
    more work than `most` a device does not fit.
    """
    work = [rng.choice((10, 20, 30, 40, 120, 200)) + rng.integer(0, 9) for _ in range(layers)]
    waits = {size: rng.integer(0, 3) * (size - 1) * 2.5 for size in sizes}

    def seconds(begin: int, end: int, size: int) -> float:
        own = sum(work[begin:end])
        return 5 + own / size + waits[size] * (end - begin) if own <= most * size else math.inf

    return table_of(layers, sizes, seconds)


def measured(rng: Rng, layers: int, sizes: tuple[int, ...]) -> Table:
    """Seconds that follow no rule: more layers may be faster, and more devices slower."""
    return table_of(
        layers, sizes, lambda begin, end, _: float(rng.integer(20, 99) * rng.integer(1, end - begin))
    )


def large(rng: Rng) -> Arguments:
    """20 layers on sixteen devices, which wait the longer the more there are of them in a stage."""
    sizes = (1, 2, 4, 8, 16)
    work = [rng.integer(20, 99) for _ in range(20)]
    waits = {size: rng.integer(1, 4) * (size - 1) / 3 for size in sizes}

    def seconds(begin: int, end: int, size: int) -> float:
        return sum(work[begin:end]) / size + waits[size] * (end - begin)

    return [table_of(20, sizes, seconds), 20, 16, rng.integer(5, 30), sizes]


def optimum(given: Arguments) -> float:
    """Seconds of the best plan. For the layers from one on, on so many devices, it keeps what is worth
    having: pairs of sum and slowest of which none is better than another in both.
    """
    table, layers, devices, micro_batches, _ = given

    @cache
    def pairs(begin: int, devices: int) -> tuple[tuple[float, float], ...]:
        if begin == layers:
            return ((0.0, 0.0),) if devices == 0 else ()
        found = {
            (taken + total, max(taken, slowest))
            for end, size, taken in ways[begin]
            if size <= devices
            for total, slowest in pairs(end, devices - size)
        }
        kept: list[tuple[float, float]] = []
        for pair in sorted(found):
            if not kept or pair[1] < kept[-1][1]:
                kept.append(pair)
        return tuple(kept)

    ways: list[list[tuple[int, int, float]]] = [[] for _ in range(layers)]
    for begin, end, size, taken in table:
        if taken < math.inf:
            ways[begin].append((end, size, taken))
    totals = (total + (micro_batches - 1) * slowest for total, slowest in pairs(0, devices))
    return min(totals, default=math.inf)


def as_good(reply: Any, what: str, given: Arguments) -> Finding:
    """Whether the plan is one, and its step as short as it can be; or ValueError where there is none."""
    table, layers, devices, micro_batches, sizes = given
    if type(reply) is not dict or reply.keys() != {"gave", "most", "largest"}:
        return Finding(False, f"{what}: {compare.shown(reply)} came back.")
    best, plan = optimum(given), reply["gave"]
    said = f"{what}: got {compare.shown(plan)}"
    if plan == "ValueError" or best == math.inf:
        wanted = "ValueError" if best == math.inf else f"a plan of {best:.6g} s"
        return Finding(plan == "ValueError" and best == math.inf, f"{said}; expected {wanted}.")
    if not (
        type(plan) is list
        and all(type(pair) is tuple and len(pair) == 2 for pair in plan)
        and all(type(length) is int and length >= 1 and size in sizes for length, size in plan)
    ):
        return Finding(False, f"{said}; expected a list of (layers, devices), the latter one of the sizes.")
    found = [sum(pair[place] for pair in plan) for place in (0, 1)]
    if found != [layers, devices]:
        return Finding(False, f"{said}, which has {found[0]} layers on {found[1]} devices.")
    seconds = {(begin, end, size): taken for begin, end, size, taken in table}
    ends = accumulate(length for length, _ in plan)
    each = [seconds[end - length, end, size] for end, (length, size) in zip(ends, plan, strict=True)]
    taken = sum(each) + (micro_batches - 1) * max(each)
    told = f"{said}, with which a step takes {taken:.9g} s; {best:.9g} s is possible."
    return Finding(taken <= best * (1 + 1e-9), told)
