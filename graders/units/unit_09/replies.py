"""What the drivers of unit 09 tell."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class OptimizerReply(DriverReply):
    """parameters: after each step. left: whether gradients were as given after each step.

    changed: whether the dicts of the groups are other than they were, or others need gradients. cleared:
    whether every gradient is None after zero_grad(). numbers: how many the optimizers that the answer made
    keep for their parameters.
    """

    parameters: list[list[Tensor]]
    left: list[bool]
    changed: bool
    cleared: bool
    numbers: int


@dataclass(frozen=True, slots=True)
class GradientsReply(DriverReply):
    """buckets: the numbers of the parameters in each. shards: what each finish() returned.

    left: of each pass, how many parameters had a gradient after it. there: how many gradients there were
    whenever backward reached a layer.
    """

    buckets: PlainData
    shards: list[PlainData]
    left: list[int]
    there: list[int]


@dataclass(frozen=True, slots=True)
class UnitsReply(DriverReply):
    """shards: the units' shards as they were made; others: how many more parameters they have.

    results: of each forward [B, width]. gradients: of all shards after each backward, and of the inputs.
    without: what comes out of a forward under no_grad. changed: whether a module given is not as it was.
    """

    shards: list[Tensor]
    others: int
    results: list[PlainData]
    gradients: list[list[Tensor | None]]
    without: PlainData
    changed: bool


@dataclass(frozen=True, slots=True)
class AssortedReply(DriverReply):
    """results: of a forward. gradients: of the unit's parameters after its backward.

    calls: the buffer of the module that was given.
    """

    results: PlainData
    gradients: list[Tensor | None]
    calls: Tensor


@dataclass(frozen=True, slots=True)
class StateReply(DriverReply):
    """state: what the answer returned. shards, shapes: the arguments, after what was returned has changed."""

    state: PlainData
    shards: dict[str, Tensor]
    shapes: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class OffloadReply(DriverReply):
    """What passes of a model left, one after another.

    gradients: of the weights [W, W], by pass, then of the late ones. on_host: bytes there after each forward,
    and at the end of each pass.
    """

    gradients: list[list[Tensor]]
    on_host: list[int]
