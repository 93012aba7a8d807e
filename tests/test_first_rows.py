"""The first row of each exercise is about the ordinary case, as far as the kit's data says what that is."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from graders.grading.exercise import Exercise
from graders.grading.judging import ByCases, NamedJudge
from graders.grading.registry import load_all
from graders.units.ranks.features import Ranks

TIES = ("tied", "shared", "equal")
ORDINARY: dict[str, Any] = {"layout": "contiguous", "gaps": False} | dict.fromkeys(TIES, False)
"""Features that have one name wherever they are, and what they are in the ordinary case."""


def judged_by_cases() -> list[tuple[Exercise, ByCases[Any]]]:
    found = []
    for unit in load_all().values():
        for exercise in unit.values():
            judge = exercise.grade
            judge = judge.judged if isinstance(judge, NamedJudge) else judge
            if isinstance(judge, ByCases):
                found.append((exercise, judge))
    return found


PARTS = ("sizes", "counts", "samples", "totals")
"""Features that say how much each rank has."""
OF_UNLIKE_PARTS = {"mend_statistics", "average_metrics", "global_accuracy", "mend_collect"}
"""These are about parts that differ: with equal ones a plain mean would be right, or nothing hang."""


def divides(case: dict[str, Any]) -> bool:
    """Whether each rank has as much as every other, as far as features say it."""
    parts = [case[name] for name in PARTS if isinstance(case.get(name), tuple)]
    return all(len({*each}) <= 1 for each in parts) and not (case.get("length") or 0) % (
        case.get("ranks") or 1
    )


@pytest.mark.parametrize(
    ("exercise", "judged"),
    [
        pytest.param(*each, id=each[0].name)
        for each in judged_by_cases()
        if isinstance(each[1].base, Ranks) and each[0].name not in OF_UNLIKE_PARTS
    ],
)
def test_ranks_have_equal_parts_in_the_first_row(exercise: Exercise, judged: ByCases[Any]) -> None:
    # Invariant: what the field asks for, that sizes divide, holds in the base case and wherever the first row
    # gives each rank a part; what does not divide is another row's.
    base = {name: getattr(judged.base, name) for name in (each.name for each in fields(judged.base))}
    for values in ({}, *exercise.rubric[0].vary):
        assert divides({**base, **values}), values


@pytest.mark.parametrize(
    ("exercise", "judged"), [pytest.param(*each, id=each[0].name) for each in judged_by_cases()]
)
def test_the_first_row_is_about_the_ordinary_case(exercise: Exercise, judged: ByCases[Any]) -> None:
    # Invariant: the base case has several ranks, where their number plays a part, numbers of 32 bits or more,
    # of one type, tensors without gaps and no ties; the first row has none of that in another way. Other
    # corners have names of their own in each exercise, of which this cannot speak.
    base = {each.name: getattr(judged.base, each.name) for each in fields(judged.base)}
    if any("ranks" in values for row in exercise.rubric for values in row.vary):
        assert base["ranks"] > 1
    assert base.get("dtype", torch.float32) in (torch.float32, torch.float64)
    assert not isinstance(base.get("dtypes"), tuple) or len({*base["dtypes"]}) == 1
    varied = [(name, value) for values in exercise.rubric[0].vary for name, value in values.items()]
    laid_out = [(name, value) for name, value in [*base.items(), *varied] if name in ORDINARY]
    assert not [each for each in laid_out if each[1] != ORDINARY[each[0]]]
