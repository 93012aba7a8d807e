"""What ranks held in memory between the marks of a driver, for the graders of unit 09."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import AnswerFailed, FailureKind, Finding, Observed, compare


def part_of(tensors: Sequence[Tensor], ranks: int, rank: int) -> Tensor:
    """A rank's part of tensors that are laid end to end and padded with zeros."""
    numbers = torch.cat([tensor.flatten() for tensor in tensors])
    return functional.pad(numbers, (0, -len(numbers) % ranks)).view(ranks, -1)[rank]


def length_of(numel: int, ranks: int) -> int:
    """How many numbers each rank's part has, with padding."""
    return -(-numel // ranks)


def most_held(observed: Observed[Any], rank: int, begin: str, end: str = "") -> int:
    """The most bytes that a rank held from its first mark `begin` to its first mark `end`; without an end, at
    that mark.
    """
    until = _totals(observed, rank, end or begin)
    return max(until[len(_totals(observed, rank, begin)) - 1 :])


def at_most_held(seen: Sequence[int], allowed: Sequence[int], when: str) -> Finding:
    """Passes if no rank held more bytes than it may. when: for a sentence, which begins with it."""
    for rank, (held, limit) in enumerate(zip(seen, allowed, strict=True)):
        if held > limit:
            said = f"{when} rank {rank} holds {held:,} bytes; allowed are {limit:,}"
            return Finding(False, f"{said}, see launch(..., memory=True).")
    return Finding(True, f"{when} no rank holds more than {max(seen):,} bytes.")


def _totals(observed: Observed[Any], rank: int, label: str) -> list[int]:
    """What is held after each change, from the beginning to the rank's first mark of this label. Raises
    AnswerFailed if there is none.
    """
    held: dict[str, int] = {}
    totals = [0]
    for event in observed.events:
        if event.rank == rank and event.kind is Kind.SPAN and event.op == label:
            return totals
        if event.rank == rank and event.kind is Kind.MEMORY:
            held[event.op] = event.nbytes
            totals.append(sum(held.values()))
    raise AnswerFailed(FailureKind.UNREADABLE, f"Rank {rank} has no mark {compare.shown(label)}.")
