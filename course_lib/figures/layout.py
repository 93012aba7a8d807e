"""Where on a page the events of a run stand: rows of ranks, lanes within a row, a unit of time.

Pure arithmetic without drawing. Within a rank's row, from top to bottom: the phases that the program named,
what its host did, if its device has a queue, what the rank did itself (computing and blocking calls), and at
half height what ran beside it (asynchronous calls), one lane for each that run at the same time; last, if the
run has recorded it, what it held in memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.messages import RECEIVES

MAIN_HEIGHT = 1.0
SPAN_HEIGHT = 0.55
ASYNCHRONOUS_HEIGHT = 0.5
MEMORY_HEIGHT = 1.0
GAP = 0.35
_ABOVE_MEMORY = 0.12
"""Heights in units of a rank's main lane."""


def most_lanes(ranks: int) -> int:
    """How many phases within phases, and asynchronous calls at a time, get a lane of their own in a row."""
    return 4 if ranks <= 16 else 2 if ranks <= 32 else 1


class Category(Enum):
    """What a bar shows, apart from phases; the value is for people."""

    COMPUTE = "computing"
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"
    COPY = "copy to or from the host"
    QUEUES = "host queues"
    WAITS = "host waits"


@dataclass(frozen=True, slots=True)
class Bar:
    """An event's place: bottom and height in units of a main lane, y growing downwards."""

    event: Event
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Every event of some ranks in its place."""

    ranks: tuple[int, ...]
    bars: tuple[Bar, ...]
    phases: tuple[Bar, ...]
    marks: tuple[Bar, ...]
    """Named instants, which go across the whole row."""
    has_memory: bool
    row_height: float
    gap: float
    """What of the row's height is left free at its bottom; nothing if there are very many rows."""
    span_lanes: int
    has_hosts: bool

    def row_top(self, row: int) -> float:
        """Top of a row."""
        return row * self.row_height

    def memory_bottom(self, row: int) -> float:
        """Where a row's memory has no bytes; it grows upwards, to `MEMORY_HEIGHT` at most."""
        return self.row_top(row) + self.row_height - self.gap

    def main_middle(self, row: int) -> float:
        """The middle of a row's main lane, where its label stands."""
        above = self.span_lanes * SPAN_HEIGHT + self.has_hosts * ASYNCHRONOUS_HEIGHT
        return self.row_top(row) + above + MAIN_HEIGHT / 2

    @property
    def height(self) -> float:
        return len(self.ranks) * self.row_height


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit in which times of some length are easy to read."""

    name: str
    seconds: float


_UNITS = (TimeUnit("s", 1.0), TimeUnit("ms", 1e-3), TimeUnit("µs", 1e-6), TimeUnit("ns", 1e-9))


def time_unit(seconds: float) -> TimeUnit:
    """The largest unit of which `seconds` has at least one; µs for no time at all."""
    if seconds <= 0:
        return _UNITS[2]
    return next((unit for unit in _UNITS if seconds >= unit.seconds), _UNITS[-1])


def category(event: Event) -> Category:
    """What an event that is no phase is drawn as."""
    if event.kind is Kind.COMPUTE:
        return Category.COMPUTE
    if event.kind is Kind.COLLECTIVE:
        return Category.COLLECTIVE
    if event.kind is Kind.COPY:
        return Category.COPY
    if event.kind is Kind.HOST:
        return Category.WAITS if event.op == "waits" else Category.QUEUES
    return Category.RECEIVE if event.op in RECEIVES else Category.SEND


def arrange(events: Iterable[Event], ranks: Sequence[int]) -> Layout:
    """Give every event of `ranks` its place; the rows follow the order of `ranks`."""
    rows = [_Row.of(of_rank, most_lanes(len(ranks))) for of_rank in _by_rank(events, ranks)]
    span_lanes = max((_lanes(row.phases) for row in rows), default=0)
    asynchronous_lanes = max((_lanes(row.beside) for row in rows), default=0)
    has_hosts = any(row.host for row in rows)
    host_top = span_lanes * SPAN_HEIGHT
    main_top = host_top + has_hosts * ASYNCHRONOUS_HEIGHT
    beside_top = main_top + MAIN_HEIGHT
    gap = GAP if len(ranks) <= 64 else 0.0
    row_height = beside_top + asynchronous_lanes * ASYNCHRONOUS_HEIGHT + gap
    has_memory = any(row.has_memory for row in rows)
    if has_memory:
        row_height += MEMORY_HEIGHT + _ABOVE_MEMORY
    bars: list[Bar] = []
    phases: list[Bar] = []
    marks: list[Bar] = []
    for number, row in enumerate(rows):
        top = number * row_height
        phases.extend(Bar(event, top + lane * SPAN_HEIGHT, SPAN_HEIGHT) for event, lane in row.phases)
        bars.extend(Bar(event, top + host_top, ASYNCHRONOUS_HEIGHT) for event in row.host)
        bars.extend(Bar(event, top + main_top, MAIN_HEIGHT) for event in row.own)
        bars.extend(
            Bar(event, top + beside_top + lane * ASYNCHRONOUS_HEIGHT, ASYNCHRONOUS_HEIGHT)
            for event, lane in row.beside
        )
        marks.extend(Bar(event, top, row_height - gap) for event in row.marks)
    return Layout(
        tuple(ranks),
        tuple(bars),
        tuple(phases),
        tuple(marks),
        has_memory,
        row_height,
        gap,
        span_lanes,
        has_hosts,
    )


def in_lanes(events: Sequence[Event], most: int) -> Iterator[tuple[Event, int]]:
    """Each event with the first lane that is free when it starts; the last of `most` takes what does not fit.

    Of two that start together the longer comes first, so that a phase is above the phases within it.
    """
    free_from: list[float] = []
    for event in sorted(events, key=lambda e: (e.start, -e.end, e.sequence)):
        lane = next((lane for lane, free in enumerate(free_from) if free <= event.start), len(free_from))
        lane = min(lane, most - 1)
        if lane == len(free_from):
            free_from.append(event.end)
        free_from[lane] = max(free_from[lane], event.end)
        yield event, lane


def merged(bars: Sequence[tuple[float, float]], resolution: float) -> list[tuple[float, float]]:
    """Intervals (start, end) in one lane, those nearer to each other than `resolution` made one.

    An interval that is wide enough to be seen stays apart, so that only what would be a blur is merged.
    """
    result: list[tuple[float, float]] = []
    for start, end in sorted(bars):
        blurred = result and end - start < resolution and start - result[-1][1] < resolution
        if blurred and result[-1][1] - result[-1][0] < 64 * resolution:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


@dataclass(frozen=True, slots=True)
class _Row:
    """One rank's events, by where in its row they stand."""

    phases: list[tuple[Event, int]]
    marks: list[Event]
    host: list[Event]
    own: list[Event]
    beside: list[tuple[Event, int]]
    has_memory: bool

    @classmethod
    def of(cls, events: Sequence[Event], most: int) -> "_Row":
        named = [event for event in events if event.kind is Kind.SPAN]
        others = [event for event in events if event.kind not in (Kind.SPAN, Kind.MEMORY, Kind.HOST)]
        return cls(
            phases=list(in_lanes([event for event in named if event.end > event.start], most)),
            marks=[event for event in named if event.end <= event.start],
            host=[event for event in events if event.kind is Kind.HOST],
            own=[event for event in others if not event.asynchronous],
            beside=list(in_lanes([event for event in others if event.asynchronous], most)),
            has_memory=any(event.kind is Kind.MEMORY for event in events),
        )


def _by_rank(events: Iterable[Event], ranks: Sequence[int]) -> list[list[Event]]:
    """The events of each of `ranks`."""
    of: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        of[event.rank].append(event)
    return [of[rank] for rank in ranks]


def _lanes(placed: Sequence[tuple[Event, int]]) -> int:
    """How many lanes are used."""
    return max((lane + 1 for _, lane in placed), default=0)
