"""Threads that are ranks: how they start, how they are ended, and what makes them cheap."""

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class RankStopped(BaseException):
    """Unwinds a rank when its run is over. Not an Exception, so that `except Exception` lets it pass."""


RUN_ENDED = "The rank that this call belongs to has ended, and the run with it."
"""What is said to code that has kept an operation or a group beyond its run."""

GRACE_SECONDS = 1.0
"""Real time that a stopped rank has to unwind before it is left behind."""


def rank_thread(rank: int, body: Callable[[], None]) -> threading.Thread:
    """The thread of a rank, not started yet."""
    return threading.Thread(target=body, name=f"rank {rank}", daemon=True)


def frame_of(thread: threading.Thread) -> FrameType | None:
    """Where a thread is in its code; None if it does not run."""
    return sys._current_frames().get(thread.ident) if thread.ident else None


def interrupt(thread: threading.Thread) -> None:
    """Raise RankStopped in a thread that computes. Python code ends at once, a C call when it returns."""
    deadline = time.monotonic() + GRACE_SECONDS
    while thread.ident and thread.is_alive() and time.monotonic() < deadline:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(RankStopped)
        )
        thread.join(0.05)


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
    allowed, policy, param = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    present = ctypes.CDLL(None).sched_getcpu()
    os.sched_setaffinity(0, {present} if present in allowed else allowed)
    if policy == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, param)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, param)
        os.sched_setaffinity(0, allowed)


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
