"""An answer that does nothing earns nothing, in whatever way it does nothing."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graders.grading.exercise import Criterion, Exercise, Finding, Findings, Verdict, exercise
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import ExerciseResult, grade
from graders.student.kernel_answer import kernel_answer
from tests.answers import solved

SEED = 1
SUBMITS_JOBS = {"batch_script": [pytest.mark.xdist_group("batch scripts")]}
DEAR = {
    "mpi_ring_all_reduce": ("returns None", "returns argument 2"),
    "batch_script": ("returns None", "returns argument 1"),
    "six_steps": ("returns None", "returns its arguments"),
}
"""Exercises that start mpirun, a batch job or horovodrun for every answer: so many ways will do."""
EXERCISES = [
    pytest.param(each, id=each.name, marks=SUBMITS_JOBS.get(each.name, ()))
    for unit in load_all().values()
    for each in unit.values()
]

Solution = Callable[..., Any]


def _zeros(value: Any) -> Any:
    """The same with zeros in place of its numbers, and no letter in its texts."""
    match value:
        case Tensor():
            return torch.zeros_like(value)
        case bool() | int() | float() | str():
            return type(value)()
        case list() | tuple():
            return type(value)(map(_zeros, value))
        case dict():
            return {key: _zeros(item) for key, item in value.items()}
        case _:
            return None


class Zeros:
    """Answers as the solution did when graded with the same seed, with zeros in place of all numbers."""

    def __init__(self, solution: Solution, exercise: Exercise) -> None:
        self._given: dict[int, list[Any]] = {}
        self._solution = solution
        grade(exercise, kernel_answer(self._note, exercise.name), Rng(SEED))

    def _note(self, *arguments: Any, **options: Any) -> Any:
        result = self._solution(*arguments, **options)
        self._given.setdefault(_rank(), []).append(_zeros(result))
        return result

    def __call__(self, *_: Any, **__: Any) -> Any:
        left = self._given.get(_rank())
        return left.pop(0) if left else None


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else -1


def _argument(place: int) -> Solution:
    def returns_an_argument(*arguments: Any, **_: Any) -> Any:
        return arguments[place] if len(arguments) > place else None

    return returns_an_argument


class Nothing:
    """For an exercise that asks for a class: every method returns None."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> None:
        return None

    def __getattr__(self, _: str) -> Solution:
        return lambda *_, **__: None


class HandsOn(nn.Module):
    """For an exercise that asks for a class: it hands on to what it was given, and adds nothing."""

    def __init__(self, inner: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.inner(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            return super().__getattr__(name)
        return getattr(self.inner, name, lambda *_, **__: None)


def _nothings(exercise: Exercise) -> Iterator[tuple[str, Any]]:
    solution = solved(exercise.unit)[exercise.name]
    yield "returns None", lambda *_, **__: None
    yield "returns its arguments", lambda *arguments, **_: arguments
    # One that is not there is None, which has had its turn.
    for place in range(len(inspect.signature(solution).parameters)):
        yield f"returns argument {place + 1}", _argument(place)
    if isinstance(solution, type):
        yield "does nothing", Nothing
        yield "hands on", HandsOn
    elif exercise.name not in DEAR:
        yield "returns zeros", Zeros(solution, exercise)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_answer_that_does_nothing_earns_nothing(exercise: Exercise) -> None:
    # Invariant: no point for `pass`, for the arguments, for zeros of the right shape; and one row says why.
    for what, answer in _nothings(exercise):
        if what not in DEAR.get(exercise.name, (what,)):
            continue
        result = grade(exercise, kernel_answer(answer, exercise.name), Rng(SEED))
        assert not result.mistake, result.mistake
        assert result.points == 0, f"{what}:\n{_told(result)}"
        assert any(each.verdict is not Verdict.NOT_JUDGED for each in result.criteria), what


def _told(result: ExerciseResult) -> str:
    return "\n".join(f"{each.criterion.name}: {each.verdict} | {each.seen}" for each in result.criteria)


# --- how a rubric says what counts


def _judged(rubric: tuple[Criterion, ...], *passed: bool) -> list[str]:
    def judge(_answer: Any, _rng: Rng) -> Findings:
        for criterion, well in zip(rubric, passed, strict=False):
            yield criterion.name, Finding(well, "")

    made = Exercise("unit", "name", rubric, judge, 1, 1)
    return [each.verdict.value for each in grade(made, kernel_answer(None, "name")).criteria]


def _rubric(**needs: tuple[str, ...] | None) -> tuple[Criterion, ...]:
    return tuple(Criterion(name, 1, "", each) for name, each in needs.items())


P, F, N = "passed", "failed", "not judged"


@pytest.mark.parametrize(
    ("rubric", "passed", "verdicts"),
    [
        # By default all need the first, and when that fails nothing else is tried.
        (_rubric(a=None, b=None, c=None), (True, False, True), [P, F, P]),
        (_rubric(a=None, b=None, c=None), (False,), [F, N, N]),
        # A result of its own counts by itself; what needs both does not.
        (_rubric(a=None, b=(), c=("a", "b")), (False, True), [F, P, N]),
        # What needs something that was not judged is not judged either.
        (_rubric(a=None, b=None, c=("b",), d=None), (True, False, True, True), [P, F, N, P]),
        # A row may need a later one: a pass does not count without it, and a failure is told there.
        (_rubric(a=("b",), b=None, c=None), (True, False), [N, F, N]),
        (_rubric(a=("b",), b=None, c=None), (False, False), [F, N, N]),
        (_rubric(a=("b",), b=None, c=None), (True, True, True), [P, P, P]),
    ],
)
def test_what_counts(rubric: tuple[Criterion, ...], passed: tuple[bool, ...], verdicts: list[str]) -> None:
    assert _judged(rubric, *passed) == verdicts


@pytest.mark.parametrize("needs", [{"a": None, "b": ("z",)}, {"a": ("b",), "b": ("a",)}])
def test_needs_that_cannot_be_met_are_refused(needs: dict[str, tuple[str, ...] | None]) -> None:
    # Invariant: the mistake is told when the graders are loaded, not when somebody is graded.
    with pytest.raises(ValueError, match=r"no criterion named z|cycle"):
        exercise(rubric=_rubric(**needs), minutes=1, difficulty=1, unit="unit")(
            lambda _answer, _rng: iter(())
        )
