"""The commands `course slurm` and `course doctor`: batch scripts for a site, and what this place is."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbook.errors import CommandFailed

if TYPE_CHECKING:
    from course_lib.slurm.scripts import Job
    from course_lib.slurm.sites import Site

slurm = typer.Typer(help="Batch scripts for a site: render, check, submit.", no_args_is_help=True)

SiteName = Annotated[str | None, typer.Option("--site", help="A site of sites.toml; by default this one.")]


@slurm.command()
def render(
    script: Annotated[str, typer.Argument(help="workbook, gpu, train_srun, train_torchrun, ..., jupyter")],
    words: Annotated[list[str] | None, typer.Argument(help="Units, or after -- what to train.")] = None,
    site: SiteName = None,
    nodes: int = 1,
    tasks_per_node: Annotated[int | None, typer.Option(help="Ranks a node.")] = None,
    minutes: Annotated[int, typer.Option(help="Time limit.")] = 60,
    partition: str | None = None,
    account: str | None = None,
    reservation: str | None = None,
    array: Annotated[str | None, typer.Option(help="Task numbers of an array, such as 0-3.")] = None,
    after: Annotated[list[str] | None, typer.Option(help="A job that must end well before.")] = None,
    folder: Annotated[str | None, typer.Option("--run", help="Folder of the results.")] = None,
    image: Annotated[str | None, typer.Option(help="A container image to run in.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", help="name=value, a notebook's parameter.")
    ] = None,
) -> None:
    """Print a batch script. Exit status 1, with the reasons, if the site would refuse it."""
    from course_lib.slurm.scripts import Job, Refused
    from course_lib.slurm.scripts import render as render_job

    given = tuple(words or ())
    training = script.startswith("train_")
    job = Job(
        script,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        minutes=minutes,
        partition=partition,
        account=account,
        reservation=reservation,
        array=array,
        after=tuple(after or ()),
        run=folder,
        image=image,
        units=() if training else given,
        parameters=_parameters(parameter or []),
        program=" ".join(given) if training else "",
    )
    place = chosen_site(site)
    try:
        text = render_job(job, place)
    except Refused as refusal:
        raise CommandFailed(refusal.complaints) from None
    _check_notebooks(job)
    print(text, end="")
    _say_cost(text, place, job.needs_no_gpu)


@slurm.command("cost")
def class_cost(
    hours: Annotated[float, typer.Option(min=0.1, help="How long each has it.")] = 4.0,
    people: Annotated[int, typer.Option(min=1, help="Each with a node, or a part of one.")] = 1,
    site: SiteName = None,
) -> None:
    """Say what a class costs: a Jupyter session for each, in every partition that takes it."""
    from course_lib.slurm.cost import cost_of
    from course_lib.slurm.lint import Script
    from course_lib.slurm.scripts import Job, Refused
    from course_lib.slurm.scripts import render as render_job

    place = chosen_site(site)
    if not place.partitions:
        raise CommandFailed(
            [f"No partitions are known of {place.title}: name a site with --site, or add them to sites.toml."]
        )
    for partition, limits in place.partitions.items():
        account = place.account_form if place.account == "required" else None
        job = Job(
            "jupyter", partition=partition, minutes=round(hours * 60), account=account, tasks_per_node=1
        )
        try:
            one = cost_of(Script(render_job(job, place)), place)
        except Refused:
            continue
        gpus = "GPUs: not known" if limits.gpus is None else f"usable GPUs: {limits.gpus}"
        charge = one.charge(place, people) if one else ""
        print(f"{partition:16}{gpus:18}{charge or 'charge: not known'}")


@slurm.command()
def submit(
    file: Path,
    site: SiteName = None,
    test: Annotated[bool, typer.Option("--test", help="Ask Slurm, but do not submit.")] = False,
) -> None:
    """Check a batch script against the site's rules, and hand it to sbatch."""
    from course_lib.slurm.scripts import Refused
    from course_lib.slurm.scripts import submit as submit_file

    place = chosen_site(site)
    try:
        _say_cost(file.read_text(errors="replace"), place, needs_no_gpu=False)
        print(submit_file(file, place, test_only=test))
    except FileNotFoundError:
        raise CommandFailed([f"There is no file {file}."]) from None
    except Refused as refusal:
        raise CommandFailed(refusal.complaints) from None


@slurm.command()
def status() -> None:
    """Show your jobs: number, name, state, time used and left, nodes or the reason for waiting."""
    form = "%.10i %.24j %.10T %.10M %.10L %.5D %R"
    try:
        done = subprocess.run(["squeue", "--me", f"--format={form}"], check=False)
    except FileNotFoundError:
        raise CommandFailed(["There is no squeue here: ask on a login node of a cluster."]) from None
    raise typer.Exit(done.returncode)


@slurm.command()
def lumi(
    name: Annotated[str, typer.Argument(help="Of the course, as LUMI's form shows it.")],
    project: Annotated[str, typer.Option(help="project_<number>")],
    environment: Annotated[str, typer.Option(help="Folder of the Python environment.")],
    repository: Annotated[str, typer.Option(help="Where LUMI clones the workbook from.")],
    reference: Annotated[str, typer.Option(help="Branch or tag.")] = "main",
    notebook: str = "notebooks/00_hello_ranks/00_hello_ranks.ipynb",
    partition: str = "small-g",
    time: str = "04:00:00",
    cores: int = 7,
    memory: str = "60GB",
    gpus: int = 1,
    reservation: str = "",
    output: Annotated[Path, typer.Option(help="Where to write the two files.")] = Path(),
) -> None:
    """Write LUMI's course module and its resources, for the app "Jupyter for courses"."""
    from course_lib.slurm.scripts import render_lumi

    values = {
        "name": name,
        "directory": f"/projappl/{project}/www_lumi_modules",
        "environment": environment.rstrip("/"),
        "repository": repository,
        "reference": reference,
        "notebook": notebook,
        "partition": partition,
        "time": time,
        "cores": cores,
        "memory": memory,
        "gpus": gpus,
        "reservation": reservation,
    }
    for which, path in (("course.lua", f"{name}.lua"), ("course-resources.yml", f"{name}-resources.yml")):
        (output / path).write_text(render_lumi(which, values))
        print(f"{output / path}: copy it to {values['directory']}")


def doctor() -> None:
    """Say where this is, what can be done here, and what is forbidden."""
    from rich.console import Console
    from rich.table import Table

    from course_lib.slurm.doctor import findings, look_around

    table = Table(show_header=False, box=None)
    for heading, text in findings(look_around()):
        table.add_row(heading, text)
    Console().print(table)


def chosen_site(name: str | None) -> "Site":
    """The site of this name, or the one that this is. Raises CommandFailed."""
    from course_lib.slurm.sites import UnknownSite, site_here, site_named

    try:
        return site_here() if name is None else site_named(name)
    except UnknownSite as error:
        raise CommandFailed([str(error)]) from None


def _check_notebooks(job: "Job") -> None:
    """A unit that is not here would be missed only after the job has waited in a queue."""
    for unit in job.units if job.script == "workbook" else ():
        path = job.folder / "notebooks" / unit / f"{unit}.ipynb"
        if not path.exists():
            raise CommandFailed(
                [f"There is no {path}. Call this in the folder that holds your notebooks/, and name a unit."]
            )


def _say_cost(text: str, site: "Site", needs_no_gpu: bool) -> None:
    """On stderr, for stdout has the script or what sbatch says."""
    from course_lib.slurm.cost import advice, cost_of
    from course_lib.slurm.lint import Script

    if cost := cost_of(Script(text), site):
        print(cost.sentence(site), file=sys.stderr)
        if needs_no_gpu and (said := advice(cost, site)):
            print(said, file=sys.stderr)


def _parameters(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise CommandFailed([f"A parameter is name=value; got {wrong[0]!r}."])
    return {name: value for name, _, value in pairs}
