"""The grader of `shard_indices`."""

from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.shuffles import drawn_anew, drawn_together, not_always_alike
from graders.units.unit_02.dealing import (
    PRODUCT,
    Shards,
    balance,
    partition,
    random_state_kept,
    repeated,
    reshuffling,
    shards,
    shuffling,
)

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
        (5, 6, ("with seed 0 in epoch 0", "with seed 0 in epoch 1"), PRODUCT),
        (0, 4, (f"in epoch 0 with seed {seed}", "with another seed"), PRODUCT),
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
