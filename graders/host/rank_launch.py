"""The grader's side of a launch for grades: messages between ranks pass through a scheduler of its own.

Each rank is a process in a sandbox of its own (`graders.guest.rank_process`), which shares nothing with the
others. What it sends and receives, how much, when and in which order, is known here because it happens here,
on the very `ThreadDriver` and `Network` that run simulated ranks in a kernel. A rank can only ask; what its
code does to the library in its own process changes nothing.
"""

import time
from collections.abc import Sequence

from course_lib.cluster.topology import Cluster
from course_lib.launch.failures import LaunchError
from course_lib.launch.outcome import Outcome
from course_lib.launch.run import Run
from course_lib.runtime.request import LaunchRequest, PerRank
from course_lib.runtime.simulator.engine import Ending
from course_lib.runtime.simulator.thread_driver import ThreadDriver
from course_lib.runtime.simulator.virtual_time import VirtualTime
from graders.host.fork_server_client import Process
from graders.host.launch_state import LaunchState
from graders.host.rank_server import KeepLine, RankServer
from graders.protocol import requests


def launch(
    request: requests.RunRequest, processes: Sequence[Process], grace: float, keep_line: KeepLine
) -> Run:
    """Run a launch with one process a rank, each of which has run the submission's cells.

    grace: seconds that a rank has for stopping by itself when the time is up.

    Raises what `course_lib.launch.launch` does; then the processes have been told to be done with the answer.
    Raises RankBroken; then they are of no more use, as after any other exception.
    """
    started = time.perf_counter()
    cluster = request.cluster or Cluster(devices_per_node=request.ranks)
    virtual_time = VirtualTime(cluster, request.ranks)
    scheduler = ThreadDriver(virtual_time, lambda _: None)
    outcome = LaunchState(request.ranks)
    servers = [
        RankServer(_order(request, rank, cluster), process, scheduler, outcome, grace, keep_line)
        for rank, process in enumerate(processes)
    ]
    # A second more, so that every server has given up by itself before.
    ending = scheduler.run([server.run for server in servers], request.timeout + grace + 1)
    if outcome.broken:
        raise outcome.broken[0]
    seconds = request.timeout
    if outcome.places:
        ending = Ending.OUT_OF_TIME
        # Less, if it was the time for computing that was up.
        seconds = min(seconds, float(round(time.perf_counter() - started)))
    launched = LaunchRequest(launch, (), request.ranks, cluster, seconds, request.seed, None)
    ended = Outcome(
        launched,
        ending,
        virtual_time,
        outcome.results,
        outcome.outputs,
        outcome.failures,
        scheduler.waiting,
        started,
        outcome.places,
    )
    try:
        return ended.run()
    except LaunchError:
        for server in servers:
            server.release()
        raise


def _order(request: requests.RunRequest, rank: int, cluster: Cluster) -> requests.RankRequest:
    """What one of the ranks is to do."""
    arguments = tuple(v[rank] if isinstance(v, PerRank) else v for v in request.arguments)
    return requests.RankRequest(
        request.driver,
        arguments,
        rank,
        request.ranks,
        cluster,
        request.timeout,
        request.seed,
        request.memory,
    )
