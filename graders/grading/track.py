"""Which exercises count in a folder that `course track` has made, those of its track, and until when."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

FILE = "track.json"
"""Stands in the folder that is handed out, and in the trainer's."""


def chosen_exercises(folder: Path) -> Mapping[str, Sequence[str]] | None:
    """Unit -> the exercises of the track whose folder this is or lies in; None where all count."""
    path = file_of_track(FILE, folder)
    if path is None:
        return None
    chosen: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["exercises"]
    return chosen


def hand_in_of(unit: str, folder: Path) -> datetime | None:
    """Until when a unit is handed in, by the track whose folder this is or lies in, if it says so."""
    path = file_of_track(FILE, folder)
    written = json.loads(path.read_text(encoding="utf-8")).get("hand_in", {}) if path else {}
    return datetime.fromisoformat(written[unit]) if unit in written else None


def file_of_track(name: str, folder: Path) -> Path | None:
    """The file of this name of the track whose folder this is or lies in; None where there is none."""
    folder = folder.resolve()
    return next((each / name for each in (folder, *folder.parents) if (each / name).is_file()), None)


def track_file(title: str, chosen: Mapping[str, Sequence[str]], hand_in: Mapping[str, datetime]) -> str:
    """What is written into `FILE`. hand_in: unit -> the last moment, with its time zone."""
    plain = {
        "title": title,
        "exercises": {unit: list(names) for unit, names in chosen.items()},
        "hand_in": {unit: moment.isoformat() for unit, moment in hand_in.items()},
    }
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
