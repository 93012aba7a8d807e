"""What a launcher and the agents that hold its ranks say to each other.

The same messages go over a socketpair to the agent on the launcher's own machine, and over TCP to those of a
Slurm step. Bulk data goes the same way, so no shared file system is needed, and none whose clients see each
other's writes seconds later.
"""

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from course_lib.runtime.processes.stacks import Stack

if TYPE_CHECKING:
    from course_lib.runtime.processes.rank_environment import RankInfo

_PATIENCE_SECONDS = 20.0
"""So long the other side may neither send the rest of a message nor take any of one."""

OUTPUT_BYTES = 1_000_000
"""So much of a rank's output is kept."""
LEFT_OUT = "\n... (the rest of the output is left out)\n"
"""What stands in the place of the rest."""


# --- From an agent


class Ready(NamedTuple):
    """The agent waits for a launch."""

    host: str
    store_port: int = 0
    """It listens there for the store through which the ranks of a step meet; 0 if another agent does."""
    info: "RankInfo | None" = None
    """Which rank of a step the agent is to hold; None where the launcher says it."""
    step: str = ""
    """The step's name for `scancel`, where it is known."""


class RankProgress(NamedTuple):
    """What a rank has left since the last time."""

    rank: int
    log: bytes = b""
    """Of its call log."""
    output: bytes = b""
    result: bytes | None = None
    """What its function returned, serialized."""
    exit_code: int | None = None
    """Of its process, if that has ended: minus the number of the signal that killed it."""
    stack: Stack = Stack()
    """Where it crashed, if it did."""


class Progress(NamedTuple):
    """What the agent's ranks have left since the last time; those that have left nothing are left out."""

    ranks: list[RankProgress]


class Stacks(NamedTuple):
    """Where ranks are."""

    of: dict[int, Stack]


class AgentFailed(NamedTuple):
    """The agent itself has failed, through no fault of its ranks, and ends with them."""

    said: str


# --- From the launcher


@dataclass(frozen=True, slots=True)
class Plan:
    """What every rank needs to know before it can read its function."""

    ranks: int
    backend: str
    timeout: float
    seed: int
    working_directory: str
    module_path: tuple[str, ...]
    program: tuple[str, ...]
    """`sys.argv` of the launcher."""
    sources: dict[str, Any]
    """Entries of `linecache` for code without a file, such as notebook cells."""
    environment: dict[str, str]
    """The launcher's variables that hold for every rank; they come on top of the agent's own."""
    memory: bool = False
    """Whether to record what the ranks hold in memory."""
    threads: int | None = None
    """Of each rank; None: its share of the node's cores."""
    temporary_directory: str | None = None
    """None: the node's own."""
    interpreter: str = ""
    """The Python of another environment that the ranks are to run in; empty: that of their agent."""


@dataclass(frozen=True, slots=True)
class Start:
    """A launch, as far as one agent has to know it: the ranks are those that have arguments."""

    plan: Plan
    function: bytes
    arguments: dict[int, bytes]
    variables: dict[int, dict[str, str]] = field(default_factory=dict)
    """Environment variables of single ranks."""
    store: tuple[str, int] | None = None
    """Host and port of the store through which the ranks meet; None: a file, on one machine."""
    generation: int | None = None
    """Of ranks that stay: how often their groups have been connected anew. None: of a launch."""


class ShowStacks(NamedTuple):
    """Asks where these ranks are."""

    ranks: tuple[int, ...]


class Kill(NamedTuple):
    """Asks to end the processes of these ranks, which hear nothing any more. The launch goes on."""

    ranks: tuple[int, ...]


class Stop(NamedTuple):
    """The launch is over: end its ranks."""


# --- Sending and receiving


class Stalled(ConnectionError):
    """The other side has taken or sent no byte for a long time, in the middle of a message."""


class Channel:
    """The launcher's end of a connection to an agent, of which neither side can make it wait for ever."""

    def __init__(self, end: socket.socket) -> None:
        # Connection reads and writes the descriptor itself, below Python's own time-outs: see socket(7).
        limit = struct.pack("ll", int(_PATIENCE_SECONDS), int(_PATIENCE_SECONDS % 1 * 1e6))
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.connection = Connection(end.detach())

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Any) -> None:
        """Send a message. Raises Stalled, and OSError if the other side has gone."""
        try:
            self.connection.send(message)
        except BlockingIOError:
            raise Stalled from None

    def receive(self) -> Any:
        """The next message. Raises Stalled, and EOFError or OSError if the other side has gone."""
        try:
            return self.connection.recv()
        except BlockingIOError:
            raise Stalled from None

    def finish(self) -> None:
        """Tell the other side that nothing more comes, and wait, not for ever, until it has gone too."""
        with socket.socket(fileno=os.dup(self.fileno())) as end, suppress(OSError):
            end.shutdown(socket.SHUT_WR)
            # What is still on its way may have lost its beginning: nobody reads it as messages.
            while end.recv(1 << 16):
                pass
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self.connection.close()
