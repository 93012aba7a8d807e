"""How answers that are called without ranks are tried: all cases in one go, one call after the other."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from graders.grading.called import Called
from graders.grading.cases import Features
from graders.grading.exercise import Exercise
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions import drivers

Arguments = list[Any]
"""Positional arguments of a call: plain data."""
_LONGEST = 120
"""Characters of a call that a student would type."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows that ask how may see of a right case. kept: about the arguments, afterwards."""

    given: Arguments
    value: Any
    kept: Finding


@dataclass(frozen=True)
class OfFunction(Stage[Features]):
    """arguments: of a case. expected: what is returned, and what becomes of the arguments.

    tolerance: how far numbers may be off. Features may have their own, and a `layout` of tensors, as `Ranks`.
    driver: takes the arguments and layouts of all calls. written: arguments as a student types them, where
    that is shorter than what Python shows of them.
    """

    name: str
    arguments: Callable[[Rng, Features], Arguments]
    expected: Callable[[Features, Arguments], Expected]
    tolerance: float
    driver: Callable[..., list[Called]] = drivers.in_turn
    written: Callable[[Arguments], str] | None = None

    def together(self, features: Features) -> Hashable:
        return "in turn"

    def told(self, answer: Answer, inputs: list[Arguments], layouts: list[str]) -> Sequence[Called]:
        """What calls with these arguments leave behind."""
        return answer.call(self.driver, inputs, layouts)

    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        """Of each what is found of the result, and what else there is to see."""
        inputs = [self.arguments(rng, features) for features, rng in cases]
        layouts = [getattr(features, "layout", "contiguous") for features, _ in cases]
        told = self.told(answer, inputs, layouts)
        found = []
        for (features, _), given, (called, _) in zip(
            cases, inputs, compare.side_by_side(told, cases), strict=True
        ):
            expected = self.expected(features, given)
            what = self._call(given)
            tolerance = getattr(features, "tolerance", self.tolerance)
            result = expected.result_in(called, what, tolerance)
            kept_so = expected.kept_in(called, what, tolerance)
            found.append((result, Seen(given, called.value, kept_so)))
        return found

    def _call(self, given: Arguments) -> str:
        told = self.written(given) if self.written else ", ".join(map(repr, given))
        written = f"{self.name}({told})"
        return written if self.written or len(written) <= _LONGEST else f"what {self.name} returned"


def of_function(
    *,
    base: Features,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    arguments: Callable[[Rng, Features], Arguments],
    tolerance: float = 1e-6,
    possible: Callable[[Features], bool] = lambda features: True,
    kind: type[OfFunction[Any]] = OfFunction,
    driver: Callable[..., list[Called]] = drivers.in_turn,
    written: Callable[[Arguments], str] | None = None,
) -> Callable[[Callable[[Features, Arguments], Expected]], Exercise]:
    """Register an exercise whose call must return, of each case, what the function below says.

    base: the ordinary case. possible: which features do not exclude one another. kind: of stage, for calls
    with arguments that cross in another form. See `OfFunction`.
    """

    def register(expected: Callable[[Features, Arguments], Expected]) -> Exercise:
        stage = kind(expected.__name__, arguments, expected, tolerance, driver, written)
        judged = ByCases(base, stage, rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints)(expected)

    return register


def kept(tried: Tried[Any]) -> Finding:
    """Passes if the arguments are as they were, or as they must be."""
    found: Finding = tried.seen.kept
    return found
