"""Running a student's program under `horovodrun`, beside the answer; for the drivers of unit 04."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle

from course_lib.runtime.processes.guarded import run_guarded
from course_lib.scratch import scratch_folder

RANKS = 2
SECONDS = 60.0
"""What one run may take: on a busy machine starting it takes most of that."""


class RunFailed(RuntimeError):
    """A process of the program failed, or the program came to no end; the message is what was seen."""


def run(
    answer: Any, values: list[Any], data: dict[str, Any], epochs: int, checkpoint: bytes
) -> list[dict[str, Any]]:
    """What each process told, see `horovod_rank`. Raises RunFailed.

    values: of the ranks' models. checkpoint: what the node of rank 0 has of an earlier run; empty for none.
    """
    with scratch_folder() as folder:
        call = {"answer": answer, "values": values, "data": data, "epochs": epochs}
        (folder / "call").write_bytes(cloudpickle.dumps(call))
        for rank in range(RANKS):
            (folder / f"node{rank}").mkdir()
        if checkpoint:
            (folder / "node0" / "checkpoint.pt").write_bytes(checkpoint)
        return _run(folder)


def _run(folder: Path) -> list[dict[str, Any]]:
    """What each process told. Raises RunFailed."""
    results = [folder / f"result.{rank}" for rank in range(RANKS)]
    said = _horovodrun(folder)
    for file in sorted(folder.glob("failed.*")):
        kind, _, text = file.read_text().partition("\n")
        if kind == "stub":
            raise NotImplementedError
        raise RunFailed(f"rank {file.suffix[1:]} failed:\n{text}")
    if not all(file.exists() for file in results):
        raise RunFailed(f"horovodrun ended, and not every process has:\n{said}")
    return [pickle.loads(file.read_bytes()) for file in results]


def _horovodrun(folder: Path) -> str:
    """Run it; returns the end of what it said. Raises RunFailed if it took too long."""
    options = ["-np", str(RANKS), "--gloo", "--network-interface", "lo", "--disable-cache"]
    launcher = [sys.executable, "-m", "horovod.runner.launch", *options, "-H", f"127.0.0.1:{RANKS}"]
    program = [sys.executable, str(Path(__file__).with_name("horovod_rank.py")), str(folder)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        _, said = run_guarded([*launcher, *program], environment, SECONDS)
    except subprocess.TimeoutExpired:
        raise RunFailed(
            f"It was still running after {SECONDS:g} s. Does every process make the same calls of "
            f"Horovod, as often?"
        ) from None
    return "\n".join(said.strip().splitlines()[-20:])
