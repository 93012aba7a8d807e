"""Which exercise a student means: by the answer itself, or by its name."""

import difflib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graders.grading.exercise import Exercise


class NoSuchExercise(LookupError):
    """What was given is no exercise; the message is for the student."""


def find_exercise(name: str, unit: str | None = None) -> "Exercise":
    """The exercise of this name. Raises NoSuchExercise.

    If several units have one, `unit` decides, or else the name of the notebook that this kernel belongs to.
    """
    from graders.grading.registry import exercises, no_such_unit

    searched = _may_have(name) if unit is None else {unit: exercises(unit)}
    if unit is not None and not searched[unit]:
        raise NoSuchExercise(no_such_unit(unit))
    found = {unit: exercises[name] for unit, exercises in searched.items() if name in exercises}
    if not found:
        raise NoSuchExercise(
            _unknown(name, [known for exercises in searched.values() for known in exercises])
        )
    if len(found) > 1:
        here = {_session_path().stem, _session_path().parent.name, Path.cwd().name}
        found = {unit: exercise for unit, exercise in found.items() if unit in here} or found
    if len(found) > 1:
        raise NoSuchExercise(
            f"{name} is an exercise of {' and of '.join(found)}. "
            f"Say which: check({name}, unit={min(found)!r})."
        )
    return next(iter(found.values()))


def name_of(answer: object) -> str:
    """The name that a student's object goes by. Raises NoSuchExercise if it is nothing that has one."""
    if isinstance(answer, functools.partial):
        return name_of(answer.func)
    name = getattr(answer, "__name__", None)
    if callable(answer) and isinstance(name, str):
        return name
    raise NoSuchExercise(_not_an_answer(answer))


def named_exercise(given: object, caller: str) -> "Exercise":
    """The exercise that a student names, by text or by the answer itself. Raises NoSuchExercise."""
    if isinstance(given, str):
        return find_exercise(given)
    try:
        name = name_of(given)
    except NoSuchExercise as error:
        raise NoSuchExercise(
            f'{caller} needs the name of an exercise, in quotes: {caller}("average_gradients").'
        ) from error
    return find_exercise(name)


def session_notebook() -> Path | None:
    """The notebook file that this kernel belongs to, if the server says so and it is there."""
    path = _session_path()
    return path if path.suffix == ".ipynb" and path.is_file() else None


def _may_have(name: str) -> "dict[str, dict[str, Exercise]]":
    """Units with their exercises by name, all those among them that have one of this name; and all, if none
    has. Where the build has kept an exercise's cell, its graders are the only ones imported.
    """
    from graders.grading.registry import load_all, load_numbered, loaded
    from graders.submissions.released_cells import numbers_with

    for number in numbers_with(name):
        load_numbered(number)
    units = loaded()
    return units if any(name in each for each in units.values()) else load_all()


def _session_path() -> Path:
    return Path(os.environ.get("JPY_SESSION_NAME", ""))


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    return f'There is no exercise named "{name}".{meant} An answer must have the name of its exercise.'


def _not_an_answer(answer: object) -> str:
    """A sentence for somebody who has given something else than a function or a class."""
    kind = type(answer)
    if answer is None:
        return (
            "check got nothing to check. Give it the function itself, without calling it: "
            "check(average_gradients), not check(average_gradients(model))."
        )
    if isinstance(answer, str):
        return f'check got the text "{answer}". Give it the function itself, without quotes: check({answer}).'
    if callable(answer) or kind.__module__ == "__main__":
        name = kind.__name__
        return f"check got an object of the class {name}. Give it the class itself: check({name})."
    return (
        f"check got a {kind.__name__}. Give it the function or class that you have written, "
        f"without calling it: check(average_gradients)."
    )
