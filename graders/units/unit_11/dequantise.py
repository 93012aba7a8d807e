"""The grader of `dequantise`."""

from dataclasses import dataclass

import torch

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Codes:
    """shape: of the codes. dtype: of the scale."""

    shape: tuple[int, ...] = feature((4, 5), "shape {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))


def codes_and_scale(rng: Rng, case: Codes) -> Arguments:
    """Drawn codes, and a scale of few digits."""
    scale = torch.tensor(1 + rng.integer(1, 999) / 100, dtype=case.dtype)
    return [rng.integers(-127, 127, *case.shape).to(torch.int8), scale]


@of_function(
    base=Codes(),
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "numbers",
            2,
            "What does a code of 1 stand for? The dtype is that of the scale.",
            vary=vary(dtype=(torch.float64,), shape=((7,),)),
        ),
    ),
    hints=("What is a number of x, counted in scales?",),
    arguments=codes_and_scale,
)
def dequantise(case: Codes, given: Arguments) -> Expected:
    """So many scales each."""
    codes, scale = given
    return Expected(codes.to(case.dtype) * scale, {"codes": codes, "scale": scale}, returned=None)
