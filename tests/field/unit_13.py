"""Answers to exercises of unit 13."""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.field.answers import field
from tests.field.meshes import mesh_of

UNIT = "13_automatic"


@field(UNIT, "reshard", "DTensor", lacks=["without a word", "what is sent", "x is left alone"])
def redistribute(x: Tensor, source: Any, target: Any, group: dist.ProcessGroup | None = None) -> Tensor:
    placed = DTensor.from_local(x, mesh_of(group), [source], run_check=False)
    return placed.redistribute(placements=[target]).to_local()
