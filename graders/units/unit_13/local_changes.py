"""Changes of task graphs from which little follows."""

from graders.grading.kit import Rng
from graders.units.unit_13.task_graphs import Graph, apart, hub, lanes

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
