"""Unit 10, what rows that travel to experts and rows that come back are judged by alike."""

import torch
from torch import Tensor

from graders.grading.kit import Criterion, Finding, Kind, Observed, compare
from graders.units.passes import calls_by_pass
from graders.units.unit_10.replies import TravelReply

PASSES = ("forward", "forward of no rows", "backward", "forward under no_grad")
CALL = "all_to_all_single"
Replies = Observed[TravelReply]

GROUP = Criterion("group", 1, "Each collective takes a group, in backward too; and places are those in it.")


def arguments(run: Replies, given: list[list[Tensor]]) -> list[Finding]:
    """Whether each rank's arguments are what they were."""
    return [
        compare.equal(reply.arguments, each, f"the arguments on rank {rank} afterwards")
        for rank, (reply, each) in enumerate(compare.side_by_side(run.results, given))
    ]


def needed(run: Replies, wanted: list[list[bool]]) -> list[Finding]:
    """Whether what was given needs a gradient on each rank just where it did before."""
    return [
        compare.equal(reply.needed, each, f"what needs a gradient on rank {rank} afterwards")
        for rank, (reply, each) in enumerate(compare.side_by_side(run.results, wanted))
    ]


def leave(run: Replies, limits: list[list[int]]) -> Finding:
    """Passes if no rank sends more bytes than these in the first passes."""
    for rank, allowed in enumerate(limits):
        for label, calls, limit in zip(PASSES, calls_by_pass(run, rank, PASSES), allowed, strict=False):
            sent = sum(call.sent for call in calls)
            if sent > limit:
                said = f"in {label} rank {rank} sends {sent:,} bytes to others"
                return Finding(False, f"{said}; what has to leave it is {limit:,} bytes.", Kind.TOO_MUCH)
    return Finding(True, "Every rank sends what has to leave it, once.")


def parts_of(rows: Tensor, counts: Tensor) -> list[Tensor]:
    """Rows in parts: one for each row of counts, as long as the sum of that."""
    parts: list[Tensor] = list(torch.split(rows, counts.sum(1).tolist()))
    return parts
