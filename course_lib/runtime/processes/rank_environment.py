"""Which rank this process is, whatever has started it.

Every launcher leaves it in environment variables of its own. They are taken over into those of torchrun,
which `torch.distributed` reads; from then on a program need not care.
"""

import ipaddress
import os
import socket
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from course_lib.errors import BadLaunch
from course_lib.runtime.processes.backend import BOTH, NO_GPU

_JOIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The names of a launcher's variables; an empty name where it has none."""

    name: str
    rank: str
    ranks: str
    local_rank: str = ""
    local_ranks: str = ""
    node: str = ""


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    _Launcher(
        "Horovod",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # In a batch script itself SLURM_PROCID is 0 and SLURM_NTASKS what the job asked for: one process that
    # would wait for the others for ever. The step's variables are there only if srun has started it.
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher("PMIx", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
"""The innermost first: torchrun is often started by srun, and mpirun inside a Slurm job."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """This process's place among all ranks, and what started it."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    node: int
    nodes: int
    launcher: str


def rank_from_launcher() -> RankInfo:
    """Find out which rank this process is, and set torchrun's variables in `os.environ` accordingly.

    A process that no launcher has started is the only rank. Raises BadLaunch if the variables contradict
    each other.
    """
    info = _rank_info(os.environ)
    os.environ.update(
        RANK=str(info.rank),
        WORLD_SIZE=str(info.ranks),
        LOCAL_RANK=str(info.local_rank),
        LOCAL_WORLD_SIZE=str(info.local_ranks),
        GROUP_RANK=str(info.node),
    )
    return info


def threads_of_a_rank(ranks: int) -> int:
    """A rank's share of the cores that this process may use, if so many ranks share them."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def share_cores(ranks: int) -> None:
    """Compute on this rank's share of the cores of a node with so many ranks, unless OMP_NUM_THREADS is set.

    Else every rank of a node computes with as many threads as the node has cores.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_of_a_rank(ranks))


def join_group(backend: str | None = None) -> RankInfo:
    """Be the rank that the launcher says, in a default group: on NCCL where each rank has a GPU, else Gloo.

    backend: by default as in `launch`: ranks that have no GPU of their own see none, if this comes first.
    Raises BadLaunch where the ranks could only wait for each other in vain.
    """
    info = rank_from_launcher()
    _set_meeting_point(info)
    share_cores(info.local_ranks)
    if backend is None:
        backend = BOTH if _has_own_gpu(info) and dist.is_nccl_available() else "gloo"
        if backend == "gloo":
            os.environ.update(NO_GPU)
    if gpus := torch.cuda.device_count():
        torch.cuda.set_device(info.local_rank % gpus)
    dist.init_process_group(backend, timeout=timedelta(seconds=_JOIN_SECONDS))
    return info


def _has_own_gpu(info: RankInfo) -> bool:
    """Whether each rank of this node has a GPU for itself."""
    gpus = torch.cuda.device_count()
    # A batch system may show each of its tasks one GPU alone, its own.
    return gpus >= info.local_ranks or (gpus == 1 and info.launcher in ("srun", "PMI", "PMIx"))


def _rank_info(environment: Mapping[str, str]) -> RankInfo:
    launcher = next((each for each in _LAUNCHERS if _has_started_this(each, environment)), None)
    if launcher is None:
        return RankInfo(0, 1, 0, 1, 0, 1, "nothing")
    rank, ranks = int(environment[launcher.rank]), int(environment[launcher.ranks])
    if not 0 <= rank < ranks:
        raise BadLaunch(
            f"{launcher.rank} is {rank} and {launcher.ranks} is {ranks}: a rank counts from 0 and is below "
            f"the number of ranks. Unset what an outer launcher has left behind."
        )
    nodes = _nodes(launcher, ranks, environment)
    local_ranks = int(environment.get(launcher.local_ranks) or -(-ranks // nodes))
    local_rank = int(environment.get(launcher.local_rank) or rank % local_ranks)
    node = int(environment.get(launcher.node) or rank // local_ranks)
    return RankInfo(
        rank, ranks, local_rank, local_ranks, node, max(nodes, -(-ranks // local_ranks)), launcher.name
    )


def _has_started_this(launcher: _Launcher, environment: Mapping[str, str]) -> bool:
    return bool(environment.get(launcher.rank) and environment.get(launcher.ranks))


def _nodes(launcher: _Launcher, ranks: int, environment: Mapping[str, str]) -> int:
    """How many nodes the ranks are on, as far as it is known."""
    if local := environment.get(launcher.local_ranks):
        return -(-ranks // int(local))
    return int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES") or 1)


# --- Where the ranks meet


def _set_meeting_point(info: RankInfo) -> None:
    """Set MASTER_ADDR and MASTER_PORT where nobody has; refuse an address that other nodes cannot reach."""
    address = os.environ.setdefault("MASTER_ADDR", _first_host(info))
    os.environ.setdefault("MASTER_PORT", str(_port_of_run(info)))
    if info.nodes > 1 and _is_loopback(address):
        raise BadLaunch(
            f"MASTER_ADDR is {address}, which on every node means that node itself, but the {info.ranks} "
            f"ranks are on {info.nodes} nodes: those away from rank 0 would wait for ever. Set MASTER_ADDR "
            f"to the host of rank 0: $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)."
        )


def _first_host(info: RankInfo) -> str:
    """The host of rank 0 as far as this process can know it."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if info.nodes == 1 or not nodes:
        return "localhost" if info.nodes == 1 else socket.gethostname()
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[0]


_RUN_NAMES = {
    "Horovod": ("HOROVOD_GLOO_RENDEZVOUS_PORT",),
    "Open MPI": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "PMIx": ("PMIX_NAMESPACE",),
}
"""Variables in which a launcher names the run: the same for all of its ranks, and others for another run."""


def _port_of_run(info: RankInfo) -> int:
    """The same for all ranks of a run, and rarely that of another run on the same machine."""
    if info.ranks == 1:
        with socket.create_server(("", 0)) as free:
            return int(free.getsockname()[1])
    names = [os.environ.get(name, "") for name in _RUN_NAMES.get(info.launcher, ())]
    if not any(names):
        # All ranks of one machine have this in common; those of another machine do not.
        names = [os.environ.get("SLURM_JOB_ID") or (str(os.getsid(0)) if info.nodes == 1 else "")]
    return 20_000 + zlib.crc32(".".join(names).encode()) % 10_000


def _is_loopback(address: str) -> bool:
    """Whether an address leads back to whoever uses it. A host may call itself by 127.0.1.1: not meant."""
    if address in (socket.gethostname(), socket.getfqdn(), os.environ.get("SLURMD_NODENAME")):
        return False
    try:
        found = socket.getaddrinfo(address, None)
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback for info in found)
