"""The grader of `shard_indices`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.cases import vary
from graders.grading.communication import calls_of
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.shuffles import Order, drawn_anew
from graders.units.unit_02.drivers import data as drivers

LENGTH = 80
"""So many samples that an order which was not drawn shows."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """length: of the data set; by default each rank gets as many."""

    ranks: int = feature(4, lambda ranks: compare.counted(ranks, "rank"))
    length: int = feature(LENGTH, lambda length: compare.counted(length, "sample"))


@dataclass(frozen=True, slots=True)
class Shards:
    """parts[i][r]: what rank r got when it asked for (length, epoch, seed) for the i-th time. changed: the
    libraries whose random state changed on some rank. calls: those that communicate.
    """

    asked: Sequence[tuple[int, int, int]]
    parts: list[list[Any]]
    changed: list[str]
    calls: list[str]

    def orders(self, *numbers: int) -> list[Order]:
        """What the ranks got, for some of what was asked for."""
        return [[part.tolist() for part in self.parts[number]] for number in numbers]


def asked_by(rng: Rng, length: int) -> list[tuple[int, int, int]]:
    """Three epochs in turn, the first of another seed, a later one of both, and the first once more."""
    later, seed = rng.integer(3, 50), rng.integer(0, 10_000)
    other = seed + 256_000
    times = [(0, seed), (1, seed), (2, seed), (0, other), (later, seed), (later, other), (0, seed)]
    return [(length, *time) for time in times]


def partition(dealt: Shards, number: int) -> Finding:
    """Passes if the ranks' indices are, together, each of 0 .. length - 1 once, and as many on each rank as
    on others, or one more or less.
    """
    length, epoch, seed = dealt.asked[number]
    parts = dealt.parts[number]
    for rank, part in enumerate(parts):
        if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.dim() != 1:
            what = compare.shown(part)
            return Finding(False, f"rank {rank} returned {what}; expected a 1-D int64 tensor.")
    where = f"{compare.counted(length, 'sample')} on {compare.counted(len(parts), 'rank')}"
    times = Counter(torch.cat(parts).tolist())
    problems = {
        "dealt more than once": [index for index, count in times.items() if count > 1],
        "missing": {*range(length)} - {*times},
        "out of range": {*times} - {*range(length)},
    }
    text = "; ".join(f"{what}: {sorted(which)[:5]}" for what, which in problems.items() if which)
    if text:
        return Finding(False, f"{where} in epoch {epoch} with seed {seed}: {text}.")
    sizes = list(map(len, parts))
    return Finding(max(sizes) - min(sizes) <= 1, f"{where} are dealt as {sizes}; sizes may differ by one.")


def shuffled(tried: Tried[Dealt]) -> Finding | None:
    """Passes if the orders of two seeds look drawn."""
    length = tried.case.features.length
    return drawn_anew(tried.seen.orders(4, 5), length, "seed") if length == LENGTH else None


def other_orders(tried: Tried[Dealt]) -> Finding | None:
    """Passes if every epoch has an order of its own, which is the same whenever it is asked for."""
    dealt, length = tried.seen, tried.case.features.length
    if length != LENGTH:
        return None
    alike = dealt.orders(0) == dealt.orders(6)
    again = Finding(alike, "epoch 0 of one seed is dealt in another way when it is asked for again.")
    epochs, seeds = drawn_anew(dealt.orders(0, 1, 2), length), drawn_anew(dealt.orders(0, 3), length, "seed")
    return compare.first_failure([epochs, seeds, again])


def random_state_kept(tried: Tried[Dealt]) -> Finding:
    """Passes if no rank's own random state has changed, in whatever library."""
    changed = " and ".join(tried.seen.changed)
    return Finding(not changed, f"random states that change: {changed or 'none'}; expected none.")


def no_calls(tried: Tried[Dealt]) -> Finding:
    """Passes if nothing was communicated."""
    made = ", ".join(sorted(set(tried.seen.calls)))
    return Finding(not made, f"calls that communicate: {made or 'none'}.")


@one_by_one(
    base=Dealt(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "each sample once",
            1,
            "All ranks must cut the same permutation: let it depend on seed and epoch, and on nothing else. "
            "Then each takes its own part.",
        ),
        Criterion(
            "shuffled",
            1,
            "Shuffle all indices first, by a permutation that depends on the seed; then take this rank's "
            "part. Shuffling only within a rank's part leaves every rank with the same samples for ever.",
            how=shuffled,
        ),
        Criterion(
            "reshuffled each epoch",
            1,
            "The permutation has to depend on the epoch too, as DistributedSampler's does after set_epoch, "
            "and on both numbers whatever they are: a product of the two is 0 in epoch 0.",
            needs=("shuffled",),
            how=other_orders,
        ),
        Criterion(
            "random state kept",
            1,
            "Draw from a torch.Generator of your own; torch.manual_seed resets every dropout mask too, and "
            "random.seed and numpy.random.seed the augmentation.",
            how=random_state_kept,
        ),
        Criterion(
            "no communication",
            1,
            "From the same seed and epoch every rank can draw the same permutation by itself.",
            how=no_calls,
        ),
        Criterion(
            "any number of samples",
            1,
            "This asks for more than DistributedSampler does: no padding, and no rest left out. Deal the "
            "permutation out like cards: sizes differ by at most one, and of few samples some ranks get "
            "none. (torch.tensor([]) is float32.)",
            vary=vary(ranks=(1,), length=(81, 83, 11, 3)),
        ),
    ),
    hints=(
        "How can all ranks have the same order without a message? By drawing it from generators with the "
        "same seed.",
        "How do you draw without touching the rank's own random state? torch.randperm(length, "
        "generator=torch.Generator().manual_seed(...)).",
        "How do you cut the order so that sizes differ by at most one? A slice with a step, "
        "permutation[rank::world_size], does it.",
    ),
)
def shard_indices(answer: Answer, case: Dealt, rng: Rng) -> tuple[Finding, Shards]:
    """Every rank, each on a node of its own, asks for its part of several epochs."""
    asked = asked_by(rng, case.length)
    cluster = Cluster(nodes=case.ranks)
    observed = answer.launch(drivers.shards, asked, ranks=case.ranks, cluster=cluster)
    of_ranks = [
        compare.column([reply.parts for reply in observed.results], i, len(asked)) for i in range(len(asked))
    ]
    changed = sorted({library for reply in observed.results for library in reply.changed})
    dealt = Shards(asked, of_ranks, changed, calls_of([observed]))
    return compare.first_failure(partition(dealt, number) for number in range(len(asked))), dealt
