"""What the cases of unit 10 share: how an answer is called through which autograd passes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.units.ranks.features import Ranks

NEAR = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 1e-2)}
"""How far numbers of a dtype may be off, relative and absolute."""

Places = list[list[Any]]
"""Positional arguments of each place of the group."""


@dataclass(frozen=True, slots=True)
class Setting(Ranks):
    """dtype: of all floating tensors."""

    dtype: torch.dtype = feature(
        torch.float32, lambda dtype: "" if dtype is torch.float32 else str(dtype)[6:]
    )

    @property
    def near(self) -> tuple[float, float]:
        return NEAR[self.dtype]

    def rounded(self, result: Any) -> Any:
        """A tensor, or a tuple of them, in this dtype where it is floating."""
        if isinstance(result, tuple):
            return tuple(map(self.rounded, result))
        return result.detach().to(self.dtype) if result.is_floating_point() else result


@dataclass(frozen=True, slots=True)
class Alone(Setting):
    """Of an answer that is called without ranks."""

    ranks: int = 0

    @property
    def places(self) -> tuple[int, ...]:
        return (0,)


def plan_of(experts: Tensor, count: int, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Order [R] and counts [count] for choices [N, k], one choice after another."""
    k = experts.shape[1]
    lists: list[list[int]] = [[] for _ in range(count)]
    for place in range(k):
        for token, expert in enumerate(experts[:, place].tolist()):
            lists[expert].append(token * k + place)
    kept = [each[:capacity] for each in lists]
    order = torch.tensor([choice for each in kept for choice in each], dtype=torch.int64)
    return order, torch.tensor([len(each) for each in kept], dtype=torch.int64)


def leaving(rows: Tensor, dtype: torch.dtype, before: int = 0) -> list[tuple[int, int]]:
    """Bytes that leave each place in forward and in backward: rows[i, j] rows of 3 numbers go from i to j,
    and their gradients back. before: bytes that go before the rows.
    """
    away, row = rows - rows.diag().diag(), 3 * dtype.itemsize
    both = zip(away.sum(1).tolist(), away.sum(0).tolist(), strict=True)
    return [(before + row * there, row * back) for there, back in both]


def parts_of(rows: Tensor, counts: Tensor) -> list[Tensor]:
    """Rows in parts: one for each row of counts, as long as the sum of that."""
    parts: list[Tensor] = list(torch.split(rows, counts.sum(1).tolist()))
    return parts
