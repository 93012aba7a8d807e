"""The verdicts of a class, one file a submission, kept so that nothing is marked twice and nothing is lost.

A file is written whole or not at all: under another name first, then renamed.
"""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

from graders.grading.exercise import Verdict
from graders.grading.registry import exercises
from graders.grading.report import Report
from graders.grading.run import CriterionResult, ExerciseResult
from graders.isolation.backends import NO_WALL

_GRADING = ("grading", "protocol", "submissions", "host", "guest", "isolation")
"""The rooms of `graders` whose every line can change a verdict."""

_ONLY_SHOWN = ("figures", "notebook")
"""Rooms of `course_lib` that no grader runs."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A submission's verdicts.

    key: what they depend on, see `key_of`. file: the name of the file that was graded, empty if there was
    none. reason: why there was nothing to grade, for the student. wall: the name of the wall behind which its
    code ran. recorded: whether the gradebook has them.
    """

    student: str
    key: str
    report: Report
    file: str = ""
    reason: str = ""
    seconds: float = 0.0
    wall: str = ""
    recorded: bool = False

    @property
    def walled(self) -> bool:
        """Whether its code was kept behind a wall."""
        return self.wall != NO_WALL.name

    def to_json(self) -> dict[str, Any]:
        """The verdicts as plain data."""
        report = {
            **self.report.to_json(),
            "notes": list(self.report.notes),
            "printed": {each.exercise.name: each.printed for each in self.report.exercises},
            "figures": {
                each.exercise.name: [criterion.figure for criterion in each.criteria]
                for each in self.report.exercises
            },
            "mistakes": {each.exercise.name: each.mistake for each in self.report.exercises if each.mistake},
        }
        fields = ("student", "key", "file", "reason", "seconds", "wall", "recorded")
        return {**{name: getattr(self, name) for name in fields}, "report": report}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """The verdicts of `to_json`. Raises KeyError or ValueError if graders have changed since."""
        return cls(**{**plain, "report": _report_from_json(plain["report"])})


class Verdicts:
    """The folder that holds one file a submission of a unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, student: str) -> Marked | None:
        """A submission's verdicts; None if there are none, or none that today's graders could have given."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Marked.from_json(json.loads(self._path(student).read_text(encoding="utf-8")))
        return None

    def keep(self, marked: Marked) -> None:
        """Write a submission's verdicts to the disk; when this returns they outlive the machine."""
        write_whole(self._path(marked.student), json.dumps(marked.to_json(), ensure_ascii=False, indent=1))

    def keep_recorded(self, marked: Marked) -> None:
        """The same, and that the gradebook has them."""
        self.keep(replace(marked, recorded=True))

    def __iter__(self) -> Iterator[Marked]:
        """All that there are, by the students' names."""
        for path in sorted(self.folder.glob("*.json")):
            marked = self.find(path.stem)
            if marked is not None:
                yield marked

    def _path(self, student: str) -> Path:
        return self.folder / f"{student}.json"


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content such that whoever reads it finds all of the old or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(name).chmod(0o644)
    Path(name).replace(path)


def key_of(unit: str, handed_in: str) -> str:
    """What verdicts depend on: what was handed in, as a hash, the unit's graders and the library."""
    return hashlib.sha256(f"{handed_in} {_graders_key(unit)}".encode()).hexdigest()


@cache
def _graders_key(unit: str) -> str:
    """A hash of every file that has a part in grading a unit; see `_parts_of`."""
    hashed = hashlib.sha256(f"{torch.__version__} {platform.python_version()}".encode())
    for path in _parts_of(unit, Path(__file__).parents[2]):
        hashed.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return hashed.hexdigest()


def _parts_of(unit: str, root: Path) -> list[Path]:
    """The files below the checkout `root` that a unit's verdicts depend on, whatever their kind.

    Those are all that drives, judges and runs submissions, the unit's own package, the released cells of all
    units (which say what is a demonstration), the sites, and the library, but for what only draws or shows.
    """
    folders = [root / "graders" / name for name in _GRADING]
    folders += [root / "course_lib", root / "graders" / "units" / f"unit_{unit[:2]}"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [*(root / "graders" / "units").glob("*.py"), *(root / "graders" / "units").glob("*/*.json")]
    files += (root / "slurm").glob("*.toml")
    shown = tuple(str(root / "course_lib" / name) + os.sep for name in _ONLY_SHOWN)
    return sorted(
        {path for path in files if "__pycache__" not in path.parts and not str(path).startswith(shown)}
    )


def _report_from_json(plain: dict[str, Any]) -> Report:
    unit = plain["unit"]
    results = tuple(_result_from_json(plain, each) for each in plain["exercises"])
    return Report(unit, results, tuple(plain["notes"]))


def _result_from_json(report: dict[str, Any], plain: dict[str, Any]) -> ExerciseResult:
    exercise = exercises(report["unit"])[plain["name"]]
    printed, mistakes, figures = report["printed"], report["mistakes"], report["figures"][exercise.name]
    criteria = tuple(
        CriterionResult(criterion, Verdict(told["verdict"]), told["seen"], figure)
        for criterion, told, figure in zip(exercise.rubric, plain["criteria"], figures, strict=True)
        if criterion.name == told["name"]
    )
    if len(criteria) != len(exercise.rubric):
        raise ValueError(f"the verdicts on {exercise.name} are of another rubric")
    name = exercise.name
    return ExerciseResult(exercise, criteria, printed.get(name, ""), mistakes.get(name, ""))
