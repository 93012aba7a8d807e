"""The process of a kernel that has imported torch, and forks the agents of this machine."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

from course_lib.errors import BadLaunch

_START_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from course_lib.runtime.processes.node_agent import serve_here
serve_here(int(sys.argv[1]))
"""

_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Fewer, larger pages to copy halve the time of a fork. Ranks get the launcher's environment instead."""


class WarmProcess:
    """The process that has imported torch and forks the agents of this machine."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            code = [_START_CODE, str(theirs.fileno()), json.dumps([str(folder) for folder in sys.path])]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", *code],
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

    def fork_agent(self, connection: socket.socket) -> None:
        """Have it fork an agent that speaks over this connection."""
        socket.send_fds(self._control, [b"a"], [connection.fileno()])

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


def warm_process() -> WarmProcess:
    """The one of this process, started at the first launch; a new one if something has killed it."""
    global _warm
    with _lock:
        if _warm is None or not _warm.usable:
            if _warm is not None:
                _warm.stop()
            _warm = WarmProcess()
            atexit.register(_warm.stop)
        return _warm
