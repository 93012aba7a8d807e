"""The grader of `scatter_sequence`."""

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
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "its tokens of the sum",
            3,
            "Add up what all ranks have, and keep this rank's tokens.",
            vary=vary(ranks=(2,), dtype=(torch.float64,)),
            how=kept,
        ),
        Criterion(
            "gradient",
            2,
            "What this rank has for a token went into the sum on that token's rank.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        LAYOUT,
        one_a_pass("A reduce-scatter in forward, and its mirror image in backward.", SCATTER, GATHER),
        GROUP,
    ),
    hints=(
        "What was gather_sequence's backward, and what is it here?",
        "Every rank adds to every token. Where is the gradient of token 0 before backward, and who needs it?",
    ),
)
def scatter_sequence(rng: Rng, case: Case) -> list[Place]:
    """On each rank a part of the sum, of all tokens, and the gradient of its own tokens."""
    samples, own, width = case.shape
    given = [case.drawn(rng, samples, own * case.ranks, width) for _ in range(case.ranks)]
    results = case.parts(torch.stack(given).sum(0), 1)
    arriving = [case.arriving(rng, *case.shape) for _ in given]
    whole = torch.cat(arriving, 1)
    return [
        Place(x, arrives, result, {"x": whole})
        for x, arrives, result in zip(given, arriving, results, strict=True)
    ]
