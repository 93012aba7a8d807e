"""Unit 11, what waits to be sent: deep gradient compression, and error feedback.

Shapes: n numbers of a gradient, k of them sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.compressors import Compressor, DgcReply, RememberedReply


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "what was lost comes again",
            3,
            "Compress x and all that is missing from the steps before: the first time, nothing is.",
        ),
        Criterion("memories of their own", 1, "Each function that you make has a memory of its own."),
        Criterion(
            "tensors of others",
            2,
            "compress may write into its argument, and your caller into what it gave and got. One call a "
            "step is enough.",
        ),
    ),
    hints=(
        "After a step, what should have arrived by now, and what has?",
        "What would you have to add to the next x, so that it is not lost for good?",
        "Who else can write into the tensor that you keep?",
    ),
)
def error_feedback(answer: Answer, rng: Rng) -> Findings:
    """Calls in turns of several functions made at once, beside the grader's own sums."""
    shape = (rng.integer(3, 6), rng.integer(2, 5))
    alone = [Turns(["sign"], [(0, rng.normal(*shape)) for _ in range(5)])]
    alone += [Turns(["largest"], [(0, rng.normal(7, dtype=torch.float64)) for _ in range(6)])]
    shapes: tuple[tuple[int, ...], ...] = ((4,), (2, 3), (4,))
    order = [0, 1, 2, 0, 0, 1, 2, 1, 2]
    together = Turns(["largest", "sign", "sign"], [(number, rng.normal(*shapes[number])) for number in order])
    others = [Turns([kind], [(0, rng.normal(5)) for _ in range(4)], True) for kind in ("in place", "itself")]
    others += [Turns(["sign"], [(0, rng.normal()) for _ in range(3)], True)]
    of_alone = [turns.asked(answer) for turns in alone]
    yield "what was lost comes again", compare.first_failure(map(Turns.right, alone, of_alone))
    yield "memories of their own", together.right(together.asked(answer))
    of_others = [turns.asked(answer) for turns in others]
    more = zip([*alone, *others], [*of_alone, *of_others], strict=True)
    yield "tensors of others", compare.first_failure(turns.kept_apart(reply) for turns, reply in more)


@dataclass(frozen=True, slots=True)
class Turns:
    """kinds: of compressors. turns: which of them is called, and its x. written_over: see the driver."""

    kinds: list[str]
    turns: list[tuple[int, Tensor]]
    written_over: bool = False

    def asked(self, answer: Answer) -> RememberedReply:
        return answer.call(drivers.remembered, self.kinds, self.turns, self.written_over)

    def right(self, reply: RememberedReply) -> Finding:
        """Passes if in every call there arrives what should."""
        missing = [torch.zeros(()) for _ in self.kinds]
        findings = []
        for place, (seen, (number, x)) in enumerate(compare.side_by_side(reply.arrived, self.turns)):
            wanted = x + missing[number].to(x.dtype)
            expected = Compressor(self.kinds[number])(wanted.clone())
            missing[number] = wanted - expected
            what = f"what arrives in call {place}, of the function made with {self.kinds[number]!r},"
            if self.written_over:
                what = f"after the caller has written into what it gave and got, {what}"
            tolerance = 1e-9 if x.dtype == torch.float64 else 1e-4
            findings.append(compare.close(seen, expected, what, rtol=tolerance, atol=tolerance))
        return compare.first_failure(findings)

    def kept_apart(self, reply: RememberedReply) -> Finding:
        """Passes if no x has changed, compress was called once in each step, and what arrives is right."""
        if not all(reply.left):
            return Finding(False, f"x has changed in call {reply.left.index(False)}.")
        if reply.calls != [len(self.turns)]:
            return Finding(False, f"{len(self.turns)} steps call compress {reply.calls} times.")
        return self.right(reply)
