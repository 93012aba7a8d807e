"""The grader of `dgc_step`."""

from collections.abc import Iterator

import torch

from graders.grading.called import Called
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.functions.stage import Arguments
from graders.units.unit_11.cases import Numbers, as_asked, in_each, largest, left_of, near

CASES = (
    Numbers(),
    Numbers((3, 5, 2), torch.float64, ratio=0.26),
    Numbers(ratio=0.01),
    Numbers(ratio=1.0, first=True),
    Numbers(whole=True, ratio=0.3),
)


def a_step(rng: Rng, case: Numbers) -> Arguments:
    """What the answer is called with."""
    return [case.drawn(rng), case.kept(rng), case.kept(rng), rng.integer(5, 9) / 10, case.ratio]


def judged(case: Numbers, given: Arguments, called: Called) -> Iterator[tuple[str, Finding]]:
    """Lin et al. (2018), equation 7, without the mask."""
    gradient, velocity, kept, momentum, _ = given
    velocity = momentum * velocity + gradient
    yield "what is sent", (found := largest(case, called.result, kept + velocity))
    if found.passed:
        gradient_left, velocity_left, kept_left, *_ = called.arguments
        waits = left_of(called.result, kept + velocity)
        states = ((velocity_left, velocity, "velocity"), (kept_left, waits, "kept"))
        yield "what waits", compare.first_failure(near(a, b, f"{name} afterwards") for a, b, name in states)
        yield "arguments and dtypes", as_asked(called.result, gradient_left, gradient, "gradient")


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "what is sent",
            4,
            "The velocity goes on and is added to what waits; of the sum the k largest magnitudes are sent, "
            "and their places. With ratio 1 that is what SGD with momentum subtracts.",
        ),
        Criterion(
            "what waits",
            3,
            "What has not been sent stays in kept, and the velocity goes on as if nothing were sent.",
        ),
        Criterion(
            "arguments and dtypes",
            1,
            "The two states change in place, the gradient stays as it is, places are int32.",
        ),
    ),
    hints=(
        "In SGD with momentum, how much does a gradient move its weight in the steps after its own?",
        "If gradients are what waits, momentum sees them late. What would have to wait instead?",
        "topk of the magnitudes gives places, not values: the values keep their signs.",
    ),
)
def dgc_step(answer: Answer, rng: Rng) -> Findings:
    """A step with several tensors and states."""
    yield from in_each(answer, rng, CASES, a_step, judged)
