"""Unit 07, rings."""

from graders.grading.communication import (
    Allowance,
    seconds,
    to_the_next_only,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, measured
from graders.units.unit_07.common import common
from graders.units.unit_07.criteria import (
    ANY_DTYPE,
    CHUNK_LENGTHS,
    LAYOUT_IN_PLACE,
    ON_A_SUBGROUP,
    ONLY_MESSAGES,
    RIGHT_BY_MESSAGES,
    RIGHT_TRAFFIC,
)
from graders.units.unit_07.cuts import cut_as_asked
from graders.units.unit_07.shapes import takes_a_number
from graders.units.unit_07.worlds import BYTES, World

RING_RANKS = Criterion(
    "any number of ranks",
    1,
    "Neighbours are (rank + 1) % p and (rank - 1) % p. All do the same, so if all send first, all wait: "
    "isend, recv, wait.",
)


ALL_AT_ONCE = Criterion(
    "rounds",
    1,
    "All ranks send at the same time: isend, then recv, then wait.",
    needs=RIGHT_TRAFFIC,
)


ROUND_THE_RING = Criterion(
    "neighbours only",
    1,
    "On a ring a rank sends to the next one only, and receives from the one before.",
    needs=RIGHT_BY_MESSAGES,
)


@exercise(
    minutes=25,
    difficulty=4,
    rubric=(
        Criterion(
            "its chunk of the sum",
            2,
            "Rank r returns chunk r of the sum. Add the chunk that arrives to your own, and pass "
            "on what you have just added up.",
        ),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x must stay as it was: add into a copy of it, and return a new tensor."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion(
            "bytes and messages",
            2,
            "p - 1 steps, and in each one chunk and not the whole tensor.",
            needs=RIGHT_BY_MESSAGES,
        ),
        ALL_AT_ONCE,
    ),
    hints=(
        "Where must chunk 0 of 4 ranks start so that its last stop is rank 0? It starts at rank 1, is "
        "added up at 2, then 3.",
        "So in step s = 0, 1 ... p - 2 rank r sends chunk (r - 1 - s) % p to r + 1, and adds what arrives "
        "from r - 1 to chunk (r - 2 - s) % p.",
        "torch.tensor_split gives views: adding into a view of your copy changes the copy.",
    ),
)
def ring_reduce_scatter(answer: Answer, rng: Rng) -> Findings:
    """p - 1 steps round the ring, after which each rank has its chunk of the sum."""
    yield from common(answer, rng, kinds.REDUCE_SCATTER, "its chunk of the sum")
    yield from _ring_costs(answer, rng, kinds.REDUCE_SCATTER, passes=1)


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "every chunk on every rank",
            2,
            "Rank r begins with chunk r. In each step pass on the chunk that arrived in the step before.",
        ),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself; chunk r of rank r stays."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion("bytes and messages", 2, "p - 1 steps, and in each one chunk.", needs=RIGHT_BY_MESSAGES),
        ALL_AT_ONCE,
    ),
    hints=(
        "Which chunk can rank r send in step 0, and which in step 1? In step s it sends chunk (r - s) % p "
        "and receives chunk (r - s - 1) % p.",
        "A chunk of a contiguous tensor is contiguous, so recv can write into it.",
    ),
)
def ring_all_gather(answer: Answer, rng: Rng) -> Findings:
    """p - 1 steps round the ring, after which each rank has every chunk."""
    yield from common(answer, rng, kinds.ALL_GATHER, "every chunk on every rank")
    yield from _ring_costs(answer, rng, kinds.ALL_GATHER, passes=1)


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion("the sum on every rank", 2, "A reduce-scatter, then an all-gather of the summed chunks."),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion(
            "bytes and messages",
            2,
            "2 (p - 1) messages of one chunk each: 2 (p - 1) / p of the tensor. Chunks are cut by "
            "torch.tensor_split from x.flatten(), not from rows. Whole tensors round the ring give the right "
            "sum too, and p times the bytes.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "rounds", 1, "2 (p - 1) steps in which all ranks send at the same time.", needs=RIGHT_TRAFFIC
        ),
    ),
    hints=(
        "What does rank r hold after the first of the two halves that you have, and where in x does it "
        "belong?",
        "torch.tensor_split(flat, p)[rank].copy_(chunk) puts it there; flat has to be contiguous.",
    ),
)
def ring_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """Twice round the ring."""
    yield from common(answer, rng, kinds.ALL_REDUCE, "the sum on every rank")
    yield from _ring_costs(answer, rng, kinds.ALL_REDUCE, passes=2)


def _ring_costs(answer: Answer, rng: Rng, collective: Collective, passes: int) -> Findings:
    """Neighbours, bytes and rounds of `passes` times p - 1 steps with a chunk each.

    With an odd number of ranks, of which no pairs can be made. Where the ring is gone round twice, with a
    matrix of two rows: who cuts rows and not elements has the right sum then, and sends too much. Where it is
    gone round once, with two ranks too, who do not swap whole tensors; twice, that is as many bytes. And with
    fewer elements than ranks, an even number: these chunks, of which some are empty, go round the ring too,
    and nobody makes them as long as the longest; nor, where some are longer than others, all but the last.
    Wherever an all-reduce cuts, its sum is right: see `cuts`.
    """
    ranks, length, even, few, odd = 5, 240, 4, 2, 9
    in_rows = passes == 2 and takes_a_number(answer, rng, collective, World(even, 1))
    world = World(ranks, 2, columns=length // 2) if in_rows else World(ranks, length)
    played = measured(answer, rng, collective, world)
    others = [measured(answer, rng, collective, World(even, count)) for count in (few, odd)]
    # Who cuts one of them otherwise, which another row tells, sends other bytes in both.
    short, uneven = ([each] if all(other.if_right() for other in others) else [] for each in others)
    steps, fewer = passes * (ranks - 1), passes * (even - 1)
    pairs = [measured(answer, rng, collective, World(2, length)) for _ in range(passes == 1)]
    yield "neighbours only", compare.first_failure(map(_to_the_next, (played, *short)))
    # Who sends short ones to others fails one row.
    short = [each for each in short if _to_the_next(each).passed]
    traffic = [played.traffic([Allowance(steps, steps * length // ranks * BYTES)] * ranks)]
    traffic += [each.traffic([Allowance(1, length // 2 * BYTES)] * 2) for each in pairs]
    traffic += [each.traffic([Allowance(fewer, passes * few * BYTES)] * even) for each in short]
    # In a pass a rank leaves out one chunk, at least of the shortest.
    left = odd - odd // even
    traffic += [each.traffic([Allowance(fewer, passes * left * BYTES)] * even) for each in uneven]
    traffic += [cut_as_asked(answer, rng, collective, even, odd + 1, 0) for _ in uneven if passes == 2]
    yield "bytes and messages", compare.first_failure(traffic)
    taken = [played.duration(seconds(steps, steps * length / ranks * BYTES), f"{steps} rounds")]
    taken += [each.duration(seconds(fewer, fewer * BYTES), f"{fewer} rounds") for each in short]
    yield "rounds", compare.first_failure(taken)


def _to_the_next(played: Played) -> Finding:
    return played.there(to_the_next_only(played.observed))
