"""Groups of ranks that the exercises of unit 12 share."""

from math import prod

import torch

THREES = [[0, 2, 5], [1, 3, 4]]
"""Groups in which a rank's place is neither its number modulo 3 nor which half of all ranks it is in."""


def ranks_in_mesh(shape: tuple[int, int, int], turned: bool) -> list[int]:
    """The ranks as they stand in a mesh; turned: they are neighbours along its first axis."""
    numbers = torch.arange(prod(shape))
    return (numbers.view(shape[::-1]).permute(2, 1, 0).flatten() if turned else numbers).tolist()
