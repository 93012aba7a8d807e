"""Out of reach: a submission runs in processes of its own, and only plain data comes back from there.

A fork server (`graders.guest.fork_server`) has imported PyTorch. It forks a process in a sandbox, which
runs the submission's cells; for a launch one more for each rank, and what they send each other passes through
here (`graders.host.rank_server`). For each exercise these fork once more, and the fork does what the grader
asks. So each answer finds what the cells have made and nothing of what another answer has, and a hang or a
crash costs one exercise. The grader, its seeds and its expected values stay here.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from graders.grading.answer import AnswerFailed, FailureKind, Observed, PlainData
from graders.grading.text import joined
from graders.host import rank_server
from graders.host.fork_server_client import ForkServer, Process, SandboxFailed, acquire, end_all, release
from graders.protocol.codec import CodecError, decode, encode
from graders.protocol.drivers import find_driver
from graders.protocol.failures import STUB_SEEN, launch_failure
from graders.protocol.framing import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.protocol.limits import Limits
from graders.protocol.proxy import RemoteAnswer
from graders.protocol.records import check_fields
from graders.protocol.requests import NO_MORE_REQUESTS, LaunchRequest, kind_from_plain
from graders.submissions.cells import (
    Cell,
    CellFailure,
    definition_source,
    remember_source,
    timed_out,
)
from graders.submissions.read import Submission

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
        processes = _Processes(self, name, self._resting)
        self._resting = []
        try:
            yield _SandboxedAnswer(self, name, processes)
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

    def keeps_line(self, file: str) -> bool:
        """Whether a source file of this name is the submission's own."""
        return file in self._names

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
            return AnswerFailed(
                FailureKind.NOT_ATTEMPTED, f"{self.submission.name} does not define {answer}."
            )
        failure = self.failures.get(cell.name)
        if failure is None:
            return AnswerFailed(
                FailureKind.RAISED, f"The cells ran, but afterwards there was no {answer}.", "NameError"
            )
        if failure.is_stub:
            return AnswerFailed(FailureKind.NOT_ATTEMPTED, STUB_SEEN)
        said = f"The cell that defines {answer} failed.\n{failure.report}"
        return AnswerFailed(failure.kind, said, failure.error)

    def source(self, answer: str) -> str:
        """The text of the answer, empty if there is none."""
        cell = self._cell_of(answer)
        return definition_source(cell.source, answer) if cell else ""

    def _cell_of(self, answer: str) -> Cell | None:
        """The last cell that defines the answer, as Python would have it."""
        return next((cell for cell in reversed(self.submission.cells) if cell.defines(answer)), None)


class _SandboxedAnswer(RemoteAnswer):
    """An answer in processes of its own; its simulated ranks have one each, and speak through the grader."""

    def __init__(self, sandbox: Sandbox, name: str, processes: "_Processes") -> None:
        super().__init__(
            name, sandbox.source(name), processes.exchange, sandbox.keeps_line, sandbox.limits.call
        )
        self._processes = processes

    def observe(self, request: LaunchRequest) -> Observed[PlainData]:
        """See `RemoteAnswer.observe`."""
        if request.on != "simulated":
            return super().observe(request)
        try:
            run = self._processes.launch(request)
        except LaunchError as error:
            failure = launch_failure(error)
            self.printed = failure.printed or self.printed
            raise AnswerFailed(failure.kind, failure.report, failure.error, failure.deadlock) from error
        self.printed = joined(run.outputs) or self.printed
        unmatched = tuple(str(call) for call in run.unmatched)
        return Observed(run.results, run.outputs, tuple(run.events), unmatched)


class _Processes:
    """The processes of one answer: started when first asked for, and anew after they were lost.

    The first one serves calls, and is rank 0 of every launch. resting: processes that may become these.
    """

    def __init__(self, sandbox: Sandbox, name: str, resting: list[Process]) -> None:
        self._sandbox = sandbox
        self._name = name
        self._resting = resting
        self._running: list[Process] = []

    def exchange(self, request: bytes, seconds: float) -> bytes:
        """Send a request and wait for the reply. Raises AnswerFailed if none comes in time."""
        (process, *_) = self._first(1)
        try:
            process.channel.settimeout(seconds + self._sandbox.limits.grace)
            send_frame(process.channel, request)
            return receive_frame(process.channel, seconds + self._sandbox.limits.grace)
        except TooSlow as error:
            self.end()
            raise AnswerFailed(
                FailureKind.TIMED_OUT, f"Your code was still running after {seconds:g} s and was stopped."
            ) from error
        except ChannelClosed as error:
            ended, *_ = self.end()
            raise AnswerFailed(FailureKind.ENDED, f"Your code ended the whole process ({ended}).") from error

    def launch(self, request: LaunchRequest) -> Run:
        """Run a launch with a process a rank. Raises AnswerFailed, and what a launch raises."""
        find_driver(request.driver)
        processes = self._first(request.ranks)
        try:
            return rank_server.launch(
                request, processes, self._sandbox.limits.grace, self._sandbox.keeps_line
            )
        except rank_server.RankBroken as broken:
            ended = self.end()[broken.rank]
            said = f"Rank {broken.rank} {broken}."
            if broken.kind is FailureKind.ENDED:
                said = f"Your code ended the whole process of rank {broken.rank} ({ended})."
            raise AnswerFailed(broken.kind, said) from broken
        except LaunchError:
            self._rest(self._running[request.ranks :])
            raise
        except BaseException:
            self.end()
            raise

    def _first(self, count: int) -> list[Process]:
        """So many processes, started as far as they do not run yet."""
        self._wake(count)
        if not self._running:
            self._running.append(self._sandbox.start(self._name))
        missing = count - len(self._running)
        if missing > 0:
            self._running += self._sandbox.start_ranks(self._name, missing)
        return self._running[:count]

    def _wake(self, count: int) -> None:
        """Take what is missing from those that rest, as far as they are of use."""
        if not all(process.server.alive for process in self._resting):
            # They end with it, in a moment.
            self.end()
        try:
            while self._resting and len(self._running) < count:
                defined = self._sandbox.turn(self._resting[0], self._name)
                self._running.append(self._resting.pop(0))
                if not defined:
                    raise self._sandbox.undefined(self._name)
        except (TooSlow, ChannelClosed, CodecError):
            self.end()

    def rest(self) -> list[Process]:
        """Be done; returns those that can serve another answer."""
        self._rest(self._running)
        return self._resting

    def _rest(self, serving: Sequence[Process]) -> None:
        """Have all that run be done with the answer; `serving` have not been told so yet."""
        try:
            for process in serving:
                send_frame(process.channel, NO_MORE_REQUESTS)
            if self._sandbox.at_rest(self._running):
                self._running, self._resting = [], [*self._running, *self._resting]
                return
        except (TooSlow, ChannelClosed, CodecError):
            pass
        self.end()

    def end(self) -> list[str]:
        """End all; returns how those ended that ran."""
        running, resting = self._running, self._resting
        self._running, self._resting = [], []
        return end_all([*running, *resting])[: len(running)]
