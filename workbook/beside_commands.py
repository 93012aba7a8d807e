"""The command `course beside`: libraries beside the workbook's own packages, listed and installed."""

import signal
import sys
import time
from typing import Annotated, Self

import typer

from workbook.errors import CommandFailed


def beside(
    name: Annotated[str | None, typer.Argument(help="What to install; without it, all are listed.")] = None,
) -> None:
    """Install a library beside the workbook's packages, such as horovod; or list what there is."""
    if name is None:
        _list()
    else:
        _install(name)


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from course_lib.beside import missing
    from course_lib.beside.environments import beside_folder
    from course_lib.beside.recipes import recipes

    table = Table("course beside", "For", "Space", "Time", "Installed")
    for name, recipe in recipes().items():
        table.add_row(
            name,
            recipe.purpose,
            f"{recipe.megabytes:,} MB",
            f"{recipe.minutes:g} min",
            "no" if missing(name) else "yes",
        )
    Console().print(table)
    print(f"Kept in {beside_folder()}.")


def _install(name: str) -> None:
    from course_lib.beside import BesideFailed, interpreter, missing
    from course_lib.beside.install import install
    from course_lib.beside.recipes import recipe_named

    started = time.monotonic()
    # A terminal that is closed, or a job that is ended, stops it as Control-C does: with all that it started.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    try:
        recipe = recipe_named(name)
        was_there = not missing(name)
        if not was_there:
            told = f"{recipe.title}: about {recipe.minutes:g} minutes where it is built for the first time."
            print(told, file=sys.stderr)
        with _ProgressLine() as line:
            install(name, line.tell)
    except BesideFailed as error:
        raise CommandFailed(str(error).splitlines()) from None
    except KeyboardInterrupt:
        raise CommandFailed(["Stopped. The same command begins anew."]) from None
    took = "" if was_there else f", after {time.monotonic() - started:.0f} s"
    print(f"{recipe.title} is installed{took}. Its Python: {interpreter(name)}")


class _ProgressLine:
    """One line with bar and time in a terminal; elsewhere a line for whatever begins. A context."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._bar = self._progress.add_task("", total=None)
        self._told = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, what: str, percent: int | None) -> None:
        """This is being done now, and so much of it is done."""
        self._progress.update(self._bar, description=what, completed=percent or 0, total=percent and 100)
        if what != self._told and not self._console.is_terminal:
            self._console.print(what, markup=False, highlight=False, soft_wrap=True)
        self._told = what
