"""A grader's view of an answer: it can be driven, and what comes back is plain data."""

from dataclasses import dataclass
from typing import Any, Protocol

from course_lib.cluster.topology import Cluster
from course_lib.launch.failures import Deadlock
from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.traffic import Traffic

PlainData = Any
"""None, bool, int, float, str, bytes, tensors, and lists, tuples and str-keyed dicts of these."""


NOT_ATTEMPTED = "not attempted"
"""The kind of `AnswerFailed` that says that the answer is still the stub."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a launch of the answer showed, as plain data. See `course_lib.launch.run.Run`."""

    results: list[PlainData]
    outputs: list[str]
    events: tuple[Event, ...]
    unmatched: tuple[str, ...]
    """Messages that nobody received, in words."""

    @property
    def traffic(self) -> Traffic:
        return Traffic.of(self.events, len(self.outputs))

    def calls(self, rank: int) -> list[str]:
        """The communication calls of a rank, by name, in order."""
        return [event.op for event in self.communication(rank)]

    def communication(self, rank: int) -> list[Event]:
        """The point-to-point and collective events of a rank, in the order in which it made them."""
        from course_lib.runtime.communication.traffic import COMMUNICATION

        return [e for e in self.events if e.rank == rank and e.kind in COMMUNICATION]


class AnswerFailed(Exception):
    """The answer did not come to an end: it raised, deadlocked, ran out of time.

    kind: "not attempted", or the error's class name: "RankFailed", "Deadlock", "CollectiveMismatch",
        "TimedOut", or, for a plain call, the exception's own ("ValueError").
    report: the whole story, for the student.
    deadlock: who waited for whom, if that is what happened and it is known.
    """

    def __init__(self, kind: str, report: str, deadlock: Deadlock | None = None) -> None:
        super().__init__(f"{kind}: {report}")
        self.kind = kind
        self.report = report
        self.deadlock = deadlock


class GraderMistake(Exception):
    """The grader, not the answer, did something wrong."""


class Answer(Protocol):
    """The student's function or class, wherever it runs: in this kernel, or in a sandbox.

    A driver is the name of a function in `graders/units/*/drivers.py`, "unit_02.average", that takes the
    answer and plain data and returns plain data. It runs beside the answer, so it holds no expected value.
    """

    name: str
    source: str
    """Source text of the answer, empty if it is not to be had."""

    def call(self, driver: str, *arguments: PlainData) -> PlainData:
        """driver(answer, *arguments). Raises AnswerFailed."""
        ...

    def launch(
        self,
        driver: str,
        *arguments: PlainData,
        ranks: int,
        cluster: Cluster | None = None,
        on: str = "simulated",
        timeout: float = 10.0,
        seed: int = 0,
    ) -> Observed:
        """driver(answer, *arguments) on every rank; arguments may be `per_rank`. Raises AnswerFailed."""
        ...
