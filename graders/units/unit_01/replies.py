"""What drivers of unit 01 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData
from graders.units.unit_01.watched import Mode


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """What one step did.

    loss: what it returned. history: whether that keeps a graph. parameters: copies of them after the step.
    log, modes: as in Watched, of this step only. left: the mode of the model afterwards. waits: where it
    waited for the device, as in Gpu's log.
    """

    loss: PlainData
    history: bool
    parameters: list[Tensor]
    log: list[str]
    modes: list[Mode]
    left: Mode
    waits: list[str]


@dataclass(frozen=True, slots=True)
class EvaluationReply(DriverReply):
    """What an evaluation did.

    result: what it returned. modes, graphs, devices: as in Watched. Afterwards: for the model and each of its
    modules whether it is in training mode, whether gradients are on, and whether every parameter needs one.
    """

    result: PlainData
    modes: list[Mode]
    graphs: list[bool]
    devices: list[str]
    training: list[bool]
    grad_enabled: bool
    trainable: bool


@dataclass(frozen=True, slots=True)
class FitReply(DriverReply):
    """What a training of some epochs did.

    history: what it returned. parameters: copies of them afterwards. log, modes, graphs: as in Watched, with
    the entries of Gpu's log where, with batches on the host, it waited for the device. passes: how often it
    went through the training and the validation set. left: on which devices the model was left. settings:
    whether those of the optimizer are as they were. drawn: as in SeedsNoted.
    """

    history: PlainData
    parameters: list[Tensor]
    log: list[str]
    modes: list[Mode]
    graphs: list[bool]
    passes: tuple[int, int]
    devices: list[str]
    left: list[str]
    settings: bool
    drawn: list[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class AccumulationReply(DriverReply):
    """What an accumulation did.

    loss: what it returned. history: whether that keeps a graph. gradients: those that it left, one a
    parameter. log, kept, modes: as in Watched. changed: what is not as it was before. left: the mode of the
    model then. waits: where it waited for the device, as in Gpu's log.
    """

    loss: PlainData
    history: bool
    gradients: list[Tensor | None]
    log: list[str]
    kept: list[int]
    modes: list[Mode]
    changed: list[str]
    left: Mode
    waits: list[str]


@dataclass(frozen=True, slots=True)
class ThroughputReply(DriverReply):
    """What a measurement did.

    result: what it returned. calls: as in SlowDevice. returned: when it returned, in seconds.
    """

    result: PlainData
    calls: list[tuple[str, float, float]]
    returned: float
