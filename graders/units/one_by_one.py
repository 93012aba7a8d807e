"""How answers are tried each of whose cases has a launch of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graders.grading.cases import Features
from graders.grading.exercise import Exercise
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng

TryOne = Callable[[Answer, Features, Rng], tuple[Finding, Any]]
"""Has the answer do one case: what is found of the results, and what rows that ask how may see."""

Looks = dict[str, Callable[[], Finding]]
"""What rows that ask how may look at in a right case: the row's name -> how it is found."""


def look(name: str) -> Callable[[Tried[Any]], Finding | None]:
    """How a row looks at right cases: by what stands there under this name, if anything does."""

    def looked_at(tried: Tried[Any]) -> Finding | None:
        found: Callable[[], Finding] | None = tried.seen.get(name)
        return found() if found else None

    return looked_at


@dataclass(frozen=True)
class OneByOne(Stage[Features]):
    """Cases that share nothing."""

    try_one: TryOne[Features]

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Any]]:
        return [self.try_one(answer, *case) for case in cases]


def one_by_one(
    *,
    base: Features,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    name: str = "",
    possible: Callable[[Features], bool] = lambda features: True,
) -> Callable[[TryOne[Features]], Exercise]:
    """Register an exercise each of whose cases is tried by the function below.

    base: the ordinary case. name: the answer's, by default the function's. possible: which features do not
    exclude one another.
    """

    def register(try_one: TryOne[Features]) -> Exercise:
        judged = ByCases(base, OneByOne(try_one), rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(try_one)

    return register
