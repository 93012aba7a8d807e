"""How compressors that keep what they could not send are tried: in several cases, a row after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graders.grading.called import Called
from graders.grading.kit import Answer, Finding, Findings, PlainData, Rng, compare
from graders.units.functions import drivers
from graders.units.functions.stage import Arguments


@dataclass(frozen=True, slots=True)
class Numbers:
    """shape, dtype: of all tensors that are given. whole: of a few whole numbers, so that many are equal and
    some are 0. ratio: of those to be sent. first: nothing waits yet.
    """

    shape: tuple[int, ...] = (30,)
    dtype: torch.dtype = torch.float32
    whole: bool = False
    ratio: float = 0.1
    first: bool = False

    def drawn(self, rng: Rng) -> Tensor:
        if self.whole:
            return rng.integers(-2, 2, *self.shape).to(self.dtype)
        return 3 * rng.normal(*self.shape, dtype=self.dtype)

    def kept(self, rng: Rng) -> Tensor:
        """What earlier steps have left."""
        return torch.zeros(self.shape, dtype=self.dtype) if self.first else self.drawn(rng)

    @property
    def count(self) -> int:
        """How many numbers are sent."""
        return max(1, round(self.ratio * torch.Size(self.shape).numel()))

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"shape {self.shape}, {dtype}, ratio {self.ratio}"


def in_each(
    answer: Answer,
    rng: Rng,
    cases: Sequence[Numbers],
    arguments: Callable[[Rng, Numbers], Arguments],
    judged: Callable[[Numbers, Arguments, Called], Iterator[tuple[str, Finding]]],
) -> Findings:
    """What `judged` finds of each row in the first case that fails it, or in the first of all.

    judged: yields a finding for each row; the first says whether the result is right, and is the last if not.
    """
    inputs = [arguments(rng, case) for case in cases]
    told = answer.call(drivers.in_turn, inputs)
    rows: dict[str, Finding] = {}
    for case, given, (called, _) in zip(cases, inputs, compare.side_by_side(told, cases), strict=True):
        compare.side_by_side(called.arguments, given)
        for row, finding in judged(case, given, called):
            if row not in rows or (rows[row].passed and not finding.passed):
                rows[row] = replace(finding, seen=f"With {case}: {finding.seen}")
    yield from rows.items()


def rounding(like: Tensor) -> float:
    """The relative error that some dozens of sums may make in like's dtype."""
    return 100 * torch.finfo(like.dtype).eps


def near(seen: Any, expected: Tensor, what: str) -> Finding:
    """Passes if the numbers are those, to rounding beside the largest of them."""
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return compare.close(seen, expected, what, 0, rounding(expected) * size)


def pair_of(result: PlainData, names: str) -> Finding:
    """Passes if two tensors were returned."""
    pair = type(result) in (tuple, list) and len(result) == 2 and all(type(x) is Tensor for x in result)
    return Finding(pair, f"{compare.shown(result)} was returned; expected {names}.")


def largest(case: Numbers, result: PlainData, total: Tensor) -> Finding:
    """Passes if values and indices are those of the numbers of `total` that are farthest from 0."""
    if not (found := pair_of(result, "(values, indices)")).passed:
        return found
    values, indices = result
    count, flat = case.count, total.flatten()
    if values.shape != (count,) or indices.shape != (count,) or indices.is_floating_point():
        said = f"{compare.shown(values)} and {compare.shown(indices)} of {len(flat)} numbers are sent"
        return Finding(False, f"{said}; expected {count} values and {count} indices.")
    places = indices.tolist()
    if len(set(places)) < count or not 0 <= min(places) <= max(places) < len(flat):
        return Finding(False, f"indices {places} are not {count} different places of {len(flat)}.")
    found = near(values, flat[places], f"of {compare.shown(flat)}, the values at {places}")
    rest = flat.abs().index_fill(0, torch.tensor(places), 0)
    if found.passed and bool(values.abs().min() < rest.max() * (1 - 1e-6)):
        said = f"{values[values.abs().argmin()]:.6g} is sent, and {flat[rest.argmax()]:.6g} is not."
        return Finding(False, said)
    return found


def left_of(result: PlainData, total: Tensor) -> Tensor:
    """What waits after these pairs were sent."""
    return total.flatten().index_fill(0, result[1].long(), 0).view(total.shape)


def as_asked(result: PlainData, kept: Tensor, given: Tensor, name: str) -> Finding:
    """Passes if indices are in int32, and this argument is as it was."""
    if result[1].dtype != torch.int32:
        return Finding(False, f"indices are {compare.shown(result[1])}; asked is int32.")
    return compare.equal(kept, given, f"{name} afterwards")
