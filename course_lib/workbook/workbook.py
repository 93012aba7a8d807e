"""The whole workbook: build every unit, execute it, grade its solutions, write its page."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.workbook.execute import ExecutionFailed, execute
from course_lib.workbook.notebook import Effort, release, write_source
from course_lib.workbook.pages import BadFormula, Page, write_index, write_page
from course_lib.workbook.places import Places
from course_lib.workbook.progress import Reporter
from course_lib.workbook.unit import Unit

ENGINES = {"simulated": "simulated ranks", "processes": "local processes"}
"""Value of the parameter `on` -> what it means; every unit runs once with each, if it knows the parameter."""

DATASET = "digits"
"""The data set that needs no download."""

Efforts = Callable[[str], Mapping[str, Effort]]
"""Unit name -> its exercises by name, as their graders describe them."""


class GradingFailed(RuntimeError):
    """`course check` gave no grades."""


@dataclass(slots=True)
class Outcome:
    """What became of a unit. `failures` are sentences; there are none if all went well."""

    unit: Unit
    passed: int = 0
    points: float = 0.0
    seconds: float = 0.0
    page: Page | None = None
    failures: list[str] = field(default_factory=list)


def build(units: Sequence[Unit], efforts: Efforts, places: Places) -> None:
    """Write every unit's source and let nbgrader make the student's notebook of it. Raises BadUnit."""
    for unit in units:
        write_source(unit, efforts(unit.name), places)
        release(unit.name, places)


def step_count(units: Sequence[Unit]) -> int:
    """How many steps `run` reports."""
    return sum(len(parameters_of(unit)) + 2 for unit in units)


def run(units: Sequence[Unit], places: Places, jobs: int, report: Reporter) -> list[Outcome]:
    """Execute, grade and render units that are built, `jobs` at a time; write the index of their pages."""
    shutil.rmtree(places.pages, ignore_errors=True)
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(lambda unit: _run_unit(unit, places, report), units))
    write_index([outcome.page for outcome in outcomes if outcome.page], places.pages)
    return outcomes


def _run_unit(unit: Unit, places: Places, report: Reporter) -> Outcome:
    """All steps of one unit, in order. A step that fails is told and the steps that need it are left out."""
    outcome = Outcome(unit)
    began = time.perf_counter()
    solved: list[Path] = []
    for engine, parameters in parameters_of(unit).items():
        with _step(report, f"{unit.name} with {ENGINES[engine]}", outcome):
            output = _solved(places, unit, engine)
            execute(places.of_unit(places.source, unit.name), output, parameters)
            solved.append(output)
    with _step(report, f"{unit.name} graded", outcome):
        _grade(places.of_unit(places.source, unit.name), outcome)
    if solved:
        with _step(report, f"{unit.name} as a page", outcome):
            page = Page(unit.name, unit.title, len(unit.answers), unit.points)
            write_page(solved[0], page, places.pages)
            outcome.page = page
    outcome.seconds = time.perf_counter() - began
    return outcome


@contextmanager
def _step(report: Reporter, name: str, outcome: Outcome) -> Iterator[None]:
    """Report a step and how long it took; note it in the outcome if it fails."""
    report.begin(name)
    began = time.perf_counter()
    ended = name
    try:
        yield
    except (ExecutionFailed, GradingFailed, BadFormula) as error:
        outcome.failures.append(f"{name}: {error}")
        ended = f"{name} FAILED"
    finally:
        report.end(name, f"{ended} ({time.perf_counter() - began:.1f} s)")


def parameters_of(unit: Unit) -> dict[str, dict[str, str | int]]:
    """Engine -> the parameters that papermill gives the unit for it."""
    data: dict[str, str | int] = {"dataset": DATASET} if "dataset" in unit.parameters else {}
    if "on" not in unit.parameters:
        return {"simulated": data}
    return {engine: {**data, "on": engine} for engine in ENGINES}


def _solved(places: Places, unit: Unit, engine: str) -> Path:
    """Where an executed unit goes: the first engine's is the one that is shown, so it has the unit's name."""
    suffix = "" if engine == next(iter(ENGINES)) else f"-{engine}"
    return places.solved / unit.name / f"{unit.name}{suffix}.ipynb"


def _grade(notebook: Path, outcome: Outcome) -> None:
    """Grade the solutions as `course check` grades a student's notebook, and note what they earn."""
    unit = outcome.unit
    grades = checked(notebook, unit.name)
    outcome.points = grades["points"]
    for exercise in grades["exercises"]:
        if exercise["points"] == exercise["max_points"]:
            outcome.passed += 1
        else:
            outcome.failures.append(shortfall(unit.name, exercise))


def checked(notebook: Path, unit: str) -> dict[str, Any]:
    """What `course check NOTEBOOK --unit UNIT --json` says. Raises GradingFailed if it says nothing."""
    command = [sys.executable, "-m", "course_lib.cli", "check", str(notebook), "--unit", unit, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        grades: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        said = done.stderr.strip().splitlines() or [f"no grades, exit status {done.returncode}"]
        raise GradingFailed(said[-1]) from error
    return grades


def shortfall(unit: str, exercise: Mapping[str, Any]) -> str:
    """Why an exercise did not earn all its points, as a sentence."""
    lost = next(c for c in exercise["criteria"] if c["points"] < c["max_points"])
    seen = lost["seen"].partition("\n")[0]
    return (
        f"{unit}: the solution of {exercise['name']} earns {exercise['points']:g} of "
        f"{exercise['max_points']:g} points; {lost['name']}: {lost['verdict']}. {seen}"
    )
