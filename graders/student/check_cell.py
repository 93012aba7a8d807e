"""`check(answer)`: a grading in the notebook, in milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from course_lib.notebook.verdicts import note_points
from graders.student.display import Notice, shown
from graders.student.lookup import NoSuchExercise, find_exercise, name_of
from graders.student.progress_log import record_check
from graders.student.second_way import second_way

if TYPE_CHECKING:
    from graders.grading.report import Report


def check(
    answer: object = None, unit: str | None = None, given: str | Sequence[str] = ()
) -> "Report | Notice":
    """Grade one of your answers: `check(average_gradients)` shows what it must do, and what it does.

    answer: the function or class itself. unit: only needed if two units have an exercise of this name.
    given: exercises that you have left out and the answer uses: the reference stands in their place, as in
    `check(train_ddp, given="shard_indices")`.

    An answer that is wrong, raises, hangs or deadlocks never makes `check` raise: the table says so. The
    inputs are drawn anew each time. The outcome is recorded, see `progress`.
    """
    try:
        exercise = find_exercise(name_of(answer), unit)
    except NoSuchExercise as error:
        # The points, 0, stand as plain text, as with every check: a check cell may be graded by them.
        return shown(Notice(str(error), plain="0"))
    # Graders import PyTorch, which takes a second; `from graders import check` should not.
    from graders.grading.report import Report
    from graders.grading.run import grade
    from graders.guest.usual_torch import usual_torch
    from graders.student.given import NotGiven, given_to, is_reference
    from graders.student.hint_button import offer_hint
    from graders.student.kernel_answer import kernel_answer
    from graders.student.parts import unsolved_parts

    if is_reference(answer):
        sentence = (
            f"This {exercise.name} is ours, put here by use(): it earns nothing. Run your own cell again."
        )
        return shown(Notice(sentence, plain="0"))
    names = (given,) if isinstance(given, str) else tuple(given)
    judged = kernel_answer(answer, exercise.name)
    try:
        # The grader computes in this kernel, too.
        with usual_torch(), given_to(answer, exercise, names):
            result = grade(exercise, judged)
    except NotGiven as error:
        return shown(Notice(str(error), plain="0"))
    note_points(exercise.name, result.points, exercise.points)
    parts = "" if result.passed else unsolved_parts(judged, exercise)
    references = f"The reference stood in place of {' and '.join(names)}." if names else ""
    second = second_way(exercise) if result.passed else ""
    report = Report(exercise.unit, (result,), tuple(filter(None, (parts, references))), second)
    try:
        record_check(result, judged.source)
    except OSError as error:
        report = replace(report, notes=(*report.notes, f"This check could not be recorded: {error}."))
    if result.attempted and not result.passed and exercise.hints:
        offer_hint(exercise.name)
    return shown(report)
