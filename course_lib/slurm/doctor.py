"""Where this process runs and what can be done there: site, portal, node, versions, launcher, time, rules."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.slurm.allocation import Allocation, NoAllocation, present_allocation
from course_lib.slurm.sites import Site, cluster_name, site_here
from course_lib.versions import Installed, installed
from course_lib.versions import findings as version_findings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found. `why_not` says why there is no allocation, if there is none."""

    site: Site
    portal: str
    node: str
    allocation: Allocation | None
    why_not: str
    gpus: tuple[str, ...]
    launcher: str
    versions: Installed


def look_around() -> Surroundings:
    """Find out where this process runs."""
    allocation, why_not = None, ""
    try:
        allocation = present_allocation()
    except NoAllocation as error:
        why_not = str(error)
    site = site_here()
    return Surroundings(
        site=site,
        portal=_portal(os.environ),
        node=_node(allocation),
        allocation=allocation,
        why_not=why_not,
        gpus=_gpus(),
        launcher=_launcher(site),
        versions=installed(),
    )


def findings(found: Surroundings) -> list[tuple[str, str]]:
    """Heading and text of each thing found, for people."""
    allocation = found.allocation
    rows = [
        ("Site", found.site.title),
        ("Portal", found.portal or "none: a terminal, or Jupyter on this machine"),
        ("Node", f"{socket.gethostname()}, {found.node}"),
        ("GPUs here", ", ".join(found.gpus) or "none: ranks use Gloo on CPUs"),
        ("Launcher", found.launcher),
        *version_findings(found.versions),
    ]
    if allocation is None:
        rows.append(("Allocation", f"none: {found.why_not}"))
        request = found.site.request()
        if shutil.which(request.split()[0]):
            rows.append(("To get one", request))
    else:
        rows.append(
            (
                "Allocation",
                f"job {allocation.job} on {', '.join(allocation.hosts)}: {len(allocation.hosts)} nodes, "
                f'{allocation.tasks} tasks; launch(..., on="slurm") uses them',
            )
        )
        rows.append(("Time left", _time(allocation.seconds_left)))
    rows += [("Forbidden here", sentence) for sentence in found.site.forbidden]
    if not found.site.submit_from_compute_nodes:
        rows.append(("Forbidden here", "sbatch from a compute node, so from a portal's notebook too"))
    return rows


def _portal(environment: Mapping[str, str]) -> str:
    """The web portal that this session belongs to; empty if none is recognised."""
    if environment.get("SLURM_JOB_NAME", "").startswith("tap_"):
        return "the TACC Analysis Portal"
    if environment.get("SLURM_JOB_NAME", "").startswith(("sys/dashboard", "ondemand/", "ood_")):
        return "Open OnDemand"
    if any(name.startswith(("OOD_", "ONDEMAND_")) for name in environment):
        return "Open OnDemand"
    if "JUPYTERHUB_USER" in environment:
        return "JupyterHub"
    return ""


def _node(allocation: Allocation | None) -> str:
    """What kind of node this is, as words."""
    if shutil.which("scontrol") is None:
        return "a machine without Slurm"
    if not cluster_name():
        return "a machine where no Slurm answers"
    if allocation is not None and allocation.here:
        return "a compute node of this job"
    if allocation is not None:
        return "a login node, with an allocation elsewhere"
    return "a login node: nothing that computes should run here"


def _gpus() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, without importing torch."""
    for command, prefix in ((["nvidia-smi", "-L"], "GPU "), (["rocm-smi", "--showproductname"], "GPU[")):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return tuple(line.split(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith(prefix))
    return ()


def _launcher(site: Site) -> str:
    """What starts ranks here."""
    if shutil.which(site.launcher):
        return site.launcher
    other = [name for name in ("ibrun", "srun", "mpirun") if shutil.which(name)]
    if other:
        return f"{', '.join(other)} (this site's own, {site.launcher}, is not on PATH: load its modules)"
    return 'none: on="simulated" and on="processes" work without'


def _time(seconds: int | None) -> str:
    if seconds is None:
        return "no limit is known"
    hours, rest = divmod(seconds, 3600)
    return f"{hours} h {rest // 60} min"
