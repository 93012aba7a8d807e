"""Training that something happens to: `python elastic_faults.py FOLDER FAULT`, one rank."""

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from course_lib.launch.ranks import join_group
from course_lib.training.elastic import Recipe, SavedByTorch, leave_group, train

SLOWNESS = {"slow": 15, "limit": 6}
"""Seconds for a step, after the first ones and until the job is started again."""

RECIPE = Recipe(epochs=1, save_every=4)


def die_once(folder: Path) -> None:
    """Rank 1 is killed after step 6, the first time that it comes there."""
    mark = folder / "died"
    if dist.get_rank() == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, fault: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    join_group()

    def after_step(step: int) -> None:
        if fault == "sigkill" and step == 6:
            die_once(folder)
        if step >= 6 and "SLURM_RESTART_COUNT" not in os.environ:
            # So that what is to happen happens before the end.
            time.sleep(SLOWNESS.get(fault, 0))

    train(RECIPE, folder, SavedByTorch(folder / "checkpoints"), after_step)
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(0)
