"""Processes below this one: ending them all, adopting them, and being one that ends with its parent.

Run as a file, `python process_tree.py SECONDS COMMAND...`, it runs a command of which nothing is left when
it has ended, or when whoever holds the other end of standard input has let go.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""From <linux/prctl.h>."""


def end_with(parent: int) -> None:
    """Die when the parent dies, whose process id the caller has asked for before the fork.

    More exactly, when the thread ends that has forked this process.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def be_scheduled_as_batch() -> None:
    """Have no thread of this process take the core from another when it wakes up, see sched(7).

    Gloo's thread asks again and again for a lock that the sending thread holds. Were it to take that thread's
    core, as a thread that has just been woken does, it would ask in vain until its time slice ends, 4 ms.
    """
    # A sandbox may forbid it; then messages are slower and nothing else changes.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER)


def end_descendants() -> None:
    """Kill every descendant, and wait for it.

    In a process that adopts orphans (PR_SET_CHILD_SUBREAPER) the children of a killed process become its own,
    so they follow, whatever session they have made for themselves.
    """
    while True:
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def run_guarded(command: Sequence[str], seconds: float) -> int:
    """Run a command until it ends, or until standard input does; then nothing that it has started is left.

    seconds: how long it has to end by itself when it is asked to. Returns its exit status.
    """
    adopt_orphans()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            if sys.stdin in select.select([sys.stdin, woken], [], [])[0]:
                process.terminate()
                break
            os.read(woken, 4096)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:
        end_descendants()
    return process.wait()


def sleeps(pid: int) -> bool:
    """Whether the main thread of a process of this machine sleeps, see proc_pid_stat(5)."""
    try:
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "S"


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except FileNotFoundError:
        # Not every kernel has this file.
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == own]


def _parent(stat: Path) -> int | None:
    """The parent's process id, from /proc/PID/stat; None if the process is gone."""
    try:
        # The name of the program, in brackets, may itself hold brackets and spaces.
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _prctl(option: int, value: int = 1) -> None:
    """A Linux call about this process, see prctl(2); elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    _status = run_guarded(sys.argv[2:], float(sys.argv[1]))
    sys.exit(_status if _status >= 0 else 128 - _status)
