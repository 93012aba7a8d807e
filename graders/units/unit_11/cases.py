"""The cases of compressors that keep what they could not send: how numbers are drawn, and what is judged."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graders.grading.called import Called
from graders.grading.cases import Values
from graders.grading.exercise import Exercise
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases, feature
from graders.grading.kit import Answer, Criterion, Finding, PlainData, Rng, compare
from graders.units.functions import drivers
from graders.units.functions.stage import Arguments

SHORT = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True, slots=True)
class Numbers:
    """shape, dtype: of all tensors that are given. kind: drawn; or of a few whole numbers, so that many are
    equal and some are 0 or -0; or all 0. ratio: of those to be sent. first: nothing waits yet.
    """

    shape: tuple[int, ...] = feature((30,), "shape {}")
    dtype: torch.dtype = feature(torch.float32, SHORT.__getitem__)
    kind: str = feature("", "{}")
    ratio: float = 0.1
    first: bool = feature(False, lambda first: "at the first step" if first else "")

    def drawn(self, rng: Rng) -> Tensor:
        match self.kind:
            case "whole numbers":
                return -rng.integers(-2, 2, *self.shape).to(self.dtype)
            case "all zero":
                return -torch.zeros(self.shape, dtype=self.dtype)
        return 3 * rng.normal(*self.shape, dtype=self.dtype)

    def kept(self, rng: Rng) -> Tensor:
        """What earlier steps have left."""
        return torch.zeros(self.shape, dtype=self.dtype) if self.first else self.drawn(rng)

    @property
    def count(self) -> int:
        """How many numbers are sent."""
        return max(1, round(self.ratio * torch.Size(self.shape).numel()))


Judged = Callable[[Numbers, Arguments, Called], Iterator[tuple[str, Finding]]]
"""What each row finds of a call; the first says whether the result is right, and is the last if not."""


@dataclass(frozen=True)
class Compressors(Stage[Numbers]):
    """All cases in one go. The rows after the first see of each right case what was found for them."""

    arguments: Callable[[Rng, Numbers], Arguments]
    judged: Judged

    def together(self, features: Numbers) -> Hashable:
        return "in turn"

    def run(
        self, answer: Answer, cases: Sequence[tuple[Numbers, Rng]]
    ) -> Sequence[tuple[Finding, dict[str, Finding]]]:
        inputs = [self.arguments(rng, case) for case, rng in cases]
        told = answer.call(drivers.in_turn, inputs)
        calls = zip(cases, inputs, compare.side_by_side(told, cases), strict=True)
        rows = []
        for (case, _), given, (called, _) in calls:
            compare.side_by_side(called.arguments, given)
            rows.append(dict(self.judged(case, given, called)))
        return [(next(iter(found.values())), found) for found in rows]


def _found(row: str, tried: Tried[Any]) -> Finding:
    found: Finding = tried.seen[row]
    return found


def part(
    name: str,
    points: float,
    hint: str,
    needs: tuple[str, ...] | None = None,
    vary: tuple[Values, ...] = (),
) -> Criterion:
    """A row that is told by what a stage has found for it, by its name, in each right case."""
    return Criterion(name, points, hint, needs, vary, how=partial(_found, name))


def compressor(
    *,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    arguments: Callable[[Rng, Numbers], Arguments],
    base: Numbers | None = None,
) -> Callable[[Judged], Exercise]:
    """Register an exercise of whose calls each row finds what the function below says."""

    def register(judged: Judged) -> Exercise:
        return by_cases(
            ByCases(base or Numbers(), Compressors(arguments, judged), rubric),
            minutes=minutes,
            difficulty=difficulty,
            hints=hints,
        )(judged)

    return register


# ------------------------------------------------------------------------------ what calls return


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
    if (values.shape, indices.shape, values.dtype) != ((count,), (count,), total.dtype) or (
        indices.dtype not in (torch.int32, torch.int64)
    ):
        said = f"{compare.shown(values)} and {compare.shown(indices)} of {len(flat)} numbers are sent"
        return Finding(
            False, f"{said}; expected {count} values in {SHORT[total.dtype]} and indices in int32."
        )
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
