"""Unit 09, the open task: stage, micro-batches and ways within the memory, scored by time."""

from itertools import product
from typing import Any

from course_lib.training.memory_plan import Layer, Plan, Task, plan_cost
from course_lib.training.out_of_core import DoesNotFit, Way
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_09 import drivers

WAYS = tuple(map(str, Way))


@exercise(
    minutes=60,
    difficulty=5,
    rubric=(
        Criterion(
            "fits",
            3,
            "A high stage, many micro-batches, and everything computed again need least memory.",
        ),
        Criterion(
            "no slower than a single lever",
            2,
            "The best with all kept, the best with all computed again, and the best with all swapped, over "
            "all stages and micro-batches.",
        ),
        Criterion("within a fifth of the best", 3, "Which layers are worth their memory, and which are not?"),
        Criterion(
            "within 5 % of the best",
            2,
            "There are few stages and few divisors: what is best for the layers, for each of them?",
        ),
    ),
    hints=(
        "What does a stage save, and what does it cost? How does that change with more micro-batches?",
        "If stage and micro-batches are given, you know how many bytes are left for activations, what each "
        "layer keeps, and what it takes. Have you solved that problem before?",
    ),
)
def plan_memory(answer: Answer, rng: Rng) -> Findings:
    """Drawn tasks in which the best plan is of several kinds."""
    tasks = _tasks(rng)
    planned = [_planned(answer, task) for task in tasks]
    pairs = list(zip(tasks, planned, strict=True))
    yield "fits", compare.first_failure(_cost(plan, task)[0] for task, plan in pairs)
    seconds = [_cost(plan, task)[1] for task, plan in pairs]
    everything = [_all_costs(task) for task in tasks]
    simple = [
        min(cost for (_, _, ways), cost in costs.items() if len(set(ways)) == 1) for costs in everything
    ]
    best = [min(costs.values()) for costs in everything]
    for name, limits in (
        ("no slower than a single lever", simple),
        ("within a fifth of the best", [1.2 * seconds for seconds in best]),
        ("within 5 % of the best", [1.05 * seconds for seconds in best]),
    ):
        yield (
            name,
            compare.first_failure(
                Finding(
                    taken <= limit * (1 + 1e-9),
                    f"{_shown(task)}: with {_in_words(plan)} a step takes {taken:.4g} s; "
                    f"at most {limit:.4g} s.",
                )
                for (task, plan), taken, limit in zip(pairs, seconds, limits, strict=True)
            ),
        )


def _planned(answer: Answer, task: Task) -> Plan:
    layers = [[layer.parameters, layer.activations, layer.seconds] for layer in task.layers]
    names = ("samples", "ranks", "memory", "network", "host", "start")
    rest: dict[str, Any] = {name: getattr(task, name) for name in names}
    reply = answer.call(drivers.memory_planned, layers, {**rest, "states": list(task.states)})
    return Plan(reply.stage, reply.micro_batches, reply.ways)


def _cost(plan: Plan, task: Task) -> tuple[Finding, float]:
    """Whether the plan fits, and its seconds."""
    if any(way not in WAYS for way in plan.ways):
        return Finding(False, f"The ways are keep, swap and recompute; got {compare.shown(plan.ways)}."), 0.0
    try:
        cost = plan_cost(plan, task)
    except ValueError as error:
        return Finding(False, f"{_shown(task)}: with {_in_words(plan)}: {error}"), 0.0
    return Finding(True, f"At most {cost.peak:.3g} bytes of activations."), cost.seconds


def _in_words(plan: Plan) -> str:
    return f"stage {plan.stage}, {plan.micro_batches} micro-batches, {list(plan.ways)}"


def _shown(task: Task) -> str:
    """The task, as it can be typed in."""
    return compare.shown(task, 700)


def _all_costs(task: Task) -> dict[tuple[int, int, tuple[str, ...]], float]:
    """The seconds of every plan that fits."""
    costs = {}
    divisors = [m for m in range(1, task.samples + 1) if task.samples % m == 0]
    for stage, micro_batches, ways in product(range(4), divisors, product(WAYS, repeat=len(task.layers))):
        try:
            costs[stage, micro_batches, ways] = plan_cost(Plan(stage, micro_batches, ways), task).seconds
        except DoesNotFit:
            continue
    return costs


def _tasks(rng: Rng) -> list[Task]:
    """Tasks whose best plan is clearly better than any with one way for all, if possible of two stages."""
    found: list[Task] = []
    stages: set[int] = set()
    for attempt in range(40):
        task = _drawn(rng)
        costs = _all_costs(task)
        simple = [cost for (_, _, ways), cost in costs.items() if len(set(ways)) == 1]
        if not simple:
            continue
        best = min(costs, key=costs.__getitem__)
        if min(simple) > 1.06 * costs[best] and (best[0] not in stages or attempt > 8):
            stages.add(best[0])
            found.append(task)
        if len(found) == 2:
            break
    return found


def _drawn(rng: Rng) -> Task:
    """Three layers on a few ranks, with more activations than fit."""
    layers = tuple(
        Layer(rng.integer(1, 6) * 10**8, rng.integer(1, 9) * 1e8, rng.integer(2, 9) * 1e-2) for _ in range(3)
    )
    ranks = rng.integer(2, 8)
    parameters = sum(layer.parameters for layer in layers)
    states = (
        16.0 * parameters,
        (4 + 12 / ranks) * parameters,
        (2 + 14 / ranks) * parameters,
        16 * parameters / ranks,
    )
    samples = rng.choice((2, 4, 6))
    activations = sum(layer.activations for layer in layers) * samples
    memory = states[rng.integer(0, 3)] + 2.4e9 + rng.integer(10, 40) / 100 * activations
    network, host = rng.integer(5, 60) * 1e9, rng.integer(4, 30) * 1e9
    return Task(layers, samples, ranks, memory, states, network, host, rng.integer(1, 40) * 1e-3)
