"""The sites of `slurm/sites.toml`: how jobs are asked for there, how ranks are started, what is refused."""

import os
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "COURSE_SITES"
"""Environment variable that names another file of sites."""

DIRECTORY = Path(__file__).parents[2] / "slurm"
"""The batch scripts and the list of sites."""

GENERIC = "generic"
"""The site of a cluster that the file does not know."""


class UnknownSite(ValueError):
    """There is no such site; the message names those that there are."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The limits of a partition and what it costs, where they are known.

    nodes, least_nodes, hours: of a job. gpus: on a node; 0 says that there are none, None that this is not
    known. node_rate, gpu_rate, core_rate: what an hour of one costs, in `unit`, or where that is empty in the
    site's unit.
    """

    nodes: int | None = None
    least_nodes: int = 1
    hours: float | None = None
    gpus: int | None = None
    node_rate: float = 0.0
    gpu_rate: float = 0.0
    core_rate: float = 0.0
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """One site. The fields are those of the file; what a site does not say has the default below."""

    name: str
    title: str
    launcher: str = "srun"
    """Starts ranks: "srun" or "ibrun"."""
    cluster: str = ""
    """ClusterName in Slurm's configuration, by which the site is recognised."""
    recognised_by: Mapping[str, str] = field(default_factory=dict)
    """Environment variables and their values, by which the site is recognised."""
    portal: str = ""
    login: str = ""
    partition: str = ""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    account: str = "optional"
    """Whether a job names its project: "required", "optional" or "none"."""
    account_form: str = "<project>"
    tasks_per_node: int = 1
    """Ranks on a node of a partition whose GPUs are not known, or that has none."""
    cpus_per_task: int | None = None
    gpu_option: str = ""
    """How a job asks for GPUs; empty where it does so by its partition, or there are none."""
    unit: str = ""
    """What the site's accounting counts, in the plural; empty where that is not known."""
    least_hours: float = 0.0
    """A job that is shorter is charged as if it took so long."""
    memory: str = ""
    """What --mem must say; empty where it need not be said."""
    modules: tuple[str, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    binding: str = ""
    """srun's option that puts each rank on the cores next to its GPU, for a whole node."""
    per_task: str = ""
    """A shell command that every task runs before its program."""
    container: str = ""
    """How a program runs in an image, with {image} for the image."""
    container_setup: tuple[str, ...] = ()
    """Lines of a shell that come before, as the site's guide has them."""
    interactive: str = ""
    """How people get an interactive allocation, with {partition}, {nodes} and {tasks}; else by salloc."""
    interactive_partition: str = ""
    """The partition that the site's guide has for that."""
    requeue: bool = False
    """Whether a job may put itself back into the queue."""
    submit_from_compute_nodes: bool = True
    memory_of_all_nodes: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    """Options that must not be used, and why."""
    refused_programs: Mapping[str, str] = field(default_factory=dict)
    """Programs that must not be called in a script, and why."""

    @property
    def forbidden(self) -> list[str]:
        """What is forbidden here, a sentence each."""
        sentences = [f"{option}: {why}" for option, why in self.refused.items()]
        return sentences + [f"{program}: {why}" for program, why in self.refused_programs.items()]

    def tasks_on(self, partition: str | None = None) -> int:
        """Ranks on a node of this partition, by default the site's usual one: one a GPU if there are GPUs."""
        limits = self.partitions.get(partition or self.partition, Partition())
        return limits.gpus or self.tasks_per_node

    def without_gpus(self, partition: str | None = None) -> bool:
        """Whether this partition is known to have no GPU."""
        return self.partitions.get(partition or self.partition, Partition()).gpus == 0

    def request(self, nodes: int = 2) -> str:
        """A command that gets an interactive allocation, for people: the one that the site's guide has."""
        partition = self.interactive_partition or self.partition
        tasks = self.tasks_on(partition)
        if self.interactive:
            return self.interactive.format(partition=partition, nodes=nodes, tasks=nodes * tasks)
        account = f" --account={self.account_form}" if self.account == "required" else ""
        gpus = f" {self.gpu_option.format(gpus=tasks)}" if self.gpu_option else ""
        return (
            f"salloc --nodes={nodes} --ntasks-per-node={tasks} --time=01:00:00"
            f"{f' --partition={partition}' if partition else ''}{account}{gpus}"
        )


def sites() -> dict[str, Site]:
    """Every site by its name. Raises UnknownSite if the file cannot be read."""
    return _read(Path(os.environ.get(VARIABLE) or DIRECTORY / "sites.toml"))


def site_named(name: str) -> Site:
    """The site of this name. Raises UnknownSite."""
    known = sites()
    if name not in known:
        raise UnknownSite(f"There is no site {name}. The sites are {', '.join(known)}.")
    return known[name]


def site_here() -> Site:
    """The site that this process runs at; a generic one if the file does not know it."""
    known = sites()
    for site in known.values():
        if site.recognised_by and all(os.environ.get(k) == v for k, v in site.recognised_by.items()):
            return site
    cluster = cluster_name()
    for site in known.values():
        if site.cluster and site.cluster == cluster:
            return site
    return Site(GENERIC, f"a cluster named {cluster}" if cluster else "no cluster that is known")


@cache
def cluster_name() -> str:
    """ClusterName of the Slurm that this process sees; empty if there is none or it does not answer."""
    if name := os.environ.get("SLURM_CLUSTER_NAME"):
        return name
    try:
        done = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == "ClusterName"), "")


@cache
def _read(path: Path) -> dict[str, Site]:
    try:
        written = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UnknownSite(
            f"The list of sites is not there: {path}. It comes with the workbook's folder slurm/; "
            f"{VARIABLE} names another one."
        ) from None
    families = written.pop("families", {})
    return {
        name: _site(name, _joined(families.get(entry.pop("family", ""), {}), entry))
        for name, entry in written.items()
    }


def _joined(family: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a site has in common with its family, and its own; of tables, such as `refused`, both."""
    tables = {
        name: family[name] | value for name, value in entry.items() if isinstance(family.get(name), dict)
    }
    return {**family, **entry, **tables}


def _site(name: str, entry: dict[str, Any]) -> Site:
    known = {each.name for each in fields(Site)}
    if unknown := set(entry) - known:
        raise UnknownSite(f"Site {name} has unknown entries: {', '.join(sorted(unknown))}.")
    partitions = {each: Partition(**limits) for each, limits in entry.pop("partitions", {}).items()}
    entry |= {each: tuple(entry.get(each, ())) for each in ("modules", "container_setup")}
    return Site(name, partitions=partitions, **entry)
