"""The grader of `tournament`."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, PlainData, Rng, compare, per_rank
from graders.units.groups import members_of
from graders.units.models import state_of
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.cases import THREES
from graders.units.unit_12.drivers import trainers
from graders.units.unit_12.drivers.trainers import Player, TournamentReply, score_of

RIGHT = ("the better model", "pairs")
Run = Observed[TournamentReply]


@dataclass(frozen=True, slots=True)
class Meeting:
    """ranks: how many trainers. whole: of the models, see `Player`. diverged: ranks whose models have a NaN.
    equal: all models count as much as any other.
    """

    ranks: int = feature(2, "{} ranks")
    draw: int = 0
    whole: bool = feature(False, lambda whole: "buffers and shared tensors" if whole else "")
    diverged: tuple[int, ...] = feature((), lambda ranks: f"NaN on ranks {[*ranks]}" if ranks else "")
    equal: bool = feature(False, lambda equal: "equal scores" if equal else "")
    grouped: bool = feature(False, lambda grouped: f"groups {THREES}" if grouped else "")


@dataclass(frozen=True, slots=True)
class Round:
    """values: what each rank's model holds. likes: how each rank weights it, see `score_of`."""

    values: list[list[Tensor]]
    likes: list[list[float]]
    seed: int
    groups: list[list[int]]

    @classmethod
    def drawn(cls, rng: Rng, case: Meeting) -> "Round":
        """Where scores are drawn, at least one rank takes another's model, and at least one keeps its own."""
        while True:
            like = state_of(Player(case.whole))
            values = [[_value(rng, each) for each in like] for _ in range(case.ranks)]
            for rank in case.diverged:
                values[rank][0][0, 1] = math.nan
            likes = [(rng.normal(len(like)) * (not case.equal)).tolist() for _ in range(case.ranks)]
            found = cls(values, likes, rng.integer(0, 10_000), THREES if case.grouped else [])
            kept = sum(found.survivor(rank)[0] == rank for rank in range(case.ranks))
            if 0 < kept < case.ranks or case.ranks == 1 or case.diverged or case.equal:
                return found

    def partner(self, rank: int) -> int | None:
        """The rank that it meets."""
        members = members_of(rank, len(self.values), self.groups)
        order = torch.randperm(len(members), generator=torch.Generator().manual_seed(self.seed)).tolist()
        other = order.index(members.index(rank)) ^ 1
        return members[order[other]] if other < len(order) else None

    def survivor(self, rank: int) -> tuple[int, float]:
        """Whose model a rank holds afterwards, and its score."""
        own, partner = score_of(self.values[rank], self.likes[rank]), self.partner(rank)
        theirs = math.nan if partner is None else score_of(self.values[partner], self.likes[rank])
        better = theirs > own or (math.isnan(own) and not math.isnan(theirs))
        return (partner, theirs) if partner is not None and better else (rank, own)

    def survivors(self, run: Run) -> Finding:
        """Passes if each rank holds the better model, and returned its score."""
        found = []
        for rank, reply in enumerate(run.results):
            owner, score = self.survivor(rank)
            met = f"rank {rank}, who meets {self.partner(rank)} and finds {owner}'s model better"
            found.append(compare.equal(reply.values, self.values[owner], f"the model of {met}"))
            found.append(compare.near(reply.returned, score, f"what is returned by {met}"))
        return compare.first_failure(found, "Every rank holds the model that it finds better.")

    def traffic(self, run: Run) -> Finding:
        """Passes if each rank sends one model's bytes to its partner, and calls no collective."""
        for rank, values in enumerate(self.values):
            calls, partner = run.communication(rank), self.partner(rank)
            others = {str(call.peer) if call.op in ("send", "recv") else call.op for call in calls}
            if others - {str(partner)}:
                said = f"rank {rank}, who meets {partner}, calls {', '.join(sorted(others))}"
                return Finding(False, f"{said}; expected messages to its partner alone.", Kind.TOO_MUCH)
            sent = sum(call.nbytes for call in calls if call.op == "send")
            nbytes = sum(each.nbytes for each in values)
            if sent > nbytes:
                return compare.at_most(sent, nbytes, f"Bytes that rank {rank} sends", kind=Kind.TOO_MUCH)
        return Finding(True, "Each of a pair sends its model to the other, once.")


def _value(rng: Rng, like: Tensor) -> Tensor:
    """One of this shape and dtype."""
    if like.is_floating_point():
        return rng.normal(*like.shape, dtype=like.dtype)
    return torch.tensor(rng.integer(1, 99))


@one_by_one(
    base=Meeting(),
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "the better model",
            4,
            "Each of the two judges both models by its own score, and keeps the one that it finds better.",
            vary=vary(draw=(1, 2)),
        ),
        Criterion(
            "pairs",
            2,
            "The numbers that randperm gave at places 0 and 1 meet, then those at 2 and 3. An odd one rests.",
            vary=vary(ranks=(7, 6, 1)),
        ),
        Criterion(
            "diverged or equal",
            1,
            "No comparison with NaN is true. Of equals one keeps its own.",
            needs=RIGHT,
            vary=vary(diverged=((0,), (1,)), equal=(True,)),
        ),
        Criterion(
            "one model each way",
            1,
            "Only partners talk, and each value goes once: model.parameters() has a shared one once.",
            needs=RIGHT,
            how=look("one model each way"),
        ),
        Criterion(
            "random numbers",
            1,
            "A torch.Generator of its own leaves the model's random numbers alone.",
            needs=RIGHT,
            how=look("random numbers"),
        ),
        Criterion(
            "group",
            1,
            "randperm gives places in the group.",
            needs=RIGHT,
            vary=both(grouped=True, ranks=6),
        ),
        Criterion(
            "all of the model",
            2,
            "Buffers too, whatever their type; into the tensors that are there, which an optimizer knows.",
            needs=RIGHT,
            vary=vary(whole=(True,)),
            how=look("all of the model"),
        ),
    ),
    hints=(
        "How do all ranks know the same pairs, without a message?",
        "Both partners want to send first. What may each of them not wait for?",
        "Until it knows which is better a rank needs both models. Where does the one wait while the other is "
        "scored?",
    ),
    # None of these knows of another.
    possible=lambda case: (
        sum([case.ranks != 2, case.draw > 0, case.whole, case.diverged != (), case.equal]) < 2
    ),
)
def tournament(answer: Answer, case: Meeting, rng: Rng) -> tuple[Finding, Looks]:
    """Drawn models, and trainers with drawn tastes."""
    drawn = Round.drawn(rng, case)
    own: PlainData = per_rank(drawn.values), per_rank(drawn.likes)
    run = answer.launch(trainers.met, case.whole, drawn.groups, *own, drawn.seed, ranks=case.ranks)
    following = float(torch.rand((), generator=torch.Generator().manual_seed(7)))
    next_one, tensors = "what torch.rand(()) gives afterwards", "whether the model has its own tensors"
    return drawn.survivors(run), {
        "one model each way": lambda: drawn.traffic(run),
        "random numbers": lambda: on_each([reply.drawn for reply in run.results], following, next_one),
        "all of the model": lambda: on_each([reply.same for reply in run.results], True, tensors),
    }


def on_each(seen: list[Any], expected: Any, what: str) -> Finding:
    """Passes if every rank has seen this."""
    return compare.first_failure(
        compare.equal(each, expected, f"{what} on rank {rank}") for rank, each in enumerate(seen)
    )
