"""The grader of `RowParallelLinear`."""

from graders.grading.kit import Rng
from graders.units.unit_06.cases import Case, Place
from graders.units.unit_06.linear import LAYER, layer, possible, rubric
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=LAYER,
    kind="layer",
    name="RowParallelLinear",
    minutes=25,
    difficulty=3,
    rubric=rubric(
        "Each rank has a part of each product, and the whole is their sum. Is the bias in it once?",
        "Nobody else adds to the gradient of a rank's own part of x. Every rank keeps the whole bias, and "
        "all of them have to give it the same whole gradient.",
        "Forward needs one sum, of a tensor as large as the result; backward needs nobody.",
        by_outputs=False,
    ),
    hints=(
        "With x cut along its last dimension, which part of the weight meets which part of x?",
        "How often is the bias in the sum over ranks, if each rank adds it before?",
        "If only rank 0 adds the bias, which ranks' copies of it get a gradient?",
    ),
    possible=possible,
)
def row_parallel_linear(rng: Rng, case: Case) -> list[Place]:
    """A layer cut by its inputs."""
    return layer(rng, case, by_outputs=False)
