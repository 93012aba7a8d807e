"""Unit 12, one number for all."""

import torch

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise, per_rank
from graders.units.unit_12 import drivers


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("mean over ranks", 2, "Divide the sum over ranks by the number of ranks."),
        Criterion("x unchanged", 1, "dist.all_reduce works in place: give it a copy."),
        Criterion("one collective", 1, "One dist.all_reduce is enough."),
    ),
    hints=("Which collective gives every rank the sum?",),
)
def hybrid_example(answer: Answer, rng: Rng) -> Findings:
    """The mean in a drawn world, then what became of x and what it cost."""
    ranks, length = rng.integer(3, 5), rng.integer(2, 9)
    given = [rng.normal(length) for _ in range(ranks)]
    run = answer.launch(drivers.example, per_rank(given), ranks=ranks)

    seen = [reply.result for reply in run.results]
    expected = [torch.stack(given).mean(0)] * ranks
    yield "mean over ranks", compare.close_on_all_ranks(seen, expected, "the mean")
    left = [reply.x for reply in run.results]
    yield "x unchanged", compare.close_on_all_ranks(left, given, "x after the call", rtol=0, atol=0)
    yield "one collective", compare.at_most(len(run.calls(0)), 1, "Calls of rank 0")
