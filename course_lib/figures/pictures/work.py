"""The same pieces of work on one worker, and on several of which each has one."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_lib.figures.style import GREY, LIGHT_GREY, Drawing, ink_on, new_figure, rank_colour

_TITLES = ("serial: one worker", "parallel: {} workers")
_TOP = 0.12
_BAR = 0.76
"""Where a bar begins below the top of its worker's row, and how high it is; a row has the height 1."""


def serial_and_parallel_picture(rest: float, parts: Sequence[float]) -> Drawing:
    """Work that one worker does piece by piece, and below it one worker for each part.

    rest: seconds of what is not shared out; the first worker does it, before anything else. parts: seconds of
    the pieces that can be done at the same time; 2 to 8 of them, else ValueError.
    """
    workers = len(parts)
    if not 2 <= workers <= 8:
        raise ValueError(f"The picture has room for 2 to 8 parts, not for {workers}.")
    serial, parallel = rest + sum(parts), rest + max(parts)
    alt = (
        f"Above, one worker does {rest:g} s that cannot be shared out, then {workers} parts one after "
        f"another, and ends after {serial:g} s. Below, {workers} workers: worker 0 does the same {rest:g} s "
        "while the others do nothing, then each does one part, all at the same time, and they end after "
        f"{parallel:g} s."
    )
    figure, panels = new_figure(
        alt=alt, rows=2, height=0.42 * workers + 2.0, sharex=True, height_ratios=[1.25, workers]
    )
    for axes, title, rows in zip(panels, _TITLES, (1, workers), strict=True):
        axes.set_title(title.format(workers), loc="left")
        axes.set(ylim=(rows, 0), xlim=(0, serial * 1.08), yticks=[row + 0.5 for row in range(rows)])
        axes.set_yticklabels([f"worker {row}" for row in range(rows)])
        axes.grid(visible=False, axis="y")
        _draw_piece(axes, 0, 0, rest, "rest", LIGHT_GREY)
    starts = [rest + sum(parts[:part]) for part in range(workers)]
    for part, (start, seconds) in enumerate(zip(starts, parts, strict=True)):
        _draw_piece(panels[0], 0, start, seconds, f"part {part}", rank_colour(part))
        _draw_piece(panels[1], part, rest, seconds, f"part {part}", rank_colour(part))
        if part > 0:
            panels[1].text(
                rest / 2, part + 0.5, "idle", ha="center", va="center", fontsize=9, color="#555555"
            )
    for axes, end in zip(panels, (serial, parallel), strict=True):
        axes.axvline(end, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
        axes.text(end + serial / 100, 0.5, f"{end:g} s", ha="left", va="center", fontsize=10)
    panels[1].set_xlabel("time (s)")
    return figure


def _draw_piece(axes: Axes, row: int, start: float, seconds: float, name: str, colour: str) -> None:
    """A bar of one worker, with its name in it."""
    axes.add_patch(
        Rectangle((start, row + _TOP), seconds, _BAR, facecolor=colour, edgecolor="#222222", linewidth=1.0)
    )
    axes.text(
        start + seconds / 2, row + 0.5, name, ha="center", va="center", fontsize=9.5, color=ink_on(colour)
    )
