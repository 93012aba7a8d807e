"""Bounds on what an answer may take up: time, and room for what it prints."""

import io
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from graders.isolation.usage import Bounds

PRINTED_CHARACTERS = 20_000
"""So much of what an answer prints is kept."""


COMPUTING_SECONDS = 6.0
"""Processor time that a call, or a rank of a launch, may take where marks are given.

A loop without an end costs that much, however busy the machine is. It must do for importing what answers
use and the worker has not imported: torch's compiler, which its optimizers ask for, takes one to two.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that the parts of a submission may take, and what else. A launch brings a limit of its own."""

    cell: float = 20.0
    """One cell: those that train are marked as demonstrations and are not run."""
    call: float = 10.0
    """One call of an answer."""
    grace: float = 5.0
    """So much longer the process of code that does not stop by itself lives before it is killed."""
    bounds: Bounds = field(default_factory=Bounds)
    """What all processes behind one inner wall may take together."""


ALARMS = frozenset({signal.SIGALRM, signal.SIGPROF})
"""The signals by which `time_limit` works."""


class OutOfTime(BaseException):
    """Raised in running code when its time is up; as text, the time that was up.

    No Exception, so that `except Exception` lets it pass.
    """


@contextmanager
def time_limit(seconds: float, computing_seconds: float = 0.0) -> Iterator[None]:
    """Raise OutOfTime in the code of this block after `seconds`, or after so much computing, if any.

    computing_seconds: of processor time.

    Signals reach the main thread only, so there is no limit in any other. Code that swallows the exception
    goes on: whoever must be certain kills the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with (
        _alarm(signal.ITIMER_REAL, signal.SIGALRM, seconds, f"{seconds:g} s"),
        _alarm(
            signal.ITIMER_PROF, signal.SIGPROF, computing_seconds, f"{computing_seconds:g} s of computing"
        ),
    ):
        yield


@contextmanager
def _alarm(timer: int, signal_: signal.Signals, seconds: float, after: str) -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTime(after)

    before = signal.signal(signal_, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(signal_, before)


class BoundedText(io.TextIOBase):
    """A file that keeps the beginning of what is written to it and drops the rest."""

    def __init__(self, limit: int = PRINTED_CHARACTERS) -> None:
        self._parts: list[str] = []
        self._room = limit

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._room > 0:
            self._parts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self._parts.append("\n... the rest is not kept\n")
        return len(text)

    def text(self) -> str:
        """What was kept."""
        return "".join(self._parts)


def bounded(text: str) -> str:
    """The beginning of a text."""
    kept = BoundedText()
    kept.write(text)
    return kept.text()


def shortened(text: str, characters: int) -> str:
    """The text if it is not longer than that, else its beginning and dots."""
    return text if len(text) <= characters else text[: characters - 4] + " ..."


def joined(outputs: Sequence[str]) -> str:
    """What the ranks of a launch printed, every line marked with its rank; the beginning of it."""
    marked = BoundedText()
    for rank, text in enumerate(outputs):
        for line in text.splitlines():
            marked.write(f"[rank {rank}] {line}\n")
    return marked.text()
