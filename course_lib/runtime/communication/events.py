"""What happened in a run, one record an operation a rank, in one format for every engine.

The simulator writes virtual seconds, the process engine measured ones; everything that reads events
(traffic, figures, traces, graders) is the same for both.
"""

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol, overload


class Kind(StrEnum):
    """What an event is about."""

    POINT_TO_POINT = "point-to-point"
    COLLECTIVE = "collective"
    COMPUTE = "compute"
    HOST = "host"
    """The host of a device that has a queue: `op` is "queues" or "waits"."""
    SPAN = "span"
    """A phase that the program itself named with `span`, or an instant that it named with `mark`."""
    COPY = "copy"
    """`nbytes` between the rank's device and its host: `op` is "to host" or "to device"."""
    MEMORY = "memory"
    """From this instant on the rank holds `nbytes` of the kind of memory that `op` names."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the student's code: where a call was made."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line itself, without indentation; empty where the source is not to be had."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self) -> str:
        """`cell In[3], line 5` in a notebook, `file.py, line 5` elsewhere."""
        return f"{_shown_name(self.file)}, line {self.line}"

    def __str__(self) -> str:
        text = self.text
        return f"{self.place}: {text}" if text else self.place


# Not frozen, though nobody changes one: a frozen one takes three times as long to make.
@dataclass(slots=True, unsafe_hash=True)
class Event:
    """One operation of one rank.

    `start` and `end` are seconds since the launch: virtual in the simulator, measured elsewhere. For an
    asynchronous operation they span from the call to its completion, whatever the rank did meanwhile.
    `sent` and `received` are the bytes that crossed this rank's link, `messages` how many messages it sent.
    For a collective these follow the usual algorithm (see `course_lib.runtime.communication.costs`); for a
    point-to-point call they are exact.
    """

    rank: int
    op: str
    """The name in `torch.distributed`: "send", "recv", "all_reduce" ...; for a span its label."""
    kind: Kind
    start: float
    end: float
    sequence: int
    """Position in the order in which the run's operations were posted."""
    nbytes: int = 0
    """Payload: bytes of the tensor that the call was given."""
    sent: int = 0
    received: int = 0
    messages: int = 0
    peer: int | None = None
    """Global rank of the other side, for point-to-point calls and rooted collectives (the root)."""
    group: tuple[int, ...] = ()
    """Global ranks of the process group."""
    tag: int = 0
    asynchronous: bool = False
    detail: str = ""
    """Shape, dtype and reduction, for people: `float32[4], SUM`."""
    line: SourceLine | None = None
    finished: bool = True
    """False for an operation that never completed; it ends where it began."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class LazyEvents(Sequence[Event]):
    """Events that are made when somebody first looks: a large run has millions, and not everyone looks."""

    def __init__(self, make: Callable[[], tuple[Event, ...]]) -> None:
        self._make = make

    @cached_property
    def _events(self) -> tuple[Event, ...]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...

    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        return self._events == (other._events if isinstance(other, LazyEvents) else other)

    __hash__ = None  # type: ignore[assignment]


class SpanRecorder(Protocol):
    """What an engine offers to the rank that runs in it."""

    def now(self) -> float: ...

    def record_span(self, label: str, start: float, end: float) -> None: ...


span_recorder: ContextVar[SpanRecorder | None] = ContextVar("span_recorder", default=None)
"""Set by an engine in each rank's context; None outside a launch, where marks and spans do nothing."""


@contextmanager
def span(label: str) -> Iterator[None]:
    """Name a phase of this rank's work on the timeline: `with span("backward"): loss.backward()`.

    Outside a launch it does nothing, so a training loop can keep its spans.
    """
    recorder = span_recorder.get()
    if recorder is None:
        yield
        return
    start = recorder.now()
    try:
        yield
    finally:
        recorder.record_span(label, start, recorder.now())


def mark(label: str) -> None:
    """Name an instant on this rank's timeline, as `span` names a phase."""
    with span(label):
        pass


def _shown_name(file: str) -> str:
    """The name under which a person knows a source file; for a notebook cell its number."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if shell is not None:
        named = shell.compile.format_code_name(file)
        if named is not None:
            return " ".join(named).lower().replace("in[", "In[")
    if file.startswith("<"):
        return file
    return file.rsplit("/", 1)[-1]
