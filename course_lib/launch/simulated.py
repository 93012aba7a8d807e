"""The engine "simulated": ranks live in this process, time is virtual, every run repeats itself.

They are threads that take turns (`course_lib.runtime.simulator.thread_driver`); if no message carries data,
they are recorded one by one instead (`course_lib.launch.shape_only`), which is many times as fast, and by two
processes if there are many.

Everything above the process group is torch's own, so DistributedDataParallel, FSDP2 (`fully_shard`), DTensor
and device meshes run too. What cannot run: code that needs a GPU's streams or NCCL itself, and threads or
subprocesses of a rank that want to communicate, for they are not the rank.
"""

import time

from course_lib.errors import BadLaunch
from course_lib.launch import shape_only
from course_lib.launch.outcome import Outcome
from course_lib.launch.run import Run
from course_lib.runtime.communication.callsite import stack_lines
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.isolation import Isolation, current_rank
from course_lib.runtime.simulator.rank_main import RankMains
from course_lib.runtime.simulator.thread_driver import ThreadDriver
from course_lib.runtime.simulator.virtual_time import VirtualTime


def run(request: LaunchRequest) -> Run:
    """Run a launch on simulated ranks. See `course_lib.launch.launch`."""
    if current_rank.get() is not None:
        raise BadLaunch(
            "This is a simulated rank already, and a rank cannot launch ranks. "
            "Call launch outside of the function that you launch."
        )
    ended = shape_only.run(request) if shape_only.moves_shapes_only(request.arguments) else None
    return (ended or _by_turns(request)).run()


def _by_turns(request: LaunchRequest) -> Outcome:
    """Run the ranks as threads that take turns."""
    started = time.perf_counter()
    isolation = Isolation(request.cluster, request.ranks, request.seed)
    virtual_time = VirtualTime(request.cluster, request.ranks)
    scheduler = ThreadDriver(virtual_time, isolation.resume)
    bodies = RankMains(request, scheduler)
    with isolation.entered(), as_with_gloo():
        ending = scheduler.run([bodies.body(rank) for rank in range(request.ranks)], request.timeout)
    return Outcome(
        request,
        ending,
        virtual_time,
        bodies.results,
        isolation.outputs,
        bodies.failures,
        scheduler.waiting,
        started,
        {rank: stack_lines(frame) for rank, frame in scheduler.stacks.items()},
    )
