"""A virtual cluster for tests, and jobs on it."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from course_lib.slurm.virtual.lifecycle import VirtualCluster

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Jobs:
    """Submits jobs to a cluster and waits for them. `sbatch -W` looks ever more rarely: this does not."""

    cluster: VirtualCluster

    @property
    def folder(self) -> Path:
        return self.cluster.shared

    def head(self, *words: object) -> str:
        """What a command prints on the head node."""
        done = self.cluster.run(words, capture_output=True, cwd=None)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def submit(self, name: str, text: str, *options: str) -> str:
        """Submit a script, to run in the shared folder; its output goes to NAME.out there."""
        path = self.folder / f"{name}.sbatch"
        path.write_text(text)
        where = (f"--chdir={self.folder}", f"--output={self.folder}/{name}.out")
        return self.head("sbatch", "--parsable", *where, *options, path).strip()

    def submit_lines(self, name: str, *lines: str, options: Sequence[str] = ()) -> str:
        """Submit commands as a script."""
        text = "\n".join(["#!/bin/bash", f"export PYTHONPATH={ROOT} TORCH_CPP_LOG_LEVEL=ERROR", *lines, ""])
        return self.submit(name, text, "--time=30", *options)

    def output(self, name: str) -> str:
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.head("scontrol", "--oneliner", "show", "job", job))
        assert found is not None
        return found[1]

    def wait(self, job: str, *states: str, seconds: float = 300) -> str:
        """The state of a job once it is one of `states`, or by default once the job is over."""
        over = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE")
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in over and time.monotonic() < deadline:
            time.sleep(0.2)
        if state not in over:
            queue = self.head("scontrol", "show", "job", job) + self.head("squeue", "--long")
            said = "".join(f"{out.name}:\n{out.read_text()[-2000:]}\n" for out in self.folder.glob("*.out"))
            pytest.fail(f"job {job} is still {state} after {seconds:.0f} s\n{queue}\n{said}")
        return state

    def wait_for_text(self, name: str, text: str, seconds: float = 300) -> None:
        """Until a job has printed something."""
        deadline = time.monotonic() + seconds
        while text not in self.output(name) and time.monotonic() < deadline:
            time.sleep(0.2)
        said = self.output(name)
        assert text in said, said

    def finished(self, job: str, name: str, seconds: float = 900) -> str:
        """Wait for a job that must end well; returns its output."""
        assert self.wait(job, seconds=seconds) == "COMPLETED", self.output(name)
        return self.output(name)


PYTHON = sys.executable
