"""What a timeline's rows hold: bars of calls and phases, marks, and arrows of messages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch

from course_lib.figures.layout import Bar, Category, Layout, TimeUnit, category, merged
from course_lib.figures.style import CHARACTER_INCHES, COLOURS, WIDTH
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.messages import Message

_MOST_LABELLED_BARS = 400
_MOST_DETAILED_BARS = 5000
LABEL_INCHES = 0.17
_DETAIL_INCHES = 0.09
"""A main lane must be so high that its bars can have edges, hatches and markers."""

_EDGE = "#222222"


@dataclass(frozen=True, slots=True)
class _Paint:
    """How one sort of bar looks."""

    colour: str
    hatch: str
    ink: str
    """Colour of the hatch: darker than the ground, paler than what is written on it."""
    words: str

    def handle(self) -> Patch:
        """What stands for it in a legend."""
        return Patch(
            facecolor=self.colour,
            edgecolor=_EDGE,
            linewidth=0.6,
            hatch=self.hatch,
            hatchcolor=self.ink,
            label=self.words,
        )

    def plain(self) -> "_Paint":
        """The same without a hatch, for bars too small to show it."""
        return replace(self, hatch="")


_PAINTS: Mapping[Category, _Paint] = {
    Category.COMPUTE: _Paint(COLOURS["sky_blue"], "", _EDGE, "computing"),
    Category.SEND: _Paint(COLOURS["orange"], "///", "#A56F00", "send"),
    Category.RECEIVE: _Paint(COLOURS["yellow"], "\\\\\\", "#A79A00", "receive"),
    Category.COLLECTIVE: _Paint(COLOURS["bluish_green"], "xx", "#005E45", "collective"),
    Category.COPY: _Paint(COLOURS["reddish_purple"], "..", "#7A4A66", "copy to or from the host"),
    Category.QUEUES: _Paint("#B9B9B9", "", _EDGE, "host queues"),
    Category.WAITS: _Paint("white", "....", "#8A8A8A", "host waits"),
}

_PHASE_COLOURS = ("#F4DCEB", "#DDE8F4", "#F7E8CC", "#DDEFE8", "#E6E6E6", "#F9DCCB")
_MARKERS = "vDs^oP"


@dataclass(frozen=True, slots=True)
class View:
    """A part of time, in which unit it is told, and how many inches it is wide."""

    start: float
    end: float
    unit: TimeUnit
    inches: float = WIDTH - 1.2

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def told(self, seconds: float) -> float:
        """A time in the view's unit."""
        return seconds / self.unit.seconds

    def width(self, start: float, end: float) -> float:
        """Inches that the part of an interval within the view takes."""
        return max(0.0, min(end, self.end) - max(start, self.start)) / self.seconds * self.inches

    def holds(self, start: float, end: float) -> bool:
        """Whether some of an interval is in view."""
        return end >= self.start and start <= self.end


def draw_calls(axes: Axes, bars: Sequence[Bar], view: View, unit_inches: float) -> list[Artist]:
    """All bars that are no phases, one collection a category; returns the handles for the legend."""
    of: defaultdict[Category, list[Bar]] = defaultdict(list)
    for bar in bars:
        of[category(bar.event)].append(bar)
    detailed = len(bars) <= _MOST_DETAILED_BARS and unit_inches >= _DETAIL_INCHES
    paints = _PAINTS if detailed else {kind: paint.plain() for kind, paint in _PAINTS.items()}
    for kind, paint in paints.items():
        axes.add_collection(_collection(of[kind], paint, view, detailed), autolim=False)
    if len(bars) <= _MOST_LABELLED_BARS:
        for bar in bars:
            _label(axes, bar, view, unit_inches, paints[category(bar.event)])
    handles: list[Artist] = [paint.handle() for kind, paint in paints.items() if of[kind]]
    if any(bar.event.asynchronous for bar in bars):
        handles.append(_Paint("white", "", _EDGE, "half height: asynchronous").handle())
    return handles


def _collection(bars: Sequence[Bar], paint: _Paint, view: View, detailed: bool) -> PolyCollection:
    """Rectangles of one look. What is narrower than a pixel or two is merged: 256 ranks stay quick."""
    lanes: defaultdict[tuple[float, float], list[tuple[float, float]]] = defaultdict(list)
    for bar in bars:
        lanes[bar.top, bar.height].append((bar.event.start, bar.event.end))
    resolution = view.seconds / view.inches / (200 if detailed else 70)
    corners = []
    for (top, height), intervals in lanes.items():
        for start, end in merged(intervals, resolution):
            left, right = view.told(start), view.told(end)
            corners.append([(left, top), (right, top), (right, top + height), (left, top + height)])
    return PolyCollection(
        corners,
        facecolor=paint.colour,
        edgecolor=_EDGE if detailed else "none",
        linewidth=0.6 if detailed else 0.0,
        hatch=paint.hatch or None,
        hatchcolor=paint.ink,
        snap=True,
        zorder=2,
    )


def _names(event: Event) -> tuple[str, ...]:
    """What may be written into a bar, the longest first. Of computing and the host the colour says it."""
    if event.kind in (Kind.COMPUTE, Kind.HOST):
        return ()
    if event.kind is Kind.POINT_TO_POINT and event.peer is not None:
        preposition = "to" if category(event) is Category.SEND else "from"
        return f"{event.op} {preposition} {event.peer}", event.op
    return (event.op,)


def _label(axes: Axes, bar: Bar, view: View, unit_inches: float, paint: _Paint) -> None:
    """Write the longest name that fits into a bar."""
    room = view.width(bar.event.start, bar.event.end)
    if bar.height * unit_inches < LABEL_INCHES * 0.85:
        return
    names = _names(bar.event)
    name = next((name for name in names if len(name) * CHARACTER_INCHES + 0.06 < room), None)
    if name is None:
        return
    left, right = max(bar.event.start, view.start), min(bar.event.end, view.end)
    ground = {"facecolor": paint.colour, "edgecolor": "none", "pad": 0.3} if paint.hatch else None
    axes.text(
        view.told((left + right) / 2),
        bar.middle,
        name,
        fontsize=9,
        ha="center",
        va="center_baseline",
        zorder=4,
        bbox=ground,
        clip_on=True,
    )


def draw_phases(axes: Axes, phases: Sequence[Bar], view: View, unit_inches: float) -> list[Artist]:
    """The phases that the program named, each name with a tint of its own."""
    names = list(dict.fromkeys(bar.event.op for bar in phases))
    paints = {
        name: _Paint(_PHASE_COLOURS[number % len(_PHASE_COLOURS)], "", _EDGE, f"phase: {name}")
        for number, name in enumerate(names)
    }
    detailed = unit_inches >= _DETAIL_INCHES
    for name, paint in paints.items():
        of_name = [bar for bar in phases if bar.event.op == name]
        axes.add_collection(_collection(of_name, paint, view, detailed), autolim=False)
    if len(phases) <= _MOST_LABELLED_BARS:
        for bar in phases:
            _label(axes, bar, view, unit_inches, paints[bar.event.op])
    return [paint.handle() for paint in list(paints.values())[: len(_PHASE_COLOURS)]]


def draw_marks(axes: Axes, marks: Sequence[Bar], view: View, unit_inches: float) -> list[Artist]:
    """Instants that the program named: a line across the row with a marker on top."""
    names = list(dict.fromkeys(bar.event.op for bar in marks))
    handles: list[Artist] = []
    for number, name in enumerate(names):
        of_name = [bar for bar in marks if bar.event.op == name]
        style: dict[str, Any] = {
            "marker": _MARKERS[number % len(_MARKERS)],
            "color": COLOURS["vermillion"],
            "markersize": 5,
        }
        places = [view.told(bar.event.start) for bar in of_name]
        axes.vlines(
            places,
            [bar.top for bar in of_name],
            [bar.top + bar.height for bar in of_name],
            color=COLOURS["vermillion"],
            linewidth=1.2,
            zorder=5,
        )
        if unit_inches >= _DETAIL_INCHES:
            axes.plot(places, [bar.top for bar in of_name], linestyle="none", zorder=6, **style)
        handles.append(Line2D([], [], linestyle="none", label=f"mark: {name}", **style))
    return handles[: len(_MARKERS)]


def draw_arrows(axes: Axes, sent: Sequence[Message], layout: Layout, view: View) -> list[Artist]:
    """An arrow a message, from within the send to the end of the receive."""
    place = {id(bar.event): bar for bar in layout.bars}
    for message in sent:
        source, target = place[id(message.send)], place[id(message.receive)]
        downwards = target.middle > source.middle
        axes.add_patch(
            FancyArrowPatch(
                (view.told(message.departure), source.top + source.height * (0.75 if downwards else 0.25)),
                (view.told(message.arrival), target.top + target.height * (0.25 if downwards else 0.75)),
                arrowstyle="-|>",
                mutation_scale=9,
                linewidth=1.1,
                color=COLOURS["black"],
                shrinkA=0,
                shrinkB=0,
                zorder=3.5,
            )
        )
    if not sent:
        return []
    return [Line2D([], [], color=COLOURS["black"], marker=">", markersize=5, linewidth=1.1, label="message")]
