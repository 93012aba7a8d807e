"""A track: sections and exercises of some units in an order, with the time that each session takes."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from workbook.errors import CommandFailed
from workbook.tracks.cut import cut
from workbook.unit import Unit

FOLDER = Path(__file__).parent
ALL = "all"
"""In the place of both a session's sections and its exercises: the whole unit."""


@dataclass(frozen=True, slots=True)
class Session:
    """A part of a track that ends with a break or another part; without a unit it is a break itself.

    exercises: those to write; others of these sections are given. hand_in_day: days after the first.
    """

    title: str
    minutes: int
    unit: str = ""
    sections: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()
    hand_in_day: int | None = None

    @property
    def takes_all(self) -> bool:
        return ALL in self.exercises

    def exercises_of(self, unit: Unit) -> list[str]:
        """Those to write, in the order of the unit."""
        names = [answer.name for answer in unit.answers]
        return [name for name in names if self.takes_all or name in self.exercises]


@dataclass(frozen=True)
class Track:
    """What a file of this folder says. minutes: the sum of the sessions, breaks included."""

    name: str
    title: str
    about: str
    minutes: int
    sessions: tuple[Session, ...]

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units in the order in which they are first met."""
        return tuple(dict.fromkeys(session.unit for session in self.sessions if session.unit))

    def sessions_on(self, unit: str) -> list[Session]:
        return [session for session in self.sessions if session.unit == unit]

    def cut(self, unit: Unit) -> Unit:
        """The unit with what this track has of it. Raises CommandFailed for what the unit lacks."""
        return cut_to(unit, self.sessions_on(unit.name))


def cut_to(unit: Unit, sessions: Iterable[Session]) -> Unit:
    """The unit with what these sessions have of it. Raises CommandFailed for what the unit lacks."""
    sections = {each for session in sessions for each in session.sections}
    exercises = {each for session in sessions for each in session.exercises}
    return unit if ALL in sections and ALL in exercises else cut(unit, sections, exercises)


def track_names() -> list[str]:
    """The tracks that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_track(name: str) -> Track:
    """The track of this name. Raises CommandFailed if there is none, or its file is wrong."""
    path = FOLDER / f"{name}.toml"
    if not path.exists():
        raise CommandFailed([f"There is no track {name}. There are: {', '.join(track_names())}."])
    with path.open("rb") as file:
        written = tomllib.load(file)
    complaints = [*_complaints(written)]
    if complaints:
        raise CommandFailed([f"{path.name}: {complaint}" for complaint in complaints])
    sessions = tuple(_session(each) for each in written["sessions"])
    return Track(name, written["title"], written["about"], written["minutes"], sessions)


def _session(written: dict[str, Any]) -> Session:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in written.items()
    }
    return Session(**values)


def _complaints(written: dict[str, Any]) -> Iterator[str]:
    if missing := {"title", "about", "minutes", "sessions"} - written.keys():
        yield f"{', '.join(sorted(missing))} is missing."
        return
    known = {field.name for field in fields(Session)}
    for session in written["sessions"]:
        if unknown := session.keys() - known:
            yield f"a session has {', '.join(sorted(unknown))}; it may have {', '.join(sorted(known))}."
        elif not {"title", "minutes"} <= session.keys():
            yield f"a session has no title or no minutes: {session}."
    total = sum(session.get("minutes", 0) for session in written["sessions"])
    if total != written["minutes"]:
        yield f"its sessions take {total} minutes together, and it says {written['minutes']}."
