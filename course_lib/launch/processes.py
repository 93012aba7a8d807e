"""The engine "processes": ranks are processes of this machine, on Gloo, or on NCCL where each has a GPU."""

import linecache
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from course_lib.beside import BesideFailed, interpreter
from course_lib.errors import BadLaunch
from course_lib.launch.failures import (
    CollectiveMismatch,
    Deadlock,
    LaunchError,
    LeftOpen,
    RankFailed,
    TimedOut,
)
from course_lib.launch.run import Run
from course_lib.runtime.communication.callsite import is_library
from course_lib.runtime.communication.diagnosis import left_open_report
from course_lib.runtime.communication.events import LazyEvents
from course_lib.runtime.processes.agents import Agents, ranks_here
from course_lib.runtime.processes.backend import backend_for, seen_gpus
from course_lib.runtime.processes.protocol import Plan, Start
from course_lib.runtime.processes.rank_environment import threads_of_a_rank
from course_lib.runtime.processes.rank_life import is_rank
from course_lib.runtime.processes.serialization import serialize_launch
from course_lib.runtime.processes.watchdog import (
    AllReturned,
    BadEnding,
    Deadlocked,
    Mismatched,
    PastDeadline,
    RanksFailed,
    Watchdog,
    Watched,
)
from course_lib.runtime.request import LaunchRequest

_LOOPBACK = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def run(request: LaunchRequest) -> Run:
    """Run a launch on processes of this machine. See `course_lib.launch.launch`."""
    started = time.perf_counter()
    with ranks_of(request) as agents:
        watched = Watchdog(request, agents).watch()
    return finished_run("processes", request, started, watched)


@contextmanager
def ranks_of(request: LaunchRequest, generation: int | None = None) -> Iterator[Agents]:
    """The ranks of a launch on this machine, as long as the block lasts. generation: see `Start`."""
    check_here("processes")
    plan = _plan(request)
    written = serialize_launch(
        request.function, request.arguments, request.ranks, apart=request.beside is not None
    )
    variables = {rank: _variables(request, rank) for rank in range(request.ranks)}
    own = dict(enumerate(written.own))
    with ranks_here(Start(plan, written.shared, own, variables, generation=generation)) as agents:
        yield agents


def check_here(engine: str) -> None:
    """Raise BadLaunch where ranks cannot be processes of this machine."""
    check_no_rank()
    if sys.platform != "linux":
        raise BadLaunch(f'on="{engine}" needs Linux, and this is {sys.platform}. Use on="simulated".')


def check_no_rank() -> None:
    """Raise BadLaunch in a process that is a rank itself."""
    if is_rank():
        raise BadLaunch(
            "This is a rank already, and a rank cannot launch ranks. "
            "Call launch outside of the function that you launch."
        )


def finished_run(engine: str, request: LaunchRequest, started: float, watched: Watched) -> Run:
    """What a launch on processes gives back. started: time.perf_counter() at the launch.

    Raises what a launch deserves whose ranks have not returned, or have left a call open.
    """
    ending, observed = watched.ending, watched.run
    run = Run(
        results=ending.results if isinstance(ending, AllReturned) else [None] * request.ranks,
        outputs=watched.outputs,
        events=LazyEvents(observed.events),
        cluster=request.cluster,
        engine=engine,
        seconds=observed.seconds,
        wall_seconds=time.perf_counter() - started,
        unmatched=observed.unmatched(),
    )
    if not isinstance(ending, AllReturned):
        raise error_of(ending, run)
    if run.unmatched:
        raise LeftOpen(left_open_report(run.unmatched), run)
    return run


def error_of(ending: BadEnding, run: Run) -> LaunchError:
    """What ranks deserve that have not returned."""
    match ending:
        case RanksFailed(report, failures):
            return RankFailed(report, failures, run)
        case Deadlocked(report, waiting, cycle, finished):
            return Deadlock(report, waiting, cycle, finished, run)
        case Mismatched(report, calls):
            return CollectiveMismatch(report, calls, run)
        case PastDeadline(report):
            return TimedOut(report, run)


def _plan(request: LaunchRequest) -> Plan:
    gpus = torch.cuda.device_count()
    remedy = f"Launch at most {gpus} ranks"
    backend = backend_for(request.backend, ranks=request.ranks, gpus=gpus, remedy=remedy)
    return plan_of(
        request,
        backend,
        # All ranks are here: no name of this machine has to be resolved, and no firewall is in the way.
        {"GLOO_SOCKET_IFNAME": _LOOPBACK} | dict(os.environ) | seen_gpus(request.backend, backend),
        threads=threads_of_a_rank(request.ranks),
        temporary_directory=tempfile.gettempdir(),
        interpreter=interpreter_of(request.beside),
    )


def interpreter_of(beside: str | None) -> str:
    """The Python of the environment that the ranks are to run in; empty: this one. Raises BadLaunch."""
    if beside is None:
        return ""
    try:
        return str(interpreter(beside))
    except BesideFailed as error:
        raise BadLaunch(str(error)) from None


def plan_of(request: LaunchRequest, backend: str, environment: dict[str, str], **of_the_node: Any) -> Plan:
    """What every rank of a launch from this process has to know."""
    if of_the_node.get("interpreter"):
        # What names packages of this environment would hide those of the other one.
        environment = {name: value for name, value in environment.items() if name not in _OF_AN_INTERPRETER}
    return Plan(
        ranks=request.ranks,
        backend=backend,
        timeout=request.timeout,
        seed=request.seed,
        working_directory=os.getcwd(),
        module_path=tuple(_own_folders() if of_the_node.get("interpreter") else sys.path),
        program=tuple(sys.argv),
        sources=_sources_without_file(),
        environment=environment,
        memory=request.memory,
        **of_the_node,
    )


_OF_AN_INTERPRETER = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})


def _own_folders() -> list[str]:
    """Where this process finds modules that belong to no environment, such as those beside a script."""
    return [folder for folder in sys.path if not is_library(os.path.join(folder, "module.py"))]


def _variables(request: LaunchRequest, rank: int) -> dict[str, str]:
    """What torchrun sets for a worker."""
    cluster = request.cluster
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_RANK": str(cluster.local_rank(rank)),
        "LOCAL_WORLD_SIZE": str(min(cluster.devices_per_node, request.ranks)),
        "GROUP_RANK": str(cluster.node_of(rank)),
    }


def _sources_without_file() -> dict[str, Any]:
    """Source text that exists only in this process, such as that of notebook cells."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name)
    }
