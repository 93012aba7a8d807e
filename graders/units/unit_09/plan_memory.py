"""The grader of `plan_memory`, the open task, scored by the time of a step."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from course_lib.training.memory_plan import Layer, Plan, Task, plan_cost
from course_lib.training.out_of_core import DoesNotFit, Way
from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_09.drivers import plans

WAYS = tuple(map(str, Way))

Model = tuple[tuple[tuple[int, int, int], ...], int, int, float, float, float, float]
"""Of each layer parameters, activations and seconds; then samples, ranks, memory, the network's and the
host's bytes in 100 seconds, and start.
"""

# No two models have the same best plan. There is no stage but 0, no way, and no kind of number of
# micro-batches without which all of them could be planned within 8 % of the best; and one way for all layers
# is more than a fifth longer in one of them. What is best, and how much longer a step takes otherwise:
MODELS: tuple[Model, ...] = (
    # Stage 2, 3 micro-batches, swap, recompute, keep: no swap, or all alike but the last layers, which are
    # kept, 12 %; no recompute 21 %, one way for all 19 %.
    (((2, 1, 9), (3, 3, 1), (6, 7, 3)), 6, 8, 56.6, 50, 25, 6),
    # Stage 1, 12 micro-batches, swap, keep, keep: another stage or number 22 %, one way for all 27 %.
    (((2, 2, 9), (5, 4, 9), (4, 4, 3)), 12, 5, 79.8, 25, 50, 0.1),
    # Stage 3, 3 micro-batches, swap, swap, keep: another stage or number 64 %, without swap 18 %.
    (((3, 1, 5), (4, 8, 5), (4, 9, 3)), 6, 8, 56.8, 1000, 300, 20),
    # Stage 1, the whole batch, all kept: more micro-batches 57 %.
    (((1, 6, 2), (3, 4, 3), (5, 5, 2)), 6, 4, 190.5, 250, 80, 20),
    # Ways that are chosen for a sample's seconds, and not for those of all samples together: 12 %.
    (((4, 6, 8), (3, 2, 7), (1, 8, 5)), 12, 4, 169.8, 50, 80, 20),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """Which model is planned."""

    model: Model = feature(MODELS[0], lambda model: compare.counted(model[1], "sample"))


def given(rng: Rng, case: Planned) -> Arguments:
    """The task as a dictionary, in drawn units of bytes: the best plan is the same."""
    return [asdict(task_of(case.model, unit=rng.integer(2, 9)))]


def task_of(model: Model, unit: int = 1) -> Task:
    """The model as a task, in units of so many bytes."""
    layers, samples, ranks, memory, network, host, start = model
    parameters = unit * sum(own for own, _, _ in layers)
    first, second = 4 + 12 / ranks, 2 + 14 / ranks
    return Task(
        layers=tuple(Layer(unit * own, float(unit * size), float(seconds)) for own, size, seconds in layers),
        samples=samples,
        ranks=ranks,
        memory=unit * memory,
        states=(16.0 * parameters, first * parameters, second * parameters, 16.0 * parameters / ranks),
        network=unit * network / 100,
        host=unit * host / 100,
        start=start,
    )


@cache
def seconds_of_all(model: Model) -> dict[Plan, float]:
    """The seconds of every plan that fits."""
    task, found = task_of(model), {}
    divisors = [m for m in range(1, task.samples + 1) if task.samples % m == 0]
    for stage, micro_batches, ways in product(range(4), divisors, product(WAYS, repeat=len(task.layers))):
        plan = Plan(stage, micro_batches, ways)
        with suppress(DoesNotFit):
            found[plan] = plan_cost(plan, task).seconds
    return found


def written(given: Arguments) -> str:
    """The task as a student types it."""
    return compare.shown(plans.as_task(given[0]), 700)


def times_the_best(factor: float) -> Callable[[Tried[Planned]], Finding]:
    """A check that a step takes no more than so many times the shortest."""

    def check(tried: Tried[Planned]) -> Finding:
        model, plan = tried.case.features.model, Plan(*tried.seen.value)
        seconds, most = plan_cost(plan, task_of(model)).seconds, factor * min(seconds_of_all(model).values())
        said = f"with {plan} for {written(tried.seen.given)} a step takes {seconds:.4g} s"
        return Finding(seconds <= most * (1 + 1e-9), f"{said}; at most {most:.4g} s.")

    return check


@of_function(
    base=Planned(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "fits",
            1,
            "A high stage, many micro-batches, and everything computed again need least memory.",
            vary=vary(model=MODELS[1:]),
        ),
        Criterion(
            "within a fifth of the best",
            4,
            "Which layers are worth their memory, and which are not? All kept, all swapped, or all computed "
            "again is rarely good enough.",
            how=times_the_best(1.2),
        ),
        Criterion(
            "within 5 % of the best",
            3,
            "There are few stages and few divisors: what is best for the layers, for each of them?",
            needs=("within a fifth of the best",),
            how=times_the_best(1.05),
        ),
    ),
    hints=(
        "What does a stage save, and what does it cost? How does that change with more micro-batches?",
        "If stage and micro-batches are given, you know how many bytes are left for activations, what each "
        "layer keeps, and what it takes. Have you solved that problem before?",
    ),
    arguments=given,
    driver=plans.memory,
    written=written,
)
def plan_memory(case: Planned, given: Arguments) -> Expected:
    """Any plan that fits; how long its step takes is looked at by other rows."""
    return Expected(Checked(partial(fits, task_of(case.model))), {"task": given[0]}, returned=None)


def fits(task: Task, planned: Any, what: str) -> Finding:
    """Passes if it is a plan that fits. planned: its three parts."""
    try:
        peak = plan_cost(Plan(*planned), task).peak
    except (ValueError, TypeError) as error:
        return Finding(False, f"{what} is {compare.shown(planned)}: {error}")
    return Finding(True, f"At most {peak:.3g} bytes of activations.")
