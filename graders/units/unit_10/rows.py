"""Rows that ask how, of right cases."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Finding
from graders.units.unit_10.launches import Places


def kept(tried: Tried[Any]) -> Finding:
    """Passes if arguments are as they were."""
    found: Finding = tried.seen.kept
    return found


def gradients(tried: Tried[Any]) -> Finding:
    """Passes if arguments that need a gradient get the right one, and no others need one."""
    found: Finding = tried.seen.gradients
    return found


def calls(
    forward: Sequence[str], backward: Sequence[str], bytes_of: Callable[[Any, Places], list[tuple[int, int]]]
) -> Callable[[Tried[Any]], Finding | None]:
    """Passes if each rank makes these calls in forward and in backward, if there is one, and sends others no
    more bytes. A single rank may do without. bytes_of: how many may leave each place, forward and backward.
    """

    def made(tried: Tried[Any]) -> Finding | None:
        features, seen = tried.case.features, tried.seen
        rows_learn, *others_learn = features.learning(seen.given[0])
        if not rows_learn and any(others_learn):
            return None  # Whether the rows' gradients are sent then is left open.
        wanted = (forward, backward if rows_learn else ())
        for place, (both, limits) in enumerate(zip(seen.calls, bytes_of(features, seen.given), strict=True)):
            for label, events, names, limit in zip(
                ("forward", "backward"), both, wanted, limits, strict=True
            ):
                found = sorted(event.op for event in events)
                fewer = len(seen.calls) == 1 and not Counter(found) - Counter(names)
                if found != sorted(names) and not fewer:
                    text = f"in {label} place {place} calls {', '.join(found) or 'nothing'}"
                    return Finding(False, f"{text}; expected {', '.join(names) or 'nothing'}.")
                if (sent := sum(event.sent for event in events)) > limit:
                    text = f"in {label} place {place} sends {sent:,} bytes to others"
                    return Finding(False, f"{text}; what has to leave it is {limit:,} bytes.", Kind.TOO_MUCH)
        return Finding(
            True, "Every rank makes the calls that are needed, and sends what has to leave it, once."
        )

    return made
