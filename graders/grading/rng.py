"""The only secret of a grading: random inputs, drawn anew each time."""

import secrets
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


class Rng:
    """A source of random inputs. With a seed it repeats itself; without, nobody knows it."""

    def __init__(self, seed: int | None = None) -> None:
        self.generator = torch.Generator()
        self.generator.manual_seed(secrets.randbits(63) if seed is None else seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers of the given shape."""
        return torch.randn(shape, generator=self.generator, dtype=dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers of the given shape from low to high, both possible, int64."""
        return torch.randint(low, high + 1, shape, generator=self.generator)

    def integer(self, low: int, high: int) -> int:
        """One integer from low to high, both possible."""
        return int(self.integers(low, high, 1))

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.integer(0, len(items) - 1)]
