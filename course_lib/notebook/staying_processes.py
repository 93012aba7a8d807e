"""Cells on real processes that stay, here or on a Slurm allocation's nodes: one launch, whose ranks ask this
process for the next cell. A second connection tells a rank to stop its cell; when it closes the rank ends.
"""

import atexit
import contextlib
import io
import os
import pickle
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from time import monotonic
from typing import Any, cast

import cloudpickle

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch import launch
from course_lib.launch.failures import LaunchError, LeftOpen, RankFailed, TimedOut
from course_lib.launch.run import Run
from course_lib.notebook.cell import Cell, bind_functions, value_as_text
from course_lib.notebook.staying_engine import RankAnswer
from course_lib.runtime.communication.diagnosis import rank_failed_report
from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.communication.rank_traceback import rank_traceback
from course_lib.runtime.request import PerRank, per_rank
from course_lib.scratch import scratch_folder

_START_SECONDS = 120.0
_FOR_EVER = 30 * 86400.0
_GRACE_SECONDS = 3.0
"""What ranks get to come to their cell's end when one of them has failed, or somebody has interrupted."""
_LOST = (
    "The ranks were still inside of calls that nobody will answer, so they have been ended, and as many new "
    "ones started: their variables are gone."
)


@dataclass(frozen=True, slots=True)
class _Task:
    """What a rank is to do: run a cell with some names more, or, without a cell, send a variable."""

    cell: Cell | None
    names: bytes = b""
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class _Reply:
    """value: of a cell as text, of a variable as bytes. failure: what was raised."""

    printed: str
    value: Any
    defined: list[str]
    failure: RankTraceback | None = None


def serve(rank: int, address: Any, key: bytes) -> None:
    """Do what the notebook's process asks for, until it says that this is all. Runs on a rank."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with ExitStack() as both:
        over = threading.Event()
        notebook, control = (both.enter_context(_connected(kind, rank, address, key)) for kind in _KINDS)
        both.callback(over.set)
        threading.Thread(target=_obey, args=(control, over), daemon=True).start()
        while True:
            try:
                task = notebook.recv()
            except KeyboardInterrupt:  # that came after its cell
                continue
            except EOFError:
                return
            if task is None:
                return
            notebook.send(_done(rank, task, namespace))


_KINDS = ("cells", "control")


def _connected(kind: str, rank: int, address: Any, key: bytes) -> "Connection[Any, Any]":
    connection = Client(address, authkey=key)
    connection.send((kind, rank))
    return connection


def _obey(control: "Connection[Any, Any]", over: threading.Event) -> None:
    """Stop the cell whenever told to; end the rank, whatever it is at, when nobody is there to tell."""
    while True:
        try:
            control.recv()
        except (EOFError, OSError):
            if over.is_set():
                return
            os._exit(0)
        os.kill(os.getpid(), signal.SIGINT)


def _done(rank: int, task: _Task, namespace: dict[str, Any]) -> _Reply:
    printed, value, failure = io.StringIO(), None, None
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if task.cell is None:
                value = cloudpickle.dumps(namespace[task.wanted])
            else:
                if task.names:
                    namespace.update(pickle.loads(task.names))
                    bind_functions(namespace)
                value = value_as_text(task.cell, namespace)
    except BaseException as error:
        failure = rank_traceback(rank, error)
    defined = [name for name in namespace if not name.startswith("__")]
    return _Reply(printed.getvalue(), value, defined, failure)


class ProcessRanks:
    """See `course_lib.notebook.staying_engine.StayingEngine`."""

    def __init__(self, size: int, cluster: Cluster | None, timeout: float, seed: int, on: str) -> None:
        self.size = size
        self.printed: dict[int, str] = {}
        self._cluster, self._timeout, self._seed, self._on = cluster, timeout, seed, on
        self._start()
        # Where nobody stops them before this process ends.
        atexit.register(self.close)

    def _start(self) -> None:
        self._run: Run | None = None
        self._error: BaseException | None = None
        self._defined: list[list[str]] = [[] for _ in range(self.size)]
        self._open = ExitStack()
        key = os.urandom(16)
        here = str(self._open.enter_context(scratch_folder()) / "s")
        listener = self._open.enter_context(
            Listener(here if self._on == "processes" else ("0.0.0.0", 0), authkey=key)
        )
        address = here if self._on == "processes" else (socket.gethostname(), listener.address[1])
        self._thread = threading.Thread(target=self._launch, args=(address, key), daemon=True)
        self._thread.start()
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._control: dict[int, Connection[Any, Any]] = {}
        listener._listener._socket.settimeout(0.2)  # type: ignore[attr-defined]
        deadline = monotonic() + _START_SECONDS
        while len(self._connections) + len(self._control) < 2 * self.size:
            if not self._thread.is_alive() or monotonic() > deadline:
                self._end()
                raise self._error or TimedOut(f"The ranks did not come up within {_START_SECONDS:g} s.")
            try:
                connection = listener.accept()
            except TimeoutError:
                continue
            kind, rank = connection.recv()
            (self._connections if kind == "cells" else self._control)[rank] = connection

    def _launch(self, address: Any, key: bytes) -> None:
        try:
            self._run = launch(
                serve,
                per_rank(range(self.size)),
                address,
                key,
                ranks=self.size,
                on=self._on,
                cluster=self._cluster,
                timeout=_FOR_EVER,
                seed=self._seed,
                quiet=True,
            )
        except LeftOpen as error:
            self._run = error.run
        except BaseException as error:
            self._error = error

    def run(self, cell: Cell, names: Mapping[str, Any], chosen: tuple[int, ...]) -> dict[int, RankAnswer]:
        """Run a cell on some ranks."""
        self.printed = {}
        for rank in chosen:
            own = {n: each[rank] if isinstance(each, PerRank) else each for n, each in names.items()}
            self._send(rank, _Task(cell, cloudpickle.dumps(own) if own else b""))
        replies: dict[int, _Reply] = {}
        try:
            self._collect(chosen, replies, self._timeout)
        except KeyboardInterrupt:
            self._interrupt(chosen, replies)
            raise
        failures = [reply.failure for reply in replies.values() if reply.failure]
        stuck = [rank for rank in chosen if rank not in replies]
        if stuck:
            self._restart()
        if failures:
            report = rank_failed_report(failures, [])
            raise RankFailed(f"{report}\n\n{_LOST}" if stuck else report, failures)
        if stuck:
            raise TimedOut(f"The cell was not over after {self._timeout:g} s. {_LOST}")
        return {rank: RankAnswer(replies[rank].printed, replies[rank].value) for rank in chosen}

    def fetch(self, rank: int, name: str) -> Any:
        """A copy of a rank's variable."""
        if name not in self._defined[rank]:
            raise KeyError(name)
        self._send(rank, _Task(None, wanted=name))
        replies: dict[int, _Reply] = {}
        self._collect((rank,), replies, self._timeout)
        if rank not in replies:
            raise TimedOut(f"Rank {rank} did not send {name!r} within {self._timeout:g} s.")
        if failure := replies[rank].failure:
            raise BadLaunch(f"{name!r} of rank {rank} cannot be sent: {failure.message}")
        return pickle.loads(replies[rank].value)

    def defined(self, rank: int) -> list[str]:
        """The names in a rank's namespace."""
        return self._defined[rank]

    def record(self) -> Run:
        """All cells as one run, once the ranks have ended."""
        if self._run is None:
            raise BadLaunch("What real processes did is told when they have ended: %ranks stop first.")
        return self._run

    def close(self) -> None:
        """End the ranks."""
        atexit.unregister(self.close)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        self._thread.join(_GRACE_SECONDS)
        self._end()

    # --- Between this process and the ranks

    def _send(self, rank: int, task: _Task) -> None:
        try:
            self._connections[rank].send(task)
        except OSError:
            self._raise_ended()

    def _collect(self, chosen: Sequence[int], replies: dict[int, _Reply], seconds: float) -> None:
        """Add the ranks' replies as they come. Once one has failed the others have a grace time."""
        deadline = monotonic() + seconds
        while missing := {self._connections[rank]: rank for rank in chosen if rank not in replies}:
            if monotonic() > deadline:
                return
            for ready in wait(list(missing), timeout=0.2):
                connection = cast("Connection[Any, Any]", ready)
                rank = missing[connection]
                try:
                    replies[rank] = connection.recv()
                except (EOFError, OSError):
                    self._raise_ended()
                self._defined[rank] = replies[rank].defined
                self.printed[rank] = replies[rank].printed
                if replies[rank].failure:
                    deadline = min(deadline, monotonic() + _GRACE_SECONDS)
            if not self._thread.is_alive():
                self._raise_ended()

    def _interrupt(self, chosen: Sequence[int], replies: dict[int, _Reply]) -> None:
        """Stop the cell on all ranks, and not the ranks, unless they are in a call that cannot be stopped."""
        for rank in chosen:
            if rank not in replies:
                self._control[rank].send("interrupt")
        self._collect(chosen, replies, _GRACE_SECONDS)
        if len(replies) < len(chosen):
            self._restart()
            print(_LOST)

    def _raise_ended(self) -> None:
        """The launch has ended, or is about to: start another, and raise what it deserves."""
        self._thread.join(_START_SECONDS)
        error = self._error
        self._restart()
        if isinstance(error, LaunchError):
            error.args = (f"{error}\n\n{_LOST}",)
            error.report = error.args[0]
        raise error or BadLaunch("The ranks have ended.")

    def _restart(self) -> None:
        self._end()
        self._start()

    def _end(self) -> None:
        for connection in (*self._control.values(), *self._connections.values()):
            connection.close()
        self._thread.join(_START_SECONDS)
        self._open.close()
