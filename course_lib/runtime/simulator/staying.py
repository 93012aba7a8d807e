"""Simulated ranks that stay: between two tasks each waits in its thread, with its groups and its clock."""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from course_lib.runtime.communication.callsite import stack_lines
from course_lib.runtime.communication.errors import PendingCall, RankTraceback
from course_lib.runtime.communication.events import SourceLine
from course_lib.runtime.communication.rank_traceback import rank_traceback
from course_lib.runtime.request import LaunchRequest
from course_lib.runtime.simulator.backend import as_with_gloo
from course_lib.runtime.simulator.engine import Ending, RankStopped
from course_lib.runtime.simulator.open_buffers import OpenBuffers, open_buffers
from course_lib.runtime.simulator.rank_globals import SwappedGlobals
from course_lib.runtime.simulator.rank_main import RankMains
from course_lib.runtime.simulator.rank_threads import GRACE_SECONDS, forget_what_is_pending, let_it_import
from course_lib.runtime.simulator.thread_driver import ThreadDriver
from course_lib.runtime.simulator.virtual_time import VirtualTime

Task = Callable[[], None]


class RanksLeftBehind(RuntimeError):
    """A rank did not stop when it was told to; there is no use for the others without it."""


class _StayingDriver(ThreadDriver):
    """A driver whose ranks ask for the next task where others end."""

    def __init__(self, virtual_time: VirtualTime, on_resume: Callable[[int], None]) -> None:
        super().__init__(virtual_time, on_resume)
        self._tasks: dict[int, Task] = {}
        self.over = self._broken_off = False

    def begin(self, bodies: list[Task], timeout: float) -> None:
        """Start the ranks; returns when each has asked for its first task."""
        try:
            self._start(bodies)
            self._go_on(timeout)
        finally:
            self._break_off()

    def do(self, tasks: Mapping[int, Task], timeout: float) -> Ending:
        """Have some ranks do a task each. However it ends, all wait for the next one afterwards."""
        if self._broken_off:
            # Not before: who reports on the last task asks what was open.
            self.virtual_time.forget_open()
            self._broken_off = False
        self._tasks = dict(tasks)
        self.stacks, self.waiting = {}, []
        for rank in tasks:
            self.virtual_time.due(rank)
        try:
            return self._go_on(timeout)
        finally:
            self.stacks = self._stacks()
            self.waiting = self.virtual_time.waiting()
            self._break_off()

    def end(self) -> None:
        """Let every rank's thread return."""
        self.over = self._stopping = True
        for lock, thread in zip(self._locks, self._threads, strict=True):
            lock.release()
            thread.join(GRACE_SECONDS)

    def next_task(self, rank: int) -> Task:
        """What a rank does next. It waits until there is something."""
        if self._stopping:
            # Not finished: who reports on the task asks who had come to its end.
            self._all_done.release()
        else:
            self._take_turns(rank, self.virtual_time.end_computing(rank))
            self.virtual_time.ranks[rank].finished = True
            self._pass_turn_on()
        self._locks[rank].acquire()
        while not (self.over or rank in self._tasks):
            # The task was taken back before the rank had its turn.
            self._all_done.release()
            self._locks[rank].acquire()
        if self.over:
            raise RankStopped
        self._take_turn(rank)
        return self._tasks.pop(rank)

    def _break_off(self) -> None:
        """Unwind what ranks are still at, one after another, to where they ask for the next task."""
        if self.virtual_time.all_done:
            return
        self._stopping = True
        holder = self.running
        order = sorted(range(len(self._threads)), key=lambda rank: rank != holder)
        try:
            for rank in order:
                if not self.virtual_time.ranks[rank].finished:
                    self._stop_task(rank, computes=rank == holder)
        finally:
            self._stopping, self.running = False, -1
            self._broken_off = True

    def _stop_task(self, rank: int, computes: bool) -> None:
        self._tasks.pop(rank, None)
        thread = self._threads[rank]
        if computes:
            let_it_import(thread)
        else:
            self._locks[rank].release()
        deadline = time.monotonic() + GRACE_SECONDS
        while not self._all_done.acquire(timeout=0.05):
            if time.monotonic() > deadline or not thread.is_alive():
                self.over = True
                forget_what_is_pending()
                raise RanksLeftBehind(
                    f"Rank {rank} is in a call that cannot be stopped, such as a long time.sleep. The ranks "
                    "have been left to themselves: start others."
                )
            if computes:
                _raise_later(thread, RankStopped)
        if computes:
            # It may have come to its end by itself a moment ago.
            _raise_later(thread, None)
            forget_what_is_pending()


def _raise_later(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Have a thread's next line raise this; None: nothing any more."""
    pending = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), pending)


class StayingRanks:
    """The ranks of a launch that stay until `close`. One task at a time, given by one thread."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request
        self.virtual_time = VirtualTime(request.cluster, request.ranks)
        self.failures: list[RankTraceback] = []
        """Of the last task."""
        self._globals = SwappedGlobals(request.cluster, request.ranks, request.seed)
        self._driver = _StayingDriver(self.virtual_time, self._globals.resume)
        self._buffers: dict[int, OpenBuffers] = {}
        self._mains = RankMains(request, self._driver, calls=lambda rank: lambda: partial(self._live, rank))
        with self._at_work():
            self._driver.begin([self._mains.main(rank) for rank in range(request.ranks)], request.timeout)

    def do(self, tasks: Mapping[int, Task]) -> Ending:
        """Have some ranks do a task each, until all are done, none can go on, or time is over."""
        self.failures = []
        with self._at_work():
            ending = self._driver.do(tasks, self.request.timeout)
        if ending is not Ending.FINISHED or self.failures:
            for buffers in self._buffers.values():
                buffers.forget()
        return ending

    def close(self) -> None:
        """End the ranks' threads."""
        if not self._driver.over:
            with self._at_work():
                self._driver.end()

    @property
    def outputs(self) -> list[str]:
        """What each rank has printed since it began."""
        return self._globals.outputs

    @property
    def waiting(self) -> list[PendingCall]:
        """What each rank waited for when the last task broke off."""
        return self._driver.waiting

    @property
    def places(self) -> dict[int, tuple[SourceLine, ...]]:
        """Where the rank was that computed when the last task broke off."""
        return {rank: stack_lines(frame) for rank, frame in self._driver.stacks.items()}

    def _at_work(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(self._globals.entered())
        stack.enter_context(as_with_gloo())
        return stack

    def _live(self, rank: int) -> None:
        self._buffers[rank] = open_buffers.get()
        while True:
            try:
                self._driver.next_task(rank)()
            except RankStopped:
                if self._driver.over:
                    raise
            except BaseException as error:
                self.failures.append(rank_traceback(rank, error))
