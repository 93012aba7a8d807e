"""Curves that grow while a model trains, and that outlive the browser and the kernel."""

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, SupportsFloat

from matplotlib.ticker import MaxNLocator

from course_lib.figures.plots import draw_lines
from course_lib.figures.style import Drawing, look, new_figure
from course_lib.notebook.history import Entry, History, HistoryFile, last_history
from course_lib.notebook.reporting import Progress, reporter


class LiveCurves:
    """Logs a training: shows how far it is, draws its curves, keeps every step on disk.

        with LiveCurves("unit01-digits", total=epochs, unit="epoch") as curves:
            for epoch in range(epochs):
                ...
                curves.log(train_loss=..., test_loss=..., test_accuracy=...)

    In a notebook with a person in front of it one output is replaced as the training goes on; executed by
    papermill, in a batch job or in a launched rank it prints plain lines, in a terminal it is a bar.
    """

    def __init__(
        self,
        name: str,
        *,
        total: float | None = None,
        unit: str = "step",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """name: of the training, for `reload`. total: how many steps, if known. unit: what one is.

        labels: the label of an axis, with its unit, by quantity: `{"loss": "loss (nats)"}`.
        """
        self.history = History(name, unit, total, labels or {})
        self._file = HistoryFile(self.history)
        self._reporter = reporter()
        self._started = time.perf_counter()

    def log(self, at: float | None = None, /, **values: SupportsFloat) -> None:
        """Add a step: `curves.log(train_loss=0.3, test_accuracy=97.1)`.

        values: numbers, or tensors of one element. What stands after the last `_` of a name is the quantity,
        one panel each, what stands before it the line's name. at: place on the x axis; by default one step
        after the last. A value that belongs to some steps only is left out of the others.
        """
        entries = self.history.entries
        place = (entries[-1].at + 1 if entries else 1.0) if at is None else float(at)
        entry = Entry(place, self._seconds, {name: _number(value) for name, value in values.items()})
        entries.append(entry)
        self._file.append(entry)
        self._reporter.show(self._progress, self._words, self.figure)

    def figure(self) -> Drawing:
        """The curves so far."""
        return curves_figure(self.history)

    @staticmethod
    def reload(name: str) -> Drawing:
        """The curves of the last training of this name, from disk. FileNotFoundError if there is none."""
        return curves_figure(last_history(name))

    def close(self) -> None:
        """Show the last state. Called at the end of a `with` block, whatever ended it."""
        self._reporter.close(self._progress, self._words, self.figure if self.history.entries else None)
        self._file.close()

    def __enter__(self) -> "LiveCurves":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _progress(self) -> Progress:
        entries = self.history.entries
        seconds = entries[-1].seconds if entries else self._seconds
        return Progress(self.history.unit, entries[-1].at if entries else 0.0, self.history.total, seconds)

    @property
    def _words(self) -> str:
        """The values of the last step, each of one width, so that they stand in columns."""
        if not self.history.entries:
            return ""
        last = self.history.entries[-1].values
        return "  ".join(f"{name} {value:<9.4g}" for name, value in last.items())


def _number(value: SupportsFloat) -> float:
    """A value as a plain number; a tensor without its history, of which torch would warn."""
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def curves_figure(history: History) -> Drawing:
    """A panel a quantity, a line a name: `train_loss` and `test_loss` share the panel "loss"."""
    panels = _panels(history)
    rows = math.ceil(len(panels) / 2)
    figure, axes = new_figure(
        alt=_in_words(history), height=3.1 * rows, rows=rows, columns=min(2, len(panels)), squeeze=False
    )
    places: Sequence[Any] = axes.ravel()
    for panel, (quantity, lines) in zip(places, panels.items(), strict=False):
        only = "" if len(lines) > 1 else f"{next(iter(lines))} ".removeprefix(f"{quantity} ")
        draw_lines(panel, lines, x=history.unit, y=only + history.labels.get(quantity, quantity))
        last = max(xs[-1] for xs, _ in lines.values())
        panel.set_xlim(0, max(last, history.total or 0) * 1.02)
        if all(x == round(x) for xs, _ in lines.values() for x in xs):
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if len(lines) > 1:
            with look():
                panel.legend(loc="best")
    for unused in places[len(panels) :]:
        unused.set_axis_off()
    return figure


def _panels(history: History) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Quantity -> name of a line -> its points."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for name, points in history.series.items():
        line, _, quantity = name.rpartition("_")
        panels.setdefault(quantity, {})[line or quantity] = points
    return panels or {"nothing logged yet": {"": ([0.0], [math.nan])}}


def _in_words(history: History) -> str:
    """The curves for those who do not see them: where each began, where it is, and its extremes."""
    told = [
        f"{name.replace('_', ' ')} from {ys[0]:.3g} to {ys[-1]:.3g}, between {min(ys):.3g} and {max(ys):.3g}"
        for name, (_, ys) in history.series.items()
    ]
    reached = history.entries[-1].at if history.entries else 0
    return (
        f"Curves of {history.name} up to {history.unit} {reached:g}: "
        + ("; ".join(told) or "no values")
        + "."
    )
