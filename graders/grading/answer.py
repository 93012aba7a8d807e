"""A grader's view of an answer: it can be driven, and what comes back is plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from course_lib.cluster.topology import Cluster
from course_lib.launch.failures import Deadlock
from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.memory import Memory
from course_lib.runtime.communication.traffic import Traffic

PlainData = Any
"""None, bool, int, float, str, bytes, tensors, and lists, tuples and str-keyed dicts of these."""

AnswerFunction = Callable[..., Any]
"""The student's function or class itself, as a driver gets it."""

Told = TypeVar("Told")
"""What a driver returns."""


class DriverReply:
    """Base of the frozen dataclasses that drivers return.

    They cross as dictionaries of their fields, and each field that arrives has to be of the type that stands
    beside it: a process that the student's code has taken over can send anything.
    """

    __slots__ = ()


class FailureKind(StrEnum):
    """How an answer did not come to its end."""

    NOT_ATTEMPTED = "not attempted"
    """It is still the stub."""
    RAISED = "Raised"
    NOT_PLAIN = "NotPlainData"
    """It returned something that cannot be handed over."""
    RANK_FAILED = "RankFailed"
    DEADLOCK = "Deadlock"
    MISMATCH = "CollectiveMismatch"
    TIMED_OUT = "TimedOut"
    LEFT_OPEN = "LeftOpen"
    """All ranks returned, and some call was never answered or never waited for."""
    ENDED = "Ended"
    """Its process ended."""
    UNREADABLE = "Unreadable"
    """What came back from its process is no reply."""
    NOT_ASKED = "NotAsked"
    """The grader has seen enough, and does not ask it for more."""


@dataclass(frozen=True, slots=True)
class Observed(Generic[Told]):
    """What a launch of the answer showed, as plain data. See `course_lib.launch.run.Run`."""

    results: list[Told]
    outputs: list[str]
    events: tuple[Event, ...]

    @property
    def traffic(self) -> Traffic:
        return Traffic.of(self.events, len(self.outputs))

    @property
    def memory(self) -> Memory:
        """What each rank held in memory, of a launch with memory=True.

        It is counted beside the answer, in the answer's own process, where code that means to can forge it.
        """
        return Memory.of(self.events, len(self.outputs))

    def calls(self, rank: int) -> list[str]:
        """The communication calls of a rank, by name, in order."""
        return [event.op for event in self.communication(rank)]

    def communication(self, rank: int) -> list[Event]:
        """The point-to-point and collective events of a rank, in the order in which it made them."""
        from course_lib.runtime.communication.traffic import COMMUNICATION

        return [e for e in self.events if e.rank == rank and e.kind in COMMUNICATION]


class AnswerFailed(Exception):
    """The answer did not come to an end: it raised, deadlocked, ran out of time.

    report: the whole story, for the student.
    error: the class of the exception, by name, that it or the first rank to fail raised; else empty.
    deadlock: who waited for whom, if that is what happened and it is known.
    """

    def __init__(
        self, kind: FailureKind, report: str, error: str = "", deadlock: Deadlock | None = None
    ) -> None:
        super().__init__(f"{error or kind}: {report}")
        self.kind = kind
        self.report = report
        self.error = error
        self.deadlock = deadlock


class GraderMistake(Exception):
    """The grader, not the answer, did something wrong."""


class Answer(Protocol):
    """The student's function or class, wherever it runs: in this kernel, or in a sandbox.

    A driver is a function of `graders/units/*/drivers.py` that takes the answer and plain data and returns
    plain data, or a `DriverReply`. It runs beside the answer, so it holds no expected value.
    """

    name: str
    source: str
    """Source text of the answer, empty if it is not to be had."""

    def source_of(self, other: str) -> str:
        """Source text of the answer to another exercise of the unit; empty if it is not to be had."""
        ...

    def call(
        self,
        driver: Callable[..., Told],
        *arguments: PlainData,
        timeout: float | None = None,
        computing: float = 0.0,
    ) -> Told:
        """driver(answer, *arguments), within `timeout` seconds, by default those of any call. Raises
        AnswerFailed.

        computing: seconds of processor time that it may take, for an answer that has to be fast: they are the
            same on a busy machine. The clock may then run three times as long.
        """
        ...

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
        """driver(answer, *arguments) on every rank; arguments may be `per_rank`. Raises AnswerFailed."""
        ...
