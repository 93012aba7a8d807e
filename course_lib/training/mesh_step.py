"""What a training step of a transformer takes on a mesh of devices: data x pipeline x tensor.

The step is put together from three parts. A block's forward and backward are run on a simulated device, on
tensors that have shapes and no data, so their time is the roofline's. All-reduces, of all tensor groups at
once and at the end of all data groups at once, take what the simulator's rules of time say. The pipeline's
time follows from these, since all stages are alike.

Numbers have 16 bits. Every block keeps its input alone and is computed again before its backward. Embedding
and head are left out.

Shapes: B samples of a micro-batch, T tokens of a sample, D width, F width inside the MLP, as in `models`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
import torch.distributed as dist

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch
from course_lib.launch import launch
from course_lib.models import TransformerConfig
from course_lib.runtime.simulator.network_model import Timing
from course_lib.training.sharded_block import DEVICE, NUMBERS, ShardedBlock

NUMBER_BYTES = 2
"""Of a weight, an activation or a gradient."""

STATE_BYTES = 16
"""Of each parameter: weight and gradient in 16 bits; weight, momentum and variance in 32 (Adam)."""


ALL_REDUCES = 6
"""Of a block's input or output, by its tensor group: two in forward, two when it is computed again, two in
backward (M. Shoeybi et al., arXiv:1909.08053, section 3).
"""


class Mesh(NamedTuple):
    """Sizes of the axes. Rank r sits at (data, pipeline, tensor), the last axis innermost."""

    data: int
    pipeline: int
    tensor: int

    @property
    def size(self) -> int:
        return self.data * self.pipeline * self.tensor

    def rank(self, data: int, stage: int, tensor: int) -> int:
        return (data * self.pipeline + stage) * self.tensor + tensor


@dataclass(frozen=True, slots=True)
class Job:
    """A training step. batch: samples of a step, each of model.context tokens. cluster: what it runs on.

    micro_batch: samples that pass the pipeline together. memory: bytes of a device. chunks: pieces of the
    model that each stage has; with more than one the schedule is interleaved.
    """

    model: TransformerConfig
    batch: int
    cluster: Cluster
    memory: float = float("inf")
    micro_batch: int = 1
    chunks: int = 1

    def problem(self, mesh: Mesh) -> str:
        """Why the step cannot be cut so; empty if it can."""
        model, node = self.model, self.cluster.devices_per_node
        if min(mesh) < 1 or mesh.size != self.cluster.size:
            return f"{mesh.data} x {mesh.pipeline} x {mesh.tensor} are not {self.cluster.size} devices"
        for part, whole, what in (
            (mesh.data * self.micro_batch, self.batch, "samples"),
            (mesh.pipeline * self.chunks, model.layers, "blocks"),
            (mesh.tensor, model.heads, "heads"),
        ):
            if whole % part:
                return f"{whole} {what} cannot be cut into {part} equal parts"
        if node % mesh.tensor and mesh.tensor % node:
            return f"tensor groups of {mesh.tensor} leave devices of a node of {node} over"
        return ""

    def micro_batches(self, mesh: Mesh) -> int:
        """How many each pipeline has in a step."""
        return self.batch // mesh.data // self.micro_batch


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, and of its parts.

    computing: of a device's blocks, forward, again, backward. tensor: all-reduces of the tensor group.
    waiting: the pipeline's bubble and what its messages add. data: the gradients' average.
    """

    computing: float
    tensor: float
    waiting: float
    data: float

    @property
    def seconds(self) -> float:
        return self.computing + self.tensor + self.waiting + self.data


def memory_bytes(job: Job, mesh: Mesh) -> float:
    """The most bytes that a device holds, in GPipe's order.

    Of each of its blocks: 16 bytes for each of 12 D^2 / tensor + 13 D parameters (with F = 4 D), and 2 B T D
    for each micro-batch, which are its inputs. Besides, what one block leaves while it is computed again,
    B T D (10 + 24 / tensor + 5 H T / (D tensor)): V. Korthikanti et al., arXiv:2205.05198, equation 2.
    """
    model = job.model
    width, tokens = model.width, model.context * job.micro_batch
    blocks = model.layers / mesh.pipeline
    matrices = 4 * width**2 + 2 * width * model.inner
    states = STATE_BYTES * (matrices / mesh.tensor + 9 * width + model.inner)
    inputs = NUMBER_BYTES * tokens * width * job.micro_batches(mesh)
    scores = 5 * model.heads * model.context / width
    return blocks * (states + inputs) + tokens * width * (10 + (24 + scores) / mesh.tensor)


def step_time(job: Job, mesh: Mesh) -> StepTime:
    """What a step takes; whether it fits is not looked at. Raises ValueError where it cannot be cut so, and
    BadLaunch on a rank.

    A device computes a block, for one micro-batch, forward, forward again, and backward, which has twice the
    operations of a forward; ALL_REDUCES times its tensor group sums 2 B T D bytes. A stage does so for all
    its blocks. With m micro-batches and p stages a step lasts m + p - 1 times what a stage takes for one, as
    in unit 05; interleaved with v chunks, m + (p - 1) / v times (D. Narayanan et al., arXiv:2104.04473,
    section 2.2). Messages of 2 B T D bytes are sent in the background: 2 (p - 1) of them are waited for, each
    as long as the slowest from a stage to the next in any replica: the step ends with the slowest replica. At
    the end each data group averages a device's gradients, (4 D^2 + 2 D F) / tensor + 9 D + F for each block
    (each tensor rank has all norms and biases), in 2 bytes a number, with one all-reduce.
    """
    if dist.is_initialized():
        raise BadLaunch("step_time launches a simulated rank, and a rank cannot do that. Call it outside.")
    if problem := job.problem(mesh):
        raise ValueError(problem[0].upper() + problem[1:] + ".")
    cluster = job.cluster
    block = block_seconds(job.model, mesh.tensor, job.micro_batch, cluster.computes)
    talk = ALL_REDUCES * _all_reduce_seconds(job, mesh)
    times = job.micro_batches(mesh) * job.model.layers // mesh.pipeline
    extra = (mesh.pipeline - 1) / job.chunks * job.model.layers / mesh.pipeline
    return StepTime(
        computing=times * block,
        tensor=times * talk,
        waiting=extra * (block + talk) + 2 * (mesh.pipeline - 1) * _message_seconds(job, mesh),
        data=_average_seconds(job, mesh),
    )


@cache
def block_seconds(model: TransformerConfig, tensor: int, micro_batch: int, device: Device) -> float:
    """What a device computes for a block and a micro-batch: forward, forward again, backward.

    Making the block takes virtual time, too, which does not count.
    """
    cluster = Cluster(device=device)
    made, run = (
        launch(_run_block, model, tensor, micro_batch, times, cluster=cluster).seconds for times in (0, 1)
    )
    return run - made


def _run_block(model: TransformerConfig, tensor: int, micro_batch: int, times: int) -> None:
    block = ShardedBlock(model, tensor)
    shape = (micro_batch, model.context, model.width)
    x_BTD = torch.empty(shape, device=DEVICE, dtype=NUMBERS, requires_grad=True)
    for _ in range(times):
        with torch.no_grad():
            block(x_BTD)
        block(x_BTD).backward(x_BTD.detach())
        block.zero_grad()


def _all_reduce_seconds(job: Job, mesh: Mesh) -> float:
    """One all-reduce of a block's input or output, in all tensor groups at the same time."""
    nbytes = NUMBER_BYTES * job.micro_batch * job.model.context * job.model.width
    return _slowest_all_reduce(job.cluster, nbytes, _groups(mesh, "tensor"))


def _message_seconds(job: Job, mesh: Mesh) -> float:
    """The longest way from a stage to the next in any replica: each tensor rank sends its activations."""
    if mesh.pipeline == 1:
        return 0.0
    nbytes = NUMBER_BYTES * job.micro_batch * job.model.context * job.model.width
    timing = Timing(job.cluster, mesh.size)
    return max(
        timing.message(mesh.rank(data, stage, tensor), mesh.rank(data, stage + 1, tensor), nbytes, 0.0)
        for data, stage, tensor in product(range(mesh.data), range(mesh.pipeline - 1), range(mesh.tensor))
    )


def _average_seconds(job: Job, mesh: Mesh) -> float:
    """One all-reduce of the gradients of a device's blocks, in all data groups at the same time."""
    model = job.model
    matrices = 4 * model.width**2 + 2 * model.width * model.inner
    numbers = model.layers // mesh.pipeline * (matrices // mesh.tensor + 9 * model.width + model.inner)
    return _slowest_all_reduce(job.cluster, NUMBER_BYTES * numbers, _groups(mesh, "data"))


def _slowest_all_reduce(cluster: Cluster, nbytes: int, groups: Iterable[tuple[int, ...]]) -> float:
    timing = Timing(cluster, cluster.size)
    return max(
        timing.collective("all_reduce", nbytes, members, 0.0) if len(members) > 1 else 0.0
        for members in groups
    )


def _groups(mesh: Mesh, axis: str) -> Iterator[tuple[int, ...]]:
    """The ranks along one axis, for each place on the others."""
    ranks = torch.arange(mesh.size).reshape(mesh)
    for members in ranks.movedim(Mesh._fields.index(axis), -1).reshape(-1, getattr(mesh, axis)).tolist():
        yield tuple(members)
