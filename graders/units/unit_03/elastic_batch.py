"""The grader of `elastic_batch`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases, feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.replies import Share


@dataclass(frozen=True, slots=True)
class World:
    """batch: samples of the global batch."""

    batch: int = feature(36, "a batch of {}")
    ranks: int = feature(4, "{} ranks")


class OfWorlds(Stage[World]):
    """What each rank of a world is given: its finding is whether each position is given out once."""

    def run(self, answer: Answer, cases: Sequence[tuple[World, Rng]]) -> Sequence[tuple[Finding, Any]]:
        worlds = [answer.call(drivers.world, world.batch, world.ranks) for world, _ in cases]
        return [(complete(world, shares), shares) for (world, _), shares in zip(cases, worlds, strict=True)]

    def typed(self, world: World) -> str:
        called = f"elastic_batch({world.batch}, {world.ranks}, rank)"
        return f"[{called} for rank in range({world.ranks})]"


def complete(world: World, shares: Sequence[Share]) -> Finding:
    """Passes if each position of the batch is given to one rank."""
    places = [share for share, _ in compare.side_by_side(shares, range(world.ranks))]
    if others := [share.other for share in places if share.other]:
        return Finding(False, f"a rank was given {others[0]}; expected a range and a float.")
    positions = sorted(chain(*(share.positions for share in places)))
    text = f"all ranks together have the positions {positions}; expected 0 to {world.batch - 1}, each once."
    return Finding(positions == list(range(world.batch)), text)


def even(tried: Tried[World]) -> Finding:
    """Passes if no rank has more than one sample more than another."""
    sizes = [len(share.positions) for share in tried.seen]
    text = f"the ranks have {sizes} samples; the step takes as long as the largest part."
    return Finding(max(sizes) - min(sizes) <= 1, text)


def weighted(tried: Tried[World]) -> Finding:
    """Passes if each rank's mean loss counts by its share of the samples, in a mean over ranks."""
    world = tried.case.features
    weights = [share.weight for share in tried.seen]
    wanted = [len(share.positions) * world.ranks / world.batch for share in tried.seen]
    right = all(map(math.isclose, weights, wanted))
    shown = [[round(weight, 4) for weight in each] for each in (weights, wanted)]
    return Finding(right, f"the ranks have the weights {shown[0]}; expected {shown[1]}.")


# One sample too many shows parts that are rounded up, one too few those that are rounded down.
UNEVEN = both(batch=21, ranks=5) + both(batch=27, ranks=7) + both(batch=55, ranks=11)
RUBRIC = (
    Criterion(
        "complete",
        2,
        "Together the ranks take the positions 0 to global_batch - 1, each once, also where the number "
        "of ranks does not divide them.",
        vary=vary(ranks=(3, 1), batch=(28,)) + UNEVEN,
    ),
    Criterion(
        "balanced",
        1,
        "global_batch % world_size samples are left over: one each for so many ranks, not all for one.",
        how=even,
    ),
    Criterion(
        "weight",
        2,
        "In the loss of the global batch a rank counts by its share of the samples; in the mean over "
        "ranks it counts 1 / world_size. The weight is the quotient.",
        how=weighted,
    ),
    Criterion(
        "more ranks than samples",
        1,
        "A rank without samples has weight 0, and still takes part.",
        vary=both(batch=2, ranks=5) + both(batch=3, ranks=4),
    ),
)


@by_cases(
    ByCases(World(), OfWorlds(), RUBRIC),
    minutes=15,
    difficulty=2,
    hints=(
        "How much should a rank's mean loss count in the whole, and how much does it count in a plain mean?",
        "rank * n // p and (rank + 1) * n // p are the ends of parts that differ by one at most.",
        "Unit 02: with m_k of n samples on rank k, the whole has the gradient sum of m_k / n times g_k. "
        "Averaging over p ranks gives 1 / p times the sum.",
    ),
)
def elastic_batch() -> None:
    """The same global batch on worlds that divide it and worlds that do not."""
