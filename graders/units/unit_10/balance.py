"""Unit 10, the loss that keeps the load even."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

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
from graders.units.passes import bytes_in_passes, calls_by_pass
from graders.units.unit_10 import drivers
from graders.units.unit_10.replies import BalanceReply
from graders.units.unit_10.worlds import PAIRS

PASSES = ("forward", "backward")


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "value",
            3,
            "f_e: all ranks' choices of e, divided by all choices. P_e: the mean of this rank's column.",
        ),
        Criterion("gradient", 2, "Counting has no gradient; the mean of probabilities has one."),
        Criterion(
            "one small collective",
            1,
            "E counts say all that the others need to know; in backward there is nothing to ask.",
            needs=("value", "gradient"),
        ),
        Criterion(
            "other sizes",
            1,
            "One rank, one expert, one token, one choice a token, any dtype and layout in memory; more "
            "tokens than half precision can count; and a frozen gate, so that nothing needs a gradient.",
            needs=("value", "gradient"),
        ),
        Criterion("group", 1, "The collective is the group's.", needs=("value", "gradient")),
    ),
    hints=(
        "Which of f_e and P_e is a count, which cannot be differentiated, and which is not?",
        "Ranks have as many tokens each: why is the mean over ranks of E f_e P_e the loss of all tokens, if "
        "f_e is of all of them?",
    ),
)
def load_balancing_loss(answer: Answer, rng: Rng) -> Findings:
    """Drawn probabilities and choices, of which some experts get none."""
    plain = Case.drawn(rng, 3, 2)
    run = plain.launch(answer)
    yield "value", plain.value(run)
    yield "gradient", plain.gradient(run)
    yield "one small collective", plain.communication(run)
    others = [
        Case.drawn(rng, 1, 3),
        Case.drawn(rng, 2, 1, torch.float64),
        Case.drawn(rng, 2, 2, gaps=True),
        Case.drawn(rng, 2, 2, learns=False),
        Case.single(),
        Case.lopsided(rng),
    ]
    yield "other sizes", compare.first_failure(each.all_right(each.launch(answer)) for each in others)
    grouped = Case.drawn(rng, 6, 2, groups=PAIRS)
    yield "group", grouped.all_right(grouped.launch(answer))


@dataclass(frozen=True, slots=True)
class Case:
    """Every rank's probabilities [N, E] and experts [N, k]. gaps: they stand transposed in memory. learns:
    whether probabilities need a gradient.
    """

    probabilities: list[Tensor]
    experts: list[Tensor]
    gaps: bool = False
    learns: bool = True
    groups: list[list[int]] = field(default_factory=list)

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        ranks: int,
        k: int,
        dtype: torch.dtype = torch.float32,
        *,
        gaps: bool = False,
        learns: bool = True,
        groups: list[list[int]] | None = None,
    ) -> "Case":
        """Of the experts the last gets nobody's choice; each rank's gate leans to others."""
        tokens, count = rng.integer(5, 8), rng.integer(5, 7)
        logits = [
            rng.normal(tokens, count, dtype=dtype) + 2 * rng.normal(count, dtype=dtype) for _ in range(ranks)
        ]
        probabilities = [each.softmax(1) for each in logits]
        experts = [each[:, :-1].topk(k, 1).indices for each in logits]
        return cls(probabilities, experts, gaps, learns, groups or [])

    @classmethod
    def lopsided(cls, rng: Rng) -> "Case":
        """So many choices of one expert that float16, which ends at 65,504, cannot hold their number."""
        lean = torch.tensor([2.0, 0, 0, 0])
        probabilities = [(rng.normal(36_000, 4) + lean).softmax(1).half() for _ in range(2)]
        experts = [torch.zeros(36_000, 1, dtype=torch.int64) for _ in range(2)]
        for rank, each in enumerate(experts):
            each[: 2000 + 1000 * rank] = 2
        return cls(probabilities, experts)

    @classmethod
    def single(cls) -> "Case":
        """A token on each of two ranks, and one expert, which has it."""
        return cls([torch.ones(1, 1)] * 2, [torch.zeros(1, 1, dtype=torch.int64)] * 2)

    def launch(self, answer: Answer) -> Observed[BalanceReply]:
        given = per_rank(self.probabilities), per_rank(self.experts)
        options = self.gaps, self.learns, self.groups
        return answer.launch(drivers.balance, *given, *options, ranks=len(self.experts))

    def parts(self, rank: int) -> Tensor:
        """f [E] of this rank's group, in double precision."""
        ranks = range(len(self.experts))
        members = next((group for group in self.groups if rank in group), list(ranks))
        chosen = torch.cat([self.experts[each].flatten() for each in members])
        count = self.probabilities[0].shape[1]
        return torch.bincount(chosen, minlength=count).double() / len(chosen)

    def value(self, run: Observed[BalanceReply]) -> Finding:
        expected = [
            (each.shape[1] * (self.parts(rank) * each.double().mean(0)).sum()).to(each.dtype)
            for rank, each in enumerate(self.probabilities)
        ]
        seen = [reply.result for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, "the loss", *self.near())

    def gradient(self, run: Observed[BalanceReply]) -> Finding:
        """Passes if three times E f_e / N arrives at each probability of expert e, if it needs a gradient."""
        if not self.learns:
            return Finding(True, "The probabilities need no gradient.")
        expected = [
            (3 * each.shape[1] / len(each) * self.parts(rank)).expand_as(each).to(each.dtype)
            for rank, each in enumerate(self.probabilities)
        ]
        what = "the gradient of the probabilities, of three times the loss,"
        seen = [reply.gradient for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, what, *self.near())

    def near(self) -> tuple[float, float]:
        """By how much an answer may be off, of the number and besides."""
        return (2e-2, 2e-3) if self.probabilities[0].dtype is torch.float16 else (1e-5, 1e-6)

    def communication(self, run: Observed[BalanceReply]) -> Finding:
        """Passes if every rank makes one call, in forward, of at most E whole numbers."""
        for rank in range(len(run.results)):
            for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True):
                if len(calls) != (label == "forward"):
                    said = f"in {label} rank {rank} makes {compare.counted(len(calls), 'call')}"
                    return Finding(False, f"{said}; expected one in forward and none in backward.")
        limit = 8 * self.probabilities[0].shape[1]
        return bytes_in_passes(run, PASSES, [[limit, 0]] * len(run.results))

    def all_right(self, run: Observed[BalanceReply]) -> Finding:
        """Passes if value and gradient are right, and the arguments are as they were."""
        given = zip(self.probabilities, self.experts, run.results, strict=True)
        unchanged = (
            compare.equal(
                [reply.probabilities, reply.experts], [p, e], "probabilities and experts afterwards"
            )
            for p, e, reply in given
        )
        return compare.first_failure((self.value(run), self.gradient(run), *unchanged))
