"""Unit 12, messages between neighbours."""

from collections.abc import Sequence

from course_lib.runtime.communication.events import Event
from graders.grading.kit import Finding, Kind


def one_message_each(where: str, calls: Sequence[Event], neighbours: Sequence[int], nbytes: int) -> Finding:
    """Passes if of these calls there is one send of at most so many bytes to each neighbour, and no other."""
    sends = [call for call in calls if call.op == "send"]
    seen = sorted(call.peer for call in sends if call.peer is not None)
    if seen != list(neighbours):
        kind = Kind.TOO_MUCH if len(seen) > len(neighbours) else Kind.OTHER
        return Finding(False, f"{where} sends to ranks {seen}; expected {list(neighbours)}.", kind)
    most = max((call.nbytes for call in sends), default=0)
    if most > nbytes:
        said = f"{where} sends a message of {most:,} bytes; the rows that are needed have {nbytes:,}."
        return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, f"{where} sends each neighbour its halo, once.")
