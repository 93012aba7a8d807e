"""The trainer's folder of a track: what grades it, and what is needed on the day."""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from course_lib.slurm.scripts import Job, Refused, render
from course_lib.slurm.sites import Site
from graders.student.given import reference_in
from graders.student.sealed import FILE, sealed
from workbook.build import Efforts, UnitResult, build, run, tasks_of
from workbook.errors import CommandFailed
from workbook.pages import write_index
from workbook.paths import Places
from workbook.tracks.folder import Calendar, cut_units, efforts_of, write_choice
from workbook.tracks.mistakes import mistakes_of, one_a_criterion
from workbook.tracks.slides import TEMPLATES, write_slides
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
    _write_course(track, units, own, installed)
    rows = [*_rows(track, units, calendar)]
    answers = [_sealed(row, installed) for row in rows if row.code]
    (handed_out / FILE).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    _execute(units, own, chosen)
    write_slides(track, own, installed.root, efforts, calendar)
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True)
    text = environment.get_template("trainer.html.j2").render(
        track=track,
        rows=rows,
        mistakes=[*_mistakes(units, installed.root)],
        site=site,
        script=_script(track, site),
        hints={name: each.hints for unit in units for name, each in efforts(unit.name).items()},
        units=units,
    )
    (folder / "index.html").write_text(text, encoding="utf-8")
    yield f"For the trainer: {folder / 'index.html'}, with the timetable, and {folder / 'slides.html'}."


def _write_course(track: Track, units: list[Unit], own: Places, installed: Places) -> None:
    """Write what `course release`, `course grade` and nbgrader work with."""
    own.solutions.mkdir(parents=True, exist_ok=True)
    for unit in units:
        text = jupytext.writes(unit.notebook, fmt="py:percent")
        (own.solutions / f"{unit.name}.py").write_text(text, encoding="utf-8")
    shutil.copyfile(installed.root / "nbgrader_config.py", own.root / "nbgrader_config.py")
    write_choice(track, units, own.root)


def _execute(units: list[Unit], own: Places, efforts: Efforts) -> None:
    """Execute the solutions once, and write their pages. Raises CommandFailed where a cell fails."""
    build(units, efforts, own)
    results = [UnitResult(unit) for unit in units]
    run([next(tasks_of(result, own)) for result in results], JOBS)
    if failures := [failure for result in results for failure in result.failures]:
        raise CommandFailed(failures)
    write_index([result.page for result in results if result.page], own.pages)


def _rows(track: Track, units: list[Unit], calendar: Calendar) -> Iterator[Row]:
    names = {unit.name: [answer.name for answer in unit.answers] for unit in units}
    for session, when in zip(track.sessions, calendar.times(track), strict=True):
        exercises = [
            name for name in names.get(session.unit, ()) if session.takes_all or name in session.exercises
        ]
        yield Row(session, when, tuple(exercises), _code() if exercises else "")


def _code() -> str:
    """What can be read out in a room and typed."""
    return "".join(secrets.choice(_SYLLABLES) for _ in range(6))


def _sealed(row: Row, installed: Places) -> Mapping[str, str]:
    path = installed.solutions / f"{row.session.unit}.py"
    answers = {name: reference_in(path, name) for name in row.exercises}
    return sealed(row.session.title, answers, row.code)


def _mistakes(units: list[Unit], root: Path) -> Iterator[tuple[str, list[Any]]]:
    """Of each exercise what students get wrong, one mistake a criterion."""
    for unit in units:
        mistakes = mistakes_of(unit.name, root)
        for answer in unit.answers:
            yield answer.name, one_a_criterion(mistakes.get(answer.name, []))


def _script(track: Track, site: Site) -> str:
    """The batch script of a Jupyter session as long as the track on the site; empty if it has none."""
    account = site.account_form if site.account == "required" else None
    job = Job("jupyter", minutes=track.minutes, account=account, reservation="NAME", tasks_per_node=1)
    try:
        return render(job, site)
    except Refused as refusal:
        return "# " + "\n# ".join(refusal.complaints) + "\n"
