"""The warm process: it has imported torch, waits, and forks the ranks of a launch when told to.

The launcher starts it once and speaks with it over a socket. For each launch it forks a keeper, which forks
the ranks, tells the launcher what becomes of them, and ends them all when the launch is over: when the
launcher says so, or has died itself.
"""

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
from pathlib import Path
from typing import NoReturn

from course_lib.runtime.processes import rank as worker
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.process_tree import adopt_orphans, end_descendants, end_with

READY = b"ready"
"""What the warm process says when it can fork."""

SHOW_STACKS = b"s"
"""What the launcher says to a keeper to have all ranks write their stacks."""

WARM_MODULES = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor")
"""What optimizers, DistributedDataParallel and FSDP2 import at their first use; together about a second."""

_IDLE_MODULES = ("course_lib.training.data_parallel", "course_lib.models", "sklearn.datasets")
"""What ranks that train import; loaded when there has been nothing to do for a while."""

_IDLE_SECONDS = 1.0


def serve(descriptor: int) -> NoReturn:
    """Fork a keeper for every launch asked for on the socket, until the launcher closes it."""
    control = socket.socket(fileno=descriptor)
    for name in WARM_MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    control.sendall(READY)
    later = list(_IDLE_MODULES)
    while True:
        readable, _, _ = select.select([control], [], [], _IDLE_SECONDS if later else None)
        if not readable:
            # A module that cannot be loaded here says so in the rank that needs it.
            with contextlib.suppress(Exception):
                importlib.import_module(later.pop(0))
            gc.freeze()
            continue
        path, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not path:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _keep(socket.socket(fileno=descriptors[0]), LaunchFolder(Path(os.fsdecode(path))))
        os.close(descriptors[0])


def _keep(launcher: socket.socket, folder: LaunchFolder) -> NoReturn:
    """Be the keeper of one launch."""
    os.setsid()
    adopt_orphans()
    keeper = _Keeper(launcher, folder)
    try:
        keeper.run()
    finally:
        keeper.end_ranks()
        signal.set_wakeup_fd(-1)
        end_descendants()
        shutil.rmtree(folder.path, ignore_errors=True)
        os._exit(0)


class _Keeper:
    """Forks the ranks, and reports each end until the launcher lets go of the socket."""

    def __init__(self, launcher: socket.socket, folder: LaunchFolder) -> None:
        self._launcher = launcher
        self._folder = folder
        self._rank_of: dict[int, int] = {}

    def run(self) -> None:
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        plan = self._folder.read_plan()
        keeper = os.getpid()
        for rank in range(plan.ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    become_rank(keeper, self._launcher, woken, wake)
                    worker.live(self._folder, plan, rank)
                finally:
                    os._exit(1)
            self._rank_of[pid] = rank
            self._report("forked", rank, pid)
        while True:
            readable, _, _ = select.select([self._launcher, woken], [], [])
            if self._launcher in readable and not self._obey(self._launcher.recv(1)):
                return
            if woken in readable:
                woken.recv(4096)
                self._reap()

    def end_ranks(self) -> None:
        """Kill the ranks and what is still in their process groups."""
        for pid in self._rank_of:
            for kill in (os.kill, os.killpg):
                # A rank that was forked just now may not have its group yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)

    def _obey(self, command: bytes) -> bool:
        """Do what the launcher says. False if it is gone or has let go."""
        if command == SHOW_STACKS:
            for pid in self._rank_of:
                os.kill(pid, worker.STACK_SIGNAL)
        return bool(command)

    def _reap(self) -> None:
        """Report the ranks that have ended. Their orphaned children, which come here too, are none."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._rank_of.pop(pid, None)
            if rank is not None:
                self._report("ended", rank, os.waitstatus_to_exitcode(status))

    def _report(self, what: str, rank: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._launcher.sendall(f"{what} {rank} {number}\n".encode())


def become_rank(keeper: int, *sockets: socket.socket) -> None:
    """Let go of what belongs to the keeper, and die when it dies."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in sockets:
        each.close()
    os.setpgid(0, 0)
    end_with(keeper)
    _be_scheduled_as_batch()


def _be_scheduled_as_batch() -> None:
    """Have no thread of this process take the core from another when it wakes up, see sched(7).

    Gloo's thread asks again and again for a lock that the sending thread holds. Were it to take that thread's
    core, as a thread that has just been woken does, it would ask in vain until its time slice ends, 4 ms.
    """
    # A sandbox may forbid it; then messages are slower and nothing else changes.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
