"""Unit 12, trainers that meet in pairs."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    PlainData,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.groups import members_of
from graders.units.unit_12.drivers import trainers
from graders.units.unit_12.drivers.trainers import TournamentReply
from graders.units.unit_12.cases import THREES
from graders.units.unit_12.trainers import Player, alike, held, score_of

Replies = Observed[list[TournamentReply]]
RIGHT = ("the better model", "pairs")


@exercise(
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "the better model",
            4,
            "Each of the two judges both models by its own score, and keeps the one that it finds better.",
        ),
        Criterion(
            "pairs",
            2,
            "The numbers that randperm gave at places 0 and 1 meet, then those at 2 and 3. An odd one rests.",
        ),
        Criterion(
            "diverged or equal",
            1,
            "No comparison with NaN is true, and an infinite score is no NaN. Of equals one keeps its own.",
            needs=RIGHT,
        ),
        Criterion(
            "one model each way",
            1,
            "Only partners talk, and each value goes once: model.parameters() has a shared one once.",
            needs=RIGHT,
        ),
        Criterion(
            "random numbers",
            1,
            "A torch.Generator of its own leaves the model's random numbers alone.",
            needs=RIGHT,
        ),
        Criterion(
            "several rounds",
            1,
            "Between rounds models learn: nothing of an old round is true any more.",
            needs=RIGHT,
        ),
        Criterion("group", 1, "randperm gives places in the group.", needs=RIGHT),
        Criterion(
            "all of the model",
            1,
            "Buffers too, whatever their type and order in memory; into the tensors that are there, which an "
            "optimizer knows.",
            needs=RIGHT,
        ),
    ),
    hints=(
        "How do all ranks know the same pairs, without a message?",
        "Both partners want to send first. What may each of them not wait for?",
        "Until it knows which is better a rank needs both models. Where does the one wait while the other is "
        "scored?",
    ),
)
def tournament(answer: Answer, rng: Rng) -> Findings:
    """Drawn models, and trainers with drawn tastes."""
    two = [Round.moving(rng, 2) for _ in range(4)]
    runs = [each.launch(answer) for each in two]
    yield "the better model", compare.first_failure(map(Round.right, two, runs))
    many = [*(Round.moving(rng, ranks) for ranks in (6, 7, 5, 3)), Round.drawn(rng, 1)]
    many_runs = [each.launch(answer) for each in many]
    yield "pairs", compare.first_failure(map(Round.right, many, many_runs))
    odd = [Round.drawn(rng, 4, diverged=[0, 2])]
    odd += [Round.drawn(rng, 2, diverged=diverged) for diverged in ([0, 1], [1])]
    odd += [Round.drawn(rng, 2, equal=True), Round.moving(rng, 2, close=True)]
    odd += [Round.drawn(rng, 2, diverged=[0], infinite=[1]), Round.drawn(rng, 2, infinite=[1], sign=1)]
    yield "diverged or equal", compare.first_failure(each.right(each.launch(answer)) for each in odd)
    tied = Round.moving(rng, 3, "tied")
    tied_run = tied.launch(answer)
    looked_at = zip((*two, *many, tied), (*runs, *many_runs, tied_run), strict=True)
    sent = compare.first_failure(each.traffic(run) for each, run in looked_at)
    yield "one model each way", sent
    yield "random numbers", random_numbers(many_runs[0])
    yield "several rounds", one_after_another(answer, rng)
    grouped = [Round.drawn(rng, 6, groups=THREES) for _ in range(2)]
    yield "group", compare.first_failure(each.right(each.launch(answer)) for each in grouped)
    whole = Round.moving(rng, 2, "all")
    whole_run = whole.launch(answer)
    found = [each.whole(run) for each, run in ((tied, tied_run), (whole, whole_run))]
    if sent.passed and all(each.passed for each in found):  # else it has failed already
        found.append(whole.traffic(whole_run))
    yield "all of the model", compare.first_failure(found)


def random_numbers(run: Replies) -> Finding:
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


def one_after_another(answer: Answer, rng: Rng) -> Finding:
    """Passes if three rounds are right that the same models take part in, which change in between."""
    first = Round.drawn(rng, 5)
    rounds = [first]
    for _ in range(2):
        values = [[rng.normal(*each.shape) for each in own] for own in first.values]
        likes = [rng.normal(len(own)).tolist() for own in first.likes]
        rounds.append(replace(first, values=values, likes=likes, seed=rng.integer(0, 10_000)))
    given = [[(each.values[rank], each.likes[rank], each.seed) for each in rounds] for rank in range(5)]
    made: PlainData = (first.kind, first.width, [])
    run = answer.launch(trainers.met, made, per_rank(given), ranks=5)
    return compare.first_failure(
        each.survivors(compare.column(run.results, number, len(rounds)), f"round {number}: ")
        for number, each in enumerate(rounds)
    )


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

    kind: str
    width: int
    values: list[list[Tensor]]
    likes: list[list[float]]
    seed: int
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        ranks: int,
        kind: str = "plain",
        *,
        diverged: list[int] | None = None,
        infinite: list[int] | None = None,
        sign: int = -1,
        equal: bool = False,
        close: bool = False,
        groups: list[list[int]] | None = None,
    ) -> "Round":
        """diverged: ranks whose models have a NaN; infinite: those that count as infinity for all, with this
        sign. equal: all models count as much as any other; close: but for a part in some 10^9.
        """
        width = rng.integer(2, 3)
        like = held(Player(kind, width))
        values = [[_value(rng, each) for each in like] for _ in range(ranks)]
        for rank in diverged or []:
            values[rank][0].view(-1)[1] = math.nan
        for rank in infinite or []:
            values[rank][0].view(-1)[1] = sign * math.inf
        counts = torch.tensor([float(not equal and each.is_floating_point()) for each in like])
        likes = [(rng.normal(len(like)) * counts).tolist() for _ in range(ranks)]
        if infinite:
            likes = [[abs(own[0]) + 1, *own[1:]] for own in likes]
        if close:
            values = [[values[0][0], *own[1:]] for own in values]
            likes = [[1.0, *(1e-9 * like for like in own[1:])] for own in likes]
        return cls(kind, width, values, likes, rng.integer(0, 10_000), groups or [])

    @classmethod
    def moving(cls, rng: Rng, ranks: int, kind: str = "plain", *, close: bool = False) -> "Round":
        """One in which at least one rank takes another's model, and at least one keeps its own."""
        while True:
            found = cls.drawn(rng, ranks, kind, close=close)
            owners = [found.survivor(rank)[0] for rank in range(ranks)]
            if 0 < sum(owner == rank for rank, owner in enumerate(owners)) < ranks:
                return found

    def launch(self, answer: Answer) -> Replies:
        made = (self.kind, self.width, self.groups)
        rounds = [[(*each, self.seed)] for each in zip(self.values, self.likes, strict=True)]
        return answer.launch(trainers.met, made, per_rank(rounds), ranks=len(self.values))

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

    def whole(self, run: Replies) -> Finding:
        """`survivors`, and nothing else about the model is changed."""
        changed = (
            compare.equal(reply.changed, [], f"what else is changed on rank {rank}")
            for rank, reply in enumerate(compare.column(run.results, 0, 1))
        )
        return compare.first_failure((self.right(run), *changed))

    def right(self, run: Replies) -> Finding:
        """`survivors` of a run of one round."""
        return self.survivors(compare.column(run.results, 0, 1))

    def traffic(self, run: Replies) -> Finding:
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
