"""The command `course`."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from course_lib.workbook.notebook import Effort, WorkInTheWay, publish, publish_over, write_source
from course_lib.workbook.places import Places
from course_lib.workbook.unit import BadUnit, Unit, read_units
from course_lib.workbook.workbook import Outcome, build, run, step_count

app = typer.Typer(
    help="Build, run and grade the workbook.", no_args_is_help=True, pretty_exceptions_enable=False
)

Root = Annotated[Path, typer.Option(help="The folder that holds solutions/ and notebooks/.")]
HERE = Path()


@app.command()
def workbook(
    root: Root = HERE,
    jobs: Annotated[int, typer.Option(min=1, help="How many units run at the same time.")] = 2,
) -> None:
    """Build every unit, execute its solutions, grade them, and write the pages."""
    from course_lib.workbook.progress import reporter

    places = Places(root)
    units = _built(places)
    report, shown = reporter(Console(stderr=True), step_count(units))
    with shown:
        outcomes = run(units, places, jobs, report)
    Console().print(_table(outcomes))
    _stop_if_any(failure for outcome in outcomes for failure in outcome.failures)
    print(f"The pages: {places.pages / 'index.html'}")


@app.command()
def notebooks(
    root: Root = HERE,
    force: Annotated[bool, typer.Option(help="Replace notebooks that have been worked in.")] = False,
) -> None:
    """Make the students' notebooks anew from the solutions."""
    places = Places(root)
    copy = publish_over if force else publish
    complaints = []
    for unit in _built(places):
        try:
            print(copy(unit.name, places))
        except WorkInTheWay as error:
            complaints.append(str(error))
    _stop_if_any(complaints)


@app.command()
def release(
    unit: Annotated[str, typer.Argument(help="Its name: 02_data_parallel.")], root: Root = HERE
) -> None:
    """Make a unit known to nbgrader's gradebook, so that submissions can be graded."""
    places = Places(root)
    found = [candidate for candidate in _units(places) if candidate.name == unit]
    if not found:
        _stop([f"There is no unit {unit}. The units are {', '.join(u.name for u in _units(places))}."])
    write_source(found[0], _efforts(unit), places)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", unit, "--force"]
    raise typer.Exit(subprocess.run(command, cwd=root, check=False).returncode)


def _built(places: Places) -> list[Unit]:
    """Every unit, built; ends the program with the complaints where one breaks the rules."""
    units = _units(places)
    try:
        build(units, _efforts, places)
    except BadUnit as error:
        _stop(error.complaints)
    return units


def _units(places: Places) -> list[Unit]:
    try:
        return read_units(places.solutions)
    except BadUnit as error:
        _stop(error.complaints)


def _efforts(unit: str) -> Mapping[str, Effort]:
    """The unit's exercises as their graders describe them; empty where it has no graders."""
    from graders.exercise import REGISTRY

    name = f"graders.unit_{unit[:2]}"
    if importlib.util.find_spec(name):
        importlib.import_module(name)
    return REGISTRY.get(unit, {})


def _table(outcomes: Sequence[Outcome]) -> Table:
    """A row a unit: exercises solved, points, seconds."""
    table = Table("Unit", title="The workbook")
    for heading in ("Exercises", "Points", "Seconds"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        unit = outcome.unit
        exercises, points = f"{outcome.passed}/{len(unit.answers)}", f"{outcome.points:g}/{unit.points:g}"
        table.add_row(unit.name, exercises, points, f"{outcome.seconds:.1f}")
    return table


def _stop_if_any(complaints: Iterable[str]) -> None:
    if said := list(complaints):
        _stop(said)


def _stop(complaints: Iterable[str]) -> NoReturn:
    """End the program with the complaints on stderr and exit status 1."""
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
