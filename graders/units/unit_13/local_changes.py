"""Changes of task graphs from which little follows."""

from collections.abc import Callable

from graders.grading.kit import Rng
from graders.units.unit_13.graphs import Graph
from graders.units.unit_13.task_graphs import apart, hub, lanes

Change = dict[int, tuple[int, float]]
"""Task -> its new device and seconds."""


def local(rng: Rng) -> list[tuple[Graph, list[Change]]]:
    """Changes early and late that stay in their lanes, or lead to others; some from which nothing follows,
    also where many tasks stand behind, or wait for the one that changes.
    """
    early = 20 + rng.integer(0, 4)
    cases: list[tuple[Graph, list[Change]]] = [(apart(20), [{early: (0, 5.0)}, {early: (0, 2.0)}])]
    cases.append((hub(30), [{0: (0, 5.0)}, {0: (2, 2.0)}]))
    graph = lanes(rng, 12, 20)
    for place in (0, 10, 16):
        number = rng.integer(1, 11) * 20 + place
        device, seconds = graph.tasks[number]
        back = {number: (device, seconds)}
        cases.append((graph, [{number: (device, seconds + 1.0)}, back, {}, back]))
        cases.append(_elsewhere(rng, graph, number))
    return cases


def _elsewhere(rng: Rng, graph: Graph, number: int) -> tuple[Graph, list[Change]]:
    """Moves a task to the last device, which is idle then, to another lane, and back; then two at once."""
    device, seconds = graph.tasks[number]
    other = rng.choice([each for each in range(1, 12) if each != device])
    length = len(graph.tasks) // 13
    late = (other + 1) * length - 2
    return (
        graph,
        [
            {number: (graph.devices - 1, seconds)},
            {number: (other, seconds)},
            {number: (device, seconds)},
            {late: (other, graph.tasks[late][1] + 2.0), number: (device, seconds + 1.0)},
        ],
    )


def _lasting(rng: Rng, graph: Graph) -> list[Change]:
    """An early task that takes another time."""
    number = rng.integer(0, min(4, len(graph.tasks) - 1))
    device, seconds = graph.tasks[number]
    return [{number: (device, float(rng.choice([each for each in range(14) if each != seconds])))}]


def _moved(rng: Rng, graph: Graph, number: int) -> tuple[int, float]:
    device, seconds = graph.tasks[number]
    return (device + rng.integer(1, graph.devices - 1)) % graph.devices, float(rng.choice((seconds, 5.0)))


def _to_another_device(rng: Rng, graph: Graph) -> list[Change]:
    number = rng.integer(0, len(graph.tasks) - 1)
    return [{number: _moved(rng, graph, number)}]


def _several(rng: Rng, graph: Graph) -> list[Change]:
    """None, three at once, and all put back; one that is what it was; and three again."""
    picked = {rng.integer(0, len(graph.tasks) - 1) for _ in range(3)}
    three = {number: _moved(rng, graph, number) for number in picked}
    back = {number: graph.tasks[number] for number in picked}
    first = rng.integer(0, 2)
    return [{}, three, back, {first: graph.tasks[first]}, three]


CHANGES: dict[str, Callable[[Rng, Graph], list[Change]]] = {
    "another duration": _lasting,
    "another device": _to_another_device,
    "several changes": _several,
}
