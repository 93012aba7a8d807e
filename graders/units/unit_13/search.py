"""The grader of `search`."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_13.drivers import walks as drivers

SHARE = 0.07
"""By how much a plan's share of the visits may be off: some six standard deviations of so long a walk."""


def _dear_start(rng: Rng, plans: int) -> Arguments:
    """It begins at a dear plan, and several plans are the best ones."""
    costs = [2.0, 2.0, *(float(rng.integer(3, 6)) for _ in range(plans - 2))]
    return [costs, rng.integer(2, plans - 1), 40, rng.integer(0, 999), 0.2]


def _long(rng: Rng, beta: float, offset: float) -> Arguments:
    """Long enough for shares to settle."""
    costs = [round(offset + steep / beta, 3) for steep in (0.0, 0.5, 1.0, 1.6)]
    return [costs, rng.integer(0, 3), 5000, rng.integer(0, 999), beta]


WALKS: dict[str, Callable[[Rng], Arguments]] = {
    "five plans": lambda rng: _dear_start(rng, 5),
    "nine plans": lambda rng: _dear_start(rng, 9),
    "a plan that costs nothing": lambda rng: [[2.0, 1.0, 0.0, 3.0], 0, 30, rng.integer(0, 999), 0.2],
    "plans that cost the same": lambda rng: [[3.0] * 8, 1, 30, rng.integer(0, 999), 1.0],
    "no step": lambda rng: [[3.0, 1.0, 2.0], 1, 0, 5, 1.0],
    "gains too large for a power": lambda rng: [[1e6, 10.0, 2e6, 1e6 + 1], 2, 30, rng.integer(0, 999), 1.0],
    "infinite costs": lambda rng: [[math.inf] * 3 + [4.0, 5.0], 0, 30, rng.integer(0, 999), 0.5],
    "costs whose powers are 0": lambda rng: _long(rng, 2.5, 1000.0),
    "a small beta": lambda rng: _long(rng, 0.4, 4.0),
}
BASE, *SHORT = tuple(WALKS)[:5]
STEEP, LONG = tuple(WALKS)[5:7], tuple(WALKS)[7:]


@dataclass(frozen=True, slots=True)
class Walk:
    """plans: one of WALKS."""

    plans: str = feature(BASE, "{}")


def _is_walk(told: Any, plans: int) -> bool:
    """Whether it is what the driver tells: the student's process may send anything."""
    return (
        type(told) is dict
        and told.keys() == {"at", "proposed", "priced", "result", "start", "undisturbed"}
        and type(told["at"]) is type(told["proposed"]) is list
        and all(type(each) is int and 0 <= each < plans for each in (*told["at"], *told["proposed"]))
        and type(told["priced"]) is int
    )


def moves(tried: Tried[Walk]) -> Finding:
    """Passes if each proposal comes from where the walk stands, and none that is no dearer was refused."""
    seen, what = tried.seen.value, tried.seen.what
    costs, start, *_ = tried.seen.given
    if seen["at"][:1] not in ([], [start]):
        return Finding(False, f"{what}: the first proposal was asked for plan {seen['at'][0]}.")
    # The last proposal leads to no other: where the walk went is not seen.
    for step, ((here, there), proposed) in enumerate(
        zip(pairwise(seen["at"]), seen["proposed"], strict=False)
    ):
        said = f"{what}: at step {step} in plan {here}, offered {proposed}, it went to {there}"
        if there not in (here, proposed):
            return Finding(False, f"{said}.")
        if costs[proposed] <= costs[here] and there != proposed:
            return Finding(False, f"{said}; expected plan {proposed}, which is no dearer.")
        if math.isinf(costs[there]) and not math.isinf(costs[here]):
            return Finding(False, f"{said}, which cannot run.")
    return Finding(True, f"{what}: taken whenever no dearer.")


def visits(tried: Tried[Walk]) -> Finding | None:
    """Passes if the plans' shares of all visits are near what they are in the long run."""
    if tried.case.features.plans not in LONG:
        return None
    costs, *_, beta = tried.seen.given
    counts = Counter(tried.seen.value["at"])
    weights = [math.exp(-beta * (cost - min(costs))) for cost in costs]
    wanted = [round(weight / sum(weights), 3) for weight in weights]
    seen = [round(counts[plan] / counts.total(), 3) for plan in range(len(costs))]
    near = all(abs(a - b) <= SHARE for a, b in zip(seen, wanted, strict=True))
    return Finding(near, f"{tried.seen.what}: the plans' shares of the visits are {seen}; expected {wanted}.")


def repeats(answer: Answer, rng: Rng) -> Finding:
    """Passes if a seed gives one walk and others give others, and random states are left alone."""
    costs, start, steps, seed, beta = WALKS[BASE](rng)
    asked = [[costs, start, steps, each, beta] for each in (seed, seed, seed + 1)]
    told = answer.call(drivers.walks, asked)
    first, second, third = (called.value for called, _ in compare.side_by_side(told, asked))
    what = f"search({_in_words(asked[0])})"
    if not all(_is_walk(each, len(costs)) for each in (first, second, third)):
        return Finding(False, f"{what}: what came back is no walk.")
    if [first["at"], first["proposed"]] != [second["at"], second["proposed"]]:
        return Finding(False, f"{what}: called twice it went through {first['at']}, then {second['at']}.")
    if not first["undisturbed"]:
        return Finding(False, f"{what}: the state of random, NumPy or torch is not what it was before.")
    other = third["proposed"] != first["proposed"]
    return Finding(other, f"{what}: the same plans were offered with seed {seed + 1}; expected others.")


def priced(tried: Tried[Walk]) -> Finding:
    """Passes if a cost was asked for once at the beginning, and once a step."""
    seen, (_, _, steps, *_) = tried.seen, tried.seen.given
    return compare.at_most(seen.value["priced"], steps + 1, f"{seen.what}: calls of cost")


def _in_words(given: Arguments) -> str:
    costs, start, steps, seed, beta = given
    return f"plans that cost {costs}, from plan {start} on, {steps} steps, {seed=}, {beta=}"


@of_function(
    base=Walk(),
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "the best plan seen",
            2,
            "Where a walk ends is seldom the best place that it has seen.",
            vary=vary(plans=SHORT),
        ),
        Criterion(
            "never refuses what is no dearer",
            2,
            "Compare before you compute a power: a gain may be huge, and inf - inf is no number.",
            vary=vary(plans=STEEP),
            how=moves,
        ),
        Criterion(
            "how often it is where",
            3,
            "Think of two plans. From the dear one it always returns at once; how often must it go there?",
            needs=("the best plan seen", "never refuses what is no dearer"),
            vary=vary(plans=LONG),
            how=visits,
        ),
        Criterion(
            "the same again",
            2,
            "All chance comes from one generator that the walk makes from its seed, and hands to propose.",
            ask=repeats,
        ),
        Criterion("each plan priced once", 1, "Keep the cost of the plan where the walk stands.", how=priced),
    ),
    hints=(
        "In what proportion should two plans of cost 1 and 2 be visited, if each proposal is the other "
        "one, and with what probability does that make the walk leave the cheap one?",
        "A number that is drawn from 0 to 1 is below q with probability q.",
    ),
    arguments=lambda rng, case: WALKS[case.plans](rng),
    driver=drivers.walks,
    written=_in_words,
)
def search(case: Walk, given: Arguments) -> Expected:
    """The best of all plans that the walk has met, after as many proposals as steps."""
    costs, start, steps, *_ = given

    def judged(told: Any, what: str) -> Finding:
        if not _is_walk(told, len(costs)):
            return Finding(False, f"{what}: {compare.shown(told)} is no walk.")
        if len(told["at"]) != steps:
            return Finding(False, f"{what}: propose was called {len(told['at'])} times; expected {steps}.")
        if told["start"] != [start]:
            return Finding(False, f"{what}: afterwards the plan that was handed in is {told['start']}.")
        met = [start, *told["proposed"]]
        best = min(met, key=costs.__getitem__)
        shown = compare.shown(met)
        return compare.equal(told["result"], ([best], costs[best]), f"{what}; seen were plans {shown}; best")

    names = ("costs", "start", "steps", "seed", "beta")
    return Expected(Checked(judged), dict(zip(names, given, strict=True)), returned=None)
