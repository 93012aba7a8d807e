"""The grader of `ColumnParallelLinear`."""

from graders.grading.kit import Rng
from graders.units.unit_06.cases import Case, Place
from graders.units.unit_06.linear import LAYER, layer, possible, rubric
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=LAYER,
    kind="layer",
    name="ColumnParallelLinear",
    minutes=30,
    difficulty=3,
    rubric=rubric(
        "nn.Linear computes x W^T + b: which part of W and of b makes this rank's outputs?",
        "All ranks' outputs come from the same x: its gradient has something from each of them.",
        "Forward needs nobody; backward needs one sum, of a tensor as large as x.",
        by_outputs=True,
    ),
    hints=(
        "Of a weight [outputs, inputs], does a rank get rows or columns?",
        "On which ranks is x, and what does that say about its gradient?",
        "How does a layer of 6 of 24 outputs get the numbers that nn.Linear would have drawn there?",
    ),
    possible=possible,
)
def column_parallel_linear(rng: Rng, case: Case) -> list[Place]:
    """A layer cut by its outputs."""
    return layer(rng, case, by_outputs=True)
