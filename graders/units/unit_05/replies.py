"""What the drivers of unit 05 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """stages: each one's actions. seconds, memory: the arguments afterwards."""

    stages: list[list[PlainData]]
    seconds: PlainData
    memory: PlainData


@dataclass(frozen=True, slots=True)
class StashReply(DriverReply):
    """What a stash did, action by action.

    told: of a forward the output, of a backward the gradient of its input. attached: whether one of them
    still has its graph. kept: whether every x is as it was, and asks for no gradient. versions: what the
    stash said after each action. held: bytes of all tensors alive then that were made since the first
    action, and of the stage's parameters, without their gradients in .grad. weights: the stage's, in the
    end. asking: which of them ask for gradients then. left: which of the others have one.
    """

    told: list[PlainData]
    attached: bool
    kept: bool
    versions: list[PlainData]
    held: list[int]
    weights: list[Tensor]
    asking: list[bool]
    left: list[bool]


@dataclass(frozen=True, slots=True)
class UnknownReply(DriverReply):
    """raised: by each backward, by name, empty where nothing was. changed: whether one that raised has
    changed the weights.
    """

    raised: list[str]
    changed: bool
