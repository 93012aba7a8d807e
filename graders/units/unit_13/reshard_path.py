"""The grader of `reshard_path`."""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from graders.grading.cases import both
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import layouts as drivers
from graders.units.unit_13.ways import (
    ROUNDING,
    Layout,
    Task,
    asked,
    kinds_of,
    least,
    right_seconds,
    right_way,
    task_of,
)

SECONDS = 5.0
"""What the ways on three axes may take."""
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

    @property
    def strict(self) -> bool:
        """Whether it is also about the way itself: other cases do not ask in which order cuts come and go."""
        to_itself = bool(self.source) and self.source == self.target
        return self.ordered or to_itself or (self.source, self.target, self.dims) in ORDERED


def arguments(rng: Rng, case: Way) -> Arguments:
    """Those of the exercise, and what a step costs."""
    task = a_task(rng, case)
    while not case.source and (least(task) != least(task, ordered=False)) is not case.ordered:
        task = a_task(rng, case)
    return asked(task)


def a_task(rng: Rng, case: Way) -> Task:
    """On two levels of a cluster, or on any mesh."""
    source, target = case.source, case.target
    while not case.source and source == target:
        source, target = (tuple(rng.choice(kinds_of(case.dims)) for _ in range(case.axes)) for _ in range(2))
    if case.source and case.axes == 2:
        mesh: tuple[int, ...] = (rng.integer(2, 3), rng.integer(4, 8))
        far, near = (1e-5, rng.integer(5, 20) * 1e9), (2e-6, rng.integer(150, 400) * 1e9)
        nbytes = rng.integer(10**4, 10**5) * 4 * prod(mesh) ** 2
        return Task(source, target, nbytes, mesh, (far, near), case.dims)
    mesh = tuple(rng.integer(2, 5) for _ in range(case.axes))
    links = tuple((rng.integer(1, 30) * 1e-6, rng.integer(1, 300) * 1e9) for _ in range(case.axes))
    return Task(source, target, rng.integer(10, 10**5) * 4 * prod(mesh) ** 2, mesh, links, case.dims)


def a_right_way(tried: Tried[Way]) -> Finding:
    """Passes if the way that was told takes the seconds that were told, and arguments stay."""
    seen: Seen = tried.seen
    found = right_way(seen.value, seen.what, task_of(seen.given), tried.case.features.strict)
    return compare.first_failure((kept(tried), found))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if ways on three axes are the fastest, and come in time; some of them have many steps."""
    tasks = [a_task(rng, Way((), (), axes=3, dims=3)), _far(rng)]
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
                *(
                    each
                    for axes in (1, 2)
                    for number in range(5 * axes - 2)
                    for each in both(source=(), target=(), axes=axes, number=number)
                ),
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
            needs=("least seconds", "a way that takes them"),
            vary=(
                *(
                    each
                    for source, target, dims in ORDERED
                    for each in both(source=source, target=target, dims=dims)
                ),
                *(
                    each
                    for number in range(5)
                    for each in both(source=(), target=(), ordered=True, number=number)
                ),
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
            needs=("least seconds", "a way that takes them"),
            vary=tuple(
                each
                for layout in (("S(0)", "P"), ("S(0)", "S(0)"))
                for each in both(source=layout, target=layout)
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
    """The least seconds; what a step costs is told, whatever the answer's own `reshard_cost` says."""
    names = ("source", "target", "nbytes", "mesh", "links", "dims")
    after = {**dict(zip(names, given, strict=False)), "prices": ANYTHING}
    return Expected(Checked(partial(_found, task=task_of(given), strict=case.strict)), after, returned=None)


def _found(reply: Any, what: str, task: Task, strict: bool) -> Finding:
    found = right_seconds(reply, what, task)
    return right_way(reply, what, task) if strict and found.passed else found
