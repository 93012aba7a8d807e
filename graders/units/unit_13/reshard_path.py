"""The grader of `reshard_path`."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

from course_lib.cluster.topology import Link
from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.reshard_cost import cost_of

Layout = tuple[str, ...]
"""A placement for each axis, as `spelled`."""

SECONDS = 5.0
"""What the ways on three axes may take."""
ROUNDING = 1e-6
FAR: tuple[tuple[Layout, Layout], ...] = (
    (("P", "P", "P"), ("R", "R", "R")),
    (("S(0)", "S(0)", "S(0)"), ("S(1)", "S(1)", "S(1)")),
    (("P", "S(0)", "S(0)"), ("S(0)", "S(1)", "S(1)")),
    (("S(0)", "S(0)", "R"), ("R", "S(0)", "S(0)")),
)
"""From and to, far apart on most meshes."""
ORDERED: tuple[tuple[Layout, Layout, int], ...] = (
    (("S(0)", "R"), ("R", "S(0)"), 2),
    (("S(0)", "S(0)"), ("R", "S(0)"), 2),
    (("S(1)", "S(1)"), ("S(0)", "S(1)"), 2),
    (("R", "S(1)"), ("S(1)", "S(1)"), 2),
    # With a second dimension there would be a faster way.
    (("S(0)", "R"), ("R", "S(0)"), 1),
)
"""From, to, and dimensions: ways on which it matters in which order a dim is cut by several axes."""


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
        for axis, kind in itertools.product(range(len(here)), _kinds(self.dims)):
            there = (*here[:axis], kind, *here[axis + 1 :])
            price = self.price(here, there, ordered)
            if price is not None:
                yield price, there


def _kinds(dims: int) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class Way:
    """From where to where: drawn, if the source is empty. number: which of several such tasks. ordered:
    whether the order of cuts has to matter. Two axes are nodes with a slow link between them, if not drawn.
    """

    source: Layout = feature(("P", "P"), lambda layout: f"from {''.join(layout)}" if layout else "")
    target: Layout = feature(("R", "R"), lambda layout: f"to {''.join(layout)}" if layout else "")
    axes: int = feature(2, lambda axes: "1 axis" if axes == 1 else f"{axes} axes")
    dims: int = feature(2, lambda dims: compare.counted(dims, "dimension"))
    ordered: bool = False
    number: int = 0


def arguments(rng: Rng, case: Way) -> Arguments:
    """Those of the exercise, and what a step costs."""
    task = a_task(rng, case)
    while not case.source and (least(task) != least(task, ordered=False)) is not case.ordered:
        task = a_task(rng, case)
    return asked(task)


def asked(task: Task) -> Arguments:
    """What the driver is given: lists of layouts, and the prices at the end."""
    prices = [[*key, seconds] for key, seconds in task.prices.items()]
    links = list(task.links)
    return [list(task.source), list(task.target), task.nbytes, task.mesh, links, task.dims, prices]


def a_task(rng: Rng, case: Way) -> Task:
    """On two levels of a cluster, or on any mesh."""
    source, target = case.source, case.target
    while not case.source and source == target:
        source, target = (
            tuple(rng.choice(_kinds(case.dims)) for _ in range(case.axes)) for _ in range(2)
        )
    if case.source and case.axes == 2:
        mesh: tuple[int, ...] = (rng.integer(2, 3), rng.integer(4, 8))
        links = ((1e-5, rng.integer(5, 20) * 1e9), (2e-6, rng.integer(150, 400) * 1e9))
        return Task(source, target, rng.integer(10**4, 10**5) * 4 * prod(mesh) ** 2, mesh, links, case.dims)
    mesh = tuple(rng.integer(2, 5) for _ in range(case.axes))
    links = tuple((rng.integer(1, 30) * 1e-6, rng.integer(1, 300) * 1e9) for _ in range(case.axes))
    return Task(source, target, rng.integer(10, 10**5) * 4 * prod(mesh) ** 2, mesh, links, case.dims)


def right_seconds(reply: Any, what: str, task: Task) -> Finding:
    """Passes if the least seconds come with something."""
    if type(reply) is not list or len(reply) != 2:
        return Finding(False, f"{what} is {compare.shown(reply)}; expected seconds and a list of layouts.")
    wanted = least(task)
    right = abs(compare.as_float(reply[0]) - wanted) <= ROUNDING * wanted
    return Finding(right, f"{what}: {compare.shown(reply[0])} s; the least is {wanted:.8g} s.")


def right_way(reply: Any, what: str, task: Task) -> Finding:
    """Passes if the way is one, leads from source to target, and takes the seconds that were told."""
    way = reply[1]
    said = f"{what}: the way is {compare.shown(way)}"
    if type(way) is not list or any(type(each) is not list for each in way):
        return Finding(False, f"{said}; expected a list of layouts.")
    layouts = [tuple(each) for each in way]
    if layouts[:1] != [task.source] or layouts[-1:] != [task.target]:
        return Finding(False, f"{said}; it does not begin with {task.source} and end with {task.target}.")
    taken = 0.0
    for here, there in itertools.pairwise(layouts):
        allowed = len(there) == len(here) and all(each in _kinds(task.dims) for each in there)
        price = task.price(here, there) if allowed else None
        if price is None:
            return Finding(False, f"{said}; from {here} to {there} is no step.")
        taken += price
    right = abs(taken - least(task)) <= ROUNDING * taken
    return Finding(right, f"{said}; its steps take {taken:.8g} s, and {compare.shown(reply[0])} s were told.")


def a_right_way(tried: Tried[Way]) -> Finding:
    """Passes if the way that was told takes the seconds that were told, and arguments stay."""
    seen: Seen = tried.seen
    return compare.first_failure((kept(tried), right_way(seen.value, seen.what, _task(seen.given))))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if ways on three axes are the fastest, and come in time; some of them have many steps."""
    tasks = [a_task(rng, Way((), (), axes=3, dims=3)) for _ in range(2)] + [_far(rng) for _ in range(2)]
    found = answer.call(drivers.reshard_paths, [asked(task) for task in tasks], timeout=SECONDS)
    judged = [
        (called.value, f"{''.join(task.source)} to {''.join(task.target)} on {task.mesh}", task)
        for called, task in compare.side_by_side(found, tasks)
    ]
    seconds = compare.first_failure(right_seconds(*each) for each in judged)
    return compare.first_failure(right_way(*each) for each in judged) if seconds.passed else seconds


def _far(rng: Rng) -> Task:
    """On three axes, such that every fastest way has five steps or more."""
    while True:
        source, target = rng.choice(FAR)
        task = a_task(rng, Way(source, target, axes=3, dims=3))
        if task.within(4) > least(task) * (1 + ROUNDING):
            return task


def _task(given: Arguments) -> Task:
    source, target, nbytes, mesh, links, dims, _ = given
    return Task(tuple(source), tuple(target), nbytes, mesh, tuple(links), dims)


@of_function(
    base=Way(),
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "least seconds",
            5,
            "Layouts are places on a map, and changes along one axis are roads. How long is a road, and "
            "which way is the shortest, detours included?",
            vary=(
                *both(target=("S(0)", "R")),
                *(each for axes in (1, 2) for number in range(4 * axes**2) for each in
                  both(source=(), target=(), axes=axes, number=number)),
            ),
        ),
        Criterion(
            "a way that takes them",
            3,
            "Remember from where the shortest way came; source and target are on it.",
            how=a_right_way,
        ),
        Criterion(
            "one dim along several axes",
            3,
            "A cut may come or go only while no later axis cuts the same dim: that goes for what a step "
            "takes away, and for what it brings.",
            vary=(
                *(each for source, target, dims in ORDERED for each in
                  both(source=source, target=target, dims=dims)),
                *(each for number in range(8) for each in
                  both(source=(), target=(), ordered=True, number=number)),
            ),
        ),
        Criterion(
            "many layouts",
            2,
            "On three axes there are 125 layouts, and far more ways than that: visit each layout once.",
            needs=("least seconds", "a way that takes them", "one dim along several axes"),
            ask=in_time,
        ),
        Criterion(
            "nothing to do",
            1,
            "From a layout to itself: no step, 0 seconds, and one layout.",
            vary=tuple(
                each for layout in (("S(0)", "P"), ("S(0)", "S(0)")) for each in
                both(source=layout, target=layout)
            ),
        ),
    ),
    hints=(
        "How many layouts are there? Which are one step away from a given one, and at what price?",
        "How many bytes do the ranks along an axis have between them, if the tensor is cut along another?",
        "Dijkstra's algorithm: a heap with the seconds so far. When is a layout finished?",
    ),
    arguments=arguments,
    driver=drivers.reshard_paths,
    written=lambda given: ", ".join(map(str, given[:-1])),
)
def reshard_path(case: Way, given: Arguments) -> Expected:
    """The least seconds, with anything; what a step costs is told, whatever the answer's `reshard_cost` says."""
    names = ("source", "target", "nbytes", "mesh", "links", "dims")
    after = {**dict(zip(names, given, strict=False)), "prices": ANYTHING}
    return Expected(Checked(lambda reply, what: right_seconds(reply, what, _task(given))), after, returned=None)
