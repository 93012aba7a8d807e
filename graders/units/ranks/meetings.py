"""What each of several cases did that share a launch, between two of which all ranks meet in a barrier."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.traffic import COMMUNICATION
from graders.grading.kit import AnswerFailed, FailureKind, Observed
from graders.grading.traffic import Traffic
from graders.units.ranks.features import Ranks


@dataclass(slots=True)
class Slice:
    """What one of the cases of a launch did. begin: virtual seconds, when all ranks had met. events: calls
    that communicate. marks: what drivers and models have put on the timeline.
    """

    begin: float = 0.0
    events: list[Event] = field(default_factory=list)
    marks: list[Event] = field(default_factory=list)


def between_meetings(observed: Observed[Any], meetings: int) -> list[Slice]:
    """What each case did. Raises AnswerFailed if a rank has met the others too seldom."""
    everyone = len(observed.results)
    slices = [Slice() for _ in range(meetings + 1)]
    met: list[list[int]] = [[] for _ in range(everyone)]
    for event in observed.events:
        mine = met[event.rank]
        if event.kind not in COMMUNICATION:
            continue
        # One more than the driver's is the answer's own, and is left to the last case.
        if event.op != "barrier" or len(event.group) != everyone or len(mine) == meetings:
            slices[len(mine)].events.append(event)
            continue
        mine.append(event.sequence)
        slices[len(mine)].begin = max(slices[len(mine)].begin, event.end)
    if any(len(mine) != meetings for mine in met):
        raise AnswerFailed(FailureKind.UNREADABLE, "A rank has not met the others.")
    for event in observed.events:
        if event.kind is Kind.SPAN:
            # A mark has the number of the call that comes after it.
            slices[bisect_left(met[event.rank], event.sequence)].marks.append(event)
    return slices


def by_place(setting: Ranks, events: Sequence[Event]) -> list[list[Event]]:
    """Those of each rank that makes the call."""
    return [[e for e in events if e.rank == rank and e.op != "new_group"] for rank in setting.places]


def traffic_of(setting: Ranks, case: Slice) -> Traffic:
    """The messages among the ranks that make the call, and how long all of it took."""
    places = {rank: place for place, rank in enumerate(setting.places)}
    own = [event for event in case.events if event.op in ("send", "recv") and event.rank in places]
    # In the order in which they were begun: of several at once, the first to leave is another.
    sends = sorted((event for event in own if event.op == "send"), key=lambda event: event.sequence)
    messages = [
        (places[event.rank], places.get(event.peer, -1), event.sent)
        for event in sends
        if event.peer is not None
    ]
    return Traffic(messages, max((event.end for event in own), default=case.begin) - case.begin)
