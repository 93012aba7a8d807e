"""Mistakes that people make in unit 12."""

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.answers import wrong

# --- mesh_coordinates


def _digits(rank, sizes):
    """What is left over along each of these axes, one after the other."""
    place = []
    for size in sizes:
        rank, coordinate = divmod(rank, size)
        place.append(coordinate)
    return place


def _checked(rank, shape):
    if not 0 <= rank < math.prod(shape):
        raise ValueError(rank)


@wrong("mesh_coordinates", fails="coordinates")
def first_axis_fastest(rank, shape):
    """Neighbours along the first axis, as Fortran lays out arrays."""
    _checked(rank, shape)
    return tuple(_digits(rank, shape))


@wrong("mesh_coordinates", fails="coordinates")
def forgets_to_turn_round(rank, shape):
    """Counts from the last axis, and returns its coordinate first."""
    _checked(rank, shape)
    return tuple(_digits(rank, shape[::-1]))


@wrong("mesh_coordinates", fails="coordinates")
def list_of_coordinates(rank, shape):
    """A list, where a tuple was asked for."""
    _checked(rank, shape)
    return _digits(rank, shape[::-1])[::-1]


@wrong("mesh_coordinates", fails="any mesh")
def three_axes_only(rank, shape):
    """Data, pipeline and tensor, and nothing else."""
    data, pipeline, tensor = shape
    if not 0 <= rank < data * pipeline * tensor:
        raise ValueError(rank)
    return rank // (pipeline * tensor), rank // tensor % pipeline, rank % tensor


@wrong("mesh_coordinates", fails="any mesh")
def axes_of_one_left_out(rank, shape):
    """No coordinate where there is no choice."""
    _checked(rank, shape)
    return tuple(_digits(rank, [size for size in shape[::-1] if size > 1])[::-1])


@wrong("mesh_coordinates", fails="refuses")
def anything_goes(rank, shape):
    """Rank 12 of 12 is rank 0 again."""
    return tuple(_digits(rank, shape[::-1])[::-1])


@wrong("mesh_coordinates", fails="refuses")
def negative_ranks_from_the_end(rank, shape):
    """Like Python's indices: -1 is the last."""
    if rank >= math.prod(shape):
        raise ValueError(rank)
    return tuple(_digits(rank % math.prod(shape), shape[::-1])[::-1])


@wrong("mesh_coordinates", fails="refuses")
def index_error(rank, shape):
    """Another error than the one asked for."""
    if not 0 <= rank < math.prod(shape):
        raise IndexError(rank)
    return tuple(_digits(rank, shape[::-1])[::-1])


# --- groups


def _lines(shape, axis):
    """The ranks of each line along an axis."""
    return torch.arange(math.prod(shape)).view(shape).movedim(axis, -1).reshape(-1, shape[axis]).tolist()


def _is_whole(shape):
    if math.prod(shape) != dist.get_world_size():
        raise ValueError(shape)


def _own(lines, rank):
    """The group of this rank, where all ranks make those of all lines."""
    made = [(line, dist.new_group(line)) for line in lines]
    return next(group for line, group in made if rank in line)


@wrong("groups", fails="own groups")
def only_own_groups(shape, rank):
    """Each rank makes the groups that it is in."""
    _is_whole(shape)
    lines = (next(line for line in _lines(shape, axis) if rank in line) for axis in range(len(shape)))
    return [dist.new_group(line) for line in lines]


@wrong("groups", fails="own groups")
def own_groups_first(shape, rank):
    """All groups, but each rank begins with its own."""
    _is_whole(shape)
    found = []
    for axis in range(len(shape)):
        lines = sorted(_lines(shape, axis), key=lambda line: rank not in line)
        found.append(_own(lines, rank))
    return found


@wrong("groups", fails="own groups")
def planes_instead_of_lines(shape, rank):
    """The ranks that share this coordinate, instead of those that share all others."""
    _is_whole(shape)
    numbers = torch.arange(math.prod(shape)).view(shape)
    return [
        _own(numbers.movedim(axis, 0).reshape(size, -1).tolist(), rank) for axis, size in enumerate(shape)
    ]


@wrong("groups", fails="own groups")
def innermost_first(shape, rank):
    """The group of the last axis first."""
    _is_whole(shape)
    return [_own(_lines(shape, axis), rank) for axis in reversed(range(len(shape)))]


@wrong("groups", fails="own groups")
def blocks_for_every_axis(shape, rank):
    """Neighbouring ranks along every axis."""
    _is_whole(shape)
    numbers = torch.arange(math.prod(shape))
    return [_own(numbers.view(-1, size).tolist(), rank) for size in shape]


@wrong("groups", fails="they work")
def of_a_device_mesh(shape, rank):
    """Has PyTorch do it."""
    _is_whole(shape)
    return init_device_mesh("cpu", shape).get_all_groups()


@wrong("groups", fails="any mesh")
def three_strides(shape, rank):
    """Written for data, pipeline and tensor, and for no other number of axes."""
    data, pipeline, tensor = shape
    _is_whole(shape)
    ranks = range(data * pipeline * tensor)
    inner = pipeline * tensor
    return [
        _own([[r for r in ranks if r % inner == first] for first in range(inner)], rank),
        _own(
            [
                [r for r in ranks if r // inner == d and r % tensor == t]
                for d in range(data)
                for t in range(tensor)
            ],
            rank,
        ),
        _own([list(ranks[first : first + tensor]) for first in ranks[::tensor]], rank),
    ]


@wrong("groups", fails="any mesh")
def no_group_of_one(shape, rank):
    """Nothing for axes along which there is nobody else."""
    _is_whole(shape)
    return [_own(_lines(shape, axis), rank) for axis, size in enumerate(shape) if size > 1]


@wrong("groups", fails="each group once")
def once_for_every_rank(shape, rank):
    """Makes a line as often as it has ranks."""
    _is_whole(shape)
    found = []
    for axis in range(len(shape)):
        lines = _lines(shape, axis)
        of_ranks = [next(line for line in lines if r in line) for r in range(dist.get_world_size())]
        made = {tuple(line): dist.new_group(line) for line in of_ranks}
        found += [group for line, group in made.items() if rank in line]
    return found


@wrong("groups", fails="refuses")
def never_looks(shape, rank):
    """Makes groups of the ranks that are not there, or leaves some out."""
    return [_own(_lines(shape, axis), rank) for axis in range(len(shape))]


@wrong("groups", fails="refuses")
def looks_afterwards(shape, rank):
    """Makes the groups, then looks whether the shape was right."""
    found = [_own(_lines(shape, axis), rank) for axis in range(len(shape))]
    _is_whole(shape)
    return found
