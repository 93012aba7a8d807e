"""The grader of `sparse_all_reduce`."""

from dataclasses import dataclass

import torch

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks

COUNT_BYTES = 16
"""That a rank may send to each other one beside its pairs, to say how many there are."""
CALLS = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier"),
    *("broadcast", "gather", "reduce", "scatter", "send", "recv"),
)


@dataclass(frozen=True, slots=True)
class Pairs(Ranks):
    """counts: pairs of each rank. length: of the vector."""

    ranks: int = 0
    counts: tuple[int, ...] = feature((24, 24, 24, 24), "{} pairs on the ranks")
    length: int = feature(2500, "length {}")

    @property
    def launched(self) -> int:
        return len(self.counts)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(range(len(self.counts)))


def values_and_indices(rng: Rng, case: Pairs) -> list[Arguments]:
    """Half of the places are one of four that several ranks have, so that the order of adding shows in the
    last bits; of the rest each may be anywhere.
    """
    common = torch.cat([torch.tensor([0, case.length - 1]), rng.integers(0, case.length - 1, 2)])
    given: list[Arguments] = []
    for count in case.counts:
        anywhere = rng.integers(0, case.length - 1, count)
        anywhere[::2] = common[rng.integers(0, 3, len(anywhere[::2]))]
        given.append([rng.normal(count), anywhere.to(torch.int32), case.length])
    return given


def alike(tried: Tried[Pairs]) -> Finding:
    """Passes if all ranks have the same sum, to the last bit."""
    [[first, *others]] = tried.seen.results
    for rank, other in enumerate(others, 1):
        if not torch.equal(other, first):
            differ = compare.counted(int((other != first).sum()), "number")
            said = f"rank {rank} has other last digits than rank 0 in {differ}: replicas would drift apart."
            return Finding(False, said)
    return Finding(True, "all ranks have the same sum, to the last bit.")


def light(tried: Tried[Pairs]) -> Finding:
    """Passes if no rank sends more than the longest list of pairs to each other one, and how long it is."""
    case = tried.case.features
    allowed = (len(case.counts) - 1) * (max(case.counts) * 8 + COUNT_BYTES)
    sent = max(sum(event.sent for event in events) for events in tried.seen.by_rank)
    return compare.at_most(sent, allowed, "a rank sends", " bytes", Kind.TOO_MUCH)


@on_ranks(
    base=Pairs(),
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "sum",
            4,
            "Every pair of every rank counts, also where several have the same place.",
            vary=vary(counts=((5,), (6, 6)), length=(40,)),
        ),
        Criterion(
            "unlike numbers of pairs",
            1,
            "A rank may have fewer pairs than another, or none: what does a gather ask of the shapes?",
            vary=vary(counts=((4, 0, 15), (0, 0))),
        ),
        Criterion(
            "alike on all ranks",
            2,
            "In which order are numbers added? It has to be the same everywhere.",
            how=alike,
        ),
        Criterion(
            "no dense message",
            2,
            "Only pairs travel: those that there are, and how many there are.",
            how=light,
        ),
        Criterion("arguments unchanged", 1, "values and indices stay as they are.", how=kept),
    ),
    hints=(
        "Which collective gives every rank what every rank has? What does it ask of the shapes?",
        "A rank has no more pairs: which pair may it send that changes nothing?",
        "`total[indices] = total[indices] + values` adds how often, where a place stands twice in indices? "
        "Which method adds every time?",
    ),
    arguments=values_and_indices,
    calls=CALLS,
)
def sparse_all_reduce(case: Pairs, given: list[Arguments]) -> list[Expected]:
    """All pairs, added up."""
    total = torch.zeros(case.length)
    for values, indices, _ in given:
        total.index_add_(0, indices.long(), values)
    return [
        Expected(total, {"values": values, "indices": indices, "length": case.length}, returned=None)
        for values, indices, _ in given
    ]
