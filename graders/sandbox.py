"""Out of reach: a submission runs in processes of its own, and only plain data comes back from there.

A `Sandbox` is one submission's worker (`graders.worker`), a fresh interpreter that imports PyTorch once. For
every exercise it forks a process, which runs the submission's cells and then does what the exercise's grader
asks. So a hang or a crash costs one exercise. The grader, its seeds and its expected values stay here.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from graders.answer import NOT_ATTEMPTED, AnswerFailed
from graders.cells import CELL_SECONDS, Cell, CellFailure, remember_source
from graders.driving import STUB_SEEN
from graders.frames import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.kernel_answer import definition_source
from graders.remote import RemoteAnswer
from graders.submission import Submission
from graders.wire import WireError, decode, encode
from graders.workers import Process, Worker

GRACE_SECONDS = 5.0
"""So much longer than it should take may a reply take before the process is killed."""
_CELL_LIMIT = CELL_SECONDS + GRACE_SECONDS

_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)
_IMPORTED_ONCE = frozenset({"course_lib", "matplotlib", "numpy", "sklearn", "torch", "torchvision"})
"""Packages that the worker imports for all exercises, if the submission does: they take longest."""


class Sandbox:
    """A context in which the answers of one submission can be reached, one after the other."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.failures: dict[str, CellFailure] = {}
        """Cells that did not run to their end, by name, as far as answers have been asked for."""
        self._stuck: set[str] = set()
        self._scratch = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        for cell in self.submission.cells:
            remember_source(cell)
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
        self._scratch.cleanup()

    @contextmanager
    def answer(self, name: str) -> Iterator[RemoteAnswer]:
        """The answer of this name, whether or not the submission has it: that shows when it is asked."""
        names = frozenset(cell.name for cell in self.submission.cells)
        with _AnswerProcess(self, name) as process:
            yield RemoteAnswer(name, self._source(name), process.exchange, names.__contains__)

    def start(self, answer: str) -> Process:
        """A process that has run the cells and holds the answer. Raises AnswerFailed if it is not to be had.

        A cell that hangs, or ends the process, is left out from then on, for this exercise and all others.
        """
        while True:
            process = self._live_worker().fork()
            begun = ""
            try:
                send_frame(process.channel, self._opening(answer))
                message = decode(receive_frame(process.channel, _CELL_LIMIT))
                while isinstance(message, dict) and "begins" in message:
                    begun = str(message["begins"])
                    message = decode(receive_frame(process.channel, _CELL_LIMIT))
            except (TooSlow, ChannelClosed) as error:
                ended = process.end()
                if not self._leave_out(begun, error, ended):
                    raise AnswerFailed(
                        "Ended", f"The process of your code ended at once ({ended})."
                    ) from error
                continue
            except WireError as error:
                process.end()
                raise AnswerFailed("Unreadable", f"Your cells garbled what came back: {error}.") from error
            self._note_failures(message)
            if not message["defines"]:
                process.end()
                raise self._undefined(answer)
            return process

    def _opening(self, answer: str) -> bytes:
        cells = [[cell.name, cell.source] for cell in self.submission.cells if cell.name not in self._stuck]
        return encode({"cells": cells, "main": self.submission.main, "answer": answer})

    def _live_worker(self) -> Worker:
        """The worker, or a new one if code of the submission has found a way to end it."""
        if self._worker is None or not self._worker.alive:
            if self._worker is not None:
                self._worker.close()
            self._worker = Worker(Path(self._scratch.name))
            self._worker.order({"do": "import", "modules": self._modules()})
        return self._worker

    def _modules(self) -> list[str]:
        """What the cells import of the packages that are worth importing once."""
        found = {module for cell in self.submission.cells for module in _IMPORT.findall(cell.source)}
        return sorted(module for module in found if module.split(".")[0] in _IMPORTED_ONCE)

    def _leave_out(self, cell: str, error: Exception, ended: str) -> bool:
        """Note that a cell must not be run again; false if there is no such cell."""
        if cell in self._stuck or cell not in {cell.name for cell in self.submission.cells}:
            return False
        if isinstance(error, TooSlow):
            failure = CellFailure(cell, "TimedOut", f"It was still running after {CELL_SECONDS:g} s.")
        else:
            failure = CellFailure(cell, "Ended", f"It ended the whole process ({ended}).")
        self._stuck.add(cell)
        self.failures[cell] = failure
        return True

    def _note_failures(self, message: Any) -> None:
        """Remember the failures that a process tells of. Raises AnswerFailed if it tells nonsense."""
        try:
            told = [
                CellFailure(str(f["cell"]), str(f["kind"]), str(f["report"])) for f in message["failures"]
            ]
            sound = message.keys() == {"failures", "defines"} and type(message["defines"]) is bool
        except (TypeError, KeyError, AttributeError):
            sound, told = False, []
        if not sound:
            raise AnswerFailed("Unreadable", "Your cells garbled what came back from their process.")
        known = {cell.name for cell in self.submission.cells}
        for failure in told:
            if failure.cell in known:
                self.failures[failure.cell] = failure
                if failure.kind == "TimedOut":
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
            self._process.channel.settimeout(seconds + GRACE_SECONDS)
            send_frame(self._process.channel, request)
            return receive_frame(self._process.channel, seconds + GRACE_SECONDS)
        except TooSlow as error:
            self._end()
            raise AnswerFailed(
                "TimedOut", f"Your code was still running after {seconds:g} s and was stopped."
            ) from error
        except ChannelClosed as error:
            ended = self._end()
            raise AnswerFailed("Ended", f"Your code ended the whole process ({ended}).") from error

    def _end(self) -> str:
        process, self._process = self._process, None
        return process.end() if process else ""
