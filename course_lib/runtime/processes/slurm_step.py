"""The agents of a Slurm step: starts the step, lets its tasks in, and ends it and nothing else."""

import atexit
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from course_lib.errors import BadLaunch
from course_lib.home import course_home
from course_lib.runtime.processes.agents import Agents
from course_lib.runtime.processes.protocol import RankProgress, Ready, Start
from course_lib.runtime.processes.tcp import listen, welcome

_END_SECONDS = 5.0

CommandFor = Callable[[Sequence[str]], list[str]]
"""Makes the command that starts a program as every task of the step."""


class Step(Agents):
    """A step and its tasks, each the agent of one rank. It serves one launch after the other."""

    def __init__(self, ranks: int, command_for: CommandFor, environment: dict[str, str]) -> None:
        super().__init__()
        self._world_size = ranks
        self._owner = os.getpid()
        self._server, self._address = listen()
        self._poll.register(self._server, select.EPOLLIN)
        self._waiting: dict[int, Ready] = {}
        """Tasks that wait for a launch, by descriptor."""
        self._hosts: dict[int, str] = {}
        self._name = ""
        self._next: Start | None = None
        """The launch that begins when all tasks are there."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the step lives
        self._address_file = _launches() / f"{secrets.token_hex(8)}.json"
        self._address.write(self._address_file)
        agent = [sys.executable, "-P", "-m", "course_lib.runtime.processes.node_agent"]
        self._step = subprocess.Popen(
            command_for([*agent, str(self._address_file)]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            # Ctrl-C in a terminal and an interrupt from Jupyter are for the launcher alone.
            start_new_session=True,
        )

    @property
    def usable(self) -> bool:
        """Whether it can serve another launch of this process."""
        complete = len(self._channels) == self._world_size
        gone = self.lost or self._step.poll() is not None
        return self._owner == os.getpid() and complete and not gone

    def begin(self, start: Start) -> None:
        """Begin a launch, as soon as all tasks are there."""
        self._next = start
        self._begin_if_complete()

    def read(self, seconds: float) -> Sequence[RankProgress]:
        """What the ranks have left since the last call, waiting for something for so long at most."""
        progress = super().read(seconds)
        if not progress and not self.lost and self._step.poll() is not None:
            self.lost = f"The Slurm step ended before its ranks had. It said:\n{self._what_it_said()}"
        return progress

    def end(self) -> None:
        """End the step's tasks and wait until they are gone; the allocation and its other steps go on."""
        if self._owner != os.getpid() or self._said.closed:
            return
        self.close()
        self._server.close()
        self._address_file.unlink(missing_ok=True)
        self._end_step()
        self._said.close()

    def _end_step(self) -> None:
        """The tasks end by themselves when the launcher lets go; a step whose tasks do not is cancelled."""
        if _ends(self._step, _END_SECONDS if self._name else 0.1):
            return
        if self._name:
            subprocess.run(["scancel", "--signal=KILL", self._name], capture_output=True, check=False)
        else:
            # srun and ibrun pass it on to their tasks.
            self._step.send_signal(signal.SIGTERM)
        if not _ends(self._step, _END_SECONDS):
            self._step.kill()
            self._step.wait()

    def _what_it_said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip() or "(nothing)"

    # --- What its tasks say

    def _other(self, descriptor: int) -> None:
        channel = welcome(self._server, self._address.key)
        if channel is not None:
            self.add(channel)

    def _ready(self, descriptor: int, ready: Ready) -> None:
        assert ready.info is not None
        self._hosts[descriptor] = ready.host
        known = {each.info.rank for each in self._waiting.values() if each.info is not None}
        if ready.info.rank in known or ready.info.ranks != self._world_size:
            self.lost = (
                f"The step was to have {self._world_size} ranks, but a task on {ready.host} takes itself for "
                f"rank {ready.info.rank} of {ready.info.ranks}: the launcher and the tasks do not understand "
                f"each other. `course doctor` says which launcher this site wants."
            )
            return
        self._waiting[descriptor] = ready
        self._name = self._name or ready.step
        self._begin_if_complete()

    def _begin_if_complete(self) -> None:
        start = self._next
        if start is None or len(self._waiting) < self._world_size:
            return
        waiting, self._waiting, self._next = self._waiting, {}, None
        tasks = {each.info.rank: (descriptor, each) for descriptor, each in waiting.items() if each.info}
        store = (tasks[0][1].host, tasks[0][1].store_port)
        for rank, (descriptor, _) in tasks.items():
            self.start(descriptor, replace(start, arguments={rank: start.arguments[rank]}, store=store))

    def _forget(self, descriptor: int) -> None:
        self._waiting.pop(descriptor, None)
        super()._forget(descriptor)

    def _where(self, descriptor: int) -> str:
        return f" on {self._hosts[descriptor]}" if descriptor in self._hosts else ""


def _ends(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


# --- The step of the last launch, kept for the next one


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step is made for; a launch that needs another one gets another step."""

    job: str
    command: tuple[str, ...]
    ranks: int


_lock = threading.Lock()
_idle: tuple[StepShape, Step] | None = None


@contextmanager
def ranks_in_step(
    shape: StepShape, command_for: CommandFor, environment: dict[str, str], start: Start
) -> Iterator[Step]:
    """A step with the ranks of a launch; at the end of the block no rank is left.

    The tasks are kept for the next launch, which spares it the seconds that importing torch takes, unless the
    block ends the step or something happened that nobody foresaw.
    """
    step = _take_idle(shape) or Step(shape.ranks, command_for, environment)
    try:
        step.begin(start)
        yield step
    except BaseException:
        step.end()
        raise
    if step.usable:
        step.stop()
        _put_idle(shape, step)
    else:
        step.end()


def end_idle_step() -> None:
    """End the step that is kept for the next launch, if there is one."""
    global _idle
    with _lock:
        idle, _idle = _idle, None
    if idle is not None:
        idle[1].end()


def _take_idle(shape: StepShape) -> Step | None:
    global _idle
    with _lock:
        if _idle is not None and _idle[0] == shape and _idle[1].usable:
            step, _idle = _idle[1], None
            return step
    end_idle_step()
    return None


def _put_idle(shape: StepShape, step: Step) -> None:
    global _idle
    end_idle_step()
    with _lock:
        _idle = (shape, step)
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
