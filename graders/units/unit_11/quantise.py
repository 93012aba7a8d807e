"""The grader of `quantise`."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import ByCases, Stage, feature
from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import SHORT, pair_of, part, rounding
from graders.units.unit_11.replies import QuantisedReply

DRAWS = 300


@dataclass(frozen=True, slots=True)
class Gradient:
    """kind: drawn; or a single number that is not 0; or on levels, where nothing is left to chance."""

    shape: tuple[int, ...] = feature((30,), "shape {}")
    levels: int = feature(6, "{} levels")
    dtype: torch.dtype = feature(torch.float32, SHORT.__getitem__)
    kind: str = feature("", "{}")

    def drawn(self, rng: Rng) -> Tensor:
        match self.kind:
            case "one number":
                return torch.tensor([0.0, 0, -rng.integer(2, 9), 0, 0])
            case "on levels":
                return torch.tensor([3.0, 0.0, -4.0])
            case "all zero":
                return torch.zeros(self.shape)
        return rng.normal(*self.shape, dtype=self.dtype)


class Drawn(Stage[Gradient]):
    """What is seen is whether the draws hang on the generator alone, and x is left alone."""

    def together(self, features: Gradient) -> Hashable:
        return "in turn"

    def run(
        self, answer: Answer, cases: Sequence[tuple[Gradient, Rng]]
    ) -> Sequence[tuple[Finding, dict[str, Finding]]]:
        given = [(case.drawn(rng), case.levels, rng.integer(0, 10**6)) for case, rng in cases]
        replies = answer.call(drivers.quantised, given)
        return [
            (
                compare.first_failure(fits(each, x, levels) for each in reply.results),
                {"generator": repeats(x, reply)},
            )
            for reply, (x, levels, _) in compare.side_by_side(replies, given)
        ]


def steps_of(x: Tensor, levels: int) -> Tensor:
    """x in units of the scale, in float64; 0 where all of x is 0."""
    length = torch.linalg.vector_norm(x.double())
    return x.double() * levels / length if length > 0 else x.double()


def fits(result: PlainData, x: Tensor, levels: int) -> Finding:
    """Passes if the result is a pair of codes next to x / scale, and the scale."""
    if not (found := pair_of(result, "(codes, scale)")).passed:
        return found
    codes, scale = result
    of_x = f"for {compare.shown(x)}"
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
    return compare.equal(reply.xs, [x] * len(reply.xs), "x afterwards")


def unbiased(answer: Answer, rng: Rng) -> Finding:
    """Passes if the mean of many codes is x / scale, each and all together, as far as chance lets one say:
    six standard deviations.
    """
    x, levels = rng.normal(8, 9), rng.integer(20, 40)
    steps = steps_of(x, levels)
    codes = answer.call(drivers.drawn, x, levels, rng.integer(0, 10**6), DRAWS)
    if codes.shape != (DRAWS, *x.shape):
        return Finding(False, f"codes of {DRAWS} calls are {list(codes.shape)}.")
    off = codes.double().mean(0) - steps
    share = steps - steps.floor()
    deviation = (share * (1 - share) / DRAWS).sqrt()
    # Of a number close to a level few draws go to the other one: what is 6 of them is by chance too.
    wrong = off.abs() > 6 * deviation + 6 / DRAWS
    if bool(wrong.any()):
        place = int(wrong.flatten().nonzero()[0])
        seen, expected = (off + steps).flatten()[place], steps.flatten()[place]
        said = f"of {DRAWS} calls the mean of a code is {seen:.3f}, where x / scale is {expected:.3f}"
        return Finding(False, f"{said}; by chance it would differ by {6 * float(deviation.max()):.2f}.")
    towards = (off * steps.sign()).mean()
    allowed = 6 * float((deviation**2).sum().sqrt()) / x.numel()
    said = f"on average magnitudes are off by {towards:.4f} levels; by chance it is at most {allowed:.4f}."
    return Finding(bool(abs(towards) <= allowed), said)


def independent(answer: Answer, rng: Rng) -> Finding:
    """Passes if of 64 numbers, each 1.3 to 1.7 levels, no two go up together more than chance has them, nor
    do two calls.
    """
    # Equal magnitudes: the length is that times the root of 64.
    x = (2.0 * rng.integers(0, 1, 8, 8) - 1) * (1 + rng.integer(1, 5))
    codes = answer.call(drivers.drawn, x, rng.integer(11, 13), rng.integer(0, 10**6), DRAWS).flatten(1)
    if bool((codes[1:] == codes[:-1]).all(1).any()):
        return Finding(False, "two calls in a row gave the same 64 codes: nothing was drawn anew.")
    together = torch.corrcoef(codes.double().mT)
    # Those that always have one code have no correlation at all.
    strongest = float(together.fill_diagonal_(0).nan_to_num(1).abs().max())
    said = f"over {DRAWS} calls the strongest correlation of two codes is {strongest:.2f}"
    return Finding(strongest < 6 / DRAWS**0.5, f"{said}; independent ones stay below {6 / DRAWS**0.5:.2f}.")


RUBRIC = (
    Criterion(
        "codes and scale",
        3,
        "How far apart are levels, if so many of them make the length of x? Each code is one of the two "
        "whole numbers next to x / scale.",
        vary=vary(shape=((3, 2, 4), ()), levels=(1, 127), dtype=(torch.float64,))
        + both(kind="on levels", levels=5)
        + vary(kind=("one number", "all zero")),
    ),
    Criterion(
        "right on average", 3, "The closer x is to a level, the more often it has to go there.", ask=unbiased
    ),
    Criterion(
        "each by itself",
        2,
        "Every number needs a draw of its own, in every call.",
        needs=("codes and scale", "right on average"),
        ask=independent,
    ),
    part("generator", 1, "torch.rand takes a generator; x stays as it is."),
)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=RUBRIC,
    hints=(
        "How often must a number at 2.3 on a ruler of whole numbers go to 3, and how often to 2, to be "
        "2.3 on average?",
        "u is drawn evenly from 0 to 1. How often is 2.3 + u at least 3? And what of -2.3?",
        "What is x / scale where all numbers are 0?",
    ),
)
def quantise(answer: Answer, rng: Rng) -> Findings:
    """Codes and scale by cases, then the mean of many draws, and what the draws hang on."""
    return ByCases(Gradient(), Drawn(), RUBRIC)(answer, rng)
