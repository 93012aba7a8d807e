"""The grader of `simulate`."""

from dataclasses import dataclass
from functools import partial

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import timelines as drivers
from graders.units.unit_13.graphs import Graph, wrong_lists, wrong_times
from graders.units.unit_13.task_graphs import GRAPHS, chain

ALONE, *CROWDS = tuple(GRAPHS)[:5]
TIES = tuple(GRAPHS)[5:10]


@dataclass(frozen=True, slots=True)
class Simulated:
    """graph: one of GRAPHS. unit: of seconds. number: which of several that are drawn."""

    graph: str = feature(ALONE, "{}")
    unit: float = feature(1.0, lambda unit: f"in units of {unit:g} s" if unit != 1 else "")
    number: int = 0


def a_graph(rng: Rng, case: Simulated) -> Arguments:
    """Its tasks, edges and devices."""
    graph = GRAPHS[case.graph](rng).in_units(case.unit)
    return [graph.tasks, graph.edges, graph.devices]


def lists(tried: Tried[Simulated]) -> Finding:
    """Passes if the timeline's lists are right, and its own, and arguments stay as they are."""
    seen: Seen = tried.seen
    own = Finding(seen.value["own"] is True, "timeline.tasks is the very list that was given.")
    return compare.first_failure((kept(tried), own, wrong_lists(Graph(*seen.given), seen.value, seen.what)))


def a_long_chain(answer: Answer, rng: Rng) -> Finding:
    """Passes if 1,200 tasks, each of which waits for the one before, are simulated."""
    graph = chain(1200)
    told = answer.call(drivers.simulate, [[graph.tasks, graph.edges, graph.devices]])
    return compare.first_failure(
        wrong_times(graph, called.value, str(graph)) for called, _ in compare.side_by_side(told, [graph])
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
            vary=vary(number=(1, 2), unit=(0.125,), graph=("no task",)),
        ),
        Criterion(
            "one at a time, in the order of readiness",
            3,
            "A device takes the task that became ready first, not the one with the lowest number, and not "
            "the one that was found first.",
            vary=vary(graph=CROWDS) + both(graph=CROWDS[0], number=3) + both(graph=CROWDS[0], unit=0.1),
        ),
        Criterion(
            "ready at the same moment",
            1,
            "Then the lower number goes first, also where a task takes no time. Moments that differ in the "
            "last digit are not the same.",
            vary=vary(graph=TIES)
            + tuple(
                each for name in TIES[:2] for number in (3, 4) for each in both(graph=name, number=number)
            ),
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
    right = Checked(partial(wrong_times, Graph(*given)))
    return Expected(right, dict(zip(("tasks", "edges", "devices"), given, strict=True)), returned=None)
