"""The grader of `out_of_core_plan`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from course_lib.training.out_of_core import DoesNotFit, Way, step
from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_09.drivers import plans

SECONDS = 3.0
"""What a plan for many layers may take."""
WAYS = tuple(map(str, Way))

Model = tuple[tuple[float, ...], tuple[float, ...], float, float]
"""Bytes and seconds of each layer, capacity, and bytes a second."""
# The best plan is swap, swap, swap, recompute, keep; the best simple one takes 20 % longer.
BASE: Model = (3, 1, 1, 4, 8), (0.25, 1.25, 2, 1, 0.25), 8, 2
MODELS: tuple[Model, ...] = (
    ((4, 3, 1, 6, 1), (0.5, 1, 1.75, 2, 0.5), 7, 1.5),
    ((5, 1, 2, 3, 8), (1.5, 1, 1.5, 0.25, 1.5), 9, 3),
    # Where changes of one layer or two, from all computed again or the best simple plan, end 8 % above the
    # best, which is recompute, swap, keep, recompute, keep.
    ((7, 2, 6, 2, 7), (8, 6, 9, 2, 1), 13.44, 0.25),
    ((4,), (1,), 4, 1),
)
LARGE: Model = (
    (2, 5, 5, 2, 3, 5, 4, 6, 5, 1, 5, 1),
    (2, 1.25, 1, 1, 2, 2, 1.75, 0.75, 1, 0.75, 1.75, 0.25),
    13,
    1,
)
SHORTEST_OF_LARGE = 52.25
"""Its seconds, of all 531,441 plans, which take a fast machine 15 s. Changes of one layer at a time end 8 %
above.
"""


@dataclass(frozen=True, slots=True)
class Layers:
    """Which model is planned."""

    model: Model = feature(BASE, lambda model: compare.counted(len(model[0]), "layer"))


def given(rng: Rng, case: Layers) -> Arguments:
    """What out_of_core_plan is given, in drawn units of bytes: the best plan, and its time, are the same."""
    bytes_, seconds, capacity, bandwidth = case.model
    unit = rng.integer(2, 9)
    return [[unit * each for each in bytes_], [*seconds], unit * capacity, unit * bandwidth]


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if 12 layers are planned well, in time."""
    arguments = given(rng, Layers(LARGE))
    told = answer.call(plans.out_of_core, [arguments], computing=SECONDS)
    ((called, _),) = compare.side_by_side(told, [arguments])
    found = fits(arguments, called.value, "the plan for 12 layers")
    return no_longer(arguments, called.value, 1.05 * SHORTEST_OF_LARGE) if found.passed else found


@cache
def shortest(model: Model) -> float:
    """The seconds of a step, by trying all plans."""
    found = []
    for plan in product(WAYS, repeat=len(model[0])):
        try:
            found.append(step(plan, *model).seconds)
        except DoesNotFit:
            continue
    return min(found)


def times_the_best(factor: float) -> Callable[[Tried[Layers]], Finding]:
    """A check that a step takes no more than so many times the shortest."""

    def check(tried: Tried[Layers]) -> Finding:
        return no_longer(tried.seen.given, tried.seen.value, factor * shortest(tried.case.features.model))

    return check


@of_function(
    base=Layers(),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "within the memory",
            2,
            "step raises DoesNotFit for a plan that needs too much. With which plan is least memory needed?",
            vary=vary(model=MODELS),
            how=kept,
        ),
        Criterion(
            "within a fifth of the best",
            3,
            "What is swapped early has time to come back; what is needed soon is better kept.",
            how=times_the_best(1.2),
        ),
        Criterion(
            "within 5 % of the best",
            6,
            "Which single change makes a plan faster? And which two or three at once, where none alone does?",
            needs=("within a fifth of the best",),
            how=times_the_best(1.05),
        ),
        Criterion(
            "many layers",
            3,
            "Of 12 layers there are 531,441 plans. Begin with one that fits, and improve it.",
            needs=("within 5 % of the best",),
            ask=in_time,
        ),
    ),
    hints=(
        "Which plan fits if any does? What would make it a little faster?",
        "step tells what a plan takes. A plan that does not fit takes for ever.",
        "Change one layer as long as that helps; then two or three at once: one may have to make room for "
        "the other.",
    ),
    arguments=given,
    driver=plans.out_of_core,
)
def out_of_core_plan(case: Layers, given: Arguments) -> Expected:
    """Any plan that fits; how long its step takes is looked at by other rows."""
    names = ("bytes_", "seconds", "capacity", "bandwidth")
    return Expected(Checked(partial(fits, given)), dict(zip(names, given, strict=True)), returned=None)


def fits(given: Arguments, plan: Any, what: str) -> Finding:
    """Passes if it is a plan, and never above the capacity."""
    layers = len(given[0])
    if type(plan) is not list or len(plan) != layers or any(way not in WAYS for way in plan):
        expected = f'a list of "keep", "swap" or "recompute", one for each of {layers} layers'
        return Finding(False, f"{what} is {compare.shown(plan)}; expected {expected}.")
    try:
        peak = step(plan, *given).peak
    except DoesNotFit as error:
        return Finding(False, f"{what} is {plan}, which does not fit: {error}")
    return Finding(True, f"At most {peak:g} of {given[2]:g} bytes are held.")


def no_longer(given: Arguments, plan: list[str], limit: float) -> Finding:
    """Passes if a step of this plan, which fits, is no longer."""
    seconds = step(plan, *given).seconds
    said = f"out_of_core_plan({', '.join(map(str, given))}) gives {plan}"
    told = f"{said}, with which a step takes {seconds:.4g} s; at most {limit:.4g} s."
    return Finding(seconds <= limit * (1 + 1e-9), told)
