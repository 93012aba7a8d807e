"""The grader of `average_gradients`."""

from dataclasses import dataclass
from math import prod

import torch

from graders.grading.cases import both, vary
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
    """dtype: of all. node: ranks a node. frozen: whether FROZEN are. missing: some gradients on some ranks.
    again: in the step before none was missing. broken: an infinity and a NaN on the last rank. scalar:
    whether a parameter has no dimension.
    """

    ranks: int = feature(3, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    node: int = feature(1, lambda node: f"{node} a node" if node > 1 else "")
    frozen: bool = feature(False, lambda frozen: "one layer frozen" if frozen else "")
    missing: bool = feature(False, lambda missing: "some gradients None on some ranks" if missing else "")
    again: bool = feature(False, lambda again: "in the second step" if again else "")
    broken: bool = feature(False, lambda broken: "an infinity and a NaN on the last rank" if broken else "")
    scalar: bool = feature(False, lambda scalar: "a parameter that is a scalar" if scalar else "")

    @property
    def devices_per_node(self) -> int:
        return self.node

    @property
    def tolerance(self) -> float:
        return 1e-12 if self.dtype is torch.float64 else 1e-5

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (*SHAPES, ()) if self.scalar else SHAPES

    @property
    def ordinary(self) -> bool:
        """Whether ranks and dtype are those of the base case."""
        return self.ranks == 3 and self.node == 1 and self.dtype is torch.float32

    @property
    def trainable(self) -> list[int]:
        return [number for number in range(len(self.shapes)) if not (self.frozen and number in FROZEN)]

    @property
    def nbytes(self) -> int:
        """Of the gradients to be sent; -1 if there are two steps."""
        numbers = sum(prod(self.shapes[number]) for number in self.trainable)
        return -1 if self.again else numbers * self.dtype.itemsize


def a_model_and_gradients(rng: Rng, case: Averaged) -> list[Arguments]:
    """Each rank's gradients of the same parameters."""
    values = [rng.normal(*shape, dtype=case.dtype) for shape in case.shapes]
    frozen = [*FROZEN] if case.frozen else []
    given = []
    for rank in range(case.ranks):
        gradients = [rng.normal(*shape, dtype=case.dtype) for shape in case.shapes]
        if case.broken and rank == case.ranks - 1:
            gradients[0][0, 0], gradients[0][-1, -1] = torch.inf, torch.nan
        # The first is missing everywhere, the next on rank 0, and all on the last rank.
        gone = {0, *((1,) if rank == 0 else ()), *(range(9) if rank == case.ranks - 1 else ())}
        gone = (gone if case.missing else set()) | ({FROZEN[-1]} if case.frozen else set())
        of_rank = [None if number in gone else each for number, each in enumerate(gradients)]
        given.append([values, of_rank, frozen, case.again])
    return given


def _one_call(tried: Tried[Averaged]) -> Finding | None:
    """Passes if each gradient is sent once, all together."""
    once = sends_once("all_reduce", lambda case: case.nbytes)(tried)
    if tried.case.features.again or not (once is None or once.passed):
        return once
    return one_call(tried)


@on_ranks(
    base=Averaged(),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "averages over ranks",
            2,
            "After the call every p.grad must be the sum over ranks divided, once, by the number of ranks.",
            vary=vary(ranks=(1, 2), dtype=(torch.float64,)) + both(node=3),
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
            vary=vary(missing=(True,)) + both(missing=True, again=True),
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
            "infinities and layouts",
            1,
            "An infinity or NaN of one rank must stay visible in the mean. And not every gradient is "
            "contiguous: view(-1) then raises an error, and flatten() and contiguous() make a copy. The mean "
            "belongs into the gradient that is there, with copy_(), for a scalar takes no index.",
            vary=vary(broken=(True,), layout=("transposed",), scalar=(True,)),
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
    # Zeros that a rank makes may lie otherwise in memory than what others have: where each has a call
    # of its own, that is wrong for another reason than a missing gradient, or a layout.
    possible=lambda case: (
        case.ranks % case.node == 0
        and not (case.missing and (case.broken or case.layout == "transposed"))
        # How many ranks there are, where, and the dtype have nothing to do with the rest.
        and (case.ordinary or not (case.frozen or case.broken or case.scalar or case.layout == "transposed"))
        and not (case.again and (case.frozen or case.scalar or not case.ordinary))
    ),
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
    zeros = [torch.zeros_like(value) for value in values]
    means = {
        number: sum(zeros[number] if own[number] is None else own[number] for _, own, *_ in given)
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
        for _, own, *_ in given
    ]
