"""Checkpoints: what a training needs so that it can be left at any step and taken up again.

`Checkpoints` is how a loop saves and restores; a student's functions (`SavedByFunctions`) and PyTorch's own
sharded checkpoints (`course_lib.training.torch_checkpoints`) are values of it. `Training` holds a training's
parts for a loop that is the exercise itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

State = dict[str, Any]


class Checkpoints(Protocol):
    """How training is saved. Every rank calls each method; what they do in common is their own business."""

    @property
    def every(self) -> int:
        """Steps between two checkpoints."""

    def save(self, step: int, state: State) -> None:
        """Keep `state` as that after `step` steps. An interrupted save must leave the last one usable."""

    def restore(self, state: State) -> int:
        """Fill `state` in place from the newest usable save; returns its step, 0 if there is none."""


@dataclass(frozen=True, slots=True)
class SavedByFunctions:
    """Checkpoints by two functions, such as the answers of unit 03: rank 0 writes, every rank reads.

    write(path, state), and load_latest(directory), which returns the newest state that can be read, or None.
    The tensors of the state are on the CPU: a file from a GPU can be read where there is none.
    """

    directory: Path
    write: Callable[[Path, State], None]
    load_latest: Callable[[Path], State | None]
    every: int = 10

    def save(self, step: int, state: State) -> None:
        if dist.get_rank() == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            written = {"step": step, "state": tree_map_only(Tensor, Tensor.cpu, state)}
            self.write(self.directory / f"step-{step:08}.pt", written)
        dist.barrier()

    def restore(self, state: State) -> int:
        held = self.load_latest(self.directory) if self.directory.exists() else None
        if held is None:
            return 0
        state.update(held["state"])
        return int(held["step"])


class Stateful(Protocol):
    """A model, an optimizer, a scheduler: what it has learnt can be taken out and put back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Training:
    """The parts of a training, without the loop.

    samples: [N, ...], all of them. batch_size: samples of a step; the last of an epoch may have fewer.
    train_step: one optimizer step on a batch [B, ...] of the samples. It changes model and optimizer, and
    draws from torch's global random generator, as dropout and augmentation do.
    """

    model: Stateful
    optimizer: Stateful
    samples: Tensor
    batch_size: int
    epochs: int
    train_step: Callable[[Tensor], None]
