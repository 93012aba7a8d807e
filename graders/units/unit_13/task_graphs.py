"""Task graphs that are drawn, and when their tasks run."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from graders.grading.kit import Rng
from graders.units.unit_13.graphs import Graph

Item = TypeVar("Item")


def none_at_all(rng: Rng) -> Graph:
    """No task."""
    return Graph([], [], rng.integer(1, 3))


def one_device_each(rng: Rng, count: int) -> Graph:
    """Tasks none of which waits for its device, each after up to three others."""
    tasks = [(number, float(rng.integer(1, 9))) for number in range(count)]
    return Graph(tasks, _edges(rng, count, 3), count)


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


def overtaken(scale: int) -> Graph:
    """While its device is busy task 4 becomes ready before task 3."""
    tasks = [(0, 6.0 * scale), (1, 3.0 * scale), (2, 1.0 * scale), (0, 2.0), (0, 1.0)]
    return Graph(tasks, [(1, 3), (2, 4)], 3)


def settled() -> Graph:
    """Task 2 would end at the same moment on device 1, and task 4 would have to wait for it there."""
    tasks = [(2, 3.0), (3, 4.0), (0, 2.0), (1, 1.0), (1, 3.0)]
    return Graph(tasks, [(0, 2), (1, 4)], 4)


def returning() -> list[tuple[Graph, dict[int, tuple[int, float]]]]:
    """Graphs and changes. In each a task moves up at first, and then has to make room for one that became
    ready before: task 1, 2, 6, and 3.
    """
    first = Graph([(0, 2.0), (1, 3.0), (1, 4.0), (1, 3.0)], [(0, 1), (2, 3)], 2)
    second = Graph([(0, 4.0), (0, 2.0), (0, 3.0), (0, 4.0)], [(0, 2), (1, 3)], 2)
    tasks = [(0, 3.0), (0, 2.0), (0, 3.0), (0, 4.0), (1, 2.0), (0, 2.0), (0, 3.0)]
    third = Graph(tasks, [(0, 1), (0, 4), (1, 4), (2, 5), (3, 6), (4, 5)], 2)
    tasks = [(1, 3.0), (1, 2.0), (0, 1.0), (1, 3.0), (1, 3.0), (0, 0.0)]
    fourth = Graph(tasks, [(0, 3), (1, 4), (2, 3)], 2)
    return [
        (first, {2: (1, 1.0)}),
        (second, {0: (1, 4.0)}),
        (third, {1: (1, 2.0)}),
        (fourth, {0: (0, 2.0)}),
    ]


def by_a_digit() -> Graph:
    """Tasks 2 and 5 end at 0.6 s, but task 2 by the last digit later. Task 6 waits for both, 8 for one, and
    9 for the other, so that 9 comes first.
    """
    tasks = [(0, 0.1), (0, 0.2), (0, 0.3), (1, 0.3), (1, 0.2), (1, 0.1), (2, 1.0), (2, 0.5)]
    return Graph([*tasks, (3, 1.0), (3, 2.0)], [(2, 6), (5, 6), (6, 7), (2, 8), (5, 9)], 4)


def exchanged() -> Graph:
    """With tasks 0 and 1 exchanged tasks 2 and 3 run when they did."""
    return Graph([(0, 3.0), (0, 5.0), (0, 1.0), (1, 2.0)], [(2, 3)], 2)


def hub(count: int) -> Graph:
    """Task 0 and task 1, which takes longer, let in many others, each on a device of its own."""
    tasks = [(0, 2.0), (1, 10.0), *((number + 2, 1.0) for number in range(count))]
    return Graph(tasks, [(first, number + 2) for number in range(count) for first in (0, 1)], count + 2)


def apart(count: int) -> Graph:
    """On device 0 a task of 2 s every 10 s, each let in by one on a device of its own."""
    let_in = [(number + 1, 10.0 * number) for number in range(count)]
    return Graph([*let_in, *[(0, 2.0)] * count], [(each, count + each) for each in range(count)], count + 1)


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


def in_no_time() -> list[Graph]:
    """A task that takes no time lets in another one, whose number is lower than that of one that waits."""
    return [
        Graph([(0, 0.0), (1, 0.0), (1, 0.0)], [(0, 1)], 2),
        Graph([(1, 2.0), (1, 0.0), (0, 0.0), (0, 3.0), (1, 0.0)], [(0, 1), (1, 2), (0, 3), (2, 4)], 2),
    ]


def chain(count: int) -> Graph:
    """Each after the one before, on three devices in turn."""
    tasks = [(number % 3, 1.0) for number in range(count)]
    return Graph(tasks, [(number, number + 1) for number in range(count - 1)], 3)


def lanes(rng: Rng, count: int, length: int) -> Graph:
    """Chains, a device each, that have nothing to do with each other, and at the end one that gathers them.

    The first one takes so long that those behind it wait for no other.
    """
    tasks: list[tuple[int, float]] = []
    edges: list[tuple[int, int]] = []
    for lane in range(count + 1):
        least, most = (15, 30) if lane == 0 else (4, 9)
        first = len(tasks)
        tasks += [(lane, float(rng.integer(least, most))) for _ in range(length)]
        edges += [(number, number + 1) for number in range(first, first + length - 1)]
    edges += [((lane + 1) * length - 1, count * length) for lane in range(count)]
    return Graph(tasks, edges, count + 1)


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


GRAPHS: dict[str, Callable[[Rng], Graph]] = {
    "each task on a device of its own": lambda rng: one_device_each(rng, 9),
    "more tasks than devices": lambda rng: crowded(rng, 14, 3),
    "one device": lambda rng: crowded(rng, 6, 1),
    "two devices": lambda rng: crowded(rng, 9, 2),
    "a task that overtakes": lambda rng: overtaken(rng.integer(1, 9)),
    "tasks ready at one moment": together,
    "tasks that take no time": dots,
    "what takes no time lets in the next": lambda rng: in_no_time()[0],
    "and one with a lower number": lambda rng: in_no_time()[1],
    "moments that differ in the last digit": lambda rng: by_a_digit(),
    "no task": none_at_all,
}
"""What is drawn, by its name."""
