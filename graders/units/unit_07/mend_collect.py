"""The grader of `mend_collect`."""

from collections.abc import Sequence
from itertools import chain, starmap

from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
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
