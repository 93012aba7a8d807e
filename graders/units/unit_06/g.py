"""The grader of `g`."""

import torch

from graders.grading.cases import vary
from graders.grading.kit import Criterion, Rng
from graders.units.unit_06.cases import GRADIENTS, SPREAD, Case, Place
from graders.units.unit_06.passes import calls_of, kept
from graders.units.unit_06.stage import both_passes


@both_passes(
    base=Case(ranks=3, shape=(5, 4)),
    kind="tensor",
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "value",
            3,
            "Every rank has a part of a sum; all of them want the whole sum, to the last bit.",
            vary=vary(ranks=(2,), dtype=(torch.float64, torch.bfloat16), shape=((),)),
        ),
        Criterion(
            "gradient",
            1,
            "Every rank has the whole gradient already: d(a + b)/da is 1. What comes through g passes as it "
            "is; so does all else.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        Criterion(
            "arguments unchanged",
            1,
            "x may be needed in somebody's backward: sum up a copy of it. Megatron's g does not; it may, "
            "since in its layers nobody else has that x.",
            vary=vary(layout=(SPREAD,)),
            how=kept,
        ),
        Criterion(
            "calls",
            1,
            "Forward needs one sum; backward needs nobody.",
            needs=("value", "gradient"),
            how=calls_of(
                lambda case, place, phase: (["all_reduce"], place.x.nbytes) if phase == "forward" else ([], 0)
            ),
        ),
        Criterion("group", 1, "dist.all_reduce takes a group as well.", vary=vary(group=(1,))),
    ),
    hints=(
        "If y is the sum of all ranks' x, what is the derivative of y by this rank's x?",
        "Whose tensor does dist.all_reduce write to?",
    ),
    possible=lambda case: bool(case.shape) or case.layout != SPREAD,
)
def g(rng: Rng, case: Case) -> list[Place]:
    """On each rank another x, and another gradient that arrives."""
    given = [case.drawn(rng, *case.shape) for _ in range(case.ranks)]
    total = torch.stack(given).sum(0)
    places = []
    for x in given:
        arriving = case.arriving(rng, *case.shape)
        places.append(Place(x, arriving, total, {"x": arriving + case.beside}, alike=True))
    return places
