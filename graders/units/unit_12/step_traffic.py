"""Where ranks stand in a step on a mesh, and what is found of their calls in it."""

from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind
from graders.units.ranks.features import Ranks

SIZES = {"width": 6, "vocabulary": 11, "context": 5}
A_NUMBER = 8
"""Bytes: calls of so much may be made on any group, for the loss."""


@dataclass(frozen=True, slots=True)
class Step(Ranks):
    """shape: of the mesh. samples: of each micro-batch, of the replicas in turn."""

    ranks: int = 8
    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    samples: tuple[tuple[int, ...], ...] = feature(((2, 2),), "micro-batches of {} samples")
    tied: bool = feature(False, lambda tied: "a tied model" if tied else "")

    def place(self, rank: int) -> tuple[int, int, int]:
        """The coordinates of a rank."""
        _, stages, shares = self.shape
        return rank // (stages * shares), rank // shares % stages, rank % shares

    def line(self, rank: int, axis: int) -> list[int]:
        """The ranks that differ from this one along an axis at most."""
        at: list[int | slice] = list(self.place(rank))
        at[axis] = slice(None)
        found: list[int] = torch.arange(self.ranks).view(self.shape)[tuple(at)].tolist()
        return found


def bytes_and_messages(tried: Tried[Any]) -> Finding:
    """Passes if no rank gives a group's collectives, or sends another rank, more than it has to: gradients
    along data, what the model itself sums along tensor, what crosses a cut, and between the first stage and
    the last what they share.
    """
    step, seen = tried.case.features, tried.seen
    for rank, (events, (*_, batch), told) in enumerate(
        zip(seen.by_rank, seen.given[0], seen.results[0], strict=True)
    ):
        line, stage = step.line(rank, 1), step.place(rank)[1]
        crossing = [4 * tokens.numel() * SIZES["width"] for tokens, _ in batch]
        needed: dict[Any, list[int]] = {
            tuple(step.line(rank, 0)): [each.nbytes + A_NUMBER for each in told["gradients"].values()],
            tuple(step.line(rank, 2)): 4 * crossing,
            **{line[near]: crossing for near in (stage - 1, stage + 1) if 0 <= near < len(line)},
        }
        if step.tied and len(line) > 1 and rank in (line[0], line[-1]):
            for whom in (line[0], line[-1], (line[0], line[-1])):
                shared = 4 * SIZES["vocabulary"] * SIZES["width"]
                needed[whom] = [*needed.get(whom, []), shared]
        given: dict[Any, list[int]] = {}
        for event in events:
            if event.op != "recv" and event.nbytes > A_NUMBER and len(event.group) != 1:
                whom = event.peer if event.op == "send" else tuple(sorted(event.group))
                given.setdefault(whom, []).append(event.nbytes)
        for whom, sizes in given.items():
            right = needed.get(whom, [])
            if len(sizes) > len(right) or sum(sizes) > sum(right):
                said = f"rank {rank} gives {sum(sizes):,} bytes to {whom} in {len(sizes)} calls"
                return Finding(False, f"{said}; expected {sum(right):,} in {len(right)}.", Kind.TOO_MUCH)
    return Finding(True, "Each gradient is summed along data once, and crosses each cut once.")


def in_flight(tried: Tried[Any]) -> Finding:
    """Passes if each stage sends on a micro-batch for each stage from it on, before the first is back."""
    step, seen = tried.case.features, tried.seen
    for rank, (events, (*_, batch)) in enumerate(zip(seen.by_rank, seen.given[0], strict=True)):
        line, stage = step.line(rank, 1), step.place(rank)[1]
        if rank == line[-1]:
            continue
        calls = [event for event in events if event.peer == line[stage + 1]]
        back = min((event.end for event in calls if event.op == "recv"), default=0.0)
        early = sum(event.op == "send" and event.start < back for event in calls)
        expected = min(len(batch), len(line) - stage)
        if early < expected:
            told = f"before the first micro-batch is back stage {stage} has sent on {early}"
            return Finding(False, f"{told}; expected at least {expected}.")
    return Finding(True, "All stages send micro-batches on before the first is back.")
