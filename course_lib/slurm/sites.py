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
    """The limits of a partition, where they are known. gpus: those that come with a node, unasked."""

    nodes: int | None = None
    hours: float | None = None
    gpus: int = 0


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
    """Ranks on a node, one a GPU where there are GPUs."""
    cpus_per_task: int | None = None
    gpu_option: str = ""
    """How a job asks for GPUs; empty where it does so by its partition, or there are none."""
    unit: str = ""
    """What the site's accounting counts, in the plural; empty where that is not known."""
    units_per_node_hour: float = 0.0
    units_per_gpu_hour: float = 0.0
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

    def request(self, nodes: int = 2) -> str:
        """A command that gets an interactive allocation, for people."""
        account = f" --account={self.account_form}" if self.account == "required" else ""
        partition = f" --partition={self.partition}" if self.partition else ""
        gpus = f" {self.gpu_option.format(gpus=self.tasks_per_node)}" if self.gpu_option else ""
        return (
            f"salloc --nodes={nodes} --ntasks-per-node={self.tasks_per_node} --time=01:00:00"
            f"{partition}{account}{gpus}"
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
        name: _site(name, families.get(entry.pop("family", ""), {}) | entry)
        for name, entry in written.items()
    }


def _site(name: str, entry: dict[str, Any]) -> Site:
    known = {each.name for each in fields(Site)}
    if unknown := set(entry) - known:
        raise UnknownSite(f"Site {name} has unknown entries: {', '.join(sorted(unknown))}.")
    partitions = {each: Partition(**limits) for each, limits in entry.pop("partitions", {}).items()}
    modules = tuple(entry.pop("modules", ()))
    return Site(name, partitions=partitions, modules=modules, **entry)
