"""What unit 12's drivers tell."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class PassesReply(DriverReply):
    """result: what the answer returned; without: under no_grad. gradients: of the tensors given.
    given: these afterwards. learning: whether each of them needs a gradient then. arrived_kept: whether the
    gradient that arrived at the result is as it was.
    """

    result: PlainData
    without: PlainData
    gradients: list[PlainData]
    given: list[Tensor]
    learning: list[bool]
    arrived_kept: bool


@dataclass(frozen=True, slots=True)
class SeveralReply(DriverReply):
    """results: of each call. rounds: the gradients of all tensors, backward by backward."""

    results: list[PlainData]
    rounds: list[list[PlainData]]
