"""A fork server that is a fork of this process, so that PyTorch is imported once: for it and for a grader.

For a process that was started with an environment which holds nothing of the user's. It imports what
submissions need, and forks a fork server into the outer sandbox (`graders.isolation.entering`). Only then may
it hear what is to be graded, and import a grader. So the fork holds no more than a fork server that is
started as a program of its own; where the sandbox cannot be entered so, that is what is done
(`graders.host.fork_server_client`).
"""

import os
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from graders.isolation.backends import sandbox_environment
from graders.isolation.entering import HeldSandbox

_ROOT = str(Path(__file__).parents[1])
_TEMPORARY = "/tmp"
"""In the outer sandbox."""


def program(module: str) -> list[str]:
    """The command of a process that runs a module's main(). -I: nothing of the user's counts."""
    start = f"from {module} import main; main()"
    return [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {_ROOT!r}); {start}"]


def environment() -> dict[str, str]:
    """With which such a process is to be started."""
    return sandbox_environment(_TEMPORARY)


class ForkedServer:
    """A `graders.host.fork_server_client.ServerProcess` that is a fork of this process."""

    def __init__(self, held: HeldSandbox, for_many: bool) -> None:
        """The outer sandbox is built while PyTorch is imported."""
        from graders.guest import fork_server

        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def serve() -> NoReturn:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            fork_server.serve(theirs, may_use_namespaces=True)
            os._exit(0)

        fork_server.warm_up((*fork_server.NEEDED, *(fork_server.OFTEN_NEEDED if for_many else ())))
        with theirs:
            self._pid = held.fork(serve, theirs.fileno())
        self._held = held
        self._ended = False

    @property
    def alive(self) -> bool:
        if not self._ended:
            self._ended = os.waitpid(self._pid, os.WNOHANG) != (0, 0)
        return not self._ended

    def end(self) -> str:
        """End the whole sandbox; a fork has no last words."""
        self._held.close()
        if not self._ended:
            os.waitpid(self._pid, 0)
            self._ended = True
        return ""


def forked_server(stack: ExitStack, for_many: bool = False) -> ForkedServer | None:
    """The fork server, None where there is no bubblewrap. It ends with the stack.

    for_many: with what only some submissions import.
    """
    try:
        return ForkedServer(stack.enter_context(HeldSandbox()), for_many)
    except OSError:
        return None


def share(process: ForkedServer) -> None:
    """Grade with this server, if bubblewrap keeps in what it should, and inner sandboxes can be built."""
    from graders.host import fork_server_client
    from graders.isolation.backends import backend_here

    with suppress(fork_server_client.SandboxFailed):
        if backend_here().carries_namespaces:
            fork_server_client.share(fork_server_client.ForkServer(process.control, process))
