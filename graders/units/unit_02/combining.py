"""Unit 02, the average that is right."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_02.drivers import data as drivers
from graders.units.unit_02.replies import CombineReply


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion("equal shards", 1, "With equal counts the formula is the plain mean of the gradients."),
        Criterion(
            "unequal shards",
            1,
            "Worker k's gradient is a mean over m_k samples, so in the mean over all n it weighs m_k / n. "
            "(A weight that is a tensor may change the dtype; view(-1) wants contiguous tensors.)",
        ),
        Criterion(
            "empty shards",
            1,
            "0 * NaN is NaN: leave out a worker whose count is 0, and only such a worker. A NaN where there "
            "were samples must stay visible.",
            needs=("unequal shards",),
        ),
        Criterion(
            "gradients unchanged",
            1,
            "Add into a new tensor: `total = gradients[0]; total += ...` overwrites worker 0's gradient, and "
            "so does every method whose name ends in an underscore.",
        ),
    ),
    hints=(
        "What is the loss over all n samples, written as a sum over workers? That worker's sum, divided by "
        "n.",
        "What is a worker's sum, if you know its mean and how many samples it has? And so its gradient?",
        "What is 0 times NaN? NaN: a worker without samples must not come into the sum at all.",
    ),
)
def combine_gradients(answer: Answer, rng: Rng) -> Findings:
    """The m_k / n formula, with tensors of none to three dimensions, in three precisions."""
    workers, count = rng.integer(2, 5), rng.integer(1, 9)
    even, equal = draw_gradients(rng, workers, dims=2), [count] * workers
    of_equal = combined(answer, even, equal)
    what = f"the combination of {workers} means over {compare.counted(count, 'sample')}"
    yield "equal shards", compare.close(of_equal.result, torch.stack(even).mean(0), what)

    # A single sample counts too.
    counts = [1, *(rng.integer(5, 20) for _ in range(workers - 1))]
    doubles = draw_gradients(rng, workers, dims=1, dtype=torch.float64)
    seen = combined(answer, doubles, counts)
    what = f"the combination of means over {counts} samples"
    # In double precision a detour through single precision shows; beside a scalar, the dtype of a weight.
    right = compare.close(seen.result, weighted_mean(doubles, counts), what, 1e-12, 1e-13)
    scalars = draw_gradients(rng, workers, dims=0, dtype=torch.float16)
    of_scalars = combined(answer, scalars, counts)
    scalar = compare.close(of_scalars.result, weighted_mean(scalars, counts), f"of scalars, {what}", *HALF)
    yield "unequal shards", compare.first_failure([right, scalar, not_contiguous(answer, even, counts)])

    # In half precision the dtype of zeros in place of an empty shard shows.
    gradients = draw_gradients(rng, workers, dims=3, dtype=torch.float16)
    nothing = torch.full_like(gradients[0], torch.nan)
    nothing.view(-1)[0] = torch.inf
    endless = torch.full_like(nothing, torch.inf)
    with_empty = [nothing, gradients[0], endless, *gradients[1:], nothing.clone()]
    with_none = [0, counts[0], 0, *counts[1:], 0]
    empty = combined(answer, with_empty, with_none)
    what = f"the combination of means over {with_none} samples"
    left_out = compare.close(empty.result, weighted_mean(gradients, counts), what, *HALF)
    more = nothing_hidden(answer, gradients, scalars, counts)
    yield "empty shards", compare.first_failure(chain([left_out], more))

    alone = combined(answer, gradients[:1], counts[:1])
    replies = (
        (of_equal, even, equal),
        (seen, doubles, counts),
        (of_scalars, scalars, counts),
        (empty, with_empty, with_none),
        (alone, gradients[:1], counts[:1]),
    )
    yield "gradients unchanged", compare.first_failure(given_kept(*reply) for reply in replies)


HALF = 1e-2, 2e-2
"""Tolerances in half precision."""


def not_contiguous(answer: Answer, gradients: list[Tensor], counts: list[int]) -> Finding:
    """Whether gradients may stand in memory column by column, as backward leaves some."""
    seen = combined(answer, gradients, counts, by_columns=True).result
    what = f"of gradients that are not contiguous, the combination of means over {counts} samples"
    return compare.close(seen, weighted_mean(gradients, counts), what)


def nothing_hidden(
    answer: Answer, gradients: list[Tensor], scalars: list[Tensor], counts: list[int]
) -> Iterator[Finding]:
    """Whether a NaN is left out that is a scalar of an empty shard, and none of a worker with samples, be
    there an empty shard or not. gradients: of one shape, as many as scalars, and as counts, none of which is
    0.
    """
    fewer = [*counts, 0]
    scalar = combined(answer, [*scalars, torch.full_like(scalars[0], torch.nan)], fewer).result
    what = f"of scalars, the combination of means over {fewer} samples"
    yield compare.close(scalar, weighted_mean(scalars, counts), what, *HALF)
    all_nan = torch.full_like(gradients[0], torch.nan)
    some_nan = gradients[0].clone()
    some_nan.view(-1)[1:] = torch.nan
    with_empty = [counts[0], 0, *counts[1:]]
    seen = combined(answer, [some_nan, gradients[0], *gradients[1:]], with_empty).result
    yield nan_kept(seen, with_empty, 0)
    yield nan_kept(combined(answer, [*gradients[:-1], all_nan], counts).result, counts, len(counts) - 1)


def combined(
    answer: Answer, gradients: list[Tensor], counts: list[int], by_columns: bool = False
) -> CombineReply:
    """What the answer makes of copies of the gradients, of one shape. by_columns: see `drivers.combine`."""
    return answer.call(drivers.combine, [gradient.clone() for gradient in gradients], counts, by_columns)


def draw_gradients(rng: Rng, workers: int, dims: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A gradient a worker, all of one drawn shape of `dims` sizes from 2 to 4."""
    shape = [rng.integer(2, 4) for _ in range(dims)]
    return [rng.normal(*shape, dtype=dtype) for _ in range(workers)]


def weighted_mean(tensors: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """The mean of the tensors, all of one shape, each counted as often as its weight says."""
    stacked = torch.stack(list(tensors)).double()
    mean: Tensor = torch.tensordot(torch.tensor(weights, dtype=stacked.dtype), stacked, dims=1) / sum(weights)
    return mean.to(tensors[0].dtype)


def nan_kept(seen: Any, counts: Sequence[int], worker: int) -> Finding:
    """Passes if the NaN of this worker, which had samples, is in the combination: it must not be hidden."""
    hidden = isinstance(seen, Tensor) and not seen.isnan().any()
    text = (
        f"Of workers with {[*counts]} samples worker {worker} has NaN in its gradient, and the combination "
        "has none; expected NaN there."
    )
    return Finding(not hidden, text if hidden else "Only what an empty shard holds is left out.")


def given_kept(seen: CombineReply, given: Sequence[Tensor], counts: list[int]) -> Finding:
    """Passes if the gradients given, of one shape, and the counts are as they were, and the result has memory
    of its own.
    """
    if not compare.same(seen.counts, counts):
        return Finding(False, f"The counts {counts} have become {compare.shown(seen.counts)}.")
    if len(seen.gradients) != len(given):
        return Finding(False, f"Of {len(given)} gradients that were given {len(seen.gradients)} are left.")
    for worker, (now, before) in enumerate(zip(seen.gradients, given, strict=True)):
        # As bits, since NaN equals nothing.
        if _bits(now) != _bits(before):
            return Finding(False, f"the gradient given for worker {worker} has changed.")
    if seen.shared:
        return Finding(
            False, "The result shares memory with a gradient that was given; expected a new tensor."
        )
    return Finding(True, "The gradients that were given are as they were, and the result is a new tensor.")


def _bits(tensor: Any) -> bytes:
    return bytes(tensor.flatten().view(torch.uint8).numpy()) if isinstance(tensor, Tensor) else b""
