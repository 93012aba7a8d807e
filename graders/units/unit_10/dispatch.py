"""The grader of `dispatch`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.unit_10.cases import Places, Setting, leaving, parts_of
from graders.units.unit_10.rows import calls, gradients, kept
from graders.units.unit_10.stage import both_ways


@dataclass(frozen=True, slots=True)
class Rows(Setting):
    """own: experts of each rank. silent: ranks that send nothing; lonely: ranks to which nobody sends."""

    ranks: int = feature(3, "{} ranks")
    own: int = feature(2, "{} experts each")
    silent: tuple[int, ...] = feature((), lambda ranks: f"nothing from {[*ranks]}" if ranks else "")
    lonely: tuple[int, ...] = feature((), lambda ranks: f"nothing for {[*ranks]}" if ranks else "")


def drawn_rows(rng: Rng, case: Rows) -> Places:
    """x_RD and counts of each place."""
    given = []
    for place in range(case.ranks):
        counts = rng.integers(0, 3, case.ranks, case.own) * (place not in case.silent)
        counts[list(case.lonely)] = 0
        given.append([rng.normal(int(counts.sum()), 3).to(case.dtype), counts.flatten()])
    return given


def what_leaves(case: Rows, given: Places) -> list[tuple[int, int]]:
    """Bytes of counts and rows in forward, and of gradients in backward, but for those that stay."""
    rows = torch.stack([counts.view(-1, case.own).sum(1) for _, counts in given])
    return leaving(rows, case.dtype, before=8 * case.own * (case.ranks - 1))


@both_ways(
    base=Rows(),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "rows and received",
            4,
            "The first E / p counts are rank 0's: how many rows is that? And who sends here? received has a "
            "number for each rank and each expert here.",
        ),
        Criterion(
            "gradient",
            3,
            "Backward is the same journey the other way: what was sent comes back, from where it went.",
            how=gradients,
        ),
        Criterion(
            "empty hands",
            1,
            "A rank may have nothing to send, or nothing to get: the calls stay.",
            vary=vary(silent=((1,),), lonely=((2,),), ranks=(1,), own=(1,)),
        ),
        Criterion(
            "any dtype",
            1,
            "Make room in the rows' own dtype; arguments stay.",
            vary=vary(dtype=(torch.bfloat16,)),
            how=kept,
        ),
        Criterion(
            "calls and bytes",
            2,
            "Counts, then rows; in backward, rows. Rows that stay here cross no link, and no row is padding.",
            how=calls(["all_to_all_single"] * 2, ["all_to_all_single"], what_leaves),
        ),
        Criterion(
            "group",
            1,
            "Each collective takes a group, in backward too; and places are those in it.",
            vary=both(group=1, ranks=2),
        ),
    ),
    hints=(
        "What does each rank have to know before it can make room for what comes?",
        "counts.view(p, -1): what is its r-th row, and what its sum?",
        "dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group): which of the "
        "two lists is which in backward?",
    ),
    names=("x_RD", "counts"),
    arguments=drawn_rows,
    written=lambda case: (
        f"torch.full(({case.ranks * case.own}, 2), float(dist.get_rank())), "
        f"torch.ones({case.ranks * case.own}, dtype=torch.int64)"
    ),
    possible=lambda case: max((*case.silent, *case.lonely), default=0) < case.ranks,
)
def dispatch(case: Rows, given: Places) -> list[tuple[Tensor, Tensor]]:
    """Place by place what each has for this one."""
    counts = [counts.view(-1, case.own) for _, counts in given]
    parts = [parts_of(x_RD, each) for (x_RD, _), each in zip(given, counts, strict=True)]
    return [
        (torch.cat([each[place] for each in parts]), torch.stack([each[place] for each in counts]))
        for place in range(case.ranks)
    ]
