"""The grader of `all_to_all_pairwise`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.given import a_part_for_each
from graders.units.unit_07.rows import (
    any_ranks,
    any_tensor,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
    rounds,
)


def pairwise(setting: Setting) -> Allowed:
    """p - 1 rounds, in each of which every rank sends another one its part.

    Where all rounds' messages are begun at once, the first to leave is the one whose receiver comes first:
    that may cost a round more.
    """
    count, parts = setting.ranks - 1, setting.parts
    # Rank i keeps chunk 2 i + i; see `a_part_for_each`.
    kept = [parts[3 * place % setting.ranks] for place in range(setting.ranks)]
    return Allowed(
        count,
        sum(parts) - min(parts),
        count + 1,
        count * max(parts) + sum(parts) - min(parts),
        all_messages=count * setting.ranks,
        all_nbytes=setting.ranks * sum(parts) - sum(kept),
    )


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
            "From whom does a rank receive then?",
            2,
        ),
        any_tensor("Parts may differ in length; outputs[i] has the right one already."),
        in_place("Fill outputs and return it; inputs stay as they are."),
        on_a_subgroup(),
        bytes_and_messages("p - 1 messages: to each other rank its part, none to yourself."),
        rounds(
            "In each of p - 1 rounds every rank sends to one and receives from one. If all begin with rank 0 "
            "they queue up before it.",
            2,
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
