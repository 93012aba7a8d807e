"""The engine "horovod": ranks are processes of this machine, in a group of Horovod's own.

They are started as those of "processes" are, in a fraction of `horovodrun`'s seconds, and join Horovod's
group instead of torch's. A run's events are those of Horovod's own timeline; none is recorded where the
variable HOROVOD_TIMELINE is set and empty, and one that it names is left to its owner.
"""

import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from course_lib.beside import missing
from course_lib.errors import BadLaunch
from course_lib.launch.processes import check_here, finished_run, interpreter_of, plan_of, threads_of_a_rank
from course_lib.launch.run import Run
from course_lib.runtime.communication.horovod_timeline import read_timeline
from course_lib.runtime.processes.agents import ranks_here
from course_lib.runtime.processes.horovod_group import BACKEND, TIMELINE
from course_lib.runtime.processes.launch_folder import owned_folder, sweep
from course_lib.runtime.processes.protocol import Plan, Start
from course_lib.runtime.processes.serialization import serialize_launch
from course_lib.runtime.processes.watchdog import (
    Ending,
    PastDeadline,
    RanksFailed,
    RanksGone,
    Watchdog,
    Watched,
)
from course_lib.runtime.request import LaunchRequest

RECIPE = "horovod"
"""Of `course beside`: what the ranks need where they run in this process's own environment."""


def run(request: LaunchRequest) -> Run:
    """Run a launch on Horovod. See `course_lib.launch.launch`."""
    check_here("horovod")
    if request.backend not in (None, "gloo"):
        raise BadLaunch(
            f'Horovod\'s ranks are launched over Gloo, not over "{request.backend}". Leave the backend out; '
            f"for MPI, `horovodrun --mpi -np {request.ranks} python SCRIPT` in a terminal."
        )
    if request.beside is None and (sentence := missing(RECIPE)):
        raise BadLaunch(sentence)
    written = serialize_launch(request.function, request.arguments, request.ranks)
    variables = {rank: _variables(request, rank) for rank in range(request.ranks)}
    sweep()
    started = time.perf_counter()
    with owned_folder() as folder:
        file = folder / "timeline.json"
        start = Start(_plan(request, file), written.shared, dict(enumerate(written.own)), variables)
        with ranks_here(start) as agents:
            watched = Watchdog(request, agents).watch()
        timeline = read_timeline(file)
    # Its clock is that of the day, the ranks' is the machine's.
    zero = timeline.began - (time.time() - time.monotonic())
    watched.run.told = list(timeline.events(request.ranks, zero))
    ending = _ending(request, watched, time.perf_counter() - started)
    return finished_run("horovod", request, started, replace(watched, ending=ending))


def _plan(request: LaunchRequest, timeline: Path) -> Plan:
    threads = threads_of_a_rank(request.ranks)
    environment = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        # The report of a stall must come, and come again, before the launch is stopped.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(min(request.timeout / 4, 10)))),
        TIMELINE: str(timeline),
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # Else every rank tells how TensorFlow was compiled.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
    }
    if not environment[TIMELINE]:
        # Horovod would take the empty name for a file's.
        del environment[TIMELINE]
    return plan_of(
        request,
        BACKEND,
        environment,
        threads=threads,
        temporary_directory=tempfile.gettempdir(),
        interpreter=interpreter_of(request.beside),
    )


def _variables(request: LaunchRequest, rank: int) -> dict[str, str]:
    """What horovodrun sets for a process. "Cross" counts the processes of one local rank over the nodes."""
    cluster, ranks = request.cluster, request.ranks
    node, local = cluster.node_of(rank), cluster.local_rank(rank)
    beside = [other for other in range(ranks) if cluster.node_of(other) == node]
    across = [other for other in range(ranks) if cluster.local_rank(other) == local]
    return {
        "HOROVOD_HOSTNAME": f"node{node}",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(ranks),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(len(beside)),
        "HOROVOD_CROSS_RANK": str(across.index(rank)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
    }


# --- What a bad end means in Horovod's words


def _ending(request: LaunchRequest, watched: Watched, seconds: float) -> Ending:
    match watched.ending:
        case RanksFailed(report, failures) if failures[0].type.startswith("SIG"):
            lost = {each.rank: seconds for each in failures if each.type.startswith("SIG")}
            return RanksGone(report, lost)
        case PastDeadline(_, places):
            return PastDeadline(
                _stalled_report(request.timeout, places, missing_tensors(watched.outputs[0])), places
            )
        case ending:
            return ending


_STALL = re.compile(r"Missing ranks:((?:\n\d+!?: \[[^\n]*\])+)")


def missing_tensors(output: str) -> dict[int, str]:
    """Rank -> the tensors that others wait for it to submit, as the coordinator's last report has them.

    output: what rank 0 printed. Horovod itself names six tensors a rank at most.
    """
    reports = _STALL.findall(output)
    lines = reports[-1].strip().splitlines() if reports else []
    told = (line.partition(": ") for line in lines)
    return {int(rank.rstrip("!")): tensors.strip("[]") for rank, _, tensors in told}


def _stalled_report(timeout: float, places: Mapping[int, str], missing_of: Mapping[int, str]) -> str:
    parts = [f"The run was stopped after {timeout:g} s; it had not come to its end.", ""]
    parts += [f"rank {rank} has not submitted {tensors}" for rank, tensors in sorted(missing_of.items())]
    parts += [f"rank {rank} was\n{at.rstrip()}" for rank, at in sorted(places.items())]
    advice = (
        "Horovod pairs tensors by their names, in any order, but every rank must submit each of them. Look "
        "for a call behind an `if hvd.rank() == ...`, ranks with different numbers of batches, or names that "
        "differ."
        if missing_of
        else "no tensor waited for a rank: look for a loop that never ends, or give the launch more time."
    )
    return "\n".join([*parts, "", f"What to do: {advice}"])
