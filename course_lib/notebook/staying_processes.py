"""Cells on real processes that stay, here or on a Slurm allocation's nodes. What they run: `staying_rank`."""

import atexit
import itertools
import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import cloudpickle

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch import processes, slurm
from course_lib.launch.failures import LaunchError, TimedOut
from course_lib.launch.processes import error_of
from course_lib.launch.run import Run
from course_lib.notebook.cell import Cell
from course_lib.notebook.staying_connections import RankConnections
from course_lib.notebook.staying_engine import RankAnswer
from course_lib.notebook.staying_rank import FOR_EVER, Fetch, Leave, Renew, Reply, RunCell, serve
from course_lib.runtime.communication.wording import ranks_in_words
from course_lib.runtime.processes.cell_watchdog import CellWatchdog
from course_lib.runtime.processes.watchdog import BadEnding
from course_lib.runtime.request import LaunchRequest, per_rank

_START_SECONDS = 120.0
_LEAVE_SECONDS = 0.3
"""What ranks get to leave their cell by themselves, before what waits in a group is freed."""
_GRACE_SECONDS = 3.0
"""What they get then, before their processes are ended."""
_RECORD_SECONDS = 5.0
_RENEW_SECONDS = 60.0
_ALL_LOST = "All ranks have been started anew: their variables are gone."

_ENGINES = {"processes": processes.ranks_of, "slurm": slurm.ranks_of}


class ProcessRanks:
    """See `course_lib.notebook.staying_engine.StayingEngine`."""

    def __init__(self, size: int, cluster: Cluster, timeout: float, seed: int, memory: bool, on: str) -> None:
        self.size = size
        self._request = LaunchRequest(print, (), size, cluster, timeout, seed, None, memory=memory)
        self._on = on
        self._numbers = itertools.count()
        self._outputs = [""] * size
        self._began = time.perf_counter()
        self._start()
        # Where nobody stops them before this process ends.
        atexit.register(self.close)

    def _start(self) -> None:
        self._generation = 0
        self._error: BaseException | None = None
        self._defined: list[list[str]] = [[] for _ in range(self.size)]
        self._connections = RankConnections(
            here=self._on == "processes", silent=lambda rank: self._watch.returned(rank)
        )
        up = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(up,), daemon=True)
        self._thread.start()
        up.wait()
        try:
            self._connections.accept(range(self.size), self._goes_on, _START_SECONDS)
        except BaseException as error:
            self._end()
            raise self._error or error from None

    def _hold(self, up: threading.Event) -> None:
        """Hold the ranks' processes until `_end`. The body of a thread."""
        arguments = (per_rank(range(self.size)), self._connections.address)
        request = replace(self._request, function=serve, arguments=arguments, timeout=FOR_EVER)
        try:
            with _ENGINES[self._on](request, generation=0) as agents:
                self._watch = CellWatchdog(self._request, agents)
                up.set()
                self._watch.follow()
        except BaseException as error:
            self._error = error
        finally:
            up.set()

    def _goes_on(self) -> bool:
        return self._thread.is_alive() and not self._watch.lost

    @property
    def printed(self) -> dict[int, str]:
        """What each rank has printed in the last cell, or so far in the present one."""
        return dict(self._connections.printed)

    def run(
        self, cell: Cell, names: Mapping[int, Mapping[str, Any]], chosen: tuple[int, ...]
    ) -> dict[int, RankAnswer]:
        """Run a cell on some ranks."""
        if not self._goes_on():
            self._raise_lost()
        number = next(self._numbers)
        self._connections.begin(number, chosen)
        replies = self._connections.replies
        written = _pickled(names)
        tasks = {rank: RunCell(number, cell, written.get(rank, b"")) for rank in chosen}
        self._watch.begin(chosen)
        try:
            self._connections.send(tasks)
            self._connections.collect(lambda: self._watch.ending is None and self._goes_on())
            whole = len(replies) == len(chosen) and not any(reply.failed for reply in replies.values())
            ending = self._watch.finish(_RECORD_SECONDS, failed=not whole)
        except KeyboardInterrupt:
            print(*self._recover(number), sep="\n", end="")
            raise
        finally:
            self._keep(replies)
        if not self._goes_on():
            self._raise_lost()
        if ending is not None:
            self._raise(ending, self._recover(number))
        return {rank: RankAnswer(self.printed[rank], replies[rank].value) for rank in chosen}

    def fetch(self, rank: int, name: str) -> Any:
        """A copy of a rank's variable."""
        if name not in self._defined[rank]:
            raise KeyError(name)
        number = next(self._numbers)
        self._connections.begin(number, (rank,))
        self._connections.send({rank: Fetch(number, name)})
        self._connections.collect(self._goes_on, self._request.timeout)
        reply = self._connections.replies.get(rank)
        if reply is None:
            raise TimedOut(f"Rank {rank} did not send {name!r} within {self._request.timeout:g} s.")
        if reply.failed:
            raise BadLaunch(f"{name!r} of rank {rank} cannot be sent: {reply.failed}")
        return pickle.loads(reply.value)

    def defined(self, rank: int) -> list[str]:
        """The names in a rank's namespace."""
        return self._defined[rank]

    def record(self) -> Run:
        """All cells as one run."""
        observed, events, seconds = self._watch.observed()
        return Run(
            results=[None] * self.size,
            outputs=[earlier + self.printed.get(rank, "") for rank, earlier in enumerate(self._outputs)],
            events=events,
            cluster=self._request.cluster,
            engine=self._on,
            seconds=seconds,
            wall_seconds=time.perf_counter() - self._began,
            unmatched=observed.unmatched(),
        )

    def close(self) -> None:
        """End the ranks."""
        atexit.unregister(self.close)
        self._end()

    # --- When a cell has come to a bad end

    def _recover(self, number: int) -> list[str]:
        """Have all ranks leave the cell, and meet again. Returns what has been lost, in sentences."""
        try:
            freed = self._leave(number)
            is_open = self._watch.settle(_RECORD_SECONDS)
            dead = self._watch.dead
            if not self._goes_on():
                raise _CannotMeet
            return self._renew(dead) if dead or freed or is_open else []
        except (_CannotMeet, KeyboardInterrupt):
            self._end()
            self._start()
            return [_ALL_LOST]

    def _leave(self, number: int) -> bool:
        """Whether somebody had to be freed who waited in a group."""
        there = self._connections
        there.order(Leave(number, aborting=False))
        there.collect(self._goes_on, _LEAVE_SECONDS)
        if not there.missing:
            return False
        there.order(Leave(number, aborting=True))
        there.collect(self._goes_on, _GRACE_SECONDS)
        if there.missing:
            self._watch.kill(there.missing, _GRACE_SECONDS)
        return True

    def _renew(self, dead: list[int]) -> list[str]:
        """Connect all groups anew, with new processes in the places of those that have died."""
        self._generation += 1
        self._keep(self._connections.replies)
        self._watch.forget_open()
        self._connections.drop(dead)
        self._watch.replace(dead, self._generation)
        number, everyone = next(self._numbers), range(self.size)
        printed = self._connections.printed
        self._connections.begin(number, everyone)
        self._connections.printed = printed
        task = Renew(number, self._generation)
        self._connections.send({rank: task for rank in everyone if rank not in dead})
        try:
            self._connections.accept(dead, self._goes_on, _RENEW_SECONDS)
        except TimedOut:
            raise _CannotMeet from None
        self._connections.send(dict.fromkeys(dead, task))
        self._connections.collect(self._goes_on, _RENEW_SECONDS)
        replies = self._connections.replies
        if len(replies) < self.size or any(reply.failed for reply in replies.values()):
            raise _CannotMeet
        self._keep(replies)
        return _in_words(dead, sorted({members for reply in replies.values() for members in reply.value}))

    def _raise(self, ending: BadEnding, lost: list[str]) -> NoReturn:
        report = "\n\n".join([ending.report, *lost])
        raise error_of(replace(ending, report=report), self.record())

    def _raise_lost(self) -> NoReturn:
        """No more can come of any rank: start others, and say why."""
        error, said = self._error, self._watch.lost
        self._end()
        self._start()
        if isinstance(error, LaunchError):
            raise error
        raise BadLaunch("\n\n".join(filter(None, [said or str(error or "The ranks have ended."), _ALL_LOST])))

    def _keep(self, replies: Mapping[int, Reply]) -> None:
        """Note what the ranks have defined by now."""
        for rank, reply in replies.items():
            self._defined[rank] = reply.defined

    def _end(self) -> None:
        self._watch.over = True
        self._thread.join(_START_SECONDS)
        self._connections.close()


class _CannotMeet(Exception):
    """The ranks' groups cannot be connected anew."""


def _pickled(names: Mapping[int, Mapping[str, Any]]) -> dict[int, bytes]:
    """Each rank's names; those that are the same for several ranks are written once."""
    written: dict[tuple[tuple[str, int], ...], bytes] = {}
    found = {}
    for rank, own in names.items():
        if own:
            key = tuple((name, id(value)) for name, value in own.items())
            found[rank] = written.get(key) or written.setdefault(key, cloudpickle.dumps(dict(own)))
    return found


def _in_words(dead: list[int], gone: Iterable[tuple[int, ...]]) -> list[str]:
    """What is not there any more."""
    said = []
    if dead:
        process = "a new process is in its place" if len(dead) == 1 else "new processes are in their places"
        said.append(f"The variables of {ranks_in_words(dead)} are gone: {process}. The others have theirs.")
    if groups := list(gone):
        told = "; ".join(ranks_in_words(members) for members in groups)
        said.append(f"Groups made by new_group that one of its members has lost are gone, of {told}.")
    return said
