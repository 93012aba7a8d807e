"""How a class did: at each exercise, and at each criterion that was missed."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graders.classroom.result_store import Graded
from graders.grading.exercise import Criterion, Exercise, Verdict
from graders.grading.run import CriterionResult, ExerciseResult
from graders.grading.text import shortened

SEEN_SHOWN = 240
"""Characters of a wrong answer's message that are quoted."""

_NUMBERS = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?(, -?\d[\d.]*(e[-+]?\d+)?)*")
"""One, or several in a row."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A criterion that some missed, how many, and what was seen most often when they did."""

    criterion: Criterion
    failed: int
    not_judged: int
    blocked: int
    seen: str
    seen_count: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a class did at one exercise."""

    exercise: Exercise
    counts: dict[str, int]
    """How many have "solved" it, "partly" solved it, "failed" it, left it "untouched"."""
    mean: float
    """Points."""
    misses: tuple[Miss, ...]
    """Most missed first."""

    @property
    def in_words(self) -> str:
        """1 solved, 2 partly, 1 failed, 0 untouched."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())

    @property
    def blocked(self) -> int:
        """Verdicts that could not be given, and not for the answer's sake."""
        return sum(miss.blocked for miss in self.misses)


def standings(class_: Sequence[Graded]) -> list[Standing]:
    """A standing an exercise, in the unit's order; empty for an empty class."""
    by_exercise = zip(*(graded.report.exercises for graded in class_), strict=True)
    return [_standing(results) for results in by_exercise]


def _standing(results: Sequence[ExerciseResult]) -> Standing:
    counts = Counter(map(_kind, results))
    named = {name: counts[name] for name in ("solved", "partly", "failed", "untouched")}
    mean = sum(result.points for result in results) / len(results)
    by_criterion = zip(*(result.criteria for result in results), strict=True)
    misses = [miss for miss in map(_miss, by_criterion) if miss.failed or miss.not_judged or miss.blocked]
    misses.sort(key=lambda miss: (miss.failed, miss.not_judged, miss.blocked), reverse=True)
    return Standing(results[0].exercise, named, mean, tuple(misses))


def _kind(result: ExerciseResult) -> str:
    if result.passed:
        return "solved"
    if not result.attempted:
        return "untouched"
    return "partly" if result.points > 0 else "failed"


def _miss(results: Sequence[CriterionResult]) -> Miss:
    said = [_first_lines(each.seen) for each in results if each.verdict is Verdict.FAILED]
    verdicts = Counter(each.verdict for each in results)
    unjudged = verdicts[Verdict.NOT_JUDGED], verdicts[Verdict.BLOCKED]
    # What messages about the same mistake have in common, whatever inputs were drawn.
    kinds = [_NUMBERS.sub("0", text) for text in said]
    ((kind, count),) = Counter(kinds).most_common(1) or [("", 0)]
    seen = said[kinds.index(kind)] if said else ""
    return Miss(results[0].criterion, len(said), *unjudged, shortened(seen, SEEN_SHOWN), count)


def _first_lines(seen: str) -> str:
    """A message's first two lines, without those that are places in one student's code."""
    lines = [line for line in seen.splitlines() if line.strip() and not line[0].isspace()]
    # The places that "here" announces have just been left out.
    return " ".join(lines[:2]).replace(", here:", ".")
