"""What an answer calls in each pass, and the rows that ask how: of cases that came out right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.communication import in_words
from graders.grading.expected import same
from graders.grading.explanation import Tried
from graders.grading.kit import AnswerFailed, FailureKind, Finding, Kind, Observed, compare
from graders.units.unit_06.cases import GRADIENTS, Case, Place
from graders.units.unit_06.drivers.passing import PassedReply

Calls = list[tuple[str, list[Event]]]
"""The passes of a rank in a case, by name, each with the calls that it made there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows that ask how may see of a right case: its places, what they told, and what they called."""

    places: list[Place]
    told: list[PassedReply]
    calls: list[Calls]


def calls_by_pass(observed: Observed[Any], rank: int, cases: list[tuple[int, Case]]) -> dict[int, Calls]:
    """By case what this rank called in each pass. Raises AnswerFailed if the marks are not the driver's."""
    passes = {True: ["making", *["forward", "backward"] * 2], False: ["making", "forward"]}
    expected = [(number, label) for number, case in cases for label in passes[case.asked == GRADIENTS]]
    marks = [event for event in observed.events if event.rank == rank and event.kind is EventKind.SPAN]
    if [mark.op for mark in marks] != [f"{number} {label}" for number, label in expected]:
        raise AnswerFailed(FailureKind.UNREADABLE, f"The passes of rank {rank} are not the grader's.")
    last = max((event.sequence for event in observed.events), default=0) + 1
    told: dict[int, Calls] = {number: [] for number, _ in cases}
    calls = observed.communication(rank)
    bounds = [*(mark.sequence for mark in marks), last]
    for (number, label), (first, end) in zip(expected, pairwise(bounds), strict=True):
        told[number].append((label, [call for call in calls if first <= call.sequence < end]))
    return told


def kept(tried: Tried[Any]) -> Finding:
    """Passes if what was given is as it was."""
    seen: Seen = tried.seen
    return compare.first_failure(
        same(told.arguments.get(name), wanted, f"{name} at place {number}, afterwards,", 0)
        for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True))
        for name, wanted in place.kept.items()
    )


def small(tried: Tried[Any]) -> Finding:
    """Passes if no module keeps more bytes than its own numbers take."""
    seen: Seen = tried.seen
    return compare.first_failure(
        compare.at_most(told.kept, place.nbytes, f"Bytes in memory by place {number}'s module")
        for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True))
    )


def in_each_pass(
    look: Callable[[Case, Place, str, list[Event]], Finding],
) -> Callable[[Tried[Any]], Finding]:
    """A check of what every place calls in each pass: "making", "forward" or "backward". The finding's text
    has a place for who and when.
    """

    def check(tried: Tried[Any]) -> Finding:
        seen: Seen = tried.seen
        for number, (place, passes) in enumerate(zip(seen.places, seen.calls, strict=True)):
            for phase, calls in passes:
                found = look(tried.case.features, place, phase, calls)
                if not found.passed:
                    return Finding(False, f"In {phase}, place {number} {found.seen}", found.kind)
        return Finding(True, "Every place calls what is needed, and no more.")

    return check


def calls_of(
    allowed: Callable[[Case, Place, str], tuple[Sequence[str], int]],
) -> Callable[[Tried[Any]], Finding]:
    """A check that every place makes these calls in each forward and each backward pass, in any order, and
    gives them no more bytes than that. The beginnings of names suffice.
    """

    def look(case: Case, place: Place, phase: str, calls: list[Event]) -> Finding:
        wanted, nbytes = allowed(case, place, phase) if phase != "making" else ((), 0)
        return as_wanted(calls, wanted, nbytes)

    return in_each_pass(look)


def as_wanted(calls: Sequence[Event], wanted: Sequence[str], nbytes: int) -> Finding:
    """Passes if these calls were made, in any order, and were given no more bytes."""
    seen = sorted(call.op for call in calls)
    given = sum(call.nbytes for call in calls)
    right = len(seen) == len(wanted) and all(map(str.startswith, seen, sorted(wanted)))
    kind = Kind.TOO_MUCH if len(seen) > len(wanted) else Kind.OTHER
    if not right:
        return Finding(False, f"calls {in_words(seen)}; expected {in_words(wanted)}.", kind)
    return Finding(given <= nbytes, f"communicates {given:,} bytes; {nbytes:,} are allowed.", Kind.TOO_MUCH)
