"""A task graph, and when its tasks run."""

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from course_lib.planner.timelines import Task, Timeline
from graders.grading.expected import same
from graders.grading.kit import Finding, compare


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

    def changed(self, change: dict[int, tuple[int, float]]) -> "Graph":
        """The graph with other tasks in some places."""
        tasks = [change.get(number, task) for number, task in enumerate(self.tasks)]
        return Graph(tasks, self.edges, self.devices)

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
