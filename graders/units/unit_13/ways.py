"""Ways from one layout into another on a mesh with several axes: which is the fastest, and is this one?"""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

from course_lib.cluster.topology import Link
from graders.grading.kit import Finding, compare
from graders.units.functions.stage import Arguments
from graders.units.unit_13.reshard_cost import cost_of

Layout = tuple[str, ...]
"""A placement for each axis, as `spelled`."""

ROUNDING = 1e-6


@dataclass(frozen=True)
class Task:
    """From a layout to another. links: latency and bandwidth for each axis."""

    source: Layout
    target: Layout
    nbytes: int
    mesh: tuple[int, ...]
    links: tuple[tuple[float, float], ...]
    dims: int

    def price(self, here: Layout, there: Layout, ordered: bool = True) -> float | None:
        """Seconds of one step; None if it is none. ordered: whether later cuts of the same dim forbid it."""
        changed = [axis for axis, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
        if len(changed) != 1:
            return None
        axis = changed[0]
        later = {each for each in here[axis + 1 :] if each.startswith("S")}
        if ordered and later & {here[axis], there[axis]}:
            return None
        cuts = [n for k, n in enumerate(self.mesh) if k != axis and here[k].startswith("S")]
        kinds = here[axis][0] + there[axis][0]
        return self.prices[kinds, self.nbytes // prod(cuts), self.mesh[axis], *self.links[axis]]

    @cached_property
    def prices(self) -> dict[tuple[str, int, int, float, float], float]:
        """Of each change that a way may have: kinds such as "SR", bytes, ranks, latency and bandwidth."""
        table = {}
        for axis, (ranks, link) in enumerate(zip(self.mesh, self.links, strict=True)):
            others = [n for k, n in enumerate(self.mesh) if k != axis]
            for cuts in itertools.product(*((1, n) for n in others)):
                for a, b in itertools.product(("R", "P", "S(0)"), ("R", "P", "S(1)")):
                    key = a[0] + b[0], self.nbytes // prod(cuts), ranks, *link
                    table[key] = cost_of((a, b), key[1], ranks, Link(*link))
        return table

    def within(self, steps: int) -> float:
        """Seconds of the fastest way with so many steps at most."""
        best = {self.source: 0.0}
        for _ in range(steps):
            for here, seconds in list(best.items()):
                for price, there in self.neighbours(here, ordered=True):
                    best[there] = min(best.get(there, math.inf), seconds + price)
        return best.get(self.target, math.inf)

    def neighbours(self, here: Layout, ordered: bool) -> Iterator[tuple[float, Layout]]:
        """What is one step away, and its price."""
        for axis, kind in itertools.product(range(len(here)), kinds_of(self.dims)):
            there = (*here[:axis], kind, *here[axis + 1 :])
            price = self.price(here, there, ordered)
            if price is not None:
                yield price, there


def kinds_of(dims: int) -> list[str]:
    """The placements of a tensor with so many dimensions."""
    return ["R", "P", *(f"S({dim})" for dim in range(dims))]


@cache
def least(task: Task, ordered: bool = True) -> float:
    """Seconds of the fastest way, by Dijkstra's algorithm."""
    heap, done = [(0.0, task.source)], set()
    while heap[0][1] != task.target:
        seconds, here = heapq.heappop(heap)
        if here not in done:
            done.add(here)
            for price, there in task.neighbours(here, ordered):
                heapq.heappush(heap, (seconds + price, there))
    return heap[0][0]


def right_seconds(reply: Any, what: str, task: Task) -> Finding:
    """Passes if the least seconds come with something."""
    if type(reply) is not list or len(reply) != 2:
        return Finding(False, f"{what} is {compare.shown(reply)}; expected seconds and a list of layouts.")
    wanted = least(task)
    right = abs(compare.as_float(reply[0]) - wanted) <= ROUNDING * wanted
    return Finding(right, f"{what}: {compare.shown(reply[0])} s; the least is {wanted:.8g} s.")


def right_way(reply: Any, what: str, task: Task, ordered: bool = True) -> Finding:
    """Passes if the way is one, leads from source to target, and takes the seconds that were told. ordered:
    whether a step may not touch a cut under later ones.
    """
    way = reply[1]
    said = f"{what}: the way is {compare.shown(way)}"
    if type(way) is not list or any(type(each) is not list for each in way):
        return Finding(False, f"{said}; expected a list of layouts.")
    layouts = [tuple(each) for each in way]
    if layouts[:1] != [task.source] or layouts[-1:] != [task.target]:
        return Finding(False, f"{said}; it does not begin with {task.source} and end with {task.target}.")
    taken = 0.0
    for here, there in itertools.pairwise(layouts):
        allowed = len(there) == len(here) and all(each in kinds_of(task.dims) for each in there)
        price = task.price(here, there, ordered) if allowed else None
        if price is None:
            return Finding(False, f"{said}; from {here} to {there} is no step.")
        taken += price
    right = abs(taken - least(task)) <= ROUNDING * taken
    return Finding(right, f"{said}; its steps take {taken:.8g} s, and {compare.shown(reply[0])} s were told.")


def asked(task: Task) -> Arguments:
    """What the driver is given: lists of layouts, and the prices at the end."""
    prices = [[*key, seconds] for key, seconds in task.prices.items()]
    links = list(task.links)
    return [list(task.source), list(task.target), task.nbytes, task.mesh, links, task.dims, prices]


def task_of(given: Arguments) -> Task:
    """The task that the driver was given."""
    source, target, nbytes, mesh, links, dims, _ = given
    return Task(tuple(source), tuple(target), nbytes, mesh, tuple(links), dims)
