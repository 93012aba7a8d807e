"""What is asked of losses, accuracies and gradients in several exercises of unit 01."""

from collections.abc import Sequence
from math import isnan

import torch
from torch import Tensor

from graders.grading.kit import Finding, PlainData, compare
from graders.units.gpu import WAITS
from graders.units.unit_01.problems import Problem


def close_to_all(
    problem: Problem, seen: Sequence[PlainData], expected: Sequence[Tensor], what: str
) -> Finding:
    """Passes if there is one of these tensors for each parameter. what: such as `{} after step 1`."""
    return compare.first_failure(
        compare.close(got, wanted, what.format(name), rtol=1e-4, atol=1e-5)
        for name, (got, wanted) in zip(problem.names, compare.side_by_side(seen, expected), strict=True)
    )


def nan_in_all(problem: Problem, seen: Sequence[Tensor | None], what: str) -> Finding:
    """Passes if there is a NaN in each of these tensors, one a parameter, where a sample was NaN."""
    pairs = compare.side_by_side(problem.names, seen)
    hidden = [name for name, got in pairs if got is None or not got.isnan().any()]
    text = f"A sample is NaN, and there is no NaN in {what} {', '.join(hidden)}"
    return Finding(not hidden, f"{text}; expected it to show.")


def scalar_near(seen: PlainData, expected: Tensor, what: str) -> Finding:
    """Passes if that loss was returned, as a scalar tensor, of single precision or double; NaN for NaN."""
    single = seen.float() if isinstance(seen, Tensor) and seen.dtype is torch.float64 else seen
    if expected.isnan():
        told = isinstance(seen, Tensor) and bool(seen.isnan().all())
        return Finding(told, f"A sample is NaN, and {what} is {compare.shown(seen)}; expected NaN.")
    return compare.close(single, expected, what, rtol=1e-4)


def float_near(seen: PlainData, expected: float, what: str) -> Finding:
    """Passes if this is the loss or accuracy expected, a float with all its digits; NaN for NaN."""
    if isnan(expected):
        told = type(seen) is float and isnan(seen)
        return Finding(told, f"A sample is NaN, and {what} is {compare.shown(seen)}; expected NaN.")
    found = compare.near(seen, expected, what, rtol=1e-4)
    # Single precision has no numbers of so few digits but multiples of 1/256.
    if found.passed and seen == round(seen, 8) != expected and not (256 * seen).is_integer():
        text = f"{what} has been rounded to {compare.shown(seen)}; expected what the division gives"
        return Finding(False, f"{text}.")
    return found


def asks_for_no_number(who: str, waits: Sequence[str]) -> Finding:
    """Passes if nobody waited for the device. waits: where somebody did, as in Gpu's log."""
    return Finding(not waits, f"{who} {first_wait(waits)}; expected never (.item(), .cpu(), print, if, ...).")


def first_wait(waits: Sequence[str]) -> str:
    """`waited for the device twice, first in file.py, line 7: loss.item()`."""
    text = f"waited for the device {compare.counted(len(waits), 'time')}"
    return f"{text}, first in {waits[0].removeprefix(WAITS):.200}" if waits else text


def no_history(history: bool) -> Finding:
    """Passes if a loss that was returned holds on to no graph."""
    if history:
        return Finding(False, "The loss that was returned requires grad: it keeps its graph in memory.")
    return Finding(True, "The loss that was returned keeps no graph.")
