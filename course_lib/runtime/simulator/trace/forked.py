"""A function computed by a forked copy of this process, while this one goes on with something else.

The copy starts from all that this process knows, and nothing of what it does there comes back but what the
function returns. Threads of this process are not copied, though locks that they hold are.
"""

import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from course_lib.runtime.processes.process_tree import end_with
from course_lib.runtime.simulator.isolation import replaced

Answer = Callable[[float], Any]
"""Seconds to wait -> what the function has returned; None if there is no answer, whatever the reason."""

_CHUNK = 1 << 20


def has_spare_core() -> bool:
    """Whether a second process can run beside this one, and the system lets us know (Linux)."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


@contextmanager
def forked(compute: Callable[[], Any]) -> Iterator[Answer]:
    """Compute in a copy of this process, which ends with the block at the latest.

    There is no answer if the function raises, if what it returns cannot be pickled, if the process is killed
    or late, or if there can be no other process.
    """
    with ExitStack() as end:
        with _interrupts_held():
            try:
                pid, reading = _fork(compute)
            except OSError:
                # The system has no more processes or files for us.
                answer: Answer = _no_answer
            else:
                end.callback(_end, pid, reading)
                answer = partial(_read, reading)
        yield answer


def _no_answer(seconds: float) -> None:
    return None


def _fork(compute: Callable[[], Any]) -> tuple[int, int]:
    """Start the copy. Returns its process id, and where to read its answer."""
    this = os.getpid()
    reading, writing = os.pipe()
    # Python 3.12 warns of forks beside threads. Not `catch_warnings`: after it, warnings that were shown
    # are shown once more. The copy needs no lock that a thread of a notebook's kernel would hold.
    quiet = [("ignore", None, DeprecationWarning, None, 0), *warnings.filters]
    try:
        with replaced(warnings, "filters", quiet):
            pid = os.fork()
            if pid == 0:
                _be_copy(this, compute, reading, writing)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, reading


def _be_copy(parent: int, compute: Callable[[], Any], reading: int, writing: int) -> NoReturn:
    """Compute, answer, and end without a trace in the parent's streams and exit handlers."""
    try:
        # A notebook's interrupt goes to all processes of its kernel. The parent ends this one then.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        end_with(parent)
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(compute(), pipe, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def _read(reading: int, seconds: float) -> Any:
    """The answer of the copy."""
    deadline = time.monotonic() + seconds
    chunks = []
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
    # Cut short, it raises EOFError or UnpicklingError; and it may name what only the copy has imported.
    with suppress(Exception):
        return pickle.loads(b"".join(chunks))
    return None


def _end(pid: int, reading: int) -> None:
    """Kill the copy, unless it has ended, and leave nothing of it."""
    os.close(reading)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let an interrupt come at the end of the block: not while nobody knows yet of a process to end."""
    if threading.current_thread() is not threading.main_thread():
        # No other thread is ever interrupted.
        yield
        return
    came = threading.Event()
    handler = signal.signal(signal.SIGINT, lambda *_: came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came.is_set():
        signal.raise_signal(signal.SIGINT)
