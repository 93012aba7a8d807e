"""The commands that write what is handed out: `course track` and `course student-edition`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workbook.errors import CommandFailed
from workbook.slurm_commands import SiteName, chosen_site

INSTALLED = Path(__file__).parents[1]


def track(
    name: Annotated[str | None, typer.Argument(help="Which; without one, they are listed.")] = None,
    folder: Annotated[Path | None, typer.Argument(help="What students get is written here.")] = None,
    trainer: Annotated[
        Path | None, typer.Option(help="Another folder: slides, timetable, notes, answers, and what grades.")
    ] = None,
    starts: Annotated[
        datetime, typer.Option(formats=["%H:%M"], help="When the first session begins.")
    ] = datetime(1900, 1, 1, 9),
    site: SiteName = None,
    first_day: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="A semester's first day.")
    ] = None,
) -> None:
    """Write a folder to hand out with a part of the workbook: an afternoon, a day, a semester."""
    from graders.grading.registry import exercises
    from workbook.paths import Places
    from workbook.tracks.folder import Calendar, write_folder
    from workbook.tracks.track import read_track
    from workbook.tracks.trainer import write_trainer

    if name is None:
        Console().print(_table())
        return
    chosen = read_track(name)
    if folder is None:
        raise CommandFailed([f"Where to? For example: course track {name} ../{name}"])
    installed = Places(INSTALLED)
    calendar = Calendar(60 * starts.hour + starts.minute, first_day.date() if first_day else None)
    try:
        print(*write_folder(chosen, folder, installed, exercises, calendar), sep="\n")
        if trainer is not None:
            told = write_trainer(chosen, trainer, folder, installed, exercises, calendar, chosen_site(site))
            print(*told, sep="\n")
    except OSError as error:
        raise CommandFailed(
            [f"{error.filename or folder} cannot be written ({error.strerror}): name a folder of your own."]
        ) from error


def student_edition(
    folder: Annotated[Path, typer.Argument(help="New; what a lecturer publishes is written here.")],
) -> None:
    """Write the workbook without solutions, tests and second ways, for students."""
    from workbook.student_edition import write_student_edition

    print(*write_student_edition(folder, INSTALLED), sep="\n")


def _table() -> Table:
    """All tracks there are."""
    from workbook.release import spoken_minutes
    from workbook.tracks.track import read_track, track_names

    table = Table("Track", "Time, with breaks", "Title", "About", title="course track NAME FOLDER")
    for track in map(read_track, track_names()):
        table.add_row(track.name, spoken_minutes(track.minutes), track.title, track.about)
    return table
