"""What the two halves of a block share: an MLP or an attention, whole, and what each rank has of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng, compare
from graders.units.models import load_values, sent
from graders.units.unit_06.cases import GRADIENTS, PARAMETERS, Case, Place, by_place, nbytes_of
from graders.units.unit_06.drivers.makers import CHANGED, whole_half
from graders.units.unit_06.passes import calls_of, kept, small


@dataclass(frozen=True, slots=True)
class Half(Case):
    """A half of a block. shape: of x in front of its last dimension: samples and tokens."""

    shape: tuple[int, ...] = (2, 3)
    ranks: int = feature(2, "{} ranks")


PARTS_AND_GRADIENTS = ("outputs", "parts", "gradients")


def parts(hint: str) -> Criterion:
    """The row about parameters."""
    return Criterion("parts", 2, hint, vary=vary(asked=(PARAMETERS,)))


def gradients(points: int, hint: str) -> Criterion:
    """The row about backward; who has other parts than asked for has other gradients."""
    return Criterion("gradients", points, hint, needs=("outputs", "parts"), vary=vary(asked=(GRADIENTS,)))


def calls(points: int, hint: str) -> Criterion:
    """The row about calls: one sum in each pass, of a tensor as large as x."""
    return Criterion(
        "calls and bytes",
        points,
        hint,
        needs=PARTS_AND_GRADIENTS,
        how=calls_of(lambda case, place, phase: (["all_reduce"], place.x.nbytes)),
    )


def uneven(name: str, hint: str) -> Criterion:
    """The row about units that cannot be shared out evenly."""
    return Criterion(name, 1, hint, needs=PARTS_AND_GRADIENTS, vary=both(rest=2, ranks=3))


MEMORY = Criterion(
    "memory",
    2,
    "What is returned has this rank's part alone. What is given is somebody's model: change a copy.",
    how=lambda tried: compare.first_failure((small(tried), kept(tried))),
)
GROUP = Criterion(
    "group",
    1,
    "Rank and size are those of the group, and so is every call.",
    needs=PARTS_AND_GRADIENTS,
    vary=vary(group=(1,)),
)


def halves(rng: Rng, case: Half, kind: str) -> list[Place]:
    """What each rank has of a half, an "mlp" or an "attention", of which all have the same x."""
    units = case.divided(2)
    each = 1 if kind == "mlp" else 2  # Rows of a weight that a hidden unit has, or a head.
    sizes = [2 * units, units, units]
    whole = whole_half(kind, sizes).to(case.dtype)
    load_values(whole.parameters(), [0.3 * case.drawn(rng, *p.shape) for p in whole.parameters()])
    x, arriving = case.drawn(rng, *case.shape, sizes[0]), case.arriving(rng, *case.shape, sizes[0])
    named = {"x": x.clone().requires_grad_(), **dict(whole.named_parameters())}
    result = whole(named["x"])
    found = dict(zip(named, torch.autograd.grad(sent(result, arriving), list(named.values())), strict=True))
    of_x = found.pop("x") + case.beside
    values = {name: parameter.detach() for name, parameter in whole.named_parameters()}
    held, wanted = _cut(case, values, units, each), _cut(case, found, units, each)
    given = {f"{name} of what was given": value for name, value in values.items()}
    return [
        Place(
            x,
            arriving,
            result.detach(),
            {**wanted[place], "x": of_x},
            {"kind": kind, "sizes": sizes},
            values,
            held[place],
            alike=True,
            nbytes=nbytes_of(held[place]),
            given={**given, CHANGED: [False, False]},
        )
        for place in range(case.ranks)
    ]


def _cut(case: Half, named: dict[str, Tensor], units: int, each: int) -> list[dict[str, Tensor]]:
    """Each place's parts: whole units of so many rows; columns of the last weight, whose bias all have."""
    rows = [own.flatten() for own in torch.arange(units * each).view(units, each).tensor_split(case.ranks)]

    def part(name: str, tensor: Tensor, own: Tensor) -> Tensor:
        if name in ("down.bias", "output.bias"):
            return tensor.clone()
        return tensor[:, own] if name in ("down.weight", "output.weight") else tensor[own]

    return by_place({name: [part(name, tensor, own) for own in rows] for name, tensor in named.items()})
