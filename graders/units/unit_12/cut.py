"""What varies in layers of which each rank has a part."""

from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.judging import feature
from graders.units.unit_12.cases import THREES

_NTH = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Cut:
    """sizes: of each rank's part. only: which gradient alone is looked at; None: all. frozen: which tensor
    needs no gradient. grouped: whether groups THREES call. calls: in one graph, each of another x.
    """

    sizes: tuple[int, ...] = feature((4, 4, 4), "parts of {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    only: int | None = feature(
        None, lambda only: "" if only is None else f"the {_NTH[only]} argument's gradient"
    )
    frozen: int | None = feature(None, lambda frozen: "" if frozen is None else "a tensor without gradient")
    grouped: bool = feature(False, lambda grouped: f"groups {THREES}" if grouped else "")
    calls: int = feature(1, lambda calls: f"{calls} calls in one graph" if calls > 1 else "")

    @property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        return THREES if self.grouped else [[*range(len(self.sizes))]]

    @property
    def options(self) -> dict[str, Any]:
        """What is given beside tensors and group."""
        return {}

    @property
    def gradients_too(self) -> bool:
        """Whether gradients are looked at, of all cases but the ordinary one."""
        return True

    @property
    def near(self) -> float:
        """How far results may be off; gradients ten times as far."""
        return {torch.float64: 1e-9, torch.float32: 1e-4}[self.dtype]
