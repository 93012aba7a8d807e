"""What the exercises of unit 12 share: cases that are launched one by one, and groups of ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from graders.grading.cases import Features
from graders.grading.exercise import Exercise
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, named_as
from graders.grading.kit import Answer, Criterion, Finding, Rng, exercise

THREES = [[0, 2, 5], [1, 3, 4]]
"""Groups in which a rank's place is neither its number modulo 3 nor which half of all ranks it is in."""

Looks = dict[str, Callable[[], Finding]]
"""What rows that ask how may look at in a right case: the row's name -> how it is found."""
Try = Callable[[Answer, Any, Rng], tuple[Finding, Looks]]


@dataclass(frozen=True)
class OneByOne(Stage[Features]):
    """tries: launches a case, and finds what is right of it, and what else may be looked at."""

    tries: Try

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Looks]]:
        return [self.tries(answer, features, rng) for features, rng in cases]


def one_by_one(
    *,
    base: Features,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    possible: Callable[[Features], bool] = lambda features: True,
) -> Callable[[Try], Exercise]:
    """Register an exercise each of whose cases the function below launches."""

    def register(tries: Try) -> Exercise:
        judge = named_as(tries, ByCases(base, OneByOne(tries), rubric, possible))
        return exercise(rubric=rubric, minutes=minutes, difficulty=difficulty, hints=hints)(judge)

    return register


def look(name: str) -> Callable[[Tried[Any]], Finding | None]:
    """How a row looks at right cases: by what stands there under this name, if anything does."""

    def looked_at(tried: Tried[Any]) -> Finding | None:
        found: Callable[[], Finding] | None = tried.seen.get(name)
        return found() if found else None

    return looked_at


def ranks_in_mesh(shape: tuple[int, int, int], turned: bool) -> list[int]:
    """The ranks as they stand in a mesh; turned: they are neighbours along its first axis."""
    numbers = torch.arange(prod(shape))
    return (numbers.view(shape[::-1]).permute(2, 1, 0).flatten() if turned else numbers).tolist()
