"""The verdicts of a class, one file a submission, kept so that nothing is graded twice and nothing is lost.

A file is written whole or not at all: under another name first, then renamed.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from graders.grading.exercise import Verdict
from graders.grading.kinds import kind_with
from graders.grading.registry import counted, exercises
from graders.grading.report import Report
from graders.grading.run import CriterionResult, ExerciseResult
from graders.isolation.backends import NO_ISOLATION


@dataclass(frozen=True, slots=True)
class Graded:
    """A submission's verdicts.

    key: what they depend on, see `graders.grading.fingerprint.key_of`. file: the name of the file that was
    graded, empty if there was none. reason: why there was nothing to grade, for the student. sandbox: the
    kind of sandbox that its code ran in, by name. recorded: whether the gradebook has them.
    """

    student: str
    key: str
    report: Report
    file: str = ""
    reason: str = ""
    seconds: float = 0.0
    sandbox: str = ""
    recorded: bool = False

    @property
    def sandboxed(self) -> bool:
        """Whether its code was kept in a sandbox."""
        return self.sandbox != NO_ISOLATION.name

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
        fields = ("student", "key", "file", "reason", "seconds", "sandbox", "recorded")
        return {**{name: getattr(self, name) for name in fields}, "report": report}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """The verdicts of `to_json`. Raises KeyError or ValueError if graders have changed since."""
        return cls(**{**plain, "report": _report_from_json(plain["report"])})


class ResultStore:
    """The folder that holds one file a submission of a unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, student: str) -> Graded | None:
        """A submission's verdicts; None if there are none, or none that today's graders could have given."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Graded.from_json(json.loads(self._path(student).read_text(encoding="utf-8")))
        return None

    def keep(self, graded: Graded) -> None:
        """Write a submission's verdicts to the disk; when this returns they outlive the machine."""
        write_whole(self._path(graded.student), json.dumps(graded.to_json(), ensure_ascii=False, indent=1))

    def keep_recorded(self, graded: Graded) -> None:
        """The same, and that the gradebook has them."""
        self.keep(replace(graded, recorded=True))

    def __iter__(self) -> Iterator[Graded]:
        """All that there are, by the students' names."""
        for path in sorted(self.folder.glob("*.json")):
            graded = self.find(path.stem)
            if graded is not None:
                yield graded

    def students(self) -> set[str]:
        """Those who have verdicts, of today's graders or of earlier ones."""
        return {path.stem for path in self.folder.glob("*.json")}

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


def _report_from_json(plain: dict[str, Any]) -> Report:
    """A report in the order that its unit has today. Raises KeyError or ValueError if it is another."""
    unit = plain["unit"]
    told = {each["name"]: each for each in plain["exercises"]}
    if told.keys() != counted(unit).keys():
        raise ValueError(f"the verdicts are of other exercises than {unit} has")
    results = tuple(_result_from_json(plain, told[name]) for name in counted(unit))
    return Report(unit, results, tuple(plain["notes"]))


def _result_from_json(report: dict[str, Any], plain: dict[str, Any]) -> ExerciseResult:
    exercise = exercises(report["unit"])[plain["name"]]
    printed, mistakes, figures = report["printed"], report["mistakes"], report["figures"][exercise.name]
    criteria = tuple(
        CriterionResult(
            criterion,
            Verdict(told["verdict"]),
            told["seen"],
            figure,
            told["hint"],
            kind_with(told["hint"]),
        )
        for criterion, told, figure in zip(exercise.rubric, plain["criteria"], figures, strict=True)
        if criterion.name == told["name"]
    )
    if len(criteria) != len(exercise.rubric):
        raise ValueError(f"the verdicts on {exercise.name} are of another rubric")
    name = exercise.name
    return ExerciseResult(exercise, criteria, printed.get(name, ""), mistakes.get(name, ""))
