"""What `course grade` shows at a terminal: how far it has come, and a table."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from graders.classroom.grade_class import Outcome, State
from graders.grading.text import shortened
from graders.isolation.backends import UNSANDBOXED

SHOWN_CHARACTERS = 300


def progress_bar(console: Console) -> Progress:
    """A bar with counts and time left, which a terminal shows until it is stopped; elsewhere nothing."""
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Terminal:
    """Tells of every submission as it ends: a bar in a terminal, lines where there is none. A context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts = dict.fromkeys(State, 0)
        self._count = 0
        self._progress = progress_bar(console)
        self._bar = self._progress.add_task("")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, count: int) -> None:
        """So many submissions are to be graded."""
        self._count = count
        self._progress.update(self._bar, total=count)

    def say(self, sentence: str) -> None:
        """Tell something, above the bar."""
        self.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """One of them has come to its end."""
        self.counts[outcome.state] += 1
        self._progress.update(self._bar, advance=1, description=self.told())
        if not self.console.is_terminal:
            done = sum(self.counts.values())
            line = f"[{done}/{self._count}] {outcome.student}: {_result(outcome)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def told(self) -> str:
        """`3 graded, 1 unchanged`."""
        return ", ".join(f"{count} {state.value}" for state, count in self.counts.items() if count)


def class_table(unit: str, outcomes: Sequence[Outcome]) -> Table:
    """One row a student."""
    unsandboxed = sum(not outcome.graded.sandboxed for outcome in outcomes if outcome.graded)
    caption = f"{unsandboxed} of {len(outcomes)}: {UNSANDBOXED}" if unsandboxed else None
    table = Table(title=escape(unit), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("Student", overflow="fold")
    table.add_column("Points", justify="right", no_wrap=True)
    table.add_column("Exercises", justify="right", no_wrap=True)
    table.add_column("Seconds", justify="right", no_wrap=True)
    table.add_column("State", no_wrap=True)
    table.add_column("To know", overflow="fold")
    for outcome in outcomes:
        table.add_row(
            escape(outcome.student), *_figures(outcome), outcome.state.value, escape(_to_know(outcome))
        )
    return table


def _figures(outcome: Outcome) -> tuple[str, str, str]:
    if outcome.graded is None:
        return "", "", ""
    report = outcome.graded.report
    solved = sum(result.passed for result in report.exercises)
    points = f"{report.points:g}/{report.max_points:g}"
    return points, f"{solved}/{len(report.exercises)}", f"{outcome.graded.seconds:.1f}"


def _result(outcome: Outcome) -> str:
    points = _figures(outcome)[0]
    told = f"{points}, {outcome.state.value}" if points else outcome.state.value
    return f"{told}. {_to_know(outcome)}".rstrip(". ")


def _to_know(outcome: Outcome) -> str:
    """What the instructor should read about a submission, on one line."""
    if outcome.why:
        return _short(outcome.why)
    if outcome.graded is None:
        return ""
    return _short(outcome.graded.reason or " ".join(outcome.graded.report.notes))


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), SHOWN_CHARACTERS)
