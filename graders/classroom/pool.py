"""Several markers (`graders.classroom.judge_process`) at work at once; one that is lost is replaced."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from graders.classroom.judge_process import nothing_earned
from graders.classroom.result_store import Marked
from graders.isolation.backends import wall_here

SECONDS_A_SUBMISSION = 900.0
"""Whatever takes longer holds up the class: its marker is stopped."""


@dataclass(frozen=True, slots=True)
class Task:
    """A submission to be marked; `key` goes into its verdicts. unsafe: mark without a wall if need be."""

    folder: str
    unit: str
    student: str
    key: str
    unsafe: bool = False


class MarkingFailed(Exception):
    """A submission could not be marked, and that is not its fault; the message says why."""


class Crew:
    """So many markers, each in a process of its own. A context: leaving it ends them all.

    scratch: a folder for what they write meanwhile. It is theirs alone; what a crew that was killed has left
        there is deleted.
    """

    def __init__(self, size: int, scratch: Path, seconds: float = SECONDS_A_SUBMISSION) -> None:
        self.seconds = seconds
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="marker")
        self._own = threading.local()
        self._markers: set[_Marker] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            for marker in self._markers:
                marker.kill()
        self._threads.shutdown(cancel_futures=True)
        for marker in self._markers:
            marker.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def mark(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, "Future[Marked]"]]:
        """Each task with its outcome, as they come in: the verdicts, or MarkingFailed."""
        futures = {self._threads.submit(self._mark, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future

    def _mark(self, task: Task) -> Marked:
        """Have a task done. A marker that is lost is not the submission's fault the first time."""
        said = ""
        for _ in range(2):
            try:
                return self._marker().mark(task, self.seconds)
            except _OutOfTime:
                return self._stopped(task)
            except _Lost as error:
                said = str(error)
        raise MarkingFailed(f"The process that marked it ended twice: {said}.")

    def _stopped(self, task: Task) -> Marked:
        reason = (
            f"Grading was stopped after {self.seconds:g} s: the cells and answers together take too long. "
            f"Mark cells that train as demonstrations, or take them out, and look for what never ends."
        )
        report = nothing_earned(task.unit, reason)
        wall = wall_here().name
        return Marked(task.student, task.key, report, reason=reason, seconds=self.seconds, wall=wall)

    def _marker(self) -> "_Marker":
        """This thread's marker, or a new one if it has none that lives."""
        marker: _Marker | None = getattr(self._own, "marker", None)
        if marker is None or not marker.alive:
            with self._lock:
                if self._ended:
                    raise MarkingFailed("Grading was stopped.")
                if marker is not None:
                    marker.close()
                    self._markers.discard(marker)
                marker = self._own.marker = _Marker(self._scratch)
                self._markers.add(marker)
        return marker


class _Lost(Exception):
    """The marker ended before it answered."""


class _OutOfTime(Exception):
    """The marker was stopped, for it took too long."""


class _Marker:
    """A running `graders.classroom.judge_process`."""

    def __init__(self, scratch: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "graders.classroom.judge_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
            # Control-C is for the process that gives the orders, which then ends this one.
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def mark(self, task: Task, seconds: float) -> Marked:
        """Give an order and wait for the answer. Raises MarkingFailed, _Lost or _OutOfTime."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            answer = self._ask(task)
        finally:
            timer.cancel()
        if answer is None:
            raise _OutOfTime if late.is_set() else _Lost(self._last_words())
        if "failed" in answer:
            raise MarkingFailed(answer["failed"])
        return Marked.from_json(answer)

    def kill(self) -> None:
        """End it now; what it has started ends with it."""
        self._popen.kill()

    def close(self) -> None:
        """End it and wait for its end."""
        self.kill()
        for stream in (self._popen.stdin, self._popen.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self._popen.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "it gave no reason, perhaps for want of memory"

    def _ask(self, task: Task) -> dict[str, Any] | None:
        """The answer, None if the process ends without one."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with suppress(OSError):
            self._popen.stdin.write(json.dumps(asdict(task)) + "\n")
            self._popen.stdin.flush()
            line = self._popen.stdout.readline()
            if line.endswith("\n"):
                return dict(json.loads(line))
        # Its end must be over before anybody asks whether it lives.
        self.kill()
        self._popen.wait()
        return None
