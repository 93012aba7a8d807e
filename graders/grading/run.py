"""From a grader's findings to verdicts: runs an exercise against an answer."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from course_lib.threads import one_thread
from graders.grading.answer import Answer, AnswerFailed, FailureKind, GraderMistake
from graders.grading.exercise import Criterion, Exercise, Finding, Findings, MachineLacks, Verdict
from graders.grading.kinds import Kind
from graders.grading.prerequisites import missing
from graders.grading.rng import Rng
from graders.grading.telling import KINDS, advised, explains_itself, figure, hint_on, readable, told


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """The verdict on one criterion, and what was seen."""

    criterion: Criterion
    verdict: Verdict
    seen: str
    figure: str = ""
    """A picture of what was seen, as HTML that needs nothing else."""
    hint: str = ""
    """What to look at; empty where what was seen says all."""
    kind: Kind = Kind.OTHER
    cause: str = field(default="", compare=False)
    """Of a row that is not judged: the criterion that failed, and has to pass first."""

    @property
    def points(self) -> float:
        return self.criterion.points if self.verdict is Verdict.PASSED else 0


@dataclass(frozen=True, slots=True)
class ExerciseResult:
    """What an answer earned. `mistake` is the traceback of a grader that stopped with an error of its own;
    `lacks` says what this machine lacks, where rows are blocked for that."""

    exercise: Exercise
    criteria: tuple[CriterionResult, ...]
    printed: str = ""
    """What the answer printed when it last printed anything."""
    mistake: str = ""
    lacks: str = ""

    @property
    def points(self) -> float:
        return sum(result.points for result in self.criteria)

    @property
    def passed(self) -> bool:
        return all(result.verdict is Verdict.PASSED for result in self.criteria)

    @property
    def kind(self) -> Kind:
        """What kind of failure the first row that failed shows."""
        failed = (result.kind for result in self.criteria if result.verdict is Verdict.FAILED)
        return next(failed, Kind.OTHER)

    @property
    def attempted(self) -> bool:
        return not all(result.verdict is Verdict.NOT_ATTEMPTED for result in self.criteria)


# Answers have one in the sandbox. Their tensors are small: on a busy machine waiting for a second thread
# takes longer than computing does.
@one_thread()
def grade(exercise: Exercise, answer: Answer, rng: Rng | None = None) -> ExerciseResult:
    """Let the exercise's grader judge the answer; with inputs drawn from `rng`, by default anew.

    A criterion counts only if those that it needs have passed; as soon as none that is left can count, the
    rest is not tried. Never raises for anything that the answer does. A grader that stops with an error of
    its own, or that does not keep to its rubric, leaves what it has not judged blocked and its traceback in
    `mistake`.
    """
    results: list[CriterionResult] = []
    mistake = lacks = ""
    try:
        for finding in _in_rubric_order(exercise, exercise.grade(answer, rng or Rng())):
            results.append(_result(exercise.rubric[len(results)], finding, ordinary=not results))
            rest = _rest_if_none_counts(exercise, results)
            if rest:
                results += rest
                break
    except AnswerFailed as failure:
        results = _without(exercise, answer, failure) or [
            *results,
            *_after_failure(exercise.rubric, failure, len(results)),
        ]
    except MachineLacks as lack:
        lacks, seen = readable(str(lack)), readable(f"Not judged: {lack}")
        results += [CriterionResult(each, Verdict.BLOCKED, seen) for each in exercise.rubric[len(results) :]]
    except Exception as error:
        mistake = traceback.format_exc()
        results += _after_mistake(exercise.rubric[len(results) :], error)
    printed = readable(getattr(answer, "printed", ""))
    return ExerciseResult(exercise, _what_counts(exercise, results), printed, mistake, lacks)


def _result(criterion: Criterion, finding: Finding, *, ordinary: bool) -> CriterionResult:
    """ordinary: whether it is the rubric's first row."""
    verdict = Verdict.PASSED if finding.passed else Verdict.FAILED
    failure, seen = finding.failure, readable(finding.told)
    if failure is None:
        hint = finding.hint or hint_on(criterion, finding.kind, ordinary=ordinary)
        return CriterionResult(criterion, verdict, seen, hint=hint, kind=finding.kind)
    kind = KINDS.get(failure.kind, Kind.OTHER)
    hint = finding.hint or hint_on(criterion, kind, ordinary=ordinary)
    return CriterionResult(
        criterion, verdict, readable(advised(failure, finding.seen)), figure(failure), hint, kind
    )


def not_attempted(exercise: Exercise, seen: str) -> ExerciseResult:
    """The result where there is no answer to judge."""
    return _all_alike(exercise, AnswerFailed(FailureKind.NOT_ATTEMPTED, seen))


def answer_failed(exercise: Exercise, failure: AnswerFailed) -> ExerciseResult:
    """The result where the answer failed before a grader could ask it for anything."""
    return _all_alike(exercise, failure)


def _all_alike(exercise: Exercise, failure: AnswerFailed) -> ExerciseResult:
    return ExerciseResult(exercise, tuple(_after_failure(exercise.rubric, failure)))


def _in_rubric_order(exercise: Exercise, findings: Findings) -> Iterator[Finding]:
    """The findings, as long as they follow the rubric. Raises GraderMistake where they do not."""
    expected = iter(exercise.rubric)
    for name, finding in findings:
        criterion = next(expected, None)
        if criterion is None or name != criterion.name:
            wanted = f'"{criterion.name}"' if criterion else "no further one"
            raise GraderMistake(
                f'the grader of {exercise.name} yielded "{name}" where its rubric has {wanted}'
            )
        yield finding
    left = next(expected, None)
    if left is not None:
        raise GraderMistake(f'the grader of {exercise.name} yielded nothing on "{left.name}"')


def _what_counts(exercise: Exercise, results: Sequence[CriterionResult]) -> tuple[CriterionResult, ...]:
    """The results, of which those are not judged that need one that has not passed.

    Of rows that need one another the first that failed stays: one mistake, one row.
    """
    by_name = {each.criterion.name: each for each in results}
    changed = True
    while changed:
        changed = False
        for name, each in by_name.items():
            judged = each.verdict in (Verdict.PASSED, Verdict.FAILED)
            missing = _missing(exercise.needs, by_name, name) if judged else each.cause
            root = (by_name[missing].cause or missing) if missing else ""
            if root and root != each.cause:
                by_name[name] = _not_judged(each.criterion, root)
                changed = True
    return tuple(by_name.values())


def _missing(
    needs: Mapping[str, tuple[str, ...]], by_name: Mapping[str, CriterionResult], name: str
) -> str | None:
    """The criterion on account of which this one does not count, if there is one.

    What stands later in the rubric only takes from a pass; a failure is told where it is met first.
    """
    passed = by_name[name].verdict is Verdict.PASSED
    earlier = True
    for other, result in by_name.items():
        earlier = earlier and other != name
        needed = other in needs[name] and result.verdict is not Verdict.PASSED
        needing = name in needs[other] and result.verdict is Verdict.FAILED
        if (earlier and (needed or needing)) or (not earlier and needed and passed):
            return other
    return None


def _rest_if_none_counts(exercise: Exercise, results: Sequence[CriterionResult]) -> list[CriterionResult]:
    """The results of the criteria that are left, if none of them could count even if it passed."""
    rest = [CriterionResult(each, Verdict.PASSED, "") for each in exercise.rubric[len(results) :]]
    if all(each.verdict is Verdict.PASSED for each in results):
        return []
    judged = _what_counts(exercise, [*results, *rest])[len(results) :]
    return list(judged) if all(each.verdict is Verdict.NOT_JUDGED for each in judged) else []


def _not_judged(criterion: Criterion, cause: str) -> CriterionResult:
    return CriterionResult(criterion, Verdict.NOT_JUDGED, f'"{cause}" has to pass first.', cause=cause)


def _after_failure(
    rubric: Sequence[Criterion], failure: AnswerFailed, judged: int = 0
) -> list[CriterionResult]:
    """The answer came to no end: the first criterion that is not judged yet fails, the rest is not judged."""
    remaining = rubric[judged:]
    if failure.kind is FailureKind.NOT_ATTEMPTED:
        seen = readable(failure.report)
        return [CriterionResult(criterion, Verdict.NOT_ATTEMPTED, seen) for criterion in remaining]
    if not remaining:
        return []
    first, *others = remaining
    kind = KINDS.get(failure.kind, Kind.OTHER)
    hint = "" if explains_itself(failure) and not judged else hint_on(first, kind, ordinary=not judged)
    return [
        CriterionResult(first, Verdict.FAILED, told(failure), figure(failure), hint, kind),
        *(_not_judged(criterion, first.name) for criterion in others),
    ]


def _without(exercise: Exercise, answer: Answer, failure: AnswerFailed) -> list[CriterionResult]:
    """The rows where not the answer is a stub, but another one that it uses; else nothing."""
    needed = missing(answer, exercise) if failure.kind is FailureKind.NOT_ATTEMPTED else []
    if not needed:
        return []
    written = f'"{needed[0]}"' if len(needed) == 1 else str(tuple(needed))
    seen = (
        f"It needs your {' and your '.join(needed)}, where `raise NotImplementedError()` is still there: "
        f"write that first. Or have it checked with the reference in that place: "
        f"check({exercise.name}, given={written})."
    )
    return [CriterionResult(each, Verdict.NOT_JUDGED, seen) for each in exercise.rubric]


def _after_mistake(remaining: Sequence[Criterion], error: Exception) -> list[CriterionResult]:
    said = f"{type(error).__name__}: {error}".removeprefix("GraderMistake: ")
    seen = readable(
        f"Not judged: the grader itself stopped here ({said}). "
        f"This is not counted as your mistake; please show it to those who run the course."
    )
    return [CriterionResult(criterion, Verdict.BLOCKED, seen) for criterion in remaining]
