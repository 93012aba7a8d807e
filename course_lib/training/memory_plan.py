"""What a training step takes on ranks that share the model states, within the memory of a device.

A plan has three parts: a stage of ZeRO, the number of micro-batches, and what becomes of each layer's
activations. Its time is that of the computing, out of core if need be (`course_lib.training.out_of_core`),
and of the communication, which here does not overlap with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.training.out_of_core import DoesNotFit, step

PARAMETER_BYTES = 2
"""Parameters and gradients are exchanged in 16 bits."""


@dataclass(frozen=True, slots=True)
class Layer:
    """parameters: how many. activations, seconds: bytes that a sample leaves, and what its forward takes."""

    parameters: int
    activations: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """layers: of the model, in order. samples: of each rank, in a step.

    memory: bytes of a device. states: bytes of the model states on a rank under stages 0 to 3.
    network, host: bytes a second, from a device to the others and to its host.
    start: seconds that a layer's forward takes besides those of its samples, whatever their number.
    """

    layers: tuple[Layer, ...]
    samples: int
    ranks: int
    memory: float
    states: tuple[float, float, float, float]
    network: float
    host: float
    start: float

    def room(self, stage: int) -> float:
        """Bytes that a stage leaves for activations. Stage 3 needs two layers' parameters whole."""
        whole = sorted(PARAMETER_BYTES * layer.parameters for layer in self.layers)[-2:]
        return self.memory - self.states[stage] - (sum(whole) if stage == 3 else 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """stage: of ZeRO, 0 to 3. micro_batches: a divisor of the samples. ways: "keep", "swap" or "recompute",
    for each layer.
    """

    stage: int
    micro_batches: int
    ways: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlanCost:
    """computing, communicating: seconds of a step. peak: the most bytes of activations at once."""

    computing: float
    communicating: float
    peak: float

    @property
    def seconds(self) -> float:
        return self.computing + self.communicating


def plan_cost(plan: Plan, task: Task) -> PlanCost:
    """What a plan takes. Raises DoesNotFit where the memory does not suffice, ValueError for no plan.

    computing: each micro-batch is a step out of core, in which a layer's forward takes task.start and the
    seconds of the micro-batch's samples, within task.room(stage). communicating: all parameters in 16 bits,
    (ranks - 1) / ranks of them at network bytes a second, so many times: at stages 0 and 1 twice, at the end
    of the step; at stage 2 once for each micro-batch, and once at the end; at stage 3 three times for each.
    """
    if plan.stage not in range(4) or plan.micro_batches < 1 or task.samples % plan.micro_batches:
        raise ValueError(
            f"A plan has a stage from 0 to 3, and micro-batches that divide {task.samples} samples; "
            f"got stage {plan.stage} and {plan.micro_batches} micro-batches."
        )
    if len(plan.ways) != len(task.layers):
        raise ValueError(f"The plan has {len(plan.ways)} ways for {len(task.layers)} layers.")
    room = task.room(plan.stage)
    if room < 0:
        raise DoesNotFit(f"The model states of stage {plan.stage} alone do not fit.")
    part = task.samples // plan.micro_batches
    timed = step(
        plan.ways,
        [layer.activations * part for layer in task.layers],
        [task.start + layer.seconds * part for layer in task.layers],
        room,
        task.host,
    )
    # An all-gather or a reduce-scatter of all parameters.
    parameters = PARAMETER_BYTES * sum(layer.parameters for layer in task.layers)
    once = (task.ranks - 1) / task.ranks * parameters / task.network
    times = {0: 2, 1: 2, 2: 1 + plan.micro_batches, 3: 3 * plan.micro_batches}[plan.stage]
    return PlanCost(plan.micro_batches * timed.seconds, times * once, timed.peak)
