"""A deadlock as a figure: the ranks in a circle, an arrow from each to those that it waits for."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from course_lib.figures.style import COLOURS, WIDTH, Drawing, look, new_figure
from course_lib.runtime.communication.errors import PendingCall, WaitGraph
from course_lib.runtime.communication.wording import ranks_in_words

_RADIUS_POINTS = 104.0
"""From the middle of the circle to a rank."""

_MOST_LABELS = 8
"""Up to so many ranks have their call written beside them; more are told in groups."""

_MOST_ARROWS = 300
_CROWDED = 40
_LEGEND_INCHES = 0.45
_MOST_NUMBERS = 40


class State(Enum):
    """What has become of a rank; the value is for people."""

    IN_CYCLE = "waits, in the cycle"
    WAITING = "waits"
    RETURNED = "returned"
    LOST = "lost"
    OTHER = "neither waits nor returned"


_LOOKS = {
    State.IN_CYCLE: {"facecolor": COLOURS["vermillion"], "ink": "white", "marker": "s"},
    State.WAITING: {"facecolor": "#CDE6F5", "ink": "black", "marker": "o"},
    State.RETURNED: {"facecolor": "#C8C8C8", "ink": "black", "marker": "o"},
    State.LOST: {"facecolor": "black", "ink": "white", "marker": "X"},
    State.OTHER: {"facecolor": "white", "ink": "black", "marker": "o"},
}


@dataclass(frozen=True, slots=True)
class _Circle:
    """How many ranks stand round, and so where, how large."""

    ranks: int

    def place(self, rank: int) -> tuple[float, float]:
        """On a circle of radius 1: rank 0 on top, the others clockwise; of two ranks, 0 on the left."""
        angle = 2 * math.pi * rank / self.ranks - (math.pi / 2 if self.ranks == 2 else 0)
        return math.sin(angle), math.cos(angle)

    @property
    def node_points(self) -> float:
        """Radius of a rank's disc, such that an arrow to the next one can be seen."""
        return min(15.0, 0.28 * 2 * math.pi * _RADIUS_POINTS / self.ranks)

    @property
    def height(self) -> float:
        """How high the figure of it is, in radii to each side."""
        return 0.55 if self.ranks == 2 else 1.5


def deadlock_figure(graph: WaitGraph) -> Drawing:
    """Who waits for whom, the cycle of waits in colour, ranks that had returned in grey."""
    states = _states(graph)
    circle = _Circle(len(states))
    inches = _RADIUS_POINTS / 72
    figure, axes = new_figure(
        alt=deadlock_alt_text(graph), height=2 * circle.height * inches + _LEGEND_INCHES
    )
    axes.set_axis_off()
    axes.set_aspect("equal")
    width = 0.97 * WIDTH / inches
    left = -width / 2 if len(states) <= _MOST_LABELS else -1.8
    axes.set_xlim(left, left + width)
    axes.set_ylim(-circle.height, circle.height)
    arrows = _draw_arrows(axes, graph, circle)
    _draw_ranks(axes, states, circle)
    if len(states) <= _MOST_LABELS:
        _write_beside(axes, graph, states, circle)
    else:
        _write_groups(axes, graph)
    _draw_legend(figure, states, arrows)
    return figure


def deadlock_alt_text(graph: WaitGraph) -> str:
    """The figure for those who do not see it."""
    parts = ["Ranks in a circle with arrows to those they wait for."]
    parts.extend(f"{_capital(line)}." for line in _told(graph))
    if 0 < len(graph.cycle) <= _MOST_LABELS:
        round_ = " to ".join(str(rank) for rank in (*graph.cycle, graph.cycle[0]))
        parts.append(f"The cycle of waits goes from rank {round_}.")
    elif graph.cycle:
        parts.append(f"The cycle of waits goes through {ranks_in_words(graph.cycle)}.")
    return " ".join(parts)


def _states(graph: WaitGraph) -> dict[int, State]:
    """Every rank that is known of, with what has become of it."""
    waiting = {call.rank for call in graph.waiting}
    named = {peer for call in graph.waiting for peer in call.peers} | waiting | set(graph.finished)
    named |= graph.lost.keys()
    states = {}
    for rank in range(max(graph.ranks, max(named, default=0) + 1)):
        if rank in graph.cycle:
            states[rank] = State.IN_CYCLE
        elif rank in waiting:
            states[rank] = State.WAITING
        elif rank in graph.lost:
            states[rank] = State.LOST
        else:
            states[rank] = State.RETURNED if rank in graph.finished else State.OTHER
    return states


def _draw_arrows(axes: Axes, graph: WaitGraph, circle: _Circle) -> str:
    """An arrow from each rank to those that it waits for. Returns what an arrow means, for the legend.

    Where they would be very many, only one from each rank: along the cycle, else to one that has returned.
    """
    cycle = set(zip(graph.cycle, [*graph.cycle[1:], *graph.cycle[:1]], strict=True))
    waits = [(call.rank, peer) for call in graph.waiting for peer in call.peers if peer != call.rank]
    words = "waits for"
    if len(waits) > _MOST_ARROWS:
        gone = set(graph.finished)
        best_last = sorted(waits, key=lambda wait: (wait in cycle, wait[1] in gone))
        waits = list({source: (source, target) for source, target in best_last}.values())
        words = "waits for (one arrow a rank)"
    crowded = len(waits) > _CROWDED
    for source, target in sorted(set(waits)):
        in_cycle = (source, target) in cycle
        axes.add_patch(
            FancyArrowPatch(
                circle.place(source),
                circle.place(target),
                connectionstyle="arc3,rad=0.15",
                arrowstyle="-|>",
                mutation_scale=7 if crowded else 16 if in_cycle else 12,
                linewidth=0.5 if crowded and not in_cycle else 2.4 - 1.2 * crowded if in_cycle else 1.1,
                linestyle="-" if in_cycle or crowded else (0, (5, 2)),
                color=COLOURS["vermillion"] if in_cycle else "#777777" if crowded else "#555555",
                shrinkA=circle.node_points,
                shrinkB=circle.node_points + 1,
                zorder=3 if in_cycle else 2,
            )
        )
    return words


def _draw_ranks(axes: Axes, states: dict[int, State], circle: _Circle) -> None:
    """A disc a rank, square in the cycle of waits; with its number where there is room."""
    every = 1 if circle.ranks <= _MOST_NUMBERS else 2 ** math.ceil(math.log2(circle.ranks / _MOST_NUMBERS))
    inside = circle.node_points >= 10
    for rank, state in states.items():
        x, y = circle.place(rank)
        style = _LOOKS[state]
        axes.scatter(
            [x],
            [y],
            s=(2 * circle.node_points) ** 2,
            marker=style["marker"],
            facecolor=style["facecolor"],
            edgecolor="black",
            linewidth=1.0 if circle.node_points > 4 else 0.4,
            zorder=4,
        )
        if inside:
            axes.text(x, y, str(rank), ha="center", va="center_baseline", color=style["ink"], zorder=5)
        elif rank % every == 0:
            away = 1 + (circle.node_points + 9) / _RADIUS_POINTS
            axes.text(x * away, y * away, str(rank), ha="center", va="center_baseline", fontsize=9)


def _write_beside(axes: Axes, graph: WaitGraph, states: dict[int, State], circle: _Circle) -> None:
    """What each rank waits for, and in which line, on the outside of the circle."""
    calls = {call.rank: call for call in graph.waiting}
    away = 1 + (1.4 * circle.node_points + 5) / _RADIUS_POINTS
    for rank, state in states.items():
        x, y = circle.place(rank)
        beside = abs(x) > 0.1
        axes.text(
            x * away + (math.copysign(0.05, x) if beside else 0),
            y * away,
            _call_in_words(calls[rank]) if rank in calls else state.value,
            ha=("left" if x > 0 else "right") if beside else "center",
            va="center" if beside else "bottom" if y > 0 else "top",
            fontsize=9.5,
            zorder=6,
        )


def _call_in_words(call: PendingCall) -> str:
    where = f"\n{call.line.place}" if call.line else ""
    if not call.peers or len(call.peers) > 3:
        return f"in {call.op}, waits for\nothers to {call.expects}{where}"
    return f"in {call.op}, waits for\n{ranks_in_words(call.peers)} to {call.expects}{where}"


def _write_groups(axes: Axes, graph: WaitGraph) -> None:
    """What the ranks wait for, those that wait for the same told together, to the right of the circle."""
    lines = ["\n    ".join(textwrap.wrap(line, 46)) for line in _told(graph)]
    axes.text(1.6, 0, "\n".join(lines), ha="left", va="center", fontsize=9.5, linespacing=1.5)


def _told(graph: WaitGraph) -> list[str]:
    """Who waits for whom and who had returned, in a few lines."""
    lines = _grouped(graph.waiting)
    if len(lines) > _MOST_LABELS + 1:
        lines = [*lines[:_MOST_LABELS], f"and {len(lines) - _MOST_LABELS} more wait"]
    if graph.finished:
        lines.append(f"{ranks_in_words(graph.finished)} had returned")
    if graph.lost:
        were = "was" if len(graph.lost) == 1 else "were"
        lines.append(f"{ranks_in_words(graph.lost)} {were} lost")
    return lines


def _grouped(waiting: Sequence[PendingCall]) -> list[str]:
    """`ranks 0-62 wait for rank 63: all_reduce`, the lowest rank first."""
    groups: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for call in sorted(waiting, key=lambda c: c.rank):
        groups.setdefault((call.peers, _expected(call)), []).append(call.rank)
    return [
        f"{ranks_in_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for "
        f"{ranks_in_words(peers) if peers else 'nobody'}: {expected}"
        for (peers, expected), ranks in groups.items()
    ]


def _expected(call: PendingCall) -> str:
    return call.expects.removeprefix("call ")


def _draw_legend(figure: Drawing, states: dict[int, State], arrows: str) -> None:
    """What the discs and the arrows mean."""
    present = set(states.values())
    handles: list[Artist] = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=style["marker"],
            markersize=11,
            markerfacecolor=style["facecolor"],
            markeredgecolor="black",
            label=state.value,
        )
        for state, style in _LOOKS.items()
        if state in present
    ]
    handles.append(Line2D([], [], color="#555555", linestyle=(0, (5, 2)), marker=">", label=arrows))
    with look():
        figure.legend(handles=handles, loc="outside lower center", ncols=5)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
