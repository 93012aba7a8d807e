"""What the two exercises on cut sequences share."""

from collections.abc import Sequence

from graders.grading.cases import vary
from graders.grading.kit import Criterion
from graders.units.unit_06.cases import SPREAD, Case, Place
from graders.units.unit_06.passes import calls_of

GATHER, SCATTER = "all_gather", "reduce_scatter"
"""How the names of the calls of a kind begin."""

LAYOUT = Criterion(
    "any layout in memory",
    1,
    "x may stand in memory in any order, and the gradient of a sum is one number, expanded: messages are "
    "contiguous.",
    needs=("gradient",),
    vary=vary(layout=(SPREAD,)),
)
GROUP = Criterion(
    "group",
    1,
    "Each collective takes a group, in backward too.",
    needs=("gradient",),
    vary=vary(group=(1,)),
)


def one_a_pass(hint: str, forward: str, backward: str) -> Criterion:
    """The row about calls: one of each kind, that sends no more than others lack."""

    def allowed(case: Case, place: Place, phase: str) -> tuple[Sequence[str], int]:
        # A reduce-scatter is given the whole, and an all-gather a part of it.
        whole = max(place.x.nbytes, place.result.nbytes)
        op = forward if phase == "forward" else backward
        return [op], whole if op == SCATTER else whole // case.ranks

    return Criterion("one collective a pass", 1, hint, needs=("gradient",), how=calls_of(allowed))
