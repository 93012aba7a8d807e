"""Tensors that change from one placement to another, and what each place has of them."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments

LARGE = 2**59
"""Four of them add up to less than an int64 holds, and no float has as many digits."""


@dataclass(frozen=True, slots=True)
class Moved(Ranks):
    """A tensor's change from one placement to another, as `spelled`. odd: one inf and one NaN in it."""

    change: tuple[str, str] = feature(("S(0)", "R"), " to ".join)
    dims: int = feature(3, "{} dimensions")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    odd: bool = feature(False, lambda odd: "inf and nan among the numbers" if odd else "")

    @property
    def tolerance(self) -> float:
        """None where nothing is rounded; a sum may be added up in any order."""
        rounds = "P" in self.change and (self.dtype.is_floating_point or self.dtype.is_complex)
        return 16 * torch.finfo(self.dtype).eps if rounds else 0.0

    @property
    def cut(self) -> set[int]:
        """The dimensions that are cut before or afterwards."""
        return {int(each[2]) for each in self.change if each.startswith("S")}

    @property
    def shape(self) -> list[int]:
        """Of the whole tensor; each dimension has another length."""
        return [(dim + 2) * (self.ranks if dim in self.cut else 1) for dim in range(self.dims)]

    @property
    def nbytes(self) -> int:
        """Of what a rank is given."""
        parts = self.ranks if self.change[0].startswith("S") else 1
        return prod(self.shape) // parts * self.dtype.itemsize

    @property
    def to_a_sum(self) -> bool:
        return self.change[1] == "P" != self.change[0]


def parts(rng: Rng, case: Moved) -> list[Arguments]:
    """What each place has in the source's layout."""
    summed = case.change[0] == "P"
    drawn = [_numbers(rng, case) for _ in range(case.ranks if summed else 1)]
    given = (
        drawn
        if summed
        else [part(drawn[0], case.change[0], case.ranks, place) for place in range(case.ranks)]
    )
    return [[each.contiguous(), *case.change] for each in given]


def _numbers(rng: Rng, case: Moved) -> Tensor:
    """With as many digits as they can have; those of bfloat16 are such that they add up without rounding."""
    if case.dtype is torch.bool:
        return rng.integers(0, 1, *case.shape).bool()
    if case.dtype is torch.int64:
        return rng.integers(-LARGE, LARGE, *case.shape)
    if case.dtype is torch.bfloat16:
        return rng.integers(-60, 60, *case.shape).to(case.dtype)
    drawn = rng.normal(*case.shape, dtype=case.dtype)
    if case.odd:
        drawn.view(-1)[rng.integer(1, 3)], drawn.view(-1)[-1] = torch.inf, torch.nan
    return drawn


def part(whole: Tensor, layout: str, ranks: int, place: int) -> Tensor:
    """What a place has of it, where a sum counts as whole."""
    return whole.tensor_split(ranks, int(layout[2]))[place] if layout.startswith("S") else whole
