"""Drawn classifiers and batches, for the graders of unit 01, and what several exercises ask of losses.

Shapes: B samples a batch, F features, H hidden units, K classes. Inputs have a third dimension, of 1: whoever
takes them for vectors is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.explanation import Tried
from graders.grading.kit import Finding, PlainData, Rng, compare
from graders.units.gpu import WAITS
from graders.units.unit_01.watched import Batch, Watched


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

    def batches(self, rng: Rng, sizes: Sequence[int]) -> list[Batch]:
        """Inputs [size, F, 1] and labels [size] each."""
        return [
            (rng.normal(size, self.features, 1), rng.integers(0, self.classes - 1, size)) for size in sizes
        ]


def joined(batches: Sequence[Batch]) -> Batch:
    """All samples of the batches as one: inputs [N, F, 1], labels [N]."""
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])


def each(check: Callable[[Any, Any], Finding | None]) -> Callable[[Tried[Any]], Finding | None]:
    """For a row that asks how: a look at the case's problem and what the answer did with it."""
    return lambda tried: check(*tried.seen)


def close_to_all(seen: Sequence[PlainData], expected: Sequence[Tensor], what: str) -> Finding:
    """Passes if there is one of these tensors for each parameter. what: such as `{} after step 1`."""
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    return compare.first_failure(
        compare.close(got, wanted, what.format(name), rtol=1e-4, atol=1e-5)
        for name, (got, wanted) in zip(names, compare.side_by_side(seen, expected), strict=True)
    )


def loss_near(seen: PlainData, history: bool, expected: Tensor, what: str) -> Finding:
    """Passes if that loss was returned, a scalar tensor, of single precision or double, without a graph."""
    if history:
        return Finding(False, f"{what} requires grad: it keeps its graph in memory.")
    single = seen.float() if isinstance(seen, Tensor) and seen.dtype is torch.float64 else seen
    return compare.close(single, expected, what, rtol=1e-4)


def no_waits(who: str, waits: Sequence[str]) -> Finding:
    """Passes if nobody waited for the device. waits: where somebody did, as in Gpu's log."""
    text = f"{who} waits for the device {compare.counted(len(waits), 'time')}"
    first = f", first in {waits[0].removeprefix(WAITS):.200}" if waits else ""
    return Finding(not waits, f"{text}{first}; expected never there (.item(), .cpu(), print, if, ...).")
