"""The grader of `top_k`."""

from collections.abc import Iterator

import torch

from graders.grading.called import Called
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, exercise
from graders.units.functions.stage import Arguments
from graders.units.unit_11.cases import Numbers, as_asked, in_each, largest, left_of, near

CASES = (
    Numbers(),
    Numbers((3, 2, 4), torch.float64, ratio=0.26),
    Numbers(ratio=0.001),
    Numbers(ratio=1.0),
    Numbers(whole=True),
)


def x_ratio_error(rng: Rng, case: Numbers) -> Arguments:
    """What the answer is called with."""
    return [case.drawn(rng), case.ratio, case.kept(rng)]


def judged(case: Numbers, given: Arguments, called: Called) -> Iterator[tuple[str, Finding]]:
    """The largest magnitudes of x + error, and the rest in error."""
    x, _, error = given
    yield "the largest", (found := largest(case, called.result, x + error))
    if found.passed:
        kept, _, left = called.arguments
        yield "what is left", near(left, left_of(called.result, x + error), "error afterwards")
        yield "arguments and dtypes", as_asked(called.result, kept, x, "x")


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "the largest",
            4,
            "The k numbers of x + error that are farthest from 0, and where they stand.",
        ),
        Criterion("what is left", 3, "In error: x + error, and 0 where it was sent."),
        Criterion("arguments and dtypes", 1, "Only error changes; a place needs 32 bits, not 64."),
    ),
    hints=(
        "Is it x that is to be ranked, or x and what earlier calls could not send? By its value?",
        "torch.topk gives values and places. Whose values are these, if you rank magnitudes?",
    ),
)
def top_k(answer: Answer, rng: Rng) -> Findings:
    """The largest magnitudes of several tensors."""
    yield from in_each(answer, rng, CASES, x_ratio_error, judged)
