"""The grader of `gather_sequence`."""

import torch

from graders.grading.cases import vary
from graders.grading.kit import Criterion, Rng
from graders.units.unit_06.cases import GRADIENTS, Case, Place
from graders.units.unit_06.passes import kept
from graders.units.unit_06.sequences import GATHER, GROUP, LAYOUT, SCATTER, one_a_pass
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=Case(ranks=3, shape=(2, 2, 3), beside=False),
    kind="tensor",
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "all tokens",
            3,
            "Parts stand behind each other along T; a collective knows no T.",
            vary=vary(ranks=(2,), dtype=(torch.float64,)),
            how=kept,
        ),
        Criterion(
            "gradient",
            3,
            "All ranks' gradients are for the same whole: add up, then cut.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        LAYOUT,
        one_a_pass(
            "An all-gather in forward; in backward, nobody needs more than its part.", GATHER, SCATTER
        ),
        GROUP,
    ),
    hints=(
        "Which ranks use this rank's tokens after the gather, and so whose gradients make up theirs?",
        "Which collective gives every rank its part of a sum, and nothing of the other parts?",
        "dist.all_gather and dist.reduce_scatter take lists of tensors: torch.cat and chunk along T.",
    ),
)
def gather_sequence(rng: Rng, case: Case) -> list[Place]:
    """Parts of the tokens, and on each rank another gradient of the whole."""
    samples, own, width = case.shape
    given = [case.drawn(rng, *case.shape) for _ in range(case.ranks)]
    arriving = [case.arriving(rng, samples, own * case.ranks, width) for _ in given]
    gradients = case.parts(torch.stack(arriving).sum(0), 1)
    whole = torch.cat(given, 1)
    return [
        Place(x, arrives, whole, {"x": gradient})
        for x, arrives, gradient in zip(given, arriving, gradients, strict=True)
    ]
