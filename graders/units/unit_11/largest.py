"""Unit 11, the few largest numbers of a gradient, and the sum over ranks of what they chose."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    PlainData,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_11 import drivers
from graders.units.unit_11.replies import SparseReply, WithErrorReply
from graders.units.unit_11.rounding import rounding


@exercise(
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion("sum", 4, "Every pair of every rank counts, also where several have the same place."),
        Criterion(
            "alike on all ranks", 2, "In which order are numbers added? It has to be the same everywhere."
        ),
        Criterion("no dense message", 3, "Only pairs travel: those that there are, and how many there are."),
        Criterion("arguments unchanged", 1, "values and indices stay as they are."),
    ),
    hints=(
        "Which collective gives every rank what every rank has? What does it ask of the shapes?",
        "A rank has no more pairs: which pair may it send that changes nothing?",
        "`total[indices] = total[indices] + values` adds how often, where a place stands twice in indices? "
        "Which method adds every time?",
    ),
)
def sparse_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """One rank to five, with few pairs, none, and many to one place."""
    cases = [
        Pairs.drawn(rng, [rng.integer(4, 9)], 50, torch.float64, torch.int32),
        Pairs.drawn(rng, [6, 6], rng.integer(2000, 3000), torch.float32, torch.int32),
        Pairs.drawn(rng, [rng.integer(3, 9), 0, rng.integer(10, 20)], 2500, torch.float64, torch.int64),
        Pairs.drawn(rng, [rng.integer(5, 9) for _ in range(5)], 1000, torch.float32, torch.int32),
        # So many to each place that adding in pairs of others shows in the last bits.
        Pairs.drawn(rng, [rng.integer(20, 30) for _ in range(4)], 40, torch.float64, torch.int64),
        Pairs.drawn(rng, [0, 0], 7, torch.float32, torch.int64),
    ]
    runs = [case.launch(answer) for case in cases]
    yield "sum", compare.first_failure(map(Pairs.summed, cases, runs))
    yield "alike on all ranks", compare.first_failure(map(_alike, runs))
    yield "no dense message", compare.first_failure(map(Pairs.light, cases, runs))
    yield "arguments unchanged", compare.first_failure(map(Pairs.kept, cases, runs))


@dataclass(frozen=True, slots=True)
class Pairs:
    """values, indices: of each rank, [k], not the same k on all."""

    values: list[Tensor]
    indices: list[Tensor]
    length: int

    @classmethod
    def drawn(
        cls, rng: Rng, counts: list[int], length: int, dtype: torch.dtype, places: torch.dtype
    ) -> "Pairs":
        """Half of the places are one of four that several ranks have; of the rest each may be anywhere."""
        common = torch.cat([torch.tensor([0, length - 1]), rng.integers(0, length - 1, 2)])
        indices = []
        for count in counts:
            anywhere = rng.integers(0, length - 1, count)
            anywhere[::2] = common[rng.integers(0, 3, len(anywhere[::2]))]
            indices.append(anywhere.to(places))
        # Of unequal sizes, so that the order of adding shows in the last bits.
        values = [rng.normal(count, dtype=dtype) * 10 ** rng.normal(count, dtype=dtype) for count in counts]
        return cls(values, indices, length)

    def launch(self, answer: Answer) -> Observed[SparseReply]:
        given = (per_rank(self.values), per_rank(self.indices), self.length)
        return answer.launch(drivers.sparse, *given, ranks=len(self.values))

    def summed(self, run: Observed[SparseReply]) -> Finding:
        """Passes if every rank has the dense sum of all pairs, [length]."""
        expected = torch.zeros(self.length, dtype=self.values[0].dtype)
        expected.index_add_(0, torch.cat(self.indices).long(), torch.cat(self.values))
        results = [reply.result for reply in run.results]
        # Large numbers may cancel one another: what is left of their rounding is small beside them only.
        sizes = torch.zeros_like(expected)
        sizes.index_add_(0, torch.cat(self.indices).long(), torch.cat(self.values).abs())
        near = rounding(expected) * float(sizes.max())
        return compare.close_on_all_ranks(results, [expected] * len(results), "the sum", 0, near)

    def light(self, run: Observed[SparseReply]) -> Finding:
        """Passes if no rank sends more than all others' shares of pairs, padded to the most that a rank has,
        and 16 bytes beside for each.
        """
        most, others = max(map(len, self.values)), len(self.values) - 1
        pair = self.values[0].element_size() + self.indices[0].element_size()
        allowed = others * (most * pair + 16)
        sent = max(run.traffic[rank].sent for rank in range(len(self.values)))
        text = (
            f"{len(self.values)} ranks with at most {most} pairs, length {self.length}: a rank sends {sent:,}"
        )
        return Finding(sent <= allowed, f"{text} bytes; allowed are {allowed:,}.", Kind.TOO_MUCH)

    def kept(self, run: Observed[SparseReply]) -> Finding:
        """Passes if the arguments are what they were."""
        seen = [[reply.values, reply.indices] for reply in run.results]
        given = [list(pair) for pair in zip(self.values, self.indices, strict=True)]
        return compare.equal(seen, given, "values and indices afterwards")


def _alike(run: Observed[SparseReply]) -> Finding:
    """Passes if all ranks have the same sum, to the last bit."""
    first = run.results[0].result
    for rank, reply in enumerate(run.results):
        if not torch.equal(reply.result, first):
            differ = int((reply.result != first).sum())
            said = f"rank {rank} of {len(run.results)} has other last digits than rank 0"
            return Finding(
                False, f"{said} in {compare.counted(differ, 'number')}: replicas would drift apart."
            )
    return Finding(True, "All ranks have the same sum, to the last bit.")
