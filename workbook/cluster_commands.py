"""The command `course cluster`: a real Slurm of several nodes on this machine."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbook.errors import CommandFailed

if TYPE_CHECKING:
    from course_lib.slurm.virtual.lifecycle import VirtualCluster

cluster = typer.Typer(help="A real Slurm of several nodes on this machine.", no_args_is_help=True)

Directory = Annotated[Path | None, typer.Option(help="Where the cluster keeps its state.")]


@cluster.command()
def start(
    nodes: Annotated[int, typer.Option(min=1, max=200)] = 2,
    cpus: Annotated[int, typer.Option(min=1, help="Cores that each node claims to have.")] = 8,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs that each node claims to have.")] = 2,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Jobs see nothing of this machine but the system and Python.")
    ] = False,
    owner: Annotated[
        int | None, typer.Option(help="The process whose end ends the cluster; by default this login shell.")
    ] = None,
    directory: Directory = None,
) -> None:
    """Start it; it ends with `course cluster stop`, or with the shell."""
    from course_lib.slurm.virtual.lifecycle import ClusterFailed, Shape

    found = _cluster(directory)
    try:
        found.start(Shape(nodes, cpus, gpus, sandbox), os.getsid(0) if owner is None else owner)
    except ClusterFailed as error:
        raise CommandFailed([str(error)]) from None
    print(f"{nodes} nodes are idle. Next: course cluster run sinfo; its files: {found.directory}")


@cluster.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...")], directory: Directory = None
) -> None:
    """Run a command on its head node: course cluster run sbatch FILE."""
    raise typer.Exit(_on_head(words, directory))


@cluster.command()
def crash(node: str, directory: Directory = None) -> None:
    """End a node as a loss of power would. Slurm marks it down within half a minute."""
    from course_lib.slurm.virtual.lifecycle import ClusterFailed

    try:
        _cluster(directory).crash(node)
    except ClusterFailed as error:
        raise CommandFailed([str(error)]) from None


@cluster.command()
def boot(node: str, directory: Directory = None) -> None:
    """Start a crashed node again, once sinfo says that it is down."""
    from course_lib.slurm.virtual.lifecycle import ClusterFailed

    try:
        _cluster(directory).boot(node)
    except ClusterFailed as error:
        raise CommandFailed([str(error)]) from None


@cluster.command()
def stop(directory: Directory = None) -> None:
    """End it and remove its files."""
    _cluster(directory).stop()


def _cluster(directory: Path | None) -> "VirtualCluster":
    from course_lib.slurm.virtual.lifecycle import VirtualCluster, default_directory

    return VirtualCluster((directory or default_directory()).absolute())


def _on_head(words: list[str], directory: Path | None) -> int:
    from course_lib.slurm.virtual.lifecycle import ClusterFailed

    try:
        return _cluster(directory).run(words, stdin=sys.stdin).returncode
    except ClusterFailed as error:
        raise CommandFailed([str(error)]) from None
