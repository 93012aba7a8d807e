"""The grader of `parallel_mlp`."""

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
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "outputs",
            3,
            "What does a rank with some of the hidden units lack at the end, and only there? Is down's bias "
            "in it once?",
            # The whole module gives these too.
            needs=("parts",),
            vary=vary(dtype=(torch.float64,)),
        ),
        parts("A hidden unit is a row of up, a number of its bias and a column of down."),
        gradients(2, "In backward the same two places ask the other ranks as in forward."),
        calls(1, "GELU works on each hidden unit alone: nobody needs the others'."),
        uneven(
            "uneven parts",
            "The first ranks may have one hidden unit more. (parallelize_module wants equal parts.)",
        ),
        MEMORY,
        GROUP,
    ),
    hints=(
        "If each rank had its own hidden units, which of them would have to know the others'?",
        "Which of your layers leaves its output cut, and which takes one that is?",
        "Your layers draw their own numbers. Where do the given ones come in?",
    ),
)
def parallel_mlp(rng: Rng, case: Half) -> list[Place]:
    """An MLP, cut by hidden units."""
    return halves(rng, case, "mlp")
