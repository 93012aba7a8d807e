"""Settings in which a collective is called, and the tensors drawn for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Rng, compare

BYTES = 8
"""Bytes of an element where messages are measured: float64."""


_TOLERANCES = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.int64: 0.0,
    torch.int32: 0.0,
    torch.int16: 0.0,
    torch.bfloat16: 0.0,
    torch.float16: 0.0,
}
_MOST_PLACES = 7
"""Digits that float32 holds exactly, and one rank has each."""


IN_ROUNDS = (3, 5, 6, 8, 19)
"""Numbers of ranks for what takes log2 p rounds: 19 take more than the text's eight, and three fold."""


@dataclass(frozen=True, slots=True)
class World:
    """A setting in which a collective is called.

    ranks: of the calling group. length: elements of the whole tensor, or its rows if it has `columns`.
    root: place of the root in the group. layout: how tensors stand in memory, see the driver's LAYOUTS.
    members: the group's global ranks where it is not the default group. node: ranks a node, as the answer is
    told; 0: it is told nothing of nodes. single: whether a tensor is one number, without a dimension; its
    length is 1. orders: whether sums tell in which order they were added up, see `ORDERS`.
    """

    ranks: int
    length: int
    dtype: torch.dtype = torch.float32
    root: int = 0
    columns: int = 0
    layout: str = "contiguous"
    members: tuple[int, ...] | None = None
    node: int = 0
    single: bool = False
    orders: bool = False

    def shape(self, length: int | None = None) -> tuple[int, ...]:
        """Of a tensor of so many elements or rows, by default of the world's length."""
        if self.single:
            return ()
        length = self.length if length is None else length
        return (length, self.columns) if self.columns else (length,)

    @property
    def places(self) -> tuple[int, ...]:
        """The global rank of each place of the calling group."""
        return self.members or tuple(range(self.ranks))

    @property
    def launched(self) -> int:
        """How many ranks the launch has: more than the group, if that is not the default group."""
        return self.ranks if self.members is None else self.members[-1] + 2

    @property
    def global_root(self) -> int:
        return self.root if self.members is None else self.members[self.root]

    @property
    def has_digits(self) -> bool:
        """Whether each rank's numbers have a decimal place of their own; see `drawn_of`."""
        return self.dtype is torch.float32 and self.ranks <= _MOST_PLACES

    @property
    def tolerance(self) -> float:
        """How far a sum may be off, relative and absolute: it may be added up in any order."""
        return 0.0 if self.has_digits else _TOLERANCES[self.dtype]

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        several = "s" if self.ranks > 1 else ""
        group = "" if self.members is None else f" (global rank{several} {', '.join(map(str, self.members))})"
        elements = compare.counted(self.length, "element")
        size = f"a matrix of {self.length} x {self.columns}" if self.columns else elements
        size = "a number without a dimension" if self.single else size
        layout = {"contiguous": "", "meta": ", on the device meta"}.get(
            self.layout, f", {self.layout}, not contiguous"
        )
        layout += ", transposed" if self.layout == "meta" and self.columns else ""
        root = f", root {self.global_root}" if self.root else ""
        node = f", {self.node} a node" if self.node else ""
        return f"{compare.counted(self.ranks, 'rank')}{group}{node}{root}, {size} of {kind}{layout}"


def drawn(rng: Rng, world: World, length: int | None = None) -> Tensor:
    """Numbers of the world's dtype: [length], or [length, columns] if it has columns; by default its length.

    Integers are so large that no floating-point type holds them exactly; in 16-bit types of floating-point
    numbers, they are so small that these hold their sums.
    """
    shape = world.shape(length)
    if world.dtype in (torch.bfloat16, torch.float16):
        return rng.integers(1, 9, *shape).to(world.dtype)
    if world.dtype.is_floating_point:
        return rng.normal(*shape, dtype=world.dtype)
    most = 2 ** (8 * world.dtype.itemsize - 6)
    return rng.integers(-most, most, *shape).to(world.dtype)


def drawn_of(rng: Rng, world: World, place: int) -> Tensor:
    """The tensor of the rank at `place`, [length] or [length, columns], in whose sums one can see the ranks.

    It has digits from 1 to 4 in a decimal place of its own, the last one for place 0. A 0 in a sum is a rank
    that is missing, a digit above 4 one that came twice. Where places do not suffice, as `drawn`.
    """
    if world.orders:
        node = max(1, world.node)
        value = 0.0 if place % node else ORDERS[place // node]
        return torch.full(world.shape(), value, dtype=world.dtype)
    if not world.has_digits:
        return drawn(rng, world)
    numbers: Tensor = rng.integers(1, 4, *world.shape()).to(world.dtype) * 10**place
    return numbers


ORDERS = (2.0**60, 1.0, -(2.0**60), 1.0)
"""What the first rank of each node has in all elements; others have 0. Added up round a ring of four, this
is 1 where the sum begins at the first or third, else 0; of three, 1 where it begins at the third.
"""


WHOSE = (
    "(In these numbers the last digit is rank 0's, the one before it rank 1's, and so on; each is 1 to 4.)"
)


def lacking(world: World, seen: Tensor, expected: Tensor) -> list[int]:
    """Places of the group whose digits are in every number of a sum, and not in all that were seen: tensors
    [length] or [length, columns], see `drawn_of`. None of what is no sum of several ranks.
    """
    if not world.has_digits or seen.shape != expected.shape or not seen.isfinite().all():
        return []

    def digits(numbers: Tensor, place: int) -> Tensor:
        return numbers.double().div(10**place, rounding_mode="floor") % 10

    summed = [place for place in range(world.ranks) if (digits(expected, place) != 0).all()]
    return [place for place in summed if (digits(seen, place) == 0).any()] if len(summed) > 1 else []


def drawn_members(rng: Rng, size: int) -> tuple[int, ...]:
    """Global ranks of a group that does not begin at 0 and has a gap."""
    start = rng.integer(1, 2)
    gap = rng.integer(1, size - 1)
    return tuple(start + place + (place >= gap) for place in range(size))
