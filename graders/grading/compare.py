"""Comparisons that say what they saw. Each takes what an answer gave, trusts nothing about it, and returns a
`Finding`: a number may be too large for any float, NaN, or no number at all.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from reprlib import Repr
from typing import Any, TypeVar

import torch
from torch import Tensor

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.exercise import Finding
from graders.grading.kinds import Kind

Item = TypeVar("Item")
Other = TypeVar("Other")


def first_failure(findings: Iterable[Finding], passed: str = "") -> Finding:
    """The first finding that did not pass, else one that says `passed`, or else the first of all, for that is
    about the ordinary case.

    Those after a failure are not asked for. Where there is none at all, nothing has been shown: it fails.
    """
    first = None
    for finding in findings:
        if not finding.passed:
            return finding
        first = first or finding
    if first is None:
        return Finding(False, "There was nothing to look at.")
    return Finding(True, passed) if passed else first


def side_by_side(seen: Sequence[Item], expected: Sequence[Other]) -> Iterator[tuple[Item, Other]]:
    """Each part of a driver's reply beside what it should be. Raises AnswerFailed if there are not as many:
    that is no answer's doing, but a reply that the student's code has tampered with.
    """
    if len(seen) != len(expected):
        said = f"What came back from the process of your answer has {len(seen)} parts, not {len(expected)}."
        raise AnswerFailed(FailureKind.UNREADABLE, said)
    return zip(seen, expected, strict=True)


def column(rows: Sequence[Sequence[Item]], number: int, width: int) -> list[Item]:
    """One part of each row of a driver's reply. Raises AnswerFailed if a row has not `width` parts."""
    return [next(part for part, place in side_by_side(row, range(width)) if place == number) for row in rows]


def close(seen: Any, expected: Tensor, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> Finding:
    """Passes if `seen` is a tensor of expected's shape, any, and dtype, equal to it within the tolerances."""
    if type(seen) is not Tensor:
        return Finding(False, f"{what} is {shown(seen)}; expected a tensor, {_kind(expected)}.")
    if not _alike(seen, expected):
        said = f"{what} is {_kind(seen)}; expected {_kind(expected)}."
        return Finding(False, said, Kind.OTHER_SHAPE)
    # equal_nan stays off: a NaN where a number is expected is wrong.
    # The first is many times as fast, and no tensor with a NaN in it is equal to any.
    if torch.equal(seen, expected) or torch.allclose(seen, expected, rtol=rtol, atol=atol):
        return Finding(True, f"{what} is {shown(expected)}.")
    text = f"{what} is {shown(seen)}; expected {shown(expected)}"
    kind, words = _likeness(seen, expected, rtol, atol)
    return Finding(False, f"{text}{_difference(seen, expected, rtol, atol)}{words}.", kind)


def all_close(
    seen: Sequence[Any], expected: Sequence[Tensor], names: Sequence[str], rtol: float, atol: float
) -> Finding:
    """`close` for each of many, of which the first that is wrong is told; at once where all are right."""
    if all(map(_alike, seen, expected)) and len({each.dtype for each in expected}) == 1:
        whole = torch.cat([each.flatten() for each in seen]), torch.cat([each.flatten() for each in expected])
        if torch.allclose(*whole, rtol=rtol, atol=atol):
            return Finding(True, f"{names[0]} is {shown(expected[0])}.")
    return first_failure(map(close, seen, expected, names, repeat(rtol), repeat(atol)))


def _alike(seen: Any, expected: Tensor) -> bool:
    return type(seen) is Tensor and seen.shape == expected.shape and seen.dtype == expected.dtype


def close_on_all_ranks(
    results: Sequence[Any], expected: Sequence[Tensor], what: str, rtol: float = 1e-5, atol: float = 1e-6
) -> Finding:
    """`close` for each rank's result, of its own shape; the first rank that is wrong is the one reported."""
    return first_failure(
        (
            close(seen, wanted, f"{what} on rank {rank}", rtol, atol)
            for rank, (seen, wanted) in enumerate(side_by_side(results, expected))
        ),
        f"{what} is right on each of {len(expected)} ranks.",
    )


def equal(seen: Any, expected: Any, what: str) -> Finding:
    """Passes if `same(seen, expected)`."""
    passed = same(seen, expected)
    wanted = "" if passed else f"expected {shown(expected)}, got "
    return Finding(passed, f"{what}: {wanted}{shown(seen)}.")


def same(seen: Any, expected: Any) -> bool:
    """Whether two values are equal in every part, in types too: True is not 1, nor float32 float64.

    Tensors have to be of one shape and equal in every element; NaN equals nothing.
    """
    if type(seen) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        return seen.dtype == expected.dtype and seen.shape == expected.shape and torch.equal(seen, expected)
    if isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(same(seen[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(seen) == len(expected) and all(map(same, seen, expected))
    return bool(seen == expected)


def near(
    seen: Any, expected: float, what: str, rtol: float = 1e-6, unit: str = "", least: float = 1.0
) -> Finding:
    """Passes if seen is a finite real number within rtol of expected, or of `least` where that is more."""
    passed = abs(as_float(seen) - expected) <= rtol * max(least, abs(expected))
    text = f"a tensor, {shown(seen)}" if isinstance(seen, Tensor) else f"{shown(seen)}{unit}"
    wanted = "" if passed else f"; expected {_number(expected)}{unit}"
    return Finding(passed, f"{what} is {text}{wanted}.")


def as_float(value: Any) -> float:
    """An int or a float as a float: infinite if it is too large for one, NaN if it is no number, as True."""
    if type(value) not in (int, float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def at_most(seen: float, limit: float, what: str, unit: str = "", kind: Kind = Kind.OTHER) -> Finding:
    """Passes if seen <= limit. kind: what kind of failure it is if not."""
    return Finding(seen <= limit, f"{what}: {seen:,}{unit}; allowed are at most {limit:,}{unit}.", kind)


class _Short(Repr):
    """`repr` that goes no further than a sentence. Of a tensor it tells the first numbers: to lay them all
    out, as torch does, takes longer than most checks.
    """

    def repr_Tensor(self, value: Tensor, level: int) -> str:
        flat = value.detach().flatten()[:6].tolist()
        numbers = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in flat)
        more = ", ..." if value.numel() > 6 else ""
        return f"{_kind(value)} ({numbers}{more})"


_SHORT = _Short()
for _limit in ("maxlevel", "maxlist", "maxtuple", "maxdict", "maxset", "maxstring", "maxlong", "maxother"):
    setattr(_SHORT, _limit, 1000)


def shown(value: Any, characters: int = 120) -> str:
    """A value for a sentence: short, whatever the student returned."""
    text = _SHORT.repr_Tensor(value, 0) if isinstance(value, Tensor) else _SHORT.repr(value)
    return text if len(text) <= characters else text[: characters - 3] + "..."


def counted(number: int, what: str) -> str:
    """`1 node`, `3 nodes`, `2 batches`, `2 epochs`."""
    ending = "" if number == 1 else "es" if what.endswith(("tch", "nch")) else "s"
    return f"{number:,} {what}{ending}"


def _kind(value: Any) -> str:
    """Dtype and shape of a tensor: float32[3, 4]."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _difference(seen: Tensor, expected: Tensor, rtol: float, atol: float) -> str:
    """How many numbers differ, and the first of them with all its digits: `shown` may show none of them."""
    if expected.numel() <= 1 and shown(seen) != shown(expected):
        return ""
    wrong = ~torch.isclose(seen, expected, rtol=rtol, atol=atol)
    place = wrong.nonzero()[0].tolist()
    got, wanted = (_number(tensor[tuple(place)].item()) for tensor in (seen, expected))
    if expected.numel() <= 1:
        return f"; with more digits {got}, not {wanted}"
    return (
        f"; {int(wrong.sum())} of {wrong.numel()} numbers differ, the first at {place}: {got}, not {wanted}"
    )


def _likeness(seen: Tensor, expected: Tensor, rtol: float, atol: float) -> tuple[Kind, str]:
    """What a wrong tensor has in common with the right one of its shape: a kind, and words for it."""
    a, b = (torch.view_as_real(tensor.to(torch.complex128)).flatten() for tensor in (seen, expected))
    if not (a.isfinite().all() and b.isfinite().all() and a.any() and b.any()) or expected.numel() < 2:
        return Kind.OTHER, ""
    factor = float(a @ b / (b @ b))
    if abs(factor - 1) > 1e-3 and torch.allclose(a, factor * b, rtol=rtol, atol=atol * abs(factor)):
        return Kind.SCALED, f"; all of it is {factor:.4g} times what it should be"
    # Of large whole numbers a and b have lost the last digits.
    numbers = (a, b) if seen.is_complex() else (seen.flatten(), expected.flatten())
    if torch.equal(*(each.sort().values for each in numbers)):
        return Kind.REORDERED, "; the same numbers in another order"
    return Kind.OTHER, ""


def _number(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
