"""What the two linear layers share: their rubric, their cases and what must come of them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Rng
from graders.units.models import sent
from graders.units.unit_06.cases import GRADIENTS, PARAMETERS, SPREAD, Case, Place, by_place, nbytes_of
from graders.units.unit_06.passes import calls_of, kept, small

LAYER = Case(ranks=3, shape=(8,))
"""shape: of x in front of its last dimension. Few sums might by chance be rounded alike on all ranks."""


WIDTHS_AND_GROUPS = (
    Criterion(
        "widths that do not divide",
        1,
        "The first ranks' parts are one longer where a width cannot be shared out evenly. Megatron "
        "refuses such widths, and RowwiseParallel fails at them; but a model's widths are not for the "
        "number of ranks to choose.",
        needs=("outputs", "gradients"),
        vary=vary(rest=(2,)),
    ),
    Criterion(
        "group",
        1,
        "Rank and size are those of the group, and so is every call.",
        needs=("outputs", "gradients"),
        vary=both(group=1, ranks=2),
    ),
)


def rubric(outputs: str, gradients: str, calls: str, *, by_outputs: bool) -> tuple[Criterion, ...]:
    """The criteria of a layer, with the hints in which the two differ."""
    phase_of_sum = "backward" if by_outputs else "forward"

    def one_sum(case: Case, place: Place, phase: str) -> tuple[list[str], int]:
        nbytes = place.x.nbytes if by_outputs else place.result.nbytes
        return (["all_reduce"], nbytes) if phase == phase_of_sum else ([], 0)

    return (
        Criterion("outputs", 3, outputs, how=kept),
        Criterion("gradients", 3, gradients, vary=vary(asked=(GRADIENTS,))),
        Criterion(
            "initial values",
            3,
            "Together the parts are what nn.Linear draws from the same random state, and what is drawn after "
            "that is the same too. A part's own nn.Linear draws other numbers. Megatron begins with biases "
            "of 0. And a slice of a tensor keeps the whole tensor's memory alive.",
            vary=vary(asked=(PARAMETERS,)),
            how=small,
        ),
        Criterion("calls and bytes", 2, calls, needs=("outputs", "gradients"), how=calls_of(one_sum)),
        Criterion(
            "other shapes",
            1,
            "Dimensions in front of the last are kept, however many, and in whatever order they stand in "
            "memory; and a layer may have no bias.",
            needs=("outputs", "gradients"),
            vary=vary(bias=(False,)) + both(layout=SPREAD, shape=(2, 3)),
        ),
        *WIDTHS_AND_GROUPS,
    )


def possible(case: Case) -> bool:
    """What a layer is made with has nothing to do with x's shape."""
    return case.asked != PARAMETERS or case.shape == LAYER.shape


def layer(rng: Rng, case: Case, *, by_outputs: bool) -> list[Place]:
    """What each rank is given of x, what must come of it, and of what it was made."""
    inputs, outputs, seed = case.divided(2), case.divided(3), rng.integer(0, 2**31)
    weight, bias = case.drawn(rng, outputs, inputs), case.drawn(rng, outputs)
    x, arriving = case.drawn(rng, *case.shape, inputs), case.arriving(rng, *case.shape, outputs)
    named = {"x": x, "weight": weight, **({"bias": bias} if case.bias else {})}
    leaves = {name: each.clone().requires_grad_() for name, each in named.items()}
    y = functional.linear(leaves["x"], leaves["weight"], leaves.get("bias"))
    found = torch.autograd.grad(sent(y, arriving), list(leaves.values()))
    # A part is cut along its outputs, or along its inputs.
    dims = {"x": None, "weight": 0, "bias": 0, "y": -1} if by_outputs else {"x": -1, "weight": 1}

    def cut(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return by_place({name: case.parts(each, dims.get(name)) for name, each in tensors.items()})

    gradients = dict(zip(leaves, found, strict=True))
    gradients["x"] = gradients["x"] + case.beside
    given, wanted, held = cut(named), cut(gradients), cut(_made(inputs, outputs, case.bias, seed))
    results, arrives = case.parts(y, dims.get("y")), case.parts(arriving, dims.get("y"))
    return [
        Place(
            given[place].pop("x"),
            arrives[place],
            results[place],
            wanted[place],
            {"inputs": inputs, "outputs": outputs, "bias": case.bias, "seed": seed},
            given[place],
            held[place],
            alike=not by_outputs,
            nbytes=nbytes_of(given[place]),
        )
        for place in range(case.ranks)
    ]


def _made(inputs: int, outputs: int, bias: bool, seed: int) -> dict[str, Tensor]:
    """What nn.Linear has, drawn as the driver does, and what is drawn after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.rand(1)
        drawn = nn.Linear(inputs, outputs, bias)
        return {**dict(drawn.named_parameters()), "torch.rand(3)": torch.rand(3)}
