"""The Slurm job that this process runs in: its nodes, its tasks, the time that is left."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.slurm.environment import for_a_step

_ASK_SECONDS = 30.0


class NoAllocation(RuntimeError):
    """There is no job, or Slurm does not answer; the message says which."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A running job as the controller knows it.

    hosts: names of the nodes. tasks: how many it asked for. gpus_per_node: how many it has on this node, 0 if
    none or if this is not one of its nodes. seconds_left: until its time limit; None if there is none.
    """

    job: str
    name: str
    partition: str
    hosts: tuple[str, ...]
    tasks: int
    cpus_per_task: int
    gpus_per_node: int
    seconds_left: int | None

    @property
    def here(self) -> bool:
        """Whether this process runs on one of its nodes."""
        own = {
            os.environ.get("SLURMD_NODENAME", ""),
            socket.gethostname(),
            socket.gethostname().split(".")[0],
        }
        return bool(own & set(self.hosts))


def present_allocation() -> Allocation:
    """The job that this process runs in. Raises NoAllocation."""
    if shutil.which("scontrol") is None:
        raise NoAllocation("there is no Slurm on this machine")
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID")
    if not job:
        raise NoAllocation("this process runs in no Slurm job")
    # What a step inherits describes the step; the controller describes the job.
    fields = _fields(_ask("scontrol", "--oneliner", "show", "job", job))
    if fields.get("JobState") not in ("RUNNING", "COMPLETING"):
        raise NoAllocation(f"job {job} does not run any more (its state is {fields.get('JobState')})")
    return Allocation(
        job=job,
        name=fields.get("JobName", ""),
        partition=fields.get("Partition", ""),
        hosts=tuple(_ask("scontrol", "show", "hostnames", fields["NodeList"]).split()),
        tasks=int(fields["NumTasks"]),
        cpus_per_task=_number(fields.get("CPUs/Task", "1")),
        gpus_per_node=_gpus(os.environ),
        seconds_left=_seconds(_ask("squeue", "--noheader", f"--jobs={job}", "--format=%L").strip()),
    )


def _ask(*command: str) -> str:
    """What a Slurm command prints. Raises NoAllocation with what it says."""
    try:
        done = subprocess.run(
            command,
            env=for_a_step(os.environ),
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAllocation(f"Slurm has not answered {command[0]} within {_ASK_SECONDS:.0f} s") from None
    if done.returncode:
        raise NoAllocation(f"{command[0]} says: {done.stderr.strip()}")
    return done.stdout


def _fields(line: str) -> dict[str, str]:
    """`Name=value` pairs of `scontrol --oneliner`."""
    return {match[1]: match[2] for match in re.finditer(r"(\S+?)=(\S*)", line)}


def _number(text: str) -> int:
    """A number as Slurm prints it; "N/A" counts as 1."""
    return int(text) if text.isdigit() else 1


def _gpus(environment: Mapping[str, str]) -> int:
    """GPUs of the job on this node."""
    return int(environment.get("SLURM_GPUS_ON_NODE") or 0)


def _seconds(text: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds, in seconds; None where it is no time ("UNLIMITED", "INVALID")."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
