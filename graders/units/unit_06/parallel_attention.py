"""The grader of `parallel_attention`."""

import torch

from graders.grading.cases import vary
from graders.grading.kit import Criterion, Rng
from graders.units.unit_06.cases import Place
from graders.units.unit_06.models import (
    GROUP,
    MEMORY,
    Half,
    calls,
    gradients,
    halves,
    parts,
    uneven,
)
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=Half(),
    kind="half",
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "outputs",
            3,
            "Heads work side by side; only the output layer mixes them.",
            # The whole module gives these too.
            needs=("parts",),
            vary=vary(dtype=(torch.float64,)),
        ),
        parts("Head h has the rows h K to (h + 1) K of query, key and value. And of the output?"),
        gradients(3, "Query, key and value are three branches of one x, on each rank."),
        calls(2, "How many sums does the gradient of x need, and where does x become one branch?"),
        uneven(
            "heads that cannot be shared out evenly",
            "Cut between heads: a head has K rows. (parallelize_module wants equal parts.)",
        ),
        MEMORY,
        GROUP,
    ),
    hints=(
        "Which numbers does a head need from another one?",
        "Three column-parallel layers have three f. How many all-reduces is that in backward?",
        "What can do something to x before the module's own forward sees it? Look for forward_pre_hook.",
        "Where does tensor_split cut the 12 rows of 3 heads for 2 ranks, and where do you want it to?",
    ),
)
def parallel_attention(rng: Rng, case: Half) -> list[Place]:
    """An attention, cut by heads."""
    return halves(rng, case, "attention")
