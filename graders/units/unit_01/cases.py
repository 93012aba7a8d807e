"""How the answers of unit 01 are tried: each case is a drawn problem, and a driver watches."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from graders.grading.cases import Features
from graders.grading.exercise import Exercise
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare


class Given(Protocol):
    """A problem that is drawn."""

    def seen(self, answer: Answer) -> Any:
        """What the answer did with it, as a driver tells."""
        ...


Drawn = TypeVar("Drawn", bound=Given)


@dataclass(frozen=True, slots=True)
class Seen(Generic[Drawn]):
    """A problem, and what the answer did with it, for rows that ask how."""

    given: Drawn
    reply: Any


@dataclass(frozen=True)
class Watched(Stage[Features], Generic[Features, Drawn]):
    """draw: the problem of a case. right: whether what the answer did with it is right."""

    draw: Callable[[Rng, Features], Drawn]
    right: Callable[[Drawn, Any], Finding]

    def together(self, features: Features) -> Hashable:
        return "in turn"

    def run(
        self, answer: Answer, cases: Sequence[tuple[Features, Rng]]
    ) -> Sequence[tuple[Finding, Seen[Drawn]]]:
        tried = [self.draw(rng, features) for features, rng in cases]
        seen = [Seen(each, each.seen(answer)) for each in tried]
        return [(self.right(each.given, each.reply), each) for each in seen]


def watched(
    *,
    base: Features,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    draw: Callable[[Rng, Features], Drawn],
    possible: Callable[[Features], bool] = lambda features: True,
) -> Callable[[Callable[[Drawn, Any], Finding]], Exercise]:
    """Register an exercise whose answer has done right, in each case, if the function below says so.

    possible: which features do not exclude one another.
    """

    def register(right: Callable[[Drawn, Any], Finding]) -> Exercise:
        return by_cases(
            ByCases(base, Watched(draw, right), rubric, possible),
            minutes=minutes,
            difficulty=difficulty,
            hints=hints,
        )(right)

    return register


def each(*checks: Callable[[Any, Any], Finding | None]) -> Callable[[Tried[Any]], Finding | None]:
    """For a row that asks how: the first of several looks at a case that fails; None is no look at it."""

    def how(tried: Tried[Any]) -> Finding | None:
        found = [check(tried.seen.given, tried.seen.reply) for check in checks]
        looks = [finding for finding in found if finding is not None]
        return compare.first_failure(looks) if looks else None

    return how
