"""Starting and commanding `graders.worker`: the side that holds the grader."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graders.wall import can_build_wall, walled

START_SECONDS = 120.0
"""A worker that has not imported PyTorch by then never will."""
_ENDING_SECONDS = 5.0


class SandboxFailed(RuntimeError):
    """The sandbox itself does not work here; the message says why."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that the worker has forked: its socket, and its id as the worker knows it."""

    worker: "Worker"
    pid: int
    channel: socket.socket

    def end(self) -> str:
        """Kill it with all its descendants; returns how it ended."""
        self.channel.close()
        try:
            return str(self.worker.order({"do": "end", "pid": self.pid})["ended"])
        except SandboxFailed:
            return "killed, together with the process that started it"


class Worker:
    """A running `graders.worker` and the socket over which it takes orders."""

    def __init__(self, scratch: Path) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_SECONDS)
        self._popen = subprocess.Popen(
            _command(scratch),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env=_environment(scratch),
            start_new_session=True,
        )
        theirs.close()
        self._errors = b""
        self.alive = True
        self._receive()

    def fork(self) -> Process:
        """Start a process for one exercise."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self.order({"do": "fork"}, theirs.fileno())["pid"]
        return Process(self, pid, ours)

    def order(self, order: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """Give an order and return its answer. Raises SandboxFailed if the worker is gone."""
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            raise self._gone() from error
        return dict(json.loads(self._receive()))

    def close(self) -> None:
        """End the worker and everything that it started."""
        if not self.alive:
            return
        self.alive = False
        self._control.close()
        try:
            _, self._errors = self._popen.communicate(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            _, self._errors = self._popen.communicate()

    def _receive(self) -> bytes:
        try:
            answer = self._control.recv(2**16)
        except OSError as error:
            raise self._gone() from error
        if not answer:
            raise self._gone()
        return answer

    def _gone(self) -> SandboxFailed:
        self.close()
        said = self._errors.decode(errors="replace").strip().splitlines()
        return SandboxFailed(
            f"The process that runs submissions ended, so nothing can be graded here: "
            f"{said[-1] if said else 'it gave no reason'}"
        )


def _command(scratch: Path) -> list[str]:
    """-I: no PYTHON* variables, no user site, and above all no modules from the current folder."""
    command = [sys.executable, "-I", "-m", "graders.worker"]
    return walled(command, scratch) if can_build_wall() else command


def _environment(scratch: Path) -> dict[str, str]:
    """What code in a sandbox sees of the environment: nothing of ours but where programs are."""
    temporary = "/tmp" if can_build_wall() else str(scratch)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": temporary,
        "TMPDIR": temporary,
        "USER": "student",
        "LOGNAME": "student",
        "MPLBACKEND": "agg",
        # Forked processes must not find half a thread pool.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
