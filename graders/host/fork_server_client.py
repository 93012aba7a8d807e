"""Starting and commanding `graders.guest.fork_server`: the side that holds the grader."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from course_lib.library_folders import library_folders
from course_lib.scratch import scratch_folder
from graders.isolation.backends import backend_here, sandbox_environment
from graders.isolation.usage import Bounds
from graders.protocol.framing import MOST_ORDER_BYTES

START_SECONDS = 120.0
"""A server that has not imported PyTorch by then never will."""
_ENDING_SECONDS = 5.0
_ROOT = str(Path(__file__).parents[2])


class SandboxFailed(RuntimeError):
    """The sandbox itself does not work here; the message says why."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that the server has forked: its socket, and its id as the server knows it."""

    server: "ForkServer"
    pid: int
    channel: socket.socket

    def end(self) -> str:
        """Kill it with all its descendants; returns how it ended."""
        return end_all([self])[0]


def end_all(processes: Sequence[Process]) -> list[str]:
    """Kill processes of one server, each with all its descendants; returns how they ended."""
    for process in processes:
        process.channel.close()
    if not processes:
        return []
    try:
        order = {"do": "end", "pids": [process.pid for process in processes]}
        return list(processes[0].server.order(order)["ended"])
    except SandboxFailed:
        return ["killed, together with the process that started it"] * len(processes)


def acquire() -> "ForkServer":
    """A fork server for a submission: one for all of them if its processes can isolate themselves.

    Otherwise a fresh one, for processes of one submission can reach each other and what they leave behind.
    Raises SandboxFailed.
    """
    global _shared
    with _acquiring:
        if _shared is not None and _shared.alive and _shared.backend == backend_here():
            return _shared
        server = start()
        if not server.no_namespaces:
            if _shared is not None:
                _shared.close()
            _shared = server
        return server


def start() -> "ForkServer":
    """A new fork server. Raises SandboxFailed."""
    ours, theirs = control_sockets()
    with theirs:
        process = StartedProcess(theirs)
    return ForkServer(ours, process)


def control_sockets() -> tuple[socket.socket, socket.socket]:
    """The two ends between which orders go. Of packets: each order and each answer arrives whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def share(server: "ForkServer") -> None:
    """Let this one be the one for all, if its processes can isolate themselves; else it ends."""
    global _shared
    if server.no_namespaces:
        server.close()
    else:
        _shared = server


def release(server: "ForkServer") -> None:
    """Give a server back: it ends, unless it is the one for all."""
    if server is not _shared:
        server.close()


@atexit.register
def _close_shared() -> None:
    if _shared is not None:
        _shared.close()


_shared: "ForkServer | None" = None
_acquiring = threading.Lock()


class ServerProcess(Protocol):
    """The process of a fork server, however it was started."""

    @property
    def alive(self) -> bool: ...
    def end(self) -> str:
        """Wait for its end, which it has been told of, or bring it about; returns its last words."""
        ...


class StartedProcess:
    """A new program in the outer sandbox, which imports PyTorch itself."""

    def __init__(self, control: socket.socket) -> None:
        # Where no sandbox gives it a /tmp of its own.
        self._scratch = ExitStack()
        scratch = str(self._scratch.enter_context(scratch_folder()))
        self.popen = subprocess.Popen(
            _command(scratch),
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env=sandbox_environment(backend_here().temporary or scratch),
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def end(self) -> str:
        """See `ServerProcess`."""
        try:
            _, errors = self.popen.communicate(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            _, errors = self.popen.communicate()
        self._scratch.close()
        said: list[str] = errors.decode(errors="replace").strip().splitlines()
        return said[-1] if said else ""


class ForkServer:
    """A running `graders.guest.fork_server` and the socket over which it takes orders."""

    def __init__(self, control: socket.socket, process: ServerProcess) -> None:
        """Wait until it is ready. Raises SandboxFailed."""
        self.backend = backend_here()
        self.process = process
        self._control = control
        self._control.settimeout(START_SECONDS)
        self._ordering = threading.Lock()
        self._last_words = ""
        self._closed = False
        self.no_namespaces = str(json.loads(self._receive())["no_namespaces"])
        """Why its processes cannot isolate themselves; empty if they do."""

    @property
    def alive(self) -> bool:
        return not self._closed and self.process.alive

    def fork(self, bounds: Bounds) -> Process:
        """Start a process for a submission."""
        ours, theirs = socket.socketpair()
        with theirs:
            answer = self.order({"do": "fork", "bounds": asdict(bounds)}, theirs.fileno())
        if "failed" in answer:
            ours.close()
            raise SandboxFailed(f"No process can be started for a submission: {answer['failed']}")
        return Process(self, answer["pid"], ours)

    def order(self, order: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """Give an order and return its answer. Raises SandboxFailed if the server is gone."""
        with self._ordering:
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
            except OSError as error:
                raise self._gone() from error
            return dict(json.loads(self._receive()))

    def close(self) -> None:
        """End the server and everything that it started."""
        if self._closed:
            return
        self._closed = True
        self._control.close()
        self._last_words = self.process.end()

    def _receive(self) -> bytes:
        try:
            answer = self._control.recv(MOST_ORDER_BYTES)
        except OSError as error:
            raise self._gone() from error
        if not answer:
            raise self._gone()
        return answer

    def _gone(self) -> SandboxFailed:
        self.close()
        return SandboxFailed(
            f"The process that runs submissions ended, so nothing can be graded here: "
            f"{self._last_words or 'it gave no reason'}"
        )


def _command(scratch: str) -> list[str]:
    """-I: no PYTHON* variables, and above all no modules from the current folder."""
    # Whichever way this process has found the graders and the libraries, the server finds the same.
    start = f"from graders.guest.fork_server import main; main({backend_here().carries_namespaces})"
    path = f"sys.path[:] = dict.fromkeys([{_ROOT!r}, *sys.path, *{list(library_folders())!r}])"
    command = [sys.executable, "-I", "-c", f"import sys; {path}; {start}"]
    return backend_here().around(command, Path(scratch))
