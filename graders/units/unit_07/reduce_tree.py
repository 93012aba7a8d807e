"""The grader of `reduce_tree`."""

from graders.grading.expected import ANYTHING, Expected
from graders.grading.kit import Criterion
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.broadcast_tree import as_few_rounds
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.rows import (
    ROOTS_ARE_GLOBAL,
    any_root,
    any_tensor,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
    rounds,
)


def up_a_tree(setting: Setting) -> Allowed:
    """The broadcast's backwards: each rank but the root sends once."""
    steps, nbytes, others = (setting.ranks - 1).bit_length(), setting.nbytes, setting.ranks - 1
    return Allowed(1, nbytes, steps, steps * nbytes, others, others * nbytes)


@collective(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on the root",
            3,
            "Each place adds what arrives to what it has, then passes it on. What an irecv brings is there "
            "after its wait().",
        ),
        any_root(
            "Is the root always place 0? Count "
            "places from the root: (place - root) % p. Receive only from places that exist."
        ),
        any_tensor("Nothing needs to divide here: the whole tensor travels."),
        in_place("Add into a copy: only the root's x becomes the sum."),
        on_a_subgroup(ROOTS_ARE_GLOBAL),
        bytes_and_messages("Each rank but the root sends once: what it has added up."),
        rounds("The broadcast's tree, run backwards, has ceil(log2 p) rounds too.", 2, as_few_rounds),
    ),
    hints=(
        "What are the broadcast's rounds if they are played backwards, each message turned round?",
        "With distance d = 1, 2, 4 ...: a place that is an odd multiple of d sends to place - d and is done; "
        "an even multiple receives from place + d, if there is such a place, and adds.",
        "total = x.contiguous().clone() keeps x; torch.empty_like(total) holds what arrives.",
    ),
    arguments=one_tensor_a_rank,
    allowed=up_a_tree,
    written=x_written,
    root="dst",
)
def reduce_tree(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """A binomial tree to any root; nobody else's tensor changes."""
    summed = total([x for (x,) in given])
    return [
        Expected(summed, {"x": summed}) if place == setting.root else Expected(ANYTHING, {"x": x})
        for place, (x,) in enumerate(given)
    ]
