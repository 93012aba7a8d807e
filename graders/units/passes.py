"""Which calls an answer makes in which pass, told by the marks that drivers set between passes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from course_lib.runtime.communication.events import Event, Kind
from graders.grading.communication import in_words
from graders.grading.kit import AnswerFailed, FailureKind, Finding, Observed


def calls_by_pass(observed: Observed[Any], rank: int, passes: Sequence[str]) -> list[list[Event]]:
    """The calls of a rank that it made after each of these marks, up to the next. Raises AnswerFailed if the
    marks are not those.
    """
    marks = [event for event in observed.events if event.rank == rank and event.kind is Kind.SPAN]
    if [mark.op for mark in marks] != list(passes):
        raise AnswerFailed(FailureKind.UNREADABLE, f"The passes of rank {rank} are not {in_words(passes)}.")
    last = max((event.sequence for event in observed.events), default=0) + 1
    bounds = [*(mark.sequence for mark in marks), last]
    calls = observed.communication(rank)
    return [[call for call in calls if first <= call.sequence < end] for first, end in pairwise(bounds)]


def calls_in_passes(
    observed: Observed[Any], passes: Sequence[str], expected: Sequence[Sequence[str]]
) -> Finding:
    """Passes if every rank made, after each mark, the calls expected, by name, in order, and no other. What
    it made after later marks than `expected` has is not looked at.
    """
    for rank in range(len(observed.results)):
        found = calls_by_pass(observed, rank, passes)
        for label, calls, wanted in zip(passes, found, expected, strict=False):
            seen = [call.op for call in calls]
            if seen != list(wanted):
                said = f"rank {rank} calls {in_words(seen)} in the {label}"
                return Finding(False, f"{said}; expected {in_words(wanted)}.")
    said = "; ".join(f"{label}: {in_words(wanted)}" for label, wanted in zip(passes, expected, strict=False))
    return Finding(True, f"Every rank calls, in the {said}.")


def bytes_in_passes(
    observed: Observed[Any], passes: Sequence[str], expected: Sequence[Sequence[int]]
) -> Finding:
    """Passes if no rank gives the calls of a pass more bytes than expected in all. expected: rank -> pass."""
    for rank, allowed in enumerate(expected):
        for label, calls, limit in zip(passes, calls_by_pass(observed, rank, passes), allowed, strict=False):
            seen = sum(call.nbytes for call in calls)
            if seen > limit:
                said = f"rank {rank} communicates {seen:,} bytes in the {label}"
                return Finding(False, f"{said}; {limit:,} are allowed.")
    return Finding(True, "No pass communicates more bytes than it has to.")
