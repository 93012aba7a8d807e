"""Unit 13, a walk through plans: where it goes, how often, and that it can be repeated."""

import math
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.asked_walks import (
    HALF,
    Asked,
    far_plans,
    long_walks,
    short_walks,
    steep_walks,
    two_plans,
)
from graders.units.unit_13.drivers.walks import WalkReply

SHARE = 0.07
"""By how much a plan's share of the visits may be off: some six standard deviations of so long a walk."""

NARROW = 0.02
"""By how much a share may be off in half a walk through two plans: six standard deviations too."""


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
    asked = short_walks(rng, 40)
    stuck = [Asked([math.inf] * 4, rng.integer(0, 3), steps, rng.integer(0, 999), 1.0) for steps in (1, 12)]
    short = [*asked, *stuck, replace(asked[0], shy=True)]
    yield "the best plan seen", compare.first_failure(_best(answer, each) for each in short)
    yield (
        "never refuses what is no dearer",
        compare.first_failure(_moves(each, each.of(answer)) for each in [*asked, *steep_walks(rng)]),
    )
    # A walk that roams about everywhere, but for what cannot run.
    free = Asked([1.0, math.inf, 2.0, 3.0], 0, 40, rng.integer(0, 999), 0.0)
    judged = [
        *((_visits, each) for each in long_walks(rng)),
        (_steady, two_plans(rng)),
        (_seldom, far_plans(rng)),
    ]
    replies = ((judge, each, each.of(answer)) for judge, each in [(_moves, free), *judged])
    found = (check(each, reply) for judge, each, reply in replies for check in (judge, _moves))
    # A plan that costs nothing, and is no reason to stop.
    nothing = Asked([2.0, 1.0, 0.0, 3.0], rng.integer(0, 3), 30, rng.integer(0, 999), 0.2)
    last = (_best(answer, each) for each in [nothing])
    yield "how often it is where", compare.first_failure(chain(found, last))
    yield "the same again", _repeats(answer, asked[0], rng)
    yield "each plan priced once", compare.first_failure(_priced(answer, each) for each in asked)


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
