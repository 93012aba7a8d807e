"""The passes of unit 06's drivers, by their marks, and the pairs of ranks in which they work."""

from collections.abc import Sequence

from torch import Tensor

PASSES = ("forward", "backward")

WITHOUT_GRADIENT = ("forward under no_grad", "forward of an x without gradient")

# The marks of `modules.passes_of`, after one before the module is made.
OF_A_MODULE = (
    "making",
    "first forward",
    "first backward",
    "second forward",
    "second backward",
    *WITHOUT_GRADIENT,
)

PAIRS = [[0, 1], [2, 4], [3, 5]]
"""A rank's place in its pair is neither its number modulo 2 nor which half of all ranks it is in."""


def at_places(parts: Sequence[Tensor], groups: Sequence[Sequence[int]]) -> list[Tensor]:
    """For each rank the part of its place in its group; without groups the part of its number."""
    if not groups:
        return list(parts)
    places = {rank: place for group in groups for place, rank in enumerate(group)}
    return [parts[places[rank]].clone() for rank in sorted(places)]
