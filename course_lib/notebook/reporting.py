"""How far some work is, told in the way that suits who looks: a bar that moves, or plain lines.

Everything goes to standard output: nbgrader takes any output on standard error for a failure, and a carriage
return in a batch job's log makes one endless line.
"""

import html
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from IPython.display import display
from tqdm import tqdm  # type: ignore[import-untyped]

from course_lib.figures.style import Drawing, figure_html, show
from course_lib.notebook.display_target import DisplayTarget, display_target

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of some work is done, in `unit`s, and the seconds it took. `total` is None if unknown."""

    unit: str
    done: float
    total: float | None
    seconds: float

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.unit} {self.done:g}"
        total = f"{self.total:g}"
        return f"{self.unit} {self.done:>{len(total)}g}/{total}"

    @property
    def time(self) -> str:
        """`12 s, about 30 s left`."""
        passed = f"{self.seconds:.1f} s" if self.seconds < 100 else f"{self.seconds:.0f} s"
        if not self.total or not 0 < self.done < self.total:
            return passed
        left = self.seconds * (self.total - self.done) / self.done
        return f"{passed}, about {left:.0f} s left"


Draw = Callable[[], Drawing]


class Reporter(Protocol):
    """Shows progress. `words` are the present values; `draw` makes the picture of all so far, if any."""

    def show(self, progress: Progress, words: str, draw: Draw | None) -> None: ...

    def close(self, progress: Progress, words: str, draw: Draw | None) -> None: ...


class PlainReporter:
    """A line a step if there are few, else about ten in all; ever fewer if nobody knows how many."""

    _FEW = 20
    _LINES = 10
    _SILENCE = 60.0

    def __init__(self) -> None:
        self._next_done = 0.0
        self._last_seconds = 0.0
        self._last_line = ""

    def show(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Print a line if enough is done since the last one, or if it was long ago."""
        finished = progress.total is not None and progress.done >= progress.total
        long_ago = progress.seconds - self._last_seconds >= self._SILENCE
        if progress.done >= self._next_done or finished or long_ago:
            self._print(progress, words)

    def close(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Print the last state, unless that was the last line."""
        if progress.done > 0:
            self._print(progress, words)

    def _print(self, progress: Progress, words: str) -> None:
        self._last_seconds = progress.seconds
        if progress.total is None:
            step = progress.done
        else:
            step = 1.0 if progress.total <= self._FEW else progress.total / self._LINES
        self._next_done = progress.done + step
        line = f"{progress}" + (f"  {words}" if words else "")
        if line != self._last_line:
            print(f"{line}  {progress.time}", flush=True)
        self._last_line = line


class BatchReporter(PlainReporter):
    """Plain lines, and at the end the picture, which stays in the executed notebook."""

    def close(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Print the last state and show the picture."""
        super().close(progress, words, draw)
        if draw is not None:
            show(draw())


class TerminalReporter:
    """tqdm's bar."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Move the bar."""
        if self._bar is None:
            self._bar = tqdm(total=progress.total, unit=progress.unit, file=sys.stdout, leave=True)
        self._bar.set_postfix_str(words, refresh=False)
        self._bar.update(progress.done - self._bar.n)

    def close(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Leave the bar as it is."""
        if progress.done > 0:
            self.show(progress, words, draw)
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()


class NotebookReporter:
    """A bar and the picture in one output that is replaced; no widget, so that it stays in the file."""

    _SECONDS_BETWEEN = 0.4
    _SHARE = 0.1
    """At most this share of the time goes into drawing."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._not_before = 0.0

    def show(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Replace the output, if the last time was long enough ago."""
        started = time.perf_counter()
        if started < self._not_before:
            return
        self._replace(progress, words, draw)
        finished = time.perf_counter()
        self._not_before = finished + max(self._SECONDS_BETWEEN, (finished - started) / self._SHARE)

    def close(self, progress: Progress, words: str, draw: Draw | None) -> None:
        """Replace the output by the last state."""
        self._replace(progress, words, draw)

    def _replace(self, progress: Progress, words: str, draw: Draw | None) -> None:
        text = "  ".join(part for part in (str(progress), words, progress.time) if part)
        value = "" if progress.total is None else f' value="{progress.done:g}" max="{progress.total:g}"'
        bar = f'<progress aria-label="progress"{value} style="width:16em"></progress>'
        picture = "" if draw is None else f"<div>{figure_html(draw())}</div>"
        content = {"text/html": f"<div>{bar} {html.escape(text)}</div>{picture}", "text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, raw=True)


_REPORTERS: dict[DisplayTarget, Callable[[], Reporter]] = {
    DisplayTarget.LIVE_NOTEBOOK: NotebookReporter,
    DisplayTarget.BATCH_NOTEBOOK: BatchReporter,
    DisplayTarget.TERMINAL: TerminalReporter,
    DisplayTarget.PLAIN: PlainReporter,
}


def reporter() -> Reporter:
    """The reporter that suits those who look at the output of this call."""
    return _REPORTERS[display_target()]()


def progress(items: Iterable[Item], unit: str = "step", total: int | None = None) -> Iterator[Item]:
    """Go through `items` and show how far it is: `for batch in progress(loader, "batch"):`.

    unit: what one item is. total: how many there are, if `items` cannot say.
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    shown = reporter()
    started = time.perf_counter()
    done = 0
    try:
        for item in items:
            yield item
            done += 1
            shown.show(Progress(unit, done, count, time.perf_counter() - started), "", None)
    finally:
        shown.close(Progress(unit, done, count, time.perf_counter() - started), "", None)
