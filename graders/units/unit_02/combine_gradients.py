"""The grader of `combine_gradients`."""

from dataclasses import dataclass

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.ranks.features import LAYOUTS

SOME_EMPTY = (0, 3, 0, 7, 0)
"""Empty shards first, last, and between."""


@dataclass(frozen=True, slots=True)
class Shards:
    """counts: of the workers' samples; gradients of empty shards are NaN. dtype, layout: of gradients. nan:
    whether the first gradient is NaN whose worker has samples.
    """

    counts: tuple[int, ...] = feature((3, 3, 3), lambda counts: f"{[*counts]} samples")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    layout: str = feature("contiguous", LAYOUTS.__getitem__)
    nan: bool = feature(False, lambda nan: "a gradient NaN whose worker has samples" if nan else "")

    @property
    def tolerance(self) -> float:
        return 1e-12 if self.dtype is torch.float64 else 1e-5


def gradients_and_counts(rng: Rng, shards: Shards) -> Arguments:
    """A gradient of each worker, and how many samples it had."""
    drawn = [rng.normal(3, 4, dtype=shards.dtype) for _ in shards.counts]
    given = [g if n else torch.full_like(g, torch.nan) for g, n in zip(drawn, shards.counts, strict=True)]
    if shards.nan:
        given[next(worker for worker, n in enumerate(shards.counts) if n)].fill_(torch.nan)
    return [given, list(shards.counts)]


@of_function(
    base=Shards(),
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion("equal shards", 1, "With equal counts the formula is the plain mean of the gradients."),
        Criterion(
            "unequal shards",
            1,
            "Worker k's gradient is a mean. What is the sum over its m_k samples? And over all n? "
            "(A weight that is a tensor may change the dtype; view(-1) wants contiguous tensors.)",
            vary=vary(counts=((1, 7, 16), (4,)), layout=("transposed",))
            + both(counts=(1, 7, 16), dtype=torch.float64),
        ),
        Criterion(
            "empty shards",
            1,
            "0 * NaN is NaN: leave out a worker whose count is 0, and only such a worker. A NaN where there "
            "were samples must stay visible.",
            needs=("unequal shards",),
            vary=vary(counts=(SOME_EMPTY,), nan=(True,)),
        ),
        Criterion(
            "gradients unchanged",
            1,
            "Add into a new tensor: `total = gradients[0]; total += ...` overwrites worker 0's gradient, and "
            "so does every method whose name ends in an underscore.",
            how=kept,
        ),
    ),
    hints=(
        "What is the loss over all n samples, written as a sum over workers? That worker's sum, divided by "
        "n.",
        "What is a worker's sum, if you know its mean and how many samples it has? And so its gradient?",
        "What is 0 times NaN? NaN: a worker without samples must not come into the sum at all.",
    ),
    arguments=gradients_and_counts,
)
def combine_gradients(shards: Shards, given: Arguments) -> Expected:
    """The m_k / n formula, over workers that have samples."""
    gradients, counts = given
    total = sum(n / sum(counts) * g.double() for g, n in zip(gradients, counts, strict=True) if n)
    mean = total.to(shards.dtype)
    return Expected(mean, {"gradients": gradients, "counts": counts}, returned=None)
