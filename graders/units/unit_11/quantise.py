"""The grader of `quantise`."""

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    PlainData,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import pair_of, rounding
from graders.units.unit_11.replies import QuantisedReply

DRAWS = 300


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "codes and scale",
            3,
            "How far apart are levels, if so many of them make the length of x? Each code is one of the two "
            "whole numbers next to x / scale.",
        ),
        Criterion("right on average", 3, "The closer x is to a level, the more often it has to go there."),
        Criterion(
            "each by itself",
            2,
            "Every number needs a draw of its own, in every call.",
            needs=("codes and scale", "right on average"),
        ),
        Criterion("generator", 1, "torch.rand takes a generator; x stays as it is."),
    ),
    hints=(
        "How often must a number at 2.3 on a ruler of whole numbers go to 3, and how often to 2, to be "
        "2.3 on average?",
        "u is drawn evenly from 0 to 1. How often is 2.3 + u at least 3? And what of -2.3?",
        "What is x / scale where all numbers are 0?",
    ),
)
def quantise(answer: Answer, rng: Rng) -> Findings:
    """Codes and scales of several tensors, then many draws."""
    given = [
        (rng.normal(30), 6, 1),
        (rng.normal(3, 2, 4), 127, 2),
        (rng.normal(30, dtype=torch.float64), 1, 3),
        (torch.tensor([3.0, 0.0, -4.0]), 5, 4),
        (torch.zeros(7), 6, 5),
    ]
    replies = answer.call(drivers.quantised, given)
    told = [(x, levels, reply) for reply, (x, levels, _) in compare.side_by_side(replies, given)]
    yield (
        "codes and scale",
        compare.first_failure(fits(each, x, levels) for x, levels, reply in told for each in reply.results),
    )
    yield "right on average", unbiased(answer, rng)
    yield "each by itself", independent(answer, rng)
    yield "generator", compare.first_failure(repeats(x, reply) for x, _, reply in told)


def steps_of(x: Tensor, levels: int) -> Tensor:
    """x in units of the scale, in float64; 0 where all of x is 0."""
    length = torch.linalg.vector_norm(x.double())
    return x.double() * levels / length if length > 0 else x.double()


def fits(result: PlainData, x: Tensor, levels: int) -> Finding:
    """Passes if the result is a pair of codes next to x / scale, and the scale."""
    if not (found := pair_of(result, "(codes, scale)")).passed:
        return found
    codes, scale = result
    of_x = f"for {compare.shown(x)} and {levels} levels"
    found = compare.close(scale, torch.linalg.vector_norm(x) / levels, f"{of_x} the scale", rounding(x), 0)
    if not found.passed:
        return found
    if codes.dtype != torch.int8 or codes.shape != x.shape:
        return Finding(False, f"{of_x} codes are {compare.shown(codes)}; expected int8{list(x.shape)}.")
    steps = steps_of(x, levels)
    off = (codes.double() - steps).abs()
    # Rounding of x / scale may move a number that is on a level past it by next to nothing.
    if bool((((off < 1 - 1e-4) | (off < 1e-4)) & (codes.double().abs() <= levels)).all()):
        return Finding(True, "every code is a whole number next to x / scale.")
    said = f"{of_x} codes are {compare.shown(codes)}, and x / scale is {compare.shown(steps)}"
    return Finding(False, f"{said}; a code has to be one of the two whole numbers next to it.")


def repeats(x: Tensor, reply: QuantisedReply) -> Finding:
    """Passes if the draws hang on the generator alone, and x is what it was."""
    if reply.moved:
        return Finding(False, "PyTorch's default generator has moved: what others draw with it changes.")
    if not compare.same(reply.results, reply.again):
        return Finding(False, "with the same seed in the generator the codes are others.")
    return compare.equal(reply.x, torch.stack([x] * 4), "x, of four calls, afterwards")


def unbiased(answer: Answer, rng: Rng) -> Finding:
    """Passes if the mean of many codes is x / scale, as far as chance lets one say: six deviations."""
    x, levels = rng.normal(8, 9), rng.integer(20, 40)
    steps, codes = steps_of(x, levels), many(answer, rng, x, levels)
    mean, share = codes.double().mean(0), steps - steps.floor()
    deviation = (share * (1 - share) / DRAWS).sqrt()
    # Of a number close to a level few draws go to the other one: what is 6 of them is by chance too.
    wrong = (mean - steps).abs() > 6 * deviation + 6 / DRAWS
    place = int(wrong.flatten().long().argmax())
    seen, expected = mean.flatten()[place], steps.flatten()[place]
    said = f"of {DRAWS} calls the mean of a code is {seen:.3f}, where x / scale is {expected:.3f}"
    by_chance = 6 * float(deviation.max())
    return Finding(not wrong.any(), f"{said}; by chance it would differ by {by_chance:.2f}.")


def independent(answer: Answer, rng: Rng) -> Finding:
    """Passes if of 64 numbers, each 1.3 to 1.7 levels, no two go up together more than chance has them."""
    # Equal magnitudes: the length is that times the root of 64.
    x = (2.0 * rng.integers(0, 1, 8, 8) - 1) * (1 + rng.integer(1, 5))
    codes = many(answer, rng, x, rng.integer(11, 13)).flatten(1)
    together = torch.corrcoef(codes.double().mT)
    # Those that always have one code have no correlation at all.
    strongest = float(together.fill_diagonal_(0).nan_to_num(1).abs().max())
    said = f"over {DRAWS} calls the strongest correlation of two codes is {strongest:.2f}"
    return Finding(strongest < 6 / DRAWS**0.5, f"{said}; independent ones stay below {6 / DRAWS**0.5:.2f}.")


def many(answer: Answer, rng: Rng, x: Tensor, levels: int) -> Tensor:
    """The codes of DRAWS calls, [DRAWS, *x.shape]."""
    codes: Tensor = answer.call(drivers.drawn, x, levels, rng.integer(0, 10**6), DRAWS)
    if codes.shape != (DRAWS, *x.shape):
        raise AnswerFailed(FailureKind.UNREADABLE, f"Codes of {DRAWS} calls are {list(codes.shape)}.")
    return codes
