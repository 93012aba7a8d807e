"""The grader of `scatter_from`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.given import parts_at_the_root, parts_written
from graders.units.unit_07.rows import (
    ROOTS_ARE_GLOBAL,
    any_root,
    any_tensor,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
)


def one_part_to_each(setting: Setting) -> Allowed:
    """p - 1 messages from, or to, the root, one after another."""
    # Part j is chunk j - 1; see `parts_at_the_root`.
    count, nbytes = setting.ranks - 1, sum(setting.parts) - setting.parts[setting.root - 1]
    return Allowed(count, nbytes, count, nbytes, all_messages=count, all_nbytes=nbytes)


@collective(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("its part on every rank", 3, "Rank j gets parts[j]; the root copies its own part."),
        any_root("src need not be rank 0, and a root alone sends nothing."),
        any_tensor("Parts may differ in length; x has the right one already."),
        in_place("Write into x and return x itself; the parts stay as they are."),
        on_a_subgroup(f"{ROOTS_ARE_GLOBAL} Here src is one."),
        bytes_and_messages("The root sends each other rank its part, and nothing else."),
    ),
    hints=(
        "Which rank knows the parts, and what can all others do but wait? There are two cases.",
        "The root loops over the places of the group, sends parts[place] to each, and copies its own.",
        "dist.send(part.contiguous(), group_dst=place, group=group) sends to a place of the group.",
    ),
    arguments=parts_at_the_root,
    allowed=one_part_to_each,
    written=parts_written,
    root="src",
)
def scatter_from(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """A part for everyone, from any root."""
    parts = given[setting.root][1]
    return [Expected(part, {"x": part, "parts": mine}) for part, (_, mine) in zip(parts, given, strict=True)]
