"""What a rank writes down while it runs, so that the launcher knows it whatever becomes of the rank.

A call log is a file that the rank appends to and that is read as it grows. Every record is one write to the
kernel, so a rank that is killed between two instructions has still left all its records. No PyTorch here: a
rank of another environment writes one too.
"""

import marshal
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple, get_args

from course_lib.runtime.communication.events import SourceLine

Place = tuple[str, int, str]
"""File, line and function: a `SourceLine` in the form that is fast to write."""


class Started(NamedTuple):
    """The rank's group stands, its arguments are there; now its function begins."""

    at: float


class Known(NamedTuple):
    """A `Call` as it is wherever it is made again: from now on the log knows it by its place."""

    place: int
    op: str
    group: str
    members: tuple[int, ...]
    root: int | None
    tag: int
    reduction: str
    shape: tuple[str, tuple[int, ...]] | None
    """Name of the dtype, and the shape."""
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None
    nbytes: int
    strides: tuple[int, ...] | None
    asynchronous: bool
    line: Place | None


class Posted(NamedTuple):
    """A communication call, logged before it is made."""

    number: int
    at: float
    call: int
    """Its place."""
    peer: int | None
    waits: bool
    """Whether the rank's main thread waits for this call as part of it."""


class Waits(NamedTuple):
    """The rank's main thread now waits for call `number`."""

    number: int


class Resumed(NamedTuple):
    """The rank does not wait for call `number`, which is not over: the wait failed, or a GPU waits on, or a
    thread does that is not the main one.
    """

    number: int


class Done(NamedTuple):
    """Call `number` is over. `source` is who sent what a receive from anyone received."""

    number: int
    at: float
    source: int | None


class Spanned(NamedTuple):
    """A phase that the program named."""

    label: str
    start: float
    end: float


class Holds(NamedTuple):
    """From now on the rank holds so many bytes of a kind of memory."""

    at: float
    kind: str
    nbytes: int


class Failed(NamedTuple):
    """The rank's function raised; the exception as text, and the student's lines on its way."""

    at: float
    type: str
    message: str
    places: tuple[Place, ...]
    ending: str
    """The exception as the last lines of a traceback have it."""


class Returned(NamedTuple):
    """The rank's function has returned and its result is written."""

    at: float


Record = Started | Known | Posted | Waits | Resumed | Done | Spanned | Holds | Failed | Returned

_KINDS: tuple[type[Record], ...] = get_args(Record)
_KIND_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}

_LENGTH = struct.Struct("<I")


_clock_offset = 0.0


def set_clock_offset(seconds: float) -> None:
    """Have `now` tell the launcher's time: so much later than the clock of this machine."""
    global _clock_offset
    _clock_offset = seconds


def now() -> float:
    """Seconds on a clock that all processes of a launch share: the launcher's CLOCK_MONOTONIC."""
    return time.monotonic() + _clock_offset


CALL_LOG_LOST = os.EX_IOERR
"""Exit code of a rank that could not say any more what it does."""


class CallLogLost(OSError):
    """A rank's call log could not be written: most likely its disk is full."""


class CallLog:
    """The rank's end. Several threads may write. A record is there as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._writing = threading.Lock()
        self.records = 0
        """How many have been written."""

    def write(self, record: Record) -> None:
        """Write a record. Raises CallLogLost."""
        # Writer and reader are the same interpreter; marshal takes a tenth of pickle's time.
        fields = marshal.dumps((_KIND_NUMBERS[type(record)], *record))
        written = _LENGTH.pack(len(fields)) + fields
        with self._writing:
            self._append(written)
            self.records += 1

    def _append(self, whole: bytes) -> None:
        rest = memoryview(whole)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            # What comes later, once there is room again, must not follow half a record.
            os.ftruncate(self._file, os.fstat(self._file).st_size - (len(whole) - len(rest)))
            raise CallLogLost(
                error.errno,
                f"what this rank does cannot be recorded ({error.strerror}): make room on the disk of "
                f"temporary files, or set TMPDIR to a folder on another one",
            ) from None

    # --- What `course_lib.runtime.communication.events.span` asks of an engine

    def now(self) -> float:
        """Seconds on the machine's clock."""
        return now()

    def record_span(self, label: str, start: float, end: float) -> None:
        """Log a phase of the program."""
        self.write(Spanned(label, start, end))

    # --- What `course_lib.runtime.communication.memory_tracker` asks of one

    communicating = False
    """Never: what a backend needs is no tensor of the rank's thread."""

    def record_memory(self, kind: str, nbytes: int) -> None:
        """Log what the rank holds."""
        self.write(Holds(now(), kind, nbytes))


class RecordParser:
    """The launcher's end: records from bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, fresh: bytes) -> list[Record]:
        """The records that are complete now."""
        records, self._rest = _split(self._rest + fresh)
        return records


def _split(data: bytes) -> tuple[list[Record], bytes]:
    """The whole records at the start of `data`, and what is left of one that is not complete yet."""
    records: list[Record] = []
    start = 0
    while len(data) - start >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, start)
        end = start + _LENGTH.size + length
        if end > len(data):
            break
        kind, *fields = marshal.loads(memoryview(data)[start + _LENGTH.size : end])
        records.append(_KINDS[kind](*fields))
        start = end
    return records, data[start:]


def place_of(line: SourceLine | None) -> Place | None:
    """A source line in the form that is fast to write."""
    return None if line is None else (line.file, line.line, line.function)


def line_of(place: Place | None) -> SourceLine | None:
    """The source line again."""
    return None if place is None else SourceLine(*place)
