"""Training that something happens to: `python elastic_faults.py FOLDER FAULT [STEP]`, one rank."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.processes.rank_environment import join_group
from course_lib.slurm.allocation import present_allocation
from course_lib.training import elastic
from course_lib.training.elastic import STOP, leave_group, train
from course_lib.training.torch_checkpoints import SavedByTorch

SLOW_SECONDS = 100
"""For a slow step, after the first ones and until the job is started again."""
LIMIT_MINUTES, SIGNAL_SECONDS = 60, 180
"""Of a job whose limit comes near: its time, and how long before its end Slurm signals."""

RECIPE = replace(elastic.RECIPE, epochs=1)
"""That of `python -m course_lib.training.elastic --epochs 1`."""


def without_compiler() -> None:
    """Let a rank do without torch's compiler, whose import takes longer than all that it trains here."""
    stub: Any = ModuleType("torch._dynamo")
    stub.disable = lambda function, *_, **__: function
    stub.graph_break = lambda: None
    stub.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
    stub.eval_frame = SimpleNamespace(OptimizedModule=())
    stub.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    sys.modules[stub.__name__] = torch._dynamo = stub


def once(mark: Path) -> bool:
    """Whether this is the first time that anybody asks."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def after_step_of(folder: Path, fault: str, at: int) -> Callable[[int], None]:
    """What happens after each step."""

    def after_step(step: int) -> None:
        if fault == "sigkill" and step == at and dist.get_rank() == 1 and once(folder / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop" and step == at - 1 and dist.get_rank() == 0:
            (folder / STOP).touch()
        if step >= 6 and "SLURM_RESTART_COUNT" not in os.environ:
            # So that what is to happen happens before the end.
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            if fault == "limit" and dist.get_rank() == 0 and not (folder / STOP).exists():
                come_near_the_limit(folder / STOP)

    return after_step


def come_near_the_limit(stop: Path) -> None:
    """Have the job end in two or three minutes, whenever that is, until it is told to stop."""
    left = present_allocation().seconds_left
    assert left is not None
    set_time_limit(LIMIT_MINUTES - left // 60 + 2)
    while not stop.exists():
        time.sleep(0.1)
    # The next life has all the time again, so that one restart is enough on any machine.
    set_time_limit(LIMIT_MINUTES)


def set_time_limit(minutes: int) -> None:
    """Of this job."""
    job = f"JobId={os.environ['SLURM_JOB_ID']}"
    subprocess.run(["scontrol", "update", job, f"TimeLimit={minutes}"], check=True)


def main(folder: Path, fault: str, at: int) -> None:
    without_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    elastic.say_hello(join_group())
    train(RECIPE, folder, SavedByTorch(folder / "checkpoints", every=4), after_step_of(folder, fault, at))
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int((*sys.argv[3:], 6)[0]))
    sys.stdout.flush()
    os._exit(0)
