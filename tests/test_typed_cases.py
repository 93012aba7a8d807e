"""What a verdict says to try: each case can be typed in, and the solution comes through it."""

import random

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from graders.grading.judging import ByCases
from graders.grading.registry import load_all
from tests.answers import solved

JUDGED = [
    pytest.param(exercise.unit, name, exercise.grade.judged, id=name)
    for exercises in load_all().values()
    for name, exercise in exercises.items()
    if isinstance(getattr(exercise.grade, "judged", None), ByCases)
]


@pytest.mark.parametrize(("unit", "name", "judged"), JUDGED)
def test_cases_can_be_typed_in(
    unit: str,
    name: str,
    judged: ByCases,  # type: ignore[type-arg]
    rng: random.Random,
) -> None:
    # Invariant: what is said to be tried is a call that runs, of every case of which something is said; six
    # are drawn.
    typed = {judged.stage.typed(case.features) for case in judged.space.cases} - {""}
    known = {
        "launch": lambda *given, **named: launch(*given, **named, quiet=True),
        "torch": torch,
        "dist": dist,
    }
    for line in rng.sample(sorted(typed), min(6, len(typed))):
        eval(line, {**known, name: solved(unit)[name]})


def test_collectives_say_what_to_try() -> None:
    typed = {name: judged.stage.typed(judged.base) for _, name, judged in (each.values for each in JUDGED)}
    x = "torch.full((64,), 10 ** dist.get_rank(), dtype=torch.float32)"
    assert typed["ring_all_reduce"] == f"launch(lambda: ring_all_reduce({x}), ranks=4)"
