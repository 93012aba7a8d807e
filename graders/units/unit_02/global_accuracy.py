"""The grader of `global_accuracy`."""

from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import one_call
from graders.units.ranks.stage import Arguments, on_ranks


@dataclass(frozen=True, slots=True)
class Counted(Ranks):
    """totals: how many samples each rank has, a hundredth more or less."""

    ranks: int = 4  # As many as totals.
    totals: tuple[int, ...] = feature((1000, 2000, 10, 500), lambda totals: f"about {[*totals]} samples")

    @property
    def launched(self) -> int:
        return len(self.totals)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(range(len(self.totals)))


def right_of_all(rng: Rng, case: Counted) -> list[Arguments]:
    """Of each rank how many are right, many on every second one and few on others, and how many there are."""
    totals = [total - rng.integer(0, total // 100) for total in case.totals]
    return [
        [rng.integer(total // 2, total) if place % 2 else rng.integer(total // 10, total // 4), total]
        for place, total in enumerate(totals)
    ]


@on_ranks(
    base=Counted(),
    minutes=5,
    difficulty=2,
    rubric=(
        Criterion(
            "weighted by samples",
            1,
            "Add up what is right and what there is, over all ranks, then divide: the mean of the ranks' "
            "accuracies is another number. Every rank returns it, as a float.",
            # As many as the tokens of a text: together more than fit into 32 bits.
            vary=vary(totals=((70,), (50, 30), (30, 2 * 10**9, 10**9, 2 * 10**9))),
        ),
        Criterion(
            "rank without samples",
            1,
            "A rank may have total == 0: divide only after summing.",
            # So few that one too many shows; of two none is right.
            vary=vary(totals=((0, 4, 2, 0), (11, 0))),
        ),
        Criterion(
            "one collective",
            1,
            "Put both counts in one tensor: latency is paid a call, not a number.",
            how=one_call,
        ),
    ),
    hints=(
        "Which two numbers of the ranks can be added? torch.tensor([correct, total]) is one tensor, and "
        "all_reduce adds it up element by element.",
    ),
    arguments=right_of_all,
    calls=("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "gather", "all_to_all"),
)
def global_accuracy(case: Counted, given: list[Arguments]) -> list[Expected]:
    """All that is right over all there is."""
    accuracy = sum(right for right, _ in given) / sum(total for _, total in given)
    return [Expected(accuracy, {"correct": right, "total": total}, None) for right, total in given]
