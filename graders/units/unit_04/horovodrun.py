"""Running a student's program under `horovodrun`, beside the answer; for the drivers of unit 04."""

import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from course_lib import beside
from course_lib.runtime.processes.by_value import by_value
from course_lib.runtime.processes.guarded import run_guarded
from course_lib.scratch import scratch_folder

RANKS = 2
SECONDS = 60.0
"""What one run may take: on a busy machine starting it takes most of that."""
EPOCHS = {"begins": 2, "goes on": 2}
"""Of each phase of a run, how many there are altogether. The second finds a checkpoint that says 1."""
LAUNCHER = Path(beside.__file__).with_name("horovodrun.py")


class RunFailed(RuntimeError):
    """A process of the program raised, ended too early, or came to no end; the message is what was seen."""


class LauncherFailed(RuntimeError):
    """The ranks were not started, or found no way to each other; the message is what was seen."""


Told = list[dict[str, Any]]
"""What each process has told of a phase, see `horovod_rank`."""


def run(answer: Any, values: list[Any], data: dict[str, Any]) -> tuple[Told, Told, str]:
    """What the processes told of both phases, and, where the second has failed, how. Raises RunFailed if the
    first has, and LauncherFailed.

    values: of the ranks' models.
    """
    with scratch_folder() as folder:
        call = {"answer": answer, "values": values, "data": data}
        (folder / "call").write_bytes(by_value(call))
        said = _horovodrun(folder)
        first, second = EPOCHS
        begun = _told(folder, first, said)
        try:
            return begun, _told(folder, second, said), ""
        except RunFailed as failure:
            return begun, [], str(failure)


def _told(folder: Path, phase: str, said: str) -> Told:
    """What all processes told of a phase. said: by horovodrun. Raises RunFailed and LauncherFailed."""
    results = [folder / f"{phase}.done.{rank}" for rank in range(RANKS)]
    if all(file.exists() for file in results):
        return [pickle.loads((folder / f"{phase}.{rank}").read_bytes()) for rank in range(RANKS)]
    blocked = {file.suffix: file.read_text() for file in folder.glob("blocked.*")}
    for file in sorted(folder.glob(f"{phase}.failed.*")):
        kind, _, text = file.read_text().partition("\n")
        if kind == "stub":
            raise NotImplementedError
        if file.suffix not in blocked:
            raise RunFailed(f"rank {file.suffix[1:]} failed:\n{text}")
    for text in blocked.values():
        raise LauncherFailed(f"Horovod's ranks found no way to each other: {text}")
    if len(list(folder.glob("began.*"))) < RANKS:
        raise LauncherFailed(f"horovodrun did not start all ranks:\n{said}")
    raise RunFailed(f"A process ended before the program did:\n{said}")


def _horovodrun(folder: Path) -> str:
    """Run it; returns the end of what it said."""
    forker = _forker(os.getpid())
    assert forker.stdin is not None
    forker.stdin.write(f"{folder}\n".encode())
    forker.stdin.flush()
    options = ["-np", str(RANKS), "--gloo", "--network-interface", "lo", "--disable-cache"]
    launcher = [sys.executable, "-P", str(LAUNCHER), *options, "-H", f"127.0.0.1:{RANKS}"]
    program = [sys.executable, "-IS", str(Path(__file__).with_name("horovod_stub.py")), str(folder)]
    try:
        _, said = run_guarded([*launcher, *program], _environment(), SECONDS)
    except subprocess.TimeoutExpired:
        return f"It was still running after {SECONDS:g} s."
    return "\n".join(said.strip().splitlines()[-20:])


@cache
def _forker(process: int) -> "subprocess.Popen[bytes]":
    """The `horovod_forker` of this process, whose number is given, and with which it ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "graders.units.unit_04.horovod_forker"],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for this process alone.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """What the ranks need to load the answer, with a core for each."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
