"""The grader of `f`."""

import torch

from graders.grading.cases import vary
from graders.grading.kit import Criterion, Rng
from graders.units.unit_06.cases import GRADIENTS, OUTPUTS, SPREAD, Case, Place
from graders.units.unit_06.passes import calls_of, kept
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=Case(asked=GRADIENTS, beside=False, ranks=3),
    kind="tensor",
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "gradient",
            4,
            "Forward, f changes nothing. Every rank's branch adds to the gradient of x, and no rank has it "
            "alone.",
            vary=vary(ranks=(2,), dtype=(torch.float64, torch.bfloat16), shape=((),), asked=(OUTPUTS,)),
        ),
        Criterion(
            "other ways keep their gradient",
            1,
            "x may be used elsewhere too, as by a residual connection. Sum up what comes through f alone.",
            vary=vary(beside=(True,)),
        ),
        Criterion(
            "arguments unchanged",
            1,
            "The gradient that arrives may be another function's too, or one number shown many times: "
            "work on a copy. Megatron's f does not, and whoever shares that gradient then adds up too much.",
            vary=vary(layout=(SPREAD,)),
            how=kept,
        ),
        Criterion(
            "calls",
            1,
            "Forward needs nobody; backward needs one sum.",
            how=calls_of(
                lambda case, place, phase: (
                    (["all_reduce"], place.x.nbytes) if phase == "backward" else ([], 0)
                )
            ),
        ),
        Criterion(
            "group", 1, "dist.all_reduce takes a group as well.", vary=vary(group=(1,)), needs=("gradient",)
        ),
    ),
    hints=(
        "In which pass does a rank lack something that only the others have?",
        "What does backward get, and for whom is what it returns?",
        "backward gets only ctx: how do you hand it the group?",
    ),
    possible=lambda case: bool(case.shape) or case.layout != SPREAD,
)
def f(rng: Rng, case: Case) -> list[Place]:
    """x, the same on all ranks, and on each another gradient that arrives."""
    x = case.drawn(rng, *case.shape)
    arriving = [case.arriving(rng, *case.shape) for _ in range(case.ranks)]
    gradient = torch.stack(arriving).sum(0) + case.beside
    return [Place(x, each, x, {"x": gradient}) for each in arriving]
