"""Answers to exercises of unit 12."""

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    reduce_scatter_tensor_autograd,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from tests.field.answers import field
from tests.field.meshes import group_or_all, mesh_of

UNIT = "12_hybrid"


@field(UNIT, "mesh_coordinates", "torch.unravel_index", lacks=["refuses"])
def unravel_index(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape))


@field(UNIT, "groups", "new_subgroups_by_enumeration", lacks=["refuses"])
def subgroups(shape: tuple[int, ...], rank: int) -> list[dist.ProcessGroup]:
    numbers = torch.arange(math.prod(shape)).view(shape)
    lines = [numbers.movedim(axis, -1).reshape(-1, size).tolist() for axis, size in enumerate(numbers.shape)]
    return [dist.new_subgroups_by_enumeration(each)[0] for each in lines]


@field(UNIT, "hsdp_average", "DTensor")
def redistributed(gradients: list[Tensor], within: dist.ProcessGroup, across: dist.ProcessGroup) -> Tensor:
    flat = torch.cat([each.flatten() for each in gradients])
    flat = functional.pad(flat, (0, -len(flat) % dist.get_world_size(within)))
    in_node = DTensor.from_local(flat, mesh_of(within), [Partial("avg")], run_check=False)
    shard = in_node.redistribute(placements=[Shard(0)]).to_local()
    between = DTensor.from_local(shard, mesh_of(across), [Partial("avg")], run_check=False)
    return between.redistribute(placements=[Replicate()]).to_local()


@field(UNIT, "filter_parallel_conv", "all_gather_tensor_autograd")
def gathered_channels(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    x = all_gather_tensor_autograd(x_shard, 1, group_or_all(group))
    return functional.conv2d(x, weight_shard, padding="same")


@field(UNIT, "channel_parallel_conv", "reduce_scatter_tensor_autograd")
def scattered_filters(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    summand = functional.conv2d(x_shard, weight_shard, padding="same")
    return reduce_scatter_tensor_autograd(summand, "sum", 1, group_or_all(group))
