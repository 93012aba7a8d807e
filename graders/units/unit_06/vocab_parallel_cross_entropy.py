"""The grader of `vocab_parallel_cross_entropy`."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.models import sent
from graders.units.unit_06.cases import GRADIENTS, Case, Place, at_borders
from graders.units.unit_06.passes import in_each_pass, kept
from graders.units.unit_06.stage import both_passes

RIGHT = ("loss", "gradient")


@dataclass(frozen=True, slots=True)
class Logits(Case):
    """high: whether all logits are near 1000. Tokens are those at the borders of parts and `shape` more."""

    shape: tuple[int, ...] = (3,)
    high: bool = feature(False, lambda high: "logits all near 1000" if high else "")


def _few(case: Case, place: Place, phase: str, calls: list[Event]) -> Finding:
    """Passes if no more than three numbers a token go to each other rank, all in forward."""
    if phase != "forward":
        return compare.at_most(len(calls), 0, "makes calls; their number")
    # Whoever has logits of 16 bits may well add up in float32.
    allowed = 3 * (case.ranks - 1) * place.result.numel() * max(4, place.result.itemsize)
    seen = sum(call.sent for call in calls)
    return Finding(seen <= allowed, f"sends {seen:,} bytes; {allowed:,} are allowed.", Kind.TOO_MUCH)


@both_passes(
    base=Logits(ranks=3, beside=False),
    kind="tensor",
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            RIGHT[0],
            4,
            "Sum over all columns, of all ranks; the target's logit is on one rank alone. What is subtracted "
            "before exp has to be one number on all ranks.",
            vary=vary(ranks=(2,)),
        ),
        Criterion(
            RIGHT[1],
            4,
            "The softmax of this rank's columns, with one less at the target, times the token's gradient.",
            vary=vary(asked=(GRADIENTS,)),
        ),
        Criterion(
            "any logits",
            1,
            "exp(1000) is no float32. Subtract the largest logit of the whole vocabulary, from all of them.",
            vary=vary(high=(True,)),
        ),
        Criterion(
            "a vocabulary that does not divide",
            1,
            "Parts are those of torch.tensor_split: of 10 columns, 4 ranks get 3, 3, 2, 2. Where does each "
            "begin? Megatron takes all parts for equal, since it pads the vocabulary.",
            vary=vary(rest=(2,)),
        ),
        Criterion(
            "any dtype",
            1,
            "The loss has the dtype of the logits. Megatron's is float32 for all of them, and of float64 "
            "loses half the digits.",
            needs=RIGHT,
            vary=vary(dtype=(torch.float64,)),
        ),
        Criterion(
            "arguments unchanged",
            1,
            "Logits and target stay as they are. Megatron's logits of float32 do not: it saves their memory, "
            "and whoever looks at them afterwards finds others.",
            how=kept,
        ),
        Criterion(
            "bytes",
            2,
            "At most 3 (p - 1) numbers a token in forward and none in backward: what each rank needs of the "
            "others is the largest logit, the sum and the target's logit.",
            needs=RIGHT,
            how=in_each_pass(_few),
        ),
        Criterion("group", 1, "Rank and size are those in the group.", needs=RIGHT, vary=vary(group=(1,))),
    ),
    hints=(
        "Which two numbers of a token does the formula need? Which of them is a sum over columns?",
        "The largest logit may be any number for the derivative: does the loss change with it?",
        "g sums up in forward and leaves the gradient alone. Apply it to this rank's part of both numbers.",
    ),
)
def vocab_parallel_cross_entropy(rng: Rng, case: Logits) -> list[Place]:
    """The cross-entropy of logits cut by columns; some targets are the first and the last of each part."""
    vocabulary = case.divided(6)
    target = torch.cat([rng.integers(0, vocabulary - 1, *case.shape), at_borders(vocabulary, case.ranks)])
    logits = 3 * case.drawn(rng, len(target), vocabulary) + 1000 * case.high
    arriving = case.drawn(rng, len(target))
    wide = logits.double().requires_grad_()
    losses = functional.cross_entropy(wide, target, reduction="none")
    (gradient,) = torch.autograd.grad(sent(losses, arriving.double()), wide)
    return [
        Place(
            part,
            arriving,
            losses.detach().to(case.dtype),
            {"x": of_part},
            {"target": target, "vocabulary": vocabulary},
        )
        for part, of_part in zip(case.parts(logits, 1), case.parts(gradient.to(case.dtype), 1), strict=True)
    ]
