"""Horovod's own timeline: what its coordinator has negotiated, fused and reduced, as it wrote it to a file.

The file is Chrome's Trace Event Format, JSON array form: see "Analyze Performance" in Horovod's
documentation. A "process" there is a tensor. Rank 0 alone writes it: the operations are those of rank 0,
and of the others it tells when the coordinator learnt that they were ready. Times here are seconds since
the file's beginning.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.runtime.communication.costs import traffic_of
from course_lib.runtime.communication.events import Event, Kind

TraceEvent = Mapping[str, Any]
"""An event as Horovod writes it."""

_NEGOTIATE = "NEGOTIATE_"

_TORCH_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ADASUM": "all_reduce",
    "ALLGATHER": "all_gather",
    "BROADCAST": "broadcast",
    "ALLTOALL": "all_to_all",
    "REDUCESCATTER": "reduce_scatter",
    "BARRIER": "barrier",
}
"""Horovod's operation -> its name in `torch.distributed`."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A phase of an operation, by Horovod's name for it: MEMCPY_IN_FUSION_BUFFER, GLOO_ALLREDUCE, ..."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TensorOperation:
    """One tensor's way through one operation.

    ready: rank -> when the coordinator learnt that it had submitted the tensor; empty where a cached response
        made the question unnecessary. asked: when the negotiation began; `start` if there was none.
    """

    tensor: str
    op: str
    """Horovod's name: "ALLREDUCE"."""
    asked: float
    start: float
    end: float
    ready: Mapping[int, float]
    activities: tuple[Activity, ...]
    nbytes: int
    detail: str
    """Dtype and shape of the result."""

    @property
    def last_ready(self) -> int | None:
        """The rank that the others waited for."""
        return max(self.ready, key=lambda rank: self.ready[rank], default=None)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tensor whose negotiation had not ended: some ranks had submitted it, and others not."""

    tensor: str
    op: str
    asked: float
    ready: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class HorovodTimeline:
    """All operations, in the order of their beginning."""

    operations: tuple[TensorOperation, ...]
    waiting: tuple[Waiting, ...] = ()
    cycles: tuple[float, ...] = ()
    """When the coordinator's cycles began, if Horovod was told to mark them."""
    began: float = 0.0
    """Zero of its times, in seconds since 1970."""

    def fused(self) -> list[tuple[TensorOperation, ...]]:
        """The operations by the messages that carried them: tensors of one fusion buffer go together.

        Horovod's background thread carries out one operation after the other, so those whose times overlap
        were one.
        """
        groups: list[list[TensorOperation]] = []
        for operation in self.operations:
            if groups and operation.start < groups[-1][-1].end:
                groups[-1].append(operation)
            else:
                groups.append([operation])
        return [tuple(group) for group in groups]

    def events(self, ranks: int, zero: float = 0.0) -> Iterator[Event]:
        """For each rank an event a fused operation, from when it was ready to the end.

        zero: what the timeline's own zero is on the clock of the events, in seconds.
        """
        for group in self.fused():
            op = _TORCH_NAMES.get(group[0].op, group[0].op.lower())
            nbytes = sum(each.nbytes for each in group)
            for rank in range(ranks):
                sent, received, messages = _traffic(op, nbytes, ranks, rank)
                yield Event(
                    rank=rank,
                    op=op,
                    kind=Kind.COLLECTIVE,
                    start=zero + min(each.ready.get(rank, each.asked) for each in group),
                    end=zero + group[-1].end,
                    sequence=0,
                    nbytes=nbytes,
                    sent=sent,
                    received=received,
                    messages=messages,
                    group=tuple(range(ranks)),
                    asynchronous=True,
                    detail=_told(group),
                )


def read_timeline(path: str | Path) -> HorovodTimeline:
    """Read the file that HOROVOD_TIMELINE named, as far as it was written."""
    return timeline_of(load_trace(path))


def load_trace(path: str | Path) -> list[dict[str, Any]]:
    """The events of a timeline file as Horovod writes them; of one whose writer was killed the whole ones."""
    text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    decoder, events, position = json.JSONDecoder(), [], text.find("[") + 1
    while match := _NEXT.match(text, position):
        try:
            event, position = decoder.raw_decode(text, match.end() - 1)
        except json.JSONDecodeError:
            break
        events.append(event)
    return events


_NEXT = re.compile(r"[\s,]*\{")


def timeline_of(trace: Iterable[TraceEvent]) -> HorovodTimeline:
    """Make operations of a trace's events."""
    tracks: defaultdict[int, _Track] = defaultdict(_Track)
    cycles, began = [], 0.0
    for event in trace:
        if event["ph"] == "M":
            arguments = event["args"]
            began = arguments.get("start_time_since_epoch_in_micros", began * 1e6) / 1e6
            tracks[event["pid"]].tensor = arguments.get("name", tracks[event["pid"]].tensor)
        elif event["ph"] == "i":
            cycles.append(event["ts"] / 1e6)
        else:
            tracks[event["pid"]].take(event)
    operations = sorted(
        (operation for track in tracks.values() for operation in track.operations),
        key=lambda each: each.start,
    )
    waiting = tuple(still for track in tracks.values() if (still := track.waiting()) is not None)
    return HorovodTimeline(tuple(operations), waiting, tuple(cycles), began)


class _Track:
    """What happens to one tensor, in the order in which the file has it."""

    def __init__(self) -> None:
        self.tensor = ""
        self.operations: list[TensorOperation] = []
        self._open: list[tuple[str, float]] = []
        self._asked: float | None = None
        self._ready: dict[int, float] = {}
        self._activities: list[Activity] = []

    def take(self, event: TraceEvent) -> None:
        """Take in the next event."""
        at = event["ts"] / 1e6
        match event["ph"]:
            case "B":
                self._open.append((event["name"], at))
            case "X":
                self._ready[int(event["name"])] = at
            case "E" if self._open:
                self._close(*self._open.pop(), at, event.get("args", {}))

    def waiting(self) -> Waiting | None:
        """The negotiation that has not ended."""
        if not self._open or not self._open[0][0].startswith(_NEGOTIATE):
            return None
        name, asked = self._open[0]
        return Waiting(self.tensor, name.removeprefix(_NEGOTIATE), asked, dict(self._ready))

    def _close(self, name: str, start: float, end: float, arguments: Mapping[str, str]) -> None:
        if self._open:
            self._activities.append(Activity(name, start, end))
        elif name.startswith(_NEGOTIATE):
            self._asked = start
        else:
            asked = start if self._asked is None else self._asked
            dtype, shape = arguments.get("dtype", ""), arguments.get("shape", "")
            self.operations.append(
                TensorOperation(
                    *(self.tensor, name, asked, start, end, dict(self._ready), tuple(self._activities)),
                    *(_bytes(dtype, shape), f"{dtype}{shape}"),
                )
            )
            self._asked, self._ready, self._activities = None, {}, []


def _bytes(dtype: str, shape: str) -> int:
    """Of a tensor whose dtype and shape are told as "float32" and "[10, 64]"; 0 where they are not."""
    bits = re.search(r"\d+$", dtype)
    width = int(bits[0]) // 8 if bits else int(dtype == "bool")
    return width * math.prod(map(int, re.findall(r"\d+", shape)))


def _traffic(op: str, nbytes: int, ranks: int, rank: int) -> tuple[int, int, int]:
    try:
        return traffic_of(op, nbytes, ranks, rank)
    except KeyError:
        return 0, 0, 0


def _told(group: Sequence[TensorOperation]) -> str:
    names = ", ".join(each.tensor for each in group[:3]) + (", ..." if len(group) > 3 else "")
    return f"{group[0].detail}, {names}" if len(group) == 1 else f"{len(group)} tensors fused: {names}"
