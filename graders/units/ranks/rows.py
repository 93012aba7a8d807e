"""Rows that ask how, of right cases."""

from typing import Any

from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Finding, compare
from graders.grading.traffic import in_time, within
from graders.units.ranks.stage import Seen


def kept(tried: Tried[Any]) -> Finding:
    """Passes if arguments hold what they must, and the right object was returned."""
    found: Finding = tried.seen.kept
    return found


def frugal(tried: Tried[Any]) -> Finding | None:
    """Passes if no more messages and bytes were sent than are needed."""
    seen: Seen = tried.seen
    return within(seen.traffic, seen.allowed) if seen.allowed else None


def one_call(tried: Tried[Any]) -> Finding:
    """Passes if no rank has made more than one call."""
    most = max(map(len, tried.seen.by_rank))
    return compare.at_most(most, 1, "Calls of a rank", kind=Kind.TOO_MUCH)


def quick(tried: Tried[Any]) -> Finding | None:
    """Passes if it took no more rounds than are needed."""
    seen: Seen = tried.seen
    return in_time(seen.traffic, seen.allowed) if seen.allowed else None
