"""`course report UNIT`: one page for a tutor, with answers, verdicts, predictions and timelines."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from graders.grading.compare import counted
from graders.grading.page import page_templates
from graders.grading.report import Report
from graders.grading.run import ExerciseResult
from graders.grading.words import earned
from graders.student.predictions import predictions_of
from graders.student.progress_log import Record
from graders.student.progress_table import progress_table
from graders.submissions.cells import Cell, definition_source

_TEMPLATES = page_templates(Path(__file__).parent / "templates")

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as the page shows it; verdicts as HTML."""

    name: str
    source: str
    history: str
    verdicts: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that holds its own data, and what it shows in words."""

    source: str
    alt: str


def unit_page(report: Report, file: Path, cells: Iterable[Any], records: Sequence[Record]) -> str:
    """The page of a graded file, as HTML that needs nothing else and runs nothing.

    cells: the file's, as `graders.submissions.read.read_cells` has them. records: the student's progress.
    """
    kept = [cell for cell in cells if cell.cell_type == "code"]
    return _TEMPLATES.get_template("unit_report.html.j2").render(
        title=f"{report.unit}: {earned(report.points, report.max_points)}",
        file=file.name,
        day=date.today().isoformat(),
        report=report,
        answers=[_answer(report.unit, result, kept, records) for result in report.exercises],
        predictions=predictions_of(report.unit, records),
        timelines=list(_timelines(kept)),
    )


def _answer(unit: str, result: ExerciseResult, cells: Sequence[Any], records: Sequence[Record]) -> Answer:
    name = result.exercise.name
    sources = [cell.source for cell in cells if Cell("", cell.source).defines(name)]
    if len(cells) == 1:  # a file without cells
        sources = [definition_source(source, name) for source in sources]
    (standing,) = (each for each in progress_table(records).standings if each.exercise == result.exercise)
    history = (
        f"{counted(standing.attempts, 'check')}, {standing.hints} of {len(result.exercise.hints)} hints."
    )
    return Answer(name, sources[-1] if sources else "", history, Report(unit, (result,)).html())


def _timelines(cells: Iterable[Any]) -> Iterator[Picture]:
    """The pictures that cells which draw a timeline have left in the notebook."""
    for cell in cells:
        if ".timeline(" in cell.source:
            for output in cell.get("outputs", ()):
                found = _Pictures()
                found.feed("".join(output.get("data", {}).get("text/html", "")))
                yield from found.pictures


class _Pictures(HTMLParser):
    """Takes pictures that hold their data out of HTML, and nothing else: a notebook may hold scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[Picture] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        given = dict(attrs)
        source = given.get("src") or ""
        if tag == "img" and _PICTURE.fullmatch(source):
            self.pictures.append(Picture(source, given.get("alt") or ""))
