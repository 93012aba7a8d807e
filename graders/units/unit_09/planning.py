"""Unit 09, the open task: stage, micro-batches and ways within the memory, scored by time."""

from itertools import product
from typing import Any

from course_lib.training.memory_plan import Layer, Plan, Task, plan_cost
from course_lib.training.out_of_core import DoesNotFit, Way
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_09 import drivers

SECONDS = 10.0
"""What a plan may take."""

WAYS = tuple(map(str, Way))


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "fits",
            1,
            "A high stage, many micro-batches, and everything computed again need least memory.",
        ),
        Criterion(
            "no slower than a single lever",
            2,
            "The best with all kept, the best with all computed again, and the best with all swapped, over "
            "all stages and micro-batches.",
        ),
        Criterion(
            "within a fifth of the best",
            2,
            "Which layers are worth their memory, and which are not?",
            needs=("no slower than a single lever",),
        ),
        Criterion(
            "within 5 % of the best",
            3,
            "There are few stages and few divisors: what is best for the layers, for each of them?",
            needs=("within a fifth of the best",),
        ),
    ),
    hints=(
        "What does a stage save, and what does it cost? How does that change with more micro-batches?",
        "If stage and micro-batches are given, you know how many bytes are left for activations, what each "
        "layer keeps, and what it takes. Have you solved that problem before?",
    ),
)
def plan_memory(answer: Answer, rng: Rng) -> Findings:
    """Tasks whose best plans differ in stage, micro-batches and ways."""
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
    states = list(task.states)
    reply = answer.call(drivers.memory_planned, layers, {**rest, "states": states}, timeout=SECONDS)
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
    """Tasks that no two plans are good for, and one with exactly the room that its largest layer needs.

    There is no stage but 0, no way, and no kind of number of micro-batches without which all of them could be
    planned within 8 % of the best; and one way for all layers is more than a fifth longer in one of them.
    """
    tasks = [_telling(rng, *case) for case in _TELLING]
    layers = Layer(8, 16.0, 1.0), Layer(8, 64.0, 2.0), Layer(8, 16.0, 1.0)
    return [*tasks, Task(layers, 1, 2, 120.0, (384.0, 120.0, 56.0, 24.0), 4.0, 8.0, 0.5)]


_TELLING: list[tuple[list[tuple[int, int, int]], int, int, float, float, float, float]] = [
    # Each layer's parameters (1e8), activations (1e8 bytes) and seconds (1e-2); samples, ranks, memory,
    # network and host (1e8 bytes, a second), start (1e-2 s). What is best, and how much longer a step takes
    # otherwise. Stage 2, 3 micro-batches, swap, recompute, keep: no swap, or all alike but the last layers,
    # which are kept, 12 %; no recompute 21 %, one way for all 19 %.
    ([(2, 1, 9), (3, 3, 1), (6, 7, 3)], 6, 8, 56.6, 50, 25, 6),
    # Stage 1, 12 micro-batches, swap, keep, keep: another stage or number 22 %, one way for all 27 %.
    ([(2, 2, 9), (5, 4, 9), (4, 4, 3)], 12, 5, 79.8, 25, 50, 0.1),
    # Stage 3, 3 micro-batches, swap, swap, keep: another stage or number 64 %, without swap 18 %.
    ([(3, 1, 5), (4, 8, 5), (4, 9, 3)], 6, 8, 56.8, 1000, 300, 20),
    # Stage 1, the whole batch, all kept: more micro-batches 57 %.
    ([(1, 6, 2), (3, 4, 3), (5, 5, 2)], 6, 4, 190.5, 250, 80, 20),
    # Ways that are chosen for a sample's seconds, and not for those of all samples together: 12 %.
    ([(4, 6, 8), (3, 2, 7), (1, 8, 5)], 12, 4, 169.8, 50, 80, 20),
]


def _telling(
    rng: Rng,
    layers: list[tuple[int, int, int]],
    samples: int,
    ranks: int,
    memory: float,
    network: float,
    host: float,
    start: float,
) -> Task:
    """A task in drawn units of bytes and of seconds: which plan is best does not depend on them."""
    unit, second = rng.integer(2, 9) * 10**7, rng.integer(2, 9) / 200
    parameters = unit * sum(own for own, _, _ in layers)
    return Task(
        layers=tuple(Layer(own * unit, float(size * unit), time * second) for own, size, time in layers),
        samples=samples,
        ranks=ranks,
        memory=memory * unit,
        states=(
            16.0 * parameters,
            (4 + 12 / ranks) * parameters,
            (2 + 14 / ranks) * parameters,
            16.0 / ranks * parameters,
        ),
        network=network * unit / second / 100,
        host=host * unit / second / 100,
        start=start * second,
    )
