"""What varies in layers of which each rank has a part."""

from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.judging import feature
from graders.units.unit_12.cases import THREES

_NTH = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Cut:
    """sizes: of each rank's part. only: which gradient alone is looked at; None: all. gaps: tensors stand
    transposed in memory. frozen: which need no gradient. groups: names of GROUPS. several: several calls
    in one graph.
    """

    sizes: tuple[int, ...] = feature((4, 4, 4), "parts of {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    only: int | None = feature(
        None, lambda only: "" if only is None else f"the {_NTH[only]} argument's gradient"
    )
    gaps: bool = feature(False, lambda gaps: "transposed in memory" if gaps else "")
    frozen: tuple[int, ...] = feature((), lambda frozen: "a tensor without gradient" if frozen else "")
    groups: str = feature("", {"": "", "threes": f"groups {THREES}", "alone": "groups of one"}.__getitem__)
    several: bool = feature(False, lambda several: "several calls in one graph" if several else "")

    @property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        threes, alone = THREES, [[0], [1], [2]]
        return {"": [[*range(len(self.sizes))]], "threes": threes, "alone": alone}[self.groups]

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
        return {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-3}[self.dtype]
