"""Out of reach: a submission runs in processes of its own, and only plain data comes back from there.

A fork server (`graders.guest.fork_server`) has imported PyTorch. It forks a process in a sandbox, which
runs the submission's cells; for a launch one more for each rank, and what they send each other passes through
here (`graders.host.rank_launch`). For each exercise these fork once more, and the fork does what the grader
asks. So each answer finds what the cells have made and nothing of what another answer has, and a hang or a
crash costs one exercise. The grader, its seeds and its expected values stay here.
"""

import difflib
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from graders.grading.answer import AnswerFailed, FailureKind, PlainData
from graders.grading.exercise import REGISTRY
from graders.host.fork_server_client import ForkServer, Process, SandboxFailed, acquire, end_all, release
from graders.host.transport import SandboxTransport
from graders.protocol.codec import CodecError, decode, encode
from graders.protocol.failures import STUB_SEEN
from graders.protocol.framing import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.protocol.limits import Limits
from graders.protocol.proxy import RemoteAnswer
from graders.protocol.records import check_fields
from graders.protocol.requests import kind_from_plain
from graders.submissions.cells import (
    Cell,
    CellFailure,
    definition_source,
    remember_source,
    timed_out,
)
from graders.submissions.read import Submission

DEFAULT_LIMITS = Limits()
_LONGEST_NAME, _MOST_NAMES = 80, 200
"""Of what a submission defines so many names, and no longer ones, are compared with an answer's."""


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
        self._server: ForkServer | None = None
        self._resting: list[Process] = []
        """Processes that serve no answer at present; the first one not only as a rank."""

    def __enter__(self) -> Self:
        for cell in self.submission.cells:
            remember_source(cell)
        # Now, so that a sandbox that does not work here is not taken for answers that do not.
        self._live_server()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_resting()
        if self._server is not None:
            release(self._server)

    @contextmanager
    def answer(self, name: str) -> Iterator[RemoteAnswer]:
        """The answer of this name, whether or not the submission has it: that shows when it is asked."""
        processes = SandboxTransport(self, name, self._resting)
        self._resting = []
        try:
            yield RemoteAnswer(name, self.source(name), processes, self.limits.call, self.source)
        finally:
            if self.has_inner_sandboxes:
                self._resting = processes.rest()
            else:
                processes.end()

    def _end_resting(self) -> None:
        end_all(self._resting)
        self._resting = []

    @property
    def has_inner_sandboxes(self) -> bool:
        """Whether its processes are out of each other's reach, and not only out of everybody else's."""
        return not self._live_server().no_namespaces

    def start_ranks(self, answer: str, count: int) -> list[Process]:
        """More processes that have run the cells and serve the answer, after `start` has given one.

        Raises AnswerFailed if they differ from that one.
        """
        server = self._live_server()
        processes = [server.fork(self.limits.bounds.of_a_rank) for _ in range(count)]
        try:
            for process in processes:
                send_frame(process.channel, self._opening())
            # They run their cells at the same time.
            for process in processes:
                self._hear_of_cells(process.channel, [])
            if all(self.turn(process, answer) for process in processes):
                return processes
        except (TooSlow, ChannelClosed, CodecError):
            pass
        end_all(processes)
        raise AnswerFailed(
            FailureKind.ENDED, f"The cells ran in one process, but not in each of {count + 1}, a rank each."
        )

    def start(self, answer: str) -> Process:
        """A process that has run the cells and serves the answer. Raises AnswerFailed if it is not to be had.

        A cell that hangs, or ends the process, is left out from then on, for this exercise and all others.
        """
        while True:
            process = self._fork()
            begun: list[str] = []
            try:
                send_frame(process.channel, self._opening())
                self._hear_of_cells(process.channel, begun)
                defined = self.turn(process, answer)
            except (TooSlow, ChannelClosed) as error:
                self._leave_out(begun, error, process.end())
                continue
            except CodecError as error:
                process.end()
                raise AnswerFailed(
                    FailureKind.UNREADABLE, f"Your cells garbled what came back: {error}."
                ) from error
            if defined:
                return process
            process.end()
            raise self.undefined(answer)

    def turn(self, process: Process, answer: str) -> bool:
        """Have a process that serves no answer serve this one; whether it has it.

        Raises TooSlow, ChannelClosed or CodecError.
        """
        send_frame(process.channel, encode({"answer": answer}))
        return self._hear(process, "defines", self.limits.cell + self.limits.grace)

    def at_rest(self, processes: Sequence[Process]) -> bool:
        """Wait for processes that were told to be done with their answer; whether all can serve another.

        Raises TooSlow, ChannelClosed or CodecError.
        """
        return all(self._hear(process, "at_rest", self.limits.grace) for process in processes)

    def _hear(self, process: Process, what: str, seconds: float) -> bool:
        message = decode(receive_frame(process.channel, seconds))
        if type(message) is not dict or message.keys() != {what}:
            raise CodecError(f"it does not say {what}")
        return message[what] is True

    def _hear_of_cells(self, channel: socket.socket, begun: list[str]) -> None:
        """Wait until the cells have run, and note those that failed.

        `begun` receives the name of each cell before it runs. Raises TooSlow, ChannelClosed or CodecError.
        """
        for _ in range(len(self.submission.cells) + 1):
            message = decode(receive_frame(channel, self.limits.cell + self.limits.grace))
            if type(message) is not dict:
                break
            if message.keys() == {"failures"}:
                self._note_failures(message["failures"])
                return
            begun.append(str(message.get("begins")))
        raise CodecError("it is no account of how the cells ran")

    def _opening(self) -> bytes:
        cells = [[cell.name, cell.source] for cell in self.submission.cells if cell.name not in self._stuck]
        return encode({"cells": cells, "main": self.submission.main, "seconds": self.limits.cell})

    def _fork(self) -> Process:
        """A new process of the server, or of the next one should this one just have been lost."""
        try:
            return self._live_server().fork(self.limits.bounds)
        except SandboxFailed:
            return self._live_server().fork(self.limits.bounds)

    def _live_server(self) -> ForkServer:
        """The server, or a new one if code of the submission has found a way to end it."""
        if self._server is None or not self._server.alive:
            self._server = acquire()
        return self._server

    def _leave_out(self, begun: list[str], error: Exception, ended: str) -> None:
        """Note that the cell that ran last must not run again. Raises AnswerFailed if there is none."""
        cell = begun[-1] if begun else ""
        if cell in self._stuck or cell not in self._names:
            raise AnswerFailed(
                FailureKind.ENDED, f"The process of your code ended at once ({ended})."
            ) from error
        if isinstance(error, TooSlow):
            self.failures[cell] = timed_out(cell, self.limits.cell)
        else:
            self.failures[cell] = CellFailure(
                cell, FailureKind.ENDED, f"It ended the whole process ({ended})."
            )
        self._stuck.add(cell)

    def _note_failures(self, told: PlainData) -> None:
        """Remember the failures that a process tells of. Raises CodecError if it tells nonsense."""
        if type(told) is not list:
            raise CodecError("the failed cells are not a list")
        for plain in told:
            check_fields(plain, dict.fromkeys(("cell", "kind", "report", "error"), (str,)), "a failed cell")
            failure = CellFailure(**{**plain, "kind": kind_from_plain(plain["kind"])})
            if failure.cell in self._names:
                self.failures[failure.cell] = failure
                if failure.kind is FailureKind.TIMED_OUT:
                    self._stuck.add(failure.cell)

    def undefined(self, answer: str) -> AnswerFailed:
        """Why there is no answer: its cell is missing, is the stub, or failed before it came that far."""
        cell = self._cell_of(answer)
        if cell is None:
            said = f"{self.submission.name} does not define {answer}.{self._renamed(answer)}"
            return AnswerFailed(FailureKind.NOT_ATTEMPTED, said)
        failure = self.failures.get(cell.name)
        if failure is None:
            return AnswerFailed(
                FailureKind.RAISED, f"The cells ran, but afterwards there was no {answer}.", "NameError"
            )
        if failure.is_stub:
            return AnswerFailed(FailureKind.NOT_ATTEMPTED, STUB_SEEN)
        said = f"The cell that defines {answer} failed.\n{failure.report}"
        return AnswerFailed(failure.kind, said, failure.error)

    def _renamed(self, answer: str) -> str:
        """A sentence that names what the answer may be called there; empty if nothing is called alike."""
        others = {name for cell in self.submission.cells for name in cell.definitions}
        others -= {name for unit in REGISTRY.values() for name in unit}
        short = sorted(name for name in others if len(name) <= _LONGEST_NAME)[:_MOST_NAMES]
        close = difflib.get_close_matches(answer, short, n=1)
        return f" Is {close[0]} meant to be it? An answer has the name of its exercise." if close else ""

    def source(self, answer: str) -> str:
        """The text of the answer, empty if there is none."""
        cell = self._cell_of(answer)
        return definition_source(cell.source, answer) if cell else ""

    def has_cell(self, name: str) -> bool:
        """Whether the submission has a cell of this name."""
        return name in self._names

    def _cell_of(self, answer: str) -> Cell | None:
        """The last cell that defines the answer, as Python would have it."""
        return next((cell for cell in reversed(self.submission.cells) if cell.defines(answer)), None)
