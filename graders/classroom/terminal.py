"""What `course grade` shows at a terminal: how far it has come, and a table."""

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from graders.classroom.grade_class import State, StudentResult
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

    def end(self, result: StudentResult) -> None:
        """One of them has come to its end."""
        self.counts[result.state] += 1
        self._progress.update(self._bar, advance=1, description=self.told())
        if not self.console.is_terminal:
            done = sum(self.counts.values())
            line = f"[{done}/{self._count}] {result.student}: {_result(result)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def told(self) -> str:
        """`3 graded, 1 unchanged`."""
        return ", ".join(f"{count} {state.value}" for state, count in self.counts.items() if count)


def class_table(unit: str, results: Sequence[StudentResult]) -> Table:
    """One row a student."""
    unsandboxed = sum(not result.graded.sandboxed for result in results if result.graded)
    caption = f"{unsandboxed} of {len(results)}: {UNSANDBOXED}" if unsandboxed else None
    table = Table(title=escape(unit), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("Student", overflow="fold")
    table.add_column("Points", justify="right", no_wrap=True)
    table.add_column("Exercises", justify="right", no_wrap=True)
    table.add_column("Seconds", justify="right", no_wrap=True)
    table.add_column("State", no_wrap=True)
    table.add_column("To know", overflow="fold")
    for result in results:
        table.add_row(escape(result.student), *_figures(result), result.state.value, escape(_to_know(result)))
    return table


def _figures(result: StudentResult) -> tuple[str, str, str]:
    """The gradebook's points, what is solved, and how long it took to grade."""
    entry = result.entry
    points = f"{entry.points:g}/{entry.max_points:g}" if entry else ""
    if result.graded is None:
        return points, "", ""
    report = result.graded.report
    solved = sum(exercise.passed for exercise in report.exercises)
    return points, f"{solved}/{len(report.exercises)}", f"{result.graded.seconds:.1f}"


def _result(result: StudentResult) -> str:
    points = _figures(result)[0]
    told = f"{points}, {result.state.value}" if points else result.state.value
    return f"{told}. {_to_know(result)}".rstrip(". ")


def _to_know(result: StudentResult) -> str:
    """What the instructor should read about a submission, on one line."""
    if result.why:
        return _short(result.why)
    changed = result.entry.said if result.entry else ""
    if result.graded is None:
        return _short(changed)
    return _short(f"{changed} {result.graded.reason or ' '.join(result.graded.report.notes)}")


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), SHOWN_CHARACTERS)
