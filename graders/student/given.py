"""References in the place of answers that a student has left out: for a check, or for the notebook."""

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.runtime.processes.serialization import functions_of
from graders.student.kernel_answer import namespace_of
from graders.submissions.cells import definition_source

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
    references = references_of(exercise.unit, names, namespace)
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


def references_of(unit: str, names: Sequence[str], namespace: dict[str, object]) -> dict[str, object]:
    """The references by name. They find what the namespace has, and one another. Raises NotGiven."""
    found = dict(namespace)
    for name in names:
        source, file = _source(unit, name), f"{_FILE}{name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), found)
    return {name: found[name] for name in names}


def is_reference(answer: object) -> bool:
    """Whether it is a reference, and not what a student has written."""
    return any(function.__code__.co_filename.startswith(_FILE) for function in functions_of(answer))


def _source(unit: str, name: str) -> str:
    """The source of a reference: of the solutions, or of the answers that a trainer's code has opened."""
    path = FOLDER / f"{unit}.py"
    if path.exists():
        return definition_source(path.read_text(encoding="utf-8"), name)
    from graders.student.sealed import opened_answer, sealed_file

    folder = Path.cwd()
    if source := opened_answer(name, folder):
        return source
    if sealed_file(folder):
        raise NotGiven(
            f'The answer to {name} is still closed. Whoever teaches tells its code: use("{name}", code="...")'
        )
    raise NotGiven("The references are not part of this edition of the workbook, so nothing can be given.")
