"""A process of one submission, forked by `graders.guest.fork_server`: runs the cells, serves answers."""

import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

import cloudpickle
import torch

from course_lib.runtime.processes.process_tree import end_with
from course_lib.runtime.simulator.private_copy import private_copy
from graders.grading.text import BoundedText
from graders.guest.execute import reply_to
from graders.guest.rank_process import SERVED, play
from graders.guest.run_cells import run_cells
from graders.protocol.codec import decode, encode
from graders.protocol.drivers import find_driver
from graders.protocol.framing import ChannelClosed, receive_frame, send_frame
from graders.protocol.limits import COMPUTING_SECONDS
from graders.protocol.requests import RankRequest, read_request
from graders.submissions.cells import Cell

_TIDYING_SECONDS = 0.2


def serve_submission(descriptor: int, owns_processes: bool) -> NoReturn:
    """Run a submission's cells, then answer requests about what they define, until killed.

    descriptor: that of the socket to the grader. owns_processes: whether all that can be seen, but for
    process 1, is the submission's.
    """
    channel = socket.socket(fileno=descriptor)
    try:
        _shut_in()
        namespace = _run_submission(channel)
        while True:
            _serve_answer(namespace, channel, owns_processes)
    except ChannelClosed:
        pass
    finally:
        os._exit(0)


def _serve_answer(namespace: dict[str, Any], channel: socket.socket, owns_processes: bool) -> None:
    """Answer requests about the definition that the first message names, until the grader is done with it.

    A fork does so, and so the next answer finds everything as the cells have left it. Where they have left
    threads, which a fork would be without, or processes, which all forks would share, this process does it
    and is of no use for another answer.
    """
    name = decode(receive_frame(channel))["answer"]
    if not owns_processes or _others() or _threads() > 1:
        _answer_requests(namespace, name, channel)
        send_frame(channel, encode({"at_rest": False}))
        return
    files, parent = _files(), os.getpid()
    child = os.fork()
    if child == 0:
        end_with(parent)
        _answer_requests(namespace, name, channel)
        os._exit(SERVED)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != SERVED:
        _end_like(os.waitstatus_to_exitcode(status))
    send_frame(channel, encode({"at_rest": _tidy_up(files)}))


def _answer_requests(namespace: dict[str, Any], name: str, channel: socket.socket) -> None:
    send_frame(channel, encode({"defines": name in namespace}))
    answer = namespace.get(name)
    # Every launch gets a copy of the answer as it was before the first.
    copies = cache(lambda: private_copy(answer))
    while (request := read_request(receive_frame(channel))) is not None:
        if isinstance(request, RankRequest):
            play(lambda: copies()(), find_driver(request.driver), request, channel)
        else:
            send_frame(channel, reply_to(request, answer, COMPUTING_SECONDS))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _others() -> list[int]:
    """All processes but process 1 and this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]


def _end_like(code: int) -> NoReturn:
    """End as another process has, so that whoever looks at this one sees how."""
    if code < 0:
        with suppress(OSError):  # nothing is to be done against SIGKILL, and it needs nothing
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _tidy_up(files: set[str]) -> bool:
    """End what an answer has started, and delete what it has left beside `files`; whether that is done."""
    deadline = time.monotonic() + _TIDYING_SECONDS
    while others := _others():
        if time.monotonic() > deadline:
            return False
        for pid in others:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    for left in _files() - files:
        if os.path.isdir(left) and not os.path.islink(left):
            shutil.rmtree(left)
        else:
            os.unlink(left)
    return True


def _files() -> set[str]:
    """What lies where a submission can write."""
    folders = {tempfile.gettempdir(), "/dev/shm", os.getcwd()}
    return {entry.path for folder in folders if os.path.isdir(folder) for entry in os.scandir(folder)}


def _shut_in() -> None:
    """Leave the worker's session, its output and its folder."""
    with suppress(PermissionError):  # it leads a session already
        os.setsid()
    end_with(os.getppid())
    for descriptor in (0, 1, 2):
        point_at_nothing(descriptor)
    sys.stdout = sys.stderr = BoundedText()
    os.chdir(tempfile.mkdtemp())
    torch.set_num_threads(1)


def _run_submission(channel: socket.socket) -> dict[str, Any]:
    """Run the cells, which come first, and return what they define.

    Tells which cell begins, and in the end which failed.
    """
    order = decode(receive_frame(channel))
    _silence_checks()
    namespace = _namespace(order["main"])
    cells = [Cell(name, source) for name, source in order["cells"]]
    _import_ahead(cells)
    failures = run_cells(
        cells, namespace, order["seconds"], lambda name: send_frame(channel, encode({"begins": name}))
    )
    told = [{"cell": f.cell, "kind": f.kind.value, "report": f.report, "error": f.error} for f in failures]
    send_frame(channel, encode({"failures": told}))
    return namespace


def _import_ahead(cells: list[Cell]) -> None:
    """Import what the first call of a functional collective would: torch's compiler, which takes a second.

    Here it is imported once for all answers of this process. Several ranks that do so on a busy machine, each
    within its launch, may need more seconds than a launch has.
    """
    if any("_functional_collectives" in cell.source for cell in cells):
        importlib.import_module("torch._dynamo")


def _namespace(main: bool) -> dict[str, Any]:
    """The empty module that the cells run in; functions of it can be sent to other processes by value."""
    module = types.ModuleType("__main__" if main else "submission")
    sys.modules[module.__name__] = module
    if not main:
        cloudpickle.register_pickle_by_value(module)
    return vars(module)


def _silence_checks() -> None:
    """Let `check` and its like, called by a cell, do nothing here."""
    door = sys.modules["graders"]
    for name in door.__all__:
        setattr(door, name, lambda *_, **__: None)


def point_at_nothing(descriptor: int) -> None:
    """Let a file descriptor lead to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)
