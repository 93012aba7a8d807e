"""Unit 13, from one layout into another on a mesh with several axes."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

from course_lib.cluster.topology import Link
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.prices import cost_of

Layout = tuple[str, ...]
"""A placement for each axis, as `spelled`."""

FAR: tuple[tuple[Layout, Layout], ...] = (
    (("P", "P", "P"), ("R", "R", "R")),
    (("S(0)", "S(0)", "S(0)"), ("S(1)", "S(1)", "S(1)")),
    (("P", "S(0)", "S(0)"), ("S(0)", "S(1)", "S(1)")),
    (("S(0)", "S(0)", "R"), ("R", "S(0)", "S(0)")),
)
"""From and to, far apart on most meshes."""


@exercise(
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "least seconds",
            5,
            "Layouts are places on a map, and changes along one axis are roads. How long is a road, and "
            "which way is the shortest, detours included?",
        ),
        Criterion(
            "a way that takes them",
            3,
            "Remember from where the shortest way came; source and target are on it.",
        ),
        Criterion(
            "one dim along several axes",
            3,
            "A cut may come or go only while no later axis cuts the same dim: that goes for what a step "
            "takes away, and for what it brings.",
            needs=("least seconds", "a way that takes them"),
        ),
        Criterion(
            "many layouts",
            2,
            "On three axes there are 125 layouts, and far more ways than that: visit each layout once.",
            needs=("least seconds", "a way that takes them", "one dim along several axes"),
        ),
        Criterion("nothing to do", 1, "From a layout to itself: no step, 0 seconds, and one layout."),
    ),
    hints=(
        "How many layouts are there? Which are one step away from a given one, and at what price?",
        "How many bytes do the ranks along an axis have between them, if the tensor is cut along another?",
        "Dijkstra's algorithm: a heap with the seconds so far. When is a layout finished?",
    ),
)
def reshard_path(answer: Answer, rng: Rng) -> Findings:
    """Drawn layouts: those where the order of cuts does not matter, those where it does, and three axes. What
    a step costs is told, whatever the answer's own `reshard_cost` says.
    """
    drawn = [Task.drawn(rng, axes=2) for _ in range(40)]
    free = [task for task in drawn if task.least(ordered=True) == task.least(ordered=False)]
    # A sum over two levels, whose best way is a detour; a cut that changes its axis.
    free += [Task.two_levels(rng, ("P", "P"), ("R", "R")), Task.two_levels(rng, ("P", "P"), ("S(0)", "R"))]
    free += [Task.drawn(rng, axes=1) for _ in range(6)]
    ordered = [task for task in drawn if task not in free]
    ordered += [
        Task.two_levels(rng, ("S(0)", "R"), ("R", "S(0)")),
        Task.two_levels(rng, ("S(0)", "S(0)"), ("R", "S(0)")),
        Task.two_levels(rng, ("S(1)", "S(1)"), ("S(0)", "S(1)")),
        Task.two_levels(rng, ("R", "S(1)"), ("S(1)", "S(1)")),
        # With a second dimension there would be a faster way.
        replace(Task.two_levels(rng, ("S(0)", "R"), ("R", "S(0)")), dims=1),
    ]
    replies = answer.call(drivers.reshard_paths, *_asked(free))
    judged = [(task, reply) for reply, task in compare.side_by_side(replies, free)]
    yield "least seconds", compare.first_failure(task.right_seconds(reply) for task, reply in judged)
    yield (
        "a way that takes them",
        compare.first_failure(task.right_way(reply, ordered=False) for task, reply in judged),
    )
    large = [*(Task.drawn(rng, axes=3, dims=3) for _ in range(2)), *(Task.far(rng) for _ in range(2))]
    same = [Task.to_itself(rng, layout) for layout in (("R",), ("S(0)", "P"), ("S(0)", "S(0)"))]
    rows = {"one dim along several axes": ordered, "many layouts": large, "nothing to do": same}
    for name, tasks in rows.items():
        replies = answer.call(drivers.reshard_paths, *_asked(tasks), timeout=5.0)
        pairs = [(task, reply) for reply, task in compare.side_by_side(replies, tasks)]
        found = [finding for t, reply in pairs for finding in (t.right_seconds(reply), t.right_way(reply))]
        if tasks is ordered:
            found += [task.right_way(reply) for task, reply in judged]
        yield name, compare.first_failure(found)


def _asked(tasks: list["Task"]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The arguments for each task; and prices: kinds, bytes, ranks, and link of a change, and its seconds."""
    prices = {key: seconds for task in tasks for key, seconds in task.prices.items()}
    return [task.arguments for task in tasks], [[*key, seconds] for key, seconds in prices.items()]


@dataclass(frozen=True)
class Task:
    """From a layout to another. links: latency and bandwidth for each axis."""

    source: Layout
    target: Layout
    nbytes: int
    mesh: tuple[int, ...]
    links: tuple[tuple[float, float], ...]
    dims: int

    @classmethod
    def drawn(cls, rng: Rng, axes: int, dims: int = 2) -> "Task":
        """Two different layouts on a mesh with links that differ."""
        kinds = _kinds(dims)
        source = target = tuple(rng.choice(kinds) for _ in range(axes))
        while target == source:
            target = tuple(rng.choice(kinds) for _ in range(axes))
        mesh = tuple(rng.integer(2, 5) for _ in range(axes))
        links = tuple((rng.integer(1, 30) * 1e-6, rng.integer(1, 300) * 1e9) for _ in range(axes))
        return cls(source, target, rng.integer(10, 10**5) * 4 * prod(mesh) ** 2, mesh, links, dims)

    @classmethod
    def two_levels(cls, rng: Rng, source: Layout, target: Layout) -> "Task":
        """On nodes with several devices, and a slow link between them."""
        mesh = (rng.integer(2, 3), rng.integer(4, 8))
        links = ((1e-5, rng.integer(5, 20) * 1e9), (2e-6, rng.integer(150, 400) * 1e9))
        return cls(source, target, rng.integer(10**4, 10**5) * 4 * prod(mesh) ** 2, mesh, links, 2)

    @classmethod
    def to_itself(cls, rng: Rng, layout: Layout) -> "Task":
        drawn = cls.drawn(rng, len(layout))
        return cls(layout, layout, drawn.nbytes, drawn.mesh, drawn.links, 2)

    @classmethod
    def far(cls, rng: Rng) -> "Task":
        """On three axes, such that every fastest way has five steps or more."""
        while True:
            drawn, dims = cls.drawn(rng, axes=3, dims=3), rng.choice(tuple(itertools.permutations("012")))
            source, target = (
                tuple(each.translate(str.maketrans("012", "".join(dims))) for each in layout)
                for layout in rng.choice(FAR)
            )
            task = cls(source, target, drawn.nbytes, drawn.mesh, drawn.links, 3)
            if task.within(4) > task.least() * (1 + 1e-6):
                return task

    @property
    def arguments(self) -> list[Any]:
        """What the driver is given."""
        return [list(self.source), list(self.target), self.nbytes, self.mesh, list(self.links), self.dims]

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

    def least(self, ordered: bool = True) -> float:
        """Seconds of the fastest way."""
        return _least(self, ordered)

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
        for axis, kind in itertools.product(range(len(here)), _kinds(self.dims)):
            there = (*here[:axis], kind, *here[axis + 1 :])
            price = self.price(here, there, ordered)
            if price is not None:
                yield price, there

    def right_seconds(self, reply: Any) -> Finding:
        """Passes if the least seconds come with something."""
        if type(reply) is not list or len(reply) != 2:
            return Finding(
                False, f"{self.setting}: {compare.shown(reply)}; expected seconds and a list of layouts."
            )
        seconds, least = compare.as_float(reply[0]), self.least()
        said = f"{self.setting}: {compare.shown(reply[0])} s; the least is {least:.8g} s."
        return Finding(abs(seconds - least) <= 1e-6 * least, said)

    def right_way(self, reply: Any, ordered: bool = True) -> Finding:
        """Passes if the way is one, leads from source to target, and takes the seconds that were told.

        ordered: whether a step may not touch a cut under later ones.
        """
        if not self.right_seconds(reply).passed:
            return self.right_seconds(reply)
        way = reply[1]
        said = f"{self.setting}: the way is {compare.shown(way)}"
        if type(way) is not list or any(type(each) is not list for each in way):
            return Finding(False, f"{said}; expected a list of layouts.")
        layouts = [tuple(each) for each in way]
        if layouts[:1] != [self.source] or layouts[-1:] != [self.target]:
            return Finding(False, f"{said}; it does not begin with {self.source} and end with {self.target}.")
        taken = 0.0
        for here, there in itertools.pairwise(layouts):
            allowed = len(there) == len(here) and all(each in _kinds(self.dims) for each in there)
            price = self.price(here, there, ordered) if allowed else None
            if price is None:
                return Finding(False, f"{said}; from {here} to {there} is no step.")
            taken += price
        right = abs(taken - self.least()) <= 1e-6 * taken
        return Finding(
            right, f"{said}; its steps take {taken:.8g} s, and {compare.shown(reply[0])} s were told."
        )

    @property
    def setting(self) -> str:
        """What was asked, in words."""
        change = f"{''.join(self.source)} to {''.join(self.target)}"
        return f"{change}, {self.nbytes:,} bytes, mesh {self.mesh}, links {self.links}, {self.dims} dims"


def _kinds(dims: int) -> list[str]:
    return ["R", "P", *(f"S({dim})" for dim in range(dims))]


@cache
def _least(task: Task, ordered: bool) -> float:
    """Dijkstra's algorithm."""
    heap, done = [(0.0, task.source)], set()
    while heap[0][1] != task.target:
        seconds, here = heapq.heappop(heap)
        if here not in done:
            done.add(here)
            for price, there in task.neighbours(here, ordered):
                heapq.heappush(heap, (seconds + price, there))
    return heap[0][0]
