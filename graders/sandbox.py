"""Out of reach: a submission runs in processes of its own, and only plain data comes back from there.

A `Sandbox` is one submission's worker (`graders.worker`), a fresh interpreter that imports PyTorch once. For
every exercise it forks a process, which runs the submission's cells and then does what the exercise's grader
asks. So a hang or a crash costs one exercise. The grader, its seeds and its expected values stay here.
"""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from graders.answer import NOT_ATTEMPTED, AnswerFailed, PlainData
from graders.cells import TIMED_OUT, Cell, CellFailure, remember_source, timed_out
from graders.driving import STUB_SEEN
from graders.frames import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.kernel_answer import definition_source
from graders.limits import Limits
from graders.records import check_fields
from graders.remote import RemoteAnswer
from graders.submission import Submission
from graders.wire import WireError, decode, encode
from graders.workers import Process, SandboxFailed, Worker

DEFAULT_LIMITS = Limits()


class Sandbox:
    """A context in which the answers of one submission can be reached, one after the other.

    Entering it raises SandboxFailed if it does not work here.
    """

    def __init__(self, submission: Submission, limits: Limits = DEFAULT_LIMITS) -> None:
        self.submission = submission
        self.limits = limits
        self.failures: dict[str, CellFailure] = {}
        """Cells that did not run to their end, by name, as far as answers have been asked for."""
        self._names = frozenset(cell.name for cell in submission.cells)
        self._stuck: set[str] = set()
        self._scratch = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        for cell in self.submission.cells:
            remember_source(cell)
        try:
            # Now, so that a sandbox that does not work here is not taken for answers that do not.
            self._live_worker()
        except SandboxFailed:
            self._scratch.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
        self._scratch.cleanup()

    @contextmanager
    def answer(self, name: str) -> Iterator[RemoteAnswer]:
        """The answer of this name, whether or not the submission has it: that shows when it is asked."""
        source = self._source(name)
        with _AnswerProcess(self, name) as process:
            yield RemoteAnswer(name, source, process.exchange, self._names.__contains__, self.limits.call)

    def start(self, answer: str) -> Process:
        """A process that has run the cells and holds the answer. Raises AnswerFailed if it is not to be had.

        A cell that hangs, or ends the process, is left out from then on, for this exercise and all others.
        """
        while True:
            process = self._live_worker().fork()
            begun: list[str] = []
            try:
                defined = self._run_cells(process.channel, answer, begun)
            except (TooSlow, ChannelClosed) as error:
                self._leave_out(begun, error, process.end())
                continue
            except WireError as error:
                process.end()
                raise AnswerFailed("Unreadable", f"Your cells garbled what came back: {error}.") from error
            if defined:
                return process
            process.end()
            raise self._undefined(answer)

    def _run_cells(self, channel: socket.socket, answer: str, begun: list[str]) -> bool:
        """Have the cells run, and note those that failed; returns whether the answer is there afterwards.

        `begun` receives the name of each cell before it runs. Raises TooSlow, ChannelClosed or WireError.
        """
        send_frame(channel, self._opening(answer))
        for _ in range(len(self.submission.cells) + 1):
            message = decode(receive_frame(channel, self.limits.cell + self.limits.grace))
            if type(message) is not dict:
                break
            if message.keys() == {"failures", "defines"}:
                self._note_failures(message["failures"])
                return bool(message["defines"])
            begun.append(str(message.get("begins")))
        raise WireError("it is no account of how the cells ran")

    def _opening(self, answer: str) -> bytes:
        cells = [[cell.name, cell.source] for cell in self.submission.cells if cell.name not in self._stuck]
        main, seconds = self.submission.main, self.limits.cell
        return encode({"cells": cells, "main": main, "answer": answer, "seconds": seconds})

    def _live_worker(self) -> Worker:
        """The worker, or a new one if code of the submission has found a way to end it."""
        if self._worker is None or not self._worker.alive:
            if self._worker is not None:
                self._worker.close()
            self._worker = Worker(Path(self._scratch.name))
        return self._worker

    def _leave_out(self, begun: list[str], error: Exception, ended: str) -> None:
        """Note that the cell that ran last must not run again. Raises AnswerFailed if there is none."""
        cell = begun[-1] if begun else ""
        if cell in self._stuck or cell not in self._names:
            raise AnswerFailed("Ended", f"The process of your code ended at once ({ended}).") from error
        if isinstance(error, TooSlow):
            self.failures[cell] = timed_out(cell, self.limits.cell)
        else:
            self.failures[cell] = CellFailure(cell, "Ended", f"It ended the whole process ({ended}).")
        self._stuck.add(cell)

    def _note_failures(self, told: PlainData) -> None:
        """Remember the failures that a process tells of. Raises WireError if it tells nonsense."""
        if type(told) is not list:
            raise WireError("the failed cells are not a list")
        for plain in told:
            check_fields(plain, {"cell": (str,), "kind": (str,), "report": (str,)}, "a failed cell")
            failure = CellFailure(**plain)
            if failure.cell in self._names:
                self.failures[failure.cell] = failure
                if failure.kind == TIMED_OUT:
                    self._stuck.add(failure.cell)

    def _undefined(self, answer: str) -> AnswerFailed:
        """Why there is no answer: its cell is missing, is the stub, or failed before it came that far."""
        cell = self._cell_of(answer)
        if cell is None:
            return AnswerFailed(NOT_ATTEMPTED, f"{self.submission.name} does not define {answer}.")
        failure = self.failures.get(cell.name)
        if failure is None:
            return AnswerFailed("NameError", f"The cells ran, but afterwards there was no {answer}.")
        if failure.is_stub:
            return AnswerFailed(NOT_ATTEMPTED, STUB_SEEN)
        return AnswerFailed(failure.kind, f"The cell that defines {answer} failed.\n{failure.report}")

    def _source(self, answer: str) -> str:
        cell = self._cell_of(answer)
        return definition_source(cell.source, answer) if cell else ""

    def _cell_of(self, answer: str) -> Cell | None:
        """The last cell that defines the answer, as Python would have it."""
        return next((cell for cell in reversed(self.submission.cells) if cell.defines(answer)), None)


class _AnswerProcess:
    """The process of one answer: started when first asked, and anew after it was lost."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self._sandbox = sandbox
        self._name = name
        self._process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def exchange(self, request: bytes, seconds: float) -> bytes:
        """Send a request and wait for the reply. Raises AnswerFailed if none comes in time."""
        if self._process is None:
            self._process = self._sandbox.start(self._name)
        try:
            self._process.channel.settimeout(seconds + self._sandbox.limits.grace)
            send_frame(self._process.channel, request)
            return receive_frame(self._process.channel, seconds + self._sandbox.limits.grace)
        except TooSlow as error:
            self._end()
            raise AnswerFailed(
                TIMED_OUT, f"Your code was still running after {seconds:g} s and was stopped."
            ) from error
        except ChannelClosed as error:
            ended = self._end()
            raise AnswerFailed("Ended", f"Your code ended the whole process ({ended}).") from error

    def _end(self) -> str:
        process, self._process = self._process, None
        return process.end() if process else ""
