"""The grader of `clip_grad_norm`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, communication, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers import shards as drivers

Gradients = list[list[Tensor | None]]
"""Of each rank's shards."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """half: whether all shards are bfloat16. factor: the bound, of the norm. bare: who has no gradients."""

    ranks: int = feature(3, lambda ranks: compare.counted(ranks, "rank"))
    half: bool = feature(False, lambda half: "bfloat16" if half else "")
    factor: float = feature(0.3, "a bound of {} times the norm")
    bare: str = feature("", lambda bare: f"a rank {bare}" if bare else "")

    def drawn(self, rng: Rng) -> Gradients:
        numel, kind = (300, torch.bfloat16) if self.half else (9, torch.float32)
        # Each rank's are of another size, so that a mean over ranks is not the sum.
        gradients: Gradients = [
            [(30 * (rank + 1) * rng.normal(*shape)).to(kind) for shape in ((numel - rank,), (2, numel))]
            for rank in range(self.ranks)
        ]
        bare: dict[str, list[Tensor | None]] = {"without shards": [], "without gradients": [None, None]}
        return [bare.get(self.bare, gradients[0]), *gradients[1:]]


@one_by_one(
    base=Clipped(),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the norm",
            2,
            "The root of the sum of the squares of all ranks' gradients. Norms cannot be added; "
            "their squares can.",
            vary=vary(ranks=(1,)),
        ),
        Criterion(
            "scaled down",
            2,
            "Multiply every gradient by max_norm / norm in place, with the norm of all ranks. What can be "
            "gone through once, such as shards, is empty the second time.",
            how=look("scaled down"),
        ),
        Criterion(
            "left alone",
            1,
            "Only a norm larger than max_norm changes anything.",
            needs=("the norm", "scaled down"),
            vary=vary(factor=(1.5,)),
            how=look("left alone"),
        ),
        Criterion(
            "ranks without gradients, and bfloat16",
            1,
            "A rank may have no shards, or none with a gradient: it takes part with a zero. Squares are "
            "computed and added in float32: bfloat16 has three digits.",
            needs=("the norm", "scaled down"),
            vary=vary(bare=("without shards", "without gradients"), half=(True,)),
        ),
        Criterion(
            "one number",
            1,
            "One all-reduce of one float32 number is enough, however many shards there are.",
            how=look("one number"),
        ),
    ),
    hints=(
        "What can be added up over ranks, so that the norm comes out of the sum?",
        "Which ranks have to call the all-reduce? All of them, also one that has nothing to give.",
    ),
)
def clip_grad_norm(answer: Answer, case: Clipped, rng: Rng) -> tuple[Finding, Looks]:
    """The norm on every rank, and gradients multiplied in place."""
    gradients = case.drawn(rng)
    every = [each.double() for own in gradients for each in own if each is not None]
    norm = math.sqrt(sum(each.square().sum().item() for each in every))
    run = answer.launch(drivers.clipped, per_rank(gradients), case.factor * norm, ranks=case.ranks)
    norms = [told for told, _ in run.results]
    found = compare.close_on_all_ranks(norms, [torch.tensor(norm)] * case.ranks, "the norm", 1e-4)
    became = "scaled down" if case.factor < 1 else "left alone"
    return found, {
        became: lambda: scaled([after for _, after in run.results], gradients, case),
        "one number": lambda: communication.payload_of(run, "all_reduce", 4),
    }


def scaled(seen: Gradients, given: Gradients, case: Clipped) -> Finding:
    """Passes if each gradient is so many times what it was, and with a factor of 1 the same to the bit."""
    factor = min(case.factor, 1.0)
    near = 0.0 if factor == 1 else 1e-2 if case.half else 1e-4
    found = [Finding(True, f"All gradients are {factor:.4g} times what they were.")]
    for rank, own in enumerate(given):
        for after, before in compare.side_by_side(seen[rank], own):
            if before is not None:
                expected = (factor * before.float()).to(before.dtype)
                what = f"the tensor that was a .grad of rank {rank}, in place {factor:.4g} times as large,"
                found.append(compare.close(after, expected, what, near, 0))
    return compare.first_failure(found)
