"""What the exercises of unit 12 share: what rows may look at, and groups of ranks."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from graders.grading.explanation import Tried
from graders.grading.kit import Finding

THREES = [[0, 2, 5], [1, 3, 4]]
"""Groups in which a rank's place is neither its number modulo 3 nor which half of all ranks it is in."""

Looks = dict[str, Callable[[], Finding]]
"""What rows that ask how may look at in a right case: the row's name -> how it is found."""


def look(name: str) -> Callable[[Tried[Any]], Finding | None]:
    """How a row looks at right cases: by what stands there under this name, if anything does."""

    def looked_at(tried: Tried[Any]) -> Finding | None:
        found: Callable[[], Finding] | None = tried.seen.get(name)
        return found() if found else None

    return looked_at


def ranks_in_mesh(shape: tuple[int, int, int], turned: bool) -> list[int]:
    """The ranks as they stand in a mesh; turned: they are neighbours along its first axis."""
    numbers = torch.arange(prod(shape))
    return (numbers.view(shape[::-1]).permute(2, 1, 0).flatten() if turned else numbers).tolist()
