"""The grader of `clip_grad_norm`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_09.drivers import shards as drivers

HALF = torch.bfloat16
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce", "broadcast")


@dataclass(frozen=True, slots=True)
class Clipped(Ranks):
    """dtypes: of a rank's shards in turn. numel: about how many numbers each has. factor: the bound, of the
    norm. value: of one gradient of the last rank. bare: who has no gradients. norm_only: whether what has
    become of gradients is left to other rows.
    """

    dtypes: tuple[torch.dtype, ...] = feature(
        (torch.float32, torch.float32), lambda dtypes: "bfloat16" if HALF in dtypes else ""
    )
    numel: int = feature(9, "shards of about {} numbers")
    scale: float = 30.0
    factor: float = feature(0.3, "a bound of {} times the norm")
    value: float = feature(0.0, lambda value: "NaN in a gradient" if math.isnan(value) else "")
    bare: str = feature("", lambda bare: f"a rank {bare}" if bare else "")
    norm_only: bool = True


def drawn(rng: Rng, case: Clipped) -> list[Arguments]:
    """Of each rank its shards, their gradients, and the bound."""
    given: list[Arguments] = []
    for rank in range(case.ranks):
        shapes = [(case.numel - rank % 3,), (2, case.numel + rank)]
        weights = [rng.normal(*shape, dtype=kind) for shape, kind in zip(shapes, case.dtypes, strict=True)]
        # Each rank's are of another size, so that a mean over ranks is not the sum.
        gradients: list[Tensor | None] = [
            (case.scale * (rank + 1) * rng.normal(*each.shape)).to(each.dtype) for each in weights
        ]
        given.append([weights, gradients])
    if case.value:
        given[-1][1][0][0] = case.value
    match case.bare:
        case "without shards":
            given[0] = [[], []]
        case "without gradients":
            given[0][1] = [None, None]
        case "with an empty shard":
            given[0] = [[torch.zeros(0)], [torch.zeros(0)]]
    bound = case.factor * norm_of(given) if case.scale else 0.0
    return [[*own, 1.0 if math.isnan(bound) else bound] for own in given]


def norm_of(given: Sequence[Arguments]) -> float:
    """The norm of all ranks' gradients."""
    gradients = [each for own in given for each in own[1] if each is not None]
    return math.sqrt(sum(each.double().square().sum().item() for each in gradients))


def one_number(tried: Tried[Clipped]) -> Finding:
    """Passes if each rank makes one all-reduce, of a float32 number."""
    for rank, events in enumerate(tried.seen.by_rank):
        seen = ", ".join(f"{event.op} of {event.nbytes} bytes" for event in events) or "nothing"
        if [(event.op, event.nbytes) for event in events] != [("all_reduce", 4)]:
            said = f"rank {rank} calls {seen}; expected all_reduce of 4 bytes."
            return Finding(False, said, Kind.TOO_MUCH if events else Kind.OTHER)
    return Finding(True, "Each rank gives one number to one all-reduce.")


@on_ranks(
    base=Clipped(ranks=3),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the norm",
            2,
            "The root of the sum of the squares of all ranks' gradients. Norms cannot be added; "
            "their squares can.",
        ),
        Criterion(
            "scaled down",
            2,
            "Multiply every gradient by max_norm / norm in place, with the norm of all ranks. PyTorch's own "
            "adds something to the norm; here nothing is added. What can be gone through once, such as "
            "shards, is empty the second time.",
            vary=vary(norm_only=(False,)) + both(norm_only=False, ranks=1),
        ),
        Criterion(
            "left alone",
            1,
            "Only a norm larger than max_norm changes anything: not one of zero, nor one that is NaN. (With "
            "torch.nn.utils all gradients become NaN then.)",
            needs=("the norm", "scaled down"),
            vary=both(norm_only=False, factor=1.5)
            + both(norm_only=False, scale=0.0)
            + both(norm_only=False, value=math.nan),
        ),
        Criterion(
            "ranks without gradients, and bfloat16",
            1,
            "A rank may have no shards, an empty one, or none with a gradient: it takes part with a zero. "
            "Squares are computed and added in float32: bfloat16 has three digits. (torch.nn.utils adds "
            "0.000001 to the norm, which shows where gradients are as small.)",
            needs=("the norm", "scaled down"),
            vary=vary(bare=("without shards", "without gradients", "with an empty shard"))
            + both(dtypes=(HALF, HALF), numel=300)
            + both(dtypes=(HALF, torch.float32), scale=1e-6, norm_only=False),
        ),
        Criterion(
            "one number",
            1,
            "One all-reduce of one float32 number is enough, however many shards there are.",
            how=one_number,
        ),
    ),
    hints=(
        "What can be added up over ranks, so that the norm comes out of the sum?",
        "Which ranks have to call the all-reduce? All of them, also one that has nothing to give.",
    ),
    arguments=drawn,
    calls=COLLECTIVES,
    driver=drivers.clipped,
    what="place {}",
    possible=lambda case: case.scale > 0 or (case.factor, case.value) == (0.3, 0.0),
)
def clip_grad_norm(case: Clipped, given: list[Arguments]) -> list[Expected]:
    """The norm on every rank, and gradients multiplied in place; the shards stay."""
    norm, bound = norm_of(given), given[0][2]
    factor = bound / norm if norm > bound else 1.0
    expected = []
    for weights, gradients, _ in given:
        became = [
            Checked(partial(became_of, each, factor)) if each is not None and not case.norm_only else ANYTHING
            for each in gradients
        ]
        in_place = ANYTHING if case.norm_only else True
        result = {"norm": torch.tensor(norm), "gradients": became, "in place": in_place, "shards": weights}
        arguments = {"weights": ANYTHING, "gradients": ANYTHING, "max_norm": bound}
        expected.append(Expected(result, arguments, returned=None))
    return expected


def became_of(given: Tensor, factor: float, seen: Any, what: str) -> Finding:
    """Passes if the gradient is so many times what it was, and with a factor of 1 the same to the bit."""
    expected = (factor * given.float()).to(given.dtype)
    if given.isnan().any() and isinstance(seen, Tensor):
        seen, expected = seen.nan_to_num(7.0), expected.nan_to_num(7.0)
    near = 0.0 if factor == 1 else 1e-4 if given.dtype == torch.float32 else 1e-2
    return compare.close(seen, expected, f"{what}, which is to be {factor:.4g} times what it was,", near, 0)
