"""The grader of `VocabParallelEmbedding`."""

import torch

from graders.grading.cases import vary
from graders.grading.kit import Criterion, Rng, compare
from graders.units.unit_06.cases import GRADIENTS, PARAMETERS, Case, Place, at_borders
from graders.units.unit_06.drivers.makers import CHANGED
from graders.units.unit_06.passes import calls_of, kept, small
from graders.units.unit_06.stage import both_passes

RIGHT = ("the rows of the tokens", "gradient")


@both_passes(
    base=Case(ranks=3, shape=(2,), beside=False),
    kind="embedding",
    name="VocabParallelEmbedding",
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            RIGHT[0],
            4,
            "Each token has its row on one rank; all others add nothing.",
            # The whole layer gives these too.
            needs=(RIGHT[1],),
            vary=vary(ranks=(2,), dtype=(torch.float64,), shape=((2, 1),)),
        ),
        Criterion(
            RIGHT[1],
            3,
            "A row gets a gradient from its own tokens only, and once.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        Criterion(
            "its rows only",
            2,
            "One parameter, weight [V_r, D], in memory of its own: a view keeps the whole. The layer given "
            "stays as it is.",
            vary=vary(asked=(PARAMETERS,)),
            how=lambda tried: compare.first_failure((small(tried), kept(tried))),
        ),
        Criterion(
            "a vocabulary that does not divide",
            1,
            "Parts are those of torch.tensor_split: of 10 rows, 4 ranks get 3, 3, 2, 2. Where does each "
            "begin? Megatron wants a vocabulary that divides, and pads one that does not.",
            vary=vary(rest=(2,)),
        ),
        Criterion(
            "calls",
            1,
            "One all-reduce of the result in forward, nothing in backward.",
            needs=RIGHT,
            how=calls_of(
                lambda case, place, phase: (
                    (["all_reduce"], place.result.nbytes) if phase == "forward" else ([], 0)
                )
            ),
        ),
        Criterion("group", 1, "Rank and size are those in the group.", needs=RIGHT, vary=vary(group=(1,))),
    ),
    hints=(
        "If a rank returned zeros for the tokens that it does not know, what would the sum over ranks be?",
        "functional.embedding wants numbers of rows that exist: which row may it take for a stranger?",
        "Which of your two functions sums up in forward and passes the gradient on as it is?",
    ),
)
def vocab_parallel_embedding(rng: Rng, case: Case) -> list[Place]:
    """An embedding cut by rows. All borders are among the tokens, and some tokens come twice."""
    vocabulary, width = case.divided(2), 3
    some = rng.integers(0, vocabulary - 1, 4)
    tokens = torch.cat([some, at_borders(vocabulary, case.ranks), some[:2]]).view(*case.shape, -1)
    weight, arriving = case.drawn(rng, vocabulary, width), case.arriving(rng, *tokens.shape, width)
    rows = arriving.reshape(-1, width)
    gradient = torch.zeros_like(weight).index_add_(0, tokens.flatten(), rows)
    return [
        Place(
            tokens,
            arriving,
            weight[tokens],
            {"weight": of_part},
            parameters={"weight": weight},
            held={"weight": part},
            # A row of zeros for strangers may stand beside its own.
            nbytes=part.nbytes + weight[0].nbytes,
            given={"weight of what was given": weight, CHANGED: [False, False]},
        )
        for part, of_part in zip(case.parts(weight, 0), case.parts(gradient, 0), strict=True)
    ]
