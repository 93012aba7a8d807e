"""Running a function under `mpirun`, from a notebook: every rank gets a communicator of mpi4py.

The ranks run `python -m mpi4py`, so a rank that raises aborts all of them (MPI_Abort) instead of leaving the
others waiting for it. See https://mpi4py.readthedocs.io/en/stable/mpi4py.run.html.
"""

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.errors import BadLaunch
from course_lib.launch.failures import RankFailed, TimedOut
from course_lib.runtime import processes
from course_lib.runtime.communication.callsite import is_grader, is_library
from course_lib.runtime.communication.diagnosis import rank_failed_report
from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.processes.by_value import by_value
from course_lib.runtime.processes.guarded import run_guarded
from course_lib.scratch import scratch_folder


def mpi_missing() -> str:
    """What this machine lacks to run MPI programs, as a sentence; empty if nothing."""
    if shutil.which("mpirun") is None:
        return "There is no mpirun here. On Debian or Ubuntu: apt-get install openmpi-bin libopenmpi-dev."
    if importlib.util.find_spec("mpi4py") is None:
        return "There is no mpi4py here: pip install mpi4py."
    return ""


def mpirun(function: Callable[..., Any], *arguments: Any, ranks: int = 4, timeout: float = 60.0) -> list[Any]:
    """Call `function(comm, *arguments)` on every rank of `mpirun -np ranks`; returns each rank's result.

    function: may be defined in a notebook. comm: MPI.COMM_WORLD.

    Raises BadLaunch where MPI is missing, RankFailed where a rank raised, TimedOut after `timeout` seconds.
    """
    missing = mpi_missing()
    if missing:
        raise BadLaunch(missing)
    if ranks < 1:
        raise BadLaunch(f"ranks is {ranks}; a launch needs at least one rank.")
    with scratch_folder() as folder:
        (folder / "call").write_bytes(by_value((function, arguments)))
        status, said = _run(folder, ranks, timeout)
        failures = _failures(folder)
        if failures:
            raise RankFailed(rank_failed_report(failures), failures)
        results = [folder / f"result.{rank}" for rank in range(ranks)]
        if status != 0 or not all(file.exists() for file in results):
            raise RankFailed(*_unexplained(status, said))
        return [pickle.loads(file.read_bytes()) for file in results]


def _run(folder: Path, ranks: int, timeout: float) -> tuple[int, str]:
    """Exit status of mpirun, and what it said. Raises TimedOut."""
    rank = Path(processes.__file__).with_name("mpi_rank.py")
    program = [sys.executable, "-m", "mpi4py", str(rank), str(folder)]
    try:
        return run_guarded(["mpirun", "-np", str(ranks), *program], _environment(folder), timeout)
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"The MPI program was stopped after {timeout:g} s; it had not come to its end. MPI does "
            f"not say who waits for whom: look for a receive without a send, or for sends that all "
            f"wait for their receivers."
        ) from None


def _environment(folder: Path) -> dict[str, str]:
    """Modules are found as here; more ranks than cores are allowed, and root is too, as in a container.

    folder: for what Open MPI writes meanwhile. By default all runs of a user share one, which each makes if
    it is not there, and removes if it is the last: of two that do so at once one may fail.
    """
    allowances = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        # Several ranks share a core: one that waits must let the others run.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_orte_tmpdir_base": str(folder),
        # All ranks are here. Else mpirun asks for ssh all the same, which containers often lack.
        "OMPI_MCA_plm_rsh_agent": "sh",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, **allowances, "PYTHONPATH": path}


def _failures(folder: Path) -> list[RankTraceback]:
    """What the ranks that raised left behind, the first to raise first."""
    told = {int(file.suffix[1:]): pickle.loads(file.read_bytes()) for file in folder.glob("failed.*")}
    return [_traceback(rank, told[rank]) for rank in sorted(told, key=lambda rank: told[rank]["time"])]


def _traceback(rank: int, told: dict[str, Any]) -> RankTraceback:
    """An exception of another process as text, with the lines that are the student's."""
    own = [frame for frame in told["frames"] if not is_library(frame[0]) and not is_grader(frame[0])]
    lines = [f"    at {SourceLine(*frame)}" for frame in own]
    return RankTraceback(rank, told["type"], told["message"], "\n".join([*lines, told["ending"]]))


def _unexplained(status: int, said: str) -> tuple[str, list[RankTraceback]]:
    """The report of a run that ended badly without a Python exception."""
    ending = "\n".join(said.strip().splitlines()[-20:])
    report = f"mpirun ended with status {status}:\n{ending}"
    return report, [RankTraceback(0, "MPIError", f"status {status}", ending)]
