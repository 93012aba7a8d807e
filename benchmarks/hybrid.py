"""A step of training on 512 simulated ranks, with three axes of parallelism and shapes only."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.measure import Row, at_most
from benchmarks.solutions import solution_of
from course_lib import launch
from course_lib.cluster import presets
from course_lib.models import TransformerConfig
from course_lib.training.mesh_transformer import AXES, MeshTransformer

CONFIG = TransformerConfig(layers=8, width=4096, heads=8, vocabulary=50_257, context=2048)
SHAPE, MICRO_BATCHES = (8, 8, 8), 2
Step = Callable[[MeshTransformer, list[tuple[Tensor, Tensor]], DeviceMesh], Tensor]


def rows() -> Iterator[Row]:
    """Every measurement of this module."""
    tokens = torch.empty(MICRO_BATCHES, CONFIG.context + 1, dtype=torch.int64, device="meta")
    run = launch(
        one_step, solution_of("12_hybrid")["step_3d"], tokens, cluster=presets.lumi_g(64), timeout=600
    )
    axes = " x ".join(map(str, SHAPE))
    words = f"step_3d on {axes} ranks, {MICRO_BATCHES} micro-batches, {len(run.events):,} events, shapes only"
    yield at_most(words, run.wall_seconds, 30)


def one_step(step: Step, tokens: Tensor) -> None:
    """The unit's own step on this rank's part of the model. tokens: [B, T + 1] of each replica."""
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=AXES)
    model = MeshTransformer(CONFIG, mesh, device="meta")
    step(model, [(own[:, :-1], own[:, 1:]) for own in tokens.split(1)], mesh)
