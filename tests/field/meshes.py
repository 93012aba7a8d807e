"""Groups and meshes of ranks, as PyTorch's own functions take them."""

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


def group_or_all(group: dist.ProcessGroup | None) -> Any:
    """The group; None stands for all ranks."""
    return group or dist.group.WORLD


def mesh_of(group: dist.ProcessGroup | None) -> DeviceMesh:
    """A mesh with one axis, along which the ranks of the group stand."""
    return DeviceMesh.from_group(group_or_all(group), "cpu")
