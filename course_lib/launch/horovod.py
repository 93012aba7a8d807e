"""The engine "horovod": ranks are processes of this machine, in a group of Horovod's own.

They are started as those of "processes" are, in a fraction of `horovodrun`'s seconds, and join Horovod's
group instead of torch's. A run's events are those of Horovod's own timeline, which is also left in the file
that the variable HOROVOD_TIMELINE names; where that is set and empty, none is recorded.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from course_lib.beside import missing
from course_lib.errors import BadLaunch
from course_lib.launch.processes import check_here, finished_run, interpreter_of, plan_of
from course_lib.launch.run import Run
from course_lib.runtime.communication.horovod_timeline import Waiting, read_timeline
from course_lib.runtime.communication.wording import ranks_in_words
from course_lib.runtime.processes.agents import ranks_here
from course_lib.runtime.processes.backend import NO_GPU
from course_lib.runtime.processes.horovod_group import BACKEND, CLOSE, TIMELINE, ask_to_close, offer_to_close
from course_lib.runtime.processes.protocol import Plan, Start
from course_lib.runtime.processes.rank_environment import threads_of_a_rank
from course_lib.runtime.processes.serialization import serialize_launch
from course_lib.runtime.processes.watchdog import PastDeadline, Watchdog, Watched
from course_lib.runtime.request import LaunchRequest
from course_lib.scratch import scratch_folder

RECIPE = "horovod"
"""Of `course beside`: what the ranks need where they run in this process's own environment."""


def run(request: LaunchRequest) -> Run:
    """Run a launch on Horovod. See `course_lib.launch.launch`."""
    check_here("horovod")
    if request.backend not in (None, "gloo"):
        raise BadLaunch(_refused(request.backend, request.ranks))
    if request.beside is None and (sentence := missing(RECIPE)):
        raise BadLaunch(sentence)
    written = serialize_launch(
        request.function, request.arguments, request.ranks, apart=request.beside is not None
    )
    variables = {rank: _variables(request, rank) for rank in range(request.ranks)}
    started = time.perf_counter()
    with scratch_folder() as folder:
        file = Path(os.environ.get(TIMELINE) or folder / "timeline.json")
        file.unlink(missing_ok=True)
        pipe = offer_to_close(folder)
        start = Start(
            _plan(request, {TIMELINE: str(file), CLOSE: str(pipe)}),
            written.shared,
            dict(enumerate(written.own)),
            variables,
        )
        with ranks_here(start) as agents:
            watched = Watchdog(request, agents).watch()
            ask_to_close(pipe)
        timeline = read_timeline(file)
    # Its clock is that of the day, the ranks' is the machine's.
    zero = timeline.began - (time.time() - time.monotonic())
    watched.run.told = list(timeline.events(request.ranks, zero))
    if isinstance(watched.ending, PastDeadline):
        report = _stalled_report(request, watched, watched.ending.places, timeline.waiting)
        watched = replace(watched, ending=replace(watched.ending, report=report))
    return finished_run("horovod", request, started, watched)


def _plan(request: LaunchRequest, own: Mapping[str, str]) -> Plan:
    threads = threads_of_a_rank(request.ranks)
    environment = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        # Only then a tensor that Horovod knows from earlier steps is negotiated anew, and so told of.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(min(request.timeout / 4, 10)))),
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # Else every rank tells how TensorFlow was compiled.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        # Two ranks on one GPU are nothing that NCCL, if Horovod has it, can do.
        **(NO_GPU if request.ranks > torch.cuda.device_count() else {}),
        **own,
    }
    if os.environ.get(TIMELINE) == "":
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


# --- What is said


def _refused(backend: str, ranks: int) -> str:
    """Why ranks are not started over this backend, and what to do instead."""
    if backend == "mpi":
        return (
            "Horovod's ranks meet over Gloo here. Over MPI they are mpirun's: "
            f"course_lib.launch.mpi.mpirun(f, ranks={ranks}), where f takes MPI's communicator and begins "
            "with hvd.init(). It needs `make horovod MPI=1`."
        )
    return (
        f'Horovod\'s ranks meet over Gloo, not over "{backend}". Leave the backend out: what carries tensors '
        "on GPUs, such as NCCL, was decided when Horovod was built (`horovodrun --check-build`)."
    )


def _stalled_report(
    request: LaunchRequest, watched: Watched, places: Mapping[int, str], waiting: Sequence[Waiting]
) -> str:
    """Which tensors not all ranks have submitted, and in which line each rank was that had not returned.

    Horovod's own report of a stall never comes over Gloo: 0.28.1 counts the ranks of a list that it has not
    filled (common/gloo/gloo_controller.cc, `global_ranks_`).
    """
    parts = [f"The run was stopped after {request.timeout:g} s; it had not come to its end.", ""]
    for each in waiting[:_SHOWN]:
        late = ranks_in_words(set(range(request.ranks)) - each.ready.keys())
        parts.append(f"{each.tensor} waited for {late}; {ranks_in_words(each.ready)} had submitted it")
    parts += [f"rank {rank} was\n{at.rstrip()}" for rank, at in sorted(places.items())]
    parts += [f"rank {rank} had already returned." for rank in watched.run.returned]
    advice = (
        "Horovod pairs tensors by their names, in any order, but every rank must submit each of them. Look "
        "for a call behind an `if hvd.rank() == ...`, ranks with different numbers of batches, or names that "
        "differ."
        if waiting
        else "no tensor waited for a rank: look for a loop that never ends, or give the launch more time."
    )
    return "\n".join([*parts, "", f"What to do: {advice}"])


_SHOWN = 16
"""So many tensors are listed in a report."""
