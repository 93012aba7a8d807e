"""Every grader is proved: by the stub, the solution, mistakes that people make, and right answers."""

import ast
import copy
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import jupytext
import pytest
from nbgrader.preprocessors import ClearSolutions

from course_lib.beside import missing
from graders import commands
from graders.grading.exercise import Exercise, Verdict
from graders.grading.registry import load_all
from graders.grading.rng import Rng
from graders.grading.run import ExerciseResult, grade
from graders.guest.run_cells import run_cells
from graders.student.kernel_answer import kernel_answer
from graders.submissions.cells import Cell
from tests.answers import SECOND_WAYS, Proof, right_answers, second_ways, solved, wrong_answers

SOLUTIONS = Path(__file__).parents[1] / "solutions"
SEEDS = (1, 2, 3)
"""Nothing may fail a right answer: solutions have the first, and each right answer of tests/ has another."""
COUNTS = {Verdict.PASSED, Verdict.NOT_JUDGED}
"""Of a row before the one that fails: not judged, if it needs that one."""
NEEDS_HOROVOD = pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "it is there")
ONE_WORKERS = {
    "batch_script": [pytest.mark.xdist_group("batch scripts")],
    "six_steps": [pytest.mark.xdist_group("horovodrun"), pytest.mark.timeout(300), NEEDS_HOROVOD],
    "plan": [pytest.mark.xdist_group("plan")],
}
"""Exercises whose graders start something large, or for all that a process grades, and one whose
answers share what they have counted (`tests.planning`): one worker does.
"""

EXERCISES = [exercise for unit in load_all().values() for exercise in unit.values()]
UNITS = sorted({exercise.unit for exercise in EXERCISES})


def _proofs(find: Any) -> list[Any]:
    return [
        pytest.param(
            unit, proof, id=f"{proof.exercise}-{proof.name}", marks=ONE_WORKERS.get(proof.exercise, ())
        )
        for unit in UNITS
        for proof in find(unit)
    ]


def _result(exercise: Exercise, answer: Any, seed: int) -> ExerciseResult:
    result = grade(exercise, kernel_answer(answer, exercise.name), Rng(seed))
    assert not result.mistake, f"the grader of {exercise.name} itself stopped:\n{result.mistake}"
    return result


def _says_what_held(result: ExerciseResult) -> None:
    """A row that passed tells of itself alone, and not in the words of a failure."""
    told = [each.seen for each in result.criteria]
    assert len(set(told)) == len(told), _seen(result)
    assert not any("expected" in each for each in told), _seen(result)


def _seed(proof: Proof) -> int:
    return SEEDS[crc32(proof.name.encode()) % len(SEEDS)]


def _as_far_as(exercise: Exercise, criterion: str) -> Exercise:
    """The same with the rows up to this one only: those after it take nothing from a row that has failed."""
    rows = [each.name for each in exercise.rubric].index(criterion) + 1
    return replace(
        exercise, rubric=exercise.rubric[:rows], grade=lambda *given: islice(exercise.grade(*given), rows)
    )


def _seen(result: ExerciseResult) -> str:
    return "\n".join(f"{each.criterion.name}: {each.verdict} | {each.seen}" for each in result.criteria)


@cache
def _cells(unit: str) -> list[Any]:
    """The cells of a unit's source; not to be changed."""
    return list(jupytext.read(SOLUTIONS / f"{unit}.py", fmt="py:percent").cells)


@cache
def _stubs(unit: str) -> dict[str, Any]:
    """The namespace with every solution replaced by nbgrader's stub."""
    namespace = dict(solved(unit))
    for cell in copy.deepcopy(_cells(unit)):
        if "exercise" in cell.metadata:
            ClearSolutions()._replace_solution_region(cell, "python")
            assert not run_cells([Cell(f"<stub of {cell.metadata['exercise']}>", cell.source)], namespace)
    return namespace


EACH_EXERCISE = pytest.mark.parametrize(
    "exercise",
    [
        pytest.param(exercise, id=exercise.name, marks=ONE_WORKERS.get(exercise.name, ()))
        for exercise in EXERCISES
    ],
)


@EACH_EXERCISE
def test_stub_is_not_attempted(exercise: Exercise) -> None:
    # The untouched stub earns nothing, and is told apart from a wrong answer.
    result = _result(exercise, _stubs(exercise.unit)[exercise.name], seed=0)
    assert result.points == 0
    assert not result.attempted, _seen(result)


@EACH_EXERCISE
def test_solution_earns_all_points(exercise: Exercise) -> None:
    # The solution passes every criterion; in the sandbox it does so with other inputs.
    result = _result(exercise, solved(exercise.unit)[exercise.name], SEEDS[0])
    assert result.passed, _seen(result)
    _says_what_held(result)


@EACH_EXERCISE
def test_enough_proofs(exercise: Exercise) -> None:
    # Five mistakes and two ways to be right, at the least, and each mistake has a name and a criterion.
    wrong = [proof for proof in wrong_answers(exercise.unit) if proof.exercise == exercise.name]
    right = [proof for proof in right_answers(exercise.unit) if proof.exercise == exercise.name]
    assert len(wrong) >= 5
    assert len(right) >= 2
    assert all(proof.answer.__doc__ for proof in wrong), "a wrong answer's docstring says what the mistake is"
    assert Counter(proof.name for proof in wrong + right).most_common(1)[0][1] == 1, (
        "two proofs have one name"
    )
    assert {proof.fails for proof in wrong} <= {criterion.name for criterion in exercise.rubric}


@pytest.mark.parametrize("unit", UNITS)
def test_second_ways_can_be_read_alone(unit: str) -> None:
    # Invariant: what students may read after an exercise is one function that says how it differs.
    path = SECOND_WAYS / f"{unit}.py"
    defined = {proof.name: proof.answer.__doc__ for proof in second_ways(unit)}
    written = ast.parse(path.read_text()).body if path.exists() else []
    others = [each for each in written[1:] if not isinstance(each, ast.Import | ast.ImportFrom)]
    assert [getattr(each, "name", "?") for each in others] == [name for name in defined if defined[name]]


@pytest.mark.parametrize("unit", UNITS)
def test_exercises_are_in_the_order_of_the_unit(unit: str) -> None:
    # Invariant: progress, summaries and class pages list exercises as the unit does.
    found = [cell.metadata["exercise"] for cell in _cells(unit) if "exercise" in cell.metadata]
    assert list(load_all()[unit]) == found


@EACH_EXERCISE
def test_points_and_effort_are_told(exercise: Exercise) -> None:
    # The answer cell says what the grader gives, and a student is told of the effort.
    cells = [cell for cell in _cells(exercise.unit) if "exercise" in cell.metadata]
    points = {cell.metadata["exercise"]: cell.metadata["points"] for cell in cells}
    assert points[exercise.name] == exercise.points
    assert exercise.minutes > 0
    assert 1 <= exercise.difficulty <= 5
    assert all(criterion.hint for criterion in exercise.rubric)


@EACH_EXERCISE
def test_the_first_hint_begins_with_a_question(exercise: Exercise) -> None:
    # Who asks for help is first led to look for the mistake, and only then told of a way.
    opening, mark, _ = exercise.hints[0].partition("?")
    assert mark == "?", exercise.hints[0]
    assert not re.search(r"[.:;] ", opening), exercise.hints[0]


@pytest.mark.parametrize(("unit", "proof"), _proofs(wrong_answers))
def test_wrong_answer_fails_its_criterion(unit: str, proof: Proof) -> None:
    # A mistake fails the criterion that names it, and none of those before it. What comes after it is not
    # looked at; of every fourth answer it is judged too, and has to leave the grader on its feet.
    seed, exercise = _seed(proof), load_all()[unit][proof.exercise]
    whole = crc32(proof.name.encode()) % 4 == 0
    result = _result(exercise if whole else _as_far_as(exercise, str(proof.fails)), proof.answer, seed)
    verdicts = {each.criterion.name: each.verdict for each in result.criteria}
    before = list(verdicts)[: list(verdicts).index(str(proof.fails))]
    assert verdicts[str(proof.fails)] is Verdict.FAILED, f"with seed {seed}:\n{_seen(result)}"
    assert {verdicts[name] for name in before} <= COUNTS, f"with seed {seed}:\n{_seen(result)}"


@pytest.mark.parametrize(("unit", "proof"), _proofs(right_answers))
def test_right_answer_earns_all_points(unit: str, proof: Proof) -> None:
    # There is more than one way to be right, whatever inputs are drawn.
    ways = [each for each in right_answers(unit) if each.exercise == proof.exercise]
    seed = SEEDS[1:][ways.index(proof) % 2]
    result = _result(load_all()[unit][proof.exercise], proof.answer, seed)
    assert result.passed, f"with seed {seed}:\n{_seen(result)}"
    _says_what_held(result)


@pytest.mark.parametrize("unit", ["00_hello_ranks", pytest.param("04_horovod", marks=NEEDS_HOROVOD)])
def test_solutions_earn_all_points_in_the_sandbox(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    # `course check` on the solutions gives all points, and says so with its exit status. `make workbook` does
    # so for every unit.
    status = commands.check(SOLUTIONS / f"{unit}.py", unit, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["points"] == report["max_points"], json.dumps(report, indent=1)
    assert status == commands.ALL_POINTS
