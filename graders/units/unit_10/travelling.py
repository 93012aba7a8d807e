"""Unit 10, rows that travel to their experts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.groups import members_of
from graders.units.passes import calls_in_passes
from graders.units.unit_10 import drivers
from graders.units.unit_10.journeys import (
    CALL,
    GROUP,
    PASSES,
    Replies,
    arguments,
    leave,
    needed,
    parts_of,
)
from graders.units.unit_10.worlds import PAIRS

RIGHT = ("rows", "received", "gradient")


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "rows", 3, "The first E / p counts are rank 0's: how many rows is that? And who sends here?"
        ),
        Criterion("received", 1, "One number for each rank and each expert here."),
        Criterion(
            "gradient",
            3,
            "Backward is the same journey the other way: what was sent comes back, from where it went. Where "
            "x needs no gradient, there is none to ask for.",
        ),
        Criterion(
            "empty hands",
            1,
            "A rank may have nothing to send, or nothing to get: the calls stay.",
            needs=RIGHT,
        ),
        Criterion(
            "layout and arguments",
            1,
            "Rows, of any dtype, and gradients that arrive may stand in memory in any order; arguments stay.",
            needs=RIGHT,
        ),
        Criterion("calls", 1, "Counts, then rows; in backward, rows.", needs=("rows", "gradient")),
        Criterion(
            "bytes", 1, "Rows that stay here cross no link, and no row is padding.", needs=("rows", "calls")
        ),
        replace(GROUP, needs=RIGHT),
    ),
    hints=(
        "What does each rank have to know before it can make room for what comes?",
        "counts.view(p, -1): what is its r-th row, and what its sum?",
        "dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group): which of the "
        "two lists is which in backward?",
    ),
)
def dispatch(answer: Answer, rng: Rng) -> Findings:
    """Drawn rows for drawn experts."""
    plain = Sent.drawn(rng, 3, 2)
    run = plain.launch(answer)
    yield "rows", plain.rows(run)
    yield "received", plain.came(run)
    # As in the first layer of a model, and where what stands before is frozen.
    frozen = Sent.drawn(rng, 2, 2, learns=False)
    yield "gradient", compare.first_failure((plain.gradient(run), frozen.unasked(frozen.launch(answer))))
    uneven = [
        Sent.drawn(rng, 3, 2, silent=[1]),
        Sent.drawn(rng, 4, 1, lonely=[2]),
        Sent.drawn(rng, 2, 2, silent=[0, 1]),
        Sent.drawn(rng, 1, 3),
    ]
    yield "empty hands", compare.first_failure(each.all_right(each.launch(answer)) for each in uneven)
    gaps = [Sent.drawn(rng, 2, 2, dtype=dtype, gaps=True) for dtype in (torch.float64, torch.bfloat16)]
    yield "layout and arguments", compare.first_failure(e.with_arguments(e.launch(answer)) for e in gaps)
    yield "calls", calls_in_passes(run, PASSES, [[CALL] * 2, [CALL] * 2, [CALL], [CALL] * 2])
    yield "bytes", plain.bytes_that_leave(run)
    grouped = Sent.drawn(rng, 6, 2, groups=PAIRS)
    yield "group", grouped.all_right(grouped.launch(answer))


@dataclass(frozen=True, slots=True)
class Sent:
    """Every rank's rows [R, D] and counts [E]. own: experts of each rank. gaps, learns: see the driver."""

    x: list[Tensor]
    counts: list[Tensor]
    own: int
    gaps: bool
    learns: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        ranks: int,
        own: int,
        *,
        silent: Sequence[int] = (),
        lonely: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
        learns: bool = True,
        groups: list[list[int]] | None = None,
    ) -> "Sent":
        """silent: ranks that send nothing. lonely: ranks to which nobody sends."""
        width = rng.integer(2, 4)
        experts = own * (len(groups[0]) if groups else ranks)
        counts = []
        for rank in range(ranks):
            each = rng.integers(0, 3, experts)
            for other in range(experts // own):
                if rank in silent or other in lonely:
                    each[other * own : (other + 1) * own] = 0
            counts.append(each)
        x = [rng.normal(int(each.sum()), width, dtype=dtype) for each in counts]
        return cls(x, counts, own, gaps, learns, groups or [])

    def launch(self, answer: Answer) -> Replies:
        given = per_rank(self.x), per_rank(self.counts), self.gaps, self.learns, self.groups
        return answer.launch(drivers.dispatched, *given, ranks=len(self.x))

    def parts(self, rank: int, place: int) -> Tensor:
        """The rows of a rank for the experts of a place in its group."""
        return parts_of(self.x[rank], self.counts[rank].view(-1, self.own))[place]

    def members(self, rank: int) -> list[int]:
        return members_of(rank, len(self.x), self.groups)

    def arrived(self, rank: int) -> Tensor:
        """The rows that come to a rank."""
        members = self.members(rank)
        return torch.cat([self.parts(other, members.index(rank)) for other in members])

    def rows(self, run: Replies) -> Finding:
        expected = [self.arrived(rank) for rank in range(len(self.x))]
        return compare.first_failure(
            compare.close_on_all_ranks(seen, expected, what, 0, 0)
            for what, seen in (
                ("the rows that came,", [reply.result for reply in run.results]),
                ("the rows that came under no_grad,", [reply.without for reply in run.results]),
            )
        )

    def came(self, run: Replies) -> Finding:
        expected = [
            torch.stack([self.counts[other].view(-1, self.own)[members.index(rank)] for other in members])
            for rank, members in ((rank, self.members(rank)) for rank in range(len(self.x)))
        ]
        seen = [reply.received for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, "received", 0, 0)

    def gradient(self, run: Replies) -> Finding:
        """Passes if each row's gradient is made by the rank it went to."""
        expected = [
            torch.cat(
                [(other + 2) * self.parts(rank, place) for place, other in enumerate(self.members(rank))]
            )
            for rank in range(len(self.x))
        ]
        seen = [reply.gradients[0] for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, "the gradient of x_RD")

    def unasked(self, run: Replies) -> Finding:
        """Passes if rows that need no gradient arrive all the same, and need none afterwards."""
        return compare.first_failure((self.rows(run), *needed(run, [[False]] * len(self.x))))

    def all_right(self, run: Replies) -> Finding:
        return compare.first_failure((self.rows(run), self.came(run), self.gradient(run)))

    def with_arguments(self, run: Replies) -> Finding:
        given = [list(each) for each in zip(self.x, self.counts, strict=True)]
        return compare.first_failure((self.all_right(run), *arguments(run, given)))

    def bytes_that_leave(self, run: Replies) -> Finding:
        """Passes if counts and rows cross links once in forward, and rows in backward."""
        ranks = range(len(self.x))
        counts = [each.nbytes - 8 * self.own for each in self.counts]
        own = [self.parts(rank, rank).nbytes for rank in ranks]
        forward = [self.x[rank].nbytes - own[rank] for rank in ranks]
        backward = [self.arrived(rank).nbytes - own[rank] for rank in ranks]
        return leave(run, [[counts[r] + forward[r], counts[r], backward[r]] for r in ranks])
