"""Unit 10, the gate: which experts a token goes to."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_10 import drivers
from graders.units.unit_10.pairs import pair
from graders.units.unit_10.replies import GateReply


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("experts", 1, "The k largest logits of each row, the largest first."),
        Criterion("ties", 1, "torch.topk leaves open which of equal ones it takes; a stable sort does not."),
        Criterion("weights", 2, "Those of the k must add up to 1 among themselves."),
        Criterion(
            "gradient",
            1,
            "The weights are made of the logits by operations that autograd knows.",
            needs=("experts", "weights"),
        ),
        Criterion(
            "any logits",
            1,
            "Thousands, in any layout and dtype, of no token at all; and they stay as they are.",
            needs=("experts", "weights", "gradient"),
        ),
    ),
    hints=(
        "A softmax of all logits, and then what, so that k of them add up to 1? Is there a shorter way?",
        "Which of torch's functions promise an order among equal numbers?",
    ),
)
def top_k_gate(answer: Answer, rng: Rng) -> Findings:
    """Drawn logits, with ties, large ones and none."""
    plain = [Case.drawn(rng, k) for k in (2, 1, 3, 5)]
    equal = [rng.integers(-1, 1, 40, 6).float() for _ in range(4)]
    tied = [Case(equal[0], 2), Case(equal[1], 6), Case(1000 * equal[2], 3), Case(equal[3].bfloat16(), 3)]
    # The largest by one unit in the last place has the highest number.
    nearly = torch.full((3, 5), 700.0)
    nearly[:, -1] = nearly[:, -1].nextafter(torch.tensor(math.inf))
    tied.append(Case(nearly, 2))
    special = [
        Case(1000 * rng.normal(8, 5), 2),
        Case(rng.normal(7, 4, dtype=torch.float64), 3),
        Case(rng.normal(0, 4), 2),
        Case(rng.normal(6, 5), 2, gaps=True),
        Case(rng.normal(6, 5).bfloat16(), 2),
    ]
    cases = [*plain, *tied, *special]
    replies = answer.call(drivers.gates, [(case.logits, case.k, case.gaps) for case in cases])
    judged = [(case, reply) for case, reply in compare.side_by_side(cases, replies)]
    first, ties, others = judged[:4], judged[4:9], judged[9:]
    yield "experts", compare.first_failure(case.experts(reply) for case, reply in first)
    yield "ties", compare.first_failure(case.experts(reply) for case, reply in ties)
    yield "weights", compare.first_failure(case.weights(reply) for case, reply in first)
    yield "gradient", compare.first_failure(case.gradient(reply) for case, reply in first)
    yield "any logits", compare.first_failure(case.all_right(reply) for case, reply in others)


@dataclass(frozen=True, slots=True)
class Case:
    """logits [N, E]. gaps: they stand transposed in memory."""

    logits: Tensor
    k: int
    gaps: bool = False

    @classmethod
    def drawn(cls, rng: Rng, k: int) -> "Case":
        return cls(2 * rng.normal(rng.integer(6, 9), rng.integer(5, 7)), k)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and experts [N, k], and the gradient of the sum of the weights' squares."""
        rows = self.logits.tolist()
        chosen = [sorted(range(len(row)), key=lambda e: (-row[e], e))[: self.k] for row in rows]
        experts = torch.tensor(chosen, dtype=torch.int64).view(-1, self.k)
        leaf = self.logits.double().requires_grad_()
        weights = leaf.gather(1, experts).softmax(1)
        (gradient,) = torch.autograd.grad((weights**2).sum(), leaf)
        dtype = self.logits.dtype
        return weights.detach().to(dtype), experts, gradient.to(dtype)

    def experts(self, reply: GateReply) -> Finding:
        _, found = pair(reply.result)
        return compare.close(found, self.expected()[1], f"experts, with k = {self.k},", 0, 0)

    def weights(self, reply: GateReply) -> Finding:
        found, _ = pair(reply.result)
        near = 1e-2 if self.logits.dtype is torch.bfloat16 else 1e-5
        return compare.close(found, self.expected()[0], f"weights, with k = {self.k},", near, near)

    def gradient(self, reply: GateReply) -> Finding:
        what = f"the gradient of the logits, with k = {self.k},"
        near = 2e-2 if self.logits.dtype is torch.bfloat16 else 1e-5
        return compare.close(reply.gradient, self.expected()[2], what, near, near)

    def all_right(self, reply: GateReply) -> Finding:
        """Passes if all is right, and the logits are as they were."""
        unchanged = compare.equal(reply.logits, self.logits, "logits afterwards")
        return compare.first_failure(
            (self.experts(reply), self.weights(reply), self.gradient(reply), unchanged)
        )
