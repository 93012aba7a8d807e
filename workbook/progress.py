"""Saying how far a long command has come: a bar in a terminal, plain lines where there is none."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """Is told of every step; several may be under way at once, in different threads."""

    def begin(self, step: str) -> None: ...

    def end(self, step: str, told: str) -> None:
        """`told` says which step ended, how, and how long it took."""


class LineReporter:
    """A line a finished step: fit for a log."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console = console
        self.steps = steps
        self.done = 0

    def begin(self, step: str) -> None:
        """Nothing yet: a log need not hold every step twice."""

    def end(self, step: str, told: str) -> None:
        self.done += 1
        self.console.print(
            f"[{self.done}/{self.steps}] {told}", markup=False, highlight=False, soft_wrap=True
        )


class BarReporter:
    """One bar over all steps, with the steps that are under way beside it."""

    def __init__(self, console: Console, steps: int) -> None:
        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self.bar = self.progress.add_task("", total=steps)
        self.under_way: list[str] = []

    def begin(self, step: str) -> None:
        self.under_way.append(step)
        self._show()

    def end(self, step: str, told: str) -> None:
        self.under_way.remove(step)
        self.progress.advance(self.bar)
        self._show()

    def _show(self) -> None:
        self.progress.update(self.bar, description=", ".join(self.under_way))


def reporter(console: Console, steps: int) -> tuple[Reporter, AbstractContextManager[object]]:
    """The reporter that suits the console, and a context in which to use it."""
    if console.is_terminal:
        bar = BarReporter(console, steps)
        return bar, bar.progress
    return LineReporter(console, steps), nullcontext()
