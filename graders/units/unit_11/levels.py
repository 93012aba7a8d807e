"""Unit 11, quantisation: a few levels, right on average (QSGD)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.replies import QuantisedReply
from graders.units.unit_11.rounding import rounding

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
    """Shapes and levels, then the mean of many draws, and what the draws hang on."""
    cases = _cases(rng)
    replies = [answer.call(drivers.quantised, case.x, case.levels, rng.integer(0, 10**6)) for case in cases]
    yield (
        "codes and scale",
        compare.first_failure(
            case.fits(result)
            for case, reply in zip(cases, replies, strict=True)
            for result in (*reply.results, *reply.again)
        ),
    )
    spread, even = _spread(rng), _even(rng)
    codes = [
        answer.call(drivers.drawn, case.x, case.levels, rng.integer(0, 10**6), DRAWS)
        for case in (spread, even)
    ]
    yield "right on average", compare.first_failure(map(Case.unbiased, (spread, even), codes))
    yield "each by itself", compare.first_failure((_differs(even, codes[1]), _independent(codes[1])))
    yield "generator", compare.first_failure(map(_repeats, cases, replies))


@dataclass(frozen=True, slots=True)
class Case:
    """x of any shape; levels: 1 to 127."""

    x: Tensor
    levels: int

    @property
    def scale(self) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(self.x)
        return length / self.levels

    @property
    def steps(self) -> Tensor:
        """x in units of the scale, of x's shape, in float64; 0 where x is 0."""
        return self.x.double() / self.scale.double() if self.scale > 0 else self.x.double()

    def fits(self, result: PlainData) -> Finding:
        """Passes if the result is a pair of codes next to x, and the scale."""
        where = f"{compare.shown(self.x)}, levels {self.levels}"
        if type(result) not in (tuple, list) or len(result) != 2:
            return Finding(False, f"For {where}: {compare.shown(result)}; expected (codes, scale).")
        codes, scale = result
        finding = compare.close(scale, self.scale, f"For {where}: the scale", rounding(self.x), 0)
        if not finding.passed:
            return finding
        if type(codes) is not Tensor or codes.dtype != torch.int8 or codes.shape != self.x.shape:
            said = f"For {where}: codes are {compare.shown(codes)}"
            return Finding(False, f"{said}; expected int8{list(self.x.shape)}.")
        # Rounding of x / scale may move a number that is on a level past it by next to nothing.
        next_to = (codes.double() - self.steps).abs() < 1 - 1e-4
        on_level = (codes.double() - self.steps).abs() < 1e-4
        if bool(((next_to | on_level) & (codes.double().abs() <= self.levels)).all()):
            return Finding(True, "Every code is a whole number next to x / scale.")
        said = f"For {where}: codes are {compare.shown(codes)}, and x / scale is {compare.shown(self.steps)}"
        return Finding(False, f"{said}; a code has to be one of the two whole numbers next to it.")

    def unbiased(self, codes: Tensor) -> Finding:
        """Passes if the mean of codes [DRAWS, *shape] is x / scale, each and all together, as far as chance
        lets one say: six standard deviations.
        """
        if codes.shape != (DRAWS, *self.x.shape):
            return Finding(False, f"Codes of {DRAWS} calls are {list(codes.shape)}.")
        off = codes.double().mean(0) - self.steps
        share = self.steps - self.steps.floor()
        deviation = (share * (1 - share) / DRAWS).sqrt()
        # Of a number close to a level few draws go to the other one: what is 6 of them is by chance too.
        wrong = off.abs() > 6 * deviation + 6 / DRAWS
        towards = (off * self.steps.sign()).mean()
        if bool(wrong.any()):
            place = int(wrong.flatten().nonzero()[0])
            seen, expected = (off + self.steps).flatten()[place], self.steps.flatten()[place]
            said = f"Of {DRAWS} calls the mean of a code is {seen:.3f}, where x / scale is {expected:.3f}"
            return Finding(False, f"{said}; by chance it would differ by {6 * float(deviation.max()):.2f}.")
        allowed = 6 * float((deviation**2).sum().sqrt()) / self.x.numel()
        if abs(towards) > allowed:
            said = f"On average magnitudes are off by {towards:.4f} levels"
            return Finding(False, f"{said}; by chance it would be at most {allowed:.4f}.")
        return Finding(True, f"Means of {DRAWS} calls are x / scale, as far as chance lets one say.")


def _cases(rng: Rng) -> list[Case]:
    alone = torch.zeros(5)
    alone[rng.integer(0, 4)] = -rng.integer(2, 9)
    return [
        Case(rng.normal(rng.integer(20, 40)), rng.integer(3, 9)),
        Case(5 * rng.normal(4, rng.integer(2, 5), dtype=torch.float64), 1),
        Case(rng.normal(3, 2, 3) / 100, 127),
        # Of length 5: all numbers are on levels, where nothing is left to chance.
        Case(torch.tensor([3.0, 0.0, -4.0]), 5),
        Case(alone, rng.choice((1, 127))),
        Case(rng.normal(), rng.integer(2, 9)),
        Case(torch.zeros(rng.integer(2, 4), 3), 4),
        Case(torch.zeros(0), 3),
    ]


def _spread(rng: Rng) -> Case:
    """Numbers of both signs, at any distance from a level."""
    return Case(rng.normal(8, 9), rng.integer(20, 40))


def _even(rng: Rng) -> Case:
    """Equal magnitudes, each 1.3 to 1.7 levels: the length is that times the root of 64."""
    signs = 2.0 * rng.integers(0, 1, 8, 8) - 1
    return Case(signs * (1 + rng.integer(1, 5)), rng.integer(11, 13))


def _differs(case: Case, codes: Tensor) -> Finding:
    """Passes if calls one after another draw anew."""
    if codes.shape == (DRAWS, *case.x.shape) and bool((codes[1:] == codes[:-1]).flatten(1).all(1).any()):
        return Finding(False, "Two calls in a row gave the same 64 codes: nothing was drawn anew.")
    return Finding(True, "Every call draws anew.")


def _independent(codes: Tensor) -> Finding:
    """Passes if no two of the 64 numbers go up together, or never together, more than chance has them."""
    together = torch.corrcoef(codes.double().flatten(1).mT)
    # Those that always have one code have no correlation at all.
    strongest = float(together.fill_diagonal_(0).nan_to_num(1).abs().max())
    said = f"Over {DRAWS} calls the strongest correlation of two codes is {strongest:.2f}"
    return Finding(strongest < 6 / DRAWS**0.5, f"{said}; independent ones stay below {6 / DRAWS**0.5:.2f}.")


def _repeats(case: Case, reply: QuantisedReply) -> Finding:
    """Passes if the draws hang on the generator alone, and x is what it was."""
    if reply.changed:
        return Finding(False, f"The random state of {', '.join(reply.changed)} is another one afterwards.")
    if not compare.same(reply.results, reply.again):
        return Finding(False, "With the same seed in the generator the codes are others.")
    return compare.equal(reply.xs, [case.x] * len(reply.xs), "x afterwards")
