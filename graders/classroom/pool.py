"""Several judges (`graders.classroom.judge_process`) at work at once; one that is lost is replaced."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from graders.classroom.judge_process import nothing_earned
from graders.classroom.result_store import Graded
from graders.forked_server import environment, program
from graders.isolation.backends import backend_here

SECONDS_A_SUBMISSION = 900.0
"""Whatever takes longer holds up the class: its judge is stopped."""


@dataclass(frozen=True, slots=True)
class Task:
    """A submission to be graded; `key` goes into its verdicts. unsafe: grade without a sandbox if need be."""

    folder: str
    unit: str
    student: str
    key: str
    unsafe: bool = False


class GradingFailed(Exception):
    """A submission could not be graded, and that is not its fault; the message says why."""


class JudgePool:
    """So many judges, each in a process of its own. A context: leaving it ends them all.

    scratch: a folder for what they write meanwhile.
    """

    def __init__(self, size: int, scratch: Path, seconds: float = SECONDS_A_SUBMISSION) -> None:
        self.seconds = seconds
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="judge")
        self._own = threading.local()
        self._judges: set[_Judge] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            for judge in self._judges:
                judge.kill()
        self._threads.shutdown(cancel_futures=True)
        for judge in self._judges:
            judge.close()

    def grade(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, "Future[Graded]"]]:
        """Each task with its outcome, as they come in: the verdicts, or GradingFailed."""
        futures = {self._threads.submit(self._grade, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future

    def _grade(self, task: Task) -> Graded:
        """Have a task done. A judge that is lost is not the submission's fault the first time."""
        said = ""
        for _ in range(2):
            try:
                return self._judge().grade(task, self.seconds)
            except _OutOfTime:
                return self._stopped(task)
            except _Lost as error:
                said = str(error)
        raise GradingFailed(f"The process that graded it ended twice: {said}.")

    def _stopped(self, task: Task) -> Graded:
        reason = (
            f"Grading was stopped after {self.seconds:g} s: the cells and answers together take too long. "
            f"Mark cells that train as demonstrations, or take them out, and look for what never ends."
        )
        report = nothing_earned(task.unit, reason)
        sandbox = backend_here().name
        return Graded(task.student, task.key, report, reason=reason, seconds=self.seconds, sandbox=sandbox)

    def _judge(self) -> "_Judge":
        """This thread's judge, or a new one if it has none that lives."""
        judge: _Judge | None = getattr(self._own, "judge", None)
        if judge is None or not judge.alive:
            with self._lock:
                if self._ended:
                    raise GradingFailed("Grading was stopped.")
                if judge is not None:
                    judge.close()
                    self._judges.discard(judge)
                judge = self._own.judge = _Judge(self._scratch)
                self._judges.add(judge)
        return judge


class _Lost(Exception):
    """The judge ended before it answered."""


class _OutOfTime(Exception):
    """The judge was stopped, for it took too long."""


class _Judge:
    """A running `graders.classroom.judge_process`, begun by `judge_start`."""

    def __init__(self, scratch: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._popen = subprocess.Popen(
            program("graders.classroom.judge_start"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(),
            # Control-C is for the process that gives the orders, which then ends this one.
            start_new_session=True,
        )
        self._said = json.dumps({**os.environ, "TMPDIR": str(scratch)}) + "\n"
        """What it hears before its first order, once the fork for submissions is made: its environment."""

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def grade(self, task: Task, seconds: float) -> Graded:
        """Give an order and wait for the answer. Raises GradingFailed, _Lost or _OutOfTime."""
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
            raise GradingFailed(answer["failed"])
        return Graded.from_json(answer)

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
            self._popen.stdin.write(self._said + json.dumps(asdict(task)) + "\n")
            self._popen.stdin.flush()
            self._said = ""
            line = self._popen.stdout.readline()
            if line.endswith("\n"):
                return dict(json.loads(line))
        # Its end must be over before anybody asks whether it lives.
        self.kill()
        self._popen.wait()
        return None
