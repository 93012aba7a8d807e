"""The launcher's end: the warm process, and the ranks of one launch."""

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from course_lib.errors import BadLaunch
from course_lib.runtime.processes.launch_folder import LaunchFolder

_END_SECONDS = 10.0
"""How long to wait until all processes of a launch are gone. They are killed, so it takes milliseconds."""

_START_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from course_lib.runtime.processes.fork_server import serve
serve(int(sys.argv[1]))
"""


_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Fewer, larger pages to copy halve the time of a fork. Ranks get the launcher's environment instead."""


class RankForked(NamedTuple):
    """A rank's process has been started."""

    rank: int
    pid: int


class RankEnded(NamedTuple):
    """A rank's process has ended: exit code, or minus the number of the signal that killed it."""

    rank: int
    code: int


class Keeper:
    """The process that holds a launch's ranks, as the launcher sees it. It has a descriptor to wait on."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._rest = b""
        self._processes: dict[int, int] = {}
        self.lost = False
        """Whether the keeper has gone, and with it every rank."""
        self.last_words = (
            "The process that keeps the ranks has ended, and with it all ranks: something on this "
            "machine killed it, perhaps because memory ran out."
        )
        """What to say if it is lost."""

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_begun(self) -> bool:
        """Wait until it forks ranks; False if it never does."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.poll()
        return not _has_closed(self._connection)

    def read(self) -> list[RankForked | RankEnded]:
        """What has become of the ranks since the last call."""
        try:
            fresh = self._connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            fresh = b""
        self.lost = not fresh
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        reports = [_report(line.decode()) for line in lines]
        self._processes.update(report for report in reports if isinstance(report, RankForked))
        return reports

    def show_stacks(self) -> None:
        """Have every rank write its stack to its file."""
        with contextlib.suppress(BrokenPipeError):
            self._connection.sendall(b"s")

    def all_sleep(self, ranks: Sequence[int]) -> bool:
        """Whether the main threads of these ranks sleep."""
        return all(sleeps(self._processes.get(rank)) for rank in ranks)

    def end(self) -> None:
        """Kill every process of the launch, and wait until they are gone."""
        self._connection.settimeout(_END_SECONDS)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(1 << 16):
                pass
        self._connection.close()


def sleeps(pid: int | None) -> bool:
    """Whether the main thread of a process of this machine sleeps, see proc_pid_stat(5)."""
    try:
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] == "S"


def _report(line: str) -> RankForked | RankEnded:
    what, rank, number = line.split()
    return (RankForked if what == "forked" else RankEnded)(int(rank), int(number))


@contextmanager
def forked_ranks(folder: LaunchFolder) -> Iterator[Keeper]:
    """Start the ranks of a launch; at the end of the block no process of it is left, however it ends."""
    keeper = _started_keeper(folder)
    try:
        yield keeper
    finally:
        keeper.end()


def _started_keeper(folder: LaunchFolder) -> Keeper:
    """A keeper that has begun to fork ranks. A warm process that has just been killed is replaced once."""
    for _ in range(2):
        ours, theirs = socket.socketpair()
        keeper = Keeper(ours)
        try:
            with theirs, contextlib.suppress(BrokenPipeError):
                _warm_process().start_keeper(folder, theirs)
            if keeper.has_begun():
                return keeper
        except BaseException:
            keeper.end()
            raise
        keeper.end()
    raise BadLaunch(
        "The process that ranks are started from was killed while it started them, perhaps because memory "
        "ran out. Launch fewer ranks, or close other programs."
    )


class WarmProcess:
    """The process that has imported torch and forks the ranks."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _START_CODE,
                    str(theirs.fileno()),
                    json.dumps([str(folder) for folder in sys.path]),
                ],
                pass_fds=[theirs.fileno()],
                env=os.environ | _HUGE_PAGES,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C in a terminal and an interrupt from Jupyter are for the launcher alone.
                start_new_session=True,
            )
            theirs.close()
            if not self._control.recv(16):
                self._process.wait()
                errors.seek(0)
                raise BadLaunch(
                    f"The process that ranks are started from ended at once. It said:\n"
                    f"{errors.read().decode(errors='replace').strip()}\n"
                    f'Check that {sys.executable} -c "import torch, course_lib" works.'
                )

    @property
    def usable(self) -> bool:
        """Whether it lives, and belongs to this process and not to one that this was forked from."""
        return self._owner == os.getpid() and not _has_closed(self._control)

    def start_keeper(self, folder: LaunchFolder, connection: socket.socket) -> None:
        """Have it fork a keeper, which forks the ranks."""
        socket.send_fds(self._control, [os.fsencode(folder.path)], [connection.fileno()])

    def stop(self) -> None:
        """End it; launches that are under way go on."""
        if self._owner == os.getpid():
            self._control.close()
            self._process.wait()


def _has_closed(connection: socket.socket) -> bool:
    """Whether the other side is gone and nothing that it said is left to read."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


_lock = threading.Lock()
_warm: WarmProcess | None = None


def _warm_process() -> WarmProcess:
    """The one of this process, started at the first launch; a new one if something has killed it."""
    global _warm
    with _lock:
        if _warm is None or not _warm.usable:
            if _warm is not None:
                _warm.stop()
            _warm = WarmProcess()
            atexit.register(_warm.stop)
        return _warm
