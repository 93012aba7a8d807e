"""How a class did: at each exercise, and at each criterion that was missed."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graders.classroom.result_store import Graded
from graders.grading.exercise import Criterion, Exercise, Verdict
from graders.grading.run import CriterionResult, ExerciseResult

SEEN_SHOWN = 240
"""Characters of a wrong answer's message that are quoted unfolded, in whole sentences."""

_NUMBERS = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?(, -?\d[\d.]*(e[-+]?\d+)?)*")
"""One, or several in a row."""

_SENTENCE = re.compile(r"""(?<=[\w)\]'"`])[.!?](?=\s)""")
"""The end of one."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A criterion that some missed, how many, and what was seen most often when they did.

    seen: whole sentences, without places in one student's code; empty if the first is very long. whole: all
    that one of them was told; empty if `seen` is all.
    """

    criterion: Criterion
    failed: int
    not_judged: int
    blocked: int
    seen: str
    whole: str
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
    told = [each.seen for each in results if each.verdict is Verdict.FAILED]
    verdicts = Counter(each.verdict for each in results)
    unjudged = verdicts[Verdict.NOT_JUDGED], verdicts[Verdict.BLOCKED]
    # What messages about the same mistake have in common, whatever inputs were drawn.
    kinds = [_NUMBERS.sub("0", _first_lines(text)) for text in told]
    ((kind, count),) = Counter(kinds).most_common(1) or [("", 0)]
    whole = told[kinds.index(kind)] if told else ""
    seen = _whole_sentences(_first_lines(whole))
    is_all = " ".join(_without_places(whole).splitlines()) == seen
    return Miss(results[0].criterion, len(told), *unjudged, seen, "" if is_all else whole, count)


def _first_lines(seen: str) -> str:
    """The first two lines of a message's first paragraph, or one that announces others."""
    lines: list[str] = []
    for line in _without_places(seen.split("\n\n")[0]).splitlines():
        lines.append(line)
        if len(lines) == 2 or line.endswith(":"):
            break
    return " ".join(lines)


def _without_places(seen: str) -> str:
    """A message without the lines that are places in one student's code, and without what announces them."""
    lines = (line.rstrip() for line in seen.splitlines() if line.strip() and not line[0].isspace())
    return "\n".join(lines).replace(", here:", ".")


def _whole_sentences(text: str) -> str:
    """The sentences from the text's beginning that are not too long; at least one, unless it is endless."""
    if len(text) <= SEEN_SHOWN:
        return text
    ends = [found.end() for found in _SENTENCE.finditer(f"{text}\n")]
    fitting = [end for end in ends if end <= SEEN_SHOWN] or [end for end in ends[:1] if end <= 2 * SEEN_SHOWN]
    return text[: fitting[-1]] if fitting else ""
