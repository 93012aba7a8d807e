"""What an exercise is to its grader: a rubric, hints, and a function that drives the answer and judges it."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import TopologicalSorter
from typing import Any

from graders.grading.answer import Answer, AnswerFailed
from graders.grading.cases import Values
from graders.grading.kinds import Kind
from graders.grading.rng import Rng


class Verdict(StrEnum):
    """How a criterion ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_JUDGED = "not judged"
    """It counts only when another criterion has passed, which did not."""
    BLOCKED = "blocked"
    """It could not be judged, and not for the answer's sake: the machine lacks what it needs, or the grader
    itself stopped.
    """
    NOT_ATTEMPTED = "not attempted"
    """The answer is still the stub."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One row of a rubric."""

    name: str
    points: float
    hint: str
    """Shown when it fails: what to look at, not the answer."""
    needs: tuple[str, ...] | None = None
    """Names of the criteria that have to pass before this one counts; () for a result of its own.

    By default the rubric's first, which says what comes out: how an answer works is worth nothing as long as
    nothing right comes out. If the first needs this one, by default nothing.
    """
    vary: tuple[Values, ...] = ()
    """The changes of the base case that it is about, of an exercise that is judged by cases."""
    ask: "Callable[[Answer, Rng], Finding] | None" = None
    """What no case can say: a check of its own, of an answer that is right in the ordinary case."""
    how: "Callable[[Any], Finding | None] | None" = None
    """What is asked of each case that came out right (`graders.grading.explanation.Tried`); None: nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    passed: bool
    seen: str
    """One sentence with the values: what came out, and `; expected` what."""
    kind: Kind = Kind.OTHER
    """What kind of failure it is, if that can be told."""
    hint: str = ""
    """What to look at in just this case; empty where the criterion's hint says it."""
    failure: AnswerFailed | None = None
    """How the answer came to no end, if that is what was found."""

    @property
    def told(self) -> str:
        """What a row says. Where it passes, what was expected is what was seen, but for a limit."""
        if not self.passed:
            return self.seen
        limits = re.sub(r"; expected at (most|least)", r"; enough is at \1", self.seen)
        return re.sub(r"(?s); expected .*", ".", limits)


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

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """For each criterion, by name, those that it needs. See `Criterion.needs`."""
        first = self.rubric[0]
        alone = {first.name, *(first.needs or ())}
        default = {each.name: () if each.name in alone else (first.name,) for each in self.rubric}
        return {each.name: default[each.name] if each.needs is None else each.needs for each in self.rubric}


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
        _check_needs(made)
        REGISTRY.setdefault(made.unit, {})[made.name] = made
        return made

    return register


def _check_needs(made: Exercise) -> None:
    """Raises ValueError where criteria need one another, or one that the rubric does not have."""
    needs = made.needs
    unknown = {need for several in needs.values() for need in several} - set(needs)
    if unknown:
        raise ValueError(f"{made.name}: its rubric has no criterion named {', '.join(sorted(unknown))}")
    TopologicalSorter(needs).prepare()
