"""Pictures of decentralised training: a server beside a ring, and one step with negotiation and fusion."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

from course_lib.figures.style import COLOURS, Drawing, ink_on, new_figure, rank_colour

_INK = "#222222"
_DISC = 0.2
_SERVER = (0.0, 0.0)
_SERVER_DISC = 0.32
_POINTS = 80
"""Points that a unit of the ring's axes is long, with a little room round the discs."""


def server_and_ring_picture(workers: int = 4) -> Drawing:
    """Who talks to whom: left all workers with a parameter server, right each worker with the next.

    Arrows in the figure carry tensors as large as the model; 3 to 8 workers, else ValueError.
    """
    if not 3 <= workers <= 8:
        raise ValueError(f"The picture has room for 3 to 8 workers, not for {workers}.")
    alt = (
        f"Left, centralised: a parameter server in the middle of {workers} workers. Each sends it its "
        f"gradient and gets the new weights: {workers} arrows lead into the server, {workers} out of it. "
        f"Right, decentralised: the same {workers} workers in a ring without a server. Each sends to the "
        "next worker only and receives from the one before."
    )
    figure, (left, right) = new_figure(alt=alt, height=3.5, columns=2)
    for axes, title in ((left, "centralised: a parameter server"), (right, "decentralised: a ring")):
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set(xlim=(-1.75, 1.75), ylim=(-1.4, 1.4))
        axes.set_title(title, fontsize=11)
    for worker in range(workers):
        place, following = _place(worker, workers), _place(worker + 1, workers)
        _disc(left, place, str(worker), rank_colour(worker))
        _disc(right, place, str(worker), rank_colour(worker))
        _arrow(left, place, _SERVER, COLOURS["blue"], "-")
        _arrow(left, _SERVER, place, COLOURS["vermillion"], "--")
        _arrow(right, place, following, COLOURS["blue"], "-")
    _disc(left, _SERVER, "server", "#F2F2F2", radius=_SERVER_DISC)
    left.plot([], [], "-", color=COLOURS["blue"], label="gradients")
    left.plot([], [], "--", color=COLOURS["vermillion"], label="weights")
    right.plot([], [], "-", color=COLOURS["blue"], label="parts of gradients")
    for axes in (left, right):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)
    return figure


def _place(worker: int, workers: int) -> tuple[float, float]:
    """Worker 0 on top, the others clockwise."""
    angle = 2 * math.pi * worker / workers
    return 1.1 * math.sin(angle), 1.1 * math.cos(angle)


def _disc(axes: Axes, place: tuple[float, float], text: str, colour: str, radius: float = _DISC) -> None:
    axes.add_patch(Circle(place, radius, facecolor=colour, edgecolor=_INK, zorder=3))
    axes.text(*place, text, ha="center", va="center_baseline", color=ink_on(colour), fontsize=11, zorder=4)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, dashes: str
) -> None:
    """A bent arrow, so that the ways there and back lie apart, between the rims of two discs."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle="arc3,rad=-0.18",
            arrowstyle="-|>",
            mutation_scale=13,
            linewidth=1.6,
            linestyle=dashes,
            color=colour,
            shrinkA=_POINTS * (_SERVER_DISC if start == _SERVER else _DISC),
            shrinkB=_POINTS * (_SERVER_DISC if end == _SERVER else _DISC),
        )
    )


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce of the picture: the gradients that are fused in it, and when it begins and ends."""

    tensors: tuple[str, ...]
    start: float
    end: float


READY = MappingProxyType({"d": (0.8, 1.1), "c": (1.8, 2.5), "b": (2.6, 3.5), "a": (4.0, 5.6)})
"""Gradient -> when rank 0 and rank 1 have it, in ms. Rank 1 computes more slowly."""

REDUCTIONS = (
    Reduction(("d",), 2.0, 2.7),
    Reduction(("c", "b"), 4.0, 5.3),
    Reduction(("a",), 6.0, 7.0),
)


def negotiation_picture(
    ready: Mapping[str, Sequence[float]] = READY,
    reductions: Sequence[Reduction] = REDUCTIONS,
    *,
    cycle: float = 2.0,
) -> Drawing:
    """One backward pass as Horovod sees it: when each rank has each gradient, and what is reduced when.

    ready: gradient -> time on each rank. reductions: the all-reduces that followed. cycle: the time between
    two rounds of negotiation. All in ms.
    """
    ranks = len(next(iter(ready.values())))
    end = max(reduction.end for reduction in reductions)
    computed = "; ".join(
        f"{name} " + ", ".join(f"after {time:g} ms on rank {rank}" for rank, time in enumerate(times))
        for name, times in ready.items()
    )
    summed = "; ".join(
        f"{' and '.join(one.tensors)} from {one.start:g} to {one.end:g} ms" for one in reductions
    )
    alt = (
        f"Backward on {ranks} ranks computes the gradients {computed}. Every {cycle:g} ms an all-reduce of "
        f"what all ranks have by then may begin: {summed}."
    )
    figure, axes = new_figure(alt=alt, height=0.62 * (ranks + 1) + 1.0)
    for rank in range(ranks):
        previous = 0.0
        for name, times in ready.items():
            _block(axes, rank, previous, times[rank], name, rank_colour(rank), "")
            previous = times[rank]
    for reduction in reductions:
        text = " and ".join(reduction.tensors)
        _block(axes, ranks, reduction.start, reduction.end, text, "#F2F2F2", "///")
    for number in range(int(end / cycle) + 1):
        axes.axvline(number * cycle, color="#777777", linewidth=1.0, linestyle=(0, (1, 2)), zorder=0)
    axes.set_yticks([*range(ranks + 1)], [*(f"rank {rank}: backward" for rank in range(ranks)), "all-reduce"])
    axes.set(ylim=(ranks + 0.6, -0.6), xlim=(0, end * 1.01), xlabel="time (ms); dotted: a new cycle")
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    return figure


def _block(axes: Axes, lane: int, start: float, end: float, text: str, colour: str, hatch: str) -> None:
    axes.barh(
        lane, end - start, left=start, height=0.74, color=colour, edgecolor=_INK, linewidth=0.8, hatch=hatch
    )
    axes.text(
        (start + end) / 2,
        lane,
        text,
        ha="center",
        va="center_baseline",
        fontsize=9,
        color=ink_on(colour),
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
    )
