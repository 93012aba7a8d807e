"""Plots of numbers: lines and groups of bars, drawn in the shared style."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from course_lib.figures.style import CHARACTER_INCHES, HATCHES, LINE_STYLES, Drawing, look, new_figure


def line_figure(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    alt: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    order: Sequence[str] = (),
    at_points: bool = False,
) -> Drawing:
    """Lines that differ in colour, dashes and markers: name -> (x values, y values).

    x, y: the axes' labels, with units. order: as of `draw_lines`. at_points: the x axis has its ticks where
    the first line has its points, and both axes have plain numbers, as `1,024`.
    """
    figure, axes = new_figure(alt=alt)
    draw_lines(axes, series, x=x, y=y, order=order)
    axes.set_title(title)
    if len(series) > 1:
        legend_beside(axes)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    if at_points:
        xs, _ = next(iter(series.values()))
        axes.set_xticks(xs, [f"{place:,}" for place in xs])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        if log_y:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    return figure


def draw_lines(
    axes: Axes,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    order: Sequence[str] = (),
) -> None:
    """Draw lines into given axes, as `line_figure` does; the legend is the caller's.

    order: names that look the same in several figures; a name's place in it decides how its line looks.
    """
    looks = [*order, *(name for name in series if name not in order)]
    for name, (xs, ys) in series.items():
        colour, dashes, marker = LINE_STYLES[looks.index(name) % len(LINE_STYLES)]
        axes.plot(
            xs, ys, color=colour, linestyle=dashes, marker=marker, markevery=_markers(len(xs)), label=name
        )
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def bar_figure(
    series: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str],
    y: str,
    alt: str,
    title: str = "",
) -> Drawing:
    """Groups of bars, one group a name: series -> one value a name. y: the axis's label, with its unit."""
    figure, axes = new_figure(alt=alt)
    draw_bars(axes, series, names=names, y=y)
    axes.set_title(title)
    if len(series) > 1:
        legend_beside(axes)
    return figure


def draw_bars(axes: Axes, series: Mapping[str, Sequence[float]], *, names: Sequence[str], y: str) -> None:
    """Draw groups of bars into given axes, as `bar_figure` does; the legend is the caller's."""
    places = np.arange(len(names))
    width = 0.8 / len(series)
    for position, (name, values) in enumerate(series.items()):
        axes.bar(
            places + (position - (len(series) - 1) / 2) * width,
            values,
            width,
            label=name,
            color=LINE_STYLES[position % len(LINE_STYLES)][0],
            edgecolor="white",
            hatch=HATCHES[position % len(HATCHES)],
        )
    shown = places[:: _labels_apart(axes, names)]
    axes.set_xticks(shown, [names[place] for place in shown])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(y)


def legend_beside(axes: Axes, **options: Any) -> None:
    """A legend to the right of the axes, where it covers nothing."""
    with look():  # for axes that new_figure has not made
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, **options)


def _markers(points: int) -> int:
    """Every how many points a line has a marker, so that a long line stays a line."""
    return max(1, points // 12)


def _labels_apart(axes: Axes, names: Sequence[str]) -> int:
    """Every how many names under an axis leave room between them."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    room = axes.bbox.width / figure.dpi
    wanted = len(names) * (max(map(len, names), default=0) + 1.5) * CHARACTER_INCHES
    return max(1, math.ceil(wanted / room))
