"""Reaching one answer of a submission: its processes, and what is asked of them."""

from collections.abc import Sequence
from typing import Protocol

from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from graders.grading.answer import AnswerFailed, FailureKind
from graders.host.fork_server_client import Process, end_all
from graders.host.launch_state import RankBroken
from graders.host.rank_launch import launch
from graders.protocol.codec import CodecError
from graders.protocol.drivers import find_driver
from graders.protocol.framing import ChannelClosed, TooSlow, receive_frame, send_frame
from graders.protocol.limits import Limits
from graders.protocol.requests import NO_MORE_REQUESTS, RunRequest


class Source(Protocol):
    """Where processes that have run a submission's cells come from: `graders.host.sandbox.Sandbox`."""

    limits: Limits

    def start(self, answer: str) -> Process:
        """One that serves the answer. Raises AnswerFailed if it is not to be had."""
        ...

    def start_ranks(self, answer: str, count: int) -> list[Process]:
        """More of them, for ranks. Raises AnswerFailed if they differ from the first."""
        ...

    def turn(self, process: Process, answer: str) -> bool:
        """Have one that rests serve this answer; whether it has it."""
        ...

    def at_rest(self, processes: Sequence[Process]) -> bool:
        """Whether all that are done with their answer can serve another."""
        ...

    def undefined(self, answer: str) -> AnswerFailed:
        """Why there is no such answer."""
        ...

    def has_cell(self, name: str) -> bool:
        """Whether the submission has a cell of this name."""
        ...


class SandboxTransport:
    """A `graders.protocol.proxy.Transport` to the processes of one answer.

    They are started when first asked for, and anew after they were lost. The first one serves calls, and is
    rank 0 of every launch. resting: processes that may become these.
    """

    def __init__(self, source: Source, name: str, resting: list[Process]) -> None:
        self._source = source
        self._name = name
        self._resting = resting
        self._running: list[Process] = []

    def exchange(self, request: bytes, seconds: float) -> bytes:
        """See `Transport`."""
        (process, *_) = self._first(1)
        try:
            process.channel.settimeout(seconds + self._source.limits.grace)
            send_frame(process.channel, request)
            return receive_frame(process.channel, seconds + self._source.limits.grace)
        except TooSlow as error:
            self.end()
            raise AnswerFailed(
                FailureKind.TIMED_OUT, f"Your code was still running after {seconds:g} s and was stopped."
            ) from error
        except ChannelClosed as error:
            ended, *_ = self.end()
            raise AnswerFailed(FailureKind.ENDED, f"Your code ended the whole process ({ended}).") from error

    def run(self, request: RunRequest) -> Run:
        """See `Transport`: a process a rank, between which messages pass through here."""
        find_driver(request.driver)
        processes = self._first(request.ranks)
        try:
            return launch(request, processes, self._source.limits.grace, self.keeps_line)
        except RankBroken as broken:
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

    def keeps_line(self, file: str) -> bool:
        """See `Transport`: the submission's own."""
        return self._source.has_cell(file)

    def _first(self, count: int) -> list[Process]:
        """So many processes, started as far as they do not run yet."""
        self._wake(count)
        if not self._running:
            self._running.append(self._source.start(self._name))
        missing = count - len(self._running)
        if missing > 0:
            self._running += self._source.start_ranks(self._name, missing)
        return self._running[:count]

    def _wake(self, count: int) -> None:
        """Take what is missing from those that rest, as far as they are of use."""
        if not all(process.server.alive for process in self._resting):
            # They end with it, in a moment.
            self.end()
        try:
            while self._resting and len(self._running) < count:
                defined = self._source.turn(self._resting[0], self._name)
                self._running.append(self._resting.pop(0))
                if not defined:
                    raise self._source.undefined(self._name)
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
            if self._source.at_rest(self._running):
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
