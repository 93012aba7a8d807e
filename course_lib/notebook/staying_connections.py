"""The notebook's end of the connections to processes that are ranks and stay: two to each."""

import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from course_lib.launch.failures import TimedOut
from course_lib.notebook.staying_rank import CONNECTIONS, Leave, Printed, Reply, Task
from course_lib.runtime.processes.protocol import Channel
from course_lib.runtime.processes.tcp import listen, welcome

_LOOK_SECONDS = 0.05


class RankConnections:
    """Gives tasks to ranks, and takes in what they print and reply."""

    def __init__(self, here: bool, silent: Callable[[int], None]) -> None:
        """here: the ranks are processes of this machine. silent: is called with a rank whose cell is over and
        has left nothing in its call log.
        """
        self._silent = silent
        self._server, self.address = listen(here)
        self._channels: dict[tuple[str, int], Channel] = {}
        """By kind and rank."""
        self._number = -1
        self._asked: set[int] = set()
        self.printed: dict[int, str] = {}
        """What each rank has printed since `begin`."""
        self.replies: dict[int, Reply] = {}
        """Of the present task, by rank."""

    def accept(self, ranks: Collection[int], goes_on: Callable[[], bool], seconds: float) -> None:
        """Let ranks in. Raises TimedOut if they do not come, or none is to come any more."""
        end = time.monotonic() + seconds
        wanted = {(kind, rank) for kind in CONNECTIONS for rank in ranks}
        while not wanted <= self._channels.keys():
            if not goes_on() or time.monotonic() > end:
                raise TimedOut(f"The ranks did not come up within {seconds:g} s.")
            if select.select([self._server], [], [], _LOOK_SECONDS)[0]:
                self._let_in()

    def _let_in(self) -> None:
        channel = welcome(self._server, self.address.key)
        if channel is not None:
            kind, rank = channel.receive()
            self._channels[kind, rank] = channel

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Task `number` begins, of these ranks."""
        self._number, self._asked = number, set(ranks)
        self.printed = dict.fromkeys(self._asked, "")
        self.replies = {}

    def send(self, tasks: Mapping[int, Task]) -> None:
        """Give ranks their tasks. That a rank's process has ended is found out elsewhere."""
        for rank, task in tasks.items():
            self._send("cells", rank, task)

    def order(self, leave: Leave) -> None:
        """Have the ranks leave their task that have not replied."""
        for rank in self.missing:
            self._send("control", rank, leave)

    @property
    def missing(self) -> list[int]:
        """The ranks whose processes live, as far as it is known here, and that have not replied."""
        waits = self._asked - self.replies.keys()
        return sorted(rank for rank in waits if ("cells", rank) in self._channels)

    def collect(self, goes_on: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Take in what ranks say, until all have replied, or nothing goes on."""
        end = time.monotonic() + seconds
        while (self._asked - self.replies.keys()) and goes_on() and time.monotonic() < end:
            channels = {self._channels["cells", rank]: rank for rank in self.missing}
            if not channels:
                time.sleep(_LOOK_SECONDS)
            for channel in wait(list(channels), timeout=_LOOK_SECONDS):  # type: ignore[arg-type]
                self._take_in(channels[channel])  # type: ignore[index]

    def _take_in(self, rank: int) -> None:
        try:
            message = self._channels["cells", rank].receive()
        except (EOFError, OSError):
            self.drop([rank])
            return
        match message:
            case Printed(text):
                self.printed[rank] = self.printed.get(rank, "") + text
            case Reply(number) if number == self._number:
                self.replies[rank] = message
                if message.silent:
                    self._silent(rank)

    def _send(self, kind: str, rank: int, message: Any) -> None:
        if channel := self._channels.get((kind, rank)):
            try:
                channel.send(message)
            except OSError:
                self.drop([rank])

    def drop(self, ranks: Iterable[int]) -> None:
        """Let go of ranks whose processes have ended."""
        for rank in ranks:
            for kind in CONNECTIONS:
                if channel := self._channels.pop((kind, rank), None):
                    channel.close()

    def close(self) -> None:
        """Let go of all; what ranks still run ends."""
        self.drop({rank for _, rank in self._channels})
        with suppress(OSError):
            self._server.close()
