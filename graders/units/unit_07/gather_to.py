"""The grader of `gather_to`."""

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import parts_written, room_at_the_root
from graders.units.unit_07.rows import (
    ANY_TENSOR,
    ROOTS_ARE_GLOBAL,
    any_length,
    any_root,
    bytes_and_messages,
    in_place,
    on_a_subgroup,
)
from graders.units.unit_07.scatter_from import one_part_to_each


@collective(
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion(
            "every part on the root",
            4,
            "parts[j] on the root is what rank j has in x; the root copies its own part. Others return None.",
        ),
        any_root(
            "dst need not be rank 0, and a root alone receives nothing. Each call looks up its own root; "
            "name the source of each recv, for without one it takes whatever comes first.",
            ((8, 1),),
            more=vary(ranks=(1, 3, 8)),
        ),
        any_length("Parts may differ in length; parts[j] has the right one already."),
        ANY_TENSOR,
        in_place("Fill the tensors in parts and return parts itself; x stays as it is."),
        on_a_subgroup(f"{ROOTS_ARE_GLOBAL} Here dst is one."),
        bytes_and_messages("Each rank but the root sends its part once, to the root."),
    ),
    hints=("What becomes of each send of scatter_from if time runs backwards?",),
    arguments=room_at_the_root,
    allowed=one_part_to_each,
    written=parts_written,
    root="dst",
)
def gather_to(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """Everyone's part, at any root."""
    parts = [x for x, _ in given]
    return [
        Expected(parts, {"x": x, "parts": parts}, returned=1)
        if place == setting.root
        else Expected(None, {"x": x, "parts": None}, returned=None)
        for place, x in enumerate(parts)
    ]
