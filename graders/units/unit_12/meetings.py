"""Trainers that meet in pairs: how they are drawn, and what is found of them."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, PlainData, Rng, compare
from graders.units.groups import members_of
from graders.units.unit_12.cases import THREES
from graders.units.unit_12.drivers.trainers import TournamentReply
from graders.units.unit_12.trainers import Player, alike, held, score_of


@dataclass(frozen=True, slots=True)
class Meeting:
    """ranks: how many trainers. kind: of the models, see `Player`. diverged: ranks whose models have a NaN;
    infinite: those that count as infinity for all, with this sign. equal: all models count as much as any
    other; close: but for a part in some 10^9. rounds: one after another, with models that change between.
    """

    ranks: int = feature(2, "{} ranks")
    draw: int = 0
    kind: str = feature("plain", {"plain": "", "tied": "shared tensors", "all": "buffers"}.__getitem__)
    diverged: tuple[int, ...] = feature((), lambda ranks: f"NaN on ranks {[*ranks]}" if ranks else "")
    infinite: tuple[int, ...] = feature((), lambda ranks: f"infinity on ranks {[*ranks]}" if ranks else "")
    sign: int = -1
    equal: bool = feature(False, lambda equal: "equal scores" if equal else "")
    close: bool = feature(False, lambda close: "scores that nearly agree" if close else "")
    grouped: bool = feature(False, lambda grouped: f"groups {THREES}" if grouped else "")
    rounds: int = feature(1, lambda rounds: f"{rounds} rounds" if rounds > 1 else "")

    @property
    def alone(self) -> bool:
        """Whether it is unlike the ordinary case in one thing: none of these knows of another."""
        more_ranks = self.ranks != 2 and self.rounds == 1 and not self.grouped
        unlike = (self.diverged or self.infinite, self.equal, self.close, self.draw, self.kind != "plain")
        return sum(map(bool, (*unlike, self.rounds > 1, self.grouped, more_ranks))) < 2

    @property
    def groups(self) -> list[list[int]]:
        return THREES if self.grouped else []

    def drawn(self, rng: Rng) -> "Round":
        """Where scores are drawn, at least one rank takes another's model, and at least one keeps its own."""
        while True:
            found = self._any(rng)
            kept = sum(found.survivor(rank)[0] == rank for rank in range(self.ranks))
            if 0 < kept < self.ranks or self.ranks == 1 or self.diverged or self.infinite or self.equal:
                return found

    def _any(self, rng: Rng) -> "Round":
        like = held(Player(self.kind, 2))
        values = [[_value(rng, each) for each in like] for _ in range(self.ranks)]
        for rank in self.diverged:
            values[rank][0].view(-1)[1] = math.nan
        for rank in self.infinite:
            values[rank][0].view(-1)[1] = self.sign * math.inf
        counts = torch.tensor([float(not self.equal and each.is_floating_point()) for each in like])
        likes = [(rng.normal(len(like)) * counts).tolist() for _ in range(self.ranks)]
        if self.infinite:
            likes = [[abs(own[0]) + 1, *own[1:]] for own in likes]
        if self.close:
            values = [[values[0][0], *own[1:]] for own in values]
            likes = [[1.0, *(1e-9 * like for like in own[1:])] for own in likes]
        return Round(values, likes, rng.integer(0, 10_000), self.groups)


def _value(rng: Rng, like: Tensor) -> Tensor:
    """One of this shape and dtype; a whole number is one that no float64 holds."""
    if like.is_floating_point():
        return rng.normal(*like.shape, dtype=like.dtype)
    return 2**53 + 1 + 2 * rng.integers(0, 99)


def _score(seen: PlainData, expected: float, what: str) -> Finding:
    """Passes if the score is the one expected, which may be NaN or infinite."""
    if math.isfinite(expected):
        return compare.near(seen, expected, what)
    passed = isinstance(seen, float) and (seen == expected or (math.isnan(seen) and math.isnan(expected)))
    return Finding(passed, f"{what} is {compare.shown(seen)}; expected {expected}.")


@dataclass(frozen=True, slots=True)
class Round:
    """values: what each rank's model holds. likes: how each rank weights it, see `score_of`."""

    values: list[list[Tensor]]
    likes: list[list[float]]
    seed: int
    groups: list[list[int]]

    def partner(self, rank: int) -> int | None:
        """The rank that it meets."""
        members = members_of(rank, len(self.values), self.groups)
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(self.seed)).tolist()
        other = order.index(members.index(rank)) ^ 1
        return members[order[other]] if other < len(order) else None

    def survivor(self, rank: int) -> tuple[int, float]:
        """Whose model a rank holds afterwards, and its score."""
        own, partner = score_of(self.values[rank], self.likes[rank]), self.partner(rank)
        if partner is None:
            return rank, own
        theirs = score_of(self.values[partner], self.likes[rank])
        better = theirs > own or (math.isnan(own) and not math.isnan(theirs))
        return (partner, theirs) if better else (rank, own)

    def survivors(self, replies: Sequence[TournamentReply], when: str = "") -> Finding:
        """Passes if each rank holds the better model, and returned its score. when: said in front."""
        findings = []
        for rank, reply in enumerate(replies):
            owner, score = self.survivor(rank)
            met = f"rank {rank}, who {self._meets(rank)} and finds {self._better(rank)} better,"
            expected = self.values[owner]
            if len(reply.values) != len(expected):
                said = f"{when}the model of {met} has {len(reply.values)} parameters and buffers afterwards"
                return Finding(False, f"{said}; expected {len(expected)}.")
            for number, (seen, wanted) in enumerate(zip(reply.values, expected, strict=True)):
                what = f"{when}tensor {number} of the model of {met}"
                if not alike(seen, wanted):
                    findings.append(compare.close(seen, wanted, what, rtol=0, atol=0))
            findings.append(_score(reply.returned, score, f"{when}what {met} returned"))
        return compare.first_failure(findings, "Every rank holds the model that it finds better.")

    def _meets(self, rank: int) -> str:
        partner = self.partner(rank)
        return "meets nobody" if partner is None else f"meets rank {partner}"

    def _better(self, rank: int) -> str:
        return "its own model" if self.survivor(rank)[0] == rank else "the other's model"

    def traffic(self, run: Observed[list[TournamentReply]]) -> Finding:
        """Passes if each rank sends one model's bytes to its partner, and calls no collective."""
        for rank in range(len(self.values)):
            calls, partner = run.communication(rank), self.partner(rank)
            if others := sorted({call.op for call in calls} - {"send", "recv"}):
                return Finding(False, f"rank {rank} calls {', '.join(others)}; messages are enough.")
            sends = [call for call in calls if call.op == "send"]
            strangers = sorted(
                {call.peer for call in sends if call.peer != partner and call.peer is not None}
            )
            if strangers:
                said = f"rank {rank}, who {self._meets(rank)}, sends to ranks {strangers}."
                return Finding(False, said, Kind.TOO_MUCH)
            sent, allowed = sum(call.nbytes for call in sends), sum(each.nbytes for each in self.values[rank])
            if sent > allowed:
                said = f"rank {rank} sends {sent:,} bytes; its model has {allowed:,}."
                return Finding(False, said, Kind.TOO_MUCH)
        return Finding(True, "Each of a pair sends its model to the other, once.")


def unchanged(run: Observed[list[TournamentReply]]) -> Finding:
    """Passes if nothing else about the models is changed."""
    return compare.first_failure(
        compare.equal(reply.changed, [], f"what else is changed on rank {rank}")
        for rank, replies in enumerate(run.results)
        for reply in replies
    )


def random_numbers(run: Observed[list[TournamentReply]]) -> Finding:
    """Passes if what is drawn after the call is what would have been drawn without it."""
    drawn = [
        float(torch.rand((), generator=torch.Generator().manual_seed(7))),
        random.Random(7).random(),
        float(np.random.RandomState(7).rand()),
    ]
    what = "what torch.rand(()), random.random() and numpy.random.rand() give afterwards"
    return compare.first_failure(
        compare.equal(reply.random, drawn, f"{what} on rank {rank}")
        for rank, reply in enumerate(compare.column(run.results, 0, 1))
    )
