"""A process that has imported PyTorch and forks those that run submissions.

`graders.host.fork_server_client` starts it. It touches no submission and holds no secret: its children find
none in their memory; where they can isolate themselves (`graders.isolation.namespaces`), it serves one
submission after the other. It computes nothing either: a process that has, cannot safely be forked, for its
thread pools are not copied.

Its standard input is a socket, over which it takes its orders, one JSON object each:
{"do": "fork", "bounds": {...}} together with the descriptor of the child's own socket, and {"do": "end",
"pids": [...]}, which kills children with all their descendants and answers how each ended.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from course_lib.launch import ENGINES
from course_lib.runtime.processes.process_tree import adopt_orphans, end_descendants
from graders.guest.submission_process import point_at_nothing, serve_submission
from graders.isolation.namespaces import LIMITS, NoNamespaces, described, fork_sandboxed, set_limits
from graders.isolation.usage import Bounds
from graders.protocol.framing import MOST_ORDER_BYTES

NEEDED = (
    ENGINES["simulated"],
    "IPython.core.inputtransformer2",
    # What a newer PyTorch imports itself; before, each rank would at its first tensor without data.
    "torch.fx.experimental.symbolic_shapes",
)
"""What exercises import sooner or later, besides what drives them."""
OFTEN_NEEDED = ("matplotlib.pyplot",)
"""What some of the submissions of a class import."""

_HUGE = 2**21
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_TRIAL_SECONDS = 60.0
_DYING_SECONDS = 0.2
"""So long a process that has closed its socket may take to end by itself, and so show why it does."""


def main(may_use_namespaces: bool) -> None:
    """Obey until the socket closes, then end every child. Standard input is the socket.

    may_use_namespaces: whether the outer sandbox carries inner ones.
    """
    control = socket.socket(fileno=os.dup(0))
    point_at_nothing(0)
    warm_up((*NEEDED, *OFTEN_NEEDED))
    serve(control, may_use_namespaces)


def warm_up(modules: Sequence[str]) -> None:
    """Import these and all drivers."""
    for module in (*modules, *driver_modules()):
        importlib.import_module(module)
    # A collection in a child would touch, and so copy, whatever is here.
    gc.collect()
    gc.freeze()


def serve(control: socket.socket, may_use_namespaces: bool) -> None:
    """Obey until the socket closes, then end every child; see `main`."""
    adopt_orphans()
    _gather_names()
    _use_huge_pages()
    sandboxed = SandboxedChildren()
    why = _trial(sandboxed) if may_use_namespaces else "there is no outer sandbox that would carry them"
    children: Children = PlainChildren() if why else sandboxed
    control.sendall(json.dumps({"no_namespaces": why}).encode())
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, MOST_ORDER_BYTES, 1)
        if not order:
            break
        control.sendall(json.dumps(_obey(json.loads(order), descriptors, children)).encode())
    end_descendants()


def driver_modules() -> list[str]:
    """The modules that drive answers: those of every unit that has some, and those that units share."""
    root = Path(__file__).parents[2]
    units = root / "graders" / "units"
    return [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((*units.rglob("drivers.py"), *units.rglob("drivers/*.py")))
    ]


def _gather_names() -> None:
    """Put the names of all modules side by side in memory.

    To copy an answer cloudpickle looks at each of them, and a look changes a count of references: scattered,
    they made each fork copy 800 pages.
    """
    for name in list(sys.modules):
        sys.modules[name.encode().decode()] = sys.modules.pop(name)


def _use_huge_pages() -> None:
    """Put this process's memory on pages of 2 MiB where the kernel can: a fork copies an entry a page."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        first, last = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
        if rights == "rw-p" and inode == "0" and first < last:
            # Each may be refused; then all stays as it is.
            madvise(first, last - first, _MADV_HUGEPAGE)
            madvise(first, last - first, _MADV_COLLAPSE)


def _obey(order: dict[str, Any], descriptors: list[int], children: "Children") -> dict[str, Any]:
    """Carry out one order; returns the answer."""
    match order["do"]:
        case "fork":
            (descriptor,) = descriptors
            try:
                return {"pid": children.start(descriptor, Bounds(**order["bounds"]))}
            except OSError as error:
                return {"failed": str(error)}
            finally:
                os.close(descriptor)
        case "end":
            return {"ended": _end(order["pids"], children)}
        case unknown:
            raise ValueError(f"there is no order {unknown!r}")


def _end(pids: list[int], children: "Children") -> list[str]:
    """Kill children and all their descendants; returns how each itself ended."""
    deadline = time.monotonic() + _DYING_SECONDS
    ended = {pid: status for pid in pids if (status := _waited(pid, deadline)) is not None}
    for pid in pids:
        children.kill(pid)
    for pid in pids:
        if pid not in ended:
            _, ended[pid] = os.waitpid(pid, 0)
    return [children.buried(pid, ended[pid]) for pid in pids]


def _waited(pid: int, deadline: float) -> int | None:
    """The status of a child that ends by the deadline."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


class Children(Protocol):
    """A way to start the processes of submissions and to end them."""

    def start(self, channel: int, bounds: Bounds) -> int:
        """Start a process that speaks over this descriptor; returns the id to end it by."""
        ...

    def kill(self, pid: int) -> None:
        """End it and all that it has started, unless it has ended."""
        ...

    def buried(self, pid: int, status: int) -> str:
        """How it ended; called once, when it has been waited for."""
        ...


class SandboxedChildren:
    """Each in a sandbox of its own. The id is that of its init process."""

    def __init__(self) -> None:
        self._reports: dict[int, int] = {}

    def start(self, channel: int, bounds: Bounds) -> int:
        """See `Children`. Raises NoNamespaces."""
        pid, report = fork_sandboxed(lambda: serve_submission(channel, owns_processes=True), channel, bounds)
        self._reports[pid] = report
        return pid

    def kill(self, pid: int) -> None:
        """See `Children`."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def buried(self, pid: int, status: int) -> str:
        """See `Children`."""
        with os.fdopen(self._reports.pop(pid), "rb") as report:
            said = report.read(1000).decode(errors="replace")
        return said or described(os.waitstatus_to_exitcode(status))


class PlainChildren:
    """Each in a session of its own, behind whatever sandbox stands round this process."""

    def start(self, channel: int, bounds: Bounds) -> int:
        """See `Children`; the bounds are only kept behind an inner sandbox."""
        pid = os.fork()
        if pid == 0:
            os.closerange(3, channel)
            os.closerange(channel + 1, 65536)
            set_limits({**LIMITS, resource.RLIMIT_NPROC: 4096})
            serve_submission(channel, owns_processes=False)
        return pid

    def kill(self, pid: int) -> None:
        """See `Children`."""
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def buried(self, pid: int, status: int) -> str:
        """See `Children`."""
        end_descendants()
        return described(os.waitstatus_to_exitcode(status))


def _trial(children: SandboxedChildren) -> str:
    """Why processes cannot isolate themselves here; empty if they can."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            pid = children.start(theirs.fileno(), Bounds())
        except NoNamespaces as error:
            return str(error)
    # Its socket is closed, so all that it can do is end, which on a busy machine takes a while.
    status = _waited(pid, time.monotonic() + _TRIAL_SECONDS)
    if status is None:
        children.kill(pid)
        _, status = os.waitpid(pid, 0)
    ended = children.buried(pid, status)
    return "" if ended == "exit status 0" else ended
