"""Unit 12, trainers that meet in pairs."""

import math
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
    per_rank,
)
from graders.units.groups import members_of
from graders.units.unit_12.drivers import trainers
from graders.units.unit_12.drivers.trainers import TournamentReply
from graders.units.unit_12.space_worlds import THREES
from graders.units.unit_12.trainers import Player, held, score_of

Replies = Observed[TournamentReply]


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
            "all of the model",
            1,
            "Buffers too, whatever their type; into the tensors that are there, which an optimizer knows.",
        ),
        Criterion("diverged or equal", 1, "No comparison with NaN is true. Of equals one keeps its own."),
        Criterion(
            "one model each way",
            1,
            "Only partners talk, and each value goes once: model.parameters() has a shared one once.",
        ),
        Criterion(
            "random numbers", 1, "A torch.Generator of its own leaves the model's random numbers alone."
        ),
        Criterion("group", 1, "randperm gives places in the group."),
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
    two = [Round.drawn(rng, 2) for _ in range(4)]
    runs = [each.launch(answer) for each in two]
    yield "the better model", compare.first_failure(map(Round.survivors, two, runs))
    many = [Round.drawn(rng, ranks) for ranks in (6, 5, 3, 1)]
    many_runs = [each.launch(answer) for each in many]
    yield "pairs", compare.first_failure(map(Round.survivors, many, many_runs))
    whole = [Round.drawn(rng, 4, "all"), Round.drawn(rng, 3, "tied")]
    whole_runs = [each.launch(answer) for each in whole]
    yield "all of the model", compare.first_failure(map(Round.whole, whole, whole_runs))
    odd = [Round.drawn(rng, 4, diverged=[0, 2]), Round.drawn(rng, 2, diverged=[0, 1])]
    odd += [Round.drawn(rng, 2, diverged=[place]) for place in range(2)] + [Round.drawn(rng, 2, equal=True)]
    yield "diverged or equal", compare.first_failure(each.survivors(each.launch(answer)) for each in odd)
    looked_at = zip((*two, *many, *whole), (*runs, *many_runs, *whole_runs), strict=True)
    yield "one model each way", compare.first_failure(each.traffic(run) for each, run in looked_at)
    yield "random numbers", random_numbers(many_runs[0])
    grouped = [Round.drawn(rng, 6, groups=THREES) for _ in range(2)]
    yield "group", compare.first_failure(each.survivors(each.launch(answer)) for each in grouped)


def random_numbers(run: Replies) -> Finding:
    """Passes if what is drawn after the call is what would have been drawn without it."""
    drawn = torch.rand(3, generator=torch.Generator().manual_seed(7))
    seen = [reply.random for reply in run.results]
    return compare.close_on_all_ranks(seen, [drawn] * len(seen), "what torch.rand gives afterwards", 0, 0)


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
        equal: bool = False,
        groups: list[list[int]] | None = None,
    ) -> "Round":
        """diverged: ranks whose models have a NaN. equal: all models count as much as any other."""
        width = rng.integer(2, 3)
        shapes = [(tuple(each.shape), each.dtype) for each in held(Player(kind, width))]
        values = [
            [
                rng.normal(*shape, dtype=dtype) if dtype.is_floating_point else rng.integers(0, 99)
                for shape, dtype in shapes
            ]
            for _ in range(ranks)
        ]
        for rank in diverged or []:
            values[rank][0].view(-1)[1] = math.nan
        likes = [[0.0 if equal else like for like in rng.normal(len(shapes)).tolist()] for _ in range(ranks)]
        return cls(kind, width, values, likes, rng.integer(0, 10_000), groups or [])

    def launch(self, answer: Answer) -> Replies:
        made = (self.kind, self.width, self.groups)
        given = per_rank(self.values), per_rank(self.likes), self.seed
        return answer.launch(trainers.met, made, *given, ranks=len(self.values))

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

    def survivors(self, run: Replies) -> Finding:
        """Passes if each rank holds the better model, and returned its score."""
        findings = []
        for rank, reply in enumerate(run.results):
            owner, score = self.survivor(rank)
            met = f"rank {rank}, who {self._meets(rank)} and finds {self._better(rank)} better,"
            for number, (seen, expected) in enumerate(compare.side_by_side(reply.values, self.values[owner])):
                what = f"tensor {number} of the model of {met}"
                same = type(seen) is Tensor and torch.equal(seen.nan_to_num(), expected.nan_to_num())
                findings.append(
                    Finding(True, "") if same else compare.close(seen, expected, what, rtol=0, atol=0)
                )
            if math.isnan(score):
                passed = isinstance(reply.returned, float) and math.isnan(reply.returned)
                said = f"what {met} returned is {compare.shown(reply.returned)}; expected nan."
                findings.append(Finding(passed, said))
            else:
                findings.append(compare.near(reply.returned, score, f"what {met} returned"))
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
            for rank, reply in enumerate(run.results)
        )
        return compare.first_failure((self.survivors(run), *changed))

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
