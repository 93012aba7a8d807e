"""`python -I -m graders.worker`: a process that has imported PyTorch and forks one process an exercise.

It touches no submission and holds no secret, so that its children find none in their memory. It computes
nothing either: a process that has, cannot safely be forked, for its thread pools are not copied.

Its standard input is a socket, over which `graders.sandbox` gives its orders, one JSON object each:
{"do": "fork"} together with the descriptor of the child's own socket, and {"do": "end", "pid": ...}, which
kills the child with all its descendants and answers how it ended.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import types
from contextlib import suppress
from typing import Any, NoReturn

import cloudpickle
import torch

from course_lib.launch import ENGINES
from course_lib.launch.descendants import end_descendants
from graders.cells import Cell, run_cells
from graders.driving import perform
from graders.frames import ChannelClosed, receive_frame, send_frame
from graders.limits import BoundedText
from graders.wire import decode, encode

GIBIBYTE = 2**30

LIMITS = {
    resource.RLIMIT_AS: 16 * GIBIBYTE,
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_FSIZE: GIBIBYTE,
    resource.RLIMIT_NPROC: 4096,
    resource.RLIMIT_CORE: 0,
}
"""Of every process of an exercise: address space, CPU seconds, size of a file, processes of its user."""

_NEEDED = (ENGINES["simulated"], "IPython.core.inputtransformer2")
"""What every exercise imports sooner or later."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_DYING_SECONDS = 0.2
"""So long a process that has closed its socket may take to end by itself, and so show why it does."""


def main() -> None:
    """Obey until the socket closes, then end every child."""
    control = socket.socket(fileno=os.dup(0))
    _point_at_nothing(0)
    _adopt_orphans()
    for module in _NEEDED:
        importlib.import_module(module)
    control.sendall(b"ready")
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
        if not order:
            break
        control.sendall(json.dumps(_obey(json.loads(order), descriptors, control)).encode())
    end_descendants()


def _obey(order: dict[str, Any], descriptors: list[int], control: socket.socket) -> dict[str, Any]:
    """Carry out one order; returns the answer."""
    match order["do"]:
        case "fork":
            return {"pid": _fork(descriptors[0], control)}
        case "end":
            return {"ended": _end(order["pid"])}
        case unknown:
            raise ValueError(f"there is no order {unknown!r}")


def _fork(descriptor: int, control: socket.socket) -> int:
    """Start a process for one exercise; returns its id."""
    pid = os.fork()
    if pid == 0:
        control.close()
        _be_exercise(socket.socket(fileno=descriptor))
    os.close(descriptor)
    return pid


def _end(pid: int) -> str:
    """Kill a child and all its descendants; returns how the child itself ended. There is one at a time."""
    deadline = time.monotonic() + _DYING_SECONDS
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(pid, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# ------------------------------------------------------------------------- in the process of one exercise


def _be_exercise(channel: socket.socket) -> NoReturn:
    """Run a submission's cells, then answer requests about one of its definitions until killed."""
    try:
        _shut_in()
        answer = _run_submission(channel)
        while True:
            send_frame(channel, perform(answer, receive_frame(channel)))
    except ChannelClosed:
        pass
    finally:
        os._exit(0)


def _shut_in() -> None:
    """Leave the worker's session, its output and its folder; accept the limits."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for descriptor in (0, 1, 2):
        _point_at_nothing(descriptor)
    sys.stdout = sys.stderr = BoundedText()
    for limit, value in LIMITS.items():
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    os.chdir(tempfile.mkdtemp())
    torch.set_num_threads(1)


def _run_submission(channel: socket.socket) -> Any:
    """Run the cells, which come first, and return the answer that is asked for, None if there is none.

    Tells which cell begins, and in the end which failed and whether the answer is there.
    """
    order = decode(receive_frame(channel))
    _silence_checks()
    namespace = _namespace(order["main"])
    cells = [Cell(name, source) for name, source in order["cells"]]
    failures = run_cells(
        cells, namespace, order["seconds"], lambda name: send_frame(channel, encode({"begins": name}))
    )
    told = [{"cell": f.cell, "kind": f.kind, "report": f.report} for f in failures]
    send_frame(channel, encode({"failures": told, "defines": order["answer"] in namespace}))
    return namespace.get(order["answer"])


def _namespace(main: bool) -> dict[str, Any]:
    """The empty module that the cells run in; functions of it can be sent to other processes by value."""
    module = types.ModuleType("__main__" if main else "submission")
    sys.modules[module.__name__] = module
    if not main:
        cloudpickle.register_pickle_by_value(module)
    return vars(module)


def _silence_checks() -> None:
    """Let `check` and its like, called by a cell, do nothing here."""
    import graders

    for name in graders.__all__:
        setattr(graders, name, lambda *_, **__: None)


def _point_at_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    main()
