"""Task graphs that are drawn, and when their tasks run."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from course_lib.planner.timelines import Task, Timeline
from graders.grading.expected import same
from graders.grading.kit import Finding, Rng, compare

Item = TypeVar("Item")


@dataclass(frozen=True)
class Graph:
    """tasks: device and seconds of each. edges: (before, after)."""

    tasks: list[tuple[int, float]]
    edges: list[tuple[int, int]]
    devices: int

    def __str__(self) -> str:
        """The graph as it can be typed in, unless it is long."""
        if len(self.tasks) > 40:
            return f"{len(self.tasks)} tasks on {self.devices} devices"
        return f"Tasks (device, seconds) {self.tasks}, edges {self.edges}, {self.devices} devices"

    @cached_property
    def timeline(self) -> Timeline:
        """When all runs: of the tasks that nothing before them holds back the earliest one is settled."""
        count = len(self.tasks)
        before: list[list[int]] = [[] for _ in range(count)]
        after: list[list[int]] = [[] for _ in range(count)]
        for first, second in sorted(self.edges):
            before[second].append(first)
            after[first].append(second)
        ready, end = [0.0] * count, [0.0] * count
        queues: list[list[int]] = [[] for _ in range(self.devices)]
        free = [0.0] * self.devices
        missing = [len(each) for each in before]
        heap = [(0.0, number) for number in range(count) if not missing[number]]
        heapq.heapify(heap)
        while heap:
            _, number = heapq.heappop(heap)
            device, seconds = self.tasks[number]
            queues[device].append(number)
            end[number] = free[device] = max(ready[number], free[device]) + seconds
            for later in after[number]:
                ready[later] = max(ready[later], end[number])
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(heap, (ready[later], later))
        return Timeline([Task(*task) for task in self.tasks], before, after, ready, end, queues)


def right_fields(graph: Graph, told: Any, names: tuple[str, ...], what: str) -> Finding:
    """Passes if these fields are those of the graph's timeline, to the last digit."""
    for name in names:
        wanted = graph.tasks if name == "tasks" else getattr(graph.timeline, name)
        # Equal lists need no look at each item.
        if not compare.same(told[name], wanted):
            return same(told[name], wanted, f"{name} of {what}", 0.0)
    return Finding(True, f"{', '.join(names)} of {what} are right.")


def one_device_each(rng: Rng) -> Graph:
    """Tasks none of which waits for its device, each after up to three others."""
    tasks = [(number, float(rng.integer(1, 9))) for number in range(9)]
    return Graph(tasks, _edges(rng, 9, 3), 9)


def crowded(rng: Rng, count: int, devices: int) -> Graph:
    """Tasks that crowd on some devices, each let in by another one, in no order; the last device is idle.

    No two tasks become ready for one device at the same moment.
    """
    while True:
        let_in = [
            (devices + number, float(seconds))
            for number, seconds in enumerate(rng.integers(1, 20 * count, count).tolist())
        ]
        places, lasting = (rng.integers(*limits, count).tolist() for limits in ((0, devices - 1), (1, 60)))
        tasks = list(zip(places, map(float, lasting), strict=True))
        edges = {(first, second + count) for first, second in enumerate(_shuffled(rng, range(count)))}
        edges |= {(a + count, b + count) for a, b in _edges(rng, count, 1)}
        graph = Graph([*let_in, *tasks], _shuffled(rng, sorted(edges)), devices + count + 1)
        timeline = graph.timeline
        moments = [[timeline.ready[number] for number in queue] for queue in timeline.queues]
        if all(len(set(each)) == len(each) for each in moments):
            return graph


def together(rng: Rng) -> Graph:
    """Many tasks that become ready at one moment, on two devices."""
    roots = [(0, 2.0), (1, 2.0)]
    rest = [(rng.integer(0, 1), float(rng.integer(1, 2))) for _ in range(8)]
    edges = [(rng.integer(0, 1), number) for number in range(2, 8)]
    edges += [(rng.integer(2, 7), number) for number in (8, 9)]
    return Graph([*roots, *rest], _shuffled(rng, edges), 2)


def dots(rng: Rng) -> Graph:
    """Tasks that take no time, and others that become ready at the same moment."""
    tasks = [(rng.integer(0, 1), float(rng.choice((0, 0, 1, 2)))) for _ in range(11)]
    return Graph(tasks, _edges(rng, 11, 2), 2)


def chain(count: int) -> Graph:
    """Each after the one before, on three devices in turn."""
    tasks = [(number % 3, 1.0) for number in range(count)]
    return Graph(tasks, [(number, number + 1) for number in range(count - 1)], 3)


def hub(count: int) -> Graph:
    """Task 0 and task 1, which takes longer, let in many others, each on a device of its own."""
    tasks = [(0, 2.0), (1, 10.0), *((number + 2, 1.0) for number in range(count))]
    return Graph(tasks, [(first, number + 2) for number in range(count) for first in (0, 1)], count + 2)


def lanes(rng: Rng) -> Graph:
    """Chains of twenty, a device each, that have nothing to do with each other; the first takes longest."""
    count, length = 7, 20
    tasks = [
        (lane, float(rng.integer(4, 9) + 9 * (lane == 0))) for lane in range(count) for _ in range(length)
    ]
    edges = [(number, number + 1) for number in range(count * length - 1) if (number + 1) % length]
    return Graph(tasks, edges, count)


def _edges(rng: Rng, count: int, most: int) -> list[tuple[int, int]]:
    """Each task after up to so many others, in no order."""
    edges = {
        (rng.integer(0, number - 1), number)
        for number in range(1, count)
        for _ in range(rng.integer(0, most))
    }
    return _shuffled(rng, sorted(edges))


def _shuffled(rng: Rng, items: Sequence[Item]) -> list[Item]:
    return [items[place] for place in rng.integers(0, 10**9, len(items)).argsort().tolist()]


ALONE, *CROWDS = "each task on a device of its own", "more tasks than devices", "one device", "two devices"
TIES = "tasks ready at one moment", "tasks that take no time"
LANES = "chains that have nothing to do with each other"
GRAPHS: dict[str, Callable[[Rng], Graph]] = {
    ALONE: one_device_each,
    CROWDS[0]: lambda rng: crowded(rng, 14, 3),
    CROWDS[1]: lambda rng: crowded(rng, 6, 1),
    CROWDS[2]: lambda rng: crowded(rng, 9, 2),
    TIES[0]: together,
    TIES[1]: dots,
    LANES: lanes,
}
"""What is drawn, by its name."""
