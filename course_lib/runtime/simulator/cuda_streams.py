"""`torch.cuda`'s streams and events on simulated ranks, in virtual time; anywhere else they are torch's own.

A stream is a queue of its own of the rank's device. What is queued while it is the present one begins after
what it holds already, and beside what other streams do: collectives and copies at the same time, computing
when the device computes for no other stream. An event is an instant in a stream. Here memory is never given
away while a stream still reads it, so `record_stream` has nothing to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor

from course_lib.runtime.simulator.engine import (
    RankEngine,
    current_engine,
    current_rank,
    host_goes_on_at,
)
from course_lib.runtime.simulator.replaced import replaced


class _RankStreams:
    """Those of a rank: all that were made, and which is the present one."""

    def __init__(self, engine: RankEngine, rank: int) -> None:
        self.engine, self.rank = engine, rank
        self.made: list[SimulatedStream] = []
        self.present = SimulatedStream._of(self)

    @classmethod
    def here(cls) -> "_RankStreams":
        """Those of the rank that this thread is."""
        engine, rank = current_engine.get(), current_rank.get()
        assert rank is not None
        known = _known.get()
        if known is None or known.engine is not engine:
            known = cls(engine, rank)
            _known.set(known)
        return known

    def switch(self, stream: "SimulatedStream") -> "SimulatedStream":
        """Make this the present one; returns the one before."""
        before, self.present = self.present, stream
        self.engine.switch_stream(self.rank, stream.number)
        return before


_known: ContextVar[_RankStreams | None] = ContextVar("rank_streams", default=None)


class SimulatedStream:
    """What `torch.cuda.Stream` is on a simulated rank, whose own it is."""

    number: int
    _streams: _RankStreams

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """A new one, on the rank's device whatever is named; off ranks torch's."""
        if current_rank.get() is None:
            return _STREAM(*arguments, **options)
        return cls._of(_RankStreams.here())

    @classmethod
    def _of(cls, streams: _RankStreams) -> Self:
        stream = super().__new__(cls)
        stream.number, stream._streams = len(streams.made), streams
        streams.made.append(stream)
        return stream

    @contextmanager
    def _present(self) -> Iterator[None]:
        before = self._streams.switch(self)
        try:
            yield
        finally:
            self._streams.switch(before)

    def wait_event(self, event: "SimulatedEvent") -> None:
        """What is queued from now on begins after the event. The program waits for nothing."""
        if event.seconds is not None:
            with self._present():
                self._streams.engine.wait_until(self._streams.rank, event.seconds)

    def wait_stream(self, stream: "SimulatedStream") -> None:
        """What is queued from now on begins after what the other stream holds now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "SimulatedEvent | None" = None) -> "SimulatedEvent":
        """An event after what the stream holds now."""
        event = SimulatedEvent(enable_timing=True) if event is None else event
        engine, rank = self._streams.engine, self._streams.rank
        with self._present():
            event.seconds = max(engine.now(rank), engine.host_now(rank))
        return event

    def synchronize(self) -> None:
        """The program waits until the stream has done what it holds."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Whether it has done everything by now."""
        return self.record_event().query()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream {self.number} of simulated rank {self._streams.rank}>"


class SimulatedEvent:
    """What `torch.cuda.Event` is on a simulated rank."""

    seconds: float | None
    """Virtual time; None: not recorded."""
    _timing: bool

    def __new__(cls, enable_timing: bool = False, *arguments: Any, **options: Any) -> Any:
        """A new one, not recorded; off ranks torch's."""
        if current_rank.get() is None:
            return _EVENT(enable_timing, *arguments, **options)
        event = super().__new__(cls)
        event.seconds, event._timing = None, enable_timing
        return event

    def record(self, stream: SimulatedStream | None = None) -> None:
        """After what the stream holds now, by default the present one."""
        (stream or _RankStreams.here().present).record_event(self)

    def wait(self, stream: SimulatedStream | None = None) -> None:
        """What is queued from now on in the stream, by default the present one, begins after it."""
        (stream or _RankStreams.here().present).wait_event(self)

    def synchronize(self) -> None:
        """The program waits for it."""
        if self.seconds is not None:
            streams = _RankStreams.here()
            host_goes_on_at(streams.engine, streams.rank, self.seconds)

    def query(self) -> bool:
        """Whether it has come by now."""
        streams = _RankStreams.here()
        return self.seconds is None or streams.engine.host_now(streams.rank) >= self.seconds

    def elapsed_time(self, end_event: "SimulatedEvent") -> float:
        """Milliseconds until another. Raises RuntimeError unless both were recorded, with timing."""
        if not (self._timing and end_event._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.seconds is None or end_event.seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (end_event.seconds - self.seconds)


_STREAM: Any = torch.cuda.Stream
_EVENT: Any = torch.cuda.Event


@contextmanager
def _stream(stream: SimulatedStream | None) -> Iterator[None]:
    """`torch.cuda.stream` of a rank."""
    if stream is None:
        yield
        return
    with stream._present():
        yield


def _synchronize(device: Any = None) -> None:
    for stream in _RankStreams.here().made:
        stream.synchronize()


_ON_RANKS = {
    "stream": _stream,
    "current_stream": lambda device=None: _RankStreams.here().present,
    "default_stream": lambda device=None: _RankStreams.here().made[0],
    "synchronize": _synchronize,
}


@contextmanager
def simulated_streams() -> Iterator[None]:
    """While it is entered, ranks have streams; whoever is none has what torch has."""
    torchs: dict[str, Any] = {name: getattr(torch.cuda, name) for name in _ON_RANKS}
    keeps_until = Tensor.record_stream

    def either(name: str) -> Any:
        @wraps(torchs[name])
        def called(*arguments: Any, **options: Any) -> Any:
            on_rank: Any = _ON_RANKS[name]
            return (torchs[name] if current_rank.get() is None else on_rank)(*arguments, **options)

        return called

    def record_stream(tensor: Tensor, stream: Any) -> None:
        if current_rank.get() is None:
            keeps_until(tensor, stream)

    simulated = {name: either(name) for name in _ON_RANKS} | {
        "Stream": SimulatedStream,
        "Event": SimulatedEvent,
    }
    with replaced(torch.cuda, **simulated), replaced(Tensor, record_stream=record_stream):
        yield
