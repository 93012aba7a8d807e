"""The grader of `mend_grid_sums`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from graders.grading import compare
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Observed,
    Rng,
    exercise,
)
from graders.units.unit_07 import lab
from graders.units.unit_07.drivers import MendedReply


@exercise(
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            lab.ENDS,
            2,
            "dist.new_group is called by every rank of the world, for every group, in the same order, also "
            "for groups that the rank is not in. A grid has size // columns rows and `columns` columns: it "
            "need not be square.",
            needs=("row sums", "column sums"),
        ),
        Criterion("row sums", 1, "The row of rank r is r // columns."),
        Criterion("column sums", 1, "The column of rank r is r % columns.", needs=()),
        Criterion(
            "tensors of its own",
            1,
            "all_reduce works in place: give it a copy, x.clone(), which has x's shape and device.",
        ),
        Criterion("within groups", 1, "One all_reduce in the row's group and one in the column's."),
    ),
    hints=(
        "Which groups does a rank have to help make, those that it is in, or all? Two loops, over all "
        "rows and over all columns; each rank keeps two groups.",
    ),
)
def mend_grid_sums(answer: Answer, rng: Rng) -> Findings:
    """Ranks in a grid: sums along rows and along columns."""
    shapes = ((2, 2), (3, 1), (1, 2), (2, 3))
    given = [lab.tensors(rng, rows * columns, whole=1 in (rows, columns)) for rows, columns in shapes]
    runs = [
        lab.launched(answer, tensors, columns) for tensors, (_, columns) in zip(given, shapes, strict=True)
    ]
    yield lab.ENDS, lab.ends(runs)
    pairs_returned(runs)
    # The last grid first: in it neither a row nor a column is the whole.
    grids = list(zip(runs, given, (columns for _, columns in shapes), strict=True))[::-1]
    in_rows = _in_rows(grids)
    turned = not in_rows.passed and _in_rows(grids, position=1).passed
    yield "row sums", replace(in_rows, hint="Return (row sum, column sum).") if turned else in_rows

    def in_columns(position: int, tolerance: float) -> Finding:
        found = (
            grid_sums(*grid, position, lambda rank, columns: rank % columns, tolerance) for grid in grids
        )
        return compare.first_failure(found)

    # Of a pair the wrong way round, or in another precision, the row before this one has told.
    found = in_columns(1, DOUBLE if in_rows.passed else SINGLE)
    yield "column sums", found if found.passed or in_rows.passed else in_columns(0, SINGLE)
    yield "tensors of its own", lab.its_own(answer, runs, given, 2, layouts=("meta", "transposed"), parts=2)
    yield "within groups", grid_groups(runs[-1], shapes[-1][1])


def pairs_returned(runs: Sequence[Observed[MendedReply]]) -> None:
    """Raises AnswerFailed if a rank returned no tuple or list of two, or one sum as both: they cannot be
    judged each by itself then. The last run is of a grid in which no rank has two that are equal.
    """
    for rank, told in chain.from_iterable(enumerate(run.results) for run in runs):
        if type(told.result) not in (tuple, list) or len(told.result) != 2:
            said = f"Rank {rank} returned {compare.shown(told.result, 60)}; expected a tuple or list of two."
            raise AnswerFailed(FailureKind.NOT_ASKED, said)
    if all(compare.same(*told.result) for told in runs[-1].results):
        said = "Both sums are the same: each needs a copy of x of its own, x.clone()."
        raise AnswerFailed(FailureKind.NOT_ASKED, said)


def _in_rows(
    grids: Sequence[tuple[Observed[MendedReply], Sequence[Tensor], int]], position: int = 0
) -> Finding:
    """Passes if in each grid the sums along rows stand at this position."""
    return compare.first_failure(
        grid_sums(*grid, position, lambda rank, columns: rank // columns) for grid in grids
    )


def grid_groups(observed: Observed[MendedReply], columns: int) -> Finding:
    """Passes if every rank makes two all-reduces, one in its row's group and one in its column's."""
    ranks = len(observed.results)
    for rank in range(ranks):
        row = tuple(r for r in range(ranks) if r // columns == rank // columns)
        column = tuple(r for r in range(ranks) if r % columns == rank % columns)
        seen = sorted((event.op, tuple(sorted(event.group))) for event in observed.communication(rank))
        if seen != sorted([("all_reduce", row), ("all_reduce", column)]):
            text = "; ".join(f"{op} among {list(group)}" for op, group in seen) or "nothing"
            return Finding(
                False,
                f"rank {rank} calls {text}; expected all_reduce among {list(row)} and among {list(column)}.",
            )
    return Finding(True, "One all_reduce in the row and one in the column, on every rank.")


DOUBLE, SINGLE = 1e-12, 1e-5
"""How far a sum may be off."""


def grid_sums(
    observed: Observed[MendedReply],
    given: Sequence[Tensor],
    columns: int,
    position: int,
    line: Callable[[int, int], int],
    tolerance: float = DOUBLE,
) -> Finding:
    """Passes if each rank's pair has at `position` the sum over the ranks on the same line of the grid.

    given: a tensor a rank, all of one shape. line: which one a rank is on in a grid of so many columns.
    """

    def one(rank: int, pair: Any) -> Finding:
        mine = line(rank, columns)
        wanted = torch.stack([x for other, x in enumerate(given) if line(other, columns) == mine]).sum(0)
        where = f"rank {rank} of a grid of {len(given) // columns} x {columns}"
        seen = pair[position]
        if tolerance == SINGLE and isinstance(seen, Tensor):
            seen = seen.to(wanted.dtype)
        return compare.close(seen, wanted, f"the sum on {where}", tolerance, tolerance)

    return compare.first_failure(one(rank, told.result) for rank, told in enumerate(observed.results))
