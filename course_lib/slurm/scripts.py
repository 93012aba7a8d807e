"""Batch scripts: rendered from `slurm/*.sbatch` for a site, checked, and handed to Slurm."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from course_lib.slurm.allocation import NoAllocation, present_allocation
from course_lib.slurm.environment import for_a_job
from course_lib.slurm.lint import Script, complaints_about
from course_lib.slurm.sites import DIRECTORY, Partition, Site

SCRIPTS = (
    "workbook",
    "gpu",
    "train_srun",
    "train_torchrun",
    "train_mpirun",
    "train_ibrun",
    "train_horovod",
    "jupyter",
)
"""Those that `course slurm render` writes."""
GRADING = "grade"
"""The one that `course grade --slurm` writes: each task of its array grades a share of a class."""
TRAINING = "-m course_lib.training.elastic"
HOROVOD_TRAINING = "-m course_lib.training.horovod_elastic"
"""What a training script runs if it is not told to run another program."""

_SIGNAL_SECONDS = 120
"""So long before its end a training job is told; Slurm may be a minute early."""

_SCRUBBED = (
    "SLURM_EXPORT_ENV SLURM_GET_USER_ENV SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_MEM_PER_GPU "
    "SLURM_CPU_BIND SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_LIST SLURM_CPU_BIND_VERBOSE SLURM_DISTRIBUTION "
    "SLURM_STEP_ID SLURM_STEP_NUM_TASKS PMI_RANK PMI_SIZE RANK WORLD_SIZE LOCAL_RANK"
)


class Refused(ValueError):
    """A job would not be accepted, or not do what is meant; `complaints` has a sentence for each reason."""

    def __init__(self, complaints: Sequence[str]) -> None:
        super().__init__("\n".join(complaints))
        self.complaints = tuple(complaints)


@dataclass(frozen=True, slots=True)
class Job:
    """What somebody asks for. None: what the site has for it.

    minutes: time limit. array: task numbers, such as "0-3". after: jobs that must have ended well before.
    program: what the training script runs, without `python`; units and parameters: for the workbook.
    folder: the student's, which holds notebooks/; by default where the script is rendered.
    signal_seconds: so long before the time limit a training job is told to save its state.
    """

    script: str
    nodes: int = 1
    tasks_per_node: int | None = None
    minutes: int = 60
    partition: str | None = None
    account: str | None = None
    reservation: str | None = None
    array: str | None = None
    after: tuple[str, ...] = ()
    run: str | None = None
    image: str | None = None
    restarts: int = 3
    units: tuple[str, ...] = ()
    folder: Path = field(default_factory=Path.cwd)
    parameters: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    signal_seconds: int = _SIGNAL_SECONDS
    extra: tuple[str, ...] = ()
    """More options for the #SBATCH lines."""

    @property
    def needs_no_gpu(self) -> bool:
        """Whether it runs units whose ranks are simulated or processes of one machine, as far as is known."""
        if self.script == "workbook":
            return self.parameters.get("on") != "slurm"
        return self.script == "jupyter" and self.nodes == 1


def render(job: Job, site: Site) -> str:
    """The batch script for a job at a site. Raises Refused with every reason against it."""
    reasons = _reasons_against(job, site)
    if reasons:
        raise Refused(reasons)
    text = _templates().get_template(f"{job.script}.sbatch").render(_values(job, site))
    complaints = complaints_about(Script(text), site)
    if complaints:
        raise Refused(complaints)
    return text


def submit(path: Path, site: Site, *, test_only: bool = False, folder: Path | None = None) -> str:
    """Hand a script to sbatch; returns what sbatch prints, which ends with the job's number. Raises Refused.

    Nothing is handed over that the site forbids, or that would be ignored silently. folder: where it runs and
    leaves its output, by default here.
    """
    complaints = complaints_about(Script(path.read_bytes().decode(errors="replace")), site)
    if complaint := _wrong_place(site):
        complaints.append(complaint)
    if complaints:
        raise Refused(complaints)
    command = ["sbatch", *(["--test-only"] if test_only else []), str(path)]
    try:
        done = subprocess.run(
            command, env=for_a_job(os.environ), cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise Refused(["There is no sbatch here: submit from a login node of a cluster."]) from None
    if done.returncode:
        raise Refused([f"sbatch refuses it: {done.stderr.strip()}"])
    return (done.stdout + done.stderr).strip()


def render_lumi(which: str, values: Mapping[str, Any]) -> str:
    """LUMI's course module ("course.lua") or its resources ("course-resources.yml")."""
    return _templates().get_template(f"lumi/{which}").render(dict(values) | {"scrubbed": _SCRUBBED})


def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(DIRECTORY),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _wrong_place(site: Site) -> str | None:
    """Why no job may be submitted from here."""
    if site.submit_from_compute_nodes:
        return None
    try:
        allocation = present_allocation()
    except NoAllocation:
        return None
    return (
        f"{site.title} allows no sbatch from a compute node, and this runs in job {allocation.job}. "
        f'Use the nodes that you have, with launch(..., on="slurm"), or submit the file from a login node.'
    )


def _reasons_against(job: Job, site: Site) -> list[str]:
    """What can be said before the script is written."""
    if job.script not in (*SCRIPTS, GRADING):
        return [f"There is no script {job.script}. The scripts are {', '.join(SCRIPTS)}."]
    reasons = []
    if job.script == "train_ibrun" and site.launcher != "ibrun":
        reasons.append(f"ibrun is TACC's; on {site.title} use train_{site.launcher}.")
    if (why := site.refused_programs.get(job.script.removeprefix("train_"))) is not None:
        reasons.append(why)
    if site.account == "required" and not job.account:
        reasons.append(f"{site.title} needs a project: --account {site.account_form}.")
    if job.script == "workbook" and not job.units:
        reasons.append("Which units? Name them: course slurm render workbook 02_data_parallel.")
    if (gpus := _gpus_of_a_node(job, site)) and (job.tasks_per_node or 0) > gpus:
        reasons.append(
            f"A node of {job.partition or site.partition} on {site.title} has {gpus} "
            f"GPU{'s' * (gpus != 1)}, and {job.tasks_per_node} tasks a node would share them. Ask for "
            f"--tasks-per-node {gpus} or fewer, and for more nodes if need be."
        )
    if job.script == "gpu" and job.nodes > 1:
        reasons.append("course gpu looks at the GPUs of one node: leave out --nodes.")
    if job.image and not site.container:
        reasons.append(f"How containers run on {site.title} is not known: add container to sites.toml.")
    if job.image and any(character.isspace() for character in job.image):
        reasons.append(
            f"The image's path has a blank in it, which the script could not quote: {job.image!r}."
        )
    return reasons


def _gpus_of_a_node(job: Job, site: Site) -> int:
    """0 where there are none, or where it is not known."""
    return site.partitions.get(job.partition or site.partition, Partition()).gpus or 0


def _values(job: Job, site: Site) -> dict[str, Any]:
    tasks = job.tasks_per_node or site.tasks_on(job.partition)
    on_gpus = not site.without_gpus(job.partition)
    training = HOROVOD_TRAINING if job.script == "train_horovod" else TRAINING
    program = job.program or f'{training} --folder "$run"'
    in_image = "in_image " if job.image else ""
    # A shell function does not cross to other nodes: there the container's command itself must stand.
    container = f"{site.container.format(image=job.image)} " if job.image else ""
    python = f"{container}python {program}"
    return {
        "site": site,
        "directives": _directives(job, site, tasks),
        "scrubbed": _SCRUBBED,
        "bin": shlex.quote(str(Path(sys.executable).parent)),
        "root": shlex.quote(str(DIRECTORY.parent)),
        "run": job.run or _default_run(job),
        "image": job.image,
        "in_image": container if job.script.startswith("train_") else in_image,
        "ranks": job.nodes * tasks,
        "tasks_per_node": tasks,
        "cpus_per_task": site.cpus_per_task or 1,
        "binding": f" {site.binding}" if site.binding and on_gpus and tasks == site.tasks_per_node else "",
        "one_a_node": _one_a_node(job, site, tasks),
        "per_rank": f"bash -c '{site.per_task}; exec {python}'" if site.per_task and on_gpus else python,
        "program": program,
        "restarts": job.restarts,
        "folder": shlex.quote(str(job.folder)),
        "notebooks": shlex.quote(str(job.folder / "notebooks")),
        "units": " ".join(map(shlex.quote, job.units)),
        "cell_seconds": 600,
        "parameters": "".join(
            f" -p {shlex.quote(name)} {shlex.quote(value)}" for name, value in job.parameters.items()
        ),
    }


def _directives(job: Job, site: Site, tasks: int) -> list[str]:
    """The options of the #SBATCH lines."""
    hours, minutes = divmod(job.minutes, 60)
    training = job.script.startswith("train_")
    grading = job.script == GRADING
    # torchrun itself is one task, which needs the cores of all ranks of its node.
    alone = job.script == "train_torchrun" and site.launcher == "srun"
    cpus = (site.cpus_per_task or 1) * (tasks if alone else 1)
    lines = [
        f"--job-name={job.script}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={1 if alone else tasks}",
        f"--time={hours:02}:{minutes:02}:00",
        f"--output=%x-%{'A_%a' if job.array else 'j'}.out",
    ]
    if (site.cpus_per_task or alone) and site.launcher == "srun":
        lines.append(f"--cpus-per-task={cpus}")
    if partition := job.partition or site.partition:
        lines.append(f"--partition={partition}")
    if site.gpu_option and not grading and not site.without_gpus(job.partition):
        lines.append(site.gpu_option.format(gpus=tasks))
    if site.memory:
        lines.append(f"--mem={site.memory}")
    if training:
        lines += [f"--signal=B:USR1@{job.signal_seconds}", "--open-mode=append"]
    if training or grading:
        lines += ["--requeue"] if site.requeue else []
    for option, value in (("account", job.account), ("reservation", job.reservation), ("array", job.array)):
        lines += [f"--{option}={value}"] if value else []
    if job.after:
        lines.append(f"--dependency=afterok:{':'.join(job.after)}")
    return [*lines, *job.extra]


def _default_run(job: Job) -> str:
    """The folder of a job's results: the same when it is requeued, another for each task of an array."""
    if job.array:
        return f"runs/{job.script}-${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    return f"runs/{job.script}-$SLURM_JOB_ID"


def _one_a_node(job: Job, site: Site, tasks: int) -> str:
    """The beginning of a command that starts a program once on each node."""
    if site.launcher == "ibrun":
        return f"TACC_TASKS_PER_NODE=1 ibrun -n {job.nodes} -o 0"
    cpus = (site.cpus_per_task or 1) * tasks
    return (
        f'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 '
        f"--cpus-per-task={cpus} --export=ALL"
    )
