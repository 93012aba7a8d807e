"""Rows that ask how, of right cases."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Finding
from graders.units.unit_10.cases import Places


def kept(tried: Tried[Any]) -> Finding:
    """Passes if arguments are as they were."""
    found: Finding = tried.seen.kept
    return found


def gradients(tried: Tried[Any]) -> Finding:
    """Passes if floating arguments get the right gradient."""
    found: Finding = tried.seen.gradients
    return found


def calls(
    forward: Sequence[str], backward: Sequence[str], bytes_of: Callable[[Any, Places], list[tuple[int, int]]]
) -> Callable[[Tried[Any]], Finding]:
    """Passes if each rank makes these calls in forward and in backward, and sends others no more bytes. A
    single rank may do without. bytes_of: how many may leave each place, forward and backward.
    """

    def made(tried: Tried[Any]) -> Finding:
        seen = tried.seen
        allowed = bytes_of(tried.case.features, seen.given)
        for place, (both, limits) in enumerate(zip(seen.calls, allowed, strict=True)):
            passes = zip(("forward", "backward"), both, (forward, backward), limits, strict=True)
            for label, events, names, limit in passes:
                found = sorted(event.op for event in events)
                fewer = len(seen.calls) == 1 and not Counter(found) - Counter(names)
                if found != sorted(names) and not fewer:
                    text = f"in {label} place {place} calls {', '.join(found) or 'nothing'}"
                    return Finding(False, f"{text}; expected {', '.join(names)}.")
                if (sent := sum(event.sent for event in events)) > limit:
                    text = f"in {label} place {place} sends {sent:,} bytes to others"
                    return Finding(False, f"{text}; what has to leave it is {limit:,} bytes.", Kind.TOO_MUCH)
        return Finding(True, "Every rank makes the calls that are needed, and sends what has to leave it.")

    return made
