"""The notebook that students open first: the units with links to them, progress, and help."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nbformat import NotebookNode

from workbook.build import Efforts
from workbook.paths import Places
from workbook.release import KERNEL, reading_minutes, spoken_minutes, spoken_range
from workbook.unit import Unit

TEMPLATE = "index_notebook.py.j2"


def write_index_notebook(units: Sequence[Unit], efforts: Efforts, places: Places) -> Path:
    """Write `notebooks/index.ipynb`, whatever stands there: nobody's answers are in it."""
    places.index.parent.mkdir(parents=True, exist_ok=True)
    places.index.write_text(nbformat.writes(index_notebook(units, efforts)) + "\n")
    return places.index


def index_notebook(units: Sequence[Unit], efforts: Efforts) -> NotebookNode:
    """The index of these units. efforts: what a unit's exercises take, by the unit's name."""
    return templated_notebook(TEMPLATE, units=[_row(unit, efforts) for unit in units])


def templated_notebook(template: str, **values: Any) -> NotebookNode:
    """A notebook that is made of a template in jupytext's percent format."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), undefined=StrictUndefined
    )
    text = templates.get_template(template).render(**values)
    notebook: NotebookNode = jupytext.reads(text, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"index-{number}", NotebookNode()
    notebook.metadata = NotebookNode(KERNEL)
    return notebook


def _row(unit: Unit, efforts: Efforts) -> dict[str, str | int]:
    """A line of the table of units."""
    minutes = sum(effort.minutes for effort in efforts(unit.name).values())
    return {
        "name": unit.name,
        "title": unit.title,
        "exercises": len(unit.answers),
        "points": f"{unit.points:g}",
        "reading": _on_one_line(spoken_minutes(reading_minutes(unit))),
        "time": _on_one_line(spoken_range(minutes)),
    }


def _on_one_line(time: str) -> str:
    """A time in as few letters as will do, with spaces that keep it together: all units fit on a screen."""
    return time.replace("minutes", "min").replace(" ", "\N{NO-BREAK SPACE}")
