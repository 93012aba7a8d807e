"""An operator, how its tensors lie on a mesh of ranks, and the ways to compute it there.

Layouts are PyTorch's own: along each axis of the mesh a tensor is `Replicate()`, `Shard(dim)` or `Partial()`,
which is a sum that has not been added up yet (`torch.distributed.tensor`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch.distributed.tensor import Partial, Placement

Placements = tuple[Placement, ...]
"""How one tensor lies on a mesh: a placement for each axis, in the order of the axes."""


def written(placements: Placements) -> str:
    """In short: S(0)R is cut along dim 0 over the first axis, and whole along the second; P is a sum."""
    return "".join("P" if placement == Partial() else str(placement) for placement in placements)


@dataclass(frozen=True, slots=True)
class Einsum:
    """A product of one tensor or more, such as "bd,df->bf".

    spec: in the notation of torch.einsum, a letter at most once in a tensor. sizes: letter -> length.
    """

    spec: str
    sizes: Mapping[str, int]

    @property
    def operands(self) -> tuple[str, ...]:
        """The letters of each operand."""
        return tuple(self.spec.split("->")[0].split(","))

    @property
    def result(self) -> str:
        """The letters of the result."""
        return self.spec.split("->")[1]

    def shape(self, letters: str) -> tuple[int, ...]:
        """The whole shape of a tensor with these letters."""
        return tuple(self.sizes[letter] for letter in letters)

    @property
    def flops(self) -> int:
        """Floating-point operations of a forward: a multiplication and an addition for each product."""
        return 2 * prod(self.sizes[letter] for letter in set("".join(self.operands)))


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to compute an operator on a mesh: how its operands have to lie, and how its result then lies."""

    operands: tuple[Placements, ...]
    result: Placements

    def __str__(self) -> str:
        """Such as "S(0), R -> S(0)"."""
        return f"{', '.join(map(written, self.operands))} -> {written(self.result)}"
