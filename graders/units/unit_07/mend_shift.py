"""The grader of `mend_shift`."""

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.rows import quick
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_07.swapping import (
    A_TENSOR_OF_ITS_OWN,
    ONE_MESSAGE,
    OneTensor,
    one_message_each,
    x_on_each,
)


@on_ranks(
    base=OneTensor(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "the left neighbour's tensor",
            2,
            "A send may return only when its receiver is there: someone has to receive. Rank 0's left "
            "neighbour is the last rank.",
            vary=vary(ranks=(2, 3, 7, 9)),
        ),
        A_TENSOR_OF_ITS_OWN,
        ONE_MESSAGE,
        Criterion(
            "all at the same time",
            1,
            "If only rank 0 receives first, the others go one after another, p messages long. isend starts "
            "all sends at once.",
            needs=("one message each",),
            how=quick,
        ),
    ),
    hints=(
        "What if a rank could receive while its own send is not yet done? isend, recv, then wait for the "
        "send.",
    ),
    arguments=x_on_each,
    allowed=lambda case: one_message_each(case, 3),
    written=lambda case: "torch.full((2, 3), float(dist.get_rank()))",
)
def mend_shift(case: OneTensor, given: list[Arguments]) -> list[Expected]:
    """A ring in which everyone sends to the right."""
    return [Expected(given[rank - 1][0], {"x": x}, returned=None) for rank, (x,) in enumerate(given)]
