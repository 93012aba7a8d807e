"""What a training needs so that a loop over it can be left at any step and taken up again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


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
