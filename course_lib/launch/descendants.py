"""Ending every process below this one."""

import os
import signal
from contextlib import suppress
from pathlib import Path


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
