"""Unit 07, the deadlock lab: groups and counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, starmap
from typing import Any

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
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
    per_rank,
)
from graders.units.unit_07 import drivers, lab
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


@exercise(
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            lab.ENDS,
            1,
            "Rank 0 cannot know how many rows another rank has, unless it is told.",
            needs=("all rows on rank 0",),
        ),
        Criterion(
            "all rows on rank 0",
            1,
            "In the order of ranks. Name the source of each recv: without one it takes whatever comes first.",
        ),
        Criterion(
            "a new list",
            1,
            "`collected = list(rows)` begins with a copy of rank 0's own list; others return None.",
        ),
        Criterion("ranks without rows", 1, "A rank may have no row at all: its count is 0."),
        Criterion(
            "each row sent once",
            1,
            "Send one count, then the rows; padding to the longest, or a flag for each row, sends more.",
        ),
    ),
    hints=(
        "How can rank 0 know how many rows will come? A count is a tensor too: torch.tensor([len(rows)]).",
    ),
)
def mend_collect(answer: Answer, rng: Rng) -> Findings:
    """Rows of all ranks, collected by rank 0."""
    counts = [rng.integer(1, 2), rng.integer(3, 4), rng.integer(18, 20), 1]
    given = [[rng.normal(40) for _ in range(count)] for count in counts]
    observed = lab.launched(answer, given)
    yield lab.ENDS, lab.ends([observed])
    collected = rows_collected(observed, given)
    yield "all rows on rank 0", rows_in_order(answer, given) if collected.passed else collected
    alone = [given[1]]
    runs = [(observed, given), (lab.launched(answer, alone), alone)]
    kept = compare.first_failure(chain.from_iterable(starmap(lists_alone, runs)))
    yield "a new list", kept
    sparse: tuple[list[list[Tensor]], ...] = ([[], given[1], [], given[2]], [[], []])
    runs += [(lab.launched(answer, rows), rows) for rows in sparse]
    found = ([rows_collected(*run), *(lists_alone(*run) if kept.passed else ())] for run in runs[1:])
    yield "ranks without rows", compare.first_failure(chain.from_iterable(found))
    yield "each row sent once", compare.first_failure(starmap(rows_sent_once, runs))


def lists_alone(observed: Observed[MendedReply], given: Sequence[list[Tensor]]) -> list[Finding]:
    """Of the lists that ranks were given, and of what others than rank 0 return."""
    return [lists_kept(observed, given), none_elsewhere(observed)]


def rows_collected(observed: Observed[MendedReply], given: Sequence[list[Tensor]]) -> Finding:
    """Passes if rank 0 has every rank's rows [40] in the order of ranks."""
    expected = [row for rows in given for row in rows]
    where = f"with {[len(rows) for rows in given]} rows on the ranks, "
    first = observed.results[0].result
    if type(first) not in (list, tuple) or len(first) != len(expected):
        got = f"{len(first)} rows" if type(first) in (list, tuple) else f"a {type(first).__name__}"
        said = f"{where}rank 0 returned {got}; expected a list of {len(expected)} rows."
        return Finding(
            False, said, hint="Rank 0 has to learn how many rows each rank has; nothing is padded."
        )
    rows = enumerate(zip(first, expected, strict=True))
    found = [Finding(True, f"{where}rank 0 returned a list of as many.")]
    found += [compare.close(seen, wanted, f"{where}row {index} on rank 0") for index, (seen, wanted) in rows]
    counts = [len(each) for each in given]
    return compare.first_failure(found, f"rank 0 has all {len(expected)} rows, of {counts} a rank.")


def lists_kept(observed: Observed[MendedReply], given: Sequence[list[Tensor]]) -> Finding:
    """Passes if each rank's list has the rows that it had, and rank 0 returned another list."""
    where = f"with {[len(rows) for rows in given]} rows on the ranks, "
    for rank, (told, own) in enumerate(compare.side_by_side(observed.results, given)):
        if not compare.same(told.argument, own):
            said = f"rank {rank}'s own list of rows has changed, or a row in it; expected it as it was."
            return Finding(False, f"{where}{said}")
    first = observed.results[0]
    new = type(first.result) is list and not first.same
    kind = "the list that it was given" if first.same else f"a {type(first.result).__name__}"
    return Finding(new, f"{where}rank 0 returned {kind}; expected a new list.")


def none_elsewhere(observed: Observed[MendedReply]) -> Finding:
    """Passes if rank 0 alone returns something."""
    others = [rank for rank, told in enumerate(observed.results) if rank and told.result is not None]
    said = f"rank {others[0]} returned something; expected None." if others else "Others return None."
    return Finding(not others, said, hint="Only rank 0 returns a list.")


def rows_in_order(answer: Answer, given: Sequence[list[Tensor]]) -> Finding:
    """Passes if rank 0 has the rows [40] in order, also where rank 1 is the last to send anything."""
    cluster = Cluster(devices_per_node=len(given), memory_bandwidth=1e9)
    try:
        observed = answer.launch(drivers.mended_late, per_rank(given), 1, ranks=len(given), cluster=cluster)
    except AnswerFailed as failure:
        return Finding(False, f"Where rank 1 is late: {failure.kind}: {failure.report.splitlines()[0]}")
    return rows_collected(observed, given)


SMALL = 64
"""Bytes a rank that may be sent beside the rows: counts, in whatever form."""


def rows_sent_once(observed: Observed[MendedReply], given: Sequence[list[Tensor]]) -> Finding:
    """Passes if each rank sends its rows [40] once, rank 0 none, and hardly anything else."""
    for rank, rows in enumerate(given):
        allowed = (sum(row.nbytes for row in rows) if rank else 0) + SMALL
        sent = observed.traffic[rank].sent
        if sent > allowed:
            counts = [len(each) for each in given]
            text = (
                f"with {counts} rows on the ranks, rank {rank} sends {sent:,} bytes; {allowed:,} are enough"
            )
            return Finding(False, f"{text}.")
    return Finding(True, "Each row is sent once, with a few bytes for the counts.")
