"""Unit 10, rows that come back from their experts."""

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
from graders.units.unit_10.plans import plan_of
from graders.units.unit_10.worlds import PAIRS


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "sum of rows",
            3,
            "Rows come back in the plan's order: row i is of choice order[i], of token order[i] // k.",
        ),
        Criterion(
            "gradients",
            2,
            "Of the rows, on the rank of their expert, and of the weights; one of them may need none.",
        ),
        Criterion(
            "dropped",
            1,
            "A token whose choices were all dropped gets zeros, another one less.",
            needs=("sum of rows", "gradients"),
        ),
        Criterion(
            "calls and bytes",
            1,
            "One journey: everybody knows already how many rows come. Weights need not travel.",
            needs=("sum of rows", "gradients"),
        ),
        replace(GROUP, needs=("sum of rows", "gradients")),
    ),
    hints=(
        "How many rows did this rank send to rank r, and how many come back from there?",
        "Which weight belongs to row i? Look for it in weights.flatten().",
        "index_add adds rows to places, also several to one.",
    ),
)
def combine(answer: Answer, rng: Rng) -> Findings:
    """Drawn rows that come back to drawn tokens."""
    plain = Back.drawn(rng, 3, 2, 2)
    run = plain.launch(answer)
    yield "sum of rows", plain.sums(run)
    frozen = [
        Back.drawn(rng, 2, 2, 2, learns=which) for which in ((False, True), (True, False), (False,) * 2)
    ]
    seen = [each.launch(answer) for each in frozen]
    without = (each.with_needs(one) for each, one in zip(frozen, seen, strict=True))
    yield "gradients", compare.first_failure((plain.gradients(run), *without))
    dropped = [
        Back.drawn(rng, 2, 2, 2, capacity=1),
        Back.drawn(rng, 3, 1, 1, capacity=0),
        Back.drawn(rng, 1, 4, 3, gaps=True, dtype=torch.float64),
    ]
    yield "dropped", compare.first_failure(each.all_right(each.launch(answer)) for each in dropped)
    calls = calls_in_passes(run, PASSES, [[CALL]] * 4)
    yield "calls and bytes", compare.first_failure((calls, plain.bytes_that_leave(run)))
    grouped = Back.drawn(rng, 6, 2, 2, groups=PAIRS)
    yield "group", grouped.all_right(grouped.launch(answer))


@dataclass(frozen=True, slots=True)
class Back:
    """Every rank's choices [N, k] and weights [N, k], and the rows [T, D] that its experts made.

    learns: whether rows and weights need a gradient.
    """

    experts: list[Tensor]
    weights: list[Tensor]
    y: list[Tensor]
    own: int
    capacity: int | None
    gaps: bool
    learns: tuple[bool, bool]
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        ranks: int,
        own: int,
        k: int,
        *,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
        learns: tuple[bool, bool] = (True, True),
        groups: list[list[int]] | None = None,
    ) -> "Back":
        count, width = own * (len(groups[0]) if groups else ranks), rng.integer(2, 4)
        experts = [rng.normal(rng.integer(3, 6), count).topk(k, 1).indices for _ in range(ranks)]
        weights = [rng.normal(len(each), k, dtype=dtype) for each in experts]
        case = cls(experts, weights, [], own, capacity, gaps, learns, groups or [])
        rows = [int(case.received(rank).sum()) for rank in range(ranks)]
        return replace(case, y=[rng.normal(each, width, dtype=dtype) for each in rows])

    def members(self, rank: int) -> list[int]:
        return members_of(rank, len(self.experts), self.groups)

    def plan(self, rank: int) -> tuple[Tensor, Tensor]:
        return plan_of(self.experts[rank], self.own * len(self.members(rank)), self.capacity)

    def sent(self, rank: int) -> Tensor:
        """How many rows a rank sends to each expert of each place of its group, [p, E / p]."""
        return self.plan(rank)[1].view(-1, self.own)

    def received(self, rank: int) -> Tensor:
        members = self.members(rank)
        return torch.stack([self.sent(other)[members.index(rank)] for other in members])

    def launch(self, answer: Answer) -> Replies:
        ranks = range(len(self.experts))
        plans, received = list(map(self.plan, ranks)), list(map(self.received, ranks))
        given = per_rank(self.y), per_rank(plans), per_rank(received), per_rank(self.weights)
        options = self.gaps, self.learns, self.groups
        return answer.launch(drivers.combined, *given, *options, ranks=len(ranks))

    def returned(self, rank: int) -> Tensor:
        """The rows that come back to a rank, in its plan's order."""
        members = self.members(rank)
        place = members.index(rank)
        return torch.cat([parts_of(self.y[other], self.received(other))[place] for other in members])

    def expected(self, rank: int) -> Tensor:
        """What a rank's tokens get, [N, D]."""
        k = self.weights[rank].shape[1]
        result = self.y[rank].new_zeros(len(self.weights[rank]), self.y[rank].shape[1])
        for choice, row in zip(self.plan(rank)[0].tolist(), self.returned(rank), strict=True):
            result[choice // k] += self.weights[rank].flatten()[choice] * row
        return result

    def sums(self, run: Replies) -> Finding:
        expected = list(map(self.expected, range(len(self.y))))
        near = 1e-9 if self.y[0].dtype is torch.float64 else 1e-5
        return compare.first_failure(
            compare.close_on_all_ranks(seen, expected, what, near, near)
            for what, seen in (
                ("the result", [reply.result for reply in run.results]),
                ("the result under no_grad", [reply.without for reply in run.results]),
            )
        )

    def gradients(self, run: Replies) -> Finding:
        if not any(self.learns):
            return Finding(True, "Nothing needs a gradient.")
        ranks = range(len(self.y))
        of_weights = [torch.zeros_like(each) for each in self.weights]
        back: list[list[Tensor]] = []  # for each rank the gradients of the rows it got back
        for rank in ranks:
            arriving, k = drivers.arriving(self.expected(rank), rank), self.weights[rank].shape[1]
            order, rows = self.plan(rank)[0], self.returned(rank)
            of_weights[rank].view(-1)[order] = (rows * arriving[order // k]).sum(1)
            own = self.weights[rank].flatten()[order].unsqueeze(1) * arriving[order // k]
            back.append(parts_of(own, self.sent(rank)))
        of_rows = [
            torch.cat([back[other][self.members(rank).index(rank)] for other in self.members(rank)])
            for rank in ranks
        ]
        both = ((of_rows, "the gradient of y_TD"), (of_weights, "the gradient of the weights"))
        given = [[seen for seen, _ in compare.side_by_side(r.gradients, both)] for r in run.results]
        return compare.first_failure(
            compare.close_on_all_ranks(list(seen), wanted, what, 1e-4, 1e-5)
            for seen, (wanted, what), learns in zip(zip(*given, strict=True), both, self.learns, strict=True)
            if learns
        )

    def with_needs(self, run: Replies) -> Finding:
        """Passes if sums and gradients are right, and what needed no gradient needs none afterwards."""
        wanted = [list(self.learns)] * len(self.y)
        return compare.first_failure((self.sums(run), self.gradients(run), *needed(run, wanted)))

    def all_right(self, run: Replies) -> Finding:
        ranks = range(len(self.y))
        given = [[self.y[r], self.weights[r], *self.plan(r), self.received(r)] for r in ranks]
        return compare.first_failure((self.sums(run), self.gradients(run), *arguments(run, given)))

    def bytes_that_leave(self, run: Replies) -> Finding:
        ranks = range(len(self.y))
        row = self.y[0].shape[1] * self.y[0].element_size()
        limits = []
        for rank in ranks:
            sent, received, place = self.sent(rank), self.received(rank), self.members(rank).index(rank)
            forward, backward = (int(each.sum() - each[place].sum()) * row for each in (received, sent))
            limits.append([forward, 0, backward])
        return leave(run, limits)
