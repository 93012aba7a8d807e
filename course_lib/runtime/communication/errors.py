"""The ground of every error of a run: a call that waits, a rank's exception as text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from course_lib.runtime.communication.events import SourceLine


class BufferInUse(RuntimeError):
    """Memory of a call that is under way was given to another call, or written."""


class NeverWaited(RuntimeError):
    """Nobody waits for a call, and it was asked again and again whether it is over."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that a rank has made and that has not completed."""

    rank: int
    op: str
    peers: tuple[int, ...]
    """Global ranks it waits for; for a collective those that have not made the matching call."""
    expects: str
    """What the peers would have to do: "send", "receive", "call all_reduce"."""
    detail: str
    """The call for people: `recv(float32[4]) from rank 1, tag 0`."""
    line: SourceLine | None = None

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"rank {self.rank}: {self.detail}{where}"


@dataclass(frozen=True, slots=True)
class RankTraceback:
    """An exception that ended a rank, as text: it may come from another process."""

    rank: int
    type: str
    message: str
    traceback: str
    """Trimmed to the student's own frames."""
    secondary: bool = False
    """True for what another rank's end brought about, such as a closed connection."""


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Who waits for whom when no rank can go on."""

    waiting: tuple[PendingCall, ...]
    cycle: tuple[int, ...] = ()
    """Ranks of which each waits for the next one, and the last for the first."""
    finished: tuple[int, ...] = ()
    """Ranks that had returned."""
    lost: Mapping[int, float] = field(default_factory=dict)
    """Ranks that answer nothing any more, and since when, in virtual seconds."""
    ranks: int = 0
    """How many there are, if it is known; else those that are named."""
