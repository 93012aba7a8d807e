"""Grading a submission: every exercise of a unit, with the student's code out of reach."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from graders.grading.exercise import Exercise
from graders.grading.registry import counted, exercises, load_all, no_such_unit
from graders.grading.report import Report
from graders.grading.run import ExerciseResult, grade
from graders.host.sandbox import DEFAULT_LIMITS, Sandbox
from graders.isolation.backends import NO_INNER_SANDBOXES, UNSANDBOXED, backend_here
from graders.protocol.limits import Limits
from graders.submissions.read import BadSubmission, Submission, read_submission


def grade_file(path: Path, unit: str | None = None) -> Report:
    """The grades of a notebook or Python file; without `unit`, of the unit that it looks to be about.

    Raises BadSubmission and SandboxFailed.
    """
    submission = read_submission(path)
    return grade_submission(submission, unit or guess_unit(submission), folder=path.parent)


def grade_submission(
    submission: Submission, unit: str, limits: Limits = DEFAULT_LIMITS, folder: Path | None = None
) -> Report:
    """The grades of a submission, whose code is kept within the limits; a note says if there was no sandbox.

    folder: where one's own work lies, for it may be part of a track; by default the working folder.
    Raises BadSubmission if it has nothing to do with the unit, SandboxFailed if its code cannot be run here.
    """
    graded = _exercises(unit, folder)
    if not any(submission.defines(exercise.name) for exercise in graded):
        names = ", ".join(exercise.name for exercise in graded)
        raise BadSubmission(
            f"{submission.name} defines none of the exercises of {unit}, which are {names}. "
            f"Is it the right file, and the right unit?"
        )
    with Sandbox(submission, limits) as sandbox:
        results = tuple(_grade_exercise(sandbox, exercise) for exercise in graded)
        return Report(unit, results, (*_missing_sandboxes(sandbox), *_notes(sandbox, graded)))


def guess_unit(submission: Submission) -> str:
    """The unit that a submission is about: the one that it is named after, or has most answers of.

    Raises BadSubmission if it has none of any.
    """
    stem = Path(submission.name).stem
    if exercises(stem):
        return stem
    units = load_all()
    counts = {unit: sum(map(submission.defines, names)) for unit, names in units.items()}
    best = max(counts, key=lambda unit: counts[unit], default="")
    if not best or not counts[best]:
        raise BadSubmission(
            f"{submission.name} defines no exercise of any unit. The units are {', '.join(sorted(units))}; "
            f"say which one it is with --unit, or give another file."
        )
    return best


def _exercises(unit: str, folder: Path | None) -> list[Exercise]:
    found = counted(unit, folder)
    if not found:
        raise BadSubmission(no_such_unit(unit))
    return list(found.values())


def _grade_exercise(sandbox: Sandbox, exercise: Exercise) -> ExerciseResult:
    with sandbox.answer(exercise.name) as answer:
        return grade(exercise, answer)


def _missing_sandboxes(sandbox: Sandbox) -> Iterable[str]:
    """What a reader of the grades has to know about how they were given."""
    if not backend_here().stands:
        yield UNSANDBOXED
    elif not sandbox.has_inner_sandboxes:
        yield NO_INNER_SANDBOXES


def _notes(sandbox: Sandbox, graded: Iterable[Exercise]) -> Iterable[str]:
    """What is to be said about cells that failed and are no answers: an answer's failure is in its table.

    And about what looks like an answer under another name.
    """
    names = [exercise.name for exercise in graded]
    others = {name for cell in sandbox.submission.cells for name in cell.definitions} - set(names)
    for name in names:
        for close in get_close_matches(name, () if sandbox.submission.defines(name) else others, n=1):
            yield f"There is no {name}. Is {close} meant to be it? An answer has the name of its exercise."
    for cell in sandbox.submission.cells:
        failure = sandbox.failures.get(cell.name)
        if failure is not None and not failure.is_stub and not any(map(cell.defines, names)):
            name = cell.name.strip("<>")
            yield f"The {name} failed, so what comes after it may miss something.\n{failure.report}"
