"""References in the place of answers that a student has left out: for a check, or for the notebook."""

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.runtime.processes.serialization import functions_of
from graders.student.kernel_answer import namespace_of
from graders.submissions.read import read_submission

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise

FOLDER = Path(__file__).parents[2] / "solutions"
"""Beside the workbook; an edition for students lacks it."""
_ABSENT = object()
_FILE = "<reference of "


class NotGiven(LookupError):
    """What was asked for cannot be given; the message is for the student."""


@contextmanager
def given_to(answer: object, exercise: "Exercise", names: Sequence[str]) -> Iterator[None]:
    """In here the answer finds the references of these exercises, which earn nothing. Raises NotGiven."""
    from graders.grading.registry import exercises

    others = [name for name in exercises(exercise.unit) if name != exercise.name]
    if unknown := [name for name in names if name not in others]:
        raise NotGiven(f'given="{unknown[0]}" is no other exercise of {exercise.unit}: {", ".join(others)}.')
    namespace = namespace_of(answer)
    # They find what the namespace has, and one another.
    found = dict(namespace)
    for name in names:
        put_reference(exercise.unit, name, found)
    references = {name: found[name] for name in names}
    before = {name: namespace.get(name, _ABSENT) for name in references}
    namespace.update(references)
    try:
        yield
    finally:
        for name, own in before.items():
            if own is _ABSENT:
                namespace.pop(name, None)
            else:
                namespace[name] = own


def put_reference(unit: str, name: str, namespace: dict[str, object]) -> None:
    """Define a reference in a namespace, and what stands in its cell beside it. Raises NotGiven."""
    source, file = _source(unit, name), f"{_FILE}{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)


def is_reference(answer: object) -> bool:
    """Whether it is a reference, and not what a student has written."""
    return any(function.__code__.co_filename.startswith(_FILE) for function in functions_of(answer))


def reference_in(solutions: Path, name: str) -> str:
    """The whole cell of a unit's solutions that has the answer: what it calls may stand beside it."""
    return next(cell.source for cell in read_submission(solutions).cells if cell.defines(name))


def _source(unit: str, name: str) -> str:
    """The source of a reference: of the solutions, or of the answers that a trainer's code has opened."""
    path = FOLDER / f"{unit}.py"
    if path.exists():
        return reference_in(path, name)
    from graders.student.sealed import opened_answer, sealed_file

    if source := opened_answer(name):
        return source
    if sealed_file(Path.cwd()):
        raise NotGiven(
            f'The answer to {name} is still closed. Whoever teaches tells its code: use("{name}", code="...")'
        )
    raise NotGiven("The references are not part of this edition of the workbook, so nothing can be given.")
