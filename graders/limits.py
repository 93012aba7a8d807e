"""Bounds on what an answer may take up: time, and room for what it prints."""

import io
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from graders.usage import Bounds

PRINTED_CHARACTERS = 20_000
"""So much of what an answer prints is kept."""


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


class OutOfTime(BaseException):
    """Raised in running code when its time is up. No Exception, so that `except Exception` lets it pass."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the code of this block after `seconds`.

    Signals reach the main thread only, so there is no limit in any other. Code that swallows the exception
    goes on: whoever must be certain kills the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _raise_out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise_out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTime


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


def joined(outputs: Sequence[str]) -> str:
    """What the ranks of a launch printed, every line marked with its rank; the beginning of it."""
    marked = BoundedText()
    for rank, text in enumerate(outputs):
        for line in text.splitlines():
            marked.write(f"[rank {rank}] {line}\n")
    return marked.text()
