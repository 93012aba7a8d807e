"""The trainer's folder of a track: what grades it, and what is needed on the day."""

import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

from course_lib.slurm.scripts import Job, Refused, render
from course_lib.slurm.sites import Site
from graders.grading.page import page_templates
from graders.student.sealed import FILE, sealed
from workbook.build import Efforts, UnitResult, build, run, tasks_of
from workbook.errors import CommandFailed
from workbook.pages import write_index
from workbook.paths import Places
from workbook.tracks.cut import reference
from workbook.tracks.folder import Calendar, cut_units, efforts_of, write_choice
from workbook.tracks.mistakes import mistakes_of
from workbook.tracks.slides import TEMPLATES, question_of, write_slides
from workbook.tracks.track import Session, Track
from workbook.unit import Unit

JOBS = 2
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeio"]


@dataclass(frozen=True, slots=True)
class Row:
    """A session as the trainer's page has it. code: opens its answers; empty where there are none."""

    session: Session
    when: str
    exercises: tuple[str, ...]
    code: str


def write_trainer(
    track: Track,
    folder: Path,
    handed_out: Path,
    installed: Places,
    efforts: Efforts,
    calendar: Calendar,
    site: Site,
) -> Iterator[str]:
    """Write the folder, after its solutions have been executed. Yields what is done, as sentences.

    handed_out: what students get; answers that a code opens are put there. Raises CommandFailed and OSError.
    """
    own, units = Places(folder), cut_units(track, installed)
    chosen = efforts_of(units, efforts)
    _write_course(track, units, own, installed, calendar)
    rows = [*_rows(track, units, calendar)]
    answers = [*_closed(units, rows, calendar)]
    (handed_out / FILE).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    _execute(units, own, chosen)
    mistakes = {unit.name: mistakes_of(unit.name, installed.root) for unit in units}
    write_slides(track, own, mistakes, efforts, calendar)
    template = page_templates(TEMPLATES).get_template("trainer.html.j2")
    text = template.render(
        track=track,
        rows=rows,
        mistakes={name: found for each in mistakes.values() for name, found in each.items()},
        site=site,
        script=_script(track, site),
        questions={name: question_of(effort) for unit in units for name, effort in chosen(unit.name).items()},
        units=units,
        dated=bool(calendar.hand_ins(track)),
    )
    (folder / "index.html").write_text(text, encoding="utf-8")
    yield f"For the trainer: {folder / 'index.html'}, with the timetable, and {folder / 'slides.html'}."


def _write_course(
    track: Track, units: list[Unit], own: Places, installed: Places, calendar: Calendar
) -> None:
    """Write what `course release`, `course grade` and nbgrader work with."""
    own.solutions.mkdir(parents=True, exist_ok=True)
    for unit in units:
        text = jupytext.writes(unit.notebook, fmt="py:percent")
        (own.solutions / f"{unit.name}.py").write_text(text, encoding="utf-8")
    shutil.copyfile(installed.root / "nbgrader_config.py", own.root / "nbgrader_config.py")
    write_choice(track, units, own.root, calendar)


def _execute(units: list[Unit], own: Places, efforts: Efforts) -> None:
    """Execute the solutions once, and write their pages. Raises CommandFailed where a cell fails."""
    build(units, efforts, own)
    results = [UnitResult(unit) for unit in units]
    run([next(tasks_of(result, own)) for result in results], JOBS)
    if failures := [failure for result in results for failure in result.failures]:
        raise CommandFailed(failures)
    write_index([result.page for result in results if result.page], own.pages)


def _rows(track: Track, units: list[Unit], calendar: Calendar) -> Iterator[Row]:
    named = {unit.name: unit for unit in units}
    for session, when in zip(track.sessions, calendar.times(track), strict=True):
        exercises = session.exercises_of(named[session.unit]) if session.unit else []
        yield Row(session, when, tuple(exercises), _code() if exercises else "")


def _closed(units: list[Unit], rows: list[Row], calendar: Calendar) -> Iterator[dict[str, str]]:
    """For each session that has a code its answers, which the code opens once they are handed in."""
    cells = [cell for unit in units for cell in unit.notebook.cells if "exercise" in cell.metadata]
    references = {cell.metadata.exercise: reference(cell) for cell in cells}
    for row in rows:
        if row.code:
            answers = {name: references[name] for name in row.exercises}
            yield sealed(row.session.title, answers, row.code, calendar.hand_in(row.session))


def _code() -> str:
    """What can be read out in a room and typed."""
    return "".join(secrets.choice(_SYLLABLES) for _ in range(6))


def _script(track: Track, site: Site) -> str:
    """The batch script of a Jupyter session as long as the track on the site; empty if it has none."""
    account = site.account_form if site.account == "required" else None
    job = Job("jupyter", minutes=track.minutes, account=account, reservation="NAME", tasks_per_node=1)
    try:
        return render(job, site)
    except Refused as refusal:
        return "# " + "\n# ".join(refusal.complaints) + "\n"
