"""A run as a figure: one row a rank, time to the right; and who sent how much."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch

from course_lib.cluster.topology import Cluster
from course_lib.figures.alt_text import timeline_alt_text, traffic_alt_text
from course_lib.figures.deadlock import deadlock_figure
from course_lib.figures.layout import (
    Bar,
    Category,
    Layout,
    TimeUnit,
    arrange,
    category,
    merged,
    time_unit,
)
from course_lib.figures.style import (
    CHARACTER_INCHES,
    COLOURS,
    GREY,
    LIGHT_GREY,
    WIDTH,
    Drawing,
    draw_bars,
    draw_lines,
    look,
    new_figure,
)
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.messages import Message, messages

if TYPE_CHECKING:
    from course_lib.launch.run import Run

__all__ = ["deadlock_figure", "timeline_figure", "traffic_figure"]

MOST_ARROWS = 300
"""With more messages than that in view, arrows would hide the bars; they are drawn only on demand."""

_MOST_LABELLED_BARS = 400
_MOST_DETAILED_BARS = 5000
_HIGHEST = 10.0
_UNIT_INCHES = 0.3
_LABEL_INCHES = 0.17
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
}

_PHASE_COLOURS = ("#F4DCEB", "#DDE8F4", "#F7E8CC", "#DDEFE8", "#E6E6E6", "#F9DCCB")
_MARKERS = "vDs^oP"


@dataclass(frozen=True, slots=True)
class _View:
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


def timeline_figure(
    run: "Run",
    *,
    ranks: Sequence[int] | None = None,
    start: float | None = None,
    end: float | None = None,
    arrows: bool | None = None,
    title: str = "",
    alt: str | None = None,
) -> Drawing:
    """The events of a run: one row a rank, grouped by node, with an arrow from each send to its receive.

    ranks: which, from top to bottom; by default all. start, end: the part of time to show, in seconds.
    arrows: by default where there are at most `MOST_ARROWS` messages in view. alt: by default the calls and
    times of the ranks in words.
    """
    shown = tuple(range(run.ranks)) if ranks is None else tuple(ranks)
    _check_ranks(shown, run.ranks)
    view = _view(run, start, end)
    events = [event for event in run.events if view.holds(event.start, event.end)]
    layout = arrange(events, shown)
    unit_inches = min(_UNIT_INCHES, _HIGHEST / layout.height)
    in_view = _messages_in_view(run.events, view, shown)
    draws_arrows = len(in_view) <= MOST_ARROWS if arrows is None else arrows
    figure, axes = new_figure(
        alt=alt or timeline_alt_text(run, shown, view.start, view.end),
        height=max(0.9, layout.height * unit_inches) + 1.25 + (0.3 if title else 0.0),
    )
    _draw_rows(axes, layout, run.cluster, unit_inches)
    handles = [
        *_draw_bars(axes, layout.bars, view, unit_inches),
        *(_draw_arrows(axes, in_view, layout, view) if draws_arrows else []),
        *_draw_marks(axes, layout.marks, view, unit_inches),
        *_draw_phases(axes, layout.phases, view, unit_inches),
    ]
    _finish(axes, layout, view, run.engine, title)
    if not draws_arrows:
        axes.set_xlabel(f"{axes.get_xlabel()}; {len(in_view):,} messages are not drawn as arrows")
    _draw_legend(figure, handles)
    return figure


def traffic_figure(run: "Run", *, title: str = "", alt: str | None = None) -> Drawing:
    """Bytes sent and received, and messages sent, a rank."""
    traffic = run.traffic
    figure, (of_bytes, of_messages) = new_figure(
        alt=alt or traffic_alt_text(traffic), height=3.2, columns=2, width_ratios=(3, 2)
    )
    most = max((max(rank.sent, rank.received) for rank in traffic.ranks), default=0)
    unit, factor = next(pair for pair in _BYTE_UNITS if most >= pair[1] or pair[1] == 1)
    series = {
        "sent": [rank.sent / factor for rank in traffic.ranks],
        "received": [rank.received / factor for rank in traffic.ranks],
    }
    _draw_by_rank(of_bytes, series, unit)
    of_bytes.set_title("bytes sent and received")
    _draw_by_rank(of_messages, {"messages": [rank.messages for rank in traffic.ranks]}, "messages")
    of_messages.set_title("messages sent")
    of_messages.yaxis.get_major_locator().set_params(integer=True)
    with look():
        of_bytes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        figure.suptitle(title)
    return figure


def _draw_by_rank(axes: Axes, series: Mapping[str, Sequence[float]], y: str) -> None:
    """A bar a rank, or for many ranks a line over them."""
    ranks = range(len(next(iter(series.values()))))
    if len(ranks) <= _MOST_BARS:
        draw_bars(axes, series, names=[str(rank) for rank in ranks], y=y)
    else:
        draw_lines(axes, {name: (ranks, values) for name, values in series.items()}, x="rank", y=y)
    axes.set_xlabel("rank")
    axes.set_ylim(bottom=0)


_MOST_BARS = 16
_BYTE_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))


def _check_ranks(shown: Sequence[int], ranks: int) -> None:
    unknown = [rank for rank in shown if not 0 <= rank < ranks]
    if unknown or not shown:
        raise ValueError(f"The run has ranks 0 to {ranks - 1}; it was asked to show {list(shown)}.")


def _view(run: "Run", start: float | None, end: float | None) -> _View:
    """The part of time to show: what was asked for, else from the launch, or from the first event if that
    is late, to the end of the run."""
    last = max((event.end for event in run.events), default=run.seconds)
    first = min((event.start for event in run.events), default=0.0)
    begin = (first if first > 0.1 * last else 0.0) if start is None else start
    finish = last if end is None else end
    if begin > finish:
        raise ValueError(f"The timeline would end ({finish} s) before it starts ({begin} s).")
    unit = time_unit(finish - begin)
    return _View(begin, finish if finish > begin else begin + unit.seconds, unit)


def _messages_in_view(events: Iterable[Event], view: _View, ranks: Sequence[int]) -> list[Message]:
    shown = set(ranks)
    return [
        message
        for message in messages(events)
        if view.holds(message.departure, message.arrival)
        and {message.send.rank, message.receive.rank} <= shown
    ]


def _draw_rows(axes: Axes, layout: Layout, cluster: Cluster, unit_inches: float) -> None:
    """Labels of ranks and nodes, and a line between two rows, a stronger one between two nodes."""
    rows = range(len(layout.ranks))
    nodes = [cluster.node_of(rank) for rank in layout.ranks]
    every = _every_which_label(layout.row_height * unit_inches)
    labelled = [row for row in rows if row % every == 0]
    axes.set_yticks(
        [layout.main_middle(row) for row in labelled], [f"rank {layout.ranks[row]}" for row in labelled]
    )
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    firsts = [row for row in rows if row == 0 or nodes[row] != nodes[row - 1]]
    for row in rows[1:]:
        between = layout.row_top(row) - layout.gap / 2
        node_changes = row in firsts
        if node_changes or every == 1:
            axes.axhline(
                between,
                color=GREY if node_changes else LIGHT_GREY,
                linewidth=1.2 if node_changes else 0.8,
                zorder=0,
            )
    if len(set(nodes)) > 1:
        _draw_nodes(axes, layout, nodes, firsts, unit_inches)


def _draw_nodes(
    axes: Axes, layout: Layout, nodes: Sequence[int], firsts: Sequence[int], unit_inches: float
) -> None:
    """The name of each node beside its ranks, turned; of many nodes only some."""
    ends = [*firsts[1:], len(nodes)]
    inches = min(b - a for a, b in zip(firsts, ends, strict=True)) * layout.row_height * unit_inches
    every = max(1, round(0.55 / inches + 0.49))
    for first, end in list(zip(firsts, ends, strict=True))[::every]:
        middle = (layout.row_top(first) + layout.row_top(end) - layout.gap) / 2
        with look():
            axes.annotate(
                f"node {nodes[first]}",
                (0, middle),
                xytext=(-62, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="center",
                fontsize=9,
                annotation_clip=False,
            )


def _every_which_label(row_inches: float) -> int:
    """1 if every row can have its label, else the power of two such that labels do not touch."""
    every = 1
    while every * row_inches < _LABEL_INCHES:
        every *= 2
    return every


def _draw_bars(axes: Axes, bars: Sequence[Bar], view: _View, unit_inches: float) -> list[Artist]:
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


def _collection(bars: Sequence[Bar], paint: _Paint, view: _View, detailed: bool) -> PolyCollection:
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
    """What may be written into a bar, the longest first. That a bar means computing, its colour says."""
    if event.kind is Kind.COMPUTE:
        return ()
    if event.kind is Kind.POINT_TO_POINT and event.peer is not None:
        preposition = "to" if category(event) is Category.SEND else "from"
        return f"{event.op} {preposition} {event.peer}", event.op
    return (event.op,)


def _label(axes: Axes, bar: Bar, view: _View, unit_inches: float, paint: _Paint) -> None:
    """Write the longest name that fits into a bar."""
    room = view.width(bar.event.start, bar.event.end)
    if bar.height * unit_inches < _LABEL_INCHES * 0.85:
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


def _draw_phases(axes: Axes, phases: Sequence[Bar], view: _View, unit_inches: float) -> list[Artist]:
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


def _draw_marks(axes: Axes, marks: Sequence[Bar], view: _View, unit_inches: float) -> list[Artist]:
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


def _draw_arrows(axes: Axes, sent: Sequence[Message], layout: Layout, view: _View) -> list[Artist]:
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


def _finish(axes: Axes, layout: Layout, view: _View, engine: str, title: str) -> None:
    """Limits, and what the time axis tells."""
    clock = "virtual" if engine == "simulated" else "measured"
    margin = 0.012 * view.seconds
    with look():
        axes.set_xlim(view.told(view.start - margin), view.told(view.end + margin))
        axes.set_ylim(layout.height - 0.1, -0.25)
        axes.set_xlabel(f"{clock} time ({view.unit.name})")
        axes.set_title(title)
    axes.spines["left"].set_visible(False)
    if not layout.bars and not layout.phases and not layout.marks:
        axes.text(0.5, 0.5, "no events", transform=axes.transAxes, ha="center", va="center")


def _draw_legend(figure: Drawing, handles: Sequence[Artist]) -> None:
    """The legend under the axes, where it hides nothing, read row by row."""
    if not handles:
        return
    columns = next(
        n for n in range(len(handles), 0, -1) if n == 1 or _legend_inches(handles, n) < WIDTH - 0.2
    )
    by_rows = [handle for column in range(columns) for handle in handles[column::columns]]
    with look():
        figure.legend(
            handles=by_rows, loc="outside lower left", ncols=columns, columnspacing=1.4, handletextpad=0.6
        )


def _legend_inches(handles: Sequence[Artist], columns: int) -> float:
    """About how wide a legend of so many columns is."""
    widths = [0.55 + CHARACTER_INCHES * len(str(handle.get_label())) for handle in handles]
    return sum(max(widths[column::columns]) for column in range(columns))
