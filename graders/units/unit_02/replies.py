"""What the drivers of unit 02 tell: plain data, checked against these annotations when it comes back."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ShardsReply(DriverReply):
    """What one rank got.

    first: its part for each (length, epoch, seed). again: asked for once more. changed: libraries that drew
    numbers.
    """

    first: list[PlainData]
    again: list[PlainData]
    changed: list[str]


@dataclass(frozen=True, slots=True)
class LoadingReply(DriverReply):
    """result: what the answer returned on this rank. calls: how often it called `load`."""

    result: PlainData
    calls: int


@dataclass(frozen=True, slots=True)
class FailingLoadReply(DriverReply):
    """raised: what the answer raised on this rank, as text, None where it returned. calls: of `load`."""

    raised: str | None
    calls: int


@dataclass(frozen=True, slots=True)
class TrainingReply(DriverReply):
    """How one rank trained.

    history: what the answer returned. parameters: copies, afterwards. batches[t]: the numbers of the samples
    that went through the model before the optimizer's step t. sums[t]: of all weights after it. devices: of
    which kinds the inputs of forward passes were. left: on devices of which kinds the parameters were left.
    draws: a random number of torch's in the first forward pass, one below 0 where there was none, and then
    the next ones of torch, random and numpy.random; before they would have been others on every rank.
    in_group: whether there is still a default group.
    """

    history: PlainData
    parameters: list[Tensor]
    batches: list[list[int]]
    sums: list[float]
    devices: list[str]
    left: list[str]
    draws: tuple[float, float, float, float]
    in_group: bool
