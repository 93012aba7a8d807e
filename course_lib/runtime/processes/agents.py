"""The launcher's end of the agents that hold its ranks; and the agent on the launcher's own machine."""

import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from course_lib.errors import BadLaunch
from course_lib.runtime.processes.protocol import (
    AgentFailed,
    Channel,
    Kill,
    Progress,
    RankProgress,
    Ready,
    ShowStacks,
    Stacks,
    Stalled,
    Start,
    Stop,
)
from course_lib.runtime.processes.stacks import Stack
from course_lib.runtime.processes.warm_process import warm_process

_STACK_SECONDS = 0.5

_HALT = "that process, its node or the network has come to a halt. Launch again, if you can on other nodes."


class Agents:
    """The agents of a launch, all together: they take it, and tell what becomes of its ranks."""

    def __init__(self) -> None:
        self.lost = ""
        """Why no more can come of the launch, as a sentence; empty while more can."""
        self._poll = select.epoll()
        self._channels: dict[int, Channel] = {}
        """By descriptor."""
        self._ranks: dict[int, set[int]] = {}
        """Those of the present launch whose processes have not ended, by their agent's descriptor."""
        self._homes: dict[int, int] = {}
        """Rank of the present launch -> its agent's descriptor."""
        self._starts: dict[int, Start] = {}
        """What each agent was told to begin."""
        self._progress: list[RankProgress] = []
        self._stacks: dict[int, Stack] = {}

    def read(self, seconds: float) -> Sequence[RankProgress]:
        """What the ranks have left since the last call, waiting for something for so long at most."""
        self._receive_all(seconds)
        progress, self._progress = self._progress, []
        return progress

    def stacks(self, ranks: Iterable[int]) -> dict[int, Stack]:
        """Where these ranks are in their code; an empty stack where it cannot be known."""
        wanted, self._stacks = set(ranks), {}
        for descriptor, held in list(self._ranks.items()):
            if asked := tuple(held & wanted):
                self._send(descriptor, ShowStacks(asked))
        deadline = time.monotonic() + _STACK_SECONDS
        while wanted - self._stacks.keys() and time.monotonic() < deadline and not self.lost:
            self._receive_all(_STACK_SECONDS / 10)
        return {rank: self._stacks.get(rank, Stack()) for rank in wanted}

    def add(self, channel: Channel) -> None:
        """One more agent."""
        self._channels[channel.fileno()] = channel
        self._poll.register(channel, select.EPOLLIN)

    def start(self, descriptor: int, start: Start) -> None:
        """Have an agent that is ready begin its part of a launch."""
        self._ranks[descriptor] = set(start.arguments)
        self._homes |= dict.fromkeys(start.arguments, descriptor)
        self._starts[descriptor] = start
        self._send(descriptor, start)

    def replace(self, ranks: Iterable[int], generation: int) -> None:
        """Have new processes take the places of ranks whose processes have ended."""
        for rank in ranks:
            descriptor = self._homes[rank]
            start = self._starts[descriptor]
            self._ranks[descriptor].add(rank)
            arguments = {rank: start.arguments[rank]}
            self._send(descriptor, replace(start, arguments=arguments, generation=generation))

    def kill(self, ranks: Iterable[int]) -> None:
        """Have the processes of these ranks killed. The launch goes on."""
        for rank in ranks:
            self._send(self._homes[rank], Kill((rank,)))

    def stop(self) -> None:
        """Have all ranks ended."""
        for descriptor in list(self._channels):
            self._send(descriptor, Stop())
        self._ranks = {}
        self._progress = []

    def close(self) -> None:
        """Let go of all agents, which end."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        self._poll.close()

    # --- Receiving

    def _receive_all(self, seconds: float) -> None:
        while ready := self._poll.poll(seconds):
            seconds = 0
            for descriptor, _ in ready:
                if descriptor in self._channels:
                    self._receive(descriptor)
                else:
                    self._other(descriptor)

    def _receive(self, descriptor: int) -> None:
        try:
            message = self._channels[descriptor].receive()
        except Stalled:
            self._lose(descriptor, f"has stopped in the middle of a message: {_HALT}")
        except (EOFError, OSError):
            self._forget(descriptor)
        else:
            self._take_in(descriptor, message)

    def _take_in(self, descriptor: int, message: Any) -> None:
        match message:
            case Ready():
                self._ready(descriptor, message)
            # What comes between two launches is an echo of the last one.
            case Progress(ranks) if descriptor in self._ranks:
                self._progress += ranks
                self._ranks[descriptor] -= {each.rank for each in ranks if each.exit_code is not None}
            case Stacks(of):
                self._stacks |= of
            case AgentFailed(said):
                self._lose(descriptor, f"has failed, which should not happen:\n{said}")

    def _send(self, descriptor: int, message: Any) -> None:
        try:
            self._channels[descriptor].send(message)
        except Stalled:
            self._lose(descriptor, f"takes no messages: {_HALT}")
        except OSError:
            # That it has gone is read from the same channel.
            pass

    def _lose(self, descriptor: int, what: str) -> None:
        # Of its ranks nothing is known, least of all that they have ended.
        held = sorted(self._ranks.pop(descriptor, ()))
        ranks = f"rank {held[0]}" if len(held) == 1 else "the ranks"
        self.lost = f"The process that holds {ranks}{self._where(descriptor)} {what}"
        self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        """An agent has gone, and its ranks with it."""
        self._poll.unregister(descriptor)
        self._channels.pop(descriptor).close()
        for rank in self._ranks.pop(descriptor, ()):
            self._progress.append(RankProgress(rank, exit_code=-signal.SIGKILL))

    # --- What differs between here and a step

    def _ready(self, descriptor: int, ready: Ready) -> None:
        raise NotImplementedError

    def _other(self, descriptor: int) -> None:
        """Something else that is waited for has something to say."""

    def _where(self, descriptor: int) -> str:
        """On which node an agent is, for a sentence."""
        return ""


# --- The agent on this machine


class LocalAgent(Agents):
    """The agent of one launch on this machine, which the warm process has forked."""

    def __init__(self, channel: Channel, start: Start) -> None:
        super().__init__()
        self.add(channel)
        self.start(channel.fileno(), start)

    def end(self) -> None:
        """Have every process of the launch killed, and wait until they are gone."""
        for channel in self._channels.values():
            channel.finish()
        self._channels = {}
        self.close()


@contextmanager
def ranks_here(start: Start) -> Iterator[Agents]:
    """The ranks of a launch on this machine; at the end of the block no process of it is left."""
    agent = LocalAgent(_agent_ofwarm_process(), start)
    try:
        yield agent
    finally:
        agent.end()


def _agent_ofwarm_process() -> Channel:
    """An agent that waits for its launch. A warm process that has just been killed is replaced once."""
    for _ in range(2):
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        try:
            with theirs, suppress(BrokenPipeError):
                warm_process().fork_agent(theirs)
            if _says_something(channel) and isinstance(channel.receive(), Ready):
                return channel
        except (EOFError, ConnectionError):
            pass
        except BaseException:
            channel.finish()
            raise
        channel.close()
    raise BadLaunch(
        "The process that ranks are started from was killed while it started them, perhaps because memory "
        "ran out. Launch fewer ranks, or close other programs."
    )


def _says_something(channel: Channel) -> bool:
    """Wait until there is something to read, if only that the other side has gone."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll())
