"""Judges an answer by cases: from what a rubric's rows vary to a finding for each row."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic

from graders.grading.answer import Answer, AnswerFailed, FailureKind
from graders.grading.cases import Case, Change, Features, Space
from graders.grading.compare import counted
from graders.grading.exercise import Criterion, Exercise, Finding, Findings, exercise
from graders.grading.explanation import Explained, Tried, explained
from graders.grading.rng import Rng


class Stage(ABC, Generic[Features]):
    """How the cases of an exercise are tried, and what is right."""

    def together(self, features: Features) -> Hashable:
        """Cases for which it is the same are tried in one launch; None: this one has its own."""
        return None

    @abstractmethod
    def run(self, answer: Answer, cases: Sequence[tuple[Features, Rng]]) -> Sequence[tuple[Finding, Any]]:
        """For each case what was found of its results, and what the rows that ask how may see.

        Raises AnswerFailed if the answer comes to no end.
        """

    def typed(self, features: Features) -> str:
        """The case as a call that a student can type; empty if there is none."""
        return ""


@dataclass(frozen=True)
class ByCases(Generic[Features]):
    """A grader: the base case, the stage, and what is possible. The rubric says the rest."""

    base: Features
    stage: Stage[Features]
    rubric: tuple[Criterion, ...]
    possible: Callable[[Features], bool] = field(default=lambda features: True)

    def __call__(self, answer: Answer, rng: Rng) -> Findings:
        """Each row's finding, in the rubric's order."""
        told = self._explained(answer, rng.integer(0, 2**40))
        first = self.rubric[0].name
        for criterion in self.rubric:
            if tried := told.failed.get(criterion.name):
                yield criterion.name, self._failed(tried)
            elif first in told.failed:
                return
            elif criterion.how is not None:
                right = [tried for tried in told.right if told.judges(tried.case)]
                yield criterion.name, self._how(criterion.how, right)
            elif criterion.ask is not None:
                yield criterion.name, _asked(criterion.ask, answer, rng)
            else:
                about = [change for change in self.space.changes if change.row == criterion.name]
                yield criterion.name, Finding(True, self._passed(about))

    @cached_property
    def space(self) -> Space[Features]:
        changes = (Change(row.name, values) for row in self.rubric for values in row.vary)
        return Space(self.base, tuple(changes), self.possible)

    def _explained(self, answer: Answer, seed: int) -> Explained[Features]:
        def run(cases: Sequence[Case[Features]]) -> list[Tried[Features]]:
            given = [(case.features, Rng(seed + case.number)) for case in cases]
            found = self.stage.run(answer, given)
            return [Tried(case, *each) for case, each in zip(cases, found, strict=True)]

        rows = [criterion.name for criterion in self.rubric]
        return explained(self.space, rows, run, lambda case: self.stage.together(case.features))

    def _failed(self, tried: Tried[Features]) -> Finding:
        """The finding, with the case that it is about, and how to type it."""
        features = tried.case.features
        after = "".join(f", after a call with {in_words(case.features)}" for case in tried.after)
        seen = f"With {in_words(features)}{after}: {tried.finding.seen}"
        typed = self.stage.typed(features)
        return replace(tried.finding, seen=f"{seen}\nTry it: {typed}" if typed else seen)

    def _how(self, how: Callable[[Any], Finding | None], right: Sequence[Tried[Features]]) -> Finding:
        held = list[str]()
        for tried in right:
            finding = how(tried)
            if finding is not None and not finding.passed:
                return self._failed(replace(tried, finding=finding))
            if finding is not None:
                held.append(f"With {in_words(tried.case.features)}: {finding.told}")
        if not held:
            return Finding(False, "There was nothing to look at.")
        more = f" The same in {counted(len(held) - 1, 'more case')}." if held[1:] else ""
        return Finding(True, f"{held[0]}{more}")

    def _passed(self, changes: Iterable[Change]) -> str:
        told = (in_words(replace(self.base, **change.values), change.values) for change in changes)
        listed = "; ".join(dict.fromkeys(filter(None, told)))
        return f"Tried and right: {listed or in_words(self.base)}."


@dataclass(frozen=True)
class NamedJudge(Generic[Features]):
    """A grader that has the name, the module and the docstring of the function that says what is right."""

    judged: ByCases[Features]
    __name__: str
    __module__: str
    __doc__: str | None

    def __call__(self, answer: Answer, rng: Rng) -> Findings:
        return self.judged(answer, rng)


def by_cases(
    judged: ByCases[Features], *, minutes: int, difficulty: int, hints: tuple[str, ...], name: str = ""
) -> Callable[[Callable[..., Any]], Exercise]:
    """Register an exercise that is judged by these cases, under the name of the function below."""

    def register(function: Callable[..., Any]) -> Exercise:
        judge = NamedJudge(judged, function.__name__, function.__module__, function.__doc__)
        rubric = judged.rubric
        return exercise(rubric=rubric, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(judge)

    return register


def _asked(ask: Callable[[Answer, Rng], Finding], answer: Answer, rng: Rng) -> Finding:
    try:
        return ask(answer, rng)
    except AnswerFailed as failure:
        if failure.kind is FailureKind.NOT_ATTEMPTED:
            raise
        return Finding(False, failure.report, failure=failure)


def feature(default: Any, words: str | Callable[[Any], str] = "") -> Any:
    """A field of a dataclass of features. words: how a value is told, such as "{} ranks"."""
    return field(default=default, metadata={"words": words})


def in_words(features: Any, names: Iterable[str] | None = None) -> str:
    """The values of these features, by default of all that can be told: `5 ranks, 13 elements`."""
    told = []
    for each in fields(features):
        words = each.metadata.get("words", "")
        if words and (names is None or each.name in names):
            value = getattr(features, each.name)
            told.append(_of_one(words.format(value)) if isinstance(words, str) else words(value))
    return ", ".join(filter(None, told))


def _of_one(words: str) -> str:
    """`1 stage` for `1 stages`, `1 micro-batch` for `1 micro-batches`; anything else as it is."""
    return re.sub(r"(?<![\d.,])1 ([\w-]+?)(?:(?<=[cs]h)es|(?<!s)s)\b", r"1 \1", words)
