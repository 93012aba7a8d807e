"""Unit 07, all to all."""

from itertools import chain

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
from graders.units.unit_07.worlds import BYTES, World


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "every part at its place",
            1,
            "outputs[i] is what rank i has for this rank in inputs. Nobody sends to itself: its own part is "
            "copied.",
        ),
        Criterion(
            "any number of ranks",
            1,
            "rank ^ s needs a power of two. What if in each step all ranks send equally far round the ring? "
            "From whom does a rank receive then?",
        ),
        _lengths(
            "Parts may differ in length; outputs[i] has the right one already. Name the source of each recv: "
            "another rank's part may be longer."
        ),
        ANY_DTYPE,
        Criterion("in place", 1, "Fill outputs and return it; inputs stay as they are."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        A_SLOW_RANK,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "p - 1 messages: to each other rank its part, none to yourself.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "rounds",
            2,
            "In each of p - 1 rounds every rank sends to one and receives from one. If all begin with "
            "rank 0, they queue up before it.",
            needs=RIGHT_TRAFFIC,
        ),
    ),
    hints=(
        "To whom should each rank send in a round so that no two send to the same rank? Round 0 is a "
        "copy: outputs[rank] from inputs[rank].",
        "In step s = 1 ... p - 1, isend to (rank + s) % p, recv from (rank - s) % p, wait.",
    ),
)
def all_to_all_pairwise(answer: Answer, rng: Rng) -> Findings:
    """A part from everyone to everyone, in p - 1 rounds."""
    collective = kinds.EXCHANGE
    yield from common(answer, rng, collective, "every part at its place", slow=[World(4, 16)])
    ranks, part = 5, 250
    # Matrices, of which nobody sends a row at a time.
    played = measured(answer, rng, collective, World(ranks, ranks * part // 5, columns=5))
    allowed = Allowance(ranks - 1, (ranks - 1) * part * BYTES)
    yield "bytes and messages", played.traffic([allowed] * ranks)
    # And an even number, of which pairs can be made: in a round of theirs both send at the same time.
    even = measured(answer, rng, collective, World(4, 4 * part))
    in_time = (_in_time(answer, rng, each, part) for each in (played, even))
    yield "rounds", compare.first_failure(chain(in_time, map(one_to_each, (played, even))))


def _in_time(answer: Answer, rng: Rng, played: Played, part: int) -> Finding:
    """Passes if p - 1 rounds take no longer than their messages of `part` elements do, where these wait for
    their receivers or, if it fails then, where they do not.

    Where a rank begins all rounds' messages at once, in their order, the first to leave is the one whose
    receiver comes first; in the other case it is the one that was begun first.
    """
    world = played.worlds[0]
    rounds = world.ranks - 1
    allowed = seconds(rounds, rounds * part * BYTES), f"p - 1 = {rounds} rounds"
    finding = played.duration(*allowed)
    if finding.passed:
        return finding
    again = measured(answer, rng, kinds.EXCHANGE, world, eager_limit=part * BYTES).duration(*allowed)
    return again if again.passed else finding


def one_to_each(played: Played) -> Finding:
    """Passes if of the ranks' first messages no two go to one rank, nor of their second ones, and so on."""
    ranks = range(played.worlds[0].ranks)
    sends = [
        [event.peer for event in played.observed.communication(rank) if event.op == "send"] for rank in ranks
    ]
    for number, peers in enumerate(zip(*sends, strict=False), 1):
        twice = next((peer for peer in peers if peers.count(peer) > 1), None)
        if twice is not None:
            who = ", ".join(str(rank) for rank in ranks if peers[rank] == twice)
            said = f"message {number} of the ranks {who} goes to rank {twice} each time."
            return played.there(Finding(False, said))
    return Finding(True, "In each round every rank sends to another one.")
