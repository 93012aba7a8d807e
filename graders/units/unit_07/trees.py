"""Unit 07, trees."""

from graders.grading.answer import Answer
from graders.grading.exercise import Criterion, Finding, Findings, exercise
from graders.grading.rng import Rng
from graders.units.unit_07 import UNIT
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collectives import (
    BYTES,
    Allowance,
    World,
    _common,
    duration,
    measured,
    seconds,
    traffic,
)
from graders.units.unit_07.criteria import (
    ANY_DTYPE,
    LAYOUT_IN_PLACE,
    ON_A_SUBGROUP,
    ONLY_MESSAGES,
    WHOLE_LENGTHS,
)


@exercise(
    unit=UNIT,
    name="broadcast_tree",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("the root's values on every rank", 2, "Whoever has the tensor can pass it on."),
        Criterion(
            "any number of ranks",
            1,
            "Count places from the root: (rank - root) % p. A place that does not exist is not sent to.",
        ),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages", 1, "No rank sends more than ceil(log2 p) messages, p - 1 in all suffice."
        ),
        Criterion("rounds", 2, "In round k, every place below 2**k sends: ceil(log2 p) rounds for p ranks."),
    ),
    hints=(
        "Rng 8 ranks. Round 0: place 0 sends to 1. Round 1: 0 to 2, 1 to 3. Round 2: four messages.",
        "In the round with distance d = 1, 2, 4 ..., places below d send to place + d, if there is such a "
        "place; places from d to 2d - 1 receive.",
        "Place and rank: place = (rank - root) % p, and rank = (place + root) % p.",
    ),
)
def broadcast_tree(answer: Answer, rng: Rng) -> Findings:
    """A binomial tree from any root."""
    yield from _common(answer, rng, kinds.BROADCAST, "the root's values on every rank", rooted=True)
    length = 250
    for ranks in (7, 8):
        played = measured(answer, rng, kinds.BROADCAST, World(ranks, length, root=2))
        finding = traffic(played, [Allowance(3, 3 * length * BYTES)] * ranks)
        if finding.passed and played.observed.traffic.messages > ranks - 1:
            text = f"{played.observed.traffic.messages} messages for {ranks} ranks; {ranks - 1} suffice."
            finding = Finding(False, text)
        if not finding.passed:
            break
    yield finding
    yield "rounds", duration(played, seconds(3, 3 * length * BYTES), "3 rounds of the whole tensor")


@exercise(
    unit=UNIT,
    name="reduce_tree",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on the root", 2, "Each place adds what arrives to what it has, then passes it on."
        ),
        Criterion(
            "any number of ranks",
            1,
            "Count places from the root, (rank - root) % p, and receive only from places that exist.",
        ),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "On the root x becomes the sum; on other ranks it stays: add into a copy."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion("bytes and messages", 1, "Each rank but the root sends once: what it has added up."),
        Criterion("rounds", 2, "The broadcast's tree, run backwards, has ceil(log2 p) rounds too."),
    ),
    hints=(
        "Play the broadcast's rounds backwards, and turn each message round.",
        "With distance d = 1, 2, 4 ...: a place that is an odd multiple of d sends to place - d and is done; "
        "an even multiple receives from place + d, if there is such a place, and adds.",
        "total = x.clone() keeps x; torch.empty_like(total) holds what arrives.",
    ),
)
def reduce_tree(answer: Answer, rng: Rng) -> Findings:
    """A binomial tree to any root; nobody else's tensor changes."""
    yield from _common(answer, rng, kinds.REDUCE, "the sum on the root", rooted=True)
    length = 250
    for ranks in (7, 8):
        played = measured(answer, rng, kinds.REDUCE, World(ranks, length, root=2))
        once = [Allowance(0 if rank == 2 else 1, length * BYTES) for rank in range(ranks)]
        finding = traffic(played, once)
        if not finding.passed:
            break
    yield finding
    yield "rounds", duration(played, seconds(3, 3 * length * BYTES), "3 rounds of the whole tensor")
