"""Published measurements beside their predictions, as a figure."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from course_lib.figures.style import COLOURS, GREY, Drawing, new_figure
from course_lib.published.row import Row


def published_figure(rows: Sequence[Row]) -> Drawing:
    """A line for each row, from what was published to what was predicted; a panel for each unit."""
    said = "; ".join(
        f"{row.source}, {row.what}: published {row.measured:.3g}, predicted {row.predicted:.3g} {row.unit}"
        for row in rows
    )
    units = list(dict.fromkeys(row.unit for row in rows))
    figure, panels = new_figure(alt=f"Published and predicted. {said}.", rows=len(units), height=7.0)
    for axes, unit in zip(panels, units, strict=True):
        _panel(axes, [row for row in rows if row.unit == unit])
        axes.set_xlabel(unit)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    names = [f"{row.source}: {row.what}" for row in rows]
    measured, predicted = [row.measured for row in rows], [row.predicted for row in rows]
    axes.hlines(names, measured, predicted, color=GREY)
    axes.plot(measured, names, "o", color=COLOURS["blue"], label="published", linestyle="none")
    axes.plot(predicted, names, "X", color=COLOURS["vermillion"], label="predicted", linestyle="none")
    axes.set_xlim(0, 1.15 * max(*measured, *predicted))
    axes.invert_yaxis()
