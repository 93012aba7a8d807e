"""The grader of `one_bit`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from graders.grading.called import Called
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.functions.stage import Arguments
from graders.units.unit_11.cases import Numbers, in_each, pair_of, rounding

CASES = (
    Numbers(),
    *(Numbers((length,), first=length == 8) for length in (1, 8, 67)),
    Numbers(dtype=torch.float64),
    Numbers(whole=True),
)


def x_and_error(rng: Rng, case: Numbers) -> Arguments:
    """What the answer is called with."""
    return [case.drawn(rng), case.kept(rng)]


def packed(positive: Tensor) -> Tensor:
    """Eight bits a byte, the first in the lowest, [n] -> [ceil(n / 8)]."""
    ones = [int(each) << place % 8 for place, each in enumerate(positive.tolist())]
    return torch.tensor([sum(ones[i : i + 8]) for i in range(0, len(ones), 8)], dtype=torch.uint8)


def judged(case: Numbers, given: Arguments, called: Called) -> Iterator[tuple[str, Finding]]:
    """Signs, their mean magnitude, and what these do not say, whatever the answer's scale."""
    x, error = given
    total = x + error
    if (found := pair_of(called.result, "(bits, scale)")).passed:
        wanted = f"of x + error {compare.shown(total)} the bits"
        found = compare.close(called.result[0], packed(total >= 0), wanted, 0, 0)
    yield "bits", found
    if found.passed:
        scale, (kept, left) = called.result[1], called.arguments
        found = compare.close(scale, total.abs().mean(), "the scale", rounding(total), 0)
        yield "scale", found
        # A scale of another shape is told once.
        sent = torch.where(total >= 0, 1, -1) * (scale if scale.dim() == 0 else total.abs().mean())
        near_left = rounding(total) * float(total.abs().max())
        yield (
            "what is left",
            compare.close(left, total - sent.to(total.dtype), "error afterwards", 0, near_left),
        )
        yield "x unchanged", compare.equal(kept, x, "x afterwards")


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "bits",
            1,
            "Eight signs of x + error a byte, the first in the lowest bit.",
        ),
        Criterion("scale", 5, "Write the sum of squares of what is left, and differentiate it by the scale."),
        Criterion("what is left", 2, "x + error, less what the receiver reads, in the tensor error itself."),
        Criterion("x unchanged", 1, "Only error changes."),
    ),
    hints=(
        "Is it x that has to be sent, or x and what earlier calls could not send?",
        "What is the sum of squares of what is left, as a function of the scale? Where is its least value?",
        "Eight columns, each with a weight of its own: what is the sum of a row of eight bits? "
        "(NumPy has it as packbits.)",
    ),
)
def one_bit(answer: Answer, rng: Rng) -> Findings:
    """Bits of several lengths."""
    yield from in_each(answer, rng, CASES, x_and_error, judged)
