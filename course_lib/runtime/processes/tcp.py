"""Agents on other nodes: how they find the launcher, prove that they are its own, and take its time.

Each side proves that it knows the launch's key: pickles are exchanged, and on a shared node anybody could
connect.
"""

import fcntl
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from course_lib.runtime.processes.call_log import now
from course_lib.runtime.processes.protocol import Channel

_REACH_SECONDS = 10.0

_CLOCK_QUESTIONS = 8
"""So often an agent asks for the launcher's time; the quickest answer counts."""

_SIOCGIFADDR = 0x8915
"""From <linux/sockios.h>: asks for the IPv4 address of an interface."""


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


# --- The launcher's side


def listen(here: bool = False) -> tuple[socket.socket, Address]:
    """Open the launcher's end, on a port that the kernel picks. here: for processes of this machine alone."""
    if here:
        server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        return server, Address(("127.0.0.1",), server.getsockname()[1], secrets.token_hex(32))
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=1024)
    names = (os.environ.get("SLURMD_NODENAME", ""), socket.gethostname(), socket.getfqdn())
    return server, Address(
        tuple(dict.fromkeys(filter(None, names))), server.getsockname()[1], secrets.token_hex(32)
    )


def welcome(server: socket.socket, key: str) -> Channel | None:
    """Let an agent in and tell it the time; None if it is a stranger."""
    accepted, _ = server.accept()
    channel = Channel(accepted)
    try:
        deliver_challenge(channel.connection, key.encode())
        answer_challenge(channel.connection, key.encode())
        for _ in range(_CLOCK_QUESTIONS):
            channel.receive()
            channel.send(now())
    except Exception:
        # Wrong key, wrong protocol, silence: whatever a stranger does.
        channel.close()
        return None
    return channel


# --- An agent's side


def reach(address: Address) -> tuple[Connection, str, float]:
    """An agent's way to the launcher, this node's own address on it, and the offset of the launcher's clock.

    Raises OSError and multiprocessing.AuthenticationError.
    """
    reached = _first_that_answers(address)
    own = str(reached.getsockname()[0])
    reached.settimeout(None)
    connection = Connection(reached.detach())
    answer_challenge(connection, address.key.encode())
    deliver_challenge(connection, address.key.encode())
    return connection, own, _clock_offset(connection)


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


def _clock_offset(connection: Connection) -> float:
    """How much later it is at the launcher's clock than at this machine's (F. Cristian, Probabilistic clock
    synchronization, Distributed Computing 3, 1989)."""
    best = (float("inf"), 0.0)
    for _ in range(_CLOCK_QUESTIONS):
        asked = time.monotonic()
        connection.send(None)
        launchers = connection.recv()
        answered = time.monotonic()
        best = min(best, (answered - asked, launchers - (asked + answered) / 2))
    return best[1]


def interface_with(address: str) -> str | None:
    """The network interface of this machine that has the IPv4 `address`; None if none has, as for IPv6.

    Gloo wants to be told which one to use on a node with several.
    """
    wanted = address.removeprefix("::ffff:")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == wanted:
                return name
    return None
