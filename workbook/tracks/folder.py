"""The folder of a track that is handed out: its notebooks, its index, and what says which exercises count."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path

import nbformat

from graders.grading.track import FILE, track_file
from workbook.build import Efforts, build
from workbook.errors import CommandFailed
from workbook.index import templated_notebook
from workbook.paths import Places
from workbook.release import Effort, has_work
from workbook.start import CONFIGURATION, EXCHANGE
from workbook.tracks.track import Session, Track
from workbook.unit import Unit, in_order, read_unit

TEMPLATE = "track/index.py.j2"


@dataclass(frozen=True, slots=True)
class Calendar:
    """The minute of the day at which a track's first session begins, and a semester's first day."""

    begins: int
    first_day: date | None = None

    def times(self, track: Track) -> Iterator[str]:
        """When each session is: `09:00–09:45`, or until when it is handed in."""
        minute = self.begins
        for session in track.sessions:
            if moment := self.hand_in(session):
                yield f"until {moment:%d %B %Y}"
            elif session.hand_in_day is not None:
                yield f"until day {session.hand_in_day}"
            else:
                yield f"{_clock(minute)}–{_clock(minute + session.minutes)}"
            minute += session.minutes

    def hand_in(self, session: Session) -> datetime | None:
        """The last second of its day of hand-in, if it has one, in this machine's time zone."""
        if session.hand_in_day is None or self.first_day is None:
            return None
        day = self.first_day + timedelta(days=session.hand_in_day)
        return datetime.combine(day, time(23, 59, 59)).astimezone()

    def hand_ins(self, track: Track) -> dict[str, datetime]:
        """The same for each unit that is handed in, of its last session."""
        each = [(session.unit, self.hand_in(session)) for session in track.sessions]
        return {unit: moment for unit, moment in each if moment is not None}


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def cut_units(track: Track, installed: Places) -> list[Unit]:
    """The track's units as it has them. Raises CommandFailed where the workbook's solutions are not there."""
    paths = [installed.solutions / f"{unit}.py" for unit in track.units]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise CommandFailed(
            [f"A track is made from the solutions, and there is no {', '.join(missing)}: use a whole clone."]
        )
    return [*in_order([track.cut(read_unit(path)) for path in paths])]


def efforts_of(units: list[Unit], efforts: Efforts) -> Efforts:
    """What the exercises take that these units have, in place of all that there are graders for."""
    names = {unit.name: {answer.name for answer in unit.answers} for unit in units}

    def chosen(unit: str) -> Mapping[str, Effort]:
        return {name: effort for name, effort in efforts(unit).items() if name in names[unit]}

    return chosen


def write_folder(
    track: Track, folder: Path, installed: Places, efforts: Efforts, calendar: Calendar
) -> Iterator[str]:
    """Write what students get; what has been worked in there stays. Yields what is done, as sentences.

    Raises CommandFailed and OSError.
    """
    units = cut_units(track, installed)
    own = Places(folder)
    kept = []
    with tempfile.TemporaryDirectory() as scratch:
        made = Places(Path(scratch))
        build(units, efforts_of(units, efforts), made)
        for unit in units:
            target = own.of_unit(own.notebooks, unit.name)
            if target.exists() and has_work(nbformat.read(target, as_version=4)):
                kept.append(unit.name)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made.of_unit(made.release, unit.name), target)
    write_index(track, units, own, calendar)
    write_choice(track, units, folder, calendar)
    configuration = CONFIGURATION.format(variable=EXCHANGE, exchange=os.environ.get(EXCHANGE, ""))
    (folder / "nbgrader_config.py").write_text(configuration, encoding="utf-8")
    if kept:
        yield f"Kept, since they have been worked in: {', '.join(kept)}."
    exercises = sum(len(unit.answers) for unit in units)
    yield (
        f"{track.title}: {exercises} exercises, {sum(unit.points for unit in units):g} points, in {folder}. "
        f"Begin with index.ipynb: cd {folder} && jupyter lab notebooks/index.ipynb"
    )


def write_choice(track: Track, units: list[Unit], folder: Path, calendar: Calendar) -> None:
    """Say in a folder which exercises count there, and until when they are handed in."""
    chosen = {unit.name: [answer.name for answer in unit.answers] for unit in units}
    (folder / FILE).write_text(track_file(track.title, chosen, calendar.hand_ins(track)), encoding="utf-8")


def write_index(track: Track, units: list[Unit], own: Places, calendar: Calendar) -> None:
    """Write the notebook that students open first."""
    rows = [
        {
            "when": when,
            "title": session.title,
            "where": _where(session),
            "exercises": ", ".join(
                f"`{name}`"
                for unit in units
                if unit.name == session.unit
                for name in session.exercises_of(unit)
            ),
        }
        for session, when in zip(track.sessions, calendar.times(track), strict=True)
    ]
    first = next(answer.name for unit in units for answer in unit.answers)
    notebook = templated_notebook(TEMPLATE, track=track, rows=rows, first_exercise=first)
    own.index.parent.mkdir(parents=True, exist_ok=True)
    own.index.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _where(session: Session) -> str:
    """A link to the notebook, and which sections."""
    if not session.unit:
        return ""
    link = f"[{session.unit}]({session.unit}/{session.unit}.ipynb)"
    if session.takes_all:
        return link
    return f"{link}, section{'s' if len(session.sections) > 1 else ''} {', '.join(session.sections)}"
