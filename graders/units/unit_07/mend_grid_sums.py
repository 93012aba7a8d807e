"""The grader of `mend_grid_sums`."""

from dataclasses import dataclass, replace

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_07.swapping import A_TENSOR_OF_ITS_OWN, OneTensor, x_on_each


@dataclass(frozen=True, slots=True)
class Grid(OneTensor):
    """Ranks in rows of so many columns."""

    ranks: int = feature(6, "{} ranks")
    columns: int = feature(3, "{} columns")

    def lines(self, rank: int) -> tuple[list[int], list[int]]:
        """The ranks of this rank's row and column."""
        row, column = divmod(rank, self.columns)
        first = row * self.columns
        return list(range(first, first + self.columns)), list(range(column, self.ranks, self.columns))


def x_and_columns(rng: Rng, case: Grid) -> list[Arguments]:
    """A tensor a rank, and the columns of the grid."""
    return [[x, case.columns] for (x,) in x_on_each(rng, case)]


def in_two_groups(tried: Tried[Grid]) -> Finding:
    """Passes if every rank makes two all-reduces, one in its row's group and one in its column's."""
    grid = tried.case.features
    for rank, events in enumerate(tried.seen.by_rank):
        seen = sorted((event.op, sorted(event.group)) for event in events)
        wanted = sorted(("all_reduce", line) for line in grid.lines(rank))
        if seen != wanted:
            text = "; ".join(f"{op} among {group}" for op, group in seen) or "nothing"
            among = " and among ".join(str(line) for line in grid.lines(rank))
            return Finding(False, f"rank {rank} calls {text}; expected all_reduce among {among}.")
    return Finding(True, "one all_reduce in the row and one in the column, on every rank.")


@on_ranks(
    base=Grid(),
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            "row and column sums",
            3,
            "dist.new_group is called by every rank of the world, for every group, in the same order, also "
            "for groups that the rank is not in. The row of rank r is r // columns, its column r % columns.",
        ),
        Criterion(
            "any grid",
            1,
            "A grid has size // columns rows and `columns` columns: it need not be square.",
            vary=both(ranks=4, columns=2) + both(ranks=3, columns=1) + both(ranks=2, columns=2),
        ),
        replace(A_TENSOR_OF_ITS_OWN, vary=vary(dtype=(torch.int64,), shape=((2, 3),))),
        Criterion(
            "within groups",
            1,
            "One all_reduce in the row's group and one in the column's.",
            how=in_two_groups,
        ),
    ),
    hints=(
        "Which groups does a rank have to help make, those that it is in, or all? Two loops, over all "
        "rows and over all columns; each rank keeps two groups.",
    ),
    arguments=x_and_columns,
    calls=None,
    written=lambda case: f"torch.full((2, 3), float(10 ** dist.get_rank())), {case.columns}",
)
def mend_grid_sums(case: Grid, given: list[Arguments]) -> list[Expected]:
    """Ranks in a grid: sums along rows and along columns."""
    sums = [
        tuple(torch.stack([given[other][0] for other in line]).sum(0) for line in case.lines(rank))
        for rank in range(case.ranks)
    ]
    return [
        Expected(pair, {"x": x, "columns": ANYTHING}, None) for pair, (x, _) in zip(sums, given, strict=True)
    ]
