"""One task of a Slurm step, started by the launcher: `python -m` this module, with ADDRESS-FILE.

It finds out which rank it is, forks the rank, and tells the launcher all that the rank leaves in its folder,
which lies on this node. When the launcher has gone, for whatever reason, it ends every process of the rank.
"""

import importlib
import os
import pickle
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from torch._C._distributed_c10d import TCPStore

from course_lib.runtime.processes import rank as worker
from course_lib.runtime.processes.call_log import CallLogReader, Returned, set_clock_offset
from course_lib.runtime.processes.fork_server import WARM_MODULES, become_rank
from course_lib.runtime.processes.launch_folder import OUTPUT_BYTES, LaunchFolder, Plan
from course_lib.runtime.processes.node_agent import sleeps
from course_lib.runtime.processes.process_tree import adopt_orphans, end_descendants
from course_lib.runtime.processes.protocol import (
    CLOCK_QUESTIONS,
    Address,
    Begin,
    Ended,
    Forked,
    Hello,
    Noted,
    Printed,
    Rest,
    Result,
    ShowStack,
    StackShown,
    reach,
)
from course_lib.runtime.processes.rank_environment import RankInfo, rank_from_launcher
from course_lib.runtime.processes.stacks import read_stack
from course_lib.slurm.network import interface_with

_LOOK_SECONDS = 0.02
_STACK_SECONDS = 0.4

_IDLE_SECONDS = 1.0


def main(address: Path) -> NoReturn:
    """Be a task from its start to its end."""
    info = rank_from_launcher()
    adopt_orphans()
    connection, own_address = reach(Address.read(address))
    set_clock_offset(_clock_offset(connection))
    node = _Node(info, dict(os.environ), own_address)
    later = list(WARM_MODULES)
    while _one_launch(node, connection, later):
        pass
    # Taking torch down in good order would keep the launcher waiting for a second.
    os._exit(0)


@dataclass(frozen=True, slots=True)
class _Node:
    """What this task knows of itself."""

    info: RankInfo
    environment: dict[str, str]
    address: str


def _one_launch(node: _Node, connection: Connection, later: list[str]) -> bool:
    """Take part in a launch, from its begin to its end. False if the launcher has gone."""
    with socket.create_server(("", 0)) as door:
        port = door.getsockname()[1] if node.info.rank == 0 else 0
        name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        begin = _ask_for_work(connection, Hello(node.info.rank, node.info.ranks, name, port, _step()), later)
        if begin is None:
            return False
        with tempfile.TemporaryDirectory(prefix="course-launch-", ignore_cleanup_errors=True) as path:
            folder = LaunchFolder(Path(path))
            _fill(folder, node.info.rank, begin)
            plan = _local_plan(begin, node)
            task = _Task(node.info, folder, connection)
            try:
                task.fork(plan, door)
                _fork_store(node.info, plan, door)
                return task.watch()
            finally:
                end_descendants()


def _ask_for_work(connection: Connection, hello: Hello, later: list[str]) -> Begin | None:
    """Wait for a launch to begin; None if the launcher has gone."""
    try:
        connection.send(hello)
        while later and not connection.poll(_IDLE_SECONDS):
            importlib.import_module(later.pop(0))
        begin: Begin = connection.recv()
    except (EOFError, OSError):
        return None
    return begin


def _clock_offset(connection: Connection) -> float:
    """How much later it is at the launcher's clock than at this machine's (F. Cristian, Probabilistic clock
    synchronization, Distributed Computing 3, 1989)."""
    best = (float("inf"), 0.0)
    for _ in range(CLOCK_QUESTIONS):
        asked = time.monotonic()
        connection.send(None)
        launchers = connection.recv()
        answered = time.monotonic()
        best = min(best, (answered - asked, launchers - (asked + answered) / 2))
    return best[1]


def _step() -> str:
    """The step's name for `scancel`; empty where no step is known."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


def _local_plan(begin: Begin, node: _Node) -> Plan:
    """The plan with what differs from node to node: the environment and the cores."""
    plan: Plan = pickle.loads(begin.plan)
    environment = node.environment | begin.environment
    if interface := interface_with(node.address):
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    threads = max(1, len(os.sched_getaffinity(0)) // node.info.local_ranks)
    return replace(plan, environments={node.info.rank: environment}, threads=threads)


def _fill(folder: LaunchFolder, rank: int, begin: Begin) -> None:
    os.mkfifo(folder.bell, 0o600)
    folder.function.write_bytes(begin.function)
    folder.arguments(rank).write_bytes(begin.arguments)


def _fork_store(info: RankInfo, plan: Plan, door: socket.socket) -> None:
    """Open the store through which the ranks meet, on the node of rank 0.

    In a process of its own: it has threads, and a process with threads must not fork the next launch's rank.
    """
    if info.rank != 0 or plan.meeting is None:
        return
    task = os.getpid()
    if os.fork() == 0:
        try:
            become_rank(task)
            host, port = plan.meeting
            store = TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach()
            )
            while store.port:
                signal.pause()
        finally:
            os._exit(1)


class _Task:
    """Watches its rank, and tells the launcher."""

    def __init__(self, info: RankInfo, folder: LaunchFolder, connection: Connection) -> None:
        self._rank = info.rank
        self._folder = folder
        self._connection = connection
        self._call_log = CallLogReader(folder.call_log(info.rank))
        self._printed = 0
        self._pid = 0

    def fork(self, plan: Plan, *others: socket.socket) -> None:
        """Start the rank."""
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                become_rank(parent, *others)
                os.close(self._connection.fileno())
                worker.live(self._folder, plan, self._rank)
            finally:
                os._exit(1)
        self._connection.send(Forked(self._pid))

    def watch(self) -> bool:
        """Until the launcher says that the launch is over; False if it has gone."""
        with ExitStack() as closing:
            bell = os.open(self._folder.bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            closing.callback(os.close, bell)
            end = os.pidfd_open(self._pid)
            closing.callback(os.close, end)
            closing.callback(self._call_log.close)
            return self._watch(bell, end)

    def _watch(self, bell: int, end: int) -> bool:
        waiting: list[Any] = [self._connection, bell, end]
        while True:
            readable, _, _ = select.select(waiting, [], [], _LOOK_SECONDS)
            if bell in readable:
                os.read(bell, 4096)
            if self._connection in readable:
                match self._order():
                    case None:
                        return False
                    case Rest():
                        return True
                    case _:
                        self._said(self._show_stack)
            self._tell()
            if end in readable:
                _, status = os.waitpid(self._pid, 0)
                self._tell()
                self._tell_end(os.waitstatus_to_exitcode(status))
                waiting.remove(end)

    def _order(self) -> Rest | ShowStack | None:
        """What the launcher says; None if it has gone."""
        try:
            order: Rest | ShowStack = self._connection.recv()
        except (EOFError, OSError):
            return None
        return order

    def _show_stack(self) -> None:
        path = self._folder.stack(self._rank)
        os.truncate(path, 0)
        os.kill(self._pid, worker.STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_SECONDS
        while not read_stack(path).frames and time.monotonic() < deadline:
            time.sleep(0.005)
        self._connection.send(StackShown(path.read_bytes(), sleeps(self._pid)))

    def _tell(self) -> None:
        self._said(self._tell_news)

    def _tell_news(self) -> None:
        """Send what the rank has left since the last time; its result before the record that there is one."""
        if output := self._fresh_output():
            self._connection.send(Printed(output))
        records = self._call_log.read()
        if any(isinstance(record, Returned) for record in records):
            self._connection.send(Result(self._folder.result(self._rank).read_bytes()))
        if records:
            self._connection.send(Noted(records))

    def _fresh_output(self) -> bytes:
        """What the rank has printed since the last time; nothing of what goes beyond the limit."""
        path = self._folder.output(self._rank)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(self._printed)
            fresh = file.read(max(0, OUTPUT_BYTES + 1 - self._printed))
        self._printed += len(fresh)
        if path.stat().st_size > 2 * OUTPUT_BYTES:
            # A rank that prints without end must not fill the node's disk.
            os.truncate(path, OUTPUT_BYTES + 1)
        return fresh

    def _tell_end(self, code: int) -> None:
        stack = self._folder.stack(self._rank)
        text = stack.read_bytes() if stack.exists() else b""
        self._said(lambda: self._connection.send(StackShown(text, False)))
        self._said(lambda: self._connection.send(Ended(code)))

    def _said(self, say: Callable[[], None]) -> None:
        """Say something, unless nobody listens any more or the rank has just gone."""
        with suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):
            say()


if __name__ == "__main__":
    # A signal to the step is for the rank; the launcher decides when the task ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(Path(sys.argv[1]))
