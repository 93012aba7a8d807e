"""The grader of `gather_to`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.given import parts_written, room_at_the_root
from graders.units.unit_07.rows import (
    ROOTS_ARE_GLOBAL,
    any_root,
    any_tensor,
    bytes_and_messages,
    collective,
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
            3,
            "parts[j] on the root is what rank j has in x; the root copies its own part. Others return None.",
        ),
        any_root("dst need not be rank 0, and a root alone receives nothing."),
        any_tensor("Parts may differ in length; parts[j] has the right one already."),
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
