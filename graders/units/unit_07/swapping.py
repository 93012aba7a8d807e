"""What the programs of unit 07's lab share that take a tensor and return another one."""

from dataclasses import dataclass

import torch

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.grading.traffic import Allowed
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import frugal, kept
from graders.units.ranks.stage import Arguments


@dataclass(frozen=True, slots=True)
class OneTensor(Ranks):
    """Each rank has x."""

    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    shape: tuple[int, ...] = feature((40,), lambda shape: f"shape {[*shape]}")

    @property
    def tolerance(self) -> float:
        return 0.0


def x_on_each(rng: Rng, case: OneTensor) -> list[Arguments]:
    """Whole numbers; integers fit no floating-point type."""
    most = 2**10 if case.dtype.is_floating_point else 2**58
    return [[rng.integers(-most, most, *case.shape).to(case.dtype)] for _ in range(case.ranks)]


A_TENSOR_OF_ITS_OWN = Criterion(
    "a tensor of its own",
    1,
    "Make new tensors like x, also on its device: x stays as it is.",
    vary=vary(layout=("meta",), dtype=(torch.int64,), shape=((2, 3),)),
    how=kept,
)


ONE_MESSAGE = Criterion(
    "one message each", 1, "Each rank sends once and receives once; no collective.", how=frugal
)


def one_message_each(case: OneTensor, rounds: int) -> Allowed:
    """One message a rank; so many have to follow one another."""
    nbytes = torch.Size(case.shape).numel() * case.dtype.itemsize
    return Allowed(1, nbytes, rounds, rounds * nbytes)
