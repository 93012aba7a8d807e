"""Unit 13, the open task: a plan for a model on a cluster, scored by the seconds of a step."""

from dataclasses import astuple, replace

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import plans as drivers
from graders.units.unit_13.plannable import Numbers
from graders.units.unit_13.rated_plans import Rated, Task

RUNS = "runs within the memory"
PLAIN = "no slower than one kind of parallelism"
TENTH, THIRTIETH = "within a tenth of the best known", "within 3 % of the best known"

ETHERNET = [1e-6, 20e9, 10e-6, 5e9]
FASTER = [1e-6, 100e9, 10e-6, 5e9]


TASKS = (
    Task(
        Numbers([6144, 1024, 1024, 1024], 1024, 1024, 2, 4, FASTER, 1e13, 1e12),
        1e9,
        (((0, 1), 2, 2, 4, "inside"), ((0, 1), 2, 2, 8, "inside")),
        (((0,), 8, 1, 1, ""), ((0,), 1, 8, 1, "inside")),
        (6144, 5632, 6656),
    ),
    Task(
        Numbers([1024, 1024, 512, 1024, 512], 1024, 1024, 2, 2, FASTER, 1e13, 1e12),
        64.6e6,
        (((0, 1, 2, 3), 1, 1, 16, ""),),
        (((0, 1, 2, 3), 1, 1, 4, ""),),
    ),
    Task(
        Numbers([], 256, 4, 2, 2, ETHERNET, 1e13, 1e12),
        1e9,
        (((0, 1, 2, 3), 1, 1, 4, ""),),
        (((0,), 4, 1, 1, ""), ((0,), 1, 4, 1, "inside"), ((0, 1, 2, 3), 1, 1, 4, "")),
    ),
)
"""Small models on small clusters. The best plans found: a mixture of all three, whose first stage is a single
large piece; stages alone, which leave a tenth of the memory free, where others that fit are a fifth slower;
stages alone again, for a transformer."""


@exercise(
    minutes=120,
    difficulty=5,
    rubric=(
        Criterion(
            RUNS,
            4,
            "All ranks of the cluster, samples and letters that divide evenly, no stage above the memory: "
            "Planner.predict tells.",
        ),
        Criterion(
            PLAIN,
            4,
            "Data parallelism, stages, split operators, each alone: which of them does your search miss?",
            needs=(RUNS,),
        ),
        Criterion(TENTH, 4, "For each shape of the mesh, how many micro-batches?", needs=(RUNS, PLAIN)),
        Criterion(
            THIRTIETH,
            4,
            "Move one cut of your best plan by a piece, or take twice the micro-batches: is it faster?",
            needs=(RUNS, TENTH),
        ),
    ),
    hints=(
        "How many shapes (stages, data, tensor) does the mesh have, and how many numbers of micro-batches?",
        "What would a step of each take, by the formula of section 5, if the cuts were the best ones?",
        "Which dimensions of the model have to be shared first, so that others need not move?",
        "Estimates are cheap, predictions are not: for which plans is a prediction worth its time?",
    ),
)
def plan(answer: Answer, rng: Rng) -> Findings:
    """Three tasks whose best plans are of different kinds."""
    tasks = [_drawn(rng, task) for task in TASKS]
    rated = [
        Rated.of(task, answer.call(drivers.planned, list(astuple(task.numbers)), task.memory, timeout=120.0))
        for task in tasks
    ]
    yield RUNS, compare.first_failure([*(each.runs() for each in rated), rated[-1].executed()])
    yield PLAIN, compare.first_failure(each.within(each.best(each.task.plain), 1.001) for each in rated)
    best = [each.best((*each.task.known, *each.task.plain)) for each in rated]
    for name, allowed in ((TENTH, 1.1), (THIRTIETH, 1.03)):
        yield (
            name,
            compare.first_failure(
                each.within(known, allowed) for each, known in zip(rated, best, strict=True)
            ),
        )


def _drawn(rng: Rng, task: Task) -> Task:
    """The same on a cluster that is a little faster or slower, by up to 5 % in each number, and with another
    number of units in the largest piece.
    """
    numbers, large = task.numbers, rng.choice(task.large)

    def near(number: float) -> float:
        return number * (1 + rng.integer(-50, 50) / 1000)

    drawn = replace(
        numbers,
        inner=[large if each == task.large[0] else each for each in numbers.inner],
        links=[*map(near, numbers.links)],
        flops=near(numbers.flops),
        memory_bandwidth=near(numbers.memory_bandwidth),
    )
    return replace(task, numbers=drawn)
