"""The grader of `mend_report`."""

from graders.grading import compare
from graders.grading.communication import each_rank_calls
from graders.grading.kit import (
    Answer,
    Criterion,
    Findings,
    Rng,
    exercise,
)
from graders.units.unit_07 import lab


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            lab.ENDS,
            1,
            "A collective is called by every rank of its group, or by none.",
            needs=("the mean on rank 0",),
        ),
        Criterion(
            "the mean on rank 0",
            1,
            "The sum of all ranks' losses divided by their number; `.item()` makes a float of a tensor.",
        ),
        Criterion("None elsewhere", 1, "What to do with the result may well depend on the rank."),
        Criterion("one collective", 1, "One all_reduce on every rank; nothing else is needed."),
    ),
    hints=("What belongs behind `if rank == 0`, and what does not?",),
)
def mend_report(answer: Answer, rng: Rng) -> Findings:
    """The mean loss, reported by rank 0."""
    given = [[rng.integer(1, 999_999) / 1e9 for _ in range(3)]]
    # A likelihood's logarithm is a loss, too.
    given += [[rng.integer(-999_999, 99_999) / 1e5 for _ in range(4)], [0.0]]
    runs = [lab.launched(answer, losses) for losses in given]
    yield lab.ENDS, lab.ends(runs)
    means = [sum(losses) / len(losses) for losses in given]
    yield (
        "the mean on rank 0",
        compare.first_failure(
            lab.numbers(run, losses, [mean]) for run, losses, mean in zip(runs, given, means, strict=True)
        ),
    )
    elsewhere = (
        lab.numbers(run, losses, [mean, *[None] * (len(losses) - 1)])
        for run, losses, mean in zip(runs, given, means, strict=True)
    )
    yield "None elsewhere", compare.first_failure(elsewhere)
    yield "one collective", each_rank_calls(runs, ("all_reduce",), "Every rank calls all_reduce once.")
