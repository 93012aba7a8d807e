"""What the lives of all ranks have in common, whatever they compute with. No PyTorch here."""

import faulthandler
import io
import linecache
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from course_lib.runtime.communication.callsite import own_lines
from course_lib.runtime.communication.events import span_recorder
from course_lib.runtime.processes.call_log import (
    CALL_LOG_LOST,
    CallLog,
    CallLogLost,
    Failed,
    Returned,
    Started,
    now,
    place_of,
)
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.protocol import Plan, Start

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Asks a rank where it is. Not one that a program would use: batch systems announce their end by SIGUSR1."""

_is_rank = False
_wake = -1
"""Descriptor of the agent's pipe, in a rank."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank's function ends: `settle` waits for what it has begun, `serialize` writes its result."""

    settle: Callable[[], None]
    serialize: Callable[[Any], bytes]


class ResultNotSendable(TypeError):
    """A rank returned something that cannot be sent to another process."""


def is_rank() -> bool:
    """Whether this process is a rank already."""
    return _is_rank


def live(folder: LaunchFolder, rank: int, wake: int, work: Callable[[CallLog], None]) -> NoReturn:
    """Be a rank of a launch, to the end. Whoever has started this process ends it.

    wake: descriptor of the agent's pipe: a byte there has it look what this rank has left. work: from joining
    the others to leaving the result; what it raises is logged.
    """
    global _is_rank, _wake
    _is_rank, _wake = True, wake
    _capture_output(folder, rank)
    _watch_for_crashes(folder, rank)
    call_log = CallLog(folder.call_log(rank))
    try:
        work(call_log)
    except BaseException as error:
        tell_failure(call_log, error)
    have_agent_look()
    # A rank that left would close its connections, and the others would report that instead of the cause.
    while True:
        signal.pause()


def have_agent_look() -> None:
    """Have the agent pass on now what this rank has left."""
    with suppress(BlockingIOError):
        os.write(_wake, b"!")


def call_function(
    folder: LaunchFolder,
    start: Start,
    rank: int,
    call_log: CallLog,
    ending: Ending,
    call: Callable[[Callable[..., Any], Sequence[Any]], Any] = lambda function, arguments: function(
        *arguments
    ),
) -> None:
    """Call the launched function and leave its result. call: calls a function with arguments."""
    function, arguments = deserialize_launch(start.function, start.arguments[rank])
    _seed(start.plan.seed)
    span_recorder.set(call_log)
    call_log.write(Started(now()))
    result = call(function, arguments)
    ending.settle()
    try:
        written = ending.serialize(result)
    except Exception as error:
        # Whatever an object's own pickling raises: there is no common class.
        raise ResultNotSendable(
            f"rank {rank} returned {type(result).__name__}, which cannot be sent back ({error}). "
            f"Return plain data: tensors, numbers, text, lists, dicts, models."
        ) from None
    folder.write(folder.result(rank), written)
    call_log.write(Returned(now()))


def _seed(seed: int) -> None:
    """Begin the random numbers of every library that this rank has loaded."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(seed)


def deserialize_launch(shared: bytes, own: bytes) -> tuple[Any, tuple[Any, ...]]:
    """The function and the arguments of one rank, as `serialize_launch` has written them."""
    function, everyones, places = pickle.loads(shared)
    from_everyone, from_own = iter(everyones), iter(pickle.loads(own))
    return function, tuple(next(from_own if own_place else from_everyone) for own_place in places)


def resemble_launcher(plan: Plan) -> None:
    """Take over from the launcher what a child of its own would have inherited."""
    os.environ.clear()
    os.environ.update(plan.environment)
    os.chdir(plan.working_directory)
    # An interpreter of another environment has packages of its own.
    own = sys.path if plan.interpreter else []
    sys.path[:] = list(dict.fromkeys([*own, *plan.module_path]))
    sys.argv[:] = plan.program
    linecache.cache.update(plan.sources)


def _capture_output(folder: LaunchFolder, rank: int) -> None:
    """Send everything that this process and its children print to a file."""
    output = os.open(folder.output(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # Unbuffered, so that nothing is lost when the process is killed and the order is that of the writes.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.FileIO(descriptor, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
        )
        for descriptor in (1, 2)
    )


def _watch_for_crashes(folder: LaunchFolder, rank: int) -> None:
    """Write the stack when the interpreter crashes, and whenever the launcher asks."""
    stack = open(folder.stack(rank), "w")  # noqa: SIM115 - stays open as long as the process lives
    faulthandler.enable(stack, all_threads=True)
    faulthandler.register(STACK_SIGNAL, stack, all_threads=True)


def tell_failure(call_log: CallLog, error: BaseException) -> None:
    """Log what a rank has raised."""
    try:
        call_log.write(_failed(error))
    except CallLogLost:
        os._exit(CALL_LOG_LOST)


def _failed(error: BaseException) -> Failed:
    lines = own_lines(traceback.walk_tb(error.__traceback__))
    places = tuple(place for line in lines if (place := place_of(line)) is not None)
    ending = "".join(traceback.format_exception_only(error))
    return Failed(now(), type(error).__name__, str(error), places, ending)
