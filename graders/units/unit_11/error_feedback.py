"""The grader of `error_feedback`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.cases import both, vary
from graders.grading.judging import ByCases, Stage, feature
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import near, part
from graders.units.unit_11.compressors import Compressor


@dataclass(frozen=True, slots=True)
class Turns:
    """kinds: of the compressors of as many functions, which are called in turn. shape: of the first one's
    tensors. written_over: whether the caller writes into what it gave and got.
    """

    kinds: tuple[str, ...] = feature(("sign",), "compressors {}")
    shape: tuple[int, ...] = feature((4, 3), "shape {}")
    dtype: torch.dtype = torch.float32
    written_over: bool = feature(False, lambda over: "a caller that writes into what it gave and got" * over)


TURNS = (0, 1, 2, 0, 0, 1, 2, 1, 2, 0)


class InTurns(Stage[Turns]):
    """Each case is a few steps; what is seen is whether the answer left its x alone, and called once."""

    def run(
        self, answer: Answer, cases: Sequence[tuple[Turns, Rng]]
    ) -> Sequence[tuple[Finding, dict[str, Finding]]]:
        return [self.tried(answer, *case) for case in cases]

    def tried(self, answer: Answer, case: Turns, rng: Rng) -> tuple[Finding, dict[str, Finding]]:
        order = [number for number in TURNS if number < len(case.kinds)]
        shapes = (case.shape, (2, 3), case.shape)
        turns = [(number, rng.normal(*shapes[number], dtype=case.dtype)) for number in order]
        reply = answer.call(drivers.remembered, list(case.kinds), turns, case.written_over)
        arrived = compare.first_failure(
            near(seen, wanted, f"what arrives in step {step}, by function {number},")
            for step, (seen, (number, wanted)) in enumerate(
                compare.side_by_side(reply.arrived, list(arriving(case, turns)))
            )
        )
        steps = compare.counted(len(turns), "step")
        once = Finding(sum(reply.calls) == len(turns), f"{steps} call compress {reply.calls} times.")
        left = Finding(all(reply.left), "x is as it was." if all(reply.left) else "x has changed.")
        return arrived, {"x unchanged, one call": compare.first_failure([left, once])}


def arriving(case: Turns, turns: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Of each turn which function it is, and what must arrive."""
    missing = [torch.zeros((), dtype=case.dtype) for _ in case.kinds]
    for number, x in turns:
        wanted = x + missing[number]
        arrives = Compressor(case.kinds[number])(wanted.clone())
        missing[number] = wanted - arrives
        yield number, arrives


RUBRIC = (
    Criterion(
        "what was lost comes again",
        3,
        "Compress x and all that is missing from the steps before: the first time, nothing is.",
        vary=vary(kinds=(("largest",),), shape=((7,), ()), dtype=(torch.float64,)),
    ),
    Criterion(
        "memories of their own",
        1,
        "Each function that you make has a memory of its own.",
        vary=vary(kinds=(("largest", "sign", "sign"),)),
    ),
    Criterion(
        "tensors of others",
        1,
        "compress may write into its argument, and your caller into what it gave and got.",
        vary=vary(kinds=(("in place",),), written_over=(True,)) + both(kinds=("itself",), written_over=True),
    ),
    part("x unchanged, one call", 1, "x stays as it is, and one call of compress is enough."),
)


@exercise(
    minutes=10,
    difficulty=2,
    rubric=RUBRIC,
    hints=(
        "After a step, what should have arrived by now, and what has?",
        "What would you have to add to the next x, so that it is not lost for good?",
        "Who else can write into the tensor that you keep?",
    ),
)
def error_feedback(answer: Answer, rng: Rng) -> Findings:
    """Steps of one function or several, beside the grader's own sums."""
    return ByCases(Turns(), InTurns(), RUBRIC)(answer, rng)
