"""What the drivers of unit 05 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class StashReply(DriverReply):
    """What a stash did, action by action.

    told: of a forward the output, of a backward the gradient of its input. attached: whether one of them
    still has its graph. versions: what the stash said after each action. held: bytes of all tensors that it
    keeps then, the stage's parameters among them. weights: the stage's, in the end.
    """

    told: list[PlainData]
    attached: bool
    versions: list[PlainData]
    held: list[int]
    weights: list[Tensor]
