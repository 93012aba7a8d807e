"""What all processes of a submission take together, and the bounds that it must stay within.

The kernel's own limits (`resource`) hold for one process each; control groups, which hold for many, are
seldom at an ordinary user's disposal. So the first process in each inner sandbox adds up what /proc tells.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the processes in one inner sandbox may take together."""

    memory: int = 4096 * _MEBIBYTE
    """Bytes; memory that is shared, as after a fork, counts once."""
    processes: int = 128
    """Threads count too."""
    cpu_seconds: float = 300.0
    files: int = 512 * _MEBIBYTE
    """Bytes in /tmp and /dev/shm; writing more fails."""
    names: int = 20_000
    """Files and folders there."""

    @property
    def of_a_rank(self) -> Self:
        """What one of several ranks may take, which have sandboxes of their own and run at the same time."""
        shared = {name: getattr(self, name) // 8 for name in ("memory", "files", "names")}
        return replace(self, **shared)


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes take at a moment."""

    memory: int
    processes: int
    cpu_seconds: float


def excess(usage: Usage, bounds: Bounds) -> str:
    """What is too much, for people; empty if nothing is."""
    if usage.memory > bounds.memory:
        return f"stopped, for it took more than {bounds.memory // _MEBIBYTE} MiB of memory"
    if usage.processes > bounds.processes:
        return f"stopped, for it ran more than {bounds.processes} processes and threads"
    if usage.cpu_seconds > bounds.cpu_seconds:
        return f"stopped, for it used more than {bounds.cpu_seconds:g} s of processor time"
    return ""


class Meter:
    """Measures what all processes of this process space take, this one, the first, left out."""

    def __init__(self, enough: int) -> None:
        """enough: bytes of memory up to which a quick look will do, in which shared memory counts more than
        once.
        """
        self._enough = enough
        self._due, self._own, self._memory = 0.0, 0, 0

    def measure(self) -> Usage:
        """What they take now."""
        processes, ticks, own = 0, 0, 0
        folders = list(_others())
        for folder in folders:
            # A process may end between two looks.
            with suppress(OSError, ValueError):
                # The name of the program, in brackets, may itself hold brackets and spaces.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                # Its own time, and that of the children that it has waited for.
                ticks += sum(map(int, fields[11:15]))
                processes += int(fields[17])
                own += _own(folder)
        return Usage(self._shared_once(folders, own), processes, ticks / _TICKS)

    def _shared_once(self, folders: Sequence[Path], own: int) -> int:
        """own: their memory, where what is shared counts more than once.

        The kernel walks through all pages for it: of many ranks, forked from a process that has loaded CUDA's
        libraries, that takes 0.1 s, more than they compute. So it is asked for a tenth of the time at most,
        but where they have grown.
        """
        if own <= self._enough:
            return own
        begin = time.monotonic()
        if begin >= self._due or own > self._own + self._enough // 8:
            self._memory, self._own = sum(map(_proportional, folders)), own
            end = time.monotonic()
            self._due = end + 9 * (end - begin)
        return self._memory


def _others() -> Iterator[Path]:
    return (Path("/proc", name) for name in os.listdir("/proc") if name.isdigit() and name != "1")


def _own(folder: Path) -> int:
    """A process's memory in bytes, without pages of files, which would be there anyway."""
    status = (folder / "status").read_text()
    return sum(int(kibibytes) * 1024 for kibibytes in _OWN.findall(status))


_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+)", re.MULTILINE)


def _proportional(folder: Path) -> int:
    """A process's memory in bytes, of each shared page its part; the whole of it if that is not to be had."""
    with suppress(OSError, ValueError):
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError):
        return _own(folder)
    return 0
