"""The whole workbook: build every unit, execute it, grade its solutions, write its page."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from workbook.execute import ExecutionFailed, execute
from workbook.pages import BadFormula, Page, write_page
from workbook.paths import Places
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
class UnitResult:
    """What became of a unit. `failures` are sentences; there are none if all went well.

    lacking: an exercise that needs what is not installed here -> the sentence that says what; `blocked` are
    the points that could not be judged for that.

    Its tasks run in several threads, of which each only adds to a list or sets what no other sets.
    """

    unit: Unit
    passed: int = 0
    points: float = 0.0
    blocked: float = 0.0
    page: Page | None = None
    task_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.task_seconds)


def build(units: Sequence[Unit], efforts: Efforts, places: Places) -> None:
    """Write every unit's source and let nbgrader make the student's notebook of it. Raises BadUnit."""
    for unit in units:
        write_source(unit, efforts(unit.name), places)
        release(unit.name, places)


@dataclass(frozen=True, slots=True)
class Task:
    """A part of the work on a unit that needs no other part; it may raise what `FAILURES` lists."""

    name: str
    result: UnitResult
    work: Callable[[], object]


FAILURES = (ExecutionFailed, GradingFailed, BadFormula)


def tasks_of(result: UnitResult, places: Places) -> Iterator[Task]:
    """Executing a unit in every way that it knows, and grading it. The first execution becomes the page."""
    name = result.unit.name
    for number, (way, parameters) in enumerate(parameters_of(result.unit).items()):
        work = _execute if number else _show
        yield Task(f"{name} {way}", result, partial(work, result, places, parameters))
    yield Task(f"{name} graded", result, partial(_grade, result, places))


def in_rounds(units: Iterable[Iterable[Task]]) -> list[Task]:
    """The first task of each unit, then the second of each, and so on.

    So those that run at the same time are of different units: one that waits, for Slurm say, leaves the cores
    to one that computes. Short ones, gradings, come at the end.
    """
    return [task for tasks in zip_longest(*units) for task in tasks if task is not None]


def run(tasks: Sequence[Task], jobs: int) -> None:
    """Do all tasks, `jobs` at a time; what fails is noted in the results.

    On stderr there is a line for each that has ended, and in a terminal a bar with those that are under way.
    """
    under_way: list[str] = []
    with ThreadPoolExecutor(jobs) as pool, tqdm(total=len(tasks), file=sys.stderr, disable=None) as bar:

        def do(task: Task) -> str:
            under_way.append(task.name)
            bar.set_postfix_str(", ".join(under_way))
            told = _done(task)
            under_way.remove(task.name)
            return told

        for number, ended in enumerate(as_completed([pool.submit(do, task) for task in tasks]), start=1):
            tqdm.write(f"[{number}/{len(tasks)}] {ended.result()}", file=sys.stderr)
            bar.update()


def _done(task: Task) -> str:
    """Do a task, and note it in its result if it fails; says what ended, and how long it took."""
    began = time.perf_counter()
    ended = task.name
    try:
        task.work()
    except FAILURES as error:
        task.result.failures.append(f"{task.name}: {error}")
        ended = f"{task.name} FAILED"
    seconds = time.perf_counter() - began
    task.result.task_seconds.append(seconds)
    return f"{ended} ({seconds:.1f} s)"


def _show(result: UnitResult, places: Places, parameters: Parameters) -> None:
    """Execute a unit and write its page."""
    unit = result.unit
    page = Page(unit.name, unit.title, len(unit.answers), unit.points)
    write_page(_execute(result, places, parameters), page, places.pages)
    result.page = page


def _execute(result: UnitResult, places: Places, parameters: Parameters) -> Path:
    """Execute a unit's solutions; returns the executed notebook, which has a folder for itself."""
    name = result.unit.name
    output = places.of_unit(places.solved / str(parameters.get("on", "once")), name)
    execute(places.of_unit(places.source, name), output, parameters)
    return output


def parameters_of(unit: Unit) -> dict[str, Parameters]:
    """How to execute the unit, in words -> the parameters that papermill gives it for that."""
    data: Parameters = {"dataset": DATASET} if "dataset" in unit.parameters else {}
    if "on" not in unit.parameters:
        return {"executed": data}
    return {f"executed on {words}": {**data, "on": engine} for engine, words in ENGINES.items()}


def _grade(result: UnitResult, places: Places) -> None:
    """Grade the solutions as `course check` grades a student's notebook, and note what they earn."""
    unit = result.unit
    grades = checked(places.of_unit(places.source, unit.name), unit.name)
    result.points = grades["points"]
    for exercise in grades["exercises"]:
        blocked = blocked_points(exercise)
        if exercise["points"] + blocked < exercise["max_points"]:
            result.failures.append(shortfall(unit.name, exercise))
        elif blocked:
            result.blocked += blocked
            result.lacking[exercise["name"]] = exercise["lacks"]
        else:
            result.passed += 1


def blocked_points(exercise: Mapping[str, Any]) -> float:
    """Points of an exercise that this machine could not judge, since it lacks a library or a program.

    A grader that stopped with an error of its own has blocked rows as well; those are not meant.
    """
    if not exercise.get("lacks"):
        return 0.0
    points: float = sum(each["max_points"] for each in exercise["criteria"] if each["verdict"] == "blocked")
    return points


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
    short = [c for c in exercise["criteria"] if c["points"] < c["max_points"]]
    lost = next((c for c in short if c["verdict"] != "blocked"), short[0])
    seen = lost["seen"].partition("\n")[0]
    return (
        f"{unit}: the solution of {exercise['name']} earns {exercise['points']:g} of "
        f"{exercise['max_points']:g} points; {lost['name']}: {lost['verdict']}. {seen}"
    )
