"""A run as a figure: one row a rank, time to the right."""

from collections.abc import Iterable, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from course_lib.cluster.topology import Cluster
from course_lib.figures.alt_text import timeline_alt_text
from course_lib.figures.bars import LABEL_INCHES, View, draw_arrows, draw_calls, draw_marks, draw_phases
from course_lib.figures.drawn_run import DrawnRun
from course_lib.figures.layout import Layout, arrange, time_unit
from course_lib.figures.memory_line import draw_memory
from course_lib.figures.style import CHARACTER_INCHES, GREY, LIGHT_GREY, WIDTH, Drawing, look, new_figure
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import Memory
from course_lib.runtime.communication.messages import Message, messages

MOST_ARROWS = 300
"""With more messages than that in view, arrows would hide the bars; they are drawn only on demand."""

_HIGHEST = 10.0
_UNIT_INCHES = 0.3
_NODE_INCHES = 0.55
"""What a node's name takes, turned."""


def timeline_figure(
    run: DrawnRun,
    *,
    ranks: Sequence[int] | None = None,
    start: float | None = None,
    end: float | None = None,
    arrows: bool | None = None,
    title: str = "",
    alt: str | None = None,
) -> Drawing:
    """The events of a run: one row a rank, grouped by node, with an arrow from each send to its receive.

    A run with `launch(..., memory=True)` has a line under each row: what the rank holds, to one scale.

    ranks: which, from top to bottom; by default all. start, end: the part of time to show, in seconds.
    arrows: by default where there are at most `MOST_ARROWS` messages in view. alt: by default the calls and
    times of the ranks in words.
    """
    shown = tuple(range(run.ranks)) if ranks is None else tuple(ranks)
    _check_ranks(shown, run.ranks)
    view = _view(run, start, end)
    events = [
        event for event in run.events if event.kind is Kind.MEMORY or view.holds(event.start, event.end)
    ]
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
        *draw_calls(axes, layout.bars, view, unit_inches),
        *(draw_arrows(axes, in_view, layout, view) if draws_arrows else []),
        *draw_marks(axes, layout.marks, view, unit_inches),
        *draw_phases(axes, layout.phases, view, unit_inches),
        *_draw_memory(axes, run, layout, view, unit_inches),
    ]
    _finish(axes, layout, view, run.engine, title)
    if not draws_arrows:
        axes.set_xlabel(f"{axes.get_xlabel()}; {len(in_view):,} messages are not drawn as arrows")
    draw_legend(figure, handles)
    return figure


def _draw_memory(
    axes: Axes, run: DrawnRun, layout: Layout, view: View, unit_inches: float
) -> Iterable[Artist]:
    if not layout.has_memory:
        return []
    return draw_memory(axes, Memory.of(run.events, run.ranks), layout, view, unit_inches)


def _check_ranks(shown: Sequence[int], ranks: int) -> None:
    unknown = [rank for rank in shown if not 0 <= rank < ranks]
    if unknown or not shown:
        raise ValueError(f"The run has ranks 0 to {ranks - 1}; it was asked to show {list(shown)}.")


def _view(run: DrawnRun, start: float | None, end: float | None) -> View:
    """The part of time to show: what was asked for, else from the launch, or from the first event if that
    is late, to the end of the run."""
    last = max((event.end for event in run.events), default=run.seconds)
    first = min((event.start for event in run.events), default=0.0)
    begin = (first if first > 0.1 * last else 0.0) if start is None else start
    finish = last if end is None else end
    if begin > finish:
        raise ValueError(f"The timeline would end ({finish} s) before it starts ({begin} s).")
    unit = time_unit(finish - begin)
    return View(begin, finish if finish > begin else begin + unit.seconds, unit)


def _messages_in_view(events: Iterable[Event], view: View, ranks: Sequence[int]) -> list[Message]:
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
    firsts = [row for row in rows if row == 0 or nodes[row] != nodes[row - 1]]
    # Where each row is a node of its own and too low for its name, turned, the name stands before the rank's.
    in_rows = 1 < len(rows) == len(firsts) and layout.row_height * unit_inches < _NODE_INCHES
    names = [
        f"node {nodes[row]}, rank {layout.ranks[row]}" if in_rows else f"rank {layout.ranks[row]}"
        for row in labelled
    ]
    axes.set_yticks([layout.main_middle(row) for row in labelled], names)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
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
    if len(set(nodes)) > 1 and not in_rows:
        _draw_nodes(axes, layout, nodes, firsts, unit_inches)


def _draw_nodes(
    axes: Axes, layout: Layout, nodes: Sequence[int], firsts: Sequence[int], unit_inches: float
) -> None:
    """The name of each node beside its ranks, turned; of many nodes only some."""
    ends = [*firsts[1:], len(nodes)]
    inches = min(b - a for a, b in zip(firsts, ends, strict=True)) * layout.row_height * unit_inches
    every = max(1, round(_NODE_INCHES / inches + 0.49))
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
    while every * row_inches < LABEL_INCHES:
        every *= 2
    return every


def _finish(axes: Axes, layout: Layout, view: View, engine: str, title: str) -> None:
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


def draw_legend(figure: Drawing, handles: Sequence[Artist]) -> None:
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
