"""The engine "slurm": ranks are the tasks of a Slurm step, on every node of the allocation that this runs in.

The launcher may be the kernel of a portal's Jupyter session, a batch script, or a shell of `salloc`. The step
takes nothing from the allocation: it shares the cores and GPUs with whatever else runs there, and ends with
the launch.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch.processes import check_no_rank, finished_run, plan_of
from course_lib.launch.run import Run
from course_lib.runtime.processes.backend import backend_for, seen_gpus
from course_lib.runtime.processes.protocol import Plan, Start
from course_lib.runtime.processes.serialization import serialize_launch
from course_lib.runtime.processes.slurm_step import Step, StepShape, ranks_in_step
from course_lib.runtime.processes.watchdog import PastDeadline, Watchdog
from course_lib.runtime.request import LaunchRequest
from course_lib.slurm.allocation import Allocation, NoAllocation, present_allocation
from course_lib.slurm.environment import for_a_step
from course_lib.slurm.sites import Site, site_here

_OF_A_NODE = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("GPU_DEVICE_ORDINAL", "HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR", "GLOO_SOCKET_IFNAME"),
    }
)
"""Environment variables that each node has for itself."""

_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Else every rank warns that the names of the others' addresses cannot be looked up."""


def place(ranks: int | None) -> tuple[int, Cluster]:
    """How many ranks a launch has, and where they sit, if it does not say so itself.

    Every task of the allocation, or `ranks` of them, in blocks over all of its nodes. Raises BadLaunch
    outside an allocation.
    """
    allocation = _allocation()
    ranks = allocation.tasks if ranks is None else ranks
    per_node = -(-ranks // len(allocation.hosts))
    return ranks, Cluster(nodes=-(-ranks // per_node), devices_per_node=per_node)


def run(request: LaunchRequest) -> Run:
    """Run a launch as a step of the present allocation. See `course_lib.launch.launch`."""
    started = time.perf_counter()
    with ranks_of(request) as step:
        watched = Watchdog(request, step).watch()
        if isinstance(watched.ending, PastDeadline):
            # A rank that computes for ever may have left more behind than its task knows.
            step.end()
    return finished_run("slurm", request, started, watched)


@contextmanager
def ranks_of(request: LaunchRequest, generation: int | None = None) -> Iterator[Step]:
    """The ranks of a launch as tasks of a step, as long as the block lasts. generation: see `Start`."""
    check_no_rank()
    allocation, site = _allocation(), site_here()
    _check_size(request, allocation, site)
    written = serialize_launch(request.function, request.arguments, request.ranks)
    plan = _plan(request, allocation)
    start = Start(plan, written.shared, dict(enumerate(written.own)), generation=generation)
    command_for = partial(_command, request, allocation, site)
    environment = for_a_step(os.environ) | _placement(request, site) | _QUIET
    shape = StepShape(allocation.job, tuple(command_for([])), request.ranks)
    with ranks_in_step(shape, command_for, environment, start) as step:
        yield step


def _allocation() -> Allocation:
    try:
        return present_allocation()
    except NoAllocation as error:
        raise BadLaunch(_how_to_get_one(str(error))) from None


def _how_to_get_one(why: str) -> str:
    """What to say to somebody without an allocation."""
    site = site_here()
    ways = f"From a terminal: {site.request()}; then start Jupyter or Python inside it."
    if site.portal:
        ways = f"From {site.portal}: choose 2 nodes and {2 * site.tasks_on()} tasks. {ways}"
    if "no Slurm on this machine" in why:
        ways = (
            'Without a cluster, use on="processes" for real processes of this machine, or try a virtual one: '
            "course cluster start, then course cluster run salloc --nodes=2 --ntasks-per-node=2 COMMAND."
        )
    return (
        f'on="slurm" runs on the nodes of an allocation, and {why}. {ways} '
        f"course slurm render makes a batch script."
    )


def _check_size(request: LaunchRequest, allocation: Allocation, site: Site) -> None:
    cluster = request.cluster
    if request.ranks > allocation.tasks:
        per_node = -(-request.ranks // len(allocation.hosts))
        raise BadLaunch(
            f"{request.ranks} ranks, but job {allocation.job} has {allocation.tasks} tasks on "
            f"{len(allocation.hosts)} nodes. Launch at most {allocation.tasks}, or request more: "
            f"--nodes={len(allocation.hosts)} --ntasks-per-node={per_node}."
        )
    if -(-request.ranks // cluster.devices_per_node) > len(allocation.hosts):
        raise BadLaunch(
            f"{request.ranks} ranks with {cluster.devices_per_node} a node need more nodes than the "
            f"{len(allocation.hosts)} of job {allocation.job}."
        )
    if allocation.seconds_left is not None and allocation.seconds_left < 1:
        raise BadLaunch(f"The time of job {allocation.job} is up. {_how_to_get_one('it ends now')}")


def _plan(request: LaunchRequest, allocation: Allocation) -> Plan:
    """What holds for every rank; environment and threads differ from node to node and are completed there."""
    gpus = torch.cuda.device_count() if allocation.here else allocation.gpus_per_node
    per_node = request.cluster.devices_per_node
    backend = backend_for(request.backend, ranks=per_node, gpus=gpus, remedy="Request GPUs")
    return plan_of(request, backend, _shared_environment() | seen_gpus(request.backend, backend))


def _shared_environment() -> dict[str, str]:
    """Variables of this process that hold for the ranks too, wherever they are."""
    return {
        name: value
        for name, value in for_a_step(os.environ).items()
        if name not in _OF_A_NODE and not name.startswith("SLURM")
    }


def _nodes(request: LaunchRequest) -> int:
    return -(-request.ranks // request.cluster.devices_per_node)


def _placement(request: LaunchRequest, site: Site) -> dict[str, str]:
    """What the launcher of the site wants to read in the environment."""
    if site.launcher == "ibrun":
        return {"TACC_TASKS_PER_NODE": str(request.cluster.devices_per_node)}
    return {}


def _command(request: LaunchRequest, allocation: Allocation, site: Site, program: Sequence[str]) -> list[str]:
    """The command that starts `program` as every rank."""
    if site.launcher == "ibrun":
        return ["ibrun", "-n", str(request.ranks), "-o", "0", *program]
    whole_node = request.cluster.devices_per_node == site.tasks_per_node
    return [
        "srun",
        f"--nodes={_nodes(request)}",
        f"--ntasks={request.ranks}",
        f"--ntasks-per-node={request.cluster.devices_per_node}",
        f"--cpus-per-task={allocation.cpus_per_task}",
        "--distribution=block",
        "--job-name=course-launch",
        # The notebook's own step, if it is one, holds cores and memory that this one must share.
        "--overlap",
        "--export=ALL",
        "--input=none",
        *([site.binding] if site.binding and whole_node else []),
        *program,
    ]
