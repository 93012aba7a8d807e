"""What varies in backward passes whose gradients are cut over ranks."""

from dataclasses import dataclass

from graders.grading.judging import feature
from graders.grading.kit import compare

UNUSED, CROSSED = "each rank uses other layers, in another order", "layer 1 comes before layer 0"
FROZEN, TIED, GAPS, DOUBLE = "a frozen layer", "a tied weight", "a transposed weight", "float64"
LAYER, LESS, BIASES, ALL, MORE = "a layer", "a layer less a byte", "two biases", "all", "a layer and a bias"
_ORDERS = {
    "": ((0, 1, 2),),
    CROSSED: ((1, 0, 2),),
    UNUSED: ((0, 1, 2), (2, 1), (0,), (1, 0, 2)),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """order: in which layers are used. bucket: how much it has room for. odd: what else is not ordinary.

    deep: a model whose weights outweigh its activations, of which is counted how much is held.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    passes: int = feature(1, "{} backward passes")
    bucket: str = feature(LAYER, "buckets of {}")
    order: str = feature("", "{}")
    odd: str = feature("", "{}")
    deep: bool = feature(False, lambda deep: "large layers" if deep else "")

    @property
    def alone(self) -> bool:
        """Whether it has a launch of its own, in which memory is counted."""
        return self.deep

    @property
    def layers(self) -> int:
        return 5 if self.deep else 3

    @property
    def width(self) -> int:
        return 40 if self.deep else 4

    def orders(self, rank: int) -> list[list[int]]:
        """The layers that a rank uses in each pass."""
        if self.deep:
            return [[*range(self.layers)]] * self.passes
        several = _ORDERS[self.order]
        return [[*several[(rank + number) % len(several)]] for number in range(self.passes)]
