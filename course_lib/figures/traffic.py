"""Who sent how much in a run, as a figure."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from course_lib.figures.alt_text import traffic_alt_text
from course_lib.figures.drawn_run import DrawnRun
from course_lib.figures.style import Drawing, draw_bars, draw_lines, look, new_figure

_MOST_BARS = 16
_BYTE_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("bytes", 1))


def traffic_figure(run: DrawnRun, *, title: str = "", alt: str | None = None) -> Drawing:
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
