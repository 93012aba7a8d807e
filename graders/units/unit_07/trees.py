"""Unit 07, trees."""

from collections import Counter

from graders.grading.communication import (
    Allowance,
    seconds,
)
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, measured
from graders.units.unit_07.common import common
from graders.units.unit_07.criteria import (
    ANY_DTYPE,
    ANY_ROOT,
    LAYOUT_IN_PLACE,
    ON_A_SUBGROUP,
    ONLY_MESSAGES,
    OVERLAPPING,
    RIGHT_BY_MESSAGES,
    RIGHT_TRAFFIC,
    WHOLE_LENGTHS,
    on_a_subgroup,
)
from graders.units.unit_07.worlds import BYTES, IN_ROUNDS, World

IN_A_SUBGROUP = on_a_subgroup(
    f"{ON_A_SUBGROUP.hint} Roots are global ranks: see the rule for any group.", "any root"
)


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("the root's values on every rank", 1, "Whoever has the tensor can pass it on."),
        ANY_ROOT,
        Criterion("any number of ranks", 1, "Send only to places that exist, and receive from those."),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself."),
        LAYOUT_IN_PLACE,
        IN_A_SUBGROUP,
        OVERLAPPING,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "No rank sends more than ceil(log2 p) messages, p - 1 in all suffice.",
            needs=(*RIGHT_BY_MESSAGES, "any root"),
        ),
        Criterion(
            "rounds",
            1,
            "In round k, every place below 2**k sends: ceil(log2 p) rounds for p ranks.",
            needs=(*RIGHT_TRAFFIC, "any root"),
        ),
    ),
    hints=(
        "Who of 8 ranks has the tensor after each round, and to whom does each send in the next? Draw it: "
        "in round 0 place 0 sends to 1, in round 1 0 to 2 and 1 to 3, in round 2 there are four messages.",
        "In the round with distance d = 1, 2, 4 ..., places below d send to place + d, if there is such a "
        "place; places from d to 2d - 1 receive.",
        "Place and rank: place = (rank - root) % p, and rank = (place + root) % p.",
    ),
)
def broadcast_tree(answer: Answer, rng: Rng) -> Findings:
    """A binomial tree from any root."""
    values = "the root's values on every rank"
    # Who has the first call's tensor early, and is the root of the next one: rank 3, where near places get it
    # first, and rank 5 where far ones do. Others have then not been sent the first one's.
    following = [(World(8, 10), World(8, 1, root=root)) for root in (3, 5)]
    yield from common(answer, rng, kinds.BROADCAST, values, rooted=True, following=following, sizes=IN_ROUNDS)
    plays = _measured(answer, rng, kinds.BROADCAST)
    yield "bytes and messages", compare.first_failure(map(_sent_by_broadcast, plays))
    yield "rounds", compare.first_failure(_in_time(answer, rng, kinds.BROADCAST, each) for each in plays)


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on the root",
            1,
            "Each place adds what arrives to what it has, then passes it on. What an irecv brings is there "
            "after its wait().",
        ),
        ANY_ROOT,
        Criterion("any number of ranks", 1, "Receive only from places that exist."),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Add into a copy: only the root's x becomes the sum."),
        LAYOUT_IN_PLACE,
        IN_A_SUBGROUP,
        OVERLAPPING,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "Each rank but the root sends once: what it has added up.",
            needs=(*RIGHT_BY_MESSAGES, "any root"),
        ),
        Criterion(
            "rounds",
            1,
            "The broadcast's tree, run backwards, has ceil(log2 p) rounds too.",
            needs=(*RIGHT_TRAFFIC, "any root"),
        ),
    ),
    hints=(
        "What are the broadcast's rounds if they are played backwards, each message turned round?",
        "With distance d = 1, 2, 4 ...: a place that is an odd multiple of d sends to place - d and is done; "
        "an even multiple receives from place + d, if there is such a place, and adds.",
        "total = x.contiguous().clone() keeps x; torch.empty_like(total) holds what arrives.",
    ),
)
def reduce_tree(answer: Answer, rng: Rng) -> Findings:
    """A binomial tree to any root; nobody else's tensor changes."""
    values, following = "the sum on the root", [(World(4, 10), World(4, 1), World(4, 3, root=3))]
    yield from common(answer, rng, kinds.REDUCE, values, rooted=True, following=following, sizes=IN_ROUNDS)
    plays = _measured(answer, rng, kinds.REDUCE)
    once = [[Allowance(int(rank != ROOT), LENGTH * BYTES) for rank in range(ranks)] for ranks in SIZES]
    findings = (played.traffic(allowed) for played, allowed in zip(plays, once, strict=True))
    yield "bytes and messages", compare.first_failure(findings)
    yield "rounds", compare.first_failure(_in_time(answer, rng, kinds.REDUCE, each) for each in plays)


SIZES, LENGTH, ROOT = (7, 8), 250, 2
"""Where messages are measured: numbers of ranks, elements of a matrix, the root."""


def _measured(answer: Answer, rng: Rng, collective: Collective) -> list[Played]:
    worlds = [World(ranks, 2, root=ROOT, columns=LENGTH // 2) for ranks in SIZES]
    return [measured(answer, rng, collective, world) for world in worlds]


def _in_time(answer: Answer, rng: Rng, collective: Collective, played: Played) -> Finding:
    """`_three_rounds`, with messages that wait for their receivers or, if it fails then, with such as do not.

    Where a rank begins several sends at once, the first to leave is the one whose receiver comes first; in
    the other case it is the one that was begun first.
    """
    finding = _three_rounds(played)
    if finding.passed:
        return finding
    eager = measured(answer, rng, collective, played.worlds[0], eager_limit=LENGTH * BYTES)
    return finding if not (again := _three_rounds(eager)).passed else again


def _three_rounds(played: Played) -> Finding:
    """Passes if seven or eight ranks take the time of three messages, and three rounds: on these links a tree
    of another form takes no longer, if a rank sends to all its children at once.
    """
    in_time = played.duration(seconds(3, 3 * LENGTH * BYTES), "3 rounds of the whole tensor")
    made = _rounds(played)
    if not in_time.passed or made <= 3:
        return in_time
    text = (
        f"with {played.worlds[0]}, if a rank sends or receives one message a round, these are {made} rounds"
    )
    return Finding(False, f"{text}; a binomial tree has 3.")


def _rounds(played: Played) -> int:
    """How many rounds the messages take, in the order in which they arrived, if a rank has one a round."""
    receives = sorted((e for e in played.observed.events if e.op == "recv"), key=lambda event: event.end)
    busy: Counter[int | None] = Counter()
    for event in receives:
        busy[event.rank] = busy[event.peer] = 1 + max(busy[event.rank], busy[event.peer])
    return max(busy.values(), default=0)


def _sent_by_broadcast(played: Played) -> Finding:
    """Passes if no rank sends more than three times, and all together once for each other rank."""
    ranks, made = played.worlds[0].ranks, played.observed.traffic.messages
    finding = played.traffic([Allowance(3, 3 * LENGTH * BYTES)] * ranks)
    if finding.passed and made > ranks - 1:
        return Finding(False, f"{made} messages for {ranks} ranks; {ranks - 1} suffice.")
    return finding
