"""Rows that exercises with a server share."""

from collections.abc import Callable
from typing import Any

from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding, Observed, communication
from graders.units.unit_08.on_the_server import Pace, Training


def asked(check: Callable[[Training], Finding]) -> Callable[[Tried[Pace]], Finding | None]:
    """Of the log of each training; of several in a row it is not judged."""
    return lambda tried: check(tried.seen) if tried.case.features.times == 1 else None


W_UNCHANGED = Criterion(
    "w unchanged",
    1,
    "The server's w is the caller's: train a copy.",
    how=lambda tried: tried.seen.untouched(),
)

STAR = Criterion(
    "the star",
    1,
    "send and recv, and each message between a worker and rank 0.",
    how=lambda tried: on_a_star(tried.seen.run),
)


def on_a_star(run: Observed[Any]) -> Finding:
    """Passes if all calls are messages, each with rank 0 at one end."""
    if not (only := communication.only_messages([run], "the answer")).passed:
        return only
    for event in run.events:
        if event.op == "send" and event.peer is not None and 0 not in (event.rank, event.peer):
            said = f"rank {event.rank} sends to rank {event.peer}, and neither is the server."
            return Finding(False, said)
    return Finding(True, "Every message comes from the server or goes to it.")
