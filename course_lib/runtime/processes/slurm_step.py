"""The launcher's end of a Slurm step: starts it, hears its tasks, and ends it and nothing else."""

import atexit
import os
import pickle
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from course_lib.errors import BadLaunch
from course_lib.home import course_home
from course_lib.launch.failures import CollectiveMismatch, Deadlock, RankFailed
from course_lib.runtime.processes.call_log import Record, now
from course_lib.runtime.processes.launch_folder import LaunchFolder, Plan
from course_lib.runtime.processes.node_agent import RankEnded, RankForked
from course_lib.runtime.processes.protocol import (
    CLOCK_QUESTIONS,
    Begin,
    Ended,
    Forked,
    Hello,
    Noted,
    Printed,
    Rest,
    Result,
    ShowStack,
    StackShown,
    listen,
    welcome,
)
from course_lib.runtime.processes.serialization import SerializedLaunch

_STACK_SECONDS = 0.5
_END_SECONDS = 5.0

CommandFor = Callable[[Sequence[str]], list[str]]
"""Makes the command that starts a program as every task of the step."""


class Mailbox:
    """The records of one rank that have come over the network."""

    def __init__(self) -> None:
        self._notes: list[Record] = []

    def put(self, records: Sequence[Record]) -> None:
        """Take in what has come."""
        self._notes.extend(records)

    def read(self) -> list[Record]:
        """What has come since the last call."""
        records, self._notes = self._notes, []
        return records

    def close(self) -> None:
        """There is nothing to let go of."""


@dataclass(frozen=True, slots=True)
class Work:
    """One launch, as the tasks of a step need it. `make_plan`: from the place where the ranks meet."""

    folder: LaunchFolder
    make_plan: Callable[[tuple[str, int]], Plan]
    environment: dict[str, str]
    parcel: SerializedLaunch


class Step:
    """A step and its tasks. It serves one launch after the other, and is what the watch over each asks."""

    def __init__(self, ranks: int, command_for: CommandFor, environment: dict[str, str]) -> None:
        self.lost = False
        self.last_words = ""
        self.call_logs: list[Mailbox] = []
        self._ranks = ranks
        self._owner = os.getpid()
        self._server, self._address = listen()
        self._poll = select.epoll()
        self._poll.register(self._server, select.EPOLLIN)
        self._strangers: dict[int, Connection] = {}
        """Tasks that have not said which rank they are, by descriptor."""
        self._tasks: dict[int, tuple[int, Connection]] = {}
        """Rank and connection of the others."""
        self._ready: dict[int, Hello] = {}
        """Ranks that wait for the next launch."""
        self._working = False
        self._incomplete = False
        """Whether a task has gone."""
        self._step_name = ""
        self._work: Work | None = None
        self._ended: set[int] = set()
        self._reports: list[RankForked | RankEnded] = []
        self._asleep: dict[int, bool] = {}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the step lives
        self._address_file = _launches() / f"{secrets.token_hex(8)}.json"
        self._address.write(self._address_file)
        program = [
            sys.executable,
            "-P",
            "-m",
            "course_lib.runtime.processes.slurm_task",
            str(self._address_file),
        ]
        self._step = subprocess.Popen(
            command_for(program),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            # Ctrl-C in a terminal and an interrupt from Jupyter are for the launcher alone.
            start_new_session=True,
        )
        self._poll.register(os.pidfd_open(self._step.pid), select.EPOLLIN)

    @property
    def usable(self) -> bool:
        """Whether it can serve another launch of this process."""
        gone = self.lost or self._incomplete or self._step.poll() is not None
        return self._owner == os.getpid() and not gone

    def begin(self, work: Work) -> None:
        """Begin a launch, as soon as all tasks are there."""
        self.call_logs = [Mailbox() for _ in range(self._ranks)]
        self._work = work
        self._ended, self._reports, self._asleep = set(), [], {}
        for rank in range(self._ranks):
            work.folder.stack(rank).touch()
        self._begin_if_complete()

    def rest(self) -> None:
        """End the ranks of a launch, and keep the tasks for the next one."""
        self._working = False
        self._work = None
        for _, connection in self._tasks.values():
            with suppress(OSError):
                connection.send(Rest())

    # --- What the watch asks

    def fileno(self) -> int:
        """Readable when a task has something to say or the step has ended."""
        return self._poll.fileno()

    def read(self) -> Sequence[RankForked | RankEnded]:
        """What has become of the ranks since the last call."""
        self._hear(0)
        reports, self._reports = self._reports, []
        return reports

    def show_stacks(self) -> None:
        """Have every rank write its stack, and wait until it has come."""
        self._ask_stacks()

    def all_sleep(self, ranks: Sequence[int]) -> bool:
        """Whether the main threads of these ranks sleep."""
        self._ask_stacks()
        return all(self._asleep.get(rank, False) for rank in ranks)

    def end(self) -> None:
        """End the step's tasks and wait until they are gone; the allocation and its other steps go on."""
        if self._owner != os.getpid():
            return
        connections = [connection for _, connection in self._tasks.values()]
        for connection in [*connections, *self._strangers.values()]:
            connection.close()
        self._server.close()
        self._poll.close()
        self._address_file.unlink(missing_ok=True)
        self._end_step(self._step)
        self._said.close()

    def _end_step(self, step: subprocess.Popen[bytes]) -> None:
        """The tasks end by themselves when the launcher lets go; a step whose tasks do not is cancelled."""
        with suppress(subprocess.TimeoutExpired):
            step.wait(_END_SECONDS if self._step_name else 0.1)
            return
        if self._step_name:
            subprocess.run(["scancel", "--signal=KILL", self._step_name], capture_output=True, check=False)
        else:
            # srun and ibrun pass it on to their tasks.
            step.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            step.wait(_END_SECONDS)
            return
        step.kill()
        step.wait()

    # --- Hearing

    def _hear(self, seconds: float) -> None:
        """Take in everything that has come, waiting for something for so long at most."""
        while ready := self._poll.poll(seconds):
            seconds = 0
            for descriptor, _ in ready:
                if descriptor == self._server.fileno():
                    self._let_in()
                elif descriptor in self._strangers:
                    self._greet(descriptor)
                elif descriptor in self._tasks:
                    self._listen(descriptor)
                else:
                    self._note_end_of_step(descriptor)

    def _let_in(self) -> None:
        connection = welcome(self._server, self._address.key)
        if connection is not None:
            self._strangers[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def _greet(self, descriptor: int) -> None:
        """Tell a new task the time, and hear which rank it is; when all are there, they begin."""
        connection = self._strangers[descriptor]
        try:
            for _ in range(CLOCK_QUESTIONS):
                connection.recv()
                connection.send(now())
            hello: Hello = connection.recv()
        except (EOFError, OSError):
            self._forget(descriptor)
            return
        del self._strangers[descriptor]
        self._tasks[descriptor] = (hello.rank, connection)
        self._note_ready(hello)

    def _note_ready(self, hello: Hello) -> None:
        if hello.rank in self._ready or hello.ranks != self._ranks:
            self.lost = True
            self.last_words = (
                f"The step was to have {self._ranks} ranks, but a task on {hello.host} takes itself for rank "
                f"{hello.rank} of {hello.ranks}: the launcher and the tasks do not understand each other. "
                f"`course doctor` says which launcher this site wants."
            )
            return
        self._ready[hello.rank] = hello
        self._step_name = self._step_name or hello.step
        self._begin_if_complete()

    def _begin_if_complete(self) -> None:
        work = self._work
        if work is None or len(self._ready) < self._ranks:
            return
        first = self._ready[0]
        plan = pickle.dumps(work.make_plan((first.host, first.port)))
        self._working = True
        self._ready = {}
        for rank, connection in self._tasks.values():
            with suppress(OSError):
                connection.send(Begin(plan, work.environment, work.parcel.shared, work.parcel.own[rank]))

    def _listen(self, descriptor: int) -> None:
        rank, connection = self._tasks[descriptor]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            self._forget(descriptor)
            self._incomplete = True
            if rank not in self._ended:
                # Whatever ended the task has ended its rank.
                self._report_end(rank, -signal.SIGKILL)
            return
        if isinstance(message, Hello):
            self._note_ready(message)
        elif self._working and self._work is not None:
            # Anything else that comes between two launches is an echo of the last one.
            self._take_in(rank, message, self._work.folder)

    def _take_in(self, rank: int, message: Any, folder: LaunchFolder) -> None:
        match message:
            case Forked(pid):
                self._reports.append(RankForked(rank, pid))
            case Noted(records):
                self.call_logs[rank].put(records)
            case Printed(text):
                with folder.output(rank).open("ab") as file:
                    file.write(text)
            case Result(written):
                folder.result(rank).write_bytes(written)
            case StackShown(text, asleep):
                folder.stack(rank).write_bytes(text)
                self._asleep[rank] = asleep
            case Ended(code):
                self._report_end(rank, code)

    def _report_end(self, rank: int, code: int) -> None:
        self._ended.add(rank)
        self._reports.append(RankEnded(rank, code))

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        if descriptor in self._strangers:
            self._strangers.pop(descriptor).close()
        else:
            self._tasks.pop(descriptor)[1].close()

    def _note_end_of_step(self, descriptor: int) -> None:
        """The step has ended before it was told to."""
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self.lost = True
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        self.last_words = f"The Slurm step ended before its ranks had. It said:\n{said or '(nothing)'}"

    def _ask_stacks(self) -> None:
        self._asleep.clear()
        asked = []
        for rank, connection in self._tasks.values():
            if rank not in self._ended:
                with suppress(OSError):
                    connection.send(ShowStack())
                    asked.append(rank)
        deadline = time.monotonic() + _STACK_SECONDS
        while any(rank not in self._asleep for rank in asked) and time.monotonic() < deadline:
            self._hear(0.02)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a step is made for; a launch that needs another one gets another step."""

    job: str
    command: tuple[str, ...]
    ranks: int


_lock = threading.Lock()
_idle: tuple[Layout, Step] | None = None
"""The step of the last launch."""


@contextmanager
def step_of_ranks(
    layout: Layout, command_for: CommandFor, environment: dict[str, str], work: Work
) -> Iterator[Step]:
    """A step with the ranks of a launch; at the end of the block no rank is left.

    The tasks are kept for the next launch, which spares it the seconds that importing torch takes. When the
    deadline has passed, or something happened that nobody foresaw, the step is ended.
    """
    step = _take_idle(layout) or Step(layout.ranks, command_for, environment)
    try:
        step.begin(work)
        yield step
    except (RankFailed, Deadlock, CollectiveMismatch):
        _rest(layout, step)
        raise
    except BaseException:
        step.end()
        raise
    _rest(layout, step)


def _rest(layout: Layout, step: Step) -> None:
    if step.usable:
        step.rest()
        _put_idle(layout, step)
    else:
        step.end()


def end_idle_step() -> None:
    """End the step that is kept for the next launch, if there is one."""
    global _idle
    with _lock:
        idle, _idle = _idle, None
    if idle is not None:
        idle[1].end()


def _take_idle(layout: Layout) -> Step | None:
    global _idle
    with _lock:
        if _idle is not None and _idle[0] == layout and _idle[1].usable:
            step, _idle = _idle[1], None
            return step
    end_idle_step()
    return None


def _put_idle(layout: Layout, step: Step) -> None:
    global _idle
    end_idle_step()
    with _lock:
        _idle = (layout, step)
    atexit.unregister(end_idle_step)
    atexit.register(end_idle_step)


def _launches() -> Path:
    """A folder that all nodes see."""
    try:
        folder = course_home() / "launches"
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise BadLaunch(
            f"The ranks need a folder that all nodes see, and {error.filename} cannot be made "
            f"({error.strerror}). Name another one in COURSE_HOME."
        ) from None
    return folder
