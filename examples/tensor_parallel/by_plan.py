"""A transformer of course_lib.models, cut over all ranks by PyTorch's DTensor, after a plan."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from course_lib.models import Transformer

PLAN = {
    "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}


def cut(model: Transformer, without: tuple[str, ...] = ()) -> None:
    """Cut every block after the plan. without: parts of the plan to leave out."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {name: style for name, style in PLAN.items() if name not in without}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
