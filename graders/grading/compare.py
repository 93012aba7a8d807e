"""Comparisons that say what they saw. Each takes what an answer gave, trusts nothing about it, and returns a
`Finding`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graders.grading.exercise import Finding


def close(
    criterion: str,
    seen: Any,
    expected: Tensor,
    what: str,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Finding:
    """Passes if `seen` is a tensor of expected's shape and dtype, equal to it within the tolerances."""
    if type(seen) is not Tensor:
        return Finding(criterion, False, f"{what} is {_shown(seen)}; expected a tensor, {_kind(expected)}.")
    if seen.shape != expected.shape or seen.dtype != expected.dtype:
        return Finding(criterion, False, f"{what} is {_kind(seen)}; expected {_kind(expected)}.")
    # equal_nan stays off: a NaN where a number is expected is wrong.
    if torch.allclose(seen, expected, rtol=rtol, atol=atol):
        return Finding(criterion, True, f"{what} is as expected: {_shown(expected)}.")
    text = f"{what} is {_shown(seen)}; expected {_shown(expected)}"
    return Finding(criterion, False, f"{text}{_difference(seen, expected, rtol, atol)}.")


def close_on_all_ranks(
    criterion: str,
    results: Sequence[Any],
    expected: Sequence[Tensor],
    what: str,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Finding:
    """`close` for each rank's result; the first rank that is wrong is the one reported."""
    finding = Finding(criterion, False, f"there is no {what}")
    for rank, (seen, wanted) in enumerate(zip(results, expected, strict=True)):
        finding = close(criterion, seen, wanted, f"{what} on rank {rank}", rtol, atol)
        if not finding.passed:
            return finding
    return Finding(criterion, True, f"{what} is as expected on all {len(expected)} ranks.")


def equal(criterion: str, seen: Any, expected: Any, what: str) -> Finding:
    """Passes if seen is of expected's type and equal to it: numbers, text, lists and tuples of them."""
    same_type = type(seen) is type(expected)
    verb = "is" if same_type and seen == expected else f"expected {_shown(expected)}, got"
    return Finding(criterion, same_type and bool(seen == expected), f"{what}: {verb} {_shown(seen)}.")


def near(
    criterion: str, seen: Any, expected: float, what: str, rtol: float = 1e-6, unit: str = ""
) -> Finding:
    """Passes if seen is a finite real number within rtol of expected."""
    number = isinstance(seen, int | float) and not isinstance(seen, bool)
    passed = number and abs(seen - expected) <= rtol * max(1.0, abs(expected))
    shown = f"a tensor, {_shown(seen)}" if isinstance(seen, Tensor) else f"{_shown(seen)}{unit}"
    return Finding(criterion, passed, f"{what} is {shown}; expected {_number(expected)}{unit}.")


def at_most(criterion: str, seen: float, limit: float, what: str, unit: str = "") -> Finding:
    """Passes if seen <= limit."""
    return Finding(criterion, seen <= limit, f"{what}: {seen:,}{unit}; allowed are at most {limit:,}{unit}.")


def no_calls(criterion: str, calls: Sequence[str], forbidden: Sequence[str], what: str) -> Finding:
    """Passes if none of the forbidden operations is among the calls."""
    used = sorted(set(calls) & set(forbidden))
    if used:
        return Finding(criterion, False, f"{what} calls {', '.join(used)}, which is not allowed here.")
    return Finding(criterion, True, f"{what} calls only {', '.join(sorted(set(calls))) or 'nothing'}.")


def _kind(value: Any) -> str:
    """Dtype and shape of a tensor: float32[3, 4]."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a {type(value).__name__}"


def _difference(seen: Tensor, expected: Tensor, rtol: float, atol: float) -> str:
    """How many numbers differ, and the first of them with all its digits: `_shown` may show none of them."""
    if expected.numel() <= 1:
        return ""
    wrong = ~torch.isclose(seen, expected, rtol=rtol, atol=atol)
    place = wrong.nonzero()[0].tolist()
    got, wanted = (_number(tensor[tuple(place)].item()) for tensor in (seen, expected))
    return (
        f"; {int(wrong.sum())} of {wrong.numel()} numbers differ, the first at {place}: {got}, not {wanted}"
    )


def _number(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _shown(value: Any) -> str:
    """A value for a sentence: short, whatever the student returned."""
    if isinstance(value, Tensor):
        flat = value.detach().flatten()[:6].tolist()
        numbers = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in flat)
        more = ", ..." if value.numel() > 6 else ""
        return f"{_kind(value)} ({numbers}{more})"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
