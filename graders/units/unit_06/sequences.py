"""Unit 06, sequence parallelism: tokens brought together and dealt out, and a layer between the two."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from graders.units.passes import calls_by_pass
from graders.units.unit_06 import drivers
from graders.units.unit_06.passes import PAIRS, PASSES
from graders.units.unit_06.replies import SequenceReply

GATHER, SCATTER = "all_gather", "reduce_scatter"
"""How the names of the calls of a kind begin."""

LAYOUT = Criterion(
    "any layout in memory",
    1,
    "x may stand in memory in any order, and the gradient of a sum is one number, expanded: messages are "
    "contiguous.",
    needs=("gradient",),
)
GROUP = Criterion("group", 1, "Each collective takes a group, in backward too.", needs=("gradient",))


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("all tokens", 3, "Parts stand behind each other along T; a collective knows no T."),
        Criterion("gradient", 3, "All ranks' gradients are for the same whole: add up, then cut."),
        LAYOUT,
        Criterion(
            "one collective a pass",
            1,
            "An all-gather in forward; in backward, nobody needs more than its part.",
            needs=("gradient",),
        ),
        GROUP,
    ),
    hints=(
        "Which ranks use this rank's tokens after the gather, and so whose gradients make up theirs?",
        "Which collective gives every rank its part of a sum, and nothing of the other parts?",
        "dist.all_gather and dist.reduce_scatter take lists of tensors: torch.cat and chunk along T.",
    ),
)
def gather_sequence(answer: Answer, rng: Rng) -> Findings:
    """Drawn parts, and another gradient of the whole on every rank."""
    yield from _both_passes(answer, rng, GATHER, "all tokens")


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion("its tokens of the sum", 3, "Add up what all ranks have, and keep this rank's tokens."),
        Criterion("gradient", 2, "What this rank has for a token went into the sum on that token's rank."),
        LAYOUT,
        Criterion(
            "one collective a pass",
            1,
            "A reduce-scatter in forward, and its mirror image in backward.",
            needs=("gradient",),
        ),
        GROUP,
    ),
    hints=(
        "What was gather_sequence's backward, and what is it here?",
        "Every rank adds to every token. Where is the gradient of token 0 before backward, and who needs it?",
    ),
)
def scatter_sequence(answer: Answer, rng: Rng) -> Findings:
    """Drawn parts of a sum, and the gradient of each rank's tokens."""
    yield from _both_passes(answer, rng, SCATTER, "its tokens of the sum")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What each rank gives to both passes, and what should come out: all [B, T or T / p, D].

    kind: GATHER or SCATTER. layout: see the driver. groups: each does it by itself.
    """

    kind: str
    parts: list[Tensor]
    wholes: list[Tensor]
    layout: str
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls, rng: Rng, kind: str, layout: str = "contiguous", groups: Sequence[list[int]] = ()
    ) -> "Tokens":
        ranks = sum(map(len, groups)) or rng.integer(3, 4)
        size = ranks // max(1, len(groups))
        samples, own, width = rng.integer(2, 3), rng.integer(2, 3), rng.integer(2, 4)
        dtype = rng.choice((torch.float32, torch.float64))

        def of_each(tokens: int, arriving: bool) -> list[Tensor]:
            numbers = 1 if arriving and layout == "gaps" else width
            drawn = [rng.normal(samples, tokens, numbers, dtype=dtype) for _ in range(ranks)]
            return [each.expand(-1, -1, width).clone() for each in drawn]

        parts, wholes = of_each(own, kind == SCATTER), of_each(own * size, kind == GATHER)
        return cls(kind, parts, wholes, layout, list(groups) or [list(range(ranks))])

    @property
    def gathered(self) -> list[Tensor]:
        """For each rank all parts of its group, along T."""
        return [torch.cat([self.parts[other] for other in group], 1) for group, _ in self._places()]

    @property
    def summed(self) -> list[Tensor]:
        """For each rank its part of the sum of its group."""
        sums = [
            (torch.stack([self.wholes[other] for other in group]).sum(0), group, r)
            for group, r in self._places()
        ]
        return [whole.tensor_split(len(group), 1)[group.index(rank)].clone() for whole, group, rank in sums]

    def _places(self) -> list[tuple[list[int], int]]:
        """Each rank, in their order, with its group."""
        return sorted(((group, rank) for group in self.groups for rank in group), key=lambda pair: pair[1])

    def launch(self, answer: Answer) -> Observed[SequenceReply]:
        x, arriving = (self.parts, self.wholes) if self.kind == GATHER else (self.wholes, self.parts)
        given = [each[..., :1].clone() if self.layout == "gaps" else each for each in arriving]
        groups = self.groups if len(self.groups) > 1 else []
        return answer.launch(
            drivers.sequence, per_rank(x), per_rank(given), self.layout, groups, ranks=len(x)
        )

    def result(self, run: Observed[SequenceReply]) -> Finding:
        expected = self.gathered if self.kind == GATHER else self.summed
        return compare.close_on_all_ranks([reply.result for reply in run.results], expected, "the result")

    def unchanged(self, run: Observed[SequenceReply]) -> Finding:
        given = self.parts if self.kind == GATHER else self.wholes
        return compare.first_failure(
            compare.equal(reply.x, x, "x_BTD afterwards") for reply, x in zip(run.results, given, strict=True)
        )

    def gradient(self, run: Observed[SequenceReply]) -> Finding:
        expected = self.summed if self.kind == GATHER else self.gathered
        seen = [next(iter(reply.gradients), None) for reply in run.results]
        return compare.close_on_all_ranks(seen, expected, "the gradient of x_BTD")


def _both_passes(answer: Answer, rng: Rng, kind: str, first: str) -> Findings:
    """The rubric that the two have in common. first: its first row."""
    case = Tokens.drawn(rng, kind)
    run = case.launch(answer)
    yield first, compare.first_failure((case.result(run), case.unchanged(run)))
    yield "gradient", case.gradient(run)
    gaps = Tokens.drawn(rng, kind, "gaps")
    spread = gaps.launch(answer)
    yield LAYOUT.name, compare.first_failure((gaps.result(spread), gaps.gradient(spread)))
    yield "one collective a pass", _one_each(run, case.wholes[0].nbytes)
    pairs = Tokens.drawn(rng, kind, groups=PAIRS)
    paired = pairs.launch(answer)
    yield "group", compare.first_failure((pairs.result(paired), pairs.gradient(paired)))


def _one_each(run: Observed[SequenceReply], nbytes: int) -> Finding:
    """Passes if each rank makes one call in each pass, and sends at most (p - 1) / p of `nbytes`."""
    ranks = len(run.results)
    for rank in range(ranks):
        for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True):
            sent = sum(call.sent for call in calls)
            if len(calls) != 1 or sent > nbytes * (ranks - 1) // ranks:
                names = ", ".join(call.op for call in calls) or "nothing"
                said = f"In {label} rank {rank} of {ranks} calls {names} and sends {sent:,} bytes"
                return Finding(False, f"{said}; the whole has {nbytes:,}.")
    return Finding(True, "Each pass has one collective, and no rank sends what others have.")
