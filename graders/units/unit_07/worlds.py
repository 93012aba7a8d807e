"""Settings in which a collective is called, and the tensors drawn for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Rng, compare

BYTES = 4
"""Bytes of an element where messages are measured: float32."""


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.int64: 0.0}
"""How far a sum may be off, relative and absolute: it may be added up in any order, integers exactly."""


@dataclass(frozen=True, slots=True)
class World:
    """A setting in which a collective is called.

    ranks: of the calling group. length: elements of the whole tensor, or its rows if it has `columns`.
    root: place of the root in the group. layout: how tensors stand in memory, see the driver's LAYOUTS.
    members: the group's global ranks where it is not the default group. node: ranks a node.
    """

    ranks: int
    length: int
    dtype: torch.dtype = torch.float32
    root: int = 0
    columns: int = 0
    layout: str = "contiguous"
    members: tuple[int, ...] | None = None
    node: int = 1

    @property
    def launched(self) -> int:
        """How many ranks the launch has: more than the group, if that is not the default group."""
        return self.ranks if self.members is None else self.members[-1] + 2

    @property
    def global_root(self) -> int:
        return self.root if self.members is None else self.members[self.root]

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        group = "" if self.members is None else f" (global ranks {', '.join(map(str, self.members))})"
        elements = compare.counted(self.length, "element")
        size = f"a matrix of {self.length} x {self.columns}" if self.columns else elements
        layout = "" if self.layout == "contiguous" else f", {self.layout}, not contiguous"
        root = f", root {self.global_root}" if self.root else ""
        return f"{compare.counted(self.ranks, 'rank')}{group}{root}, {size} of {kind}{layout}"


def drawn(rng: Rng, world: World, length: int | None = None) -> Tensor:
    """Numbers of the world's dtype: [length], or [length, columns] if it has columns; by default its length.

    Integers are so large that no floating-point type holds them exactly.
    """
    length = world.length if length is None else length
    shape = (length, world.columns) if world.columns else (length,)
    if world.dtype.is_floating_point:
        return rng.normal(*shape, dtype=world.dtype)
    return rng.integers(-(2**58), 2**58, *shape)


def drawn_members(rng: Rng, size: int) -> tuple[int, ...]:
    """Global ranks of a group that does not begin at 0 and has a gap."""
    start = rng.integer(1, 2)
    gap = rng.integer(1, size - 1)
    return tuple(start + place + (place >= gap) for place in range(size))
