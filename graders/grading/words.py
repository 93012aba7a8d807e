"""How the results of an exercise are put into words, wherever they are shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.exercise import Verdict
from graders.grading.run import CriterionResult, ExerciseResult

Rows = Sequence[tuple[CriterionResult, str]]
"""Results of criteria, each with what is shown as seen."""

PRINTED_LINES = 20
"""So many lines of what an answer printed are shown with its table."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a verdict is shown: a sign and a word, and a colour that nothing depends on."""

    sign: str
    style: str
    """For rich."""
    background: str
    """For HTML: grey or of Okabe and Ito's palette, under black text in light and dark pages alike."""


LOOKS = {
    Verdict.PASSED: Look("✔", "green", "#3fbf97"),
    Verdict.FAILED: Look("✘", "bold red", "#f08a4b"),
    Verdict.NOT_JUDGED: Look("–", "bright_black", "#cccccc"),
    Verdict.BLOCKED: Look("■", "yellow", "#f0e442"),
    Verdict.NOT_ATTEMPTED: Look("○", "cyan", "#9ccff0"),
}


def earned(points: float, max_points: float) -> str:
    """`2 of 3 points`."""
    return f"{points:g} of {max_points:g} point{'' if max_points == 1 else 's'}"


def verdict_words(verdict: Verdict) -> str:
    """`✔ passed`."""
    return f"{LOOKS[verdict].sign} {verdict.value}"


def shown_hint(result: CriterionResult) -> str:
    """The hint of a criterion that failed; the others need none."""
    return result.hint if result.verdict is Verdict.FAILED else ""


def folded_and_open(result: ExerciseResult) -> tuple[Rows, Rows]:
    """The rows that passed, and those to look at; that the stub is still there is said once.

    In neither are those that `not_judged_lines` has.
    """
    passed = [(each, each.seen) for each in result.criteria if each.verdict is Verdict.PASSED]
    left: list[tuple[CriterionResult, str]] = []
    for each in result.criteria:
        if each.verdict not in (Verdict.PASSED, Verdict.NOT_JUDGED):
            again = each.verdict is Verdict.NOT_ATTEMPTED and left and left[0][0].seen == each.seen
            left.append((each, "" if again else each.seen))
    return passed, left


def passed_in_a_line(rows: Rows) -> str:
    """`✔ passed: mean over ranks, one collective`."""
    return f"{verdict_words(Verdict.PASSED)}: {', '.join(each.criterion.name for each, _ in rows)}"


def not_judged_lines(result: ExerciseResult) -> list[str]:
    """`– not judged: any length, any dtype. "the sum" has to pass first.`, a line for each reason."""
    rows = [each for each in result.criteria if each.verdict is Verdict.NOT_JUDGED]
    names: dict[str, list[str]] = {}
    for each in rows:
        names.setdefault(each.seen, []).append(each.criterion.name)
    sign = verdict_words(Verdict.NOT_JUDGED)
    return [f"{sign}: {', '.join(several)}. {seen}" for seen, several in names.items()]


def headline(result: ExerciseResult) -> str:
    """`global_mean: 2 of 3 points`."""
    return f"{result.exercise.name}: {earned(result.points, result.exercise.points)}"


def shortfall_in_a_line(result: ExerciseResult) -> str:
    """Of a result without all points: that nothing has been written yet, or the points and the first row."""
    if not result.attempted:
        return f"{result.exercise.name}: not attempted yet. {result.criteria[0].seen}"
    first = next(each for each in result.criteria if each.verdict is not Verdict.PASSED)
    failed = next((each for each in result.criteria if each.verdict is Verdict.FAILED), first)
    return f"{headline(result)}. {verdict_words(failed.verdict)}: {failed.criterion.name}. {failed.seen}"


def advice_on(result: ExerciseResult, hint: str) -> str:
    """One line on what to do next. hint: how to ask for one, with {} for the exercise."""
    if result.passed or result.mistake:
        return ""
    if all(each.verdict is Verdict.NOT_JUDGED for each in result.criteria):
        return ""
    advice = "Fix the first row that failed, then check again."
    if not result.attempted:
        advice = 'Write the answer in place of "raise NotImplementedError".'
    return advice + (f" More help: {hint.format(result.exercise.name)}" if result.exercise.hints else "")


def printed_lines(result: ExerciseResult) -> list[str]:
    """What the answer printed, cut to a length that can be read."""
    lines = result.printed.splitlines()
    if len(lines) <= PRINTED_LINES:
        return lines
    return [*lines[:PRINTED_LINES], f"... and {len(lines) - PRINTED_LINES} more lines"]
