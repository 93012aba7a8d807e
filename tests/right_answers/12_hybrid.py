"""Right answers of unit 12, written differently."""

import itertools
import math

import torch
import torch.distributed as dist

from tests.answers import right


@right("mesh_coordinates")
def by_strides(rank, shape):
    """How many ranks a step along each axis is worth, from the first axis on."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if rank < 0 or rank >= math.prod(shape):
        raise ValueError(f"no rank {rank}")
    return tuple(rank // stride % size for stride, size in zip(strides, shape, strict=True))


@right("mesh_coordinates")
def recursively(rank, shape):
    """The last axis, then the mesh without it."""
    if not shape:
        if rank:
            raise ValueError("outside")
        return ()
    rest, last = divmod(rank, shape[-1])
    return (*recursively(rest, shape[:-1]), last)


@right("mesh_coordinates")
def by_torch(rank, shape):
    """PyTorch knows how tensors are numbered."""
    if not 0 <= rank < math.prod(shape):
        raise ValueError(rank)
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape)) if shape else ()


def _place(rank, shape):
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape))


@right("groups")
def by_what_they_share(shape, rank):
    """Ranks sorted by the coordinates that they have in common."""
    size = dist.get_world_size()
    if math.prod(shape) != size:
        raise ValueError("another number of ranks")
    found = []
    for axis in range(len(shape)):
        lines = {}
        for other in range(size):
            place = _place(other, shape)
            lines.setdefault(place[:axis] + place[axis + 1 :], []).append(other)
        for line in lines.values():
            group = dist.new_group(line)
            found += [group] if rank in line else []
    return found


@right("groups")
def by_enumeration(shape, rank):
    """With PyTorch's function for groups that have no rank in common."""
    if math.prod(shape) != dist.get_world_size():
        raise ValueError("another number of ranks")
    found = []
    for axis, size in enumerate(shape):
        stride = math.prod(shape[axis + 1 :])
        firsts = [r for r in range(math.prod(shape)) if r // stride % size == 0]
        lines = [[first + step * stride for step in range(size)] for first in firsts]
        found.append(dist.new_subgroups_by_enumeration(lines)[0])
    return found


@right("groups")
def by_products(shape, rank):
    """Every place of all other axes, in turn."""
    if math.prod(shape) != dist.get_world_size():
        raise ValueError(f"{shape} for {dist.get_world_size()} ranks")
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    found = []
    for axis in reversed(range(len(shape))):
        others = [range(1) if k == axis else range(size) for k, size in enumerate(shape)]
        for place in itertools.product(*others):
            first = sum(at * stride for at, stride in zip(place, strides, strict=True))
            line = [first + step * strides[axis] for step in range(shape[axis])]
            group = dist.new_group(line)
            if rank in line:
                found.insert(0, group)
    return found
