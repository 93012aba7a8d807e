"""Unit 13, a simulation that is told what changed: the same times, and few tasks looked at."""

from collections.abc import Iterator
from dataclasses import dataclass

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import timelines
from graders.units.unit_13.drivers.timelines import ChangeReply
from graders.units.unit_13.simulating import wrong_times
from graders.units.unit_13.task_graphs import (
    Graph,
    apart,
    by_a_digit,
    crowded,
    dots,
    exchanged,
    hub,
    in_no_time,
    lanes,
    overtaken,
    returning,
    settled,
    together,
)

Change = dict[int, tuple[int, float]]
"""Task -> its new device and seconds."""

Step = tuple[Graph, Change, Graph, ChangeReply]
"""The graph before, a change, the graph afterwards, and the reply."""

TIMES = ("another duration", "another device", "several changes")
READ = 4
"""How many tasks may be read for each that changes or moves, and how many besides."""


@exercise(
    minutes=75,
    difficulty=5,
    rubric=(
        Criterion(
            "another duration",
            4,
            "What ends later makes others ready later, and holds up its device; both may change who is next. "
            "Times count to the last digit.",
        ),
        Criterion(
            "another device",
            4,
            "The tasks behind it on the old device move up; on the new one it waits its turn.",
        ),
        Criterion(
            "several changes",
            2,
            "All of one call together; then a call after a call, and back again.",
            needs=("another duration", "another device"),
        ),
        Criterion(
            "which have moved",
            2,
            "Compare with what stood there before the call, at its end.",
            needs=TIMES,
        ),
        Criterion(
            "reads what it needs",
            4,
            "A task whose reasons to move are gone need not be looked at, nor one that waits for another "
            "and is ready when it was.",
            needs=TIMES,
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
)
def resimulate(answer: Answer, rng: Rng) -> Findings:
    """Drawn graphs and changes of each kind; then lanes that have little to do with each other."""
    graphs = [
        *(overtaken(rng.integer(1, 9)) for _ in range(2)),
        *(crowded(rng, tasks, devices) for tasks, devices in ((6, 1), (9, 2), (14, 3), (30, 3), (30, 4))),
        *(together(rng) for _ in range(3)),
        *(crowded(rng, tasks, 2).in_units(0.1) for tasks in (9, 14)),
        *dots(rng),
        *in_no_time(),
    ]
    durations = [
        Case(graph, [{each: _lasting(rng, graph, each)}]) for graph in graphs for each in _some(rng, graph)
    ]
    moves = [
        Case(graph, [{each: _moved(rng, graph, each)}]) for graph in graphs for each in _some(rng, graph)
    ]
    durations.append(Case(by_a_digit(), [{0: (0, 0.0)}, {0: (0, 0.1)}]))
    back = [Case(graph, [change]) for graph, change in returning()]
    durations.append(back[0])
    moves += back[1:]
    moves.append(Case(settled(), [{2: (1, 2.0)}, {2: (0, 2.0)}]))
    moves.append(Case(Graph([(0, 3.0), (0, 2.0), (0, 1.0)], [], 2), [{0: (1, 3.0)}]))
    several = [_several(rng, graph) for graph in graphs]
    several.append(Case(exchanged(), [{0: (0, 5.0), 1: (0, 3.0)}]))
    told: list[Finding] = []
    yield "another duration", compare.first_failure(_judged(answer, durations, told))
    yield "another device", compare.first_failure(_judged(answer, moves, told))
    yield "several changes", compare.first_failure(_judged(answer, several, told))
    yield "which have moved", compare.first_failure(told)
    yield "reads what it needs", compare.first_failure(case.reads(answer) for case in _local(rng))


@dataclass(frozen=True, slots=True)
class Case:
    """A graph and changes, each of what the one before has left."""

    graph: Graph
    changes: list[Change]

    def asked(self, answer: Answer) -> list[ChangeReply]:
        """A reply for each change."""
        timeline = self.graph.timeline()
        fields = {
            "tasks": list(self.graph.tasks),
            **{name: getattr(timeline, name) for name in ("before", "after", "ready", "end", "queues")},
        }
        told = [{str(number): task for number, task in change.items()} for change in self.changes]
        return answer.call(timelines.resimulate, fields, told)

    def steps(self, answer: Answer) -> list[Step]:
        """For each change, one after another."""
        found, graph = [], self.graph
        for change, reply in compare.side_by_side(self.changes, self.asked(answer)):
            found.append((graph, change, graph.changed(change), reply))
            graph = graph.changed(change)
        return found

    def reads(self, answer: Answer) -> Finding:
        """Whether few tasks were read that neither change nor move."""
        return compare.first_failure(
            compare.at_most(
                len(reply.read),
                READ * len(change.keys() | moved) + READ,
                f"{graph}; changes {change}; {compare.counted(len(moved), 'task')} moved; tasks read",
            )
            for graph, change, changed, reply in self.steps(answer)
            for moved in (_moving(graph, changed),)
        )


def _judged(answer: Answer, cases: list[Case], told: list[Finding]) -> Iterator[Finding]:
    """Whether each change leads to the timeline of the changed graph, and nothing else was changed. What is
    found about the tasks that are said to have moved is added to told.
    """
    for case in cases:
        steps = case.steps(answer)
        told += (
            compare.equal(
                reply.result, sorted(_moving(graph, changed)), f"{graph}; changes {change}: which moved"
            )
            for graph, change, changed, reply in steps
        )
        for graph, change, changed, reply in steps:
            for finding in wrong_times(changed, reply.timeline, "ready", "end", "queues"):
                yield _after(graph, change, finding)
            yield _after(graph, change, _kept(changed, change, reply))


def _after(graph: Graph, change: Change, finding: Finding) -> Finding:
    return Finding(finding.passed, f"{graph}; changes {change}. Afterwards: {finding.seen}")


def _kept(changed: Graph, change: Change, reply: ChangeReply) -> Finding:
    """Whether tasks are the new ones, and neighbours and changes what they were."""
    timeline, expected = reply.timeline, changed.timeline()
    if timeline.tasks != changed.tasks:
        return Finding(False, f"tasks is {compare.shown(timeline.tasks)}; expected {changed.tasks}.")
    kept = {
        "before": expected.before,
        "after": expected.after,
        "left": {str(k): v for k, v in change.items()},
    }
    for name, wanted in kept.items():
        if getattr(timeline, name) != wanted:
            what = "changes" if name == "left" else name
            return Finding(False, f"{what} is {compare.shown(getattr(timeline, name))}; expected {wanted}.")
    return Finding(True, "all else is as it was.")


def _moving(graph: Graph, changed: Graph) -> set[int]:
    """The tasks that are ready, or end, at another moment than before."""
    old, new = graph.timeline(), changed.timeline()
    return {
        number
        for number in range(len(graph.tasks))
        if (old.ready[number], old.end[number]) != (new.ready[number], new.end[number])
    }


def _some(rng: Rng, graph: Graph) -> list[int]:
    """Two tasks, of which the first is an early one."""
    return [rng.integer(0, 2), rng.integer(0, len(graph.tasks) - 1)]


def _lasting(rng: Rng, graph: Graph, number: int) -> tuple[int, float]:
    device, seconds = graph.tasks[number]
    return device, float(rng.choice([each for each in range(14) if each != seconds]))


def _moved(rng: Rng, graph: Graph, number: int) -> tuple[int, float]:
    device, seconds = graph.tasks[number]
    return (device + rng.integer(1, graph.devices - 1)) % graph.devices, float(rng.choice((seconds, 5.0)))


def _several(rng: Rng, graph: Graph) -> Case:
    """None, three at once, one that is what it was, and all put back."""
    picked = {rng.integer(0, len(graph.tasks) - 1) for _ in range(3)}
    three = {number: _moved(rng, graph, number) for number in picked}
    back = {number: graph.tasks[number] for number in picked}
    first = rng.integer(0, 2)
    return Case(graph, [{}, three, back, {first: graph.tasks[first]}, three])


def _local(rng: Rng) -> list[Case]:
    """Changes early and late that stay in their lanes, or lead to others; some from which nothing follows,
    also where many tasks stand behind, or wait for the one that changes.
    """
    early = 20 + rng.integer(0, 4)
    cases = [Case(apart(20), [{early: (0, 5.0)}, {early: (0, 2.0)}])]
    cases.append(Case(hub(30), [{0: (0, 5.0)}, {0: (2, 2.0)}]))
    for length in (20, 35):
        graph = lanes(rng, 12, length)
        for place in (0, length // 2, length - 4):
            number = rng.integer(1, 11) * length + place
            device, seconds = graph.tasks[number]
            back = {number: (device, seconds)}
            cases.append(Case(graph, [{number: (device, seconds + 1.0)}, back, {}, back]))
            if length == 20:  # the shorter ones are enough here, and cheaper
                cases.append(_elsewhere(rng, graph, number))
    return cases


def _elsewhere(rng: Rng, graph: Graph, number: int) -> Case:
    """Moves a task to the last device, which is idle then, to another lane, and back; then two at once."""
    device, seconds = graph.tasks[number]
    other = rng.choice([each for each in range(1, 12) if each != device])
    length = len(graph.tasks) // 13
    late = (other + 1) * length - 2
    return Case(
        graph,
        [
            {number: (graph.devices - 1, seconds)},
            {number: (other, seconds)},
            {number: (device, seconds)},
            {late: (other, graph.tasks[late][1] + 2.0), number: (device, seconds + 1.0)},
        ],
    )
