"""What a training logged, kept outside of the notebook: one file a training, one line of JSON a step.

The first line tells what the training is; each further line is a step. A line is handed to the operating
system as soon as it is logged, so that whatever happens to the process, at most a line that was being written
is lost.
"""

import itertools
import json
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO

from course_lib.home import course_home


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of `log`: where on the x axis, seconds since the beginning, the values (NaN if not finite)."""

    at: float
    seconds: float
    values: Mapping[str, float]


@dataclass(slots=True)
class History:
    """A training: its name, the unit of its steps, how many there will be (None: unknown), axis labels."""

    name: str
    unit: str = "step"
    total: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @property
    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Name of a value -> its positions and values."""
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for entry in self.entries:
            for name, value in entry.values.items():
                xs, ys = lines.setdefault(name, ([], []))
                xs.append(entry.at)
                ys.append(value)
        return lines


class HistoryFile:
    """Where a training's history is written while it runs."""

    _numbers = itertools.count()

    def __init__(self, history: History) -> None:
        """Begin a new file beside those of earlier trainings of this name."""
        folder = _folder(history.name)
        folder.mkdir(parents=True, exist_ok=True)
        moment = datetime.now().strftime("%Y%m%d-%H%M%S.%f")
        self.path = folder / f"{moment}-{os.getpid()}-{next(self._numbers)}.jsonl"
        self._stream: IO[str] = self.path.open("w", encoding="utf-8", buffering=1)
        self._write(
            {
                "name": history.name,
                "unit": history.unit,
                "total": history.total,
                "labels": dict(history.labels),
                "started": time.time(),
            }
        )

    def append(self, entry: Entry) -> None:
        """Write an entry; when this returns, the operating system has it."""
        values = {name: value if math.isfinite(value) else None for name, value in entry.values.items()}
        self._write({"at": entry.at, "seconds": round(entry.seconds, 6), "values": values})

    def close(self) -> None:
        """Close the file. What was appended is there in any case."""
        self._stream.close()

    def _write(self, record: Mapping[str, object]) -> None:
        self._stream.write(json.dumps(record) + "\n")
        self._stream.flush()


def read_history(path: Path) -> History:
    """The training in a file. A last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    head, *records = [json.loads(line) for line in lines]
    history = History(head["name"], head["unit"], head["total"], head["labels"])
    for record in records:
        values = {name: math.nan if value is None else value for name, value in record["values"].items()}
        history.entries.append(Entry(record["at"], record["seconds"], values))
    return history


def last_history(name: str) -> History:
    """The latest training of this name that logged anything. Raises FileNotFoundError if there is none."""
    for path in sorted(_folder(name).glob("*.jsonl"), reverse=True):
        if path.read_text(encoding="utf-8").count("\n") > 1:
            return read_history(path)
    root = course_home() / "curves"
    known = ", ".join(sorted(folder.name for folder in root.glob("*"))) or "none"
    raise FileNotFoundError(f"No training named {name!r} has been logged. Those that were: {known}.")


def _folder(name: str) -> Path:
    """The folder of the trainings of a name, which may have only characters that every file system takes."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(
            f"The name of a training becomes a folder's, so it may have letters, digits, _, - and . only, "
            f"as in 'unit01-digits'; got {name!r}."
        )
    return course_home() / "curves" / name
