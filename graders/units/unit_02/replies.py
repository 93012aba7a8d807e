"""What the drivers of unit 02 tell: plain data, checked against these annotations when it comes back."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ShardsReply(DriverReply):
    """parts: what one rank got each time that it asked. changed: libraries that drew numbers."""

    parts: list[PlainData]
    changed: list[str]


@dataclass(frozen=True, slots=True)
class LoadingReply(DriverReply):
    """result: what the answer returned on this rank. calls: how often it called `load`. raised: what it
    raised, as text.
    """

    result: PlainData
    calls: int
    raised: str


@dataclass(frozen=True, slots=True)
class TrainingReply(DriverReply):
    """How one rank trained.

    history: what the answer returned. parameters: copies, afterwards. batches[t]: the numbers of the samples
    that went through the model before the optimizer's step t. devices: the kinds on which it left them.
    draws: the next random numbers of torch and NumPy.
    """

    history: PlainData
    parameters: list[Tensor]
    batches: list[list[int]]
    devices: list[str]
    draws: tuple[float, float]
