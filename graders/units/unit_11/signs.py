"""Unit 11, one bit a number, and the error that is kept for the next step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.replies import WithErrorReply
from graders.units.unit_11.rounding import rounding

Call = tuple[PlainData, str, Tensor, Tensor]
"""What a call returned, its words, x + error [n] before it, and error [n] after it."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("bits", 3, "Eight signs of x + error a byte, the first in the lowest bit."),
        Criterion("scale", 2, "Write the sum of squares of what is left, and differentiate it by the scale."),
        Criterion("what is left", 3, "x + error, less what the receiver reads, in the tensor error itself."),
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
    """Lengths that are multiples of eight and others, both dtypes, several calls in a row."""
    lengths = (1, 8, rng.integer(9, 15), 64, 64 + rng.integer(1, 7))
    dtypes = (torch.float32, torch.float64, torch.float32, torch.float64, torch.float32)
    cases = [
        ([rng.normal(length, dtype=dtype) for _ in range(3)], rng.normal(length, dtype=dtype))
        for length, dtype in zip(lengths, dtypes, strict=True)
    ]
    # What is neither above nor below 0, with an error that makes up for x.
    whole = rng.integers(-1, 1, 20).float()
    cases.append(([whole, -whole], torch.zeros(20)))
    cases.append(([-rng.normal(9).abs()], torch.zeros(9)))
    cases.append(([-torch.zeros(10)], -torch.zeros(10)))
    replies = [answer.call(drivers.with_error, xs, [], error) for xs, error in cases]
    yield (
        "bits",
        compare.first_failure(
            finding for case, reply in zip(cases, replies, strict=True) for finding in _bits(*case, reply)
        ),
    )
    yield (
        "scale",
        compare.first_failure(
            finding for case, reply in zip(cases, replies, strict=True) for finding in _scale(*case, reply)
        ),
    )
    yield (
        "what is left",
        compare.first_failure(
            finding for case, reply in zip(cases, replies, strict=True) for finding in _left(*case, reply)
        ),
    )
    yield (
        "x unchanged",
        compare.first_failure(
            compare.equal(reply.xs, xs, "x afterwards") for (xs, _), reply in zip(cases, replies, strict=True)
        ),
    )


def _calls(xs: list[Tensor], error: Tensor, reply: WithErrorReply) -> Iterator[Call]:
    """Each call in turn, with what the answer had left in error before it."""
    before = error
    states = list(compare.side_by_side(xs, reply.errors))
    for number, (result, (x, after)) in enumerate(compare.side_by_side(reply.results, states)):
        yield result, f"call {number + 1}, {compare.counted(len(x), 'number')}", x + before, after
        before = after if after.shape == x.shape else torch.zeros_like(x)


def _bits(xs: list[Tensor], error: Tensor, reply: WithErrorReply) -> Iterator[Finding]:
    """Whether each call's result is a pair of tensors, and its bits are the signs of x + error."""
    for result, where, total, _ in _calls(xs, error, reply):
        pair = type(result) in (tuple, list) and len(result) == 2
        if not pair or any(type(part) is not Tensor for part in result) or result[1].numel() != 1:
            yield Finding(False, f"In {where}: {compare.shown(result)}; expected (bits, scale).")
            return
        ones = [1 << place % 8 if number >= 0 else 0 for place, number in enumerate(total.tolist())]
        packed = [sum(ones[start : start + 8]) for start in range(0, len(ones), 8)]
        expected = torch.tensor(packed, dtype=torch.uint8)
        yield compare.close(result[0], expected, f"In {where}, x + error {compare.shown(total)}: bits", 0, 0)


def _scale(xs: list[Tensor], error: Tensor, reply: WithErrorReply) -> Iterator[Finding]:
    """Whether no other scale leaves less."""
    for (_, scale), where, total, _ in _calls(xs, error, reply):
        expected = total.abs().mean()
        yield compare.close(scale, expected, f"In {where}: the scale", rounding(total), 0)


def _left(xs: list[Tensor], error: Tensor, reply: WithErrorReply) -> Iterator[Finding]:
    """Whether what is left is what has not been sent, whatever the answer's scale."""
    for (_, scale), where, total, after in _calls(xs, error, reply):
        sent = torch.where(total >= 0, 1, -1) * scale.to(total.dtype)
        near = rounding(total) * float(total.abs().max())
        yield compare.close(after, total - sent, f"In {where}: error afterwards", 0, near)
