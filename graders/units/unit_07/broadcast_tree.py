"""The grader of `broadcast_tree`."""

from collections import Counter

from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.given import one_tensor_at_the_root, x_written
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


def down_a_tree(setting: Setting) -> Allowed:
    """ceil(log2 p) rounds of the whole tensor; each rank but the root has it from another one."""
    steps, nbytes, others = (setting.ranks - 1).bit_length(), setting.nbytes, setting.ranks - 1
    return Allowed(steps, steps * nbytes, steps, steps * nbytes, others, others * nbytes)


def as_few_rounds(tried: Tried[Setting]) -> Finding | None:
    """Passes if the messages, in the order in which they were begun, make no more rounds than a binomial tree
    has, if a rank sends or receives one a round. Time would not tell: a rank may send to all its children at
    once.
    """
    busy: Counter[int] = Counter()
    for sender, receiver, _ in tried.seen.traffic.messages:
        busy[sender] = busy[receiver] = 1 + max(busy[sender], busy[receiver])
    made, most = max(busy.values(), default=0), (tried.case.features.ranks - 1).bit_length()
    text = f"if a rank sends or receives one message a round, these are {made} rounds"
    return Finding(made <= most, f"{text}; a binomial tree has {most}.")


@collective(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("the root's values on every rank", 3, "Whoever has the tensor can pass it on."),
        any_root(
            "Is the root always place 0? Count "
            "places from the root: (place - root) % p. Send only to places that exist."
        ),
        any_tensor("Nothing needs to divide here: the whole tensor travels."),
        in_place("Write into x and return x itself."),
        on_a_subgroup(ROOTS_ARE_GLOBAL),
        bytes_and_messages("No rank sends more than ceil(log2 p) messages, p - 1 in all suffice."),
        rounds(
            "In round k, every place below 2**k sends: ceil(log2 p) rounds for p ranks.", 2, as_few_rounds
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
