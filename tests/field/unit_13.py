"""Answers to exercises of unit 13."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from course_lib.planner import Einsum, Strategy
from tests.field.answers import field
from tests.field.meshes import mesh_of

UNIT = "13_automatic"


@field(UNIT, "reshard", "DTensor", lacks=["without a word", "what is sent", "x is left alone"])
def redistribute(x: Tensor, source: Any, target: Any, group: dist.ProcessGroup | None = None) -> Tensor:
    placed = DTensor.from_local(x, mesh_of(group), [source], run_check=False)
    return placed.redistribute(placements=[target]).to_local()


@field(
    UNIT,
    "op_strategies",
    "gen_einsum_strategies",
    lacks=["any einsum", "what divides", "axes with nothing to cut"],
)
def einsum_strategies(op: Einsum, mesh: tuple[int, ...]) -> list[Strategy]:
    from torch.distributed.tensor._ops._einsum_strategy import gen_einsum_strategies

    ranks = torch.arange(math.prod(mesh)).view(mesh)
    nobody = DeviceMesh("cpu", ranks, _init_backend=False, _rank=0)
    return [
        Strategy(tuple(each.placements for each in found.input_specs), found.output_specs.placements)
        for found in gen_einsum_strategies(op.spec, nobody).strategies
    ]
