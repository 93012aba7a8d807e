"""`course check FILE` in one process that imports PyTorch once, for the sandbox and for the grader.

It begins as `graders.forked_server` says. Only when the fork server is there does it hear which file is to be
graded, and with which environment.
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
from graders.forked_server import environment, forked_server, program, share


def run(file: Path, unit: str | None, as_json: bool, require_sandbox: bool, unsafe: bool) -> int:
    """`graders.commands.check` in such a process; returns the exit status."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            program(__name__),
            stdin=theirs.fileno(),
            env=environment(),
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
        server = forked_server(stack)
        folder, variables, order = _ordered()
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        if server is not None:
            share(server)
        from graders import commands

        status = commands.check(Path(order.pop("file")), **order)
    sys.exit(status)


def _ordered() -> list[Any]:
    """What the command wants: a folder, an environment, and the arguments of `graders.commands.check`."""
    with os.fdopen(os.dup(0), "rb") as said:
        found: list[Any] = json.loads(said.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return found


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
