"""Answers that prove the graders: the mistakes that people make, and right answers written differently.

A file tests/wrong_answers/NN_name.py or tests/right_answers/NN_name.py decorates functions or classes:

    @wrong("average_gradients", fails="averages over ranks")
    def sums_without_dividing(model): ...   # docstring: the mistake in one line

    @instead("average_gradients", ("/ size", ""), fails="averages over ranks")
    def sums_without_dividing(): ...   # the solution but for a text
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from graders.grading.registry import exercises, load_all
from graders.guest.run_cells import run_cells
from graders.submissions.cells import Cell
from graders.submissions.read import read_submission

Definition = TypeVar("Definition", bound=Callable[..., Any])

TESTS = Path(__file__).parent
SECOND_WAYS = TESTS.parent / "solutions" / "second_ways"


@dataclass(frozen=True)
class Proof:
    """An answer to an exercise, and the criterion that it fails; None if it is right."""

    exercise: str
    answer: Callable[..., Any]
    fails: str | None

    @property
    def name(self) -> str:
        return str(self.answer.__name__)


_collected: list[Proof] = []


def wrong(exercise: str, fails: str) -> Callable[[Definition], Definition]:
    """An answer that fails the criterion named, and passes those that the rubric lists before it."""
    return lambda answer: _collect(Proof(exercise, answer, fails), answer)


def instead(exercise: str, *changes: tuple[str, str], fails: str) -> Callable[[Definition], Definition]:
    """A wrong answer that is the solution with these texts, each there once, in the place of others.

    What stands below it gives the answer its name and its docstring.
    """
    unit = next(unit for unit, found in load_all().items() if exercise in found)
    cell = next(cell for cell in _cells(unit) if cell.defines(exercise))
    for was, now in changes:
        assert cell.source.count(was) == 1, f"{exercise}: {was!r} is there {cell.source.count(was)} times"
        cell = replace(cell, source=cell.source.replace(was, now))

    def register(named: Definition) -> Definition:
        namespace = dict(solved(unit))
        assert not (failures := run_cells([replace(cell, name=named.__name__)], namespace)), failures
        answer = namespace[exercise]
        answer.__name__, answer.__doc__ = named.__name__, named.__doc__
        return _collect(Proof(exercise, answer, fails), named)

    return register


def right(exercise: str) -> Callable[[Definition], Definition]:
    """An answer that earns all points."""
    return lambda answer: _collect(Proof(exercise, answer, None), answer)


def wrong_answers(unit: str) -> list[Proof]:
    return _load(TESTS / "wrong_answers" / f"{unit}.py")


def right_answers(unit: str) -> list[Proof]:
    return _load(TESTS / "right_answers" / f"{unit}.py") + second_ways(unit)


@cache
def second_ways(unit: str) -> list[Proof]:
    """What students may read once they have solved an exercise: functions of the exercises' names."""
    path = SECOND_WAYS / f"{unit}.py"
    shown = vars(_module(path)) if path.exists() else {}
    return [Proof(name, shown[name], None) for name in exercises(unit) if name in shown]


@cache
def solved(unit: str) -> dict[str, Any]:
    """The namespace that the unit's own cells leave behind, solutions included."""
    namespace: dict[str, Any] = {"__name__": "solutions"}
    failures = run_cells(_cells(unit), namespace)
    assert not failures, failures
    return namespace


@cache
def _cells(unit: str) -> tuple[Cell, ...]:
    """The cells of the unit with its solutions; reading them takes as long as a grading."""
    return read_submission(TESTS.parent / "solutions" / f"{unit}.py").cells


def _collect(proof: Proof, answer: Definition) -> Definition:
    _collected.append(proof)
    return answer


@cache
def _load(path: Path) -> list[Proof]:
    """What a file decorates; nothing if there is no such file."""
    if not path.exists():
        return []
    _collected.clear()
    _module(path)
    return list(_collected)


def _module(path: Path) -> ModuleType:
    """The module in a file, executed anew."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
