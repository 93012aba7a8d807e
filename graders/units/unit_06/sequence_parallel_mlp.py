"""The grader of `sequence_parallel_mlp`."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.models import sent
from graders.units.unit_06.cases import GRADIENTS, Case, Place, by_place
from graders.units.unit_06.passes import as_wanted, in_each_pass, kept
from graders.units.unit_06.sequences import GATHER, SCATTER
from graders.units.unit_06.stage import both_passes

CUT = {"x": 1, "up.weight": 0, "up.bias": 0, "down.weight": 1}
"""What ranks have parts of, and along which dimension."""
ON_ALL = ("norm.weight", "norm.bias", "bias")
RIGHT = ("its tokens", "gradients of what is cut", "gradients of what all have")
EPSILON = 0.25


@dataclass(frozen=True, slots=True)
class Tokens(Case):
    """shape: of a rank's x. on_all: whether gradients are those of what all ranks have, or of what is cut."""

    shape: tuple[int, ...] = (2, 2, 4)
    ranks: int = feature(2, "{} ranks")
    on_all: bool = feature(False, lambda on_all: "of what all ranks have" if on_all else "")


def _few(case: Case, place: Place, phase: str, calls: list[Event]) -> Finding:
    """Passes if there is one all-gather and one reduce-scatter, and in backward few numbers all-reduced."""
    if phase == "making":
        return as_wanted(calls, (), 0)
    sums = [call for call in calls if call.op == "all_reduce"] if phase == "backward" else []
    others = [call for call in calls if call not in sums]
    given, allowed = sum(call.nbytes for call in sums), 3 * place.x.shape[-1] * place.x.element_size()
    found = compare.at_most(given, allowed, "gives all-reduces more; their bytes", kind=Kind.TOO_MUCH)
    return compare.first_failure((as_wanted(others, (GATHER, SCATTER), sum(c.nbytes for c in others)), found))


@both_passes(
    base=Tokens(beside=False),
    kind="sequence",
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            RIGHT[0],
            4,
            "Norm this rank's tokens, bring all together, apply the rank's parts, deal out the sum; "
            "then add what is added once.",
            vary=vary(ranks=(3,)),
            how=kept,
        ),
        Criterion(
            RIGHT[1],
            3,
            "x, up and down: each collective's backward has to be its mirror image.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        Criterion(
            RIGHT[2],
            4,
            "Each rank has used norm and bias for its own tokens only; all ranks' gradients add up, in every "
            "step: leave no hook at a parameter.",
            needs=RIGHT[:2],
            vary=both(asked=GRADIENTS, on_all=True),
        ),
        Criterion(
            "collectives",
            2,
            "One all-gather and one reduce-scatter in each pass, and all-reduces of 3 D numbers in backward.",
            needs=RIGHT,
            how=in_each_pass(_few),
        ),
        Criterion(
            "group", 1, "Each collective takes a group, in backward too.", needs=RIGHT, vary=vary(group=(1,))
        ),
    ),
    hints=(
        "Between which two places are all tokens on every rank? Write down the shapes, [B, T / p, D] first.",
        "functional.layer_norm takes weight and bias as arguments: pass what you have made of them.",
        "f does nothing in forward, and adds up all ranks' gradients in backward. What if x is a parameter?",
    ),
)
def sequence_parallel_mlp(rng: Rng, case: Tokens) -> list[Place]:
    """A layer whose norm sees some of the tokens, and whose matrices see all."""
    samples, own, width = case.shape
    inner, whole = case.divided(2), (samples, own * case.ranks, width)
    shapes = {
        "x": whole,
        "norm.weight": (width,),
        "norm.bias": (width,),
        "up.weight": (inner, width),
        "up.bias": (inner,),
        "down.weight": (width, inner),
        "bias": (width,),
    }
    values = {name: case.drawn(rng, *shape) for name, shape in shapes.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    y, arriving = _layer(*leaves.values()), case.drawn(rng, *whole)
    found = dict(zip(leaves, torch.autograd.grad(sent(y, arriving), list(leaves.values())), strict=True))
    asked = ON_ALL if case.on_all else CUT

    def cut(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return by_place({name: case.parts(each, CUT.get(name)) for name, each in tensors.items()})

    given, wanted = cut(values), cut({name: found[name] for name in asked})
    arrives, results = case.parts(arriving, 1), case.parts(y, 1)
    return [
        Place(
            given[place].pop("x"),
            arrives[place],
            results[place],
            wanted[place],
            {"epsilon": EPSILON},
            given[place],
        )
        for place in range(case.ranks)
    ]


def _layer(
    x: Tensor, scale: Tensor, shift: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, bias: Tensor
) -> Tensor:
    """The whole layer's result."""
    h = functional.layer_norm(x, scale.shape, scale, shift, EPSILON)
    return x + functional.gelu(h @ up.T + up_bias) @ down.T + bias
