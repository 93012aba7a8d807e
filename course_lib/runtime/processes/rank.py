"""The life of one rank, in a process of its own, forked from a warm one."""

import faulthandler
import io
import linecache
import os
import random
import signal
import sys
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

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
from course_lib.runtime.processes.logged_calls import CallLogger
from course_lib.runtime.processes.logged_group import install
from course_lib.runtime.processes.protocol import Plan, Start
from course_lib.runtime.processes.serialization import deserialize_launch, serialize

STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""Asks a rank where it is. Not one that a program would use: batch systems announce their end by SIGUSR1."""

_TIMEOUT_MARGIN_SECONDS = 30
"""So much later than the launcher's deadline torch would give up by itself."""

_MEETING_SECONDS = 60
"""How long a rank tries to reach the store of the ranks."""

_is_rank = False


class ResultNotSendable(TypeError):
    """A rank returned something that cannot be sent to another process."""


def is_rank() -> bool:
    """Whether this process is a rank already."""
    return _is_rank


def rank_main(folder: LaunchFolder, start: Start, rank: int, wake: int) -> NoReturn:
    """Be rank `rank` of a launch, from the fork to the end. Whoever forked this process ends it.

    wake: descriptor of the agent's pipe: a byte there has it look what this rank has left.
    """
    global _is_rank
    _is_rank = True
    _capture_output(folder, rank)
    _watch_for_crashes(folder, rank)
    call_log = CallLog(folder.call_log(rank))
    try:
        _run(folder, start, rank, call_log)
    except BaseException as error:
        _tell_failure(call_log, error)
    with suppress(BlockingIOError):
        os.write(wake, b"!")
    # A rank that left would close its connections, and the others would report that instead of the cause.
    while True:
        signal.pause()


def _run(folder: LaunchFolder, start: Start, rank: int, call_log: CallLog) -> None:
    _resemble_launcher(start.plan)
    logger = install(call_log)
    _join_group(folder, start, rank)
    function, arguments = deserialize_launch(start.function, start.arguments[rank])
    _seed(start.plan.seed)
    span_recorder.set(logger)
    call_log.write(Started(now()))
    result = function(*arguments)
    _leave_result(folder, rank, result, logger)
    call_log.write(Returned(now()))


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


def _resemble_launcher(plan: Plan) -> None:
    """Take over from the launcher what a child of its own would have inherited."""
    os.environ.clear()
    os.environ.update(plan.environment)
    os.chdir(plan.working_directory)
    sys.path[:] = plan.module_path
    sys.argv[:] = plan.program
    linecache.cache.update(plan.sources)
    torch.set_num_threads(plan.threads or 1)


def _join_group(folder: LaunchFolder, start: Start, rank: int) -> None:
    plan = start.plan
    if "nccl" in plan.backend:
        # A batch system may show each rank its own GPU alone.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(
        plan.backend,
        store=_store(folder, start),
        rank=rank,
        world_size=plan.ranks,
        timeout=timedelta(seconds=plan.timeout + _TIMEOUT_MARGIN_SECONDS),
    )


def _store(folder: LaunchFolder, start: Start) -> Store:
    """Through it the ranks find each other."""
    if start.store is None:
        return FileStore(str(folder.store), start.plan.ranks)
    host, port = start.store
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_MEETING_SECONDS))


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _leave_result(folder: LaunchFolder, rank: int, result: object, logger: CallLogger) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    logger.settle()
    try:
        written = serialize(result)
    except Exception as error:
        # Whatever an object's own pickling raises: there is no common class.
        raise ResultNotSendable(
            f"rank {rank} returned {type(result).__name__}, which cannot be sent back ({error}). "
            f"Return plain data: tensors, numbers, text, lists, dicts, models."
        ) from None
    # Whole or not at all: the agent may look at any moment.
    draft = folder.path / f"draft-{rank}"
    draft.write_bytes(written)
    draft.rename(folder.result(rank))


def _tell_failure(call_log: CallLog, error: BaseException) -> None:
    try:
        call_log.write(_failed(error))
    except CallLogLost:
        os._exit(CALL_LOG_LOST)


def _failed(error: BaseException) -> Failed:
    lines = own_lines(traceback.walk_tb(error.__traceback__))
    places = tuple(place for line in lines if (place := place_of(line)) is not None)
    ending = "".join(traceback.format_exception_only(error))
    return Failed(now(), type(error).__name__, str(error), places, ending)
