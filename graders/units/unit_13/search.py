"""Unit 13, a walk through plans: where it goes, how often, and that it can be repeated."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_13.drivers import walks
from graders.units.unit_13.drivers.walks import WalkReply

STEPS = 5000
SHARE = 0.07
"""By how much a plan's share of the visits may be off: some six standard deviations of so long a walk."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `walks.walk`."""

    costs: list[float]
    start: int
    steps: int
    seed: int
    beta: float

    def __str__(self) -> str:
        return (
            f"Plans that cost {self.costs}, from plan {self.start} on, {self.steps} steps, seed {self.seed}, "
            f"beta {self.beta:g}"
        )

    def of(self, answer: Answer) -> WalkReply:
        """The walk. Raises AnswerFailed."""
        reply = answer.call(walks.walk, list(self.costs), self.start, self.steps, self.seed, self.beta)
        if not all(0 <= plan < len(self.costs) for plan in (*reply.at, *reply.proposed)):
            text = "What came back of the walk has plans that do not exist."
            raise AnswerFailed(FailureKind.UNREADABLE, text)
        return reply


@exercise(
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion("the best plan seen", 2, "Where a walk ends is seldom the best place that it has seen."),
        Criterion(
            "never refuses what is no dearer",
            2,
            "Compare before you compute a power: a gain may be huge, and inf - inf is no number.",
        ),
        Criterion(
            "how often it is where",
            3,
            "Think of two plans. From the dear one it always returns at once; how often must it go there?",
            needs=("the best plan seen", "never refuses what is no dearer"),
        ),
        Criterion(
            "the same again",
            2,
            "All chance comes from one generator that the walk makes from its seed, and hands to propose.",
        ),
        Criterion("each plan priced once", 1, "Keep the cost of the plan where the walk stands."),
    ),
    hints=(
        "In what proportion should two plans of cost 1 and 2 be visited, if each proposal is the other "
        "one, and with what probability does that make the walk leave the cheap one?",
        "A number that is drawn from 0 to 1 is below q with probability q.",
    ),
)
def search(answer: Answer, rng: Rng) -> Findings:
    """Walks through a few plans, each of which can be proposed from each."""
    asked = [*_short(rng)]
    yield "the best plan seen", compare.first_failure(_best(each, each.of(answer)) for each in asked)
    yield (
        "never refuses what is no dearer",
        compare.first_failure(_moves(each, each.of(answer)) for each in [*asked, *_steep(rng)]),
    )
    replies = ((each, each.of(answer)) for each in _long(rng))
    found = (check(each, reply) for each, reply in replies for check in (_visits, _moves))
    yield "how often it is where", compare.first_failure(found)
    yield "the same again", _repeats(answer, asked[0])
    yield (
        "each plan priced once",
        compare.first_failure(
            compare.at_most(each.of(answer).priced, each.steps + 1, f"{each}: calls of cost")
            for each in asked
        ),
    )


def _short(rng: Rng) -> Iterator[Asked]:
    """Short walks that begin at a dear plan, to which several plans are the best ones; one to a plan that
    costs nothing, one through plans that cost the same, and one without a step.
    """
    for plans in (5, 9):
        costs = [2.0, 2.0, *(float(rng.integer(3, 6)) for _ in range(plans - 2))]
        yield Asked(costs, rng.integer(2, plans - 1), 40, rng.integer(0, 999), 0.2)
    yield Asked([2.0, 1.0, 0.0, 3.0], 0, 30, rng.integer(0, 999), 0.2)
    yield Asked([3.0] * 8, 1, 30, rng.integer(0, 999), 1.0)
    yield Asked([3.0, 1.0, 2.0], 1, 0, 5, 1.0)


def _steep(rng: Rng) -> Iterator[Asked]:
    """Gains too large for a power, and plans that cost more than anything."""
    yield Asked([1e6, 10.0, 2e6, 1e6 + 1], 2, 30, rng.integer(0, 999), 1.0)
    yield Asked([math.inf, math.inf, math.inf, 4.0, 5.0], 0, 30, rng.integer(0, 999), 0.5)


def _long(rng: Rng) -> Iterator[Asked]:
    """Walks long enough for shares to settle, with a large beta and with a small one; in the first all costs
    are so large that their powers are 0.
    """
    for beta, offset in ((2.5, 1000.0), (0.4, 4.0)):
        costs = [round(offset + steep / beta, 3) for steep in (0.0, 0.5, 1.0, 1.6)]
        yield Asked(costs, rng.integer(0, 3), STEPS, rng.integer(0, 999), beta)


def _best(asked: Asked, reply: WalkReply) -> Finding:
    """Whether so many proposals were made, and the pair returned is the best of all that was seen."""
    if len(reply.at) != asked.steps:
        return Finding(False, f"{asked}: propose was called {len(reply.at)} times; expected {asked.steps}.")
    if reply.start != [asked.start]:
        return Finding(False, f"{asked}: afterwards the plan that was handed in is {reply.start}.")
    met = [asked.start, *reply.proposed]
    best = min(met, key=asked.costs.__getitem__)
    return compare.equal(
        reply.result, ([best], asked.costs[best]), f"{asked}; seen were plans {met}; best plan and cost"
    )


def _moves(asked: Asked, reply: WalkReply) -> Finding:
    """Whether each proposal comes from where the walk stands, and none that is no dearer was refused."""
    if reply.at[:1] not in ([], [asked.start]):
        return Finding(False, f"{asked}: the first proposal was asked for plan {reply.at[0]}.")
    for step, ((here, there), proposed) in enumerate(zip(pairwise(reply.at), reply.proposed, strict=False)):
        said = f"{asked}: at step {step} in plan {here}, offered {proposed}, it went to {there}"
        if there not in (here, proposed):
            return Finding(False, f"{said}.")
        if asked.costs[proposed] <= asked.costs[here] and there != proposed:
            return Finding(False, f"{said}; expected plan {proposed}, which is no dearer.")
        if math.isinf(asked.costs[there]) and not math.isinf(asked.costs[here]):
            return Finding(False, f"{said}, which cannot run.")
    return Finding(True, f"{asked}: taken whenever no dearer.")


def _visits(asked: Asked, reply: WalkReply) -> Finding:
    """Whether the plans' shares of all visits are near what they are in the long run."""
    counts = Counter(reply.at)
    weights = [math.exp(-asked.beta * (cost - min(asked.costs))) for cost in asked.costs]
    expected = [weight / sum(weights) for weight in weights]
    shares = [counts[plan] / max(1, len(reply.at)) for plan in range(len(weights))]
    off = max(abs(seen - wanted) for seen, wanted in zip(shares, expected, strict=True))
    seen, wanted = ([round(share, 3) for share in each] for each in (shares, expected))
    return Finding(off <= SHARE, f"{asked}: the plans' shares of the visits are {seen}; expected {wanted}.")


def _repeats(answer: Answer, asked: Asked) -> Finding:
    """Whether a seed gives one walk and others give others, and `random` itself is left alone."""
    first, second = asked.of(answer), asked.of(answer)
    if (first.at, first.proposed) != (second.at, second.proposed):
        return Finding(False, f"{asked}: called twice it went through {first.at}, then {second.at}.")
    if not first.undisturbed:
        return Finding(False, f"{asked}: the state of random, NumPy or torch is not what it was before.")
    other = replace(asked, seed=asked.seed + 1)
    if other.of(answer).proposed == first.proposed:
        return Finding(False, f"{asked}: with seed {other.seed} it was offered the same plans.")
    return Finding(True, f"{asked}: the same walk again; another seed leads elsewhere.")
