"""Unit 13, a walk through plans: where it goes, how often, and that it can be repeated."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

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

STEPS = 6000
SHARE = 0.07
"""By how much a plan's share of the visits may be off: some six standard deviations of so long a walk."""

HALF, NARROW = 8000, 0.02
"""Steps of half a walk through two plans, and by how much a share may be off: six standard deviations too."""


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
    asked = _asked(rng, 40)
    stuck = [Asked([math.inf] * 4, rng.integer(0, 3), steps, rng.integer(0, 999), 1.0) for steps in (1, 12)]
    short = [*asked, *stuck, replace(asked[0], shy=True)]
    yield "the best plan seen", compare.first_failure(_best(answer, each) for each in short)
    yield (
        "never refuses what is no dearer",
        compare.first_failure(_moves(each, each.of(answer)) for each in [*asked, *_steep(rng)]),
    )
    # A walk that roams about everywhere, but for what cannot run.
    free = Asked([1.0, math.inf, 2.0, 3.0], 0, 40, rng.integer(0, 999), 0.0)
    judged = [*((_visits, each) for each in _long(rng)), (_steady, _two(rng)), (_seldom, _far(rng))]
    replies = ((judge, each, each.of(answer)) for judge, each in [(_moves, free), *judged])
    found = (check(each, reply) for judge, each, reply in replies for check in (judge, _moves))
    # A plan that costs nothing, and is no reason to stop.
    nothing = Asked([2.0, 1.0, 0.0, 3.0], rng.integer(0, 3), 30, rng.integer(0, 999), 0.2)
    last = (_best(answer, each) for each in [nothing])
    yield "how often it is where", compare.first_failure(chain(found, last))
    yield "the same again", _repeats(answer, asked[0], rng)
    yield "each plan priced once", compare.first_failure(_priced(answer, each) for each in asked)


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `walks.walk`."""

    costs: list[float]
    start: int
    steps: int
    seed: int
    beta: float
    shy: bool = False

    def __str__(self) -> str:
        """The walk, in words."""
        return (
            f"Plans that cost {self.costs}, from plan {self.start} on, {self.steps} steps, seed {self.seed}, "
            f"beta {self.beta:g}" + ", plans that cannot be compared" * self.shy
        )

    def of(self, answer: Answer) -> WalkReply:
        """The walk. Raises AnswerFailed."""
        reply = answer.call(
            walks.walk, list(self.costs), self.start, self.steps, self.seed, self.beta, self.shy
        )
        if not all(0 <= plan < len(self.costs) for plan in (*reply.at, *reply.proposed)):
            raise AnswerFailed(
                FailureKind.UNREADABLE, "What came back of the walk has plans that do not exist."
            )
        return reply


def _asked(rng: Rng, steps: int) -> list[Asked]:
    """Short walks that begin at a dear plan, to which three plans are the best ones; one where all cost the
    same, and one where they nearly do; and one without a step.
    """
    cases = []
    for plans in (5, 7, 9):
        costs = [2.0, 2.0, 2.0, *(float(rng.integer(3, 6)) for _ in range(plans - 3))]
        start, turn = rng.integer(3, plans - 1), rng.integer(0, plans - 1)
        costs = [*costs[turn:], *costs[:turn]]
        cases.append(Asked(costs, (start - turn) % plans, steps + plans, rng.integer(0, 999), beta=0.2))
    alike = Asked([3.0] * 8, rng.integer(0, 7), 30, rng.integer(0, 999), 1.0)
    nearly = Asked([2 + 1e-12 * (6 * place % 7) for place in range(7)], 1, 40, rng.integer(0, 999), 1.0)
    return [*cases, alike, nearly, Asked([3.0, 1.0, 2.0], 1, 0, 5, 1.0)]


def _steep(rng: Rng) -> Iterator[Asked]:
    """Gains too large for a power, and plans that cost more than anything."""
    yield Asked([1e6, 10.0, 2e6, 1e6 + 1], rng.choice((0, 2)), 30, rng.integer(0, 999), 1.0)
    yield Asked([math.inf, math.inf, math.inf, 4.0, 5.0], rng.integer(0, 2), 30, rng.integer(0, 999), 0.5)
    yield Asked([math.inf] * 3, 1, 12, rng.integer(0, 999), 2.0)


def _long(rng: Rng) -> Iterator[Asked]:
    """Walks long enough for shares to settle, with a large beta and with a small one; in the first all costs
    are so large that their powers are 0, and need more digits than a float32 has.
    """
    for beta, unit in ((2.5, 10**8), (0.4, 1)):
        offset = unit * rng.integer(3, 6)
        costs = [round(offset + steep / beta, 3) for steep in (0.0, 0.5, 1.0, 1.6)]
        turn = rng.integer(0, 3)
        yield Asked([*costs[turn:], *costs[:turn]], rng.integer(0, 3), STEPS, rng.integer(0, 999), beta)


def _best(answer: Answer, asked: Asked) -> Finding:
    """Whether so many proposals were made, and the pair returned is the best of all that was seen."""
    reply = asked.of(answer)
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
        if there not in (here, proposed):
            text = f"{asked}: at step {step} in plan {here}, offered {proposed}, it went to {there}."
            return Finding(False, text)
        if asked.costs[proposed] <= asked.costs[here] and there != proposed:
            return Finding(False, f"{asked}: at step {step} in plan {here}, it refused plan {proposed}.")
        if math.isinf(asked.costs[there]) and not math.isinf(asked.costs[here]):
            return Finding(False, f"{asked}: at step {step} it left plan {here} for plan {there}.")
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


def _two(rng: Rng) -> Asked:
    """A long walk through two plans, of which the dear one is worth a visit in five."""
    beta = rng.choice((0.5, 3.0))
    return Asked([2.0, 2.0 + math.log(4) / beta], 0, 2 * HALF, rng.integer(0, 999), beta)


def _far(rng: Rng) -> Asked:
    """A walk through two plans, of which the dear one is worth a visit in 160,000."""
    beta = rng.choice((0.5, 3.0))
    return Asked([2.0, 2.0 + 12 / beta], 0, STEPS, rng.integer(0, 999), beta)


def _seldom(asked: Asked, reply: WalkReply) -> Finding:
    """Whether the dear one of two plans is hardly ever visited."""
    return compare.at_most(sum(reply.at), 3, f"{asked}: visits to plan 1")


def _steady(asked: Asked, reply: WalkReply) -> Finding:
    """Whether of two plans the dear one has its share of the visits, in either half of a walk."""
    at, wanted = reply.at, 1 / 5
    shares = [sum(half) / max(1, len(half)) for half in (at[:HALF], at[HALF:])]
    text = f"{asked}: in both halves plan 1 has of the visits {shares}; expected {wanted:.3f}"
    return Finding(all(abs(share - wanted) <= NARROW for share in shares), f"{text}.")


def _repeats(answer: Answer, asked: Asked, rng: Rng) -> Finding:
    """Whether a seed gives one walk and others give others, and `random` itself is left alone."""
    first, second = asked.of(answer), asked.of(answer)
    if (first.at, first.proposed) != (second.at, second.proposed):
        return Finding(False, f"{asked}: called twice it went through {first.at}, then {second.at}.")
    if not (first.undisturbed and second.undisturbed):
        return Finding(
            False, f"{asked}: the state of random, numpy.random or torch is not what it was before."
        )
    telling = Asked([2.0, 3.0, 4.0], 0, 60, asked.seed, 0.3)
    if not telling.of(answer).drew:
        text = "whether to go to a dearer plan was not drawn from the generator that propose gets"
        return Finding(False, f"{telling}: {text}.")
    others = [
        Asked(asked.costs, asked.start, asked.steps, asked.seed + rng.integer(1, 99), asked.beta)
        for _ in range(3)
    ]
    if all(each.of(answer).proposed == first.proposed for each in others):
        return Finding(False, f"{asked}: with three other seeds it was offered the same plans.")
    return Finding(True, f"{asked}: the same walk again; other seeds lead elsewhere.")


def _priced(answer: Answer, asked: Asked) -> Finding:
    reply = asked.of(answer)
    return compare.at_most(len(reply.priced), asked.steps + 1, f"{asked}: calls of cost")
