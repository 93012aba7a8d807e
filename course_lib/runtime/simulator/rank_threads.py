"""Threads that are ranks: how they start, how they are ended, and what makes them cheap."""

import _posixsubprocess
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from course_lib.runtime.importing import TIMES_MORE, importing
from course_lib.runtime.simulator.engine import RankStopped
from course_lib.runtime.simulator.replaced import replaced

RUN_ENDED = "The rank that this call belongs to has ended, and the run with it."
"""What is said to code that has kept an operation or a group beyond its run."""

GRACE_SECONDS = 1.0
"""Real time that a stopped rank has to unwind before it is left behind."""

IMPORT_SECONDS = 10.0
"""Real time that a rank which is to be stopped has to import what it has begun to import."""

_RANK = "rank "
"""What the name of a rank's thread begins with."""


def rank_thread(rank: int, body: Callable[[], None]) -> threading.Thread:
    """The thread of a rank, not started yet. PyTorch computes in it, and in no other beside it."""

    def compute_alone() -> None:
        # OpenMP and MKL keep this number once a thread. With more they would wait for each other, busily, on
        # the one core that ranks stay on: milliseconds for a product of microseconds.
        torch.set_num_threads(1)
        body()

    return threading.Thread(target=compute_alone, name=f"{_RANK}{rank}", daemon=True)


def frame_of(thread: threading.Thread) -> FrameType | None:
    """Where a thread is in its code; None if it does not run."""
    return sys._current_frames().get(thread.ident) if thread.ident else None


def over_in_time(
    over: threading.Semaphore, seconds: float, at_work: Callable[[], threading.Thread | None]
) -> bool:
    """Whether a run is over after so many seconds, in which importing does not count. at_work: the thread
    that holds the turn.
    """
    for _ in range(1 + TIMES_MORE):
        if over.acquire(timeout=seconds):
            return True
        thread = at_work()
        if thread is None or not importing(frame_of(thread)):
            break
    return False


def let_it_import(thread: threading.Thread) -> None:
    """Wait until a thread that is to be stopped has imported what it has begun to import."""
    deadline = time.monotonic() + IMPORT_SECONDS
    while importing(frame_of(thread)) and time.monotonic() < deadline:
        thread.join(0.05)


def interrupt(thread: threading.Thread) -> None:
    """Raise RankStopped in a thread that computes. Python code ends at once, a C call when it returns, an
    import when it is through.
    """
    let_it_import(thread)
    deadline = time.monotonic() + GRACE_SECONDS
    while thread.ident and thread.is_alive() and time.monotonic() < deadline:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(RankStopped)
        )
        thread.join(0.05)
    if thread.is_alive():
        forget_what_is_pending()


class _Nothing(BaseException):
    """Raised to be caught at once."""


def forget_what_is_pending() -> None:
    """Let the interpreter believe that no thread has an exception to come. A thread that waits in C for ever
    never takes its own, and until somebody takes one, other threads of CPython 3.11 and 3.12 run into an
    endless loop as soon as they are traced or profiled. The thread's own stays, should it ever come back.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Nothing)
        )
        for _ in range(1000):
            pass
    except _Nothing:
        pass


@dataclass(frozen=True, slots=True)
class Scheduling:
    """On which cores a thread may run, and by which policy of the system's scheduler."""

    cores: frozenset[int]
    policy: int

    @classmethod
    def present(cls) -> "Scheduling":
        """That of this thread."""
        return cls(frozenset(os.sched_getaffinity(0)), os.sched_getscheduler(0))

    def enter(self) -> None:
        """Make it this thread's."""
        os.sched_setscheduler(0, self.policy, os.sched_getparam(0))
        os.sched_setaffinity(0, self.cores)


_before_turns: Scheduling | None = None
"""That of the thread which has started the ranks of this process, once it has."""


def _free_forked_process() -> None:
    """Let what a rank forks, such as a DataLoader's worker, run on all cores, beside the rank."""
    if _before_turns is not None and threading.current_thread().name.startswith(_RANK):
        _before_turns.enter()


if hasattr(os, "sched_setaffinity"):
    os.register_at_fork(after_in_child=_free_forked_process)


@contextmanager
def cheap_turns() -> Iterator[None]:
    """Threads started here pass the turn faster, where the system lets us choose (Linux).

    They stay on the core that this thread is on, for only one of them ever runs; and their policy is
    SCHED_BATCH, with which a thread that is woken does not interrupt the one that woke it, which has not let
    go of the interpreter yet. Together that makes a turn three times as fast.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    global _before_turns
    before = _before_turns = Scheduling.present()
    core = ctypes.CDLL(None).sched_getcpu()
    cores = frozenset({core}) if core in before.cores else before.cores
    policy = os.SCHED_BATCH if before.policy == os.SCHED_OTHER else before.policy
    try:
        Scheduling(cores, policy).enter()
        yield
    finally:
        before.enter()


@contextmanager
def free_programs() -> Iterator[None]:
    """Let programs that a rank starts, spawned workers too, run on all cores: they call no hook of a fork."""
    fork_exec = _unpinned(_posixsubprocess.fork_exec)
    with (
        replaced(_posixsubprocess, fork_exec=fork_exec),
        replaced(subprocess, _fork_exec=fork_exec),
        # By which Python 3.13 starts what is named with its folder.
        replaced(os, posix_spawn=_unpinned(os.posix_spawn)),
    ):
        yield


def _unpinned(start: Callable[..., int]) -> Callable[..., int]:
    """A way to start a program, which in a rank's thread starts it on all cores."""

    def start_unpinned(*arguments: Any, **options: Any) -> int:
        if _before_turns is None or not threading.current_thread().name.startswith(_RANK):
            return start(*arguments, **options)
        present = Scheduling.present()
        _before_turns.enter()
        try:
            return start(*arguments, **options)
        finally:
            present.enter()

    return start_unpinned


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and only at what the run itself has made.

    A run allocates fast and keeps nearly everything (its log), and torch alone has half a million objects.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
