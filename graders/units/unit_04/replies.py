"""What the drivers of unit 04 tell: plain data, checked against these annotations when it comes back."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData
from graders.units.models import Gradients


@dataclass(frozen=True, slots=True)
class WarmupReply(DriverReply):
    """Whether there is a callback; its fields, None where it has none; the rates with which new_optimizer was
    called; and whether the callback has one of those optimizers.
    """

    there: bool
    initial_lr: PlainData
    warmup_steps: PlainData
    size: PlainData
    made: list[PlainData]
    own: bool


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """After a step: gradients and values of all parameters."""

    gradients: Gradients
    parameters: list[Tensor]


@dataclass(frozen=True, slots=True)
class OwnReply(DriverReply):
    """What is the wrapped optimizer's own.

    returned: what step(closure) returned. parameters: the model's after each step. in_place: whether means
    are in the tensors in which gradients were. refused: what zero_grad() raised after a backward.
    """

    returned: PlainData
    parameters: list[list[Tensor]]
    in_place: bool
    refused: str


@dataclass(frozen=True, slots=True)
class ProcessReply(DriverReply):
    """What one process of a run did; see `graders.units.unit_04.horovod_rank`.

    accuracy: what it returned. returned: whether it also returned its model. weights: of that, afterwards,
    its buffer last. start: its weight and buffer before the first call; calls: with what it was called.
    gpus: which it used. files: what lies in its folder; checkpoint: what that holds.
    """

    accuracy: PlainData
    returned: bool
    weights: list[Tensor]
    start: list[Tensor]
    calls: list[Tensor]
    gpus: list[PlainData]
    files: list[str]
    checkpoint: dict[str, PlainData] | None


@dataclass(frozen=True, slots=True)
class RunReply(DriverReply):
    """What the processes did in a training that begins, and in one that goes on from there.

    failed: how the second one failed, if so. blocked: why there was no run.
    """

    begins: list[ProcessReply]
    goes_on: list[ProcessReply]
    failed: str
    blocked: str
