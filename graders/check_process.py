"""`course check FILE` in one process that imports PyTorch once, for the sandbox and for the grader.

The command starts it with an environment that holds nothing of the user's. It imports what submissions need,
and forks a fork server into the outer sandbox (`graders.isolation.entering`). Only then does it hear which
file is to be graded, and with which environment; only then does it import a grader. So the fork holds no more
than a fork server that is started as a program of its own. Where the sandbox cannot be entered so, that is
what is done (`graders.host.fork_server_client`).
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from course_lib.runtime.processes.process_tree import end_with
from graders.isolation.backends import sandbox_environment
from graders.isolation.entering import HeldSandbox

_ROOT = str(Path(__file__).parents[1])
_TEMPORARY = "/tmp"
"""In the outer sandbox."""


def run(file: Path, unit: str | None, as_json: bool, require_sandbox: bool, unsafe: bool) -> int:
    """`graders.commands.check` in such a process; returns the exit status."""
    start = "from graders.check_process import main; main()"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {_ROOT!r}); {start}"],
            stdin=theirs.fileno(),
            env=sandbox_environment(_TEMPORARY),
            # Control-C is for this process, which then ends that one.
            start_new_session=True,
        )
        theirs.close()
        order = {
            "file": str(file),
            "unit": unit,
            "as_json": as_json,
            "require_sandbox": require_sandbox,
            "unsafe": unsafe,
        }
        try:
            with suppress(BrokenPipeError):
                ours.sendall(json.dumps([os.getcwd(), dict(os.environ), order]).encode())
                ours.shutdown(socket.SHUT_WR)
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def main() -> NoReturn:
    """Grade what the command asks for over standard input, and end with the exit status."""
    end_with(os.getppid())
    signal.signal(signal.SIGTERM, _stop)
    with ExitStack() as stack:
        server = _forked_server(stack)
        folder, environment, order = _ordered()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        if server is not None:
            _share(server)
        from graders import commands

        status = commands.check(Path(order.pop("file")), **order)
    sys.exit(status)


class _ForkedServer:
    """A `graders.host.fork_server_client.ServerProcess` that is a fork of this process."""

    def __init__(self, held: HeldSandbox) -> None:
        """The outer sandbox is built while PyTorch is imported."""
        from graders.guest import fork_server

        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def serve() -> NoReturn:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            fork_server.serve(theirs, may_use_namespaces=True)
            os._exit(0)

        fork_server.warm_up(fork_server.NEEDED)
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


def _forked_server(stack: ExitStack) -> _ForkedServer | None:
    """The fork server, None where there is no bubblewrap."""
    try:
        return _ForkedServer(stack.enter_context(HeldSandbox()))
    except OSError:
        return None


def _ordered() -> list[Any]:
    """What the command wants: a folder, an environment, and the arguments of `graders.commands.check`."""
    with os.fdopen(os.dup(0), "rb") as said:
        found: list[Any] = json.loads(said.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return found


def _share(process: _ForkedServer) -> None:
    """Grade with this server, if bubblewrap keeps in what it should, and inner sandboxes can be built."""
    from graders.host import fork_server_client
    from graders.isolation.backends import backend_here

    with suppress(fork_server_client.SandboxFailed):
        if backend_here().carries_namespaces:
            fork_server_client.share(fork_server_client.ForkServer(process.control, process))


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
