"""Training that something happens to: `python elastic_faults.py FOLDER FAULT [STEP]`, one rank."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from course_lib.runtime.processes.rank_environment import join_group
from course_lib.training import elastic
from course_lib.training.elastic import STOP, leave_group, train
from course_lib.training.torch_checkpoints import SavedByTorch

SLOWNESS = {"slow": 100, "limit": 15}
"""Seconds for a step, after the first ones and until the job is started again."""

RECIPE = replace(elastic.RECIPE, epochs=1)
"""That of `python -m course_lib.training.elastic --epochs 1`."""


def once(mark: Path) -> bool:
    """Whether this is the first time that anybody asks."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die(folder: Path, how: str) -> None:
    """End this process by SIGKILL, the first time that it is to die so."""
    if once(folder / how):
        os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(folder: Path, saves: int) -> None:
    """Arrange that rank 0 dies in its save of this number, after all parts and before the metadata.

    Not before a worker has died between saves.
    """
    finish, calls = FileSystemWriter.finish, []

    def killed(*arguments: Any, **options: Any) -> None:
        calls.append(None)
        if (folder / "died").exists() and len(calls) == saves:
            die(folder, "died while saving")
        finish(*arguments, **options)

    FileSystemWriter.finish = killed  # type: ignore[method-assign]


def after_step_of(folder: Path, fault: str, at: int) -> Callable[[int], None]:
    """What happens after each step."""

    def after_step(step: int) -> None:
        if fault == "sigkill" and step == at and dist.get_rank() == 1:
            die(folder, "died")
        if fault == "stop" and step == at - 1 and dist.get_rank() == 0:
            (folder / STOP).touch()
        if step >= 6 and "SLURM_RESTART_COUNT" not in os.environ:
            # So that what is to happen happens before the end.
            time.sleep(SLOWNESS.get(fault, 0))

    return after_step


def main(folder: Path, fault: str, at: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    elastic.say_hello(join_group())
    if fault == "sigkill":
        die_while_saving(folder, saves=1)
    train(RECIPE, folder, SavedByTorch(folder / "checkpoints", every=4), after_step_of(folder, fault, at))
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int((*sys.argv[3:], 6)[0]))
    sys.stdout.flush()
    os._exit(0)
