"""Unit 06, the two ends of a model: an embedding cut by rows, and the loss of logits cut by columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
from graders.units.models import sent
from graders.units.unit_06 import drivers
from graders.units.unit_06.passes import calls_by_pass, calls_in_passes
from graders.units.unit_06.replies import EmbeddingReply, LossReply

PASSES = ("forward", "backward")
PAIRS = [[0, 2], [1, 3]]
"""Two groups of four ranks, whose places are not the ranks' numbers."""

FAR = 800.0
"""exp of minus that is 0, in float64 too."""

NOT_EVEN = Criterion(
    "a vocabulary that does not divide",
    2,
    "Parts are those of torch.tensor_split: of 10 rows, 4 ranks get 3, 3, 2, 2. Where does each begin?",
)


def at_borders(vocabulary: int, ranks: int) -> Tensor:
    """The first and the last token of each rank's part, int64."""
    parts = torch.arange(vocabulary).tensor_split(ranks)
    return torch.cat([part[[0, -1]] for part in parts])


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("the rows of the tokens", 3, "Each token has its row on one rank; all others add nothing."),
        NOT_EVEN,
        Criterion("gradient", 2, "A row gets a gradient from its own tokens only, and once."),
        Criterion(
            "its rows only",
            2,
            "One parameter, weight [V_r, D], in memory of its own: a view keeps the whole.",
            needs=(),
        ),
        Criterion("calls", 2, "One all-reduce of the result in forward, nothing in backward."),
        Criterion("group", 1, "Rank and size are those in the group."),
    ),
    hints=(
        "If a rank returned zeros for the tokens that it does not know, what would the sum over ranks be?",
        "functional.embedding wants numbers of rows that exist: which row may it take for a stranger?",
        "Which of your two functions sums up in forward and passes the gradient on as it is?",
    ),
)
def VocabParallelEmbedding(answer: Answer, rng: Rng) -> Findings:  # noqa: N802
    """Drawn weights and tokens, with all borders among them."""
    even = Rows.drawn(rng, 4 * rng.integer(2, 3), 4)
    uneven = [Rows.drawn(rng, vocabulary, 4) for vocabulary in (4 * rng.integer(2, 3) + 2, 7, 4)]
    runs = [case.launch(answer) for case in (even, *uneven)]
    yield "the rows of the tokens", even.rows(runs[0])
    yield NOT_EVEN.name, compare.first_failure(map(Rows.rows, uneven, runs[1:]))
    yield "gradient", compare.first_failure(map(Rows.gradients, (even, *uneven), runs))
    yield "its rows only", compare.first_failure(map(Rows.kept, (even, *uneven), runs))
    yield "calls", _one_all_reduce(runs[0], even.arriving.nbytes)
    pairs = Rows.drawn(rng, 5, 2)
    run = pairs.launch(answer, PAIRS)
    yield "group", compare.first_failure((pairs.rows(run), pairs.gradients(run)))


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight [V, D], tokens [2, T] of which some come twice, and the gradient that arrives [2, T, D]."""

    weight: Tensor
    tokens: Tensor
    arriving: Tensor
    ranks: int

    @classmethod
    def drawn(cls, rng: Rng, vocabulary: int, ranks: int) -> "Rows":
        width = rng.integer(2, 4)
        some = rng.integers(0, vocabulary - 1, 2 * rng.integer(2, 3))
        tokens = torch.cat([some, at_borders(vocabulary, ranks), some[:2]]).view(2, -1)
        dtype = rng.choice((torch.float32, torch.float64))
        weight = rng.normal(vocabulary, width, dtype=dtype)
        arriving = rng.normal(*tokens.shape, width, dtype=dtype)
        return cls(weight, tokens, arriving, ranks)

    def launch(self, answer: Answer, groups: Sequence[Sequence[int]] = ()) -> Observed[EmbeddingReply]:
        """groups: each does the same by itself."""
        ranks = max(1, len(groups)) * self.ranks
        return answer.launch(
            drivers.embedding, self.weight, self.tokens, self.arriving, list(map(list, groups)), ranks=ranks
        )

    def rows(self, run: Observed[EmbeddingReply]) -> Finding:
        expected = [self.weight[self.tokens]] * len(run.results)
        where = f"the result with {len(self.weight)} tokens"
        return compare.close_on_all_ranks([reply.result for reply in run.results], expected, where)

    def gradients(self, run: Observed[EmbeddingReply]) -> Finding:
        whole = torch.zeros_like(self.weight).index_add_(
            0, self.tokens.flatten(), self.arriving.flatten(0, 1)
        )
        where = f"the gradient of weight, with {len(self.weight)} tokens,"
        seen = [reply.gradient for reply in run.results]
        return compare.close_on_all_ranks(seen, self._parts(whole, run), where)

    def kept(self, run: Observed[EmbeddingReply]) -> Finding:
        """Passes if each rank has one parameter, its rows, and both arguments are as they were."""
        parts = self._parts(self.weight, run)
        return compare.first_failure(
            finding
            for rank, (reply, part) in enumerate(zip(run.results, parts, strict=True))
            for finding in (
                compare.equal(reply.parameters, {"weight": part}, f"The parameters of rank {rank}"),
                compare.at_most(
                    reply.held, 0, f"Tensors of rank {rank}'s layer in the whole weight's memory"
                ),
                compare.equal(reply.whole, self.weight, "The whole layer's weight afterwards"),
                compare.equal(reply.tokens, self.tokens, "The tokens afterwards"),
            )
        )

    def _parts(self, whole: Tensor, run: Observed[EmbeddingReply]) -> list[Tensor]:
        """What each rank has of it; with two groups of two, ranks 0 and 1 are the first of theirs."""
        parts = [part.clone() for part in whole.tensor_split(self.ranks)]
        return [part for part in parts for _ in range(len(run.results) // self.ranks)]


def _one_all_reduce(run: Observed[EmbeddingReply], nbytes: int) -> Finding:
    return compare.first_failure(
        (
            calls_in_passes(run, PASSES, (["all_reduce"], [])),
            compare.at_most(sum(call.nbytes for call in run.communication(0)), nbytes, "Bytes all-reduced"),
        )
    )


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion("loss", 3, "Sum over all columns, of all ranks; the target's logit is on one rank alone."),
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
        ),
        Criterion("arguments unchanged", 1, "Logits and target stay as they are."),
        Criterion(
            "bytes",
            2,
            "At most 3 (p - 1) numbers a token in forward and none in backward: what each rank needs of the "
            "others is the largest logit, the sum and the target's logit.",
        ),
        Criterion("group", 1, "Rank and size are those in the group."),
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
    cases = [even, *uneven, *large]
    runs = [case.launch(answer) for case in cases]
    yield "loss", even.losses(runs[0])
    yield NOT_EVEN.name, compare.first_failure(map(Logits.losses, uneven, runs[1:4]))
    yield "any logits", compare.first_failure(map(Logits.losses, large, runs[4:]))
    yield "gradient", compare.first_failure(map(Logits.gradients, cases, runs))
    yield "arguments unchanged", compare.first_failure(map(Logits.unchanged, cases, runs))
    wide = Logits.drawn(rng, 200, 4)
    yield "bytes", wide.traffic(wide.launch(answer))
    pairs = Logits.drawn(rng, 7, 2, torch.float64)
    run = pairs.launch(answer, PAIRS)
    yield "group", compare.first_failure((pairs.losses(run), pairs.gradients(run)))


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits [N, V], targets [N], and the gradient that arrives at each token's loss [N]."""

    logits: Tensor
    target: Tensor
    arriving: Tensor
    ranks: int

    @classmethod
    def drawn(cls, rng: Rng, vocabulary: int, ranks: int, dtype: torch.dtype | None = None) -> "Logits":
        some = rng.integers(0, vocabulary - 1, rng.integer(2, 5))
        target = torch.cat([some, at_borders(vocabulary, ranks)])
        dtype = dtype or rng.choice((torch.float32, torch.float64))
        logits = 3 * rng.normal(len(target), vocabulary, dtype=dtype)
        return cls(logits, target, rng.normal(len(target), dtype=dtype), ranks)

    def launch(self, answer: Answer, groups: Sequence[Sequence[int]] = ()) -> Observed[LossReply]:
        """groups: each does it by itself, and each with logits so much lower that the loss is the same."""
        parts, times = self.logits.tensor_split(self.ranks, 1), max(1, len(groups))
        shards = [part - FAR * number for part in parts for number in range(times)]
        return answer.launch(
            drivers.loss,
            per_rank(shards),
            self.target,
            self.logits.shape[1],
            self.arriving,
            list(map(list, groups)),
            ranks=len(shards),
        )

    def _expected(self) -> tuple[Tensor, Tensor]:
        """The losses [N] and the gradient [N, V], computed in float64."""
        logits = self.logits.to(torch.float64, copy=True).requires_grad_()
        losses = functional.cross_entropy(logits, self.target, reduction="none")
        torch.autograd.backward(sent(losses, self.arriving.double()))
        assert logits.grad is not None
        return losses.detach().to(self.logits.dtype), logits.grad.to(self.logits.dtype)

    def losses(self, run: Observed[LossReply]) -> Finding:
        seen = [reply.result for reply in run.results]
        what = f"the loss with {self.logits.shape[1]} tokens"
        return compare.close_on_all_ranks(seen, [self._expected()[0]] * len(seen), what, atol=1e-5)

    def gradients(self, run: Observed[LossReply]) -> Finding:
        parts = [part.clone() for part in self._expected()[1].tensor_split(self.ranks, 1)]
        expected = [part for part in parts for _ in range(len(run.results) // self.ranks)]
        seen = [reply.gradient for reply in run.results]
        what = f"the gradient of the logits, of {self.logits.shape[1]} tokens,"
        return compare.close_on_all_ranks(seen, expected, what, atol=1e-5)

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
            forward, backward = calls_by_pass(run, rank, PASSES)
            if backward:
                return Finding(False, f"In backward, rank {rank} calls {backward[0].op}.")
            most = max(most, sum(call.sent for call in forward))
        return compare.at_most(most, allowed, f"Bytes that a rank sends for {len(self.target)} tokens")


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
