"""The grader of `shard_indices`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.shuffles import drawn_anew, drawn_together, not_always_alike
from graders.units.unit_02.dealing import Shards, is_index_list, shards

_EPOCHS = (0, 1, 2, 4, 10, 12, 17)
"""Of any number up to 13 a multiple lies between two of them: who comes back to an order after so many epochs
shows. The first three follow one another.
"""
MANY = 24
"""So many orders that one which leaves a sample in seven at its place shows in all together."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """length: of the data set; by default each rank gets as many."""

    ranks: int = feature(4, lambda ranks: compare.counted(ranks, "rank"))
    length: int = feature(80, lambda length: compare.counted(length, "sample"))

    @property
    def many_epochs(self) -> bool:
        """Whether it is about many epochs of one seed: what they have in common shows in all together."""
        return self.ranks == 1 or self.length < 80

    def times(self, rng: Rng) -> list[tuple[int, int]]:
        """The epochs and seeds to ask for; see `other_orders` for their places."""
        epoch, seed = rng.integer(3, 50), rng.integer(0, 10_000)
        if self.many_epochs:
            return [(each, seed) for each in range(epoch, epoch + MANY)]
        # The same last digits, and the same last bits; not more of these, for torch.Generator takes 32.
        other = seed + 256_000
        times = [(0, seed), (1, seed), (epoch, seed), (epoch, other), (0, other), (0, 0), (1, 0)]
        return times + [(one, seed) for one in _EPOCHS[2:]]


def shuffled(tried: Tried[Dealt]) -> Finding | None:
    """Passes if the orders of two seeds look drawn, and those of many epochs on one rank together."""
    dealt: Shards = tried.seen
    case = tried.case.features
    if case.length < 80:
        return None
    if case.many_epochs:
        differ = drawn_anew(dealt.orders(0, 1), case.length).passed
        # Whether epochs differ at all is the next criterion's.
        return (
            drawn_together(dealt.orders(*range(MANY))) if differ else drawn_anew(dealt.orders(0), case.length)
        )
    two = [f"with seed {dealt.asked[number][2]}" for number in (2, 3)]
    mixed = shuffling(dealt.indices(2), dealt.indices(3), two)
    return drawn_anew(dealt.orders(2, 3), case.length, "seed") if mixed.passed else mixed


def other_orders(tried: Tried[Dealt]) -> Finding | None:
    """Passes if every epoch has an order of its own, which is the same whenever it is asked for."""
    dealt: Shards = tried.seen
    case = tried.case.features
    if case.length < 80:
        return None
    if case.many_epochs:
        return drawn_anew(dealt.orders(0, 1), case.length)
    seed = dealt.asked[0][2]
    pairs = (
        (0, 1, ("in epoch 0", "in epoch 1"), ""),
        # There a product of the two says nothing of the other.
        (5, 6, ("with seed 0 in epoch 0", "with seed 0 in epoch 1"), _PRODUCT),
        (0, 4, (f"in epoch 0 with seed {seed}", "with another seed"), _PRODUCT),
    )
    others = [reshuffling(dealt.indices(one), dealt.indices(two), when, why) for one, two, when, why in pairs]
    anew = drawn_anew(dealt.orders(0, 1, *range(7, len(dealt.asked))), case.length)
    return compare.first_failure([*others, repeated(dealt), anew])


def no_calls(tried: Tried[Dealt]) -> Finding:
    """Passes if nothing was communicated."""
    made = ", ".join(sorted(set(tried.seen.calls)))
    return Finding(not made, f"calls that communicate: {made or 'none'}.")


def few_in_any_order(tried: Tried[Dealt]) -> Finding | None:
    """Passes if few samples are not dealt alike in all epochs."""
    few = 1 < tried.case.features.length < 80
    return not_always_alike(tried.seen.orders(*range(MANY))) if few else None


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
            vary=vary(ranks=(1,)),
            how=shuffled,
        ),
        Criterion(
            "reshuffled each epoch",
            1,
            "The permutation has to depend on the epoch too, as DistributedSampler's does after set_epoch, "
            "and on both numbers whatever they are.",
            needs=("shuffled",),
            how=other_orders,
        ),
        Criterion(
            "random state kept",
            1,
            "Draw from a torch.Generator of your own; torch.manual_seed resets every dropout mask too, and "
            "random.seed and numpy.random.seed the augmentation.",
            how=lambda tried: random_state_kept(tried.seen),
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
            vary=vary(length=(81, 82, 83, 11, 3, 1)),
            how=few_in_any_order,
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
    possible=lambda case: case.ranks > 1 or case.length == 80,
)
def shard_indices(answer: Answer, case: Dealt, rng: Rng) -> tuple[Finding, Shards]:
    """Each sample on one rank, as many on each as on others, or one more or less."""
    dealt = shards(answer, [(case.length, *time) for time in case.times(rng)], case.ranks)
    return compare.first_failure([partition(dealt), balance(dealt)]), dealt


def partition(dealt: Shards) -> Finding:
    """Passes if the ranks' indices are, together, each of 0 .. length - 1 once, whatever was asked for."""
    return compare.first_failure(_partition(dealt, number) for number in range(len(dealt.asked)))


def _partition(dealt: Shards, number: int) -> Finding:
    length, epoch, seed = dealt.asked[number]
    for rank, part in enumerate(dealt.parts[number]):
        if not is_index_list(part):
            kind = f"{part.dtype}, {part.dim()}-D" if isinstance(part, Tensor) else type(part).__name__
            what = f"{kind}: {part!r}"[:120]
            return Finding(False, f"rank {rank} returned {what}; expected a 1-D int64 tensor.")
    times = Counter(torch.cat(dealt.indices(number)).tolist())
    problems = {
        "dealt more than once": sorted(index for index, count in times.items() if count > 1),
        "missing": sorted(set(range(length)) - set(times)),
        "out of range": sorted(set(times) - set(range(length))),
    }
    text = "; ".join(f"{what}: {_some(which)}" for what, which in problems.items() if which)
    where = f"{compare.counted(length, 'sample')} on {compare.counted(len(dealt.parts[number]), 'rank')}"
    when = f" in epoch {epoch} with seed {seed}" if text else ""
    why = _why_not_a_partition(dealt.orders(number)[0], problems) if text else ""
    return Finding(not text, f"{where}{when}: {text or 'each is dealt to one rank'}.{why}")


def _why_not_a_partition(parts: list[list[int]], problems: Mapping[str, list[int]]) -> str:
    """A sentence on what has probably gone wrong, if that can be told."""
    if len(parts) > 1 and all(part == parts[0] for part in parts):
        return " All ranks get the same; a rank's part depends on dist.get_rank(), not on its local rank."
    if problems["dealt more than once"] and problems["missing"]:
        return (
            " Have all ranks drawn the same permutation? The rank and its random state must not matter, nor "
            "hash() of a text, which differs from process to process."
        )
    return ""


def balance(dealt: Shards) -> Finding:
    """Passes if the sizes of the ranks' parts differ by at most one."""
    texts = {}
    for number, (length, _, _) in enumerate(dealt.asked):
        sizes = [len(part) for part in dealt.indices(number)]
        texts[length] = f"{compare.counted(length, 'sample')} dealt as {sizes}"
        if max(sizes) - min(sizes) > 1:
            return Finding(False, f"{texts[length]}; sizes may differ by one.")
    return Finding(True, "; ".join(texts.values()) + ".")


def shuffling(parts: list[Tensor], other_seed: list[Tensor], when: Sequence[str]) -> Finding:
    """Passes if another seed deals other samples, and the samples of no rank come in ascending order, also
    not in an order that begins in the middle and goes on at the start.

    parts, other_seed: a rank's indices [n] each. when: both, for a sentence.
    """
    if not all(map(len, parts)):
        return Finding(False, "Not every rank returned a list of indices to look at.")
    in_order = [rank for rank, part in enumerate(parts) if (part.diff() < 0).sum() <= 1]
    if in_order:
        text = f"rank {in_order[0]}'s indices come in ascending order: {parts[in_order[0]].tolist()!r:.60}"
        return Finding(False, f"{text}.")
    same = _same_samples(parts, other_seed, when)
    if same:
        return Finding(False, f"{same}.")
    return Finding(True, "Another seed deals other samples to every rank.")


_PRODUCT = " A product of seed and epoch is 0 if one of them is: take another number, such as their sum."


def reshuffling(parts: list[Tensor], others: list[Tensor], when: Sequence[str], why: str) -> Finding:
    """Passes if another time deals other samples.

    parts, others: a rank's indices [n] each. when: both times, for a sentence. why: one more sentence.
    """
    if not all(map(len, parts)):
        return Finding(False, "Not every rank returned a list of indices to look at.")
    same = _same_samples(parts, others, when)
    if same:
        return Finding(False, f"{same}.{why}")
    return Finding(True, "Each epoch deals anew.")


def repeated(dealt: Shards) -> Finding:
    """Passes if the same seed and epoch, once more, after others than before, and when what was dealt has
    been overwritten, deal the same.
    """
    for (_, epoch, seed), parts, again in zip(dealt.asked, dealt.parts, dealt.again, strict=False):
        for rank, both in enumerate(zip(again, parts, strict=True)):
            if not compare.same(*both):
                text = f"rank {rank} gets another part when it asks for epoch {epoch} with seed {seed} again"
                return Finding(False, f"{text}; nothing may depend on what was asked before, or made of it.")
    return Finding(True, "Each epoch deals anew, and the same epoch always alike.")


def random_state_kept(dealt: Shards) -> Finding:
    """Passes if no rank's own random state has changed, in whatever library."""
    for rank, libraries in enumerate(dealt.changed):
        if libraries:
            text = f"the random state of {' and '.join(libraries)} changes on rank {rank}"
            return Finding(False, f"{text}; expected it to stay as it was.")
    return Finding(True, "The rank's own random state stays as it was.")


def _same_samples(parts: list[Tensor], others: list[Tensor], when: Sequence[str]) -> str:
    """Whose samples stay together, in words; empty if all are dealt anew. when: the two times."""
    one, other = when
    owners = {frozenset(part.tolist()): rank for rank, part in enumerate(others)}
    for rank, part in enumerate(parts):
        owner = owners.get(frozenset(part.tolist()))
        if owner == rank:
            return f"rank {rank} gets the same samples {one} and {other}"
        if owner is not None:
            return f"the samples that rank {rank} gets {one} all go to rank {owner} {other}"
    return ""


def _some(indices: list[int]) -> str:
    """The first few of many, for a sentence."""
    shown = ", ".join(str(index) for index in indices[:5])
    return shown if len(indices) <= 5 else f"{shown} and {len(indices) - 5} more"
