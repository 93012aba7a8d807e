"""How cases that autograd passes through share a launch."""

from collections.abc import Sequence
from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Answer, Observed, compare, per_rank
from graders.units.passes import calls_by_pass
from graders.units.ranks.stage import Arguments
from graders.units.unit_10 import drivers
from graders.units.unit_10.cases import Setting
from graders.units.unit_10.drivers import Passed

Places = list[Arguments]
"""Positional arguments of each place of the group."""


Calls = tuple[list[Event], list[Event]]
"""What one rank called in forward, and in backward."""


def tried(
    answer: Answer, settings: Sequence[Setting], inputs: Sequence[Places]
) -> tuple[list[list[Passed]], list[list[Calls]]]:
    """Of each case what each place told, and what it called."""
    told: list[list[Passed]] = [[] for _ in settings]
    calls: list[list[Calls]] = [[] for _ in settings]
    launched = settings[0].launched
    given, which = [], []
    for rank in range(max(1, launched)):
        mine = [number for number, setting in enumerate(settings) if rank in setting.places]
        which.append(mine)
        given.append([_call(settings[number], inputs[number], rank) for number in mine])
    if not launched:
        replies, observed = [answer.call(drivers.passes, given[0], [])], None
    else:
        groups = list(dict.fromkeys(setting.places for setting in settings if setting.group))
        observed = answer.launch(
            drivers.passes, per_rank(given), [list(group) for group in groups], ranks=launched
        )
        replies = observed.results
    for rank, (reply, mine) in enumerate(zip(replies, which, strict=True)):
        by_case = _calls(observed, rank, len(mine)) if observed else [([], [])] * len(mine)
        for (passed, number), made in zip(compare.side_by_side(reply, mine), by_case, strict=True):
            told[number].append(passed)
            calls[number].append(made)
    return told, calls


def _call(setting: Setting, given: Places, rank: int) -> list[Any]:
    """What the driver needs for one call."""
    place = setting.places.index(rank)
    own = given[place]
    members = list(setting.places) if setting.group else None
    return [own, setting.learning(own), setting.layout, members, place]


def _calls(observed: Observed[Any], rank: int, count: int) -> list[Calls]:
    made = calls_by_pass(observed, rank, ["forward"] * count + ["backward"] * count)
    return [(made[number], made[-1 - number]) for number in range(count)]
