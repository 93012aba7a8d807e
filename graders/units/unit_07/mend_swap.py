"""The grader of `mend_swap`."""

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Criterion
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
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "the partner's tensor",
            2,
            "One of two partners has to send while the other receives. Partners are 2k and 2k + 1. What is "
            "sent is x, as it was before anything arrived.",
            vary=vary(ranks=(2, 6)),
        ),
        A_TENSOR_OF_ITS_OWN,
        ONE_MESSAGE,
    ),
    hints=(
        "Which of two partners could begin with the other call, and how does a rank know which of the two "
        "it is? Or does isend help?",
    ),
    arguments=x_on_each,
    allowed=lambda case: one_message_each(case, 2),
    written=lambda case: "torch.full((2, 3), float(dist.get_rank()))",
)
def mend_swap(case: OneTensor, given: list[Arguments]) -> list[Expected]:
    """Pairs that swap tensors."""
    return [Expected(given[rank ^ 1][0], {"x": x}, returned=None) for rank, (x,) in enumerate(given)]
