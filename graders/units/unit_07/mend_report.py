"""The grader of `mend_report`."""

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Criterion, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import one_call
from graders.units.ranks.stage import Arguments, on_ranks


def a_loss_on_each(rng: Rng, case: Ranks) -> list[Arguments]:
    """One number a rank."""
    return [[rng.integer(100_000, 999_999) / 1e6] for _ in range(case.ranks)]


@on_ranks(
    base=Ranks(),
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "the mean on rank 0",
            3,
            "A collective is called by every rank of its group, or by none. The sum of all ranks' losses "
            "divided by their number; `.item()` makes a float of a tensor. Others return None.",
            vary=vary(ranks=(1, 3)),
        ),
        Criterion("one collective", 1, "One all_reduce on every rank; nothing else is needed.", how=one_call),
    ),
    hints=("What belongs behind `if rank == 0`, and what does not?",),
    arguments=a_loss_on_each,
    calls=("all_reduce",),
    written=lambda case: "float(dist.get_rank())",
)
def mend_report(case: Ranks, given: list[Arguments]) -> list[Expected]:
    """The mean loss, reported by rank 0."""
    mean = sum(loss for (loss,) in given) / case.ranks
    return [Expected(None if rank else mean, {"loss": loss}, None) for rank, (loss,) in enumerate(given)]
