"""What the launcher of a Slurm step and the tasks of the step say to each other.

They speak over TCP, each side having proved that it knows the launch's key: pickles are exchanged, and on a
shared node anybody could connect. Bulk data goes the same way, so no shared file system is needed, and none
whose clients see each other's writes seconds later.
"""

import json
import os
import secrets
import socket
import struct
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import NamedTuple

from course_lib.runtime.processes.call_log import Record

_REACH_SECONDS = 10.0

CLOCK_QUESTIONS = 8
"""So often a task asks for the launcher's time; the quickest answer counts."""


class Hello(NamedTuple):
    """A task is ready for a launch. `port`: rank 0 listens there for the store through which ranks meet."""

    rank: int
    ranks: int
    host: str
    port: int
    step: str


class Begin(NamedTuple):
    """What the task's rank is to do. `environment`: the launcher's variables that hold on every node."""

    plan: bytes
    environment: dict[str, str]
    function: bytes
    arguments: bytes


class Rest(NamedTuple):
    """The launch is over: end the rank and wait for the next launch."""


class Forked(NamedTuple):
    """The rank's process has been started."""

    pid: int


class Noted(NamedTuple):
    """Fresh records of the rank's call_log."""

    records: list[Record]


class Printed(NamedTuple):
    """Fresh output of the rank."""

    text: bytes


class Result(NamedTuple):
    """What the rank's function returned, written."""

    written: bytes


class ShowStack(NamedTuple):
    """Asks where the rank is."""


class StackShown(NamedTuple):
    """Where the rank is, as `faulthandler` writes it, and whether its main thread sleeps."""

    text: bytes
    sleeps: bool


class Ended(NamedTuple):
    """The rank's process has ended: exit code, or minus the number of the signal."""

    code: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where the launcher listens, by all names that it knows of itself, and the key of the launch."""

    hosts: tuple[str, ...]
    port: int
    key: str

    def write(self, path: Path) -> None:
        """Leave it in a file that only this user can read."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)

    @staticmethod
    def read(path: Path) -> "Address":
        """The address in a file."""
        held = json.loads(path.read_text())
        return Address(tuple(held["hosts"]), held["port"], held["key"])


def listen() -> tuple[socket.socket, Address]:
    """Open the launcher's end, on a port that the kernel picks."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=1024)
    names = (os.environ.get("SLURMD_NODENAME", ""), socket.gethostname(), socket.getfqdn())
    return server, Address(
        tuple(dict.fromkeys(filter(None, names))), server.getsockname()[1], secrets.token_hex(32)
    )


def welcome(server: socket.socket, key: str) -> Connection | None:
    """Let a task in; None if it is a stranger. Nobody keeps the launcher waiting for long."""
    accepted, _ = server.accept()
    accepted.setblocking(True)
    _set_patience(accepted, _REACH_SECONDS)
    connection = Connection(accepted.detach())
    try:
        deliver_challenge(connection, key.encode())
        answer_challenge(connection, key.encode())
    except Exception:
        # Wrong key, wrong protocol, silence: whatever a stranger does.
        connection.close()
        return None
    return connection


def reach(address: Address) -> tuple[Connection, str]:
    """A task's way to the launcher, and this task's own address on it.

    Raises OSError and multiprocessing.AuthenticationError.
    """
    reached = _first_that_answers(address)
    own = str(reached.getsockname()[0])
    reached.settimeout(None)
    connection = Connection(reached.detach())
    answer_challenge(connection, address.key.encode())
    deliver_challenge(connection, address.key.encode())
    return connection, own


def _first_that_answers(address: Address) -> socket.socket:
    failures: list[str] = []
    for host in address.hosts:
        try:
            return socket.create_connection((host, address.port), timeout=_REACH_SECONDS)
        except OSError as error:
            failures.append(f"{host}: {error}")
    raise ConnectionError(
        f"{socket.gethostname()} cannot reach the process that launched the step, at port {address.port} of "
        + "; ".join(failures)
    )


def _set_patience(end: socket.socket, seconds: float) -> None:
    """Have reads fail after a while (SO_RCVTIMEO works below Python's own time-outs, see socket(7))."""
    end.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    )
