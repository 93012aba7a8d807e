"""What the command `course` does with the workbook, as plain functions."""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from workbook.build import Efforts, UnitResult, build, in_rounds, run, tasks_of
from workbook.errors import CommandFailed
from workbook.index import write_index_notebook
from workbook.pages import write_index
from workbook.paths import Places
from workbook.release import WorkInTheWay, publish, publish_over, write_source
from workbook.unit import Unit, read_units


def make_workbook(places: Places, efforts: Efforts, jobs: int, only: Collection[str] = ()) -> None:
    """Build, execute, grade and render every unit, and print a table. Raises CommandFailed.

    only: names of units, where not all are meant; then the pages of the others stay as they are.
    """
    units = read_units(places.solutions)
    if unknown := [name for name in only if name not in {unit.name for unit in units}]:
        known = ", ".join(unit.name for unit in units)
        raise CommandFailed([f"There is no unit {', '.join(unknown)}. There are: {known}."])
    units = [unit for unit in units if not only or unit.name in only]
    build(units, efforts, places)
    results = [UnitResult(unit) for unit in units]
    if not only:
        shutil.rmtree(places.pages, ignore_errors=True)
    run(in_rounds([tasks_of(result, places) for result in results]), jobs)
    if not only:
        write_index([result.page for result in results if result.page], places.pages)
    Console().print(_table(results))
    for sentence in _lacking(results):
        print(sentence)
    failures = [failure for result in results for failure in result.failures]
    if failures:
        raise CommandFailed(failures)
    print(f"The pages: {places.pages / 'index.html'}")


KeepReleased = Callable[[Path], object]
"""Is given each released notebook, to keep its answer cells for those who want to begin one anew."""


def make_notebooks(
    places: Places, efforts: Efforts, keep_released: KeepReleased, force: bool = False
) -> None:
    """Make the students' notebooks anew, but, without force, none that has been worked in.

    Raises CommandFailed, where some have, when all others are made.
    """
    in_the_way = []
    units = _built(places, efforts)
    for unit in units:
        keep_released(places.of_unit(places.release, unit.name))
        try:
            print((publish_over if force else publish)(unit.name, places))
        except WorkInTheWay as error:
            in_the_way.append(str(error))
    print(write_index_notebook(units, efforts, places))
    if in_the_way:
        raise CommandFailed(in_the_way)


def release_unit(name: str, places: Places, efforts: Efforts) -> None:
    """Tell nbgrader's gradebook of a unit, as `nbgrader generate_assignment` does. Raises CommandFailed."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.utils import capture_log

    from graders.classroom.due_dates import let_be_due
    from graders.classroom.gradebook import Course
    from graders.classroom.preprocessors import WrongCourse
    from graders.classroom.private import keep_private
    from graders.grading.track import hand_in_of

    units = {unit.name: unit for unit in read_units(places.solutions)}
    if name not in units:
        raise CommandFailed([f"There is no unit {name}. The units are {', '.join(units)}."])
    try:
        course = Course(places.root)
    except WrongCourse as error:
        raise CommandFailed([str(error)]) from error
    keep_private(course)
    write_source(units[name], efforts(name), places)
    course.directory.assignment_id = name
    done = capture_log(GenerateAssignment(coursedir=course.directory, config=course.config, force=True))
    if not done["success"]:
        raise CommandFailed(
            [f"nbgrader could not release {name}. It says:", done.get("log") or done["error"]]
        )
    hand_in = hand_in_of(name, places.root)
    if hand_in is not None and let_be_due(course.directory, name, hand_in):
        print(f"{name} is due on {hand_in.astimezone():%d %B %Y, %H:%M}, as the track says.")


def _built(places: Places, efforts: Efforts) -> list[Unit]:
    """Every unit, read and built."""
    units = read_units(places.solutions)
    build(units, efforts, places)
    return units


def _table(results: Sequence[UnitResult]) -> Table:
    """A row a unit: exercises solved, points, seconds."""
    table = Table("Unit", title="The workbook")
    blocked = any(result.blocked for result in results)
    for heading in ("Exercises", "Points", *(["Not judged here"] if blocked else []), "Seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        unit = result.unit
        row = [unit.name, f"{result.passed}/{len(unit.answers)}", f"{result.points:g}/{unit.points:g}"]
        row += [f"{result.blocked:g}" if result.blocked else ""] if blocked else []
        table.add_row(*row, f"{result.seconds:.1f}")
    return table


def _lacking(results: Sequence[UnitResult]) -> Iterator[str]:
    """What is not installed here and would be needed, each once, with the exercises that need it."""
    exercises: dict[str, list[str]] = {}
    for result in results:
        for name, sentence in result.lacking.items():
            exercises.setdefault(sentence, []).append(name)
    for sentence, names in exercises.items():
        yield f"Not judged here, which is no failure: {', '.join(names)}. {sentence}"
