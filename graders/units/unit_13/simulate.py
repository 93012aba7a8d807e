"""The grader of `simulate`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import timelines as drivers
from graders.units.unit_13.graphs import ALONE, CROWDS, GRAPHS, TIES, Graph, chain, right_fields

TIMES = ("ready", "end", "queues")


@dataclass(frozen=True, slots=True)
class Simulated:
    """graph: one of GRAPHS. number: which of several that are drawn."""

    graph: str = feature(ALONE, "{}")
    number: int = 0


def a_graph(rng: Rng, case: Simulated) -> Arguments:
    """Its tasks, edges and devices."""
    graph = GRAPHS[case.graph](rng)
    return [graph.tasks, graph.edges, graph.devices]


def lists(tried: Tried[Simulated]) -> Finding:
    """Passes if the timeline's lists are right, and its own, and arguments stay as they are."""
    seen: Seen = tried.seen
    own = Finding(seen.value["own"] is True, "timeline.tasks is the very list that was given.")
    fields = right_fields(Graph(*seen.given), seen.value, ("tasks", "before", "after"), seen.what)
    return compare.first_failure((kept(tried), own, fields))


def a_long_chain(answer: Answer, rng: Rng) -> Finding:
    """Passes if 1,200 tasks, each of which waits for the one before, are simulated."""
    graph = chain(1200)
    told = answer.call(drivers.simulate, [[graph.tasks, graph.edges, graph.devices]])
    return compare.first_failure(
        right_fields(graph, called.value, TIMES, "1,200 tasks in a row")
        for called, _ in compare.side_by_side(told, [graph])
    )


@of_function(
    base=Simulated(),
    minutes=35,
    difficulty=3,
    rubric=(
        Criterion(
            "waits for all before it",
            2,
            "A task is ready when the last of those before it has ended.",
            vary=vary(number=(1, 2)),
        ),
        Criterion(
            "one at a time, in the order of readiness",
            3,
            "A device takes the task that became ready first, not the one with the lowest number.",
            vary=vary(graph=CROWDS) + both(graph=CROWDS[0], number=3),
        ),
        Criterion(
            "ready at the same moment",
            1,
            "Then the lower number goes first, also where a task takes no time.",
            vary=both(graph=TIES[0], number=3)
            + both(graph=TIES[0], number=4)
            + both(graph=TIES[1], number=3)
            + both(graph=TIES[1], number=4),
        ),
        Criterion(
            "a long chain",
            1,
            "Of 1,200 tasks in a row each waits for the one before. Do not recurse.",
            ask=a_long_chain,
        ),
        Criterion(
            "what waits for what", 1, "before, after and tasks are lists of the timeline's own.", how=lists
        ),
    ),
    hints=(
        "Which task can be settled first, so that nothing that comes later can change when it runs?",
        "Keep the tasks whose waiting is over in a heap, by when they became ready and by number. What do "
        "you learn when one of them is taken out?",
    ),
    arguments=a_graph,
    driver=drivers.simulate,
    written=lambda given: str(Graph(*given)),
)
def simulate(case: Simulated, given: Arguments) -> Expected:
    """When each task runs, and in which order each device runs its tasks."""
    graph = Graph(*given)
    right = Checked(lambda told, what: right_fields(graph, told, TIMES, what))
    return Expected(right, dict(zip(("tasks", "edges", "devices"), given, strict=True)), returned=None)
