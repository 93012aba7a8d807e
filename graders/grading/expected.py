"""What a call of the answer must return and leave behind: the oracle of a case."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from graders.grading import compare
from graders.grading.called import ON_META, Called
from graders.grading.exercise import Finding

ANYTHING = object()
"""In the place of what is left open."""


@dataclass(frozen=True, slots=True)
class Checked:
    """In the place of a value of which several are right. check: what is found of the one seen; it gets the
    value, which may be anything, and what it is called.
    """

    check: Callable[[Any, str], Finding]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a call must return and leave behind.

    result: what is returned; `returned`: the position of the argument that it must be, None for a new
    object. arguments: what these hold afterwards, with their names.
    """

    result: Any
    arguments: dict[str, Any]
    returned: int | None = 0

    def result_in(self, called: Called, what: str, tolerance: float) -> Finding:
        """Passes if that was returned. what: such as `what rank 1 returned`."""
        return same(called.value, self.result, what, tolerance)

    def kept_in(self, called: Called, where: str, tolerance: float) -> Finding:
        """Passes if arguments hold what they must, and the right object was returned. where: `rank 1`."""
        names = list(self.arguments)
        found = (
            same(seen, wanted, f"{name} of {where}, after the call,", tolerance)
            for (name, wanted), seen in compare.side_by_side(list(self.arguments.items()), called.arguments)
        )
        held = compare.first_failure(found)
        if not held.passed:
            return held
        for kept, text in (
            (called.items_kept, "put other tensors into a list that it was given, and was to fill those"),
            (called.memory_kept, "gave a tensor other memory, as x.data = ... does"),
            (called.gaps_kept, "wrote into the memory between the elements of a tensor"),
            (not (self.returned is None and called.shares), "returned a view of what it was given"),
        ):
            if not kept:
                return Finding(False, f"{where} {text}.")
        if called.returned == self.returned:
            return Finding(True, f"{where} left arguments as they must be.")
        wanted = "a new tensor" if self.returned is None else f"{names[self.returned]} itself"
        which = dict(enumerate(names)).get(-1 if called.returned is None else called.returned)
        got = "another object" if which is None else f"{which} itself"
        return Finding(False, f"{where} returned {got}; expected {wanted}.")


def of_another(finding: Finding, place: int, places: int, matches: Callable[[int], bool]) -> Finding | None:
    """The finding of a wrong result, with the other place that must return it; None if there is none.

    matches: whether the result is what this place must return.
    """
    for other in range(places):
        if other != place and matches(other):
            return replace(finding, seen=f"{finding.seen} It is what place {other} must return.")
    return None


def same(seen: Any, wanted: Any, what: str, tolerance: float) -> Finding:
    """Passes if a tensor or a float is close to the one wanted, a list or a dictionary in all its items, and
    anything else is equal. A tensor on the device meta is known by its name only; a NaN has to be just where
    one is wanted.
    """
    if wanted is ANYTHING:
        return Finding(True, f"{what} may be anything.")
    if isinstance(wanted, Checked):
        return wanted.check(seen, what)
    if wanted is None:
        return Finding(seen is None, f"{what} is {type(seen).__name__}; expected None.")
    if isinstance(wanted, list | tuple):
        return _same_items(seen, wanted, what, tolerance)
    if isinstance(wanted, dict) and isinstance(seen, dict) and seen.keys() == wanted.keys():
        found = (same(seen[name], wanted[name], f"{name} of {what}", tolerance) for name in wanted)
        return compare.first_failure([Finding(True, f"{what} is as expected."), *found])
    if isinstance(wanted, float):
        return compare.near(seen, wanted, what, rtol=tolerance, least=0.0)
    if not isinstance(wanted, Tensor):
        return compare.equal(seen, wanted, what)
    if wanted.is_meta:
        device = seen.device if isinstance(seen, Tensor) else seen
        text = f"{what} is on the device {device!s:.60}; x, and so what you make, is on meta."
        return Finding(seen == ON_META, text)
    finding = compare.close(*_but_nan(seen, wanted), what, rtol=tolerance, atol=tolerance)
    if finding.passed or not isinstance(seen, Tensor) or not seen.isnan().any() or wanted.isnan().any():
        return finding
    return replace(finding, seen=f"{finding.seen} (nan is what stands there before the call.)")


def _but_nan(seen: Any, wanted: Tensor) -> tuple[Any, Tensor]:
    """Both with 0 where both are NaN, which equals nothing, and where the one wanted is."""
    if type(seen) is not Tensor or seen.shape != wanted.shape or not wanted.isnan().any():
        return seen, wanted
    both = seen.isnan() & wanted.isnan()
    return seen.masked_fill(both, 0), wanted.masked_fill(both, 0)


def _same_items(seen: Any, wanted: Sequence[Any], what: str, tolerance: float) -> Finding:
    kind = type(wanted)
    if type(seen) is not kind or len(seen) != len(wanted):
        got = f"a {kind.__name__} of {len(seen)}" if type(seen) is kind else f"a {type(seen).__name__}"
        return Finding(False, f"{what} is {got}; expected a {kind.__name__} of {len(wanted)}.")
    found = (
        same(item, expected, f"item {index} of {what}", tolerance)
        for index, (item, expected) in enumerate(zip(seen, wanted, strict=True))
    )
    return compare.first_failure([Finding(True, f"{what} is as expected."), *found])
