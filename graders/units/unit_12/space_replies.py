"""What unit 12's drivers tell."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class PassesReply(DriverReply):
    """result: what the answer returned; without: under no_grad. gradients: of the tensors given, where the
    gradient `arrived` came to the result. given, arrived: these tensors afterwards. learning: whether each of
    those given needs a gradient then.
    """

    result: PlainData
    without: PlainData
    gradients: list[PlainData]
    given: list[Tensor]
    learning: list[bool]
    arrived: PlainData


@dataclass(frozen=True, slots=True)
class SeveralReply(DriverReply):
    """results: of each call. rounds: the gradients of all tensors, backward by backward."""

    results: list[PlainData]
    rounds: list[list[PlainData]]
