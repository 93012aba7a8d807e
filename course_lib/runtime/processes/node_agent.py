"""The process that holds the ranks of a machine: for a kernel's launches here, or as a task of a Slurm step.

It has imported torch, waits, and for each launch forks a process that forks the ranks, tells the launcher all
that they leave in their folder, and ends them: when the launcher says so or has gone, for whatever reason.
A kernel starts it by `serve_here`; `python -m` this module with the file of an address is a task of a step.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from course_lib.runtime.processes.call_log import set_clock_offset
from course_lib.runtime.processes.held_rank import HeldRank
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.meeting import open_store
from course_lib.runtime.processes.process_tree import (
    adopt_orphans,
    be_scheduled_as_batch,
    end_descendants,
    end_with,
    sleeps,
)
from course_lib.runtime.processes.protocol import (
    AgentFailed,
    Progress,
    Ready,
    ShowStacks,
    Stacks,
    Start,
    Stop,
)
from course_lib.runtime.processes.rank import rank_main
from course_lib.runtime.processes.rank_apart import become_rank
from course_lib.runtime.processes.rank_environment import rank_from_launcher, threads_of_a_rank
from course_lib.runtime.processes.rank_life import STACK_SIGNAL
from course_lib.runtime.processes.stacks import read_stack
from course_lib.runtime.processes.tcp import Address, interface_with, reach
from course_lib.scratch import scratch_folder

WARM_MODULES = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor")
"""What optimizers, DistributedDataParallel and FSDP2 import at their first use; together about a second."""

_IDLE_MODULES = ("course_lib.training.data_parallel", "sklearn.datasets", "horovod.torch")
"""What ranks that train import; loaded when there has been nothing to do for a while."""

_IDLE_SECONDS = 1.0

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


# --- The two ways in which agents are started


def serve_here(descriptor: int) -> NoReturn:
    """Be the warm process of a kernel: hold ranks for every socket that comes, until the kernel lets go."""
    control = socket.socket(fileno=descriptor)
    for name in WARM_MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    control.sendall(b"warm")
    later = list(_IDLE_MODULES)
    while True:
        _import_while_idle(control, later)
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            os.setsid()
            _hold_ranks(Connection(descriptors[0]), Node({}, 1), Ready(socket.gethostname()))
        os.close(descriptors[0])


def serve_step(address: Path) -> NoReturn:
    """Be a task of a Slurm step: hold its rank for one launch after the other, while the launcher lives."""
    # A signal to the step is for the rank; the launcher decides when the task ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    info = rank_from_launcher()
    adopt_orphans()
    launcher, own_address, offset = reach(Address.read(address))
    set_clock_offset(offset)
    environment = dict(os.environ)
    if interface := interface_with(own_address):
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    threads = threads_of_a_rank(info.local_ranks)
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    later, task, goes_on = list(WARM_MODULES), os.getpid(), True
    while goes_on:
        with socket.create_server(("", 0)) as listener:
            port = listener.getsockname()[1] if info.rank == 0 else 0
            launcher.send(Ready(host, port, info, _step()))
            _import_while_idle(launcher, later)
            if (pid := os.fork()) == 0:
                end_with(task)
                _hold_ranks(launcher, Node(environment, threads, listener))
            goes_on = os.waitpid(pid, 0)[1] == 0
            end_descendants()
    # Taking torch down in good order would keep the launcher waiting for a second.
    os._exit(0)


def _import_while_idle(launcher: socket.socket | Connection, later: list[str]) -> None:
    """Wait for what the launcher says, and import a module whenever it says nothing for a while."""
    poll = select.poll()
    poll.register(launcher, select.POLLIN)
    while not poll.poll(_IDLE_SECONDS * 1000 if later else None):
        # A module that cannot be loaded here says so in the rank that needs it.
        with suppress(Exception):
            importlib.import_module(later.pop(0))
        gc.freeze()


def _step() -> str:
    """The step's name for `scancel`; empty where no step is known."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


# --- One launch


def _hold_ranks(launcher: Connection, node: Node, ready: Ready | None = None) -> NoReturn:
    """Hold the ranks of the launch that the launcher begins. Exits with 0 if it may begin another one.

    ready: what to tell the launcher first, if that has not been done.
    """
    goes_on = False
    try:
        adopt_orphans()
        if ready is not None:
            launcher.send(ready)
        start: Start = launcher.recv()
        with scratch_folder(start.plan.temporary_directory) as folder:
            agent = NodeAgent(launcher, LaunchFolder(folder))
            try:
                goes_on = agent.run(start, node)
            finally:
                agent.end_ranks()
                end_descendants()
    except (EOFError, ConnectionError):
        # The launcher has gone.
        pass
    except Exception:
        # The launcher, who learns nothing else of this end, would take it for the rank's.
        with suppress(OSError):
            launcher.send(AgentFailed(traceback.format_exc()))
    finally:
        os._exit(0 if goes_on else 1)


class NodeAgent:
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
        # Only now: it has threads, and a process with threads must not fork.
        store = open_store(start, node.listener)
        goes_on = self._watch()
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

    def _watch(self) -> bool:
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


if __name__ == "__main__":
    serve_step(Path(sys.argv[1]))
