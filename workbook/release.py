"""A unit's notebooks: the source that nbgrader works from, and the student's, which nbgrader makes of it."""

import logging
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.nbgraderformat import SCHEMA_VERSION
from traitlets.config import Config

from workbook.paths import Places
from workbook.unit import AnswerCell, BadUnit, Unit

STUB = "raise NotImplementedError()"
"""What nbgrader puts in the place of an answer."""

KEPT_METADATA = ("tags", "demo", "jupyter")
"""What papermill, the graders and JupyterLab (`source_hidden`) read; jupytext adds notes of its own."""

WORDS_A_MINUTE = 200
"""How fast the text is read."""

MINUTES_A_CELL = 0.5
"""What a cell of code that is not folded takes, with what it shows: a figure, or some lines of output."""

KERNEL = {
    # No Python version: the notebook is the same wherever it was made.
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Effort(Protocol):
    """What the build wants to know of an exercise's grader."""

    @property
    def points(self) -> float: ...
    @property
    def minutes(self) -> int: ...
    @property
    def difficulty(self) -> int: ...
    @property
    def hints(self) -> tuple[str, ...]: ...


class WorkInTheWay(RuntimeError):
    """A notebook that would be written over has been worked in."""


def write_source(unit: Unit, efforts: Mapping[str, Effort], places: Places) -> Path:
    """Write the notebook that nbgrader works from, and return where it is.

    efforts: the unit's exercises by name, as their graders describe them. Raises BadUnit where they differ
    from the unit's answer cells.
    """
    check_efforts(unit, efforts)
    path = places.of_unit(places.source, unit.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_if_new(path, nbformat.writes(source_notebook(unit, efforts)) + "\n")
    return path


def check_efforts(unit: Unit, efforts: Mapping[str, Effort]) -> None:
    """Raise BadUnit unless graders and answer cells are about the same exercises, worth the same points."""
    answers = {answer.name: answer for answer in unit.answers}
    complaints = [f"{unit.name}: exercise {name} has no grader." for name in answers.keys() - efforts.keys()]
    complaints += [
        f"{unit.name}: there is a grader for {name}, but no answer cell for it."
        for name in efforts.keys() - answers.keys()
    ]
    complaints += [
        f"{unit.name}: exercise {name} is worth {answers[name].points:g} points in the unit, "
        f"but its grader's criteria add up to {efforts[name].points:g}."
        for name in answers.keys() & efforts.keys()
        if answers[name].points != efforts[name].points
    ]
    if complaints:
        raise BadUnit(sorted(complaints))


def source_notebook(unit: Unit, efforts: Mapping[str, Effort]) -> NotebookNode:
    """The unit with nbgrader's metadata, its check cells and the effort that each exercise takes."""
    answers = {answer.name: answer for answer in unit.answers}
    cells: list[NotebookNode] = []
    for cell in unit.notebook.cells:
        answer = answers.get(cell.metadata.get("exercise"))
        if answer is None:
            cells.append(_plain_cell(cell, number=len(cells)))
        else:
            effort = efforts[answer.name]
            cells += [_effort_cell(answer, effort), _answer_cell(cell, answer), _check_cell(answer)]
    cells[0].source = _with_summary(cells[0].source, unit, efforts.values())
    cells.append(_links_cell(unit))
    notebook: NotebookNode = new_notebook(cells=cells, metadata=NotebookNode(KERNEL))
    return notebook


def release(unit: str, places: Places) -> Path:
    """Let nbgrader make the student's notebook of a unit whose source is written; return where it is.

    The gradebook is left out of it: the result depends on the source alone.
    """
    config = Config()
    config.CourseDirectory.root = str(places.root.resolve())
    config.CourseDirectory.source_directory = str(places.source.relative_to(places.root))
    config.CourseDirectory.release_directory = str(places.release.relative_to(places.root))
    config.CourseDirectory.assignment_id = unit
    config.SaveCells.enabled = False
    converter = GenerateAssignment(
        coursedir=CourseDirectory(config=config), config=config, no_database=True, force=True
    )
    converter.log = _quiet_log()
    try:
        converter.start()
    except NbGraderException as error:
        raise BadUnit([f"{unit}: nbgrader could not make the student's notebook: {error}"]) from error
    return places.of_unit(places.release, unit)


def publish(unit: str, places: Places) -> Path:
    """Copy the released notebook to where students open it. Raises WorkInTheWay if somebody works there."""
    released = places.of_unit(places.release, unit).read_text()
    path = places.of_unit(places.notebooks, unit)
    if path.exists() and path.read_text() != released and has_work(nbformat.read(path, as_version=4)):
        raise WorkInTheWay(
            f"{path} has been worked in, and the new {unit} would replace it. "
            f"Move it away, or give --force to lose it."
        )
    return publish_over(unit, places)


def publish_over(unit: str, places: Places) -> Path:
    """Copy the released notebook to where students open it, whatever stands there."""
    path = places.of_unit(places.notebooks, unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_if_new(path, places.of_unit(places.release, unit).read_text())
    return path


def has_work(notebook: NotebookNode) -> bool:
    """Whether a student's notebook has been run or has an answer in it."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    run = any(cell.execution_count or cell.outputs for cell in code)
    return run or any("exercise" in cell.metadata and STUB not in cell.source for cell in code)


def spoken_minutes(minutes: int) -> str:
    """A time for people: `45 minutes`, `2 h 15 min`."""
    if minutes < 100:
        return f"{minutes} minutes"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def spoken_range(minutes: int) -> str:
    """The time that exercises take, roughly: `5 to 15 minutes`, `1½ to 4½ h`.

    minutes: what is planned with. Readers who knew PyTorch well took a third of it.
    """
    if minutes >= 120:
        return f"{_half_hours(minutes / 3)} to {_half_hours(minutes)} h"
    last = minutes if minutes < 30 else 5 * math.ceil(minutes / 5)
    least = 5 * round(minutes / 15) if minutes >= 15 else max(1, round(minutes / 3))
    return f"{least} to {last} minutes"


def _half_hours(minutes: float) -> str:
    whole, half = divmod(int(minutes / 30 + 0.5), 2)
    return f"{whole or ''}{'½' * half}"


def reading_minutes(unit: Unit) -> int:
    """How long the unit takes to read, in steps of five minutes; its exercises are left out."""
    words, cells = 0, 0
    for cell in unit.notebook.cells:
        if cell.cell_type == "markdown":
            words += len(re.findall(r"\w+", cell.source))
        elif "exercise" not in cell.metadata and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            cells += 1
    return 5 * math.ceil((words / WORDS_A_MINUTE + cells * MINUTES_A_CELL) / 5)


def _with_summary(source: str, unit: Unit, efforts: Iterable[Effort]) -> str:
    """The title cell with a line below the title: what the whole unit takes."""
    title, _, rest = source.partition("\n")
    minutes = spoken_range(sum(effort.minutes for effort in efforts))
    count = len(unit.answers)
    exercises = f"{count} exercise{'s' if count != 1 else ''}"
    reading = spoken_minutes(reading_minutes(unit))
    summary = (
        f"*about {reading} to read · {exercises} · {_points(unit.points)} · {minutes} for the exercises*"
    )
    return f"{title}\n\n{summary}\n{rest}" if unit.answers else source


def _plain_cell(cell: NotebookNode, number: int) -> NotebookNode:
    """A cell that is the same for everybody. Its id is its position: jupytext would draw one at random."""
    kept = {key: cell.metadata[key] for key in KEPT_METADATA if key in cell.metadata}
    return NotebookNode({**cell, "id": f"cell-{number:03}", "metadata": NotebookNode(kept)})


def _effort_cell(answer: AnswerCell, effort: Effort) -> NotebookNode:
    text = (
        f"### Exercise: {answer.name}\n\n"
        f"*{spoken_range(effort.minutes)} · difficulty {effort.difficulty} of 5 · "
        f"{_points(answer.points)}*"
    )
    cell: NotebookNode = new_markdown_cell(text, id=f"effort-{answer.name}")
    return cell


def _links_cell(unit: Unit) -> NotebookNode:
    """Where to go from the end of the unit."""
    links = [("Next", unit.after), ("Before", unit.before)]
    told = [f"{word}: [{name}](../{name}/{name}.ipynb)" for word, name in links if name]
    cell: NotebookNode = new_markdown_cell(
        " · ".join([*told, "[All units](../index.ipynb)"]), id="links-to-units"
    )
    return cell


def _answer_cell(cell: NotebookNode, answer: AnswerCell) -> NotebookNode:
    return NotebookNode(
        {
            **cell,
            "id": f"answer-{answer.name}",
            "metadata": NotebookNode(
                exercise=answer.name,
                nbgrader=_nbgrader(answer.name, solution=True, grade=False, locked=False),
            ),
        }
    )


def _check_cell(answer: AnswerCell) -> NotebookNode:
    metadata = _nbgrader(
        f"check_{answer.name}", solution=False, grade=True, locked=True, points=answer.points
    )
    cell: NotebookNode = new_code_cell(
        f"check({answer.name})", id=f"check-{answer.name}", metadata=NotebookNode(nbgrader=metadata)
    )
    return cell


def _nbgrader(grade_id: str, **metadata: Any) -> NotebookNode:
    """nbgrader's metadata of a cell, see `nbgrader.nbgraderformat`."""
    return NotebookNode(grade_id=grade_id, schema_version=SCHEMA_VERSION, task=False, **metadata)


def _points(points: float) -> str:
    return f"{points:g} point{'s' if points != 1 else ''}"


def _write_if_new(path: Path, text: str) -> None:
    """Leave a file that is right already alone, and with it its time of change."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _quiet_log() -> logging.Logger:
    """nbgrader's log without its progress; errors still reach the terminal."""
    log = logging.getLogger("workbook.nbgrader")
    log.setLevel(logging.ERROR)
    return log
