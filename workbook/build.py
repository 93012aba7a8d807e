"""The whole workbook: build every unit, execute it, grade its solutions, write its page."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from workbook.execute import ExecutionFailed, execute
from workbook.pages import BadFormula, Page, write_page
from workbook.paths import Places
from workbook.progress import Reporter
from workbook.release import Effort, release, write_source
from workbook.unit import Unit

ENGINES = {"simulated": "simulated ranks", "processes": "local processes"}
"""Value of the parameter `on` -> what it means; every unit that knows the parameter runs once with each."""

DATASET = "digits"
"""The data set that needs no download."""

Parameters = Mapping[str, str | int]
"""What papermill gives a unit."""

Efforts = Callable[[str], Mapping[str, Effort]]
"""Unit name -> its exercises by name, as their graders describe them."""


class GradingFailed(RuntimeError):
    """`course check` gave no grades."""


@dataclass(slots=True)
class Outcome:
    """What became of a unit. `failures` are sentences; there are none if all went well.

    Its steps run in several threads, of which each only adds to a list or sets what no other sets.
    """

    unit: Unit
    passed: int = 0
    points: float = 0.0
    page: Page | None = None
    step_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


def build(units: Sequence[Unit], efforts: Efforts, places: Places) -> None:
    """Write every unit's source and let nbgrader make the student's notebook of it. Raises BadUnit."""
    for unit in units:
        write_source(unit, efforts(unit.name), places)
        release(unit.name, places)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the work on a unit that needs no other part; it may raise what `FAILURES` lists."""

    name: str
    outcome: Outcome
    work: Callable[[], object]


FAILURES = (ExecutionFailed, GradingFailed, BadFormula)


def steps_of(outcome: Outcome, places: Places) -> Iterator[Step]:
    """Executing a unit in every way that it knows, and grading it. The first execution becomes the page."""
    name = outcome.unit.name
    for number, (way, parameters) in enumerate(parameters_of(outcome.unit).items()):
        work = _execute if number else _show
        yield Step(f"{name} {way}", outcome, partial(work, outcome, places, parameters))
    yield Step(f"{name} graded", outcome, partial(_grade, outcome, places))


def run(steps: Sequence[Step], jobs: int, report: Reporter) -> None:
    """Take all steps, `jobs` at a time; what fails is noted in the outcomes."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda step: _take(step, report), steps))


def _take(step: Step, report: Reporter) -> None:
    """Take a step, report it and how long it took, and note it in its outcome if it fails."""
    report.begin(step.name)
    began = time.perf_counter()
    ended = step.name
    try:
        step.work()
    except FAILURES as error:
        step.outcome.failures.append(f"{step.name}: {error}")
        ended = f"{step.name} FAILED"
    seconds = time.perf_counter() - began
    step.outcome.step_seconds.append(seconds)
    report.end(step.name, f"{ended} ({seconds:.1f} s)")


def _show(outcome: Outcome, places: Places, parameters: Parameters) -> None:
    """Execute a unit and write its page."""
    unit = outcome.unit
    page = Page(unit.name, unit.title, len(unit.answers), unit.points)
    write_page(_execute(outcome, places, parameters), page, places.pages)
    outcome.page = page


def _execute(outcome: Outcome, places: Places, parameters: Parameters) -> Path:
    """Execute a unit's solutions; returns the executed notebook, which has a folder for itself."""
    name = outcome.unit.name
    output = places.of_unit(places.solved / str(parameters.get("on", "once")), name)
    execute(places.of_unit(places.source, name), output, parameters)
    return output


def parameters_of(unit: Unit) -> dict[str, Parameters]:
    """How to execute the unit, in words -> the parameters that papermill gives it for that."""
    data: Parameters = {"dataset": DATASET} if "dataset" in unit.parameters else {}
    if "on" not in unit.parameters:
        return {"executed": data}
    return {f"executed on {words}": {**data, "on": engine} for engine, words in ENGINES.items()}


def _grade(outcome: Outcome, places: Places) -> None:
    """Grade the solutions as `course check` grades a student's notebook, and note what they earn."""
    unit = outcome.unit
    grades = checked(places.of_unit(places.source, unit.name), unit.name)
    outcome.points = grades["points"]
    for exercise in grades["exercises"]:
        if exercise["points"] == exercise["max_points"]:
            outcome.passed += 1
        else:
            outcome.failures.append(shortfall(unit.name, exercise))


def checked(notebook: Path, unit: str) -> dict[str, Any]:
    """What `course check NOTEBOOK --unit UNIT --json` says. Raises GradingFailed if it says nothing."""
    command = [sys.executable, "-m", "workbook.cli", "check", str(notebook), "--unit", unit, "--json"]
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
