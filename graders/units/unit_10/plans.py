"""Unit 10, which choices travel, and in which order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_10 import drivers
from graders.units.unit_10.pairs import pair
from graders.units.unit_10.replies import PlanReply


def plan_of(experts: Tensor, count: int, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Order [R] and counts [count] for choices [N, k], one choice after another."""
    k = experts.shape[1]
    lists: list[list[int]] = [[] for _ in range(count)]
    for place in range(k):
        for token, expert in enumerate(experts[:, place].tolist()):
            lists[expert].append(token * k + place)
    kept = [each[:capacity] for each in lists]
    order = torch.tensor([choice for each in kept for choice in each], dtype=torch.int64)
    return order, torch.tensor([len(each) for each in kept], dtype=torch.int64)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("one choice a token", 2, "Sort the choices by expert, and keep the tokens' order."),
        Criterion(
            "several choices",
            3,
            "Choice n k + j is number n k + j of experts.flatten(); but all first choices come before all "
            "second ones.",
        ),
        Criterion(
            "capacity",
            3,
            "Of each expert's choices, in their order, the first `capacity`; the counts are of those.",
            needs=("one choice a token", "several choices"),
        ),
        Criterion("no tokens", 1, "An empty batch has an empty order, and a count of 0 for every expert."),
        Criterion(
            "arguments unchanged",
            1,
            "experts may be in use elsewhere, and in any layout.",
            needs=("several choices", "capacity"),
        ),
    ),
    hints=(
        "In which order should the choices stand before a stable sort, which keeps the order of equal ones?",
        "What is the number n k + j of the entry at (j, n) of experts.T?",
        "At which place of the sorted list does expert e's part begin? How far behind that is a choice?",
    ),
)
def dispatch_plan(answer: Answer, rng: Rng) -> Findings:
    """Drawn choices, of which some experts get none and some too many."""
    one = torch.zeros(1, 1, dtype=torch.int64)
    single = [Case.drawn(rng, 1), Case.drawn(rng, 1, tokens=2000), Case(one, 1, None), Case(one + 2, 5, 3)]
    several = [Case.drawn(rng, 2), Case.drawn(rng, 3, tokens=1500), Case(torch.tensor([[3, 1]]), 4, None)]
    full = [Case.drawn(rng, k, capacity) for k, capacity in ((1, 3), (2, 4), (3, 1), (2, 0), (2, 10**6))]
    empty = [Case(torch.zeros(0, 2, dtype=torch.int64), 4, capacity) for capacity in (None, 3)]
    gaps = [Case(each.experts, each.count, each.capacity, gaps=True) for each in (several[0], full[1])]
    rows = {
        "one choice a token": single,
        "several choices": several,
        "capacity": full,
        "no tokens": empty,
        "arguments unchanged": gaps,
    }
    unchanged = []
    for name, cases in rows.items():
        replies = answer.call(drivers.plans, [(c.experts, c.count, c.capacity, c.gaps) for c in cases])
        judged = compare.side_by_side(cases, replies)
        found = []
        for case, reply in judged:
            found.append(case.right(reply))
            unchanged.append(compare.equal(reply.experts, case.experts, "experts afterwards"))
        yield name, compare.first_failure((*found, *(unchanged if cases is gaps else ())))


@dataclass(frozen=True, slots=True)
class Case:
    """experts [N, k]. gaps: they stand transposed in memory."""

    experts: Tensor
    count: int
    capacity: int | None
    gaps: bool = False

    @classmethod
    def drawn(cls, rng: Rng, k: int, capacity: int | None = None, tokens: int = 0) -> "Case":
        """Different experts for each token; the last expert, and perhaps others, gets none."""
        count = rng.integer(6, 8)
        logits = rng.normal(tokens or rng.integer(20, 30), count - 1) + torch.arange(count - 1) / 3
        return cls(logits.topk(k, 1).indices, count, capacity)

    def right(self, reply: PlanReply) -> Finding:
        """Passes if order and counts are as expected."""
        tokens, k = self.experts.shape
        setting = f"for {tokens} tokens, k = {k}, {self.count} experts, capacity {self.capacity}"
        names = "order", "counts"
        expected = plan_of(self.experts, self.count, self.capacity)
        return compare.first_failure(
            compare.close(seen, wanted, f"{name}, {setting},", 0, 0)
            for name, seen, wanted in zip(names, pair(reply.result), expected, strict=True)
        )
