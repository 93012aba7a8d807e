"""Exercises that a student has left out, given for the time of a check: the reference in place of a stub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from graders.student.kernel_answer import namespace_of
from graders.submissions.cells import definition_source

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise

FOLDER = Path(__file__).parents[2] / "solutions"
"""Beside the workbook; an edition for students may lack it."""
_ABSENT = object()


class NotGiven(LookupError):
    """What was asked for cannot be given; the message is for the student."""


@contextmanager
def given_to(answer: object, exercise: "Exercise", names: Sequence[str]) -> Iterator[None]:
    """In here the answer finds the references of these exercises, which earn nothing. Raises NotGiven."""
    namespace = namespace_of(answer)
    references = _references(exercise, names, namespace)
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


def _references(
    exercise: "Exercise", names: Sequence[str], namespace: dict[str, object]
) -> dict[str, object]:
    """The references by name. They find what the student's cells have imported, and one another."""
    from graders.grading.registry import exercises

    path = FOLDER / f"{exercise.unit}.py"
    if names and not path.exists():
        raise NotGiven(
            "The references are not part of this edition of the workbook, so nothing can be given."
        )
    others = [name for name in exercises(exercise.unit) if name != exercise.name]
    found = dict(namespace)
    for name in names:
        if name not in others:
            raise NotGiven(f'given="{name}" is no other exercise of {exercise.unit}: {", ".join(others)}.')
        source = definition_source(path.read_text(encoding="utf-8"), name)
        exec(compile(source, f"<reference of {name}>", "exec"), found)
    return {name: found[name] for name in names}
