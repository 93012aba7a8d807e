"""What is found of replicas of a `Forked` after a step or a training."""

from collections.abc import Sequence

from torch import Tensor

from graders.grading.kit import Finding, compare
from graders.units.unit_08.replicas import FROZEN, ReplicaReply


def moved(replies: Sequence[ReplicaReply], wanted: Sequence[Tensor]) -> Finding:
    """Passes if every rank's trainable parameters are what they should be."""
    return compare.first_failure(
        compare.close(seen, each, f"parameter {position} on rank {rank}", 1e-4, 1e-5)
        for rank, reply in enumerate(replies)
        for position, (seen, each) in enumerate(compare.side_by_side(reply.parameters, wanted))
        if position not in FROZEN
    )


def stayed(replies: Sequence[ReplicaReply], values: Sequence[Tensor], samples: Sequence[int]) -> Finding:
    """Passes if frozen parameters have their values, and each rank's buffer has counted so many samples."""
    for rank, (reply, count) in enumerate(zip(replies, samples, strict=True)):
        if not all(reply.parameters[position].equal(values[position]) for position in FROZEN):
            return Finding(False, f"on rank {rank} a frozen parameter has changed.")
        if reply.seen != count:
            return Finding(False, f"on rank {rank} the buffer has {reply.seen.item():g}; expected {count}.")
    return Finding(True, "buffers and frozen parameters are what they were.")
