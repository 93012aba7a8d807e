"""The grader of `broadcast_tree`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import one_tensor_at_the_root, x_written
from graders.units.unit_07.rows import (
    ANY_TENSOR,
    IN_ROUNDS,
    ROOTS_ARE_GLOBAL,
    any_length,
    any_ranks,
    any_root,
    bytes_and_messages,
    in_place,
    on_a_subgroup,
)
from graders.units.unit_07.tree import as_few_rounds, down_a_tree


@collective(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("the root's values on every rank", 3, "Whoever has the tensor can pass it on."),
        any_root(
            "Is the root always place 0? Count places from the root: (place - root) % p. Each call looks up "
            "its own root; name the source of each recv, for without one it takes whatever comes first.",
            ((1, 3),),
            ((1, 5),),
        ),
        any_ranks("Send only to places that exist, and receive from those.", ranks=IN_ROUNDS),
        any_length("Nothing needs to divide here: the whole tensor travels."),
        ANY_TENSOR,
        in_place("Write into x and return x itself."),
        on_a_subgroup(ROOTS_ARE_GLOBAL),
        bytes_and_messages("No rank sends more than ceil(log2 p) messages, p - 1 in all suffice."),
        Criterion(
            "rounds",
            2,
            "In round k, every place below 2**k sends: ceil(log2 p) rounds for p ranks.",
            needs=("bytes and messages",),
            how=as_few_rounds,
        ),
    ),
    hints=(
        "Who of 8 ranks has the tensor after each round, and to whom does each send in the next? Draw it: "
        "in round 0 place 0 sends to 1, in round 1 0 to 2 and 1 to 3, in round 2 there are four messages.",
        "In the round with distance d = 1, 2, 4 ..., places below d send to place + d, if there is such a "
        "place; places from d to 2d - 1 receive.",
        "Place and rank: place = (rank - root) % p, and rank = (place + root) % p.",
    ),
    arguments=one_tensor_at_the_root,
    allowed=down_a_tree,
    written=x_written,
    root="src",
)
def broadcast_tree(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """A binomial tree from any root."""
    [source] = given[setting.root]
    return [Expected(source, {"x": source}) for _ in given]
