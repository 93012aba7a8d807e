"""A figure with sliders: first the static picture, then, where somebody can move them, the sliders."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import display
from matplotlib.figure import Figure

from course_lib.figures.style import figure_bundle, show
from course_lib.notebook.display_target import DisplayTarget, display_target

Draw = Callable[..., Figure]
Alt = str | Callable[..., str] | None


@dataclass(frozen=True, slots=True)
class Slider:
    """The values that a parameter can take, in order.

    start: the one that the static picture shows; by default the first. label: what the parameter is, with
    its unit; by default its name. format: how a value is written, as for `format(value, ...)`.
    """

    values: Sequence[Any]
    start: Any = None
    label: str = ""
    format: str = ""

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ValueError(f"A slider needs at least two values; got {list(self.values)}.")
        if self.start is not None and self.start not in self.values:
            raise ValueError(f"The slider starts at {self.start!r}, which is none of {list(self.values)}.")

    @property
    def first(self) -> Any:
        """The value to begin with."""
        return self.values[0] if self.start is None else self.start

    def written(self, value: Any) -> str:
        """A value for people."""
        return format(value, self.format)


def explore(draw: Draw, /, *, alt: Alt = None, **parameters: Slider | Iterable[Any]) -> None:
    """Show `draw(**parameters)` with a slider a parameter.

        explore(ring_cost, ranks=[2, 4, 8, 16], megabytes=Slider(range(1, 101), start=10, label="size (MB)"))

    draw: called with a value for each parameter, returns a figure. alt: its alternative text, or a function
    of the same parameters that returns it; by default the figure's own. parameters: a `Slider`, or the values
    themselves. Where there is no front end, as in papermill, an exported page or a batch job, the picture for
    the starting values is all that there is, with a line that says which sliders a live notebook has.
    """
    Exploration(draw, {name: _slider(given) for name, given in parameters.items()}, alt).show()


class Exploration:
    """A figure, its parameters, and the place where it is shown."""

    def __init__(self, draw: Draw, parameters: Mapping[str, Slider], alt: Alt = None) -> None:
        if not parameters:
            raise ValueError("explore needs at least one parameter: explore(draw, ranks=[2, 4, 8]).")
        self._draw = draw
        self._parameters = dict(parameters)
        self._alt = alt
        self._handle: Any = None
        self.values = {name: slider.first for name, slider in parameters.items()}
        self.controls: dict[str, ipywidgets.SelectionSlider] = {}

    def show(self) -> None:
        """Show the picture for the starting values, and in a live notebook the sliders under it."""
        if get_ipython() is None:
            show(*self._drawn())
        elif display_target() is DisplayTarget.LIVE_NOTEBOOK:
            self._display(self._bundle())
            self.controls = {name: self._control(name, slider) for name, slider in self._parameters.items()}
            display(ipywidgets.VBox(list(self.controls.values())))  # type: ignore[no-untyped-call]
        else:
            bundle = self._bundle()
            bundle["text/html"] += f'<p style="font-size:90%">{html.escape(self._invitation())}</p>'
            self._display(bundle)

    def move(self, name: str, value: Any) -> None:
        """Draw again with another value of one parameter. An error of `draw` takes the picture's place."""
        self.values[name] = value
        try:
            bundle = self._bundle()
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            bundle = {"text/html": f"<pre>{html.escape(words)}</pre>", "text/plain": words}
        self._handle.update(bundle, raw=True)

    def _display(self, bundle: dict[str, str]) -> None:
        self._handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def _drawn(self) -> tuple[Figure, str]:
        """The figure for the present values and its alternative text, empty if it is the figure's own."""
        text = self._alt(**self.values) if callable(self._alt) else self._alt
        return self._draw(**self.values), text or ""

    def _bundle(self) -> dict[str, str]:
        return figure_bundle(*self._drawn())

    def _control(self, name: str, slider: Slider) -> ipywidgets.SelectionSlider:
        control = ipywidgets.SelectionSlider(
            options=[(slider.written(value), value) for value in slider.values],
            value=slider.first,
            description=slider.label or name,
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "34em"},
        )
        control.observe(lambda change: self.move(name, change["new"]), names="value")
        return control

    def _invitation(self) -> str:
        """What is to be moved in a live notebook, and what the picture shows."""
        ranges = "; ".join(
            f"{slider.label or name} = {slider.written(slider.first)} "
            f"(from {slider.written(slider.values[0])} to {slider.written(slider.values[-1])})"
            for name, slider in self._parameters.items()
        )
        return f"In a running notebook there are sliders here: {ranges}."


def _slider(given: Slider | Iterable[Any]) -> Slider:
    return given if isinstance(given, Slider) else Slider(tuple(given))
