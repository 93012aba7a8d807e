"""Horovod's own timeline as a figure: a row for each tensor, from its negotiation to its result."""

from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes

from course_lib.figures.alt_text import seconds_in_words
from course_lib.figures.bars import View, draw_marks, draw_phases
from course_lib.figures.layout import GAP, MAIN_HEIGHT, Bar, time_unit
from course_lib.figures.style import Drawing, look, new_figure
from course_lib.figures.timeline import draw_legend
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.horovod_timeline import HorovodTimeline, TensorOperation

_UNIT_INCHES = 0.3
_MOST_TENSORS = 24
_ROW = MAIN_HEIGHT + GAP
_NEGOTIATION = "negotiation"


def horovod_figure(
    timeline: HorovodTimeline,
    *,
    tensors: Sequence[str] | None = None,
    start: float | None = None,
    end: float | None = None,
    title: str = "",
    alt: str | None = None,
) -> Drawing:
    """What happened to each tensor: negotiation, with a mark where a rank was ready, and the phases after it.

    tensors: which, from top to bottom; by default those that came first, as many as there is room for. start,
    end: the part of time to show, in seconds; by default from the first to the last of what is shown. The
    axis counts from `start`.
    """
    named = list(dict.fromkeys(each.tensor for each in timeline.operations))
    rows = named[:_MOST_TENSORS] if tensors is None else list(tensors)
    shown = [each for each in timeline.operations if each.tensor in rows and _overlaps(each, start, end)]
    if not shown:
        raise ValueError(f"The timeline has no operation on {rows} there; its tensors are {named}.")
    begin = min(each.asked for each in shown) if start is None else start
    finish = max(each.end for each in shown) if end is None else end
    view = View(0.0, finish - begin, time_unit(finish - begin))
    figure, axes = new_figure(
        alt=alt or _alt_text(timeline, rows, shown, view),
        height=max(0.9, len(rows) * _ROW * _UNIT_INCHES) + 1.25 + (0.3 if title else 0.0),
    )
    events = [
        (rows.index(each.tensor), event)
        for each in shown
        for event in _events(each, begin)
        if event.end >= view.start and event.start <= view.end
    ]
    bars = [Bar(event, row * _ROW, MAIN_HEIGHT) for row, event in events]
    handles = [
        *draw_marks(axes, [bar for bar in bars if bar.event.end == bar.event.start], view, _UNIT_INCHES),
        *draw_phases(axes, [bar for bar in bars if bar.event.end > bar.event.start], view, _UNIT_INCHES),
    ]
    for handle in handles:
        # Without the words "phase: " and "mark: ", which tell them from calls elsewhere.
        handle.set_label(str(handle.get_label()).partition(": ")[2])
    _finish(axes, rows, view, title)
    draw_legend(figure, handles)
    return figure


def _overlaps(operation: TensorOperation, start: float | None, end: float | None) -> bool:
    return (start is None or operation.end >= start) and (end is None or operation.asked <= end)


def _events(operation: TensorOperation, zero: float) -> Iterator[Event]:
    """The phases and marks of an operation, as events that a row can hold; their time counts from `zero`."""
    phases: list[tuple[str, float, float]] = [
        (_NEGOTIATION, operation.asked, max(operation.ready.values(), default=operation.start)),
        *((each.name, each.start, each.end) for each in operation.activities),
        *((f"rank {rank} ready", at, at) for rank, at in sorted(operation.ready.items())),
    ]
    for name, start, end in phases:
        yield Event(0, name, Kind.SPAN, start - zero, end - zero, 0)


def _finish(axes: Axes, rows: Sequence[str], view: View, title: str) -> None:
    margin = 0.012 * view.seconds
    with look():
        axes.set_yticks([row * _ROW + MAIN_HEIGHT / 2 for row in range(len(rows))], list(rows))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(view.told(view.start - margin), view.told(view.end + margin))
        axes.set_ylim(len(rows) * _ROW - 0.1, -0.25)
        axes.set_xlabel(f"measured time ({view.unit.name})")
        axes.set_title(title)
    axes.spines["left"].set_visible(False)


def _alt_text(
    timeline: HorovodTimeline, rows: Sequence[str], shown: Iterable[TensorOperation], view: View
) -> str:
    operations = list(shown)
    carried = [group for group in timeline.fused() if any(each in operations for each in group)]
    waited = [each.last_ready for each in operations if each.last_ready is not None]
    last = max(set(waited), key=waited.count, default=None)
    late = "" if last is None else f" Most often rank {last} was the last to be ready."
    return (
        f"Horovod's timeline of {len(rows)} tensors, {seconds_in_words(view.seconds)}: {len(operations)} "
        f"operations, carried by {len(carried)} messages.{late}"
    )
