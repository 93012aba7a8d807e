"""A student's batch script, submitted to a real Slurm.

The cluster is a virtual one on this machine (`course_lib.slurm.virtual.lifecycle`), started once for all that
this process grades, and it ends with the process. The script's text can hold anything, and it runs: so it is
submitted and run in a sandbox (`course_lib.slurm.virtual.sandbox`), where there is nothing of the course,
the gradebook or this process's environment, no network but the cluster's, and no privilege. What comes back
is Slurm's own account of the job, and the notes of `graders.units.unit_03.batch_probe`, which the script was
given to start: JSON, which says nothing of other exercises. A script that starts no probe and writes its
notes by itself is not told apart. It would have to do all that is asked for, and whoever reads it sees it.
"""

import json
import math
import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.slurm.virtual.lifecycle import ClusterFailed, Shape, VirtualCluster, missing_programs
from graders.grading.kit import MachineLacks

SHAPE = Shape(nodes=6, cpus=16, gpus=8, sandboxed=True)
JOB_SECONDS = 20.0
"""A job that has not ended by then is cancelled."""

_LOOK_SECONDS = 0.3
_COMMAND_SECONDS = 30.0
_NOTES = 64
"""So many probes' notes are read at the most."""
_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class Trial:
    """A command to hand to a student's function, and where its processes leave their notes.

    The folder's name is drawn: nothing is there before the script runs.
    """

    folder: str
    words: tuple[str, ...]
    status: int

    @property
    def command(self) -> str:
        python = (sys.executable, "-I", "-S", f"{_directory()}/batch_probe.py")
        return shlex.join([*python, f"{_directory()}/shared/{self.folder}", str(self.status), *self.words])


def new_trial(words: Sequence[str], status: int) -> Trial:
    """A trial with a folder that nobody knows. status: what each process exits with."""
    return Trial(secrets.token_hex(8), tuple(words), status)


@dataclass(frozen=True, slots=True)
class JobReport:
    """What became of a script. refused: what sbatch said, if it took no job."""

    refused: str = ""
    state: str = ""
    fields: dict[str, str] | None = None
    notes: tuple[dict[str, Any], ...] = ()
    output: str = ""

    @property
    def nodes(self) -> int:
        # "2", and "2-2" before the job has started.
        return int((self.fields or {}).get("NumNodes", "0").split("-")[0])

    @property
    def gpus(self) -> int:
        found = re.fullmatch(r"gpu(?::\w+)?:(\d+)", (self.fields or {}).get("JOB_GRES", ""))
        return int(found[1]) if found else 0

    @property
    def gpus_altogether(self) -> bool:
        """Whether the job's GPUs were asked for as a sum, which Slurm may deal out unevenly."""
        fields = self.fields or {}
        return "TresPerJob" in fields and not {"TresPerNode", "TresPerTask"} & fields.keys()

    @property
    def minutes(self) -> float:
        """The time limit; infinite if there is none."""
        found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", (self.fields or {}).get("TimeLimit", ""))
        if found is None:
            return math.inf
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return (days * 24 + hours) * 60 + minutes + seconds / 60


def job_reports(scripts: Sequence[tuple[str, Trial]], exclude: Sequence[str] = ()) -> list[JobReport]:
    """Submit all scripts, and wait until each is over or its time is up. Raises MachineLacks.

    exclude: for each script nodes that its job does not get, by names between commas.
    """
    excluded = exclude or [""] * len(scripts)
    try:
        cluster = _cluster(os.getpid())
        jobs = [
            _submit(cluster, text, trial.folder, nodes)
            for (text, trial), nodes in zip(scripts, excluded, strict=True)
        ]
        _wait_for(cluster, [str(job) for job in jobs if isinstance(job, int)])
        return [
            _job_report(cluster, job, trial.folder) for job, (_, trial) in zip(jobs, scripts, strict=True)
        ]
    except ClusterFailed as error:
        raise MachineLacks(f"a virtual cluster does not run here. {error}") from error


def _submit(cluster: VirtualCluster, text: str, folder: str, exclude: str) -> int | str:
    """The job's number, or why sbatch took none. Every job runs in a folder of its own."""
    own = f"{cluster.shared}/{folder}-job"
    options = f"--parsable --output={own}/out --error={own}/out --chdir={own}"
    options += f" --exclude={exclude}" if exclude else ""
    command = f"mkdir {own} && exec sbatch {options}"
    # A lone half of a character is none that a file can hold.
    text = text.encode(errors="replace").decode()
    done = cluster.run(["bash", "-c", command], input=text, capture_output=True, timeout=_COMMAND_SECONDS)
    if done.returncode == 0 and done.stdout.strip().isdigit():
        return int(done.stdout)
    return (done.stderr or done.stdout or "nothing").strip()[:_TEXT]


def _wait_for(cluster: VirtualCluster, jobs: Sequence[str]) -> None:
    """Until the jobs are over or their time is up; then they are cancelled."""
    looks = int(JOB_SECONDS / _LOOK_SECONDS)
    waiting = f"squeue --noheader --jobs={','.join(jobs)}"
    ended = f'for i in $(seq {looks}); do [ "$({waiting})" ] || exit 0; sleep {_LOOK_SECONDS}; done; exit 1'
    if jobs and cluster.run(["bash", "-c", ended], timeout=JOB_SECONDS + _COMMAND_SECONDS).returncode:
        _ask(cluster, "scancel", *jobs)


def _job_report(cluster: VirtualCluster, job: int | str, folder: str) -> JobReport:
    if isinstance(job, str):
        return JobReport(refused=job)
    line = _ask(cluster, "scontrol", "--details", "--oneliner", "show", "job", str(job))
    fields = {match[1]: match[2] for match in re.finditer(r"(\S+?)=(\S*)", line)}
    script = f"shopt -s nullglob; for f in {folder}/*.json; do cat $f; echo; done | head -c {_TEXT}"
    notes = _ask(cluster, "bash", "-c", script)
    output = _ask(cluster, "head", "-c", "2000", f"{folder}-job/out")
    return JobReport("", fields.get("JobState", "unknown"), fields, _read_notes(notes), output)


def _read_notes(text: str) -> tuple[dict[str, Any], ...]:
    """The notes that are of the probe's form; all else is left out."""
    notes = []
    for line in text.splitlines()[:_NOTES]:
        try:
            note = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if type(note) is dict and type(note.get("host")) is str and type(note.get("words")) is list:
            notes.append(note)
    return tuple(notes)


def _ask(cluster: VirtualCluster, *words: str) -> str:
    done = cluster.run(words, capture_output=True, timeout=_COMMAND_SECONDS, errors="replace")
    return done.stdout


def _directory() -> str:
    return str(_cluster(os.getpid()).directory)


@cache
def _cluster(_process: int) -> VirtualCluster:
    """The cluster of this process, with which it ends. Raises MachineLacks or ClusterFailed."""
    if missing := missing_programs():
        raise MachineLacks(
            f"the script was read, but not submitted: not installed are {', '.join(missing)} (on Debian or "
            f"Ubuntu: apt-get install slurmctld slurmd slurm-client iproute2 util-linux bubblewrap)."
        )
    cluster = VirtualCluster(Path(tempfile.mkdtemp(prefix="course-slurm-")))
    cluster.start(SHAPE, os.getpid())
    (cluster.directory / "batch_probe.py").write_text(Path(__file__).with_name("batch_probe.py").read_text())
    return cluster
