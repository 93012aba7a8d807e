"""What a rank's process group asks of whatever runs the rank."""

from collections.abc import Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Protocol

from course_lib.runtime.communication.call import Group, Operation


class Ending(Enum):
    """How a run ended, as its driver saw it."""

    FINISHED = "every rank returned"
    STUCK = "no rank can go on"
    OUT_OF_TIME = "the deadline passed"


class RankStopped(BaseException):
    """Unwinds a rank when its run is over. Not an Exception, so that `except Exception` lets it pass."""


class RankEngine(Protocol):
    """The other side of a rank's calls. All methods are called by the rank itself, in its own thread."""

    @property
    def communicating(self) -> bool:
        """Whether data is being moved, which is not computing."""
        ...

    def group(self, name: str, members: Sequence[int]) -> Group:
        """The group of this name and these members: the same object for every rank that asks."""
        ...

    def post(self, operation: Operation) -> None:
        """Begin an operation now."""
        ...

    def wait(self, operation: Operation) -> None:
        """Return when the operation is done."""
        ...

    def wait_for_data(self, operation: Operation) -> None:
        """Return when the operation's data is there, without moving the rank's clock."""
        ...

    def poll(self, operation: Operation) -> bool:
        """Whether the operation is over by now; asking takes a little virtual time."""
        ...

    def is_done(self, operation: Operation) -> bool:
        """Whether the operation is over; asking takes no time."""
        ...

    def compute(self, rank: int, seconds: float) -> None:
        """Charge the rank for computing."""
        ...

    def now(self, rank: int) -> float:
        """The rank's clock, in virtual seconds: when its device has done what it was given so far."""
        ...

    def host_now(self, rank: int) -> float:
        """When the rank's host has given its device all that; earlier, if the program runs ahead."""
        ...

    def host_wait(self, rank: int, until: float | None = None) -> None:
        """The host waits for its device, or until an instant. Nothing happens if the two go in step."""
        ...

    def switch_stream(self, rank: int, number: int) -> None:
        """What the rank queues from now on goes to this stream of its device; `now` is that stream's."""
        ...

    def copy(self, rank: int, nbytes: int, to_host: bool, earliest: float) -> float:
        """Begin a copy between the rank's device and its host, not before `earliest`; returns its end."""
        ...

    def wait_until(self, rank: int, clock: float) -> None:
        """Return when the rank's clock has come that far, in virtual seconds."""
        ...

    def record_span(self, rank: int, label: str, start: float, end: float) -> None:
        """Add a phase that the program has named; start and end are what `now` said."""
        ...

    def record_memory(self, rank: int, kind: str, nbytes: int) -> None:
        """Add that the rank now holds so many bytes of a `MemoryKind`."""
        ...


current_rank: ContextVar[int | None] = ContextVar("current_rank", default=None)
"""The simulated rank that this thread is; None in every other thread."""

current_engine: ContextVar[RankEngine] = ContextVar("current_engine")
"""What runs the rank that this thread is."""


def host_goes_on_at(engine: RankEngine, rank: int, instant: float) -> None:
    """The program waits until an instant, and so does the device where the two go in step."""
    engine.host_wait(rank, instant)
    if engine.host_now(rank) < instant:
        engine.wait_until(rank, instant)
