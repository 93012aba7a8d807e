"""Unit 07, halving and doubling."""

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
    _lengths,
)
from graders.units.unit_07.worlds import BYTES, IN_ROUNDS, World


@exercise(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            1,
            "Halve: swap halves with the partner and add. Double: swap back what has been added up, in the "
            "reverse order.",
        ),
        Criterion(
            "any number of ranks",
            2,
            "Let c be the largest power of two that is at most p. Ranks from c on give their tensor to "
            "rank - c, and get the result back. Name the source of each recv.",
        ),
        _lengths("Both partners must cut in the same place; halves may differ by one and may be empty."),
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        A_SLOW_RANK,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            2,
            "Each round halves what is sent, down to one chunk: a half of 7 elements has 3 or 4, and nothing "
            "is padded. Whole tensors in every round are recursive doubling, which sends log2 p times the "
            "tensor.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "rounds",
            2,
            "2 log2 p rounds, with partners at distance p/2, p/4, ... 1 and back.",
            needs=RIGHT_TRAFFIC,
        ),
    ),
    hints=(
        "Who is whose partner if p is a power of two? rank ^ distance: with distance 4, rank 1's is 5.",
        "Keep the bounds low and high of what this rank is still in charge of. Who of the two has "
        "rank & distance == 0 keeps the lower half.",
        "Write each round down in a list (partner, kept, given), and go through it backwards to double.",
        "Then the ranks beyond the power of two: one message before, one after.",
    ),
)
def halving_doubling_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """Rabenseifner's algorithm."""
    collective = kinds.ALL_REDUCE
    slow = [World(4, 8)]
    yield from common(answer, rng, collective, "the sum on every rank", slow=slow, sizes=IN_ROUNDS)
    length = 240
    # A matrix, of which nobody sends a row at a time; and fewer elements than ranks: their halves may be made
    # of chunks, but no round has the whole.
    played = measured(answer, rng, collective, World(8, 2, columns=length // 2))
    folded = measured(answer, rng, collective, World(6, 2, columns=length // 2))
    short = measured(answer, rng, collective, World(8, SHORT))
    halved = 2 * 3 * length // 4
    # Those beyond the power of two send once; those below it answer two of them.
    core, answering = Allowance(4, halved * BYTES), Allowance(5, (halved + length) * BYTES)
    beyond = Allowance(1, length * BYTES)
    traffic = (
        played.traffic([Allowance(6, 2 * 7 * length // 8 * BYTES)] * 8),
        folded.traffic([answering, answering, core, core, beyond, beyond]),
        *(short.traffic([Allowance(6, sum(SHORT_PARTS) * BYTES)] * 8) for _ in short.if_right()),
    )
    yield "bytes and messages", compare.first_failure(traffic)
    rounds = (
        folds_right(folded),
        played.duration(seconds(6, 2 * 7 * length / 8 * BYTES), "2 log2 p = 6 rounds"),
        folded.duration(
            seconds(6, (halved + 2 * length) * BYTES), "2 log2 4 = 4 rounds, and one before and one after,"
        ),
    )
    yield "rounds", compare.first_failure(rounds)


SHORT = 7
"""Fewer elements than the ranks that halve them."""

SHORT_PARTS = (7, 4, 2)
"""Elements at most of the part that a rank halves in each round. What it gives away of it, and what it sends
back of it in the end, are the two halves.
"""


def folds_right(played: Played) -> Finding:
    """Passes if each rank beyond the power of two sends to the rank that is as many places before it."""
    ranks = played.worlds[0].ranks
    core = 1 << ranks.bit_length() - 1
    for rank in range(core, ranks):
        peers = {event.peer for event in played.observed.communication(rank) if event.op == "send"}
        if peers != {rank - core}:
            text = f"with {played.worlds[0]}, rank {rank} sends to the ranks {sorted(map(str, peers))}"
            return Finding(False, f"{text}; expected only {rank - core}, which is {core} places before it.")
    return Finding(True, "Those beyond the power of two send to the rank that is as many places before.")
