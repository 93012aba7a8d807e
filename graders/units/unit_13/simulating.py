"""Unit 13, a whole simulation: when each task of a drawn graph runs."""

from collections.abc import Iterator
from typing import Any

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import timelines
from graders.units.unit_13.drivers.timelines import TimelineReply
from graders.units.unit_13.task_graphs import (
    Graph,
    by_a_digit,
    chain,
    crowded,
    dots,
    in_no_time,
    none_at_all,
    one_device_each,
    overtaken,
    together,
)


@exercise(
    minutes=35,
    difficulty=3,
    rubric=(
        Criterion(
            "waits for all before it", 2, "A task is ready when the last of those before it has ended."
        ),
        Criterion(
            "one at a time, in the order of readiness",
            3,
            "A device takes the task that became ready first, not the one with the lowest number, and not "
            "the one that was found first.",
        ),
        Criterion(
            "ready at the same moment",
            1,
            "Then the lower number goes first, also where a task takes no time. Moments that differ in the "
            "last digit are not the same.",
            needs=("waits for all before it", "one at a time, in the order of readiness"),
        ),
        Criterion(
            "a long chain", 1, "Of 3,000 tasks in a row each waits for the one before. Do not recurse."
        ),
        Criterion("what waits for what", 1, "before, after and tasks are lists of the timeline's own."),
    ),
    hints=(
        "Which task can be settled first, so that nothing that comes later can change when it runs?",
        "Keep the tasks whose waiting is over in a heap, by when they became ready and by number. What do "
        "you learn when one of them is taken out?",
    ),
)
def simulate(answer: Answer, rng: Rng) -> Findings:
    """Graphs without a crowd, with one, with tasks that become ready together; a chain; the lists."""
    alone = [one_device_each(rng, tasks) for tasks in (7, 12)]
    crowds = [overtaken(rng.integer(1, 9))]
    crowds += [crowded(rng, tasks, devices) for tasks, devices in ((6, 1), (9, 2), (14, 3), (30, 3))]
    ties = [together(rng), *dots(rng), *in_no_time(), by_a_digit(), *(together(rng) for _ in range(3))]
    for name, graphs in (
        ("waits for all before it", [*alone, none_at_all(rng), *(each.in_units(0.125) for each in alone)]),
        ("one at a time, in the order of readiness", [*crowds, *(each.in_units(0.1) for each in crowds)]),
        ("ready at the same moment", ties),
        ("a long chain", [chain(3000)]),
    ):
        yield name, compare.first_failure(_right(answer, graph) for graph in graphs)
    yield "what waits for what", compare.first_failure(_lists(answer, each) for each in [*alone, *crowds])


def _asked(answer: Answer, graph: Graph) -> TimelineReply:
    return answer.call(timelines.simulate, list(graph.tasks), list(graph.edges), graph.devices)


def _right(answer: Answer, graph: Graph) -> Finding:
    return compare.first_failure(wrong_times(graph, _asked(answer, graph), "ready", "end", "queues"))


def wrong_times(graph: Graph, reply: TimelineReply, *names: str) -> Iterator[Finding]:
    """Whether these fields are those of the graph's timeline."""
    expected = graph.timeline()
    for name in names:
        seen, wanted = getattr(reply, name), getattr(expected, name)
        if _equal(seen, wanted):
            yield Finding(True, f"{graph}: {name} is {compare.shown(wanted)}.")
        elif type(seen) is list and len(seen) == len(wanted):
            first = next(place for place in range(len(seen)) if not _equal(seen[place], wanted[place]))
            text = f"{name}[{first}] is {compare.shown(seen[first])}; expected {wanted[first]}"
            yield Finding(False, f"{graph}: {text}.")
        else:
            yield Finding(False, f"{graph}: {name} is {compare.shown(seen)}; expected {wanted}.")


def _equal(seen: Any, wanted: Any) -> bool:
    """Equal in every part, where 2 is 2.0."""
    if isinstance(wanted, list):
        return type(seen) is list and len(seen) == len(wanted) and all(map(_equal, seen, wanted))
    return type(seen) in (int, float) and compare.as_float(seen) == wanted


def _lists(answer: Answer, graph: Graph) -> Finding:
    """Whether the lists of neighbours are right, in any order, and the arguments what they were."""
    reply, expected = _asked(answer, graph), graph.timeline()
    if reply.left != {"tasks": graph.tasks, "edges": graph.edges, "own": True}:
        text = "an argument was changed, or timeline.tasks is the very list that was given"
        return Finding(False, f"{graph}: {text}.")
    if reply.tasks != graph.tasks:
        return Finding(False, f"{graph}: tasks is {compare.shown(reply.tasks)}; expected those given.")
    for name in ("before", "after"):
        seen, wanted = getattr(reply, name), getattr(expected, name)
        if not (type(seen) is list and all(type(each) is list for each in seen)):
            return Finding(False, f"{graph}: {name} is {compare.shown(seen)}; expected {wanted}.")
        if not _equal([_in_order(each) for each in seen], wanted):
            return Finding(False, f"{graph}: {name} is {compare.shown(seen)}; expected {wanted}.")
    return Finding(True, f"{graph}: all times are right.")


def _in_order(numbers: list[Any]) -> list[Any]:
    return sorted(numbers) if all(type(number) is int for number in numbers) else numbers
