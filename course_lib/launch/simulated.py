"""The engine "simulated": ranks live in this process, time is virtual, every run repeats itself.

They are threads that take turns (`course_lib.runtime.simulator.thread_driver`); if no message carries data,
they are captured one by one instead (`course_lib.runtime.simulator.trace.capture`) and timed together, which
is many times as fast.

Everything above the process group is torch's own, so DistributedDataParallel, FSDP2 (`fully_shard`), DTensor
and device meshes run too. What cannot run: code that needs a GPU's streams or NCCL itself, and threads or
subprocesses of a rank that want to communicate, for they are not the rank.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.errors import BadLaunch
from course_lib.launch.outcome import CountedOutcome, Outcome
from course_lib.launch.run import Run
from course_lib.runtime.communication.callsite import stack_lines
from course_lib.runtime.request import LaunchRequest, moves_shapes_only
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.engine import Ending, current_rank
from course_lib.runtime.simulator.rank_globals import SwappedGlobals
from course_lib.runtime.simulator.rank_main import RankMains
from course_lib.runtime.simulator.rank_threads import GRACE_SECONDS
from course_lib.runtime.simulator.thread_driver import ThreadDriver
from course_lib.runtime.simulator.trace.batched_replay import replayed_in_batches
from course_lib.runtime.simulator.trace.capture import Capture
from course_lib.runtime.simulator.trace.replay import Replay
from course_lib.runtime.simulator.virtual_time import VirtualTime


def run(request: LaunchRequest) -> Run:
    """Run a launch on simulated ranks. See `course_lib.launch.launch`."""
    if current_rank.get() is not None:
        raise BadLaunch(
            "This is a simulated rank already, and a rank cannot launch ranks. "
            "Call launch outside of the function that you launch."
        )
    with alone_in_the_process(request.timeout):
        # A rank that is captured has no clock yet by which its memory, or its host's lead, could be told.
        in_step = not request.cluster.computes.dispatch_seconds
        captures = moves_shapes_only(request.arguments) and not request.memory and in_step
        captured = _captured(request) if captures else None
        outcome = captured or _in_turns(request)
    return outcome.run()


_running = threading.Lock()


@contextmanager
def alone_in_the_process(seconds: float) -> Iterator[None]:
    """Let no other launch of another thread swap what belongs to the process, such as `os.environ`."""
    if not _running.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
        raise BadLaunch(
            f"Another thread of this process has had simulated ranks running for {seconds:g} s. Simulated "
            f"launches go one after another, for ranks have their own sys.stdout, os.environ and random "
            f'numbers. Wait for the other one, or launch on="processes".'
        )
    try:
        yield
    finally:
        _running.release()


def _in_turns(request: LaunchRequest) -> Outcome:
    """Run the ranks as threads that take turns."""
    started = time.perf_counter()
    rank_globals = SwappedGlobals(request.cluster, request.ranks, request.seed)
    virtual_time = VirtualTime(request.cluster, request.ranks)
    driver = ThreadDriver(virtual_time, rank_globals.resume)
    mains = RankMains(request, driver)
    with rank_globals.entered(), as_with_gloo():
        ending = driver.run([mains.main(rank) for rank in range(request.ranks)], request.timeout)
    return Outcome(
        request,
        ending,
        virtual_time,
        mains.results,
        rank_globals.outputs,
        mains.failures,
        driver.waiting,
        started,
        {rank: stack_lines(frame) for rank, frame in driver.stacks.items()},
    )


def _captured(request: LaunchRequest) -> Outcome | CountedOutcome | None:
    """Capture the ranks and carry out what they have done. None if they have to take turns."""
    started = time.perf_counter()
    virtual_time = VirtualTime(request.cluster, request.ranks)
    capture = Capture(request, virtual_time.network)
    if not capture.run():
        return None
    messages = replayed_in_batches(capture.trace) if capture.whole else None
    if messages is None:
        return _replayed(request, capture, virtual_time, started)
    outputs = [transcript.getvalue() for transcript in capture.transcripts]
    return CountedOutcome(request, messages, capture.mains.results, outputs, started)


def _replayed(request: LaunchRequest, capture: Capture, virtual_time: VirtualTime, started: float) -> Outcome:
    """Carry out what has been captured, turn by turn."""
    cut_short = frozenset(range(capture.captured, request.ranks))
    replay = Replay(capture.trace, virtual_time, cut_short)
    ending = replay.run(GRACE_SECONDS if cut_short else capture.seconds_left)
    raised = {failure.rank: failure for failure in capture.mains.failures}
    return Outcome(
        request,
        Ending.OUT_OF_TIME if cut_short else ending,
        virtual_time,
        [result if rank in replay.ended else None for rank, result in enumerate(capture.mains.results)],
        [transcript.until(replay.steps_done(rank)) for rank, transcript in enumerate(capture.transcripts)],
        [raised[rank] for rank in replay.ended if rank in raised],
        virtual_time.waiting(),
        started,
        capture.stuck,
    )
