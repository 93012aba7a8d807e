"""The cases of unit 06: what ranks are called with in both passes, and what must come of it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.ranks.features import Ranks

OUTPUTS, GRADIENTS, PARAMETERS = "outputs", "both passes", "its parameters"
SPREAD = "spread"
"""x stands transposed in memory, and along its last dimension the gradient that arrives is one number."""


@dataclass(frozen=True, slots=True)
class Case(Ranks):
    """Both passes of an answer; by default forward is looked at.

    asked: of what it is about: outputs, gradients too, or parameters too. shape: of x, or of what stands in
    front of its last dimension. rest: by how much a width exceeds a multiple of the ranks. beside: whether x
    gets a gradient by another way too.
    """

    asked: str = feature(OUTPUTS, lambda asked: "" if asked == OUTPUTS else asked)
    layout: str = feature(
        "contiguous", lambda layout: "x transposed, the gradient expanded" if layout == SPREAD else ""
    )
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    shape: tuple[int, ...] = feature((3, 4), lambda shape: f"shape {shape}")
    rest: int = feature(0, lambda rest: f"a width of {rest} more than divides" if rest else "")
    bias: bool = feature(True, lambda bias: "" if bias else "bias=False")
    beside: bool = feature(True, lambda beside: "x used elsewhere too" if beside else "")

    @property
    def tolerance(self) -> float:
        return 1e-10 if self.dtype is torch.float64 else 1e-4

    def divided(self, each: int) -> int:
        """A width of so many for each rank, and the rest."""
        return self.ranks * each + self.rest

    def parts(self, whole: Tensor, dim: int | None) -> list[Tensor]:
        """What each place has of it, in memory of its own; None: all of it."""
        whole = whole.detach()
        parts = [whole] * self.ranks if dim is None else whole.tensor_split(self.ranks, dim)
        return [part.clone() for part in parts]

    def drawn(self, rng: Rng, *shape: int) -> Tensor:
        """Of 16 bits whole numbers, whose sums are exact."""
        if self.dtype is torch.bfloat16:
            return rng.integers(-9, 9, *shape).to(self.dtype)
        return rng.normal(*shape, dtype=self.dtype)

    def arriving(self, rng: Rng, *shape: int) -> Tensor:
        """A gradient."""
        if self.layout != SPREAD:
            return self.drawn(rng, *shape)
        return self.drawn(rng, *shape[:-1], 1).expand(shape).clone()


@dataclass(frozen=True, slots=True)
class Place:
    """What one rank is given, and what must come of it.

    rest: further arguments in their order, or those by which a module is made. parameters: what the module
    has in them, by name. gradients: of one step, by name; "x" is that of x. held: what is asked of the
    parameters it was made with. alike: whether all places must have one result, to the last bit. nbytes: what
    a module may keep. given: what must hold afterwards of that by which it was made.
    """

    x: Tensor
    arriving: Tensor
    result: Tensor
    gradients: dict[str, Tensor]
    rest: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    alike: bool = False
    nbytes: int = 0
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, Any]:
        """What must be as it was, by name."""
        tensors = {name: each for name, each in self.rest.items() if isinstance(each, Tensor)}
        return {"x": self.x, "the gradient that arrived": self.arriving, **tensors, **self.given}


def nbytes_of(parameters: dict[str, Tensor]) -> int:
    """Of their numbers."""
    return sum(each.nbytes for each in parameters.values())


def by_place(named: dict[str, list[Tensor]]) -> list[dict[str, Tensor]]:
    """For each place its parts, from the parts of each name."""
    return [dict(zip(named, each, strict=True)) for each in zip(*named.values(), strict=True)]


def at_borders(vocabulary: int, ranks: int) -> Tensor:
    """The first and the last token of each rank's part, int64."""
    parts = torch.arange(vocabulary).tensor_split(ranks)
    return torch.cat([part[[0, -1]] for part in parts])
