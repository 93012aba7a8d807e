"""The grader of `all_to_all_pairwise`."""

from dataclasses import replace

from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed, in_time
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import a_part_for_each
from graders.units.unit_07.rows import (
    A_SLOW_RANK,
    ANY_TENSOR,
    any_length,
    any_ranks,
    bytes_and_messages,
    in_place,
    on_a_subgroup,
)


def pairwise(setting: Setting) -> Allowed:
    """p - 1 rounds, in each of which every rank sends another one its part."""
    count, parts = setting.ranks - 1, setting.parts
    # Rank i keeps chunk 2 i + i; see `a_part_for_each`.
    kept = [parts[3 * place % setting.ranks] for place in range(setting.ranks)]
    return Allowed(
        count,
        sum(parts) - min(parts),
        count,
        count * max(parts),
        all_messages=count * setting.ranks,
        all_nbytes=setting.ranks * sum(parts) - sum(kept),
    )


def one_to_each_in_time(tried: Tried[Setting]) -> Finding | None:
    """Passes if of the ranks' first messages no two go to one rank, nor of their second ones, and so on, and
    if it takes no longer than the rounds.
    """
    if tried.seen.allowed is None:
        return None
    ranks = range(tried.case.features.ranks)
    sends = [[to for sender, to, _ in tried.seen.traffic.messages if sender == place] for place in ranks]
    for number, peers in enumerate(zip(*sends, strict=False), 1):
        twice = next((peer for peer in peers if peers.count(peer) > 1), None)
        if twice is not None:
            who = ", ".join(str(place) for place in ranks if peers[place] == twice)
            return Finding(False, f"message {number} of the places {who} goes to place {twice} each time.")
    allowed: Allowed = tried.seen.allowed
    # Where all rounds' messages are begun at once, the first to leave is the one whose receiver comes first:
    # that may cost a round.
    longer = allowed.nbytes_of_rounds + allowed.nbytes
    return in_time(tried.seen.traffic, replace(allowed, rounds=allowed.rounds + 1, nbytes_of_rounds=longer))


@collective(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "every part at its place",
            3,
            "outputs[i] is what rank i has for this rank in inputs. Nobody sends to itself: its own part is "
            "copied.",
        ),
        any_ranks(
            "rank ^ s needs a power of two. What if in each step all ranks send equally far round the ring? "
            "From whom does a rank receive then?"
        ),
        any_length(
            "Parts may differ in length; outputs[i] has the right one already. Name the source of each recv: "
            "another rank's part may be longer."
        ),
        ANY_TENSOR,
        in_place("Fill outputs and return it; inputs stay as they are."),
        on_a_subgroup(),
        A_SLOW_RANK,
        bytes_and_messages("p - 1 messages: to each other rank its part, none to yourself."),
        Criterion(
            "rounds",
            2,
            "In each of p - 1 rounds every rank sends to one and receives from one. If all begin with "
            "rank 0, they queue up before it.",
            needs=("bytes and messages",),
            how=one_to_each_in_time,
        ),
    ),
    hints=(
        "To whom should each rank send in a round so that no two send to the same rank? Round 0 is a "
        "copy: outputs[rank] from inputs[rank].",
        "In step s = 1 ... p - 1, isend to (rank + s) % p, recv from (rank - s) % p, wait.",
    ),
    arguments=a_part_for_each,
    allowed=pairwise,
    written=lambda setting: "",
)
def all_to_all_pairwise(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """A part from everyone to everyone, in p - 1 rounds."""
    received = [[inputs[place] for _, inputs in given] for place in range(setting.ranks)]
    return [
        Expected(parts, {"outputs": parts, "inputs": inputs})
        for parts, (_, inputs) in zip(received, given, strict=True)
    ]
