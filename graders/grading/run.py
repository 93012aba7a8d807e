"""From a grader's findings to verdicts: runs an exercise against an answer."""

import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from course_lib.runtime.communication.errors import BufferInUse, NeverWaited
from course_lib.threads import one_thread
from graders.grading.answer import Answer, AnswerFailed, FailureKind, GraderMistake
from graders.grading.exercise import Criterion, Exercise, Finding, Findings, MachineLacks, Verdict
from graders.grading.kinds import HINTS, NOTHING_CAME, Kind
from graders.grading.rng import Rng
from graders.grading.text import shortened

SEEN_CHARACTERS = 4000
"""A longer story is cut: nobody reads it, and a submission could make it endless."""


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
        results += _after_failure(exercise.rubric, failure, len(results))
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
    failure, seen = finding.failure, readable(finding.seen)
    if failure is None:
        hint = finding.hint or _hint(criterion, finding.kind, ordinary=ordinary)
        return CriterionResult(criterion, verdict, seen, hint=hint, kind=finding.kind)
    kind = _KINDS.get(failure.kind, Kind.OTHER)
    hint = finding.hint or _hint(criterion, kind, ordinary=ordinary)
    return CriterionResult(
        criterion, verdict, readable(_advised(failure, finding.seen)), _figure(failure), hint, kind
    )


def not_attempted(exercise: Exercise, seen: str) -> ExerciseResult:
    """The result where there is no answer to judge."""
    return _all_alike(exercise, AnswerFailed(FailureKind.NOT_ATTEMPTED, seen))


def answer_failed(exercise: Exercise, failure: AnswerFailed) -> ExerciseResult:
    """The result where the answer failed before a grader could ask it for anything."""
    return _all_alike(exercise, failure)


def readable(text: str) -> str:
    """A text that may hold anything, made fit to be shown: no control characters, no endless length."""
    text = _ESCAPES.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = "".join(c for c in text if c.isprintable() or c in "\n\t")
    return shortened(text, SEEN_CHARACTERS)


_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Terminal colours and the like."""


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
    kind = _KINDS.get(failure.kind, Kind.OTHER)
    hint = "" if _explains_itself(failure) and not judged else _hint(first, kind, ordinary=not judged)
    return [
        CriterionResult(first, Verdict.FAILED, _told(failure), _figure(failure), hint, kind),
        *(_not_judged(criterion, first.name) for criterion in others),
    ]


def _hint(criterion: Criterion, kind: Kind, *, ordinary: bool) -> str:
    """The criterion's hint, and what to look at where nothing came out.

    ordinary: whether this is the rubric's first row, whose hint is about what comes out. The others name the
    case that they are tried on, and so why nothing came out in just this one.
    """
    if kind not in NOTHING_CAME:
        return criterion.hint
    return HINTS[kind] if ordinary else f"{criterion.hint} {HINTS[kind]}"


_KINDS = {
    FailureKind.DEADLOCK: Kind.DEADLOCK,
    FailureKind.MISMATCH: Kind.MISMATCH,
    FailureKind.TIMED_OUT: Kind.TIMED_OUT,
}
_OTHER_KINDS = frozenset(
    {FailureKind.LEFT_OPEN, FailureKind.NOT_PLAIN, FailureKind.ENDED, FailureKind.UNREADABLE}
)
_SLIPS = frozenset({"NameError", "UnboundLocalError", "SyntaxError", "ImportError", "ModuleNotFoundError"})
_SLIPS |= {"AttributeError", "TypeError", BufferInUse.__name__, NeverWaited.__name__}
"""Errors that are about Python, or that say themselves what to do."""


_AFTER_A_RESTART = (
    "\nIf a cell above defines it, run that cell. After a restart of the kernel run all of them: "
    "Run > Run All Above Selected Cell."
)
_ADVICE = {
    "Group None is not registered": "A function that asks about a group does not take None for it: give it "
    "`group or dist.group.WORLD`.",
    "should not be the same as the rank of the current process": "Nobody sends to itself, or receives from "
    "itself: copy what a rank has for itself.",
    "is not part of group": "Here a rank of all ranks was expected. The place in a group is given by "
    "group_dst= and group_src=.",
}
"""What to do where an error of torch.distributed's does not say so, by a part of its text."""
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


def _told(failure: AnswerFailed) -> str:
    return readable(_advised(failure, failure.report))


def _advised(failure: AnswerFailed, told: str) -> str:
    """What is told of a failure; where a name is unknown, with what to do about it."""
    for said, advice in _ADVICE.items():
        if said in failure.report:
            return f"{told}\n{advice}"
    if failure.error != "NameError":
        return told
    unknown = _UNKNOWN_NAME.search(failure.report)
    if unknown and unknown[1] in sys.stdlib_module_names:
        return f"{told}\n{unknown[1]} is a module of Python's: write `import {unknown[1]}`."
    return told + _AFTER_A_RESTART


def _explains_itself(failure: AnswerFailed) -> bool:
    """Whether a criterion's hint would be beside the point."""
    of_groups = failure.kind is FailureKind.MISMATCH and ": new_group(" in failure.report
    return failure.kind in _OTHER_KINDS or failure.error in _SLIPS or of_groups


def _figure(failure: AnswerFailed) -> str:
    """Who waited for whom, drawn, if the answer came to a deadlock."""
    if failure.deadlock is None:
        return ""
    try:
        # Imported here: nobody whose answer ends needs matplotlib.
        from course_lib.figures.deadlock import deadlock_figure
        from course_lib.figures.style import figure_html

        return figure_html(deadlock_figure(failure.deadlock.wait_graph))
    except Exception:  # the calls come from the answer's process: what cannot be drawn is told in words
        return ""


def _after_mistake(remaining: Sequence[Criterion], error: Exception) -> list[CriterionResult]:
    said = f"{type(error).__name__}: {error}".removeprefix("GraderMistake: ")
    seen = readable(
        f"Not judged: the grader itself stopped here ({said}). "
        f"This is not counted as your mistake; please show it to those who run the course."
    )
    return [CriterionResult(criterion, Verdict.BLOCKED, seen) for criterion in remaining]
