"""What the ranks of a timeline held in memory: under each rank's bars a line, filled below."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_lib.figures.alt_text import bytes_in_words
from course_lib.figures.bars import View
from course_lib.figures.layout import MEMORY_HEIGHT, Layout
from course_lib.figures.style import COLOURS, GREY, LIGHT_GREY
from course_lib.runtime.communication.memory import Memory, MemoryKind, RankMemory

_LABEL_INCHES = 0.25
"""Two lines of small print."""


def draw_memory(axes: Axes, memory: Memory, layout: Layout, view: View, unit_inches: float) -> list[Artist]:
    """Two areas a rank, activations above the rest, to one scale for all ranks; the peak beside each."""
    scale = max((memory[rank].peak for rank in layout.ranks), default=0) or 1
    for row, rank in enumerate(layout.ranks):
        bottom = layout.memory_bottom(row)
        times, rest, total = _steps(memory[rank], view)
        unit = MEMORY_HEIGHT / scale
        lower, upper = ([bottom - unit * nbytes for nbytes in line] for line in (rest, total))
        places = [view.told(seconds) for seconds in times]
        axes.fill_between(places, bottom, lower, step="post", color=LIGHT_GREY, linewidth=0, zorder=2)
        axes.fill_between(
            places, lower, upper, step="post", color=COLOURS["sky_blue"], alpha=0.55, linewidth=0, zorder=2
        )
        axes.step(places, upper, where="post", color=COLOURS["blue"], linestyle="-", linewidth=1.0, zorder=3)
        axes.axhline(bottom, color=GREY, linewidth=0.6, zorder=1)
        if MEMORY_HEIGHT * unit_inches < _LABEL_INCHES:
            continue
        axes.text(
            1.005,
            bottom - MEMORY_HEIGHT / 2,
            f"at most\n{bytes_in_words(memory[rank].peak)}",
            transform=axes.get_yaxis_transform(),
            fontsize=9,
            va="center",
        )
    activations, others = MemoryKind.ACTIVATIONS.value, "parameters, gradients, optimizer, inputs"
    return [
        Patch(
            facecolor=COLOURS["sky_blue"],
            alpha=0.55,
            edgecolor=COLOURS["blue"],
            label=f"memory: {activations}",
        ),
        Patch(facecolor=LIGHT_GREY, label=f"memory: {others}"),
    ]


def _steps(own: RankMemory, view: View) -> tuple[Sequence[float], Sequence[int], Sequence[int]]:
    """Times, bytes of all but the activations, and all bytes, from the view's begin to its end."""
    in_view = [sample for sample in own.samples if view.start < sample.seconds <= view.end]
    before = own.at(view.start)
    held = [before, *(sample.held for sample in in_view)]
    times = [view.start, *(sample.seconds for sample in in_view), view.end]
    total = [sum(each.values()) for each in held]
    rest = [
        whole - each.get(MemoryKind.ACTIVATIONS.value, 0) for whole, each in zip(total, held, strict=True)
    ]
    return times, [*rest, rest[-1]], [*total, total[-1]]
