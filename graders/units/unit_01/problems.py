"""Drawn classifiers and batches, for the graders of unit 01.

Shapes: B samples a batch, F features, H hidden units, K classes. Inputs have a third dimension, of 1: whoever
takes them for vectors is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Rng
from graders.units.unit_01.watched import Batch, Watched

STEEP = 100
"""By this the second layer's weights are larger where a model is to be sure of itself."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A drawn classifier and the sizes of its problem. values: as for Watched."""

    features: int
    classes: int
    values: list[Tensor]

    @classmethod
    def draw(cls, rng: Rng) -> "Problem":
        features, hidden, classes = rng.integer(3, 6), rng.integer(4, 8), rng.integer(4, 6)
        shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))
        return cls(features, classes, [rng.normal(*shape) for shape in shapes])

    def model(self) -> Watched:
        return Watched(self.values)

    @property
    def names(self) -> list[str]:
        """Of the parameters."""
        return [name for name, _ in self.model().named_parameters()]

    def draw_steep(self, rng: Rng, sizes: Sequence[int], by: float = STEEP) -> list[Batch]:
        """Batches of which the model takes every sample for another class. Its second layer is made
        larger, so that it is sure of that.
        """
        self.values[2].mul_(by)
        drawn = [self.draw_inputs(rng, size) for size in sizes]
        return [(inputs, self.draw_mistaken(rng, inputs)) for inputs in drawn]

    def draw_batch(self, rng: Rng, size: int) -> Batch:
        """Inputs [size, F, 1] and labels [size]."""
        return self.draw_inputs(rng, size), rng.integers(0, self.classes - 1, size)

    def draw_inputs(self, rng: Rng, size: int) -> Tensor:
        """[size, F, 1]."""
        return rng.normal(size, self.features, 1)

    def draw_mistaken(self, rng: Rng, inputs: Tensor) -> Tensor:
        """Labels [B] of inputs [B, F, 1], each another one than the model takes for the right one. One
        is 0, which some take for no label at all.
        """
        with torch.no_grad():
            taken: Tensor = self.model()(inputs).argmax(1)
        labels = (taken + rng.integers(1, self.classes - 1, len(inputs))) % self.classes
        labels[taken.nonzero()[:1]] = 0
        return labels

    def draw_batches(self, rng: Rng, sizes: Sequence[int]) -> list[Batch]:
        return [self.draw_batch(rng, size) for size in sizes]


def joined(batches: Sequence[Batch]) -> Batch:
    """All samples of the batches as one: inputs [N, F, 1], labels [N]."""
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])
