"""A run as a trace file that https://ui.perfetto.dev and chrome://tracing open.

The format is Chrome's Trace Event Format, JSON object form: a node is a process, a rank two threads of it:
what the rank did itself, and what ran beside it (asynchronous calls). A viewer nests the slices of a thread,
so slices that overlap without one being within the other get further threads. The host of a device with a
queue is a thread, too. A message is a flow arrow from the slice of its send to that of its receive. What a
rank holds in memory is a counter of its node. Times are microseconds with three decimals: whole nanoseconds.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.cluster.topology import Cluster
from course_lib.figures.drawn_run import DrawnRun
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import Memory
from course_lib.runtime.communication.messages import Message, messages

TraceEvent = dict[str, Any]

_TRACKS_A_RANK = 1000
"""Thread numbers from rank * this on belong to a rank; its host's and the asynchronous ones start later."""

_HOST = _TRACKS_A_RANK // 4

_ASYNCHRONOUS = _TRACKS_A_RANK // 2


def save_trace(run: DrawnRun, path: str | Path) -> Path:
    """Write the events of a run as a trace file. Returns its path."""
    target = Path(path)
    clock = "virtual" if run.engine == "simulated" else "measured"
    content = {
        "traceEvents": trace_events(run.events, run.cluster, run.ranks),
        "displayTimeUnit": "ns",
        "otherData": {"engine": run.engine, "clock": clock, "ranks": run.ranks},
    }
    target.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return target


def trace_events(events: Iterable[Event], cluster: Cluster, ranks: int) -> list[TraceEvent]:
    """The trace events of a run: names of nodes and ranks, one slice or instant an event, flow arrows."""
    of_rank: dict[int, list[Event]] = {rank: [] for rank in range(ranks)}
    memory: list[Event] = []
    for event in events:
        (memory if event.kind is Kind.MEMORY else of_rank[event.rank]).append(event)
    names: list[TraceEvent] = []
    slices: list[TraceEvent] = []
    placed: dict[int, _Slice] = {}
    for node in sorted({cluster.node_of(rank) for rank in of_rank}):
        names.append(_metadata("process_name", node, 0, {"name": f"node {node}"}))
        names.append(_metadata("process_sort_index", node, 0, {"sort_index": node}))
    for rank, own in of_rank.items():
        node = cluster.node_of(rank)
        tracks = _tracks(own, rank)
        for track in tracks:
            names.append(_metadata("thread_name", node, track.number, {"name": track.name}))
            names.append(_metadata("thread_sort_index", node, track.number, {"sort_index": track.number}))
            for slice_ in track.slices:
                placed[id(slice_.event)] = slice_
                slices.append(_trace_event(slice_, node, track.number))
    flows = list(_flows(messages(e for own in of_rank.values() for e in own), placed, cluster))
    counters = _counters(memory, cluster, ranks)
    return [*names, *sorted([*slices, *flows, *counters], key=lambda each: each["ts"])]


@dataclass(frozen=True, slots=True)
class _Slice:
    """An event on its track; start and end in whole nanoseconds."""

    event: Event
    start: int
    end: int
    track: int


@dataclass(slots=True)
class _Track:
    """A thread of the trace, whose slices lie apart or within each other."""

    number: int
    name: str
    slices: list[_Slice] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)
    """Ends of the slices that the next one may lie in, the innermost last."""

    def take(self, event: Event) -> bool:
        """Add the event if it nests. Events come in order of their start, of equal ones the longer first."""
        start, end = _nanoseconds(event.start), _nanoseconds(event.end)
        while self._open and self._open[-1] <= start:
            self._open.pop()
        if self._open and end > self._open[-1]:
            return False
        self._open.append(end)
        self.slices.append(_Slice(event, start, end, self.number))
        return True


def _tracks(events: Sequence[Event], rank: int) -> list[_Track]:
    """The threads of one rank with its events on them. The rank's own is there even if it did nothing."""
    first = rank * _TRACKS_A_RANK
    own = [_Track(first, f"rank {rank}")]
    beside: list[_Track] = []
    host: list[_Track] = []
    for event in sorted(events, key=lambda e: (e.start, -e.end, e.kind is not Kind.SPAN, e.sequence)):
        name, tracks, number = f"rank {rank}", own, first
        if event.kind is Kind.HOST:
            name, tracks, number = f"{name} host", host, first + _HOST
        elif event.asynchronous:
            name, tracks, number = f"{name} asynchronous", beside, first + _ASYNCHRONOUS
        if any(track.take(event) for track in tracks):
            continue
        name += f" ({len(tracks) + 1})" if tracks else ""
        tracks.append(_Track(number + len(tracks), name))
        tracks[-1].take(event)
    return [*own, *host, *beside]


def _trace_event(slice_: _Slice, node: int, thread: int) -> TraceEvent:
    """A slice, or for an instant that the program marked an instant event of its thread."""
    event = slice_.event
    drawn: TraceEvent = {
        "name": event.op,
        "cat": str(event.kind),
        "pid": node,
        "tid": thread,
        "ts": slice_.start / 1000,
        "args": _arguments(event),
    }
    if event.kind is Kind.SPAN and slice_.start == slice_.end:
        return drawn | {"ph": "i", "s": "t"}
    return drawn | {"ph": "X", "dur": (slice_.end - slice_.start) / 1000}


def _arguments(event: Event) -> TraceEvent:
    """What a viewer shows when a slice is chosen. Only what says something."""
    known: TraceEvent = {"rank": event.rank, "sequence": event.sequence}
    if event.kind in (Kind.POINT_TO_POINT, Kind.COLLECTIVE):
        known |= {
            "nbytes": event.nbytes,
            "sent": event.sent,
            "received": event.received,
            "messages": event.messages,
            "group": list(event.group),
            "asynchronous": event.asynchronous,
        }
    if event.kind is Kind.POINT_TO_POINT:
        known["tag"] = event.tag
    if event.peer is not None:
        known["peer"] = event.peer
    if event.detail:
        known["detail"] = event.detail
    if event.line is not None:
        known["line"] = str(event.line)
    return known


def _flows(sent: Iterable[Message], placed: dict[int, _Slice], cluster: Cluster) -> Iterator[TraceEvent]:
    """An arrow a message: a start within the send's slice, an end within the receive's."""
    for number, message in enumerate(sent):
        source, target = placed[id(message.send)], placed[id(message.receive)]
        # A flow event belongs to the slice that encloses it, and a slice no longer holds its own end.
        arrives = max(target.start, target.end - 1, source.start)
        leaves = max(source.start, min(_nanoseconds(message.departure), source.end - 1, arrives))
        common: TraceEvent = {"name": "message", "cat": "message", "id": number}
        yield common | {
            "ph": "s",
            "pid": cluster.node_of(message.send.rank),
            "tid": source.track,
            "ts": leaves / 1000,
        }
        yield common | {
            "ph": "f",
            "bp": "e",
            "pid": cluster.node_of(message.receive.rank),
            "tid": target.track,
            "ts": arrives / 1000,
        }


def _counters(memory: Sequence[Event], cluster: Cluster, ranks: int) -> Iterator[TraceEvent]:
    """A counter a rank, with one series for each kind of memory."""
    if not memory:
        return
    for own in Memory.of(memory, ranks).ranks:
        for sample in own.samples:
            yield {
                "name": f"memory of rank {own.rank}",
                "cat": str(Kind.MEMORY),
                "ph": "C",
                "pid": cluster.node_of(own.rank),
                "tid": own.rank * _TRACKS_A_RANK,
                "ts": _nanoseconds(sample.seconds) / 1000,
                "args": sample.held,
            }


def _metadata(name: str, process: int, thread: int, arguments: TraceEvent) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
