"""Submissions on their way to other machines, and what has come of them: a folder that all machines see.

The tasks stand in one file. For each there is in the end another file, with the verdicts or with the reason
why there are none; it is written whole, so whoever reads it finds all of it or nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from graders.classroom.pool import GradingFailed, Task
from graders.classroom.result_store import Graded, make_folder, write_whole

_TASKS, _JOB = "tasks.json", "job"


@dataclass(frozen=True, slots=True)
class Batch:
    """The folder of one batch."""

    folder: Path

    def tasks(self) -> list[Task]:
        """All its tasks."""
        return [Task(**plain) for plain in json.loads((self.folder / _TASKS).read_text(encoding="utf-8"))]

    def keep(self, task: Task, outcome: Graded | GradingFailed) -> None:
        """Write down what has come of a task; when this returns it outlives the machine."""
        plain = {"failed": str(outcome)} if isinstance(outcome, GradingFailed) else outcome.to_json()
        write_whole(self._path(task), json.dumps(plain, ensure_ascii=False))

    def find(self, task: Task) -> Graded | GradingFailed | None:
        """What has come of a task; None if nothing has, or nothing that today's graders could have said."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            plain = json.loads(self._path(task).read_text(encoding="utf-8"))
            if "failed" in plain:
                return GradingFailed(plain["failed"])
            graded = Graded.from_json(plain)
            return graded if (graded.student, graded.key) == (task.student, task.key) else None
        return None

    @property
    def complete(self) -> bool:
        """Whether something has come of every task."""
        return all(self._path(task).exists() for task in self.tasks())

    @property
    def job(self) -> str:
        """The number of the job that works on it; empty if it was never submitted."""
        with suppress(FileNotFoundError):
            return (self.folder / _JOB).read_text().strip()
        return ""

    def keep_job(self, job: str) -> None:
        """Write down which job works on it."""
        write_whole(self.folder / _JOB, job)

    def said(self) -> str:
        """The last line that the job has printed."""
        lines = [line for path in sorted(self.folder.glob("*.out")) for line in _lines(path)]
        return lines[-1] if lines else "nothing"

    def _path(self, task: Task) -> Path:
        name = hashlib.sha256(f"{task.student}\0{task.key}".encode()).hexdigest()
        return self.folder / "outcomes" / f"{name}.json"


def new_batch(parent: Path, tasks: Sequence[Task]) -> Batch:
    """A batch of these tasks, in a new folder below `parent`."""
    batch = Batch(parent / uuid4().hex)
    make_folder(batch.folder / "outcomes")
    write_whole(batch.folder / _TASKS, json.dumps([asdict(task) for task in tasks]))
    return batch


def batches_in(parent: Path) -> Iterator[Batch]:
    """Those that earlier runs have left."""
    return (Batch(path.parent) for path in sorted(parent.glob(f"*/{_TASKS}")))


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").split("\n")[-50:] if path.stat().st_size < 2**20 else []
