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
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from course_lib.runtime.processes.call_log import set_clock_offset
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.process_tree import (
    adopt_orphans,
    end_descendants,
    end_with,
)
from course_lib.runtime.processes.protocol import (
    AgentFailed,
    Ready,
    Start,
)
from course_lib.runtime.processes.rank_environment import rank_from_launcher, threads_of_a_rank
from course_lib.runtime.processes.rank_holder import Node, RankHolder
from course_lib.runtime.processes.tcp import Address, interface_with, reach
from course_lib.scratch import scratch_folder

WARM_MODULES = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor")
"""What optimizers, DistributedDataParallel and FSDP2 import at their first use; together about a second."""

_IDLE_MODULES = ("course_lib.training.data_parallel", "sklearn.datasets", "horovod.torch")
"""What ranks that train import; loaded when there has been nothing to do for a while."""

_IDLE_SECONDS = 1.0


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
            holder = RankHolder(launcher, LaunchFolder(folder))
            try:
                goes_on = holder.run(start, node)
            finally:
                holder.end_ranks()
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


if __name__ == "__main__":
    serve_step(Path(sys.argv[1]))
