"""Checkpoints by torch.distributed.checkpoint: every rank writes its part.

Apart from `course_lib.training.checkpoints` because torch's package takes two seconds to import.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from course_lib.training.checkpoints import State


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written; the message says why, and that the one before is intact."""


@dataclass(frozen=True, slots=True)
class SavedByTorch:
    """The industry's `Checkpoints`: sharded, and safe from a crash.

    torch writes `.metadata` last, under another name first; a folder without it is a save that did not end.
    """

    directory: Path
    every: int = 10
    kept: int = 2

    def save(self, step: int, state: State) -> None:
        try:
            state_dict_saver.save(state, checkpoint_id=self.directory / f"step-{step:08}")
        except (OSError, CheckpointException) as error:
            free = shutil.disk_usage(self.directory).free
            raise CheckpointFailed(_why(error, free, self._complete())) from error
        if dist.get_rank() == 0:
            for old in self._complete()[: -self.kept]:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, state: State) -> int:
        newest = _from_rank_zero(self._complete()[-1:])
        if not newest:
            return 0
        state_dict_loader.load(state, checkpoint_id=newest[0])
        return int(newest[0].name.removeprefix("step-"))

    def _complete(self) -> list[Path]:
        return sorted(path.parent for path in self.directory.glob("step-*/.metadata"))


def _from_rank_zero(paths: Sequence[Path]) -> list[Path]:
    """Rank 0's view of a shared folder: other nodes may see it a moment later."""
    held = [list(paths)]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def _why(error: BaseException, free: int, complete: Sequence[Path]) -> str:
    """Why a checkpoint could not be written. torch's own message hides that the disk is full."""
    causes = error.failures.values() if isinstance(error, CheckpointException) else [error]
    first = next(iter(causes), error)
    cause = first[0] if isinstance(first, tuple) else first
    before = f"The one before, {complete[-1].name}, is intact." if complete else "There is none before it."
    return (
        f"The checkpoint could not be written ({str(cause).strip()}); {free / 1e6:.1f} MB are free on its "
        f"disk. {before} Make room and submit again."
    )
