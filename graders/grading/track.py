"""Which exercises count in a folder that `course track` has made: those of its track and no others."""

import json
from collections.abc import Mapping, Sequence
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


def file_of_track(name: str, folder: Path) -> Path | None:
    """The file of this name of the track whose folder this is or lies in; None where there is none."""
    folder = folder.resolve()
    return next((each / name for each in (folder, *folder.parents) if (each / name).is_file()), None)


def track_file(title: str, chosen: Mapping[str, Sequence[str]]) -> str:
    """What is written into `FILE`."""
    plain = {"title": title, "exercises": {unit: list(names) for unit, names in chosen.items()}}
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
