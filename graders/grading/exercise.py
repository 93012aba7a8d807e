"""What an exercise is to its grader: a rubric, hints, and a function that drives the answer and judges it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from graders.grading.answer import Answer
from graders.grading.rng import Rng


class Verdict(StrEnum):
    """How a criterion ended."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"
    """It could not be judged: something before it failed, or the machine lacks what it needs."""
    NOT_ATTEMPTED = "not attempted"
    """The answer is still the stub."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One row of a rubric."""

    name: str
    points: float
    hint: str
    """Shown when it fails: what to look at, not the answer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    passed: bool
    seen: str
    """One sentence with the values: what came out, and what was expected."""


class MachineLacks(Exception):
    """Raised by a grader where this machine lacks what the exercise needs: the rest is blocked, not failed.

    The message is a sentence that says what is missing and how to get it.
    """


Findings = Iterator[tuple[str, Finding]]
"""The names of an exercise's criteria, in the rubric's order, each with what was found on it."""

Judge = Callable[[Answer, Rng], Findings]


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise and its grader. `grade` yields each criterion's name and Finding.

    A grader that raises `AnswerFailed` (the answer crashed, hung, deadlocked) fails the first criterion that
    it has not yet yielded and blocks those after it.
    """

    unit: str
    name: str
    rubric: tuple[Criterion, ...]
    grade: Judge
    minutes: int
    difficulty: int
    """1 (one line) to 5 (a real component)."""
    hints: tuple[str, ...] = field(default=())
    """Given one by one, on demand."""

    @property
    def points(self) -> float:
        return sum(criterion.points for criterion in self.rubric)


REGISTRY: dict[str, dict[str, Exercise]] = {}
"""unit -> exercise name -> exercise, filled by the unit modules as they are imported."""


def exercise(
    *,
    rubric: tuple[Criterion, ...],
    minutes: int,
    difficulty: int,
    hints: tuple[str, ...] = (),
    name: str = "",
    unit: str = "",
) -> Callable[[Judge], Exercise]:
    """Register a grading function as the grader of an exercise.

    name: the answer's, by default the grading function's own. unit: by default that of the package in which
    the function stands.
    """

    def register(judge: Judge) -> Exercise:
        of_unit = unit or sys.modules[judge.__module__.rpartition(".")[0]].UNIT
        made = Exercise(of_unit, name or judge.__name__, rubric, judge, minutes, difficulty, hints)
        REGISTRY.setdefault(made.unit, {})[made.name] = made
        return made

    return register
