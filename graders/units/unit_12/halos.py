"""Unit 12, strips of an image that swap their edges."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import MEASURED, seconds
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.groups import members_of
from graders.units.passes import calls_by_pass
from graders.units.unit_12.drivers import space
from graders.units.unit_12.neighbours import one_message_each
from graders.units.unit_12.several import Call, several_calls, together
from graders.units.unit_12.space_replies import PassesReply
from graders.units.unit_12.space_worlds import ALONE, THREES

PASSES = ("forward", "backward", "forward under no_grad")
RIGHT = ("rows", "gradient")
Replies = Observed[PassesReply]


@exercise(
    minutes=40,
    difficulty=3,
    rubric=(
        Criterion("rows", 3, "Above stand the last rows of the rank before, below the first of the next."),
        Criterion(
            "gradient",
            3,
            "A row that was copied has a gradient here and one there: it comes back, and both are added. "
            "What arrives at zeros goes nowhere.",
        ),
        Criterion(
            "other strips",
            2,
            "One rank, two; strips of other heights, as low as the halo, whose rows both neighbours borrow; "
            "width 0; any dtype; tensors that stand in memory in another order. What is 0 * inf?",
            needs=RIGHT,
        ),
        Criterion("columns", 1, "dim says along which dimension the image is cut.", needs=RIGHT),
        Criterion(
            "arguments unchanged",
            1,
            "What arrives in backward may be another function's too: add to a copy. And x needs a gradient "
            "afterwards if it did before.",
            needs=(*RIGHT, "other strips"),
        ),
        Criterion(
            "neighbours only",
            2,
            "One message to each neighbour in each pass, of `width` rows; no collective.",
            needs=(*RIGHT, "other strips", "columns"),
        ),
        Criterion(
            "all at once",
            1,
            "dist.send waits until its message is received: let nobody wait for a neighbour that waits.",
            needs=(*RIGHT, "neighbours only"),
        ),
        Criterion("group", 1, "Neighbours are those in the group, in backward too.", needs=RIGHT),
        several_calls((*RIGHT, "arguments unchanged", "group")),
    ),
    hints=(
        "Which rows of its own does a rank send up, and which down? Which ranks send in one direction only?",
        "In backward, which part of what arrives belongs to whom? Which rows of x have two parts?",
        "dist.P2POp(dist.isend, tensor, group=group, group_peer=rank) and dist.batch_isend_irecv start all "
        "messages at once. Both passes swap something: what goes up, what goes down?",
    ),
)
def halo_exchange(answer: Answer, rng: Rng) -> Findings:
    """Drawn images, cut into strips of drawn heights."""
    plain = Strips.drawn(rng, [3, 5, 4], 2)
    run = plain.launch(answer)
    yield "rows", plain.rows(run)
    yield "gradient", plain.gradient(run)
    others = [
        Strips.drawn(rng, [3], 2, dtype=torch.float64),
        Strips.drawn(rng, [2, 2, 4, 2], 2, dtype=torch.float64, gaps=True),
        Strips.drawn(rng, [4, 3], 0),
        Strips.drawn(rng, [1, 3], 1, dtype=torch.bfloat16, gaps=True),
        Strips.drawn(rng, [3, 4], 1, single=True).overflown(),
    ]
    other_runs = [each.launch(answer) for each in others]
    yield "other strips", compare.first_failure(map(Strips.all_right, others, other_runs))
    columns = [Strips.drawn(rng, [2, 4, 3], 1, dim=3), Strips.drawn(rng, [4, 5], 2, dim=3, gaps=True)]
    column_runs = [each.launch(answer) for each in columns]
    yield "columns", compare.first_failure(map(Strips.all_right, columns, column_runs))
    still = replace(Strips.drawn(rng, [2, 3], 1), frozen=[0])
    still_run = still.launch(answer)
    kept = [each.unchanged(seen) for each, seen in ((plain, run), *zip(others, other_runs, strict=True))]
    yield (
        "arguments unchanged",
        compare.first_failure((*kept, still.rows(still_run), still.learning(still_run))),
    )
    looked_at = ((plain, run), *zip((*others, *columns), (*other_runs, *column_runs), strict=True))
    found = (each.neighbours_only(seen) for each, seen in looked_at if each.width)
    yield "neighbours only", compare.first_failure(found)
    yield "all at once", all_at_once(answer, rng)
    grouped = Strips.drawn(rng, [2, 3, 2, 2, 4, 2], 1, groups=THREES)
    yield "group", grouped.all_right(grouped.launch(answer))
    first = Strips.drawn(rng, [3, 4, 3], 1)
    calls = [first, replace(first, x=[rng.normal(*each.shape) for each in first.x])]
    calls += [Strips.drawn(rng, [6, 7, 6], width, dim=dim) for width, dim in ((3, 2), (2, 3))]
    calls.insert(2, Strips.drawn(rng, [2, 3, 4], 1, groups=ALONE))
    yield "several calls", together(answer, list(map(Strips.call, calls)))


def all_at_once(answer: Answer, rng: Rng) -> Finding:
    """Passes if neither pass, on eight ranks, takes longer than four messages."""
    strips = Strips.drawn(rng, [3] * 8, 1, columns=50)
    cluster = Cluster(nodes=8, intra_node=MEASURED, inter_node=MEASURED)
    observed = answer.launch(space.paced, per_rank(strips.x), 1, ranks=8, cluster=cluster)
    nbytes = strips.x[0][:, :, :1].nbytes
    allowed = seconds(4, 4 * nbytes)
    for label in ("forward", "backward"):
        begins = [event.start for event in observed.events if event.op == label]
        ends = [
            call.end
            for rank in range(8)
            for call in calls_by_pass(observed, rank, ("forward", "backward"))[label == "backward"]
            if call.op in ("send", "recv")
        ]
        taken = max(ends, default=0.0) - min(begins, default=0.0)
        said = f"{label} of 8 ranks takes {taken * 1e3:.3f} ms on links of 1 ms and 1 MB/s"
        if taken > allowed * (1 + 1e-9):
            return Finding(False, f"{said}; four messages of {nbytes} bytes take {allowed * 1e3:.3f} ms.")
    return Finding(True, "Neither pass takes longer than four messages.")


@dataclass(frozen=True, slots=True)
class Strips:
    """Every rank's strip, 4 dimensions, cut along dim. gaps, frozen: see the driver."""

    x: list[Tensor]
    width: int
    dim: int
    gaps: bool
    groups: list[list[int]]
    frozen: list[int] = field(default_factory=list)

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        lengths: list[int],
        width: int,
        *,
        dim: int = 2,
        columns: int | None = None,
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
        groups: list[list[int]] | None = None,
        single: bool = False,
    ) -> "Strips":
        """lengths: how many rows, or columns, each rank has; columns: how long the other side is. single: one
        sample and one channel, of which some rows follow one another in memory.
        """
        samples, channels = (1, 1) if single else (rng.integer(2, 3), rng.integer(2, 3))
        other = rng.integer(2, 4) if columns is None else columns
        shapes = [(length, other) if dim == 2 else (other, length) for length in lengths]
        x = [rng.normal(samples, channels, *shape, dtype=dtype) for shape in shapes]
        return cls(x, width, dim, gaps, groups or [])

    def overflown(self) -> "Strips":
        """With infinite numbers at the image's own edges."""
        self.first(self.x[0]).fill_(math.inf)
        self.last(self.x[-1]).fill_(-math.inf)
        return self

    def call(self) -> Call:
        """As one of several calls."""
        ranks = range(len(self.x))
        options = {"width": self.width, "dim": self.dim}
        gradients = [list(map(self.own_gradient, ranks))]
        return Call([self.x], options, list(map(self.result, ranks)), gradients, self.groups)

    def launch(self, answer: Answer) -> Replies:
        dim = None if self.dim == 2 else self.dim
        given = per_rank(self.x), self.width, dim, self.gaps, self.groups, self.frozen
        return answer.launch(space.exchanged, *given, ranks=len(self.x))

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """The rank before and the one after it in its group."""
        members = members_of(rank, len(self.x), self.groups)
        place = members.index(rank)
        return (
            members[place - 1] if place else None,
            members[place + 1] if place + 1 < len(members) else None,
        )

    def first(self, x: Tensor) -> Tensor:
        """The first `width` rows of a tensor."""
        return x.narrow(self.dim, 0, self.width)

    def last(self, x: Tensor) -> Tensor:
        return x.narrow(self.dim, x.shape[self.dim] - self.width, self.width)

    def result(self, rank: int) -> Tensor:
        before, after = self.neighbours(rank)
        nothing = torch.zeros_like(self.first(self.x[rank]))
        above = nothing if before is None else self.last(self.x[before])
        below = nothing if after is None else self.first(self.x[after])
        return torch.cat([above, self.x[rank], below], self.dim)

    def arriving(self, rank: int) -> Tensor:
        return space.arriving(self.result(rank), rank)

    def own_gradient(self, rank: int) -> Tensor:
        """What a rank's strip gets: its own part, and what comes back from the neighbours."""
        before, after = self.neighbours(rank)
        length = self.x[rank].shape[self.dim]
        gradient = self.arriving(rank).narrow(self.dim, self.width, length).clone()
        if before is not None:
            self.first(gradient).add_(self.last(self.arriving(before)))
        if after is not None:
            self.last(gradient).add_(self.first(self.arriving(after)))
        return gradient

    def near(self) -> float:
        """How far apart two sums in different order may be."""
        return 0.05 if self.x[0].dtype is torch.bfloat16 else 1e-5

    def rows(self, run: Replies) -> Finding:
        expected = list(map(self.result, range(len(self.x))))
        return compare.first_failure(
            compare.close_on_all_ranks(seen, expected, what, 0, 0)
            for what, seen in (
                ("the result", [reply.result for reply in run.results]),
                ("the result under no_grad", [reply.without for reply in run.results]),
            )
        )

    def gradient(self, run: Replies) -> Finding:
        expected = list(map(self.own_gradient, range(len(self.x))))
        seen = compare.column([reply.gradients for reply in run.results], 0, 1)
        near = self.near()
        return compare.close_on_all_ranks(seen, expected, "the gradient of x", near, near)

    def all_right(self, run: Replies) -> Finding:
        return compare.first_failure((self.rows(run), self.gradient(run)))

    def unchanged(self, run: Replies) -> Finding:
        arrived = list(map(self.arriving, range(len(self.x))))
        x = compare.column([reply.given for reply in run.results], 0, 1)
        seen = [reply.arrived for reply in run.results]
        return compare.first_failure(
            (
                compare.close_on_all_ranks(x, self.x, "x afterwards", 0, 0),
                compare.close_on_all_ranks(seen, arrived, "the gradient that arrived, afterwards,", 0, 0),
            )
        )

    def learning(self, run: Replies) -> Finding:
        """Passes if x needs a gradient where it did."""
        return compare.first_failure(
            compare.equal(
                reply.learning, [not self.frozen], f"whether x on rank {rank} needs a gradient then"
            )
            for rank, reply in enumerate(run.results)
        )

    def neighbours_only(self, run: Replies) -> Finding:
        """Passes if each rank sends each neighbour one message of `width` rows in each pass, and no more."""
        for rank, x in enumerate(self.x):
            neighbours = [each for each in self.neighbours(rank) if each is not None]
            nbytes = self.first(x).nbytes
            for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True):
                where = f"in {label} rank {rank}"
                if others := sorted({call.op for call in calls} - {"send", "recv"}):
                    return Finding(False, f"{where} calls {', '.join(others)}; messages are enough.")
                finding = one_message_each(where, calls, neighbours, nbytes)
                if not finding.passed:
                    return finding
        return Finding(True, "Every rank sends each neighbour its halo, once in each pass.")
