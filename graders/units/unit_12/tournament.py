"""The grader of `tournament`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.models import state_of
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import trainers
from graders.units.unit_12.drivers.trainers import Player, score_of

RIGHT = ("the better model", "pairs")


@dataclass(frozen=True, slots=True)
class Meeting(Ranks):
    """whole: of the models, see `Player`. diverged: places with a NaN. equal: all models count alike."""

    ranks: int = feature(2, "{} ranks")
    draw: int = 0
    whole: bool = feature(False, lambda whole: "buffers and shared tensors" if whole else "")
    diverged: tuple[int, ...] = feature((), lambda ranks: f"NaN on ranks {[*ranks]}" if ranks else "")
    equal: bool = feature(False, lambda equal: "equal scores" if equal else "")


def drawn(rng: Rng, case: Meeting) -> list[Arguments]:
    """Of each rank what its model holds, how it weights this, the seed, and whether models are whole. Where
    scores are drawn, at least one rank takes another's model, and at least one keeps its own.
    """
    while True:
        like, seed = state_of(Player(case.whole)), rng.integer(0, 10_000)
        given: list[Arguments] = []
        for place in range(case.ranks):
            values = [
                rng.normal(*x.shape) if x.is_floating_point() else torch.tensor(rng.integer(1, 99))
                for x in like
            ]
            if place in case.diverged:
                values[0][0, 1] = math.nan
            given.append([values, (rng.normal(len(like)) * (not case.equal)).tolist(), seed, case.whole])
        kept = sum(survivor(given, place)[0] == place for place in range(case.ranks))
        if 0 < kept < case.ranks or case.ranks == 1 or case.diverged or case.equal:
            return given


def partner(given: list[Arguments], place: int) -> int | None:
    """The place in the group that this one meets."""
    order = torch.randperm(len(given), generator=torch.Generator().manual_seed(given[place][2])).tolist()
    other = order.index(place) ^ 1
    return order[other] if other < len(order) else None


def survivor(given: list[Arguments], place: int) -> tuple[int, float]:
    """Whose model this place holds afterwards, and its score."""
    values, likes, *_ = given[place]
    own, other = score_of(values, likes), partner(given, place)
    theirs = math.nan if other is None else score_of(given[other][0], likes)
    better = theirs > own or (math.isnan(own) and not math.isnan(theirs))
    return (other, theirs) if other is not None and better else (place, own)


def one_model_each_way(tried: Tried[Any]) -> Finding:
    """Passes if each rank sends one model's bytes to its partner, and calls no collective."""
    places, [given] = tried.case.features.places, tried.seen.given
    for place, (calls, (values, *_)) in enumerate(zip(tried.seen.by_rank, given, strict=True)):
        other = partner(given, place)
        met = None if other is None else places[other]
        others = {call.op for call in calls if call.op not in ("send", "recv") or call.peer != met}
        if others:
            said = f"rank {places[place]}, who meets {met}, calls {', '.join(sorted(others))}"
            return Finding(False, f"{said}; expected messages to its partner alone.", Kind.TOO_MUCH)
        sent = sum(call.nbytes for call in calls if call.op == "send")
        nbytes = sum(each.nbytes for each in values)
        if sent > nbytes:
            what = f"Bytes that rank {places[place]} sends"
            return compare.at_most(sent, nbytes, what, kind=Kind.TOO_MUCH)
    return Finding(True, "Each of a pair sends its model to the other, once.")


def on_each(name: str, expected: Any, what: str) -> Callable[[Tried[Any]], Finding]:
    """Passes if every rank has told this."""
    return lambda tried: compare.first_failure(
        compare.equal(told[name], expected, f"{what} on rank {place}")
        for place, told in enumerate(tried.seen.results[0])
    )


def expected(case: Meeting, given: list[Arguments], place: int) -> Expected:
    """What the driver must tell of this place."""
    (owner, score), other = survivor(given, place), partner(given, place)
    meets = "nobody" if other is None else f"rank {case.places[other]}"
    met = f"rank {case.places[place]}, who meets {meets} and finds rank {case.places[owner]}'s model better"
    model = Checked(lambda seen, _: compare.equal(seen, given[owner][0], f"the model of {met}"))
    returned = Checked(lambda seen, _: compare.near(seen, score, f"what is returned by {met}"))
    told = {"model": model, "score": returned, "same": ANYTHING, "drawn": ANYTHING}
    return Expected(told, dict.fromkeys(("values", "likes", "seed", "whole"), ANYTHING))


NEXT_NUMBER = float(torch.rand((), generator=torch.Generator().manual_seed(7)))


@on_ranks(
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
            how=one_model_each_way,
        ),
        Criterion(
            "random numbers",
            1,
            "A torch.Generator of its own leaves the model's random numbers alone.",
            needs=RIGHT,
            how=on_each("drawn", NEXT_NUMBER, "what torch.rand(()) gives afterwards"),
        ),
        Criterion("group", 1, "randperm gives the group's places.", needs=RIGHT, vary=both(group=1, ranks=4)),
        Criterion(
            "all of the model",
            2,
            "Buffers too, whatever their type; into the tensors that are there, which an optimizer knows.",
            needs=RIGHT,
            vary=vary(whole=(True,)),
            how=on_each("same", True, "whether the model has its own tensors"),
        ),
    ),
    hints=(
        "How do all ranks know the same pairs, without a message?",
        "Both partners want to send first. What may each of them not wait for?",
        "Until it knows which is better a rank needs both models. Where does the one wait while the other is "
        "scored?",
    ),
    arguments=drawn,
    calls=None,
    possible=lambda case: (
        sum([case.ranks != 2, case.draw > 0, case.whole, case.diverged != (), case.equal]) < 2
    ),
    driver=trainers.met,
)
def tournament(case: Meeting, given: list[Arguments]) -> list[Expected]:
    """Drawn models, and trainers with drawn tastes."""
    return [expected(case, given, place) for place in range(case.ranks)]
