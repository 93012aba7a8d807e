"""The engine "processes": ranks are processes of this machine, on Gloo, or on NCCL where each has a GPU."""

import linecache
import os
import pickle
import select
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from course_lib.errors import BadLaunch
from course_lib.launch.failures import CollectiveMismatch, Deadlock, RankFailed, TimedOut, UnmatchedMessage
from course_lib.launch.run import Run
from course_lib.runtime.communication.diagnosis import (
    deadlock_report,
    find_cycle,
    message_mismatch_report,
    mismatch_report,
    rank_failed_report,
    timed_out_report,
)
from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.events import LazyEvents
from course_lib.runtime.processes import rank as worker
from course_lib.runtime.processes.backend import backend_for
from course_lib.runtime.processes.call_log import CallLogReader, Record, line_of
from course_lib.runtime.processes.launch_folder import OUTPUT_BYTES, LaunchFolder, Plan
from course_lib.runtime.processes.node_agent import RankEnded, RankForked, forked_ranks
from course_lib.runtime.processes.observed_run import ObservedRank, ObservedRun, merged
from course_lib.runtime.processes.serialization import SerializedLaunch, serialize_launch
from course_lib.runtime.processes.stacks import Stack, read_stack
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.network import Mismatch, Operation

_LOOK_SECONDS = 0.05
"""How often to read the call_logs when nothing calls for it sooner."""

_SETTLE_SECONDS = 0.3
"""How long the other ranks have, after something went wrong on one, to say what they were doing."""

_GRACE_SECONDS = 1.0
"""So long nothing may happen on any rank before it counts as a deadlock."""

_START_SECONDS = 120.0
"""How long the ranks have to find each other before the launch's own time begins."""

_STACK_SECONDS = 0.5
"""How long a rank has to write where it is."""

_LOOPBACK = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def run(request: LaunchRequest) -> Run:
    """Run a launch on processes of this machine. See `course_lib.launch.launch`."""
    if worker.is_rank():
        raise BadLaunch(
            "This is a rank already, and a rank cannot launch ranks. "
            "Call launch outside of the function that you launch."
        )
    if sys.platform != "linux":
        raise BadLaunch(f'on="processes" needs Linux, and this is {sys.platform}. Use on="simulated".')
    plan = _plan(request)
    parcel = serialize_launch(request.function, request.arguments, request.ranks)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="course-launch-", ignore_cleanup_errors=True) as path:
        folder = LaunchFolder(Path(path))
        _fill(folder, plan, parcel)
        with forked_ranks(folder) as keeper:
            call_logs = [CallLogReader(folder.call_log(rank)) for rank in range(request.ranks)]
            finished = Watch("processes", request, folder, keeper, call_logs, started).run()
    warn_of_unmatched(finished)
    return finished


def warn_of_unmatched(finished: Run) -> None:
    """Say which messages were never received, as a warning of the line that called `launch`."""
    for call in finished.unmatched:
        warnings.warn(f"Nobody answered {call}. It was still open at the end.", UnmatchedMessage, 4)


def _plan(request: LaunchRequest) -> Plan:
    cores, gpus = len(os.sched_getaffinity(0)), torch.cuda.device_count()
    return Plan(
        ranks=request.ranks,
        backend=backend_for(
            request.backend, ranks=request.ranks, gpus=gpus, remedy=f"Launch at most {gpus} ranks"
        ),
        timeout=request.timeout,
        seed=request.seed,
        threads=max(1, cores // request.ranks),
        environments={rank: _environment(request, rank) for rank in range(request.ranks)},
        working_directory=os.getcwd(),
        module_path=tuple(sys.path),
        program=tuple(sys.argv),
        sources=sources_without_file(),
    )


def _environment(request: LaunchRequest, rank: int) -> dict[str, str]:
    """The launcher's environment with what torchrun sets for a worker."""
    cluster = request.cluster
    # All ranks are here, so that no name of this machine has to be resolved and no firewall is in the way.
    return (
        {"GLOO_SOCKET_IFNAME": _LOOPBACK}
        | dict(os.environ)
        | {
            "RANK": str(rank),
            "WORLD_SIZE": str(request.ranks),
            "LOCAL_RANK": str(cluster.local_rank(rank)),
            "LOCAL_WORLD_SIZE": str(min(cluster.devices_per_node, request.ranks)),
            "GROUP_RANK": str(cluster.node_of(rank)),
        }
    )


def sources_without_file() -> dict[str, Any]:
    """Source text that exists only in this process, such as that of notebook cells."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None and not os.path.exists(name)
    }


def _fill(folder: LaunchFolder, plan: Plan, parcel: SerializedLaunch) -> None:
    os.mkfifo(folder.bell, 0o600)
    folder.write_plan(plan)
    folder.function.write_bytes(parcel.shared)
    for rank, own in enumerate(parcel.own):
        folder.arguments(rank).write_bytes(own)


class RankKeeper(Protocol):
    """Whatever holds the ranks of a launch. See `course_lib.runtime.processes.node_agent.Keeper`."""

    lost: bool
    last_words: str

    def fileno(self) -> int: ...

    def read(self) -> Sequence[RankForked | RankEnded]: ...

    def show_stacks(self) -> None: ...

    def all_sleep(self, ranks: Sequence[int]) -> bool: ...


class RecordSource(Protocol):
    """Where a rank's records come from. See `course_lib.runtime.processes.call_log.CallLogReader`."""

    def read(self) -> list[Record]: ...

    def close(self) -> None: ...


class Watch:
    """Watches one launch from its start to its end."""

    def __init__(
        self,
        engine: str,
        request: LaunchRequest,
        folder: LaunchFolder,
        keeper: RankKeeper,
        call_logs: Sequence[RecordSource],
        started: float,
    ) -> None:
        self._engine = engine
        self._request = request
        self._folder = folder
        self._keeper = keeper
        self._started = started
        self._observed = ObservedRun(request.cluster, request.ranks)
        self._journals = call_logs
        self._last_change = time.monotonic()
        self._trouble_since: float | None = None

    def run(self) -> Run:
        """Wait until all ranks have returned; raise what the launch deserves if they do not."""
        bell = os.open(self._folder.bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        # Not select.select: a kernel may have more descriptors open than that can name.
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.register(self._keeper, select.POLLIN)
        try:
            while not self._observed.all_returned:
                readable = {descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)}
                if bell in readable:
                    os.read(bell, 4096)
                self._look(self._keeper.fileno() in readable)
                self._judge()
            return self._record(self._results())
        finally:
            os.close(bell)
            for call_log in self._journals:
                call_log.close()

    # --- Looking

    def _look(self, keeper_speaks: bool) -> None:
        """Take in what has happened since the last look."""
        # What a process wrote before its end is read after the end is known, so that nothing is missed.
        reports = self._keeper.read() if keeper_speaks else []
        fresh = {rank: records for rank, each in enumerate(self._journals) if (records := each.read())}
        self._observed.add(merged(fresh))
        for report in reports:
            if isinstance(report, RankEnded):
                self._observed.add_exit(report.rank, report.code)
        if fresh or reports:
            self._last_change = time.monotonic()
        self._bound_outputs()

    def _bound_outputs(self) -> None:
        """Keep a rank that prints without end from filling the disk."""
        for rank in range(self._request.ranks):
            path = self._folder.output(rank)
            if path.exists() and path.stat().st_size > 2 * OUTPUT_BYTES:
                os.truncate(path, OUTPUT_BYTES + 1)

    # --- Judging

    def _judge(self) -> None:
        """Raise if the launch cannot come to a good end any more."""
        mismatches = self._observed.network.collective_mismatches()
        if (mismatches or self._observed.has_failure) and self._settled():
            if mismatches:
                self._raise_mismatch(mismatches[0])
            self._raise_failed()
        if self._keeper.lost and not self._observed.all_returned:
            raise RankFailed(
                self._keeper.last_words,
                [RankTraceback(0, "SIGKILL", "the process was killed from outside", "")],
                self._record(),
            )
        self._judge_time()

    def _judge_time(self) -> None:
        silent = time.monotonic() - self._last_change
        if silent >= _GRACE_SECONDS and (knot := self._knot()):
            self._raise_deadlock(knot)
        if time.monotonic() >= self._deadline:
            self._raise_timed_out()

    @property
    def _deadline(self) -> float:
        """On the machine's clock. The launch's time begins when its first rank's function does."""
        if self._observed.zero:
            return self._observed.zero + self._request.timeout
        return self._last_change + _START_SECONDS

    def _settled(self) -> bool:
        """Whether all ranks have said what they can about the trouble that there is."""
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
        if time.monotonic() - self._trouble_since >= _SETTLE_SECONDS:
            return True
        return all(view.stuck for view in self._observed.running)

    def _knot(self) -> list[Operation]:
        """The calls that the unfinished ranks wait in, if that is for ever; empty if one may go on."""
        running = self._observed.running
        if not running or any(view.waiting is not None and not view.stuck for view in running):
            return []
        silent = [view for view in running if not view.stuck]
        if silent and not self._all_wait_inside_torch(silent):
            return []
        calls = [view.waiting or view.open_call for view in running]
        return [call for call in calls if call is not None]

    def _all_wait_inside_torch(self, views: list[ObservedRank]) -> bool:
        """Whether the ranks sleep in torch's own code with a call that nobody has answered.

        DistributedDataParallel waits for its buckets in C++, where no note is made.
        """
        ranks = [view.rank for view in views]
        if any(view.open_call is None for view in views) or not self._keeper.all_sleep(ranks):
            return False
        stacks = self._stacks(ranks)
        folder = os.path.dirname(torch.__file__)
        inside = all(stack.innermost_in(folder) for stack in stacks.values())
        return inside and self._keeper.all_sleep(ranks)

    def _stacks(self, ranks: list[int]) -> dict[int, Stack]:
        """Where the ranks are in their code."""
        for rank in ranks:
            os.truncate(self._folder.stack(rank), 0)
        self._keeper.show_stacks()
        stacks = {rank: Stack(()) for rank in ranks}
        deadline = time.monotonic() + _STACK_SECONDS
        while time.monotonic() < deadline and not all(stack.frames for stack in stacks.values()):
            time.sleep(0.02)
            stacks = {rank: read_stack(self._folder.stack(rank)) for rank in ranks}
        return stacks

    # --- Ending

    def _results(self) -> list[Any]:
        results = []
        for rank in range(self._request.ranks):
            try:
                results.append(pickle.loads(self._folder.result(rank).read_bytes()))
            except Exception as error:
                # Whatever an object's own unpickling raises: there is no common class.
                message = f"the result of rank {rank} cannot be read back: {error}"
                failure = RankTraceback(rank, type(error).__name__, message, message)
                raise RankFailed(rank_failed_report([failure]), [failure], self._record()) from error
        return results

    def _record(self, results: list[Any] | None = None) -> Run:
        """The run as it stands, complete or not."""
        ranks = range(self._request.ranks)
        return Run(
            results=[None] * self._request.ranks if results is None else results,
            outputs=[self._output(rank) for rank in ranks],
            events=LazyEvents(self._observed.events),
            cluster=self._request.cluster,
            engine=self._engine,
            seconds=self._observed.seconds,
            wall_seconds=time.perf_counter() - self._started,
            unmatched=self._observed.unmatched(),
        )

    def _output(self, rank: int) -> str:
        try:
            with self._folder.output(rank).open("rb") as file:
                kept, more = file.read(OUTPUT_BYTES), file.read(1)
        except FileNotFoundError:
            return ""
        text = kept.decode(errors="replace")
        return f"{text}\n... (the rest of the output is left out)\n" if more else text

    def _raise_mismatch(self, mismatch: Mismatch) -> NoReturn:
        calls = self._observed.pending(sorted(mismatch.calls, key=lambda call: call.rank))
        if mismatch.position is None:
            report = message_mismatch_report(calls)
        else:
            report = mismatch_report(calls, mismatch.position, mismatch.calls[0].group.members)
        raise CollectiveMismatch(report, calls, self._record())

    def _raise_failed(self) -> NoReturn:
        crashed = [view.rank for view in self._observed.ranks if view.exit_code is not None]
        stacks = {rank: read_stack(self._folder.stack(rank)).own for rank in crashed}
        record = self._record()
        failures = self._observed.failures(stacks, record.outputs)
        raise RankFailed(rank_failed_report(failures, self._observed.waiting), failures, record)

    def _raise_deadlock(self, knot: list[Operation]) -> NoReturn:
        waiting = self._observed.pending(knot)
        cycle = find_cycle(waiting)
        finished = self._observed.returned
        raise Deadlock(deadlock_report(waiting, cycle, finished), waiting, cycle, finished, self._record())

    def _raise_timed_out(self) -> NoReturn:
        computing = [view.rank for view in self._observed.running if view.waiting is None]
        places = {
            rank: "\n".join(f"    at {line_of(place)}" for place in stack.own)
            for rank, stack in self._stacks(computing).items()
        }
        report = timed_out_report(self._request.timeout, places, self._observed.waiting)
        raise TimedOut(report, self._record())
