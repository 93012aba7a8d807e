"""What cases of several exercises of unit 04 are drawn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng

SHAPES = ((3, 4), (5,), (2, 3, 2))
ODD_SHAPES = ((2, 3), (), (0, 4), (1, 5))
"""Among them one of a single number and no dimension, and one without a number."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Tensors that are laid end to end."""

    shapes: tuple[tuple[int, ...], ...] = feature(SHAPES, "shapes {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))

    def drawn(self, rng: Rng, *shape: int) -> Tensor:
        return rng.normal(*shape, dtype=self.dtype)
