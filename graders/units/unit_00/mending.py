"""Unit 00, find the mistakes: what all ranks have to do, some ranks did not."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.communication import in_words
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    PlainData,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_00 import drivers
from graders.units.unit_00.drivers import StatisticsReply

SMALL = 8
"""Bytes of a call: one number, or two of 32 bits."""
MANY = 2051
"""More numbers than a byte can count, or 16 bits of floating point."""
FAR_BELOW = [-1.5e38, -1.125e38]
"""They are below any filler that seems small enough, such as -1e38, and float32 has their sum."""


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "the mean",
            2,
            "The sum of all ranks' numbers, divided by the count of all ranks' numbers. Which of the two do "
            "you reduce, and does every rank have the result? Both results are floats: `.item()`.",
        ),
        Criterion(
            "the largest",
            1,
            "The largest of all ranks' largest, by an all_reduce with ReduceOp.MAX. All may be below 0.",
        ),
        Criterion(
            "three small calls that all ranks make",
            1,
            "Every rank works on its own numbers; only results are sent. No group is needed, and no barrier.",
        ),
        Criterion(
            "a rank without numbers",
            2,
            "It must not leave before the calls, and what it contributes must change nothing: 0 to a sum. "
            "And to a maximum? Make it anew each time: a collective writes into what it is given.",
            needs=("the mean", "the largest"),
        ),
    ),
    hints=(
        "Which call does the report name for rank 0, and which for the others? Which of them is the first "
        "that not all ranks make?",
        "What does the second report say of the rank that has already returned? The others wait for it.",
        "What can a rank without numbers give to a maximum, so that no other rank's number is below it? "
        'float("-inf") is a number like any other there.',
    ),
)
def mend_statistics(answer: Answer, rng: Rng) -> Findings:
    """Ranks with different counts, two ranks and one, then a first and a last rank without numbers."""
    counts = [rng.integer(2, 4) for _ in range(rng.integer(2, 3))]
    both_signs = _drawn(rng, [3, 3], both_signs=True)
    both_signs[1][1] = 0  # it is a number, too
    several = [_drawn(rng, [*counts, 5]), both_signs, *_of_other_sizes(rng), _drawn(rng, [MANY])]
    full = [(numbers, _launched(answer, numbers)) for numbers in several]
    yield "the mean", compare.first_failure(_right(run, numbers, 0) for numbers, run in full)
    yield "the largest", compare.first_failure(_right(run, numbers, 1) for numbers, run in full)
    few = compare.first_failure(check(run) for _, run in full for check in (_small, _alike))
    yield "three small calls that all ranks make", few
    yield "a rank without numbers", _without_numbers(answer, rng, few.passed)


def _of_other_sizes(rng: Rng) -> list[list[Tensor]]:
    """Numbers of two ranks, near to 0 and far from it, so that float32 has their sum; of few digits, so that
    one can type them in.
    """
    little, much = rng.integers(1, 99, 3) * 1e-9, -rng.integers(101, 999, 3) * 1e33
    return [[numbers[:2].float(), numbers[2:].float()] for numbers in (little, much)]


def _without_numbers(answer: Answer, rng: Rng, few: bool) -> Finding:
    """Passes if ranks without numbers make the calls that the others make, and change nothing.

    few: whether the answer makes few calls, and alike ones, where all have numbers. Else it was told so.
    """
    one_number = [*_drawn(rng, [0, 3, 0]), torch.tensor([-0.25])]  # a rank's only one is the largest of all
    only_zeros = [*_drawn(rng, [2, 0]), torch.zeros(2)]  # they are numbers, and the largest
    far_below = [torch.tensor([number]) for number in FAR_BELOW] + [torch.zeros(0)]
    for numbers in (one_number, only_zeros, far_below):
        run = _launched(answer, numbers)
        finding = compare.first_failure(_right(run, numbers, position) for position in (0, 1))
        if finding.passed and few:
            finding = compare.first_failure((_small(run), _alike(run)))
        if not finding.passed:
            return finding
    # Larger numbers first: what is left of them would be the largest.
    again = _launched(answer, only_zeros[:2], earlier=[-only_zeros[0], torch.zeros(0)])
    return compare.first_failure(_right(again, only_zeros[:2], position, again=True) for position in (0, 1))


def _drawn(rng: Rng, counts: Sequence[int], both_signs: bool = False) -> list[Tensor]:
    """So many numbers for each rank, [n], in eighths, so that their sums are exact, and not with fewer than
    12 bits; all below 0, or every other one above.
    """
    drawn = [-rng.integers(3, 2**12, count) / 8 for count in counts]
    if both_signs:
        for own in drawn:
            own[::2] *= -1
    return drawn


def _launched(
    answer: Answer, numbers: list[Tensor], earlier: Sequence[Tensor] | None = None
) -> Observed[StatisticsReply]:
    """earlier: other numbers, for a first call whose results nobody looks at."""
    before = per_rank(earlier) if earlier else None
    return answer.launch(drivers.statistics, per_rank(numbers), before, ranks=len(numbers))


def _right(
    observed: Observed[StatisticsReply], numbers: list[Tensor], position: int, again: bool = False
) -> Finding:
    """Passes if every rank returned a pair with the right float at `position`, and left its numbers alone."""
    everything = torch.cat(numbers).double()
    expected = (everything.mean() if position == 0 else everything.max()).item()
    name = ("mean", "largest")[position]
    # What numbers of both signs leave of each other is as exact as they are.
    least = everything.abs().max().item() if position == 0 else 0.0
    told = f"with {_in_words(numbers)}"
    if len(everything) > MANY // 2:
        counts = ", ".join(str(len(own)) for own in numbers)
        told = f"with {len(everything)} numbers on {compare.counted(len(numbers), 'rank')} ({counts})"
    if again:
        told = f"called a second time, after the same numbers above 0, {told}"
    for rank, reply in enumerate(observed.results):
        result: PlainData = reply.result
        if type(result) is not tuple or len(result) != 2:
            return Finding(False, f"{told}, rank {rank} returned {result!r:.80}; expected a pair (a tuple).")
        if not isinstance(result[position], float):
            return Finding(
                False, f"{told}, the {name} on rank {rank} is {result[position]!r:.80}; expected a float."
            )
        what = f"{told}, the {name} on rank {rank}"
        finding = compare.near(result[position], expected, what, rtol=1e-5, least=least)
        if not finding.passed:
            return finding
        if not compare.same(reply.numbers, numbers[rank]):
            return Finding(False, f"{told}, rank {rank} has changed its numbers.")
    return Finding(True, f"{told}, the {name} is {expected:g} on every rank.")


def _in_words(numbers: list[Tensor]) -> str:
    """`[-1, -2.5] on rank 0, [-4] on rank 1, no numbers on rank 2`, and not more than five of a rank's."""
    told = []
    for rank, own in enumerate(numbers):
        first = ", ".join(f"{number:g}" for number in own[:5].tolist())
        more = f", ... ({len(own)} numbers)" if len(own) > 5 else ""
        told.append(f"[{first}{more}] on rank {rank}" if len(own) else f"no numbers on rank {rank}")
    return ", ".join(told)


def _small(observed: Observed[StatisticsReply]) -> Finding:
    """Passes if no rank makes more than three calls, or a large one; to make a group is one."""
    for rank, reply in enumerate(observed.results):
        calls = [f"{event.op} of {event.nbytes} bytes" for event in observed.communication(rank)]
        calls += ["new_group"] * reply.groups
        if len(calls) > 3 or any(event.nbytes > SMALL for event in observed.communication(rank)):
            made = f"rank {rank} makes these calls: {', '.join(calls)}"
            return Finding(False, f"{made}; allowed are three of {SMALL} bytes.")
    return Finding(True, f"No rank makes more than three calls, none of more than {SMALL} bytes.")


def _alike(observed: Observed[StatisticsReply]) -> Finding:
    """Passes if every rank makes the calls that rank 0 makes."""
    first, *others = [observed.calls(rank) for rank in range(len(observed.results))]
    for rank, calls in enumerate(others, start=1):
        if calls != first:
            text = f"rank 0 calls {in_words(first)}, and rank {rank} calls {in_words(calls)}"
            return Finding(False, f"{text}; expected the same calls on every rank.")
    return Finding(True, f"Every rank calls {in_words(first)}.")
