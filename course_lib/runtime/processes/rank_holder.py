"""Forks the ranks of one launch on a machine, and tells the launcher what becomes of them."""

import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from course_lib.runtime.processes.held_rank import HeldRank
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.meeting import open_store
from course_lib.runtime.processes.process_tree import be_scheduled_as_batch, end_with, sleeps
from course_lib.runtime.processes.protocol import Kill, Progress, ShowStacks, Stacks, Start, Stop
from course_lib.runtime.processes.rank import rank_main
from course_lib.runtime.processes.rank_apart import become_rank
from course_lib.runtime.processes.rank_life import STACK_SIGNAL
from course_lib.runtime.processes.stacks import read_stack

_LOOK_SECONDS = 0.04
"""How often to look what the ranks have left when nothing calls for it sooner."""

_STACK_SECONDS = 0.4
"""How long a rank has to write where it is."""


@dataclass(frozen=True, slots=True)
class Node:
    """What an agent knows of the machine that it is on."""

    environment: dict[str, str]
    threads: int
    """A rank's share of the cores."""
    listener: socket.socket | None = None
    """Where the store opens through which the ranks of a step meet, if it does so here."""


class RankHolder:
    """Forks the ranks of one launch on this machine, and tells the launcher what becomes of them."""

    def __init__(self, launcher: Connection, folder: LaunchFolder) -> None:
        self._launcher = launcher
        self._folder = folder
        self._held: dict[int, HeldRank] = {}
        """By process id; those whose processes have not ended."""
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """A byte in this pipe has the agent look at once: from a rank's end, or a rank itself."""

    def run(self, start: Start, node: Node) -> bool:
        """Until the launcher says that the launch is over; False if it has gone."""
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Until a rank knows this signal, it would die of it.
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)
        for rank in start.arguments:
            self._fork(start, rank, node)
        if start.generation is not None:
            self._fork_store(start, node)
            return self._watch(node)
        # Only now: it has threads, and a process with threads must not fork.
        store = open_store(start, node.listener)
        goes_on = self._watch(node)
        del store
        return goes_on

    def end_ranks(self) -> None:
        """Kill the ranks and what is still in their process groups."""
        signal.set_wakeup_fd(-1)
        for pid in self._held:
            for kill in (os.kill, os.killpg):
                # A rank that was forked just now may not have its group yet.
                with suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)

    def _fork(self, start: Start, rank: int, node: Node) -> None:
        agent = os.getpid()
        if (pid := os.fork()) == 0:
            try:
                self._let_go(agent, node)
                body = become_rank if start.plan.interpreter else rank_main
                body(self._folder, _on(node, start, rank), rank, self._wake)
            finally:
                os._exit(1)
        self._held[pid] = HeldRank(rank, self._folder)

    def _fork_store(self, start: Start, node: Node) -> None:
        """Open the store in a process of its own: this one will fork again where a rank has died."""
        agent = os.getpid()
        if os.fork() == 0:
            try:
                end_with(agent)
                store = open_store(start, node.listener)
                while store is not None:
                    signal.pause()
            finally:
                os._exit(0)

    def _let_go(self, agent: int, node: Node) -> None:
        """In a rank's process: let go of what belongs to the agent, and die when it dies."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._launcher.close()
        os.close(self._awake)
        if node.listener is not None:
            node.listener.close()
        os.setpgid(0, 0)
        end_with(agent)
        be_scheduled_as_batch()

    def _watch(self, node: Node) -> bool:
        poll = select.poll()
        poll.register(self._launcher, select.POLLIN)
        poll.register(self._awake, select.POLLIN)
        while True:
            readable = {descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)}
            if self._awake in readable:
                os.read(self._awake, 4096)
            if self._launcher.fileno() in readable:
                match self._launcher.recv():
                    case ShowStacks(ranks):
                        self._launcher.send(self._show_stacks(ranks))
                    case Kill(ranks):
                        self._kill(ranks)
                    case Start() as again:
                        for rank in again.arguments:
                            self._folder.forget(rank)
                            self._fork(again, rank, node)
                    case Stop():
                        return True
            self._tell_progress()

    def _tell_progress(self) -> None:
        # What a process wrote before its end is read after the end is known, so that nothing is missed.
        ended = dict(self._reap())
        left = [held.progress(ended.get(pid)) for pid, held in self._held.items()]
        for pid in ended:
            self._held.pop(pid, None)
        if any(left):
            self._launcher.send(Progress([each for each in left if each is not None]))

    def _kill(self, ranks: Sequence[int]) -> None:
        for pid, held in self._held.items():
            if held.rank in ranks:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> Iterator[tuple[int, int]]:
        """Process id and exit code of children that have ended: ranks, and orphans that have come here."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                yield ended[0], os.waitstatus_to_exitcode(ended[1])

    def _show_stacks(self, ranks: Sequence[int]) -> Stacks:
        """Have ranks write their stacks. One sleeps if it did both before and after it was asked."""
        asked = {pid: held.rank for pid, held in self._held.items() if held.rank in ranks}
        slept = {pid for pid in asked if sleeps(pid)}
        for pid, rank in asked.items():
            with suppress(FileNotFoundError, ProcessLookupError):
                os.truncate(self._folder.stack(rank), 0)
                os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_SECONDS
        while True:
            stacks = {pid: read_stack(self._folder.stack(rank)) for pid, rank in asked.items()}
            asleep = {pid for pid in slept if sleeps(pid)}
            complete = all(stack.frames for stack in stacks.values()) and asleep == slept
            if complete or time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return Stacks({asked[pid]: replace(stack, asleep=pid in asleep) for pid, stack in stacks.items()})


def _on(node: Node, start: Start, rank: int) -> Start:
    """A launch as a rank on this node has to know it."""
    environment = node.environment | start.plan.environment | start.variables.get(rank, {})
    plan = replace(start.plan, environment=environment, threads=start.plan.threads or node.threads)
    return replace(start, plan=plan)
