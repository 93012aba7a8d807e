"""The command `course`.

Each command imports what it needs when it runs: torch and nbgrader take seconds that `--help` need not wait.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbook import beside_commands, cluster_commands, slurm_commands, track_commands
from workbook.errors import CommandFailed

if TYPE_CHECKING:
    from workbook.build import Efforts
    from workbook.release import Effort

app = typer.Typer(
    help="Build, run and grade the workbook.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(cluster_commands.cluster, name="cluster")
app.add_typer(slurm_commands.slurm, name="slurm")
app.command()(slurm_commands.doctor)
app.command()(beside_commands.beside)
app.command()(track_commands.track)
app.command("student-edition")(track_commands.student_edition)

Root = Annotated[Path, typer.Option(help="The folder that holds solutions/ and notebooks/.")]
HERE = Path()
Unsafe = Annotated[
    bool, typer.Option("--unsafe", help="Grade even where no sandbox keeps the code from your files.")
]


@app.command()
def workbook(
    units: Annotated[list[str] | None, typer.Argument(help="Only these; without any, all.")] = None,
    root: Root = HERE,
    jobs: Annotated[int, typer.Option(min=1, help="How many units run at the same time.")] = 2,
) -> None:
    """Build every unit, execute its solutions, grade them, and write the pages."""
    from workbook.commands import make_workbook
    from workbook.paths import Places

    make_workbook(Places(root), _efforts_in(root), jobs, units or ())


@app.command()
def gpu(root: Root = HERE) -> None:
    """On a node with GPUs: test, run every unit on processes, measure; build/gpu.html has what was found."""
    from workbook.gpu.command import examine
    from workbook.paths import Places

    examine(Places(root), _efforts)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A notebook or a Python file with answers.")],
    unit: Annotated[str | None, typer.Option(help="Its unit, such as 02_data_parallel.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    require_sandbox: Annotated[
        bool,
        typer.Option("--require-sandbox", help="It is somebody else's work: refuse where there is none."),
    ] = False,
    unsafe: Unsafe = False,
) -> None:
    """Grade a file: its code runs in a sandbox. Exit status 0 means all points, 1 not all, 2 no grades."""
    from graders import check_process

    raise typer.Exit(
        check_process.run(file, unit, as_json=json, require_sandbox=require_sandbox, unsafe=unsafe)
    )


@app.command()
def grade(
    unit: Annotated[str, typer.Argument(help="Its name: 02_data_parallel.")],
    student: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given several times.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many submissions at the same time; by default one a core.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Grade again what has not changed.")] = False,
    unsafe: Unsafe = False,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="By a job array on this cluster; --jobs is then its tasks, 4 at first."),
    ] = False,
    partition: Annotated[str | None, typer.Option(help="With --slurm: where the array runs.")] = None,
    account: Annotated[str | None, typer.Option(help="With --slurm: the project that pays.")] = None,
    minutes: Annotated[int, typer.Option(min=1, help="With --slurm: time limit of each task.")] = 60,
    root: Annotated[Path, typer.Option(help="The folder that holds nbgrader_config.py.")] = HERE,
) -> None:
    """Grade all submissions of a unit into nbgrader's gradebook. Stopped at any moment, it goes on."""
    from course_lib.slurm.sites import site_here
    from graders import commands
    from graders.classroom.grade_class import Order
    from graders.classroom.job_array import ArrayOptions

    cluster = ArrayOptions(site_here(), jobs or 4, minutes, partition, account) if slurm else None
    order = Order(unit, tuple(student or ()), jobs or os.cpu_count() or 1, force, unsafe, cluster)
    # Which exercises count is looked up from the working folder, by the processes that grade as well.
    if root.is_dir():
        os.chdir(root)
    raise typer.Exit(commands.grade(Path(), order))


@app.command()
def report(
    unit: Annotated[str, typer.Argument(help="Its name: 02_data_parallel.")],
    file: Annotated[
        Path | None, typer.Option(help="Your notebook or Python file; by default the one in notebooks/.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Where to write it; by default report-UNIT.html.")] = None,
) -> None:
    """Write one page for a tutor: answers, verdicts, predictions beside measurements, timelines."""
    from graders import commands
    from workbook.paths import Places

    places = Places(HERE)
    notebook = file or places.of_unit(places.notebooks, unit)
    raise typer.Exit(commands.report(unit, notebook, page or Path(f"report-{unit}.html")))


@app.command()
def progress() -> None:
    """Show how far you have come."""
    from graders import commands

    raise typer.Exit(commands.progress())


@app.command()
def hint(
    exercise: str,
    number: Annotated[int | None, typer.Argument(help="Which one; by default the next.")] = None,
) -> None:
    """Show a hint for an exercise."""
    from graders import commands

    raise typer.Exit(commands.hint(exercise, number))


@app.command("second-way")
def second_way(exercise: str) -> None:
    """Show another right answer to an exercise that you have solved."""
    from graders import commands

    raise typer.Exit(commands.second_way(exercise))


@app.command()
def reset(
    file: Annotated[Path, typer.Argument(help="The notebook; a copy of it as it was is kept beside it.")],
    exercise: str,
) -> None:
    """Begin one answer in a notebook anew."""
    from graders import commands

    raise typer.Exit(commands.reset(file, exercise))


@app.command()
def start(
    folder: Annotated[Path, typer.Argument(help="Yours; it is made if it is not there.")],
) -> None:
    """Copy the notebooks into a folder of your own, to work there and to hand in from there.

    For an installation that several share. What you have worked in stays as it is.
    """
    from workbook.paths import Places
    from workbook.start import start as copied

    for sentence in copied(folder.resolve(), Places(Path(__file__).parents[1])):
        print(sentence)


@app.command()
def notebooks(
    root: Root = HERE,
    force: Annotated[
        bool, typer.Option("--force", help="Replace notebooks that have been worked in.")
    ] = False,
) -> None:
    """Make the students' notebooks anew from the solutions."""
    from graders.submissions.released_cells import write_released_cells
    from workbook.commands import make_notebooks
    from workbook.paths import Places

    make_notebooks(Places(root), _efforts, write_released_cells, force)


@app.command()
def release(
    unit: Annotated[str, typer.Argument(help="Its name: 02_data_parallel.")], root: Root = HERE
) -> None:
    """Make a unit known to nbgrader's gradebook, so that submissions can be graded."""
    from workbook.commands import release_unit
    from workbook.paths import Places

    release_unit(unit, Places(root), _efforts_in(root))


@app.command("new-unit")
def new_unit(name: Annotated[str, typer.Argument(help="Two digits and small letters: 14_name.")]) -> None:
    """Write a whole new unit with one small exercise, all green. Exit status 2: it cannot have that name."""
    from graders.submissions.released_cells import write_released_cells
    from workbook.commands import make_notebooks
    from workbook.new_unit import UnitRefused, write_unit
    from workbook.paths import Places

    root = Path(__file__).parents[1]
    try:
        print(*write_unit(name, root), sep="\n")
    except UnitRefused as refusal:
        typer.echo(refusal, err=True)
        raise typer.Exit(2) from refusal
    make_notebooks(Places(root), _efforts, write_released_cells)


def _efforts(unit: str) -> Mapping[str, "Effort"]:
    """The unit's exercises as their graders describe them; empty where it has no graders."""
    from graders.grading.registry import exercises

    return exercises(unit)


def _efforts_in(root: Path) -> "Efforts":
    """The same, in a folder of a track for its exercises only."""
    from graders.grading.registry import counted

    return lambda unit: counted(unit, root)


def main() -> None:
    """Run a command; one that fails ends with its sentences on stderr and exit status 1."""
    try:
        app()
    except CommandFailed as failure:
        print(*failure.complaints, sep="\n", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
