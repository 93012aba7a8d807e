"""The grader of `resimulate`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, of_function
from graders.units.unit_13.drivers import timelines as drivers
from graders.units.unit_13.graphs import Graph, wrong_lists, wrong_times
from graders.units.unit_13.local_changes import CHANGES, Change, local
from graders.units.unit_13.task_graphs import GRAPHS, by_a_digit, exchanged, returning, settled

READ = 4
"""How many tasks may be read for each that changes or moves, and how many besides."""
ORDINARY, *OTHERS = tuple(GRAPHS)[1:9]
TELLING: dict[str, tuple[Graph, list[Change]]] = {
    "times that differ in the last digit": (by_a_digit(), [{0: (0, 0.0)}, {0: (0, 0.1)}]),
    **{f"a task that makes room again, {number}": (g, [c]) for number, (g, c) in enumerate(returning())},
    "a task that ends when it did elsewhere": (settled(), [{2: (1, 2.0)}, {2: (0, 2.0)}]),
    "the first of three goes": (Graph([(0, 3.0), (0, 2.0), (0, 1.0)], [], 2), [{0: (1, 3.0)}]),
    "two exchanged": (exchanged(), [{0: (0, 5.0), 1: (0, 3.0)}]),
}
DURATION, *DEVICE, TWO = TELLING


@dataclass(frozen=True, slots=True)
class Changed:
    """graph: one of GRAPHS. change: one of CHANGES. telling: one of TELLING, which has both; empty: drawn.
    number: which of several that are drawn. unit: of seconds.
    """

    graph: str = feature(ORDINARY, "{}")
    change: str = feature("another duration", "{}")
    unit: float = feature(1.0, lambda unit: f"in units of {unit:g} s" if unit != 1 else "")
    telling: str = feature("", "{}")
    number: int = 0


def a_timeline(rng: Rng, case: Changed) -> Arguments:
    """Its fields, and changes."""
    if case.telling:
        graph, changes = TELLING[case.telling]
    else:
        graph = GRAPHS[case.graph](rng).in_units(case.unit)
        changes = CHANGES[case.change](rng, graph)
    return _told(graph, changes)


def _told(graph: Graph, changes: list[Change]) -> Arguments:
    timeline = graph.timeline
    names = ("before", "after", "ready", "end", "queues")
    fields = {"tasks": list(graph.tasks), **{name: getattr(timeline, name) for name in names}}
    return [fields, [{str(number): task for number, task in change.items()} for change in changes]]


def _steps(given: Arguments) -> list[tuple[Graph, dict[str, Any], Graph]]:
    """For each change the graph before, the change, and the graph afterwards."""
    fields, changes = given
    edges = [(first, second) for first, after in enumerate(fields["after"]) for second in after]
    graph, steps = Graph(fields["tasks"], edges, len(fields["queues"])), []
    for change in changes:
        changed = graph.changed({int(number): task for number, task in change.items()})
        steps.append((graph, change, changed))
        graph = changed
    return steps


def _right(told: Any, what: str, given: Arguments) -> Finding:
    """Passes if each change leads to the timeline of the changed graph, and nothing else was changed."""
    return compare.first_failure(
        finding
        for (graph, change, changed), reply in compare.side_by_side(_steps(given), told)
        for what in (f"the timeline of {graph}, after changes {change},",)
        for finding in (
            wrong_times(changed, reply, what),
            wrong_lists(changed, reply, what),
            compare.equal(reply["left"], change, "changes, after the call"),
        )
    )


def which_have_moved(tried: Tried[Changed]) -> Finding:
    """Passes if just those tasks are named that are ready, or end, at another moment than before."""
    seen: Seen = tried.seen
    return compare.first_failure(
        compare.equal(
            reply["moved"], sorted(_moving(graph, changed)), f"{graph}; changes {change}: which moved"
        )
        for (graph, change, changed), reply in compare.side_by_side(_steps(seen.given), seen.value)
    )


def _moving(graph: Graph, changed: Graph) -> set[int]:
    old, new = graph.timeline, changed.timeline
    return {
        number
        for number in range(len(graph.tasks))
        if (old.ready[number], old.end[number]) != (new.ready[number], new.end[number])
    }


def reads_few(answer: Answer, rng: Rng) -> Finding:
    """Passes if few tasks were read that neither change nor move."""
    given = [_told(graph, changes) for graph, changes in local(rng)]
    told = answer.call(drivers.tasks_read, given)
    return compare.first_failure(
        compare.at_most(
            len(read),
            READ * len({int(number) for number in change} | moved) + READ,
            f"{graph}; changes {change}; {compare.counted(len(moved), 'task')} moved; tasks read",
        )
        for each, of_call in compare.side_by_side(given, told)
        for (graph, change, changed), read in compare.side_by_side(_steps(each), of_call)
        for moved in (_moving(graph, changed),)
    )


@of_function(
    base=Changed(),
    minutes=75,
    difficulty=5,
    rubric=(
        Criterion(
            "another duration",
            4,
            "What ends later makes others ready later, and holds up its device; both may change who is next. "
            "Times count to the last digit.",
            vary=vary(graph=OTHERS, number=(1, 2, 3), unit=(0.1,), telling=(DURATION,)),
        ),
        Criterion(
            "another device",
            4,
            "The tasks behind it on the old device move up; on the new one it waits its turn.",
            vary=vary(change=("another device",), telling=DEVICE)
            + tuple(each for number in range(4, 8) for each in both(change="another device", number=number)),
        ),
        Criterion(
            "several changes",
            2,
            "All of one call together; then a call after a call, and back again.",
            vary=vary(change=("several changes",), telling=(TWO,))
            + tuple(each for name in OTHERS for each in both(change="several changes", graph=name)),
        ),
        Criterion(
            "which have moved",
            2,
            "Compare with what stood there before the call, at its end.",
            how=which_have_moved,
        ),
        Criterion(
            "reads what it needs",
            4,
            "A task whose reasons to move are gone need not be looked at, nor one that waits for another "
            "and is ready when it was.",
            needs=("another duration", "another device", "several changes"),
            ask=reads_few,
        ),
    ),
    hints=(
        "Which three things decide when a task ends? Those before it, the one in front of it on its "
        "device, and its own seconds. When one of them has changed, what is computed anew, and what may "
        "be next?",
        "Keep the tasks that may have to move in a heap, the earliest first, and go on until it is empty. "
        "A task that ends when it did before passes nothing on.",
        "The queue of a device is sorted by (ready, number), so bisect finds a place in it. Take a task out "
        "before you change when it is ready.",
    ),
    arguments=a_timeline,
    possible=lambda case: not case.telling or case == Changed(telling=case.telling),
    driver=drivers.resimulate,
    written=lambda given: "timeline, changes",
)
def resimulate(case: Changed, given: Arguments) -> Expected:
    """The timelines of the changed tasks, one change after another."""
    right = Checked(partial(_right, given=given))
    return Expected(right, {"timeline": ANYTHING, "changes": ANYTHING}, returned=None)
