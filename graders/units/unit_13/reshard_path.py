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


def arguments(rng: Rng, case: Way) -> Arguments:
    """On a mesh whose axes have links of their own; on drawn ways the order of cuts matters only where it
    has to.
    """
    while True:
        source, target = case.source, case.target
        while source == target and not case.source:
            source, target = (tuple(rng.choice(KINDS) for _ in range(case.axes)) for _ in range(2))
        mesh = tuple(rng.integer(2, 5) for _ in range(case.axes))
        links = [{"latency": rng.integer(1, 30) * 1e-6, "bandwidth": rng.integer(1, 300) * 1e9} for _ in mesh]
        given = [source, target, rng.integer(10, 10**5) * 4 * prod(mesh) ** 2, mesh, links, DIMS]
        if case.source or (least(given) != least(given, ordered=False)) is case.ordered:
            return given


def steps(here: Layout, given: Arguments, ordered: bool = True) -> Iterator[tuple[float, Layout]]:
    """What is one step away, and its price. ordered: whether later cuts of the same dim forbid it."""
    _, _, nbytes, mesh, links, _ = given
    for axis, kind in itertools.product(range(len(here)), KINDS):
        later = {each for each in here[axis + 1 :] if each.startswith("S")}
        if kind == here[axis] or (ordered and later & {here[axis], kind}):
            continue
        cuts = [n for k, n in enumerate(mesh) if k != axis and here[k].startswith("S")]
        price = cost_of((here[axis], kind), nbytes // prod(cuts), mesh[axis], Link(**links[axis]))
        yield price, (*here[:axis], kind, *here[axis + 1 :])


def least(given: Arguments, ordered: bool = True) -> float:
    """Seconds of the fastest way, by Dijkstra's algorithm."""
    source, target, *_ = given
    heap, done = [(0.0, source)], set()
    while heap[0][1] != target:
        seconds, here = heapq.heappop(heap)
        if here not in done:
            done.add(here)
            for price, there in steps(here, given, ordered):
                heapq.heappush(heap, (seconds + price, there))
    return heap[0][0]


def right_seconds(reply: Any, what: str, given: Arguments) -> Finding:
    """Passes if the least seconds come with something."""
    if type(reply) is not list or len(reply) != 2:
        return Finding(False, f"{what} is {compare.shown(reply)}; expected seconds and a list of layouts.")
    wanted = least(given)
    right = abs(compare.as_float(reply[0]) - wanted) <= ROUNDING * wanted
    return Finding(right, f"{what}: {compare.shown(reply[0])} s; the least is {wanted:.8g} s.")


def right_way(reply: Any, what: str, given: Arguments) -> Finding:
    """Passes if the way is one, leads from source to target, and takes the least seconds."""
    way = reply[1]
    said = f"{what}: the way is {compare.shown(way)}"
    if type(way) is not list or not way or not all(type(each) is list for each in way):
        return Finding(False, f"{said}; expected a list of layouts.")
    layouts = [tuple(each) for each in way]
    if [layouts[0], layouts[-1]] != given[:2]:
        return Finding(False, f"{said}; expected one from {given[0]} to {given[1]}.")
    taken = 0.0
    for here, there in itertools.pairwise(layouts):
        prices = {each: price for price, each in steps(here, given)}
        if there not in prices:
            return Finding(False, f"{said}; from {here} to {there} is no step.")
        taken += prices[there]
    wanted = least(given)
    return Finding(
        abs(taken - wanted) <= ROUNDING * taken, f"{said}, {taken:.8g} s; expected {wanted:.8g} s."
    )


def a_right_way(tried: Tried[Way]) -> Finding:
    """Passes if the way takes the least seconds, and arguments stay."""
    seen: Seen = tried.seen
    return compare.first_failure((kept(tried), right_way(seen.value, seen.what, seen.given)))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if a way on three axes is the fastest, and comes in time."""
    given = arguments(rng, Way((), (), axes=3, ordered=rng.choice((False, True))))
    found = answer.call(drivers.priced, [given], computing=SECONDS)
    what = "{} to {} on {}".format("".join(given[0]), "".join(given[1]), given[3])
    return compare.first_failure(
        judge(called.value, what, given)
        for called, _ in compare.side_by_side(found, [given])
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
            "Layouts are places on a map, and changes along one axis are roads. Is a detour shorter?",
            vary=both(target=("S(0)", "R")) + _drawn(2, axes=1) + _drawn(8),
        ),
        Criterion(
            "one dim along several axes",
            3,
            "The rule goes for the cut that a step takes away, and for the one that it brings.",
            vary=both(source=("S(1)", "S(1)"), target=("S(0)", "S(1)"))
            + both(source=("R", "S(1)"), target=("S(1)", "S(1)"))
            + _drawn(5, ordered=True),
        ),
        Criterion(
            "a way that takes them",
            4,
            "Remember from where the shortest way came; source and target are on it.",
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
    driver=drivers.priced,
    written=lambda given: ", ".join(map(str, given)),
)
def reshard_path(case: Way, given: Arguments) -> Expected:
    """The least seconds."""
    found = Checked(partial(right_seconds, given=given))
    return Expected(found, dict(zip(NAMES, given, strict=True)), returned=None)
