"""The grader of `average_gradients`."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept, one_call
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL, sends_once
from graders.units.unit_02.drivers import replicas
from graders.units.unit_02.models import chain_of, names_of

SHAPES = ((3, 2), (3,), (4, 3), (4,), (2, 4), (2,))
"""Of the weights and biases of three layers; the first weight has a second name."""
FROZEN = 2, 3
"""Which of them are frozen, if some are: a weight, which has a gradient from before, and its bias."""


@dataclass(frozen=True, slots=True)
class Averaged(Ranks):
    """dtype: of all. frozen: whether FROZEN are. missing: some gradients on some ranks."""

    ranks: int = feature(3, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    frozen: bool = feature(False, lambda frozen: "one layer frozen" if frozen else "")
    missing: bool = feature(False, lambda missing: "some gradients None on some ranks" if missing else "")

    @property
    def tolerance(self) -> float:
        return 1e-12 if self.dtype is torch.float64 else 1e-5

    @property
    def trainable(self) -> list[int]:
        return [number for number in range(len(SHAPES)) if not (self.frozen and number in FROZEN)]


def a_model_and_gradients(rng: Rng, case: Averaged) -> list[Arguments]:
    """Each rank's gradients of the same parameters."""
    values = [rng.normal(*shape, dtype=case.dtype) for shape in SHAPES]
    given = []
    for rank in range(case.ranks):
        gradients: list[Tensor | None] = [rng.normal(*shape, dtype=case.dtype) for shape in SHAPES]
        if case.missing:  # the first everywhere, the next on rank 0, and all on the last rank
            gone = range(len(SHAPES) if rank == case.ranks - 1 else 2 if rank == 0 else 1)
            gradients[: len(gone)] = [None] * len(gone)
        given.append([values, gradients, [*FROZEN] if case.frozen else []])
    return given


def _one_call(tried: Tried[Averaged]) -> Finding:
    """Passes if each gradient is sent once, all together."""
    case = tried.case.features
    numbers = sum(prod(SHAPES[number]) for number in case.trainable)
    once = sends_once("all_reduce", numbers * case.dtype.itemsize, tried)
    return one_call(tried) if once.passed else once


@on_ranks(
    base=Averaged(),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "averages over ranks",
            2,
            "After the call every p.grad must be the sum over ranks divided, once, by the number of ranks.",
            vary=vary(ranks=(1, 2), dtype=(torch.float64,)),
        ),
        Criterion(
            "in place",
            1,
            "Write the average into the gradient that is there, p.grad.copy_(...), and into nothing else. "
            "PyTorch's average_parameters does not: it puts views of its own flat tensor there, and whoever "
            "has the old gradient, as an optimizer's buffers may, is left with a sum that is no longer used.",
            how=kept,
        ),
        Criterion(
            "missing gradients",
            1,
            "Where p.grad is None on this rank, it counts as zero; still all ranks must make the same calls, "
            "so nothing may be skipped. PyTorch's average_parameters skips it, and then ranks send tensors "
            "of unlike lengths.",
            vary=vary(missing=(True,)),
        ),
        Criterion(
            "one call",
            1,
            "Leave out frozen parameters, those whose requires_grad is False. Lay all other gradients end to "
            "end in one flat tensor, and call all_reduce once: no gathering, no second round.",
            vary=vary(frozen=(True,)),
            how=_one_call,
        ),
        Criterion(
            "any layout",
            1,
            "Not every gradient is contiguous: view(-1) then raises an error, and flatten() and contiguous() "
            "make a copy. The mean belongs into the gradient that is there, with copy_().",
            vary=vary(layout=("transposed",)),
        ),
    ),
    hints=(
        "How would you do it with one all_reduce a parameter? Make that right first.",
        "How do many tensors become one? torch.cat([g.flatten() for g in gradients]) lays them end to end; "
        "flat.split(sizes) cuts them.",
        "What does a rank send for a gradient that it lacks? Zeros, in a tensor that it makes before "
        "anything else.",
    ),
    arguments=a_model_and_gradients,
    calls=ANY_CALL,
    possible=lambda case: not (case.missing and case.layout == "transposed"),
    driver=replicas.average,
    what="rank {}",
)
def average_gradients(case: Averaged, given: list[Arguments]) -> list[Expected]:
    """The mean over ranks, where what is missing is zero; a frozen parameter's stays the rank's own."""
    values = given[0][0]
    names = [
        f"the gradient of {name}{'' if number in case.trainable else ', which is frozen,'}"
        for number, name in enumerate(names_of(chain_of(values)))
    ]
    means = {
        number: sum(
            torch.zeros_like(values[number]) if own[number] is None else own[number] for _, own, _ in given
        )
        / len(given)
        for number in case.trainable
    }
    left = {"the list of parameters": values, "whether each .grad is the tensor it was, in its memory,": True}
    return [
        Expected(
            {name: means.get(number, own[number]) for number, name in enumerate(names)},
            left,
            returned=None,
        )
        for _, own, _ in given
    ]
