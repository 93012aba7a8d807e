"""The grader of `mend_statistics`."""

from dataclasses import dataclass
from typing import Any

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks

SMALL = 8
"""Bytes of a call: one number, or two of 32 bits."""


@dataclass(frozen=True, slots=True)
class Numbers(Ranks):
    """counts: how many numbers each rank has. kind: see KINDS."""

    counts: tuple[int, ...] = feature((3, 2, 5), "{} numbers on the ranks")
    kind: str = feature("below zero", "{}")

    @property
    def launched(self) -> int:
        return len(self.counts)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(range(len(self.counts)))


KINDS = {"below zero": (-9, -1), "of both signs": (-9, 9), "zero": (0, 0)}
"""Whole numbers between two."""


def some_numbers(rng: Rng, case: Numbers) -> list[Arguments]:
    """Each rank's own, few digits each, so that float32 has their sum."""
    return [[rng.integers(*KINDS[case.kind], count).float()] for count in case.counts]


def few_and_alike(tried: Tried[Numbers]) -> Finding:
    """Passes if every rank makes the same calls, at most three, and none of more than a number."""
    calls: list[list[Any]] = tried.seen.by_rank
    first = [event.op for event in calls[0]]
    for rank, events in enumerate(calls):
        made = [event.op for event in events]
        if len(made) > 3 or any(event.nbytes > SMALL for event in events):
            told = ", ".join(f"{event.op} of {event.nbytes} bytes" for event in events)
            return Finding(
                False, f"rank {rank} calls {told}; allowed are three of {SMALL} bytes.", Kind.TOO_MUCH
            )
        if made != first:
            return Finding(False, f"rank 0 calls {first}, and rank {rank} calls {made}; expected the same.")
    return Finding(True, f"every rank calls {', '.join(first)}.")


@on_ranks(
    base=Numbers(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "the mean and the largest",
            2,
            "The sum of all ranks' numbers, divided by the count of all ranks' numbers; and the largest of "
            "all, by an all_reduce with ReduceOp.MAX. All may be below 0. Both are floats: `.item()`.",
            vary=vary(kind=("of both signs", "zero"), counts=((1,), (4, 4), (1, 7, 2, 3))),
        ),
        Criterion(
            "a rank without numbers",
            2,
            "It must not leave before the calls, and what it contributes must change nothing: 0 to a sum. "
            "And to a maximum? Make it anew each time: a collective writes into what it is given.",
            # The first one leaves numbers above those of the next one behind.
            vary=both(counts=(0, 3, 2), kind="of both signs")
            + vary(counts=((0, 3, 2), (3, 0), (2, 1, 0, 0))),
        ),
        Criterion(
            "mine unchanged", 1, "A collective writes into what it is given: give it a copy.", how=kept
        ),
        Criterion(
            "three small calls that all ranks make",
            1,
            "Every rank works on its own numbers; only results are sent. No group is needed, and no barrier.",
            how=few_and_alike,
        ),
    ),
    hints=(
        "Which call does the report name for rank 0, and which for the others? Which of them is the first "
        "that not all ranks make?",
        "What does the second report say of the rank that has already returned? The others wait for it.",
        "What can a rank without numbers give to a maximum, so that no other rank's number is below it? "
        'float("-inf") is a number like any other there.',
    ),
    arguments=some_numbers,
    calls=("all_reduce", "all_gather", "broadcast", "reduce", "all_gather_into_tensor", "gather"),
)
def mend_statistics(case: Numbers, given: list[Arguments]) -> list[Expected]:
    """The mean and the largest of all ranks' numbers, on every rank."""
    everything = torch.cat([mine for (mine,) in given]).double()
    pair = (everything.mean().item(), everything.max().item())
    return [Expected(pair, {"mine": mine}, returned=None) for (mine,) in given]
