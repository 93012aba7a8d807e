"""What the drivers of unit 08 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class TrainedReply(DriverReply):
    """What one call of a training did on one rank.

    result: what it returned. w: its argument afterwards. seen: the weights at which it asked for a gradient,
    one by one. given: what it was given.
    """

    result: PlainData
    w: Tensor
    seen: list[Tensor]
    given: list[Tensor]


@dataclass(frozen=True, slots=True)
class DealtReply(DriverReply):
    """result: what the answer returned. worked: the batches that this rank was asked to work on, in order."""

    result: PlainData
    worked: list[int]


@dataclass(frozen=True, slots=True)
class DesignReply(DriverReply):
    """seen: the weights [asked, numbers] at which this rank asked for a gradient, one by one."""

    seen: Tensor
