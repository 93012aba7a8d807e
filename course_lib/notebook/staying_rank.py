"""What a process does that is a rank that stays: it carries out cells, one after another, in its main thread.

A second connection, to which another thread listens, has it leave a cell. When that connection closes, the
process ends, whatever it is at.
"""

import contextlib
import io
import os
import pickle
import signal
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import cloudpickle

from course_lib.notebook.cell import Cell, bind_functions, value_as_text
from course_lib.runtime.communication.events import span_recorder
from course_lib.runtime.importing import importing
from course_lib.runtime.processes.call_log import CallLog, Returned, now
from course_lib.runtime.processes.protocol import LEFT_OUT, OUTPUT_BYTES
from course_lib.runtime.processes.rank_life import have_agent_look, tell_failure
from course_lib.runtime.processes.renewable import abort_groups, renew_groups
from course_lib.runtime.processes.tcp import Address, reach

FOR_EVER = 30 * 86400.0
_LOOK_SECONDS = 0.05
CONNECTIONS = ("cells", "control")
"""What a rank says of each of its connections."""


@dataclass(frozen=True, slots=True)
class RunCell:
    """Run a cell, whose namespace gets these names first: a dictionary, as cloudpickle writes it."""

    number: int
    cell: Cell
    names: bytes = b""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send a variable."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Connect all groups anew."""

    number: int
    generation: int


Task = RunCell | Fetch | Renew


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave task `number`. aborting: also what waits in a group."""

    number: int
    aborting: bool


@dataclass(frozen=True, slots=True)
class Printed:
    """What a rank has printed since it last said so."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A task is over."""

    number: int
    value: Any
    """Of a cell as text, of a variable as bytes, or the members of each group that is gone."""
    defined: list[str]
    failed: str = ""
    """What was raised, in a line."""
    silent: bool = False
    """Whether a cell has left nothing in the call log, not even its end."""


def serve(rank: int, address: Address) -> None:
    """Do what the notebook's process asks for, until it says that this is all. Runs on a rank."""
    with contextlib.ExitStack() as both:
        over = threading.Event()
        notebook, control = (both.enter_context(_connected(kind, rank, address)) for kind in CONNECTIONS)
        both.callback(over.set)
        life = _Life(notebook)
        signal.signal(signal.SIGINT, life.interrupted)
        threading.Thread(target=_obey, args=(control, life, over), daemon=True).start()
        while (task := notebook.recv()) is not None:
            life.do(task)


def _connected(kind: str, rank: int, address: Address) -> "Connection[Any, Any]":
    connection, _, _ = reach(address)
    connection.send((kind, rank))
    return connection


def _obey(control: "Connection[Any, Any]", life: "_Life", over: threading.Event) -> None:
    """Have tasks left; end the process when nobody is there to tell."""
    while True:
        try:
            order: Leave = control.recv()
        except (EOFError, OSError):
            if over.is_set():
                return
            os._exit(0)
        life.to_leave = order.number
        os.kill(os.getpid(), signal.SIGINT)
        if order.aborting and life.doing == order.number:
            abort_groups()


@dataclass
class _Life:
    """A rank between its first task and its last."""

    notebook: "Connection[Any, Any]"
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    doing: int | None = None
    """The number of the present task."""
    to_leave: int | None = None
    _sending: bool = False
    _late: bool = False
    _one_at_a_time: Any = field(default_factory=threading.Lock)

    def interrupted(self, _signal: int, frame: FrameType | None) -> None:
        """What the signal does: an order that comes after its task has no effect, and one that comes while a
        module is imported has it afterwards. Who imports for too long is ended by the notebook's process.
        """
        if self.doing is None or self.doing != self.to_leave:
            return
        if importing(frame):
            threading.Timer(_LOOK_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            self._late = self._sending
            if not self._sending:
                raise KeyboardInterrupt

    def send(self, message: Any) -> None:
        """Tell the notebook's process something, whole: a signal waits until it is sent."""
        with self._one_at_a_time:
            self._sending = threading.current_thread() is threading.main_thread()
            try:
                self.notebook.send(message)
            finally:
                self._sending = False
        if self._late:
            self._late = False
            raise KeyboardInterrupt

    def do(self, task: Task) -> None:
        """Do a task and say what came of it."""
        value, raised, log = None, None, _call_log()
        before = log.records
        stream = _Lines(self)
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            try:
                self.doing = task.number
                value = self._done(task)
                self.doing = None
            except BaseException as error:
                self.doing = None
                raised = error
        self._late = False
        stream.flush()
        cell = isinstance(task, RunCell)
        silent = cell and raised is None and log.records == before
        if cell and not silent:
            _log_end(log, raised)
        failed = f"{type(raised).__name__}: {raised}" if raised else ""
        defined = [name for name in self.namespace if not name.startswith("__")]
        self.send(Reply(task.number, value, defined, failed, silent))

    def _done(self, task: Task) -> Any:
        match task:
            case RunCell(_, cell, names):
                if names:
                    self.namespace.update(pickle.loads(names))
                    bind_functions(self.namespace)
                return value_as_text(cell, self.namespace)
            case Fetch(_, name):
                return cloudpickle.dumps(self.namespace[name])
            case Renew(_, generation):
                return renew_groups(generation, timedelta(seconds=FOR_EVER))


def _call_log() -> CallLog:
    log = span_recorder.get()
    assert isinstance(log, CallLog)
    return log


def _log_end(log: CallLog, raised: BaseException | None) -> None:
    """Log how a cell has ended, once a cell: whoever reads the log counts on it."""
    if raised is None:
        log.write(Returned(now()))
    else:
        tell_failure(log, raised)
    have_agent_look()


class _Lines(io.TextIOBase):
    """Sends what is printed, a whole line or what is flushed."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self._process = os.getpid()
        self._held = ""
        self._room = OUTPUT_BYTES

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if os.getpid() != self._process:
            # A process that the rank has forked must not speak for it.
            os.write(1, text.encode(errors="backslashreplace"))
            return len(text)
        self._held += text[: self._room]
        if len(text) > self._room > 0:
            self._held += LEFT_OUT
        self._room = max(0, self._room - len(text))
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        held, self._held = self._held, ""
        if held and os.getpid() == self._process:
            self._life.send(Printed(held))
