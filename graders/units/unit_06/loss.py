"""Unit 06, the end of a model: the loss of logits cut by columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.answer import PlainData
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.models import sent
from graders.units.passes import calls_by_pass
from graders.units.unit_06 import drivers
from graders.units.unit_06.conjugates import results_of
from graders.units.unit_06.passes import PAIRS, PASSES, WITHOUT_GRADIENT, at_places
from graders.units.unit_06.replies import LossReply
from graders.units.unit_06.vocabulary import NOT_EVEN, at_borders

FAR = 800.0
"""exp of minus that is 0, in float64 too."""
LOSSES = ("loss", NOT_EVEN.name, "any logits")


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "loss",
            3,
            "Sum over all columns, of all ranks; the target's logit is on one rank alone. What is subtracted "
            "before exp has to be one number on all ranks.",
        ),
        NOT_EVEN,
        Criterion(
            "any logits",
            3,
            "exp(1000) is no float32. Subtract the largest logit of the whole vocabulary, from all of them. "
            "And what of -inf, which some write where a token is forbidden?",
        ),
        Criterion(
            "gradient",
            3,
            "The softmax of this rank's columns, with one less at the target, times the token's gradient.",
            needs=LOSSES,
        ),
        Criterion("arguments unchanged", 1, "Logits and target stay as they are."),
        Criterion(
            "bytes",
            2,
            "At most 3 (p - 1) numbers a token in forward and none in backward: what each rank needs of the "
            "others is the largest logit, the sum and the target's logit.",
            needs=("loss", "gradient"),
        ),
        Criterion("group", 1, "Rank and size are those in the group.", needs=(*LOSSES, "gradient")),
    ),
    hints=(
        "Which two numbers of a token does the formula need? Which of them is a sum over columns?",
        "The largest logit may be any number for the derivative: does the loss change with it?",
        "A rank that does not have the target adds a zero. Does it really, where a logit is -inf?",
        "g sums up in forward and leaves the gradient alone. Apply it to this rank's part of both numbers.",
    ),
)
def vocab_parallel_cross_entropy(answer: Answer, rng: Rng) -> Findings:
    """Drawn logits, with targets on all borders, some of them very large."""
    even = Logits.drawn(rng, 4 * rng.integer(2, 4), 4)
    uneven = [Logits.drawn(rng, vocabulary, 4) for vocabulary in (4 * rng.integer(2, 4) + 1, 11, 4)]
    large = [extreme(rng, kind) for kind in ("offset", "one rank", "forbidden")]
    half = Logits.drawn(rng, 8, 4, torch.bfloat16)
    cases = [even, *uneven, *large, half]
    runs = [case.launch(answer) for case in cases]
    yield "loss", compare.first_failure((even.losses(runs[0]), half.losses(runs[-1])))
    yield NOT_EVEN.name, compare.first_failure(map(Logits.losses, uneven, runs[1:4]))
    yield "any logits", compare.first_failure(map(Logits.losses, large, runs[4:-1]))
    yield "gradient", compare.first_failure(map(Logits.gradients, cases, runs))
    yield "arguments unchanged", compare.first_failure(map(Logits.unchanged, cases, runs))
    wide = Logits.drawn(rng, 200, 4)
    yield "bytes", wide.traffic(wide.launch(answer))
    pairs = Logits.drawn(rng, 7, 2, torch.float64, PAIRS)
    run = pairs.launch(answer)
    yield "group", compare.first_failure((pairs.losses(run), pairs.gradients(run)))


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits [N, V], targets [N], and the gradient that arrives at each token's loss [N].

    groups: each does it by itself, and each with logits so much lower that the loss is the same.
    """

    logits: Tensor
    target: Tensor
    arriving: Tensor
    ranks: int
    groups: Sequence[list[int]] = ()

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        vocabulary: int,
        ranks: int,
        dtype: torch.dtype | None = None,
        groups: Sequence[list[int]] = (),
    ) -> "Logits":
        some = rng.integers(0, vocabulary - 1, rng.integer(2, 5))
        target = torch.cat([some, at_borders(vocabulary, ranks)])
        dtype = dtype or rng.choice((torch.float32, torch.float64))
        logits = 3 * rng.normal(len(target), vocabulary, dtype=dtype)
        return cls(logits, target, rng.normal(len(target), dtype=dtype), ranks, groups)

    def launch(self, answer: Answer) -> Observed[LossReply]:
        shards = at_places([part.clone() for part in self.logits.tensor_split(self.ranks, 1)], self.groups)
        for number, group in enumerate(self.groups):
            for rank in group:
                shards[rank] -= FAR * number
        given = (self.target, self.logits.shape[1], self.arriving, list(self.groups))
        return answer.launch(drivers.loss, per_rank(shards), *given, ranks=len(shards))

    def _expected(self) -> tuple[Tensor, Tensor]:
        """The losses [N] and the gradient [N, V], computed in float64."""
        logits = self.logits.to(torch.float64, copy=True).requires_grad_()
        losses = functional.cross_entropy(logits, self.target, reduction="none")
        torch.autograd.backward(sent(losses, self.arriving.double()))
        assert logits.grad is not None
        return losses.detach().to(self.logits.dtype), logits.grad.to(self.logits.dtype)

    def losses(self, run: Observed[LossReply]) -> Finding:
        expected = [self._expected()[0]] * len(run.results)
        return compare.first_failure(
            self._close(seen, expected, f"{name}, with {self.logits.shape[1]} tokens,")
            for name, seen in results_of(run.results).items()
        )

    def gradients(self, run: Observed[LossReply]) -> Finding:
        parts = [part.clone() for part in self._expected()[1].tensor_split(self.ranks, 1)]
        expected = at_places(parts, self.groups)
        seen = [reply.gradient for reply in run.results]
        what = f"the gradient of the logits, of {self.logits.shape[1]} tokens,"
        return self._close(seen, expected, what)

    def _close(self, seen: list[PlainData], expected: list[Tensor], what: str) -> Finding:
        rtol, atol = (0.1, 0.2) if self.logits.dtype == torch.bfloat16 else (1e-5, 1e-5)
        return compare.close_on_all_ranks(seen, expected, what, rtol, atol)

    def unchanged(self, run: Observed[LossReply]) -> Finding:
        parts = self.logits.tensor_split(self.ranks, 1)
        return compare.first_failure(
            finding
            for reply, part in zip(run.results, parts, strict=True)
            for finding in (
                compare.equal(reply.logits, part.clone(), "The logits afterwards"),
                compare.equal(reply.target, self.target, "The target afterwards"),
            )
        )

    def traffic(self, run: Observed[LossReply]) -> Finding:
        """Passes if no rank sends more than three numbers a token to each other rank, all in forward."""
        allowed = 3 * (self.ranks - 1) * len(self.target) * self.logits.element_size()
        most = 0
        for rank in range(self.ranks):
            forward, backward, *_ = calls_by_pass(run, rank, (*PASSES, *WITHOUT_GRADIENT))
            if backward:
                return Finding(False, f"In backward, rank {rank} calls {backward[0].op}.")
            most = max(most, sum(call.sent for call in forward))
        what = f"Bytes that a rank sends for {len(self.target)} tokens"
        return compare.at_most(most, allowed, what, kind=Kind.TOO_MUCH)


def extreme(rng: Rng, kind: str) -> Logits:
    """Logits that no exponential takes as they are.

    offset: all far from 0. one rank: one column far above the others, for each token another one. forbidden:
    -inf for all tokens of one rank, of which none is a target.
    """
    case = Logits.drawn(rng, 8, 4)
    logits, target = case.logits.clone(), case.target.clone()
    match kind:
        case "offset":
            logits += 1000.0 * rng.choice((-1, 1))
        case "one rank":
            logits[torch.arange(len(logits)), rng.integers(0, 7, len(logits))] += 200.0
        case _:
            rank = rng.integer(0, 3)
            logits[:, 2 * rank : 2 * rank + 2] = -torch.inf
            target[target // 2 == rank] = (2 * rank + 2) % 8
    return Logits(logits, target, case.arriving, case.ranks)
