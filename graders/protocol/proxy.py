"""An answer behind a border: requests go out as bytes, replies come back as bytes."""

from collections.abc import Callable
from typing import Protocol

from course_lib.cluster.topology import Cluster
from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from graders.grading.answer import AnswerFailed, FailureKind, GraderMistake, Observed, PlainData, Told
from graders.grading.text import joined
from graders.protocol.codec import CodecError
from graders.protocol.drivers import driver_name, reply_type
from graders.protocol.failures import launch_failure
from graders.protocol.from_plain import from_plain
from graders.protocol.limits import Limits
from graders.protocol.records import events_from_plain
from graders.protocol.requests import (
    CallRequest,
    Failure,
    Refusal,
    Request,
    RunRequest,
    Value,
    read_reply,
    write_request,
)


class Transport(Protocol):
    """Carries requests to an answer, and replies back."""

    def exchange(self, request: bytes, seconds: float) -> bytes:
        """The reply to a request that may take so long. Raises AnswerFailed if none comes."""
        ...

    def run(self, request: RunRequest) -> Run | None:
        """Run simulated ranks on this side of the border; None: on the other side, as the request says.

        Raises AnswerFailed, and what `course_lib.launch.launch` does.
        """
        ...

    def keeps_line(self, file: str) -> bool:
        """Whether to believe in a source file; see `graders.protocol.records.events_from_plain`."""
        ...


class RemoteAnswer:
    """An `Answer` on the other side of a transport."""

    def __init__(
        self,
        name: str,
        source: str,
        transport: Transport,
        call_seconds: float = Limits().call,
        source_of: Callable[[str], str] = lambda other: "",
    ) -> None:
        """source_of: the source text of another answer beside this one, by its exercise."""
        self.name = name
        self.source_of = source_of
        self.source = source
        self.printed = ""
        """What it printed when it last printed anything."""
        self._transport = transport
        self._call_seconds = call_seconds

    def call(
        self,
        driver: Callable[..., Told],
        *arguments: PlainData,
        timeout: float | None = None,
        computing: float = 0.0,
    ) -> Told:
        """See `graders.grading.answer.Answer.call`."""
        seconds = timeout or 3 * computing or self._call_seconds
        plain = self._ask(CallRequest(driver_name(driver), arguments, seconds, computing))
        return _told(driver, plain)

    def launch(
        self,
        driver: Callable[..., Told],
        *arguments: PlainData,
        ranks: int,
        cluster: Cluster | None = None,
        on: str = "simulated",
        timeout: float = 10.0,
        seed: int = 0,
        memory: bool = False,
    ) -> Observed[Told]:
        """See `graders.grading.answer.Answer.launch`."""
        request = RunRequest(driver_name(driver), arguments, ranks, cluster, on, timeout, seed, memory)
        observed = self.observe(request)
        results = [_told(driver, result) for result in observed.results]
        return Observed(results, observed.outputs, observed.events)

    def observe(self, request: RunRequest) -> Observed[PlainData]:
        """Run a launch and tell what it showed, results as they came. Raises AnswerFailed."""
        if request.on != "simulated":
            return self.observe_there(request)
        try:
            run = self._transport.run(request)
        except LaunchError as error:
            failure = launch_failure(error)
            self.printed = failure.printed or self.printed
            raise AnswerFailed(failure.kind, failure.report, failure.error, failure.deadlock) from error
        if run is None:
            return self.observe_there(request)
        self.printed = joined(run.outputs) or self.printed
        return Observed(run.results, run.outputs, tuple(run.events))

    def observe_there(self, request: RunRequest) -> Observed[PlainData]:
        """The same, of a launch that runs on the other side, whatever the ranks are there."""
        plain = self._ask(request)
        try:
            return self._observed(plain, request.ranks)
        except CodecError as error:
            raise _unreadable(error) from error

    def _ask(self, request: Request) -> PlainData:
        """The value that comes back. Raises AnswerFailed, or GraderMistake for a request without sense."""
        message = self._transport.exchange(write_request(request), request.timeout)
        try:
            reply = read_reply(message)
        except CodecError as error:
            raise _unreadable(error) from error
        match reply:
            case Value(value, printed):
                self.printed = printed or self.printed
                return value
            case Failure(kind, report, printed, raised, deadlock):
                self.printed = printed or self.printed
                raise AnswerFailed(kind, report, raised, deadlock)
            case Refusal(reason):
                raise GraderMistake(reason)

    def _observed(self, plain: PlainData, ranks: int) -> Observed[PlainData]:
        """A run from its plain data. Raises CodecError unless it is one of `ranks` ranks."""
        if type(plain) is not dict or plain.keys() != {"results", "outputs", "events"}:
            raise CodecError("what came back is no run")
        results, outputs = plain["results"], plain["outputs"]
        if type(results) is not list or len(results) != ranks:
            raise CodecError(f"what came back does not have {ranks} results")
        if not _texts(outputs) or len(outputs) != ranks:
            raise CodecError(f"what came back does not have the output of {ranks} ranks")
        events = events_from_plain(plain["events"], ranks, self._transport.keeps_line)
        return Observed(results, outputs, events)


def _told(driver: Callable[..., Told], plain: PlainData) -> Told:
    """What the driver returned, of the type that it is annotated with. Raises AnswerFailed."""
    try:
        told: Told = from_plain(plain, reply_type(driver), "the reply")
        return told
    except CodecError as error:
        raise _unreadable(error) from error


def _texts(value: PlainData) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _unreadable(error: CodecError) -> AnswerFailed:
    said = f"What came back from the process of your answer is no reply: {error}."
    return AnswerFailed(FailureKind.UNREADABLE, said)
