"""A rank's way into Horovod's group, over Gloo. No PyTorch here: a rank may compute with TensorFlow.

What `horovodrun --gloo` does, without its seconds: the launcher has set the variables that say which rank
this is; rank 0 opens Horovod's own rendezvous server, for all ranks are on one machine.
"""

import importlib
import os
import select
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from course_lib.runtime.processes.launch_folder import LaunchFolder

BACKEND = "horovod"
"""The name by which a `Plan` asks for it."""

TIMELINE = "HOROVOD_TIMELINE"

CLOSE = "COURSE_CLOSE_TIMELINE"
"""The variable that names the pipe by which the launcher has the timeline closed."""

_MEETING_SECONDS = 60.0
"""How long a rank waits for rank 0's server."""

_LOOK_SECONDS = 0.005

_CLOSING_SECONDS = 2.0
"""Rank 0 has so long to close its timeline. Where Horovod's own thread has failed, it cannot."""


def join_horovod(folder: LaunchFolder, rank: int) -> None:
    """Initialise Horovod for the framework of this environment, and wait for the other ranks."""
    port = _serve(folder) if rank == 0 else _port_of_rank_zero(folder)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = "127.0.0.1"
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
    framework().init()
    if rank == 0 and TIMELINE in os.environ:
        threading.Thread(target=_close_when_asked, daemon=True).start()


def leave_horovod() -> None:
    """Have rank 0's timeline file closed: until then its end is in a buffer."""
    if TIMELINE in os.environ and framework().is_initialized():
        framework().stop_timeline()


def framework() -> ModuleType:
    """Horovod for PyTorch where there is PyTorch, else for TensorFlow: each has a group of its own."""
    return importlib.import_module("horovod.torch" if find_spec("torch") else "horovod.tensorflow")


# --- What rank 0's buffer holds, of a run that does not end


def offer_to_close(folder: Path) -> Path:
    """In the launcher, before the ranks begin: make what the variable `CLOSE` is to name."""
    pipe = folder / "close"
    os.mkfifo(pipe, 0o600)
    return pipe


def ask_to_close(pipe: Path) -> None:
    """In the launcher: have rank 0 close its timeline, whatever its function does; wait until it has."""
    try:
        asking = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # It is gone, or has not come so far.
        return
    poll = select.poll()
    poll.register(asking, 0)
    poll.poll(_CLOSING_SECONDS * 1000)
    os.close(asking)


def _close_when_asked() -> None:
    """In rank 0: wait until the launcher opens the pipe, and close it again when all is done."""
    with Path(os.environ[CLOSE]).open():
        leave_horovod()


# --- Meeting


def _serve(folder: LaunchFolder) -> int:
    """Open the server through which the ranks find each other, as long as this process lives; its port."""
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port: int = server.start()
    server.init([])
    folder.write(folder.rendezvous, str(port).encode())
    return port


def _port_of_rank_zero(folder: LaunchFolder) -> int:
    deadline = time.monotonic() + _MEETING_SECONDS
    while not folder.rendezvous.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 has not opened Horovod's rendezvous in {_MEETING_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)
    return int(folder.rendezvous.read_text())
