"""What drivers of unit 01 return. log, modes, graphs: as in Watched. waits: where the answer waited for the
device, as in Gpu's log. history: whether what was returned keeps a graph. left: the mode of the model then.
"""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData
from graders.units.unit_01.watched import Mode


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """What one step did. loss: what it returned. parameters: copies of them after the step."""

    loss: PlainData
    history: bool
    parameters: list[Tensor]
    log: list[str]
    modes: list[Mode]
    left: Mode
    waits: list[str]


@dataclass(frozen=True, slots=True)
class EvaluationReply(DriverReply):
    """What an evaluation did. result: what it returned. records: whether gradients are on afterwards, and
    every parameter needs one.
    """

    result: PlainData
    modes: list[Mode]
    graphs: list[bool]
    left: Mode
    records: bool


@dataclass(frozen=True, slots=True)
class FitReply(DriverReply):
    """What a training of some epochs did.

    history: what it returned. parameters: copies of them afterwards. log: with the entries of Gpu's log where
    it waited for the device. passes: how often it went through the training and the validation set. left: on
    which devices the model was left. kept: whether random states are as they were.
    """

    history: PlainData
    parameters: list[Tensor]
    log: list[str]
    modes: list[Mode]
    graphs: list[bool]
    passes: tuple[int, int]
    left: list[str]
    kept: bool


@dataclass(frozen=True, slots=True)
class AccumulationReply(DriverReply):
    """What an accumulation did. loss: what it returned. gradients: those that it left, one a parameter. kept:
    whether micro-batches and parameters are as they were.
    """

    loss: PlainData
    history: bool
    gradients: list[Tensor | None]
    log: list[str]
    modes: list[Mode]
    left: Mode
    waits: list[str]
    kept: bool


@dataclass(frozen=True, slots=True)
class ThroughputReply(DriverReply):
    """What a measurement did. result: what it returned. calls: as in SlowDevice. returned: when it returned,
    in seconds.
    """

    result: PlainData
    calls: list[tuple[str, float, float]]
    returned: float
