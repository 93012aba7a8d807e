"""The grader of `error_feedback`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import near
from graders.units.unit_11.compressors import Compressor
from graders.units.unit_11.replies import RememberedReply

TURNS = (0, 1, 2, 0, 0, 1, 2, 1, 2, 0)
"""Which of several functions is called in each step."""


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
            1,
            "compress may write into its argument, and your caller into what it gave and got.",
        ),
        Criterion("x unchanged, one call", 1, "x stays as it is, and one call of compress is enough."),
    ),
    hints=(
        "After a step, what should have arrived by now, and what has?",
        "What would you have to add to the next x, so that it is not lost for good?",
        "Who else can write into the tensor that you keep?",
    ),
)
def error_feedback(answer: Answer, rng: Rng) -> Findings:
    """Steps of one function or several, beside the grader's own sums."""
    alone = [tried(answer, rng, [kind]) for kind in ("sign", "largest")]
    yield "what was lost comes again", compare.first_failure(found for found, _ in alone)
    yield "memories of their own", tried(answer, rng, ["largest", "sign", "sign"])[0]
    others = ("in place", False), ("sign", True), ("itself", True)
    yield (
        "tensors of others",
        compare.first_failure(tried(answer, rng, [kind], written_over)[0] for kind, written_over in others),
    )
    reply = alone[0][1]
    steps = TURNS.count(0)
    once = Finding(reply.calls == [steps], f"{steps} steps call compress {reply.calls} times.")
    left = Finding(all(reply.left), "x is as it was." if all(reply.left) else "x has changed.")
    yield "x unchanged, one call", compare.first_failure([left, once])


def tried(
    answer: Answer, rng: Rng, kinds: Sequence[str], written_over: bool = False
) -> tuple[Finding, RememberedReply]:
    """Steps of functions made of these compressors, called in turn. written_over: the caller writes into what
    it gave and got.
    """
    shapes = (4, 3), (2, 3), (4, 3)
    turns = [(number, rng.normal(*shapes[number])) for number in TURNS if number < len(kinds)]
    reply = answer.call(drivers.remembered, list(kinds), turns, written_over)
    due = list(arriving(kinds, turns))
    found = compare.first_failure(
        near(seen, wanted, f"with compressors {kinds}, what arrives in step {step}")
        for step, (seen, wanted) in enumerate(compare.side_by_side(reply.arrived, due))
    )
    return found, reply


def arriving(kinds: Sequence[str], turns: Sequence[tuple[int, Any]]) -> Iterator[Any]:
    """What must arrive in each turn."""
    missing = [torch.zeros(()) for _ in kinds]
    for number, x in turns:
        wanted = x + missing[number]
        arrives = Compressor(kinds[number])(wanted.clone())
        missing[number] = wanted - arrives
        yield arrives
