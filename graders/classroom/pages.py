"""Pages that need no network: one a submission for the student, one of the class for the instructor."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType

from graders.classroom.entries import Entry, points_in_words
from graders.classroom.result_store import Graded, write_whole
from graders.classroom.standings import standings
from graders.grading.exercise import Verdict
from graders.grading.page import page_templates
from graders.grading.report_html import note_as_html
from graders.grading.words import LOOKS, earned
from graders.isolation.backends import UNSANDBOXED

SLOWEST = 5

_TEMPLATES = page_templates(Path(__file__).parent / "templates")

_COLOURS = {
    "solved": LOOKS[Verdict.PASSED].background,
    "partly": LOOKS[Verdict.BLOCKED].background,
    "failed": LOOKS[Verdict.FAILED].background,
    "untouched": LOOKS[Verdict.NOT_ATTEMPTED].background,
}


Entries = Mapping[str, Entry]
"""What the gradebook holds, by the students' names."""


def student_page(graded: Graded, entry: Entry | None = None) -> str:
    """Each criterion, what was seen and the hint, as in the student's own notebook."""
    report = graded.report
    return _TEMPLATES.get_template("student.html.j2").render(
        title=f"{report.unit}: {points_in_words(report, entry)}",
        graded=graded,
        entry=entry,
        earned=earned(report.points, report.max_points),
        notes=[note_as_html(note) for note in report.notes],
        tables=replace(report, notes=()).html(),
    )


def class_page(
    unit: str, class_: Sequence[Graded], entries: Entries = MappingProxyType({}), due: datetime | None = None
) -> str:
    """How the class did at each exercise, what was missed most, each student, who took longest."""
    points = [_points(graded, entries) for graded in class_]
    found = standings(class_)
    misses = [(each.exercise.name, miss) for each in found for miss in each.misses if miss.failed]
    return _TEMPLATES.get_template("class.html.j2").render(
        {
            "title": f"{unit}: {len(class_)} submission{'' if len(class_) == 1 else 's'}",
            "class": class_,
            "due": due,
            "entries": entries,
            "mean": fmean(points) if points else 0,
            "median": median(points) if points else 0,
            "unsandboxed": sum(not graded.sandboxed for graded in class_),
            "warning": UNSANDBOXED,
            "colours": _COLOURS,
            "standings": found,
            "blocked": sum(each.blocked for each in found),
            "misses": sorted(misses, key=lambda miss: miss[1].failed, reverse=True),
            "slowest": sorted(class_, key=lambda graded: graded.seconds, reverse=True)[:SLOWEST],
        }
    )


def class_csv(class_: Sequence[Graded], entries: Entries = MappingProxyType({})) -> str:
    """A row a submission: the gradebook's points, those of each exercise as graded, what was missed, why."""
    names = [result.exercise.name for result in class_[0].report.exercises] if class_ else []
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(
        [
            *("student", "points", "max_points", *names),
            *("failed", "not_judged", "blocked", "first_missed", "seconds", "sandbox", "reason"),
            *("penalty", "late_seconds", "by_hand"),
        ]
    )
    for graded in class_:
        criteria = [each for result in graded.report.exercises for each in result.criteria]
        verdicts = Counter(each.verdict for each in criteria)
        missed = next((each.criterion.name for each in criteria if each.verdict is Verdict.FAILED), "")
        row: list[object] = [graded.student, _points(graded, entries), graded.report.max_points]
        row += [result.points for result in graded.report.exercises]
        row += [verdicts[each] for each in (Verdict.FAILED, Verdict.NOT_JUDGED, Verdict.BLOCKED)]
        row += [missed, graded.seconds]
        row += [graded.sandbox, graded.reason]
        entry = entries.get(graded.student)
        row += [entry.penalty, entry.late.total_seconds(), entry.by_hand] if entry else ["", "", ""]
        table.writerow(map(_harmless, row))
    return text.getvalue()


def write_pages(
    folder: Path,
    unit: str,
    class_: Sequence[Graded],
    entries: Entries = MappingProxyType({}),
    due: datetime | None = None,
) -> Path:
    """Write every page of a unit; returns where the class page is. due: with its time zone."""
    for graded in class_:
        page = student_page(graded, entries.get(graded.student))
        _write_if_new(folder / "feedback" / f"{graded.student}.html", page)
    _write_if_new(folder / "class.csv", class_csv(class_, entries))
    path = folder / "class.html"
    _write_if_new(path, class_page(unit, class_, entries, due))
    return path


def _points(graded: Graded, entries: Entries) -> float:
    """The gradebook's; those of the answers where it has none."""
    entry = entries.get(graded.student)
    return entry.points if entry else graded.report.points


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_whole(path, text)


def _harmless(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value
