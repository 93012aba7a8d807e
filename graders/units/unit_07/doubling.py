"""Unit 07, recursive doubling."""

from graders.grading.communication import Allowance, seconds
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collectives import Played, measured
from graders.units.unit_07.common import common
from graders.units.unit_07.criteria import (
    A_SLOW_RANK,
    ANY_DTYPE,
    LAYOUT_IN_PLACE,
    ON_A_SUBGROUP,
    ONLY_MESSAGES,
    RIGHT_BY_MESSAGES,
    RIGHT_TRAFFIC,
    WHOLE_LENGTHS,
)
from graders.units.unit_07.worlds import BYTES, IN_ROUNDS, World


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank",
            1,
            "Swap with the partner and add; each round doubles what is added up.",
        ),
        Criterion(
            "any number of ranks",
            2,
            "Let c be the largest power of two that is at most p. Ranks from c on give their tensor to "
            "rank - c, and get the result back. Name the source of each recv.",
        ),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        A_SLOW_RANK,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "One message per round, and log2 p rounds; what a rank has added up it sends once.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "nearest partner first",
            1,
            "Partners differ in one bit of their numbers: rank ^ 1, then rank ^ 2, then rank ^ 4.",
            needs=RIGHT_TRAFFIC,
        ),
        Criterion(
            "rounds",
            1,
            "Both partners send at the same time: start the send, receive, then wait for the send.",
            needs=(*RIGHT_TRAFFIC, "nearest partner first"),
        ),
    ),
    hints=(
        "Which ranks' tensors does a rank hold the sum of after one round, after two, after three?",
        "distance = 1, 2, 4, ... and the partner is rank ^ distance.",
        "Receive into a tensor of its own: what is being sent must not change before it has been sent.",
    ),
)
def recursive_doubling_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """An all-reduce of log2 p rounds of whole tensors."""
    collective = kinds.ALL_REDUCE
    slow = [World(4, 8)]
    yield from common(answer, rng, collective, "the sum on every rank", slow=slow, sizes=IN_ROUNDS)
    length = 240
    # A matrix, of which nobody sends a row at a time.
    played = measured(answer, rng, collective, World(8, 2, columns=length // 2))
    folded = measured(answer, rng, collective, World(6, 2, columns=length // 2))
    yield (
        "bytes and messages",
        compare.first_failure(
            each.traffic([Allowance(3, 3 * length * BYTES)] * ranks)
            for each, ranks in ((played, 8), (folded, 6))
        ),
    )
    yield "nearest partner first", compare.first_failure(map(nearest_first, (played, folded)))
    rounds = (
        played.duration(seconds(3, 3 * length * BYTES), "log2 p = 3 rounds"),
        folded.duration(seconds(4, 4 * length * BYTES), "log2 4 = 2 rounds, and one before and one after,"),
    )
    yield "rounds", compare.first_failure(rounds)


def nearest_first(played: Played) -> Finding:
    """Passes if each rank sends to the partners at distance 1, 2 and 4, in this order, as far as these are
    below the largest power of two; and those beyond it to whom they fold, who answer last.
    """
    ranks = played.worlds[0].ranks
    core = 1 << ranks.bit_length() - 1
    for rank in range(ranks):
        sends = [event.peer for event in played.observed.communication(rank) if event.op == "send"]
        wanted = [rank ^ distance for distance in (1, 2, 4) if distance < core]
        wanted += [rank + core] if rank + core < ranks else []
        wanted = [rank - core] if rank >= core else wanted
        if sends != wanted:
            text = f"with {played.worlds[0]}, rank {rank} sends to the ranks {sends}"
            return Finding(False, f"{text}; expected {wanted}, one after the other.")
    return Finding(True, "Each rank sends to the partners at distance 1, 2 and 4, in this order.")
