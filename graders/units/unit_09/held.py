"""What ranks held in memory between the marks of a driver, for the graders of unit 09."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event, Kind
from graders.grading.kit import AnswerFailed, FailureKind, Finding, Observed, compare


def part_of(tensors: Sequence[Tensor], ranks: int, rank: int) -> Tensor:
    """A rank's part of tensors that are laid end to end and padded with zeros."""
    numbers = torch.cat([tensor.flatten() for tensor in tensors])
    return functional.pad(numbers, (0, -len(numbers) % ranks)).view(ranks, -1)[rank]


def length_of(numel: int, ranks: int) -> int:
    """How many numbers each rank's part has, with padding."""
    return -(-numel // ranks)


def held_at(observed: Observed[Any], rank: int, label: str) -> int:
    """Bytes that a rank held at its first mark of this label."""
    return _totals(_until(observed, rank, label))[-1]


def most_held(observed: Observed[Any], rank: int, begin: str, end: str) -> int:
    """The most bytes that a rank held between its first marks of these two labels."""
    before = len(_totals(_until(observed, rank, begin)))
    return max(_totals(_until(observed, rank, end))[before - 1 :])


def at_most_held(seen: Sequence[int], allowed: Sequence[int], when: str) -> Finding:
    """Passes if no rank held more bytes than it may. when: for a sentence, which begins with it."""
    for rank, (held, limit) in enumerate(zip(seen, allowed, strict=True)):
        if held > limit:
            said = f"{when} rank {rank} holds {held:,} bytes; allowed are {limit:,}"
            return Finding(False, f"{said}, see launch(..., memory=True).")
    return Finding(True, f"{when} no rank holds more than {max(seen):,} bytes.")


def _until(observed: Observed[Any], rank: int, label: str) -> list[Event]:
    """A rank's events of memory before its first mark of this label. Raises AnswerFailed if there is none."""
    own = [event for event in observed.events if event.rank == rank]
    if not any(event.kind is Kind.SPAN and event.op == label for event in own):
        raise AnswerFailed(FailureKind.UNREADABLE, f"Rank {rank} has no mark {compare.shown(label)}.")
    before = takewhile(lambda event: not (event.kind is Kind.SPAN and event.op == label), own)
    return [event for event in before if event.kind is Kind.MEMORY]


def _totals(events: Sequence[Event]) -> list[int]:
    """What is held after each change, from the beginning on."""
    held: dict[str, int] = {}
    totals = [0]
    for event in events:
        held[event.op] = event.nbytes
        totals.append(sum(held.values()))
    return totals
