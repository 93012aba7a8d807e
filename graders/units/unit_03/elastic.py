"""Unit 03, fewer workers, more workers."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from graders.grading.kit import Answer, AnswerFailed, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.raised import raised_in
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.replies import Share


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "complete",
            2,
            "Together the ranks take the positions 0 to global_batch - 1, each once, also where the number "
            "of ranks does not divide them.",
        ),
        Criterion(
            "balanced",
            1,
            "global_batch % world_size samples are left over: one each for so many ranks, not all for one.",
        ),
        Criterion(
            "weight",
            2,
            "In the loss of the global batch a rank counts by its share of the samples; in the mean over "
            "ranks it counts 1 / world_size. The weight is the quotient.",
        ),
        Criterion(
            "more ranks than samples",
            1,
            "A rank without samples has weight 0, and still takes part.",
            needs=("complete", "balanced", "weight"),
        ),
    ),
    hints=(
        "How much should a rank's mean loss count in the whole, and how much does it count in a plain mean?",
        "rank * n // p and (rank + 1) * n // p are the ends of parts that differ by one at most.",
        "Unit 02: with m_k of n samples on rank k, the whole has the gradient sum of m_k / n times g_k. "
        "Averaging over p ranks gives 1 / p times the sum.",
    ),
)
def elastic_batch(answer: Answer, rng: Rng) -> Findings:
    """The same global batch on worlds that divide it and worlds that do not."""
    batch, odd = 4 * rng.integer(6, 12), rng.choice((5, 7))
    # One sample too many shows parts that are rounded up, one too few those that are rounded down.
    uneven = [(odd * rng.integer(3, 5) + rest, odd) for rest in (1, -1)]
    # 11 * (15 / 11) is less than 15, and 5 / 11 * 55 less than 25, in floating point.
    inexact = [(15, 11), (55, 11)]
    given = worlds(answer, [*((batch, size) for size in (4, 3, 2, 1)), *uneven, *inexact])
    few = rng.integer(2, 3), rng.integer(4, 6)
    losses = rng.normal(max(batch for batch, _ in given), dtype=torch.float64).exp()
    yield "complete", complete(given)
    yield "balanced", even(given)
    yield "weight", weights_right(given, losses)
    yield "more ranks than samples", dealt_to_many(answer, few, losses)


Worlds = Mapping[tuple[int, int], Sequence[Share]]
"""(global batch, ranks) -> what every rank is given."""


def worlds(answer: Answer, cases: Sequence[tuple[int, int]]) -> Worlds:
    """What the answer gives in each case."""
    return {
        case: [share for share, _ in compare.side_by_side(answer.call(drivers.world, *case), range(case[1]))]
        for case in cases
    }


def complete(given: Worlds) -> Finding:
    """Passes if in every world each position is given out once."""
    for (batch, ranks), parts in given.items():
        if others := [part.other for part in parts if part.other]:
            return Finding(False, f"A rank was given {others[0]}; expected a range and a float.")
        positions = list(chain(*(part.positions for part in parts)))
        if sorted(positions) != list(range(batch)):
            missing = sorted(set(range(batch)) - set(positions))
            twice = sorted({position for position in positions if positions.count(position) > 1})
            beyond = sorted(set(positions) - set(range(batch)))
            text = f"A batch of {batch} on {ranks} ranks: missing {missing}, given out twice {twice}"
            return Finding(False, f"{text}, not in the batch {beyond}.")
    return Finding(True, f"In {len(given)} worlds every sample is given to one rank.")


def even(given: Worlds) -> Finding:
    """Passes if no rank has more than one sample more than another."""
    for (batch, ranks), parts in given.items():
        sizes = [len(part.positions) for part in parts]
        if max(sizes) - min(sizes) > 1:
            text = f"A batch of {batch} on {ranks} ranks is dealt out as {sizes}"
            return Finding(False, f"{text}; the step takes as long as the largest part.")
    return Finding(True, "Parts differ by one sample at most.")


def weights_right(given: Worlds, losses: Tensor) -> Finding:
    """Passes if all is dealt out and the mean over ranks of weighted mean losses is that of the global batch.

    losses: of the samples, float64 [N], as many as the largest batch.
    """
    return compare.first_failure(
        chain([complete(given)], (_mean_right(*case, parts, losses) for case, parts in given.items()))
    )


def dealt_to_many(answer: Answer, case: tuple[int, int], losses: Tensor) -> Finding:
    """Passes if all is right in a world that has more ranks than samples."""
    try:
        given = worlds(answer, [case])
    except AnswerFailed as failure:
        return raised_in(f"A batch of {case[0]} on {case[1]} ranks", failure)
    return compare.first_failure([weights_right(given, losses), even(given)])


def _mean_right(batch: int, ranks: int, parts: Sequence[Share], losses: Tensor) -> Finding:
    """Passes if the mean is right in one world, and a rank without samples has no weight."""
    means = [part.weight * float(losses[part.positions].mean()) for part in parts if part.positions]
    shown = [round(part.weight, 4) for part in parts]
    what = f"With weights {shown} for a batch of {batch} on {ranks} ranks the mean over ranks"
    mean, wanted = sum(means) / ranks, float(losses[:batch].mean())
    finding = compare.near(mean, wanted, what)
    if not finding.passed and f"{mean:.4f}" != f"{wanted:.4f}":
        finding = Finding(False, f"{what} is {mean:.4f}; expected {wanted:.4f}.")
    empty = [part.weight for part in parts if not part.positions]
    if finding.passed and any(weight != 0 for weight in empty):
        return Finding(False, f"A rank without samples has weight {max(empty, key=abs)}; expected 0.")
    return finding
