"""What the drivers of unit 11 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class HookReply(DriverReply):
    """gradients: of each parameter. values: what the futures held, each of one bucket."""

    gradients: list[Tensor]
    values: list[PlainData]


@dataclass(frozen=True, slots=True)
class QuantisedReply(DriverReply):
    """results: of two calls in a row. again: of the same two once more. moved: whether PyTorch's default
    generator has drawn. x: of all four, afterwards.
    """

    results: list[PlainData]
    again: list[PlainData]
    moved: bool
    x: Tensor


@dataclass(frozen=True, slots=True)
class RememberedReply(DriverReply):
    """arrived: what each call returned. left: whether its x was as before. calls: of each compressor."""

    arrived: list[PlainData]
    left: list[bool]
    calls: list[int]


@dataclass(frozen=True, slots=True)
class TrainedReply(DriverReply):
    """weights: all numbers of the model after each step, [steps, numbers]."""

    weights: Tensor
