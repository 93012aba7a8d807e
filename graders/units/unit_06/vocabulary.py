"""Unit 06, the first layer of a model: an embedding cut by rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
)
from graders.units.passes import calls_in_passes
from graders.units.unit_06 import drivers
from graders.units.unit_06.passes import PAIRS, PASSES, at_places
from graders.units.unit_06.replies import EmbeddingReply

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
        Criterion(
            "the rows of the tokens",
            3,
            "Each token has its row on one rank; all others add nothing.",
            needs=("calls",),
        ),
        NOT_EVEN,
        Criterion(
            "gradient",
            2,
            "A row gets a gradient from its own tokens only, and once.",
            needs=("the rows of the tokens", NOT_EVEN.name),
        ),
        Criterion(
            "its rows only",
            2,
            "One parameter, weight [V_r, D], in memory of its own: a view keeps the whole.",
            needs=("the rows of the tokens", NOT_EVEN.name),
        ),
        Criterion("calls", 2, "One all-reduce of the result in forward, nothing in backward."),
        Criterion(
            "group",
            1,
            "Rank and size are those in the group.",
            needs=("the rows of the tokens", NOT_EVEN.name, "gradient"),
        ),
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
    pairs = Rows.drawn(rng, 5, 2, PAIRS)
    run = pairs.launch(answer)
    yield "group", compare.first_failure((pairs.rows(run), pairs.gradients(run)))


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight [V, D], tokens [2, T] of which some come twice, and the gradient that arrives [2, T, D].

    groups: each does the same by itself, and tokens are [2, 1, T] then.
    """

    weight: Tensor
    tokens: Tensor
    arriving: Tensor
    ranks: int
    groups: list[list[int]]

    @classmethod
    def drawn(cls, rng: Rng, vocabulary: int, ranks: int, groups: Sequence[list[int]] = ()) -> "Rows":
        width = rng.integer(2, 4)
        some = rng.integers(0, vocabulary - 1, 2 * rng.integer(2, 3))
        tokens = torch.cat([some, at_borders(vocabulary, ranks), some[:2]]).view(2, *[1] * bool(groups), -1)
        dtype = rng.choice((torch.float32, torch.float64))
        weight = rng.normal(vocabulary, width, dtype=dtype)
        arriving = rng.normal(*tokens.shape, width, dtype=dtype)
        return cls(weight, tokens, arriving, ranks, list(groups))

    def launch(self, answer: Answer) -> Observed[EmbeddingReply]:
        ranks = max(1, len(self.groups)) * self.ranks
        return answer.launch(
            drivers.embedding, self.weight, self.tokens, self.arriving, self.groups, ranks=ranks
        )

    def rows(self, run: Observed[EmbeddingReply]) -> Finding:
        where = f"the result with {len(self.weight)} tokens"
        return compare.first_failure(
            compare.close_on_all_ranks(seen, [self.weight[tokens]] * len(seen), what)
            for what, tokens, seen in (
                (where, self.tokens, [reply.result for reply in run.results]),
                (f"{where}, of other ones then,", self.tokens.flip(0), [each.again for each in run.results]),
            )
        )

    def gradients(self, run: Observed[EmbeddingReply]) -> Finding:
        whole = torch.zeros_like(self.weight).index_add_(
            0, self.tokens.flatten(), self.arriving.flatten(0, -2)
        )
        where = f"the gradient of weight, with {len(self.weight)} tokens,"
        seen = [reply.gradient for reply in run.results]
        return compare.close_on_all_ranks(seen, self._parts(whole), where)

    def kept(self, run: Observed[EmbeddingReply]) -> Finding:
        """Passes if each rank has one parameter, its rows, and both arguments are as they were."""
        parts = self._parts(self.weight)
        return compare.first_failure(
            finding
            for rank, (reply, part) in enumerate(zip(run.results, parts, strict=True))
            for finding in (
                compare.equal(reply.parameters, {"weight": part}, f"The parameters of rank {rank}"),
                compare.at_most(
                    reply.held, 0, f"Tensors of rank {rank}'s layer in the whole weight's memory"
                ),
                # A row of zeros for strangers may stand beside its own.
                compare.at_most(
                    reply.kept, part.nbytes + self.weight[0].nbytes, f"Bytes that rank {rank}'s layer keeps"
                ),
                compare.equal(reply.whole, self.weight, "The whole layer's weight afterwards"),
                compare.equal(reply.tokens, self.tokens, "The tokens afterwards"),
            )
        )

    def _parts(self, whole: Tensor) -> list[Tensor]:
        """What each rank has of it."""
        return at_places([part.clone() for part in whole.tensor_split(self.ranks)], self.groups)


def _one_all_reduce(run: Observed[EmbeddingReply], nbytes: int) -> Finding:
    return compare.first_failure(
        (
            calls_in_passes(run, (*PASSES, "forward again"), (["all_reduce"], [], ["all_reduce"])),
            compare.at_most(
                sum(call.nbytes for call in run.communication(0)),
                2 * nbytes,
                "Bytes all-reduced by both",
                kind=Kind.TOO_MUCH,
            ),
        )
    )
