"""The grader of `resimulate`."""

from dataclasses import dataclass
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, of_function
from graders.units.unit_13.drivers import timelines as drivers
from graders.units.unit_13.graphs import ALONE, CROWDS, GRAPHS, LANES, TIES, Graph, hub, right_fields

Change = list[tuple[int, int, float]]
"""Tasks, each with its new device and seconds."""

READ = 4
"""How many tasks may be read for each that changes or moves, and how many besides."""
FIELDS = ("ready", "end", "queues", "tasks", "before", "after")
HUB = "tasks that wait for two others, of which one ends later"


def _lasting(rng: Rng, graph: Graph) -> list[Change]:
    """An early task that takes another time."""
    number = rng.integer(0, min(4, len(graph.tasks) - 1))
    device, seconds = graph.tasks[number]
    return [[(number, device, float(rng.choice([each for each in range(14) if each != seconds])))]]


def _moved(rng: Rng, graph: Graph) -> list[Change]:
    """A task on another device, perhaps for another time."""
    number = rng.integer(0, len(graph.tasks) - 1)
    device, seconds = graph.tasks[number]
    other = (device + rng.integer(1, graph.devices - 1)) % graph.devices
    return [[(number, other, float(rng.choice((seconds, 5.0))))]]


def _several(rng: Rng, graph: Graph) -> list[Change]:
    """None, several at once, all put back, and once more."""
    tasks = {
        number: (device, seconds) for _ in range(3) for [(number, device, seconds)] in _moved(rng, graph)
    }
    several = [(number, *task) for number, task in tasks.items()]
    return [[], several, [(number, *graph.tasks[number]) for number in tasks], several]


DURATION, DEVICE, SEVERAL = "another duration", "another device", "several changes"
CHANGES = {DURATION: _lasting, DEVICE: _moved, SEVERAL: _several}


@dataclass(frozen=True, slots=True)
class Changed:
    """graph: one of GRAPHS, or HUB. change: one of CHANGES. number: which of several that are drawn."""

    graph: str = feature(CROWDS[0], "{}")
    change: str = feature(DURATION, "{}")
    number: int = 0


def a_timeline(rng: Rng, case: Changed) -> Arguments:
    """Its fields, and changes."""
    if case.graph == HUB:
        graph, changes = hub(30), [[(0, 0, 5.0)], [(0, 0, 2.0)]]
    else:
        graph = GRAPHS[case.graph](rng)
        changes = CHANGES[case.change](rng, graph)
    return [{name: getattr(graph.timeline, name) for name in FIELDS} | {"tasks": graph.tasks}, changes]


def _steps(given: Arguments) -> list[tuple[str, Graph, set[int], int]]:
    """For each change: what changes, in words; the graph afterwards; the tasks that move; how many may be
    read.
    """
    fields, changes = given
    edges = [(first, second) for first, after in enumerate(fields["after"]) for second in after]
    graph, steps = Graph(fields["tasks"], edges, len(fields["queues"])), []
    for change in changes:
        what, old = f"{graph}; changes {change}", graph.timeline
        changing = {number: (device, seconds) for number, device, seconds in change}
        tasks = [changing.get(number, task) for number, task in enumerate(graph.tasks)]
        graph = Graph(tasks, edges, graph.devices)
        times = zip(old.ready, old.end, graph.timeline.ready, graph.timeline.end, strict=True)
        moved = {number for number, (*was, ready, end) in enumerate(times) if was != [ready, end]}
        steps.append((what, graph, moved, READ * len(moved | changing.keys()) + READ))
    return steps


def which_have_moved(tried: Tried[Changed]) -> Finding:
    """Passes if just those tasks are named that have moved."""
    seen: Seen = tried.seen
    return compare.first_failure(
        compare.equal(reply["moved"], sorted(moved), f"{what}: which moved")
        for (what, _, moved, _), reply in compare.side_by_side(_steps(seen.given), seen.value)
    )


def reads_few(tried: Tried[Changed]) -> Finding:
    """Passes if few tasks were read that neither change nor move."""
    seen: Seen = tried.seen
    return compare.first_failure(
        compare.at_most(len(reply["read"]), most, f"{what}; {len(moved)} moved; tasks read")
        for (what, _, moved, most), reply in compare.side_by_side(_steps(seen.given), seen.value)
    )


@of_function(
    base=Changed(),
    minutes=75,
    difficulty=5,
    rubric=(
        Criterion(
            "another duration",
            4,
            "What ends later makes others ready later, and holds up its device; both may change who is next.",
            vary=vary(graph=(ALONE, *CROWDS[1:], *TIES), number=range(1, 7)),
        ),
        Criterion(
            "another device",
            4,
            "The tasks behind it on the old device move up; on the new one it waits its turn.",
            vary=tuple(each for number in range(6) for each in both(change=DEVICE, number=number)),
        ),
        Criterion(
            "several changes",
            2,
            "All of one call together; then a call after a call, and back again.",
            vary=tuple(
                each for name in (CROWDS[0], CROWDS[2], *TIES) for each in both(change=SEVERAL, graph=name)
            ),
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
            "A task that is ready when it was, and whose device is free when it was, need not be looked at.",
            needs=("another duration", "another device", "several changes"),
            vary=vary(graph=(HUB, LANES)) + both(graph=LANES, change=DEVICE),
            how=reads_few,
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
    possible=lambda case: (
        case == Changed(graph=HUB)
        if case.graph == HUB
        else case.graph != LANES or (case.change != SEVERAL and not case.number)
    ),
    driver=drivers.resimulate,
    written=lambda given: "timeline, changes",
)
def resimulate(case: Changed, given: Arguments) -> Expected:
    """The timelines of the changed tasks, one change after another."""

    def judged(told: Any, what: str) -> Finding:
        return compare.first_failure(
            right_fields(changed, reply, FIELDS, f"the timeline of {what}: afterwards")
            for (what, changed, _, _), reply in compare.side_by_side(_steps(given), told)
        )

    return Expected(Checked(judged), {"timeline": ANYTHING, "changes": ANYTHING}, returned=None)
