"""The grader of `reshard_path`."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from course_lib.cluster.topology import Link
from graders.grading.cases import Values, both
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.reshard_cost import cost_of

Layout = tuple[str, ...]
"""A placement for each axis, as "R", "P" or "S(1)"."""

SECONDS = 5.0
"""What the way on three axes may take."""
ROUNDING = 1e-6
KINDS, DIMS = ("R", "P", "S(0)", "S(1)"), 2
NAMES = ("source", "target", "nbytes", "mesh", "links", "dims")


@dataclass(frozen=True, slots=True)
class Way:
    """From where to where: drawn, if the source is empty. number: which of several such tasks. ordered:
    whether it matters in which order a dim is cut by several axes.
    """

    source: Layout = feature(("P", "P"), lambda layout: f"from {''.join(layout)}" if layout else "")
    target: Layout = feature(("R", "R"), lambda layout: f"to {''.join(layout)}" if layout else "")
    axes: int = feature(2, lambda axes: "1 axis" if axes == 1 else f"{axes} axes")
    ordered: bool = False
    number: int = 0


@dataclass(frozen=True)
class Task:
    """The arguments of a call. links: latency and bandwidth for each axis."""

    source: Layout
    target: Layout
    nbytes: int
    mesh: tuple[int, ...]
    links: list[tuple[float, float]]
    dims: int

    @property
    def arguments(self) -> Arguments:
        return [getattr(self, name) for name in NAMES]

    def neighbours(self, here: Layout, ordered: bool = True) -> Iterator[tuple[float, Layout]]:
        """What is one step away, and its price. ordered: whether later cuts of the same dim forbid it."""
        for axis, kind in itertools.product(range(len(here)), KINDS):
            later = {each for each in here[axis + 1 :] if each.startswith("S")}
            if kind == here[axis] or (ordered and later & {here[axis], kind}):
                continue
            cuts = [n for k, n in enumerate(self.mesh) if k != axis and here[k].startswith("S")]
            link, nbytes = Link(*self.links[axis]), self.nbytes // prod(cuts)
            price = cost_of((here[axis], kind), nbytes, self.mesh[axis], link)
            yield price, (*here[:axis], kind, *here[axis + 1 :])

    def least(self, ordered: bool = True) -> float:
        """Seconds of the fastest way, by Dijkstra's algorithm."""
        heap, done = [(0.0, self.source)], set()
        while heap[0][1] != self.target:
            seconds, here = heapq.heappop(heap)
            if here not in done:
                done.add(here)
                for price, there in self.neighbours(here, ordered):
                    heapq.heappush(heap, (seconds + price, there))
        return heap[0][0]


def arguments(rng: Rng, case: Way) -> Arguments:
    """Those of the exercise; on drawn ways the order of cuts matters only where it has to."""
    task = a_task(rng, case)
    while not case.source and (task.least() != task.least(ordered=False)) is not case.ordered:
        task = a_task(rng, case)
    return task.arguments


def a_task(rng: Rng, case: Way) -> Task:
    """On a mesh whose axes have links of their own."""
    source, target = case.source, case.target
    while source == target and not case.source:
        source, target = (tuple(rng.choice(KINDS) for _ in range(case.axes)) for _ in range(2))
    mesh = tuple(rng.integer(2, 5) for _ in range(case.axes))
    links = [(rng.integer(1, 30) * 1e-6, rng.integer(1, 300) * 1e9) for _ in range(case.axes)]
    return Task(source, target, rng.integer(10, 10**5) * 4 * prod(mesh) ** 2, mesh, links, DIMS)


def right_seconds(reply: Any, what: str, task: Task) -> Finding:
    """Passes if the least seconds come with something."""
    if type(reply) is not list or len(reply) != 2:
        return Finding(False, f"{what} is {compare.shown(reply)}; expected seconds and a list of layouts.")
    wanted = task.least()
    right = abs(compare.as_float(reply[0]) - wanted) <= ROUNDING * wanted
    return Finding(right, f"{what}: {compare.shown(reply[0])} s; the least is {wanted:.8g} s.")


def right_way(reply: Any, what: str, task: Task) -> Finding:
    """Passes if the way is one, leads from source to target, and takes the seconds that were told."""
    way = reply[1]
    said = f"{what}: the way is {compare.shown(way)}"
    if type(way) is not list or not all(type(each) is list for each in way):
        return Finding(False, f"{said}; expected a list of layouts.")
    layouts = [tuple(each) for each in way]
    if layouts[:1] != [task.source] or layouts[-1:] != [task.target]:
        return Finding(False, f"{said}; it does not begin with {task.source} and end with {task.target}.")
    taken = 0.0
    for here, there in itertools.pairwise(layouts):
        steps = {each: price for price, each in task.neighbours(here)}
        if there not in steps:
            return Finding(False, f"{said}; from {here} to {there} is no step.")
        taken += steps[there]
    right = abs(taken - task.least()) <= ROUNDING * taken
    return Finding(right, f"{said}; its steps take {taken:.8g} s, and {compare.shown(reply[0])} s were told.")


def a_right_way(tried: Tried[Way]) -> Finding:
    """Passes if the way that was told takes the seconds that were told, and arguments stay."""
    seen: Seen = tried.seen
    return compare.first_failure((kept(tried), right_way(seen.value, seen.what, Task(*seen.given))))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if a way on three axes is the fastest, and comes in time."""
    task = a_task(rng, Way((), (), axes=3))
    found = answer.call(drivers.reshard_paths, [task.arguments], timeout=SECONDS)
    what = f"{''.join(task.source)} to {''.join(task.target)} on {task.mesh}"
    return compare.first_failure(
        judge(called.value, what, task)
        for called, _ in compare.side_by_side(found, [task])
        for judge in (right_seconds, right_way)
    )


def _drawn(count: int, **features: Any) -> tuple[Values, ...]:
    drawn = (both(source=(), target=(), number=number, **features) for number in range(count))
    return tuple(each for (each,) in drawn)


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
            vary=both(target=("S(0)", "R")) + _drawn(2, axes=1) + _drawn(8),
        ),
        Criterion(
            "one dim along several axes",
            3,
            "A cut may come or go only while no later axis cuts the same dim: that goes for what a step "
            "takes away, and for what it brings.",
            vary=both(source=("S(1)", "S(1)"), target=("S(0)", "S(1)"))
            + both(source=("R", "S(1)"), target=("S(1)", "S(1)"))
            + _drawn(5, ordered=True),
        ),
        Criterion(
            "a way that takes them",
            4,
            "Remember from where the shortest way came; source and target are on it. From a layout to "
            "itself it is 0 seconds and one layout.",
            vary=both(source=("S(0)", "P"), target=("S(0)", "P")),
            how=a_right_way,
        ),
        Criterion(
            "many layouts",
            2,
            "On three axes there are 64 layouts, and far more ways than that: visit each layout once.",
            needs=("least seconds", "one dim along several axes", "a way that takes them"),
            ask=in_time,
        ),
    ),
    hints=(
        "How many layouts are there? Which are one step away from a given one, and at what price?",
        "How many bytes do the ranks along an axis have between them, if the tensor is cut along another?",
        "Dijkstra's algorithm: a heap with the seconds so far. When is a layout finished?",
    ),
    arguments=arguments,
    driver=drivers.reshard_paths,
    written=lambda given: ", ".join(map(str, given)),
)
def reshard_path(case: Way, given: Arguments) -> Expected:
    """The least seconds."""
    found = Checked(partial(right_seconds, task=Task(*given)))
    return Expected(found, dict(zip(NAMES, given, strict=True)), returned=None)
