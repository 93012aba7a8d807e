"""One look for every figure: colours for colour-blind readers, an opaque ground, a text to read out.

A `Drawing` is a matplotlib figure that knows its alternative text. A notebook shows it as an `<img alt=...>`,
which JupyterLab, nbconvert and nbgrader's feedback keep; an `image/png` output would lose the text there.
Colours: M. Okabe, K. Ito, Color universal design, 2008 (https://jfly.uni-koeln.de/color/). Colour is never
the only difference: lines differ in their dashes and markers too, areas in their hatches.
"""

import base64
import html
import io
import sys
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from cycler import cycler
from IPython.core.getipython import get_ipython
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.typing import RcKeyType

COLOURS = MappingProxyType(
    {
        "black": "#000000",
        "orange": "#E69F00",
        "sky_blue": "#56B4E9",
        "bluish_green": "#009E73",
        "yellow": "#F0E442",
        "blue": "#0072B2",
        "vermillion": "#D55E00",
        "reddish_purple": "#CC79A7",
    }
)
"""Okabe and Ito's palette, by name."""

GREY = "#8A8A8A"
LIGHT_GREY = "#E3E3E3"

LINE_STYLES = tuple(
    (COLOURS[colour], dashes, marker)
    for colour, dashes, marker in (
        ("blue", "-", "o"),
        ("vermillion", "--", "s"),
        ("bluish_green", "-.", "^"),
        ("orange", ":", "D"),
        ("reddish_purple", (0, (5, 1, 1, 1, 1, 1)), "v"),
        ("sky_blue", (0, (8, 2)), "P"),
        ("black", (0, (1, 1)), "X"),
    )
)
"""(colour, dashes, marker) of the first, second ... line of a plot. Yellow is too pale for a line."""

HATCHES = ("", "///", "\\\\\\", "xxx", "...", "---", "++")
"""Hatch of the first, second ... area of a plot."""

WIDTH = 9.0
"""Inches: at 96 pixels an inch this is the width of a notebook's output, so that 9 pt are 12 pixels there."""

CHARACTER_INCHES = 0.088
"""About as wide is a character at 9 pt; for what must fit before it is drawn."""

_PIXELS_PER_INCH = 96
_OVERSAMPLING = 1.5

_MARGIN = 8
_CARD = f"box-sizing:border-box;padding:{_MARGIN}px;margin:4px 0;border-radius:6px;background:white"
"""Round a figure, in pixels: on a dark page its ground has an edge, which words should not touch."""

_LOOK: dict[RcKeyType, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(
        color=[style[0] for style in LINE_STYLES], linestyle=[style[1] for style in LINE_STYLES]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.facecolor": "white",
    "figure.titlesize": 12,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": LIGHT_GREY,
    "hatch.linewidth": 0.8,
    "legend.edgecolor": "white",
    "legend.fancybox": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.facecolor": "white",
    "text.color": "black",
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def look() -> AbstractContextManager[None]:
    """The shared settings of matplotlib, for the artists made inside of `with look():`."""
    return mpl.rc_context(_LOOK)


class Panel(Axes):
    """Axes whose lines, title and legend have the shared look wherever they are drawn."""

    def plot(self, *args: Any, **options: Any) -> list[Line2D]:
        with look():
            return super().plot(*args, **options)

    def set_title(self, *args: Any, **options: Any) -> Text:
        with look():
            return super().set_title(*args, **options)

    def legend(self, *args: Any, **options: Any) -> Legend:
        with look():
            return super().legend(*args, **options)


class Drawing(Figure):
    """A figure with alternative text, which shows itself as the last value of a notebook's cell."""

    def __init__(self, *args: Any, alt: str, **options: Any) -> None:
        """alt: what the figure tells, in words; the rest is matplotlib's. ValueError if alt is empty."""
        super().__init__(*args, **options)
        self.alt = _checked(alt)
        FigureCanvasAgg(self)

    def legend(self, *args: Any, **options: Any) -> Legend:
        with look():
            return super().legend(*args, **options)

    def _ipython_display_(self) -> None:
        """Called by IPython, in place of the formats that matplotlib's inline backend registers."""
        show(self)


def new_figure(
    *, alt: str, height: float = 3.4, width: float = WIDTH, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Drawing, Any]:
    """An empty figure with its axes: `figure, axes = new_figure(alt="...")`.

    alt: what the figure tells, in words. height, width: inches. rows, columns: how many axes; with more than
    one, an array of them comes back, as from `plt.subplots`, which also takes the `options`.
    """
    with look():
        figure = Drawing(figsize=(width, height), layout="constrained", alt=alt)
        panel = {"axes_class": Panel, **options.pop("subplot_kw", {})}
        axes = figure.subplots(rows, columns, subplot_kw=panel, **options)
    return figure, axes


def rank_colour(rank: int) -> str:
    """The colour of a rank, and of data that came from it. Eight differ; then they repeat."""
    order = (
        "sky_blue",
        "orange",
        "bluish_green",
        "yellow",
        "reddish_purple",
        "vermillion",
        "blue",
        "black",
    )
    return COLOURS[order[rank % len(order)]]


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on `colour` (WCAG 2.2, relative luminance)."""
    channels = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True))
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def show(figure: Figure, alt: str = "") -> None:
    """Show a figure here, with its alternative text; outside of a notebook, print that text.

    figure: a `Drawing`, or any matplotlib figure, which then needs `alt`. A figure of pyplot is closed, so
    that it is not shown a second time when the cell ends. Raises ValueError if there is no alternative text.
    """
    text = _checked(alt or getattr(figure, "alt", ""))
    if get_ipython() is None:
        print(f"[figure] {text}")
    else:
        display(figure_bundle(figure, text), raw=True)  # type: ignore[no-untyped-call]
    _close_in_pyplot(figure)


def figure_bundle(figure: Figure, alt: str = "") -> dict[str, str]:
    """What a notebook stores for a figure: `text/html` with the picture in it, and `text/plain`."""
    text = _checked(alt or getattr(figure, "alt", ""))
    return {"text/html": figure_html(figure, text), "text/plain": f"[figure] {text}"}


def figure_html(figure: Figure, alt: str = "") -> str:
    """The figure as an `<img>` that holds its PNG and its alternative text, and needs no other file."""
    text = html.escape(_checked(alt or getattr(figure, "alt", "")), quote=True)
    width = round(figure.get_figwidth() * _PIXELS_PER_INCH) + 2 * _MARGIN
    data = base64.b64encode(figure_png(figure)).decode("ascii")
    style = f"{_CARD};max-width:100%;height:auto"
    return f'<img alt="{text}" width="{width}" style="{style}" src="data:image/png;base64,{data}"/>'


def figure_png(figure: Figure) -> bytes:
    """The figure as a PNG on white, at one and a half times the pixels that a notebook shows it with."""
    stream = io.BytesIO()
    with look():
        figure.savefig(
            stream,
            format="png",
            dpi=_PIXELS_PER_INCH * _OVERSAMPLING,
            facecolor="white",
            metadata={"Software": None},
        )
    return stream.getvalue()


def _checked(alt: str) -> str:
    if not alt.strip():
        raise ValueError(
            "A figure needs alternative text: alt='what the figure tells, for those who do not see it'."
        )
    return alt


def _close_in_pyplot(figure: Figure) -> None:
    """Take the figure from pyplot's list, if pyplot was ever imported."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
