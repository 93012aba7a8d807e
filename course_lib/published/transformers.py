"""Transformers: Narayanan et al. 2021, Shoeybi et al. 2019 (Megatron-LM), Rajbhandari et al. 2020 (ZeRO).

A step is that of `course_lib.training.mesh_step`, with every block computed again, as all three do; the head,
which the last stage computes for each micro-batch; and what Megatron-LM's program does besides: see
`memory_seconds` and `message_seconds`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster
from course_lib.launch import launch
from course_lib.models import TransformerConfig
from course_lib.published.machines import dgx_2, selene
from course_lib.published.row import Row
from course_lib.runtime.communication.costs import seconds_of
from course_lib.training.mesh_step import Job, Mesh, step_time
from course_lib.training.sharded_block import DEVICE, NUMBERS

VOCABULARY = 51_200


@dataclass(frozen=True, slots=True)
class _Case:
    """A line of table 1. micro_batch, chunks: of the schedule; measured: teraFLOP/s a GPU."""

    billions: float
    heads: int
    width: int
    layers: int
    tensor: int
    pipeline: int
    devices: int
    batch: int
    micro_batch: int
    chunks: int
    measured: float


_TABLE_1 = [
    _Case(1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    _Case(3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138),
    _Case(7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    _Case(18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    _Case(39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    _Case(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    _Case(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    _Case(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    _Case(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    _Case(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163),
]
"""D. Narayanan et al., arXiv:2104.04473, table 1 (section 5.1). Micro-batches and chunks are in the authors'
scripts, NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh (--num-layers-per-virtual-pipeline-stage). Without a
pipeline they let PyTorch's DDP average the gradients, which it does during backward.
"""


def rows() -> Iterator[Row]:
    """All rows of this module."""
    yield from _narayanan()
    yield from _shoeybi()
    yield _rajbhandari()


def _narayanan() -> Iterator[Row]:
    for case in _TABLE_1:
        model = _model(case.layers, case.width, case.heads, tokens=2048)
        mesh = Mesh(case.devices // case.pipeline // case.tensor, case.pipeline, case.tensor)
        job = Job(
            model, case.batch, selene(case.devices // 8), micro_batch=case.micro_batch, chunks=case.chunks
        )
        yield Row(
            "Narayanan 2021",
            f"{case.billions:g} billion on {_cut(mesh)}",
            "teraFLOP/s a GPU",
            case.measured,
            _flops_a_device(job, mesh, overlaps=case.pipeline == 1) / 1e12,
        )


def _shoeybi() -> Iterator[Row]:
    """Scaling against one GPU, by operations a second of each: abstract, section 5.1, and table 8."""
    small, large = _model(40, 1536, 16, tokens=1024), _model(72, 3072, 32, tokens=1024)
    alone = Job(small, 8, _first(1), micro_batch=8)
    base = _flops_a_device(alone, Mesh(1, 1, 1))
    for model, batch, mesh, measured in (
        (large, 8, Mesh(1, 1, 8), 0.77),
        (large, 512, Mesh(64, 1, 8), 0.76),
        (small, 8, Mesh(1, 1, 2), 1.64 / 2),
        (small, 8, Mesh(1, 1, 4), 2.34 / 4),
        (small, 8, Mesh(1, 1, 8), 2.98 / 8),
    ):
        cluster = _first(mesh.size) if mesh.size < 16 else dgx_2(mesh.size // 16)
        job = Job(model, batch, cluster, micro_batch=8)
        billions = 1.2 if model is small else 8.3
        yield Row(
            "Shoeybi 2019",
            f"{billions:g} billion on {_cut(mesh)}",
            "% of perfect scaling",
            100 * measured,
            100 * _flops_a_device(job, mesh) / base,
        )


def _rajbhandari() -> Row:
    """15 petaFLOP/s with 100 billion parameters on 400 V100: abstract, and section 10.2.

    ZeRO's stages 1 and 2 send as many bytes as data parallelism does (section 7), which is what is simulated.
    """
    model, mesh = _model(125, 8192, 64, tokens=1024), Mesh(25, 1, 16)
    job = Job(model, 25 * 32, dgx_2(25), micro_batch=32)
    return Row(
        "Rajbhandari 2020",
        f"100 billion on {_cut(mesh)}",
        "teraFLOP/s a GPU",
        38.0,
        _flops_a_device(job, mesh) / 1e12,
        inferred="125 layers of width 8192, 32 samples a group; operations counted as in Narayanan 2021",
    )


def _first(devices: int) -> Cluster:
    """Some of the devices of a DGX-2."""
    node = dgx_2(1)
    return Cluster(
        devices_per_node=devices,
        intra_node=node.intra_node,
        flops=node.flops,
        memory_bandwidth=node.memory_bandwidth,
    )


def _model(layers: int, width: int, heads: int, tokens: int) -> TransformerConfig:
    return TransformerConfig(layers, width, heads, VOCABULARY, context=tokens)


def _cut(mesh: Mesh) -> str:
    return f"{mesh.size} = {mesh.data} x {mesh.pipeline} x {mesh.tensor}"


def _flops_a_device(job: Job, mesh: Mesh, overlaps: bool = False) -> float:
    return operations(job.model, job.batch) / mesh.size / step_seconds(job, mesh, overlaps)


def operations(model: TransformerConfig, batch: int) -> float:
    """Of a step in which every block is computed again: Narayanan et al. 2021, equation 3."""
    tokens, width = model.context, model.width
    rest = 1 + tokens / (6 * width) + model.vocabulary / (16 * model.layers * width)
    return 96 * batch * tokens * model.layers * width**2 * rest


def step_seconds(job: Job, mesh: Mesh, overlaps: bool) -> float:
    """Blocks, their pipeline and the gradients, the head, and what else the program does.

    overlaps: the gradients travel while the blocks' last backward runs, which is half of what they compute
    for a micro-batch.
    """
    cluster = job.cluster
    head = _head_seconds(job.model, mesh.tensor, job.micro_batch, cluster.flops, cluster.memory_bandwidth)
    time, times = step_time(job, mesh), job.micro_batches(mesh)
    hidden = min(time.data, (time.computing + time.tensor) / times / 2) if overlaps else 0.0
    return time.seconds - hidden + times * head + memory_seconds(job, mesh) + message_seconds(job, mesh)


def memory_seconds(job: Job, mesh: Mesh) -> float:
    """What a device reads and writes beside its blocks' own operations, in a step.

    The gradients of a micro-batch are added to those before, in 16 bits (NVIDIA/Megatron-LM,
    megatron/model/distributed.py, param_hook): GRADIENT_BYTES of each parameter, if there are several. Each
    block has two dropouts on what its sums return (D. Narayanan et al., arXiv:2104.04473, section 4.2):
    DROPOUT_BYTES of each number, for forward runs twice and writes a mask, and backward reads that and a
    gradient, and writes another. And once in a step OPTIMIZER_BYTES of each parameter.
    """
    model, width = job.model, job.model.width
    matrices = 4 * width**2 + 2 * width * model.inner
    of_block = matrices / mesh.tensor + 9 * width + model.inner
    embedding = model.vocabulary * width / mesh.tensor
    micro_batches = job.micro_batches(mesh)
    turns = (micro_batches + (mesh.pipeline - 1) / job.chunks) * model.layers / mesh.pipeline
    numbers = 2 * job.micro_batch * model.context * width
    nbytes = turns * (GRADIENT_BYTES * of_block * (micro_batches > 1) + DROPOUT_BYTES * numbers)
    nbytes += OPTIMIZER_BYTES * (model.layers / mesh.pipeline * of_block + embedding)
    return nbytes / job.cluster.memory_bandwidth if job.cluster.memory_bandwidth else 0.0


GRADIENT_BYTES = 3 * 2
"""Read the sum and the new gradient, write the sum."""
DROPOUT_BYTES = 2 * 1 + (2 + 1 + 2)
"""Of each of the two dropouts: the mask twice, then gradient and mask read, and a gradient written."""
OPTIMIZER_BYTES = (2 + 4) + (4 + 4) + 4 + (4 + 4) + (16 + 12) + (4 + 2) + 2
"""The gradient made a number of 32 bits, unscaled, measured and clipped; Adam on weight, gradient, momentum
and variance; the weight made a number of 16 bits; the sum of gradients cleared (NVIDIA/Megatron-LM,
megatron/optimizer: optimizer.py and clip_grads.py).
"""


def message_seconds(job: Job, mesh: Mesh) -> float:
    """What messages between stages add to a step: a stage waits for each before it goes on.

    Megatron-LM waits right after it has sent and received, once in forward and once in backward of each piece
    of each micro-batch (megatron/p2p_communication.py, _communicate). Each tensor rank sends its share, and
    an all-gather within the node brings them together (arXiv:2104.04473, section 4.1).
    """
    if mesh.pipeline == 1:
        return 0.0
    cluster = job.cluster
    nbytes = 2 * job.micro_batch * job.model.context * job.model.width
    within = mesh.pipeline * mesh.tensor <= cluster.devices_per_node
    hop = (cluster.intra_node if within else cluster.inter_node).seconds(nbytes / mesh.tensor)
    together = seconds_of("all_gather", nbytes // mesh.tensor, mesh.tensor, cluster.intra_node)
    return 2 * job.micro_batches(mesh) * job.chunks * (hop + together)


@cache
def _head_seconds(
    model: TransformerConfig, tensor: int, micro_batch: int, flops: float | None, bandwidth: float | None
) -> float:
    """Forward and backward of a rank's part of the head, and of the loss."""
    device = Cluster(flops=flops, memory_bandwidth=bandwidth)
    made, run = (
        launch(_run_head, model, tensor, micro_batch, times, cluster=device).seconds for times in (0, 1)
    )
    return run - made


def _run_head(model: TransformerConfig, tensor: int, micro_batch: int, times: int) -> None:
    norm = nn.LayerNorm(model.width, device=DEVICE, dtype=NUMBERS)
    logits = nn.Linear(model.width, model.vocabulary // tensor, bias=False, device=DEVICE, dtype=NUMBERS)
    samples = (micro_batch * model.context, model.width)
    x = torch.empty(samples, device=DEVICE, dtype=NUMBERS, requires_grad=True)
    targets = torch.empty(samples[0], device=DEVICE, dtype=torch.int64)
    for _ in range(times):
        loss: Any = functional.cross_entropy(logits(norm(x)), targets)
        loss.backward()
        logits.zero_grad()
        norm.zero_grad()
