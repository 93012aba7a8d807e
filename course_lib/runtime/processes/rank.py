"""The life of one rank that computes with PyTorch, in a process of its own, forked from a warm one."""

import os
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch
import torch.distributed as dist

from course_lib.runtime.device_wait import unless_cpu
from course_lib.runtime.processes.call_log import CallLog
from course_lib.runtime.processes.horovod_group import BACKEND as HOROVOD
from course_lib.runtime.processes.horovod_group import join_horovod, leave_horovod
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.logged_calls import CallLogger
from course_lib.runtime.processes.logged_group import LoggedGroup, install
from course_lib.runtime.processes.meeting import store_for_rank
from course_lib.runtime.processes.protocol import Start
from course_lib.runtime.processes.rank_life import Ending, call_function, live, resemble_launcher
from course_lib.runtime.processes.renewable import RenewableGroup, switched
from course_lib.runtime.processes.serialization import serialize

_TIMEOUT_MARGIN_SECONDS = 30
"""So much later than the launcher's deadline torch would give up by itself."""


def rank_main(folder: LaunchFolder, start: Start, rank: int, wake: int) -> NoReturn:
    """Be rank `rank` of a launch, from the fork to the end."""
    live(folder, rank, wake, partial(_work, folder, start, rank))


def _work(folder: LaunchFolder, start: Start, rank: int, call_log: CallLog) -> None:
    resemble_launcher(start.plan)
    torch.set_num_threads(start.plan.threads or 1)
    logger = install(call_log, LoggedGroup if start.generation is None else RenewableGroup)
    torch.cuda.synchronize = unless_cpu(torch.cuda.synchronize)
    if start.plan.backend == HOROVOD:
        join_horovod(folder, rank)
        ending = Ending(leave_horovod, serialize)
    else:
        _join_group(folder, start, rank)
        ending = Ending(partial(_settle, logger), serialize)
    if start.plan.memory:
        from course_lib.runtime.communication.memory_tracker import call_followed

        call_function(folder, start, rank, call_log, ending, partial(call_followed, call_log))
    else:
        call_function(folder, start, rank, call_log, ending)


def _settle(logger: CallLogger) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    logger.settle()


def _join_group(folder: LaunchFolder, start: Start, rank: int) -> None:
    plan = start.plan
    if "nccl" in plan.backend:
        # A batch system may show each rank its own GPU alone.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    store = store_for_rank(folder, start)
    dist.init_process_group(
        plan.backend,
        store=store if start.generation is None else switched(store, start.generation),
        rank=rank,
        world_size=plan.ranks,
        timeout=timedelta(seconds=plan.timeout + _TIMEOUT_MARGIN_SECONDS),
    )
