"""The grader of `mend_collect`."""

from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks

SMALL = 64
"""Bytes a rank that may be sent beside the rows: counts, in whatever form."""


@dataclass(frozen=True, slots=True)
class Rows(Ranks):
    """counts: of each rank's rows."""

    counts: tuple[int, ...] = feature((2, 3, 18, 1), lambda counts: f"{[*counts]} rows on the ranks")


def rows_on_each(rng: Rng, case: Rows) -> list[Arguments]:
    """A list of rows [40] a rank."""
    return [[[rng.normal(40) for _ in range(count)]] for count in case.counts]


def sent_once(tried: Tried[Rows]) -> Finding:
    """Passes if each rank sends its rows [40] once, rank 0 none, and hardly anything else."""
    for rank, (events, count) in enumerate(zip(tried.seen.by_rank, tried.case.features.counts, strict=True)):
        allowed = (160 * count if rank else 0) + SMALL
        sent = sum(event.sent for event in events)
        if sent > allowed:
            return Finding(False, f"rank {rank} sends {sent:,} bytes; {allowed:,} are enough.")
    return Finding(True, "each row is sent once, with a few bytes for the counts.")


@on_ranks(
    base=Rows(),
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            "all rows on rank 0",
            2,
            "Rank 0 cannot know how many rows another rank has, unless it is told. In the order of ranks; "
            "others return None.",
        ),
        Criterion(
            "ranks without rows",
            1,
            "A rank may have no row at all: its count is 0.",
            vary=vary(counts=((0, 3, 0, 2), (0, 0, 0, 0))),
        ),
        Criterion(
            "a new list", 1, "`collected = list(rows)` begins with a copy of rank 0's own list.", how=kept
        ),
        Criterion(
            "each row sent once",
            1,
            "Send one count, then the rows; padding to the longest, or a flag for each row, sends more.",
            how=sent_once,
        ),
    ),
    hints=(
        "How can rank 0 know how many rows will come? A count is a tensor too: torch.tensor([len(rows)]).",
    ),
    arguments=rows_on_each,
    calls=None,
    written=lambda case: f"[torch.ones(40)] * {[*case.counts]}[dist.get_rank()]",
)
def mend_collect(case: Rows, given: list[Arguments]) -> list[Expected]:
    """Rows of all ranks, collected by rank 0."""
    collected = [row for (rows,) in given for row in rows]
    return [Expected(None if rank else collected, {"rows": rows}, None) for rank, (rows,) in enumerate(given)]
