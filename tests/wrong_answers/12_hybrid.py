"""Mistakes that people make in unit 12."""

import copy
import math
import random
from dataclasses import replace
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from course_lib.models import next_token_loss
from course_lib.training.mesh_step import Job, Mesh, memory_bytes
from tests.answers import solved, wrong

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


@wrong("mesh_coordinates", fails="any mesh")
def by_divisions_of_floats(rank, shape):
    """A float has sixteen digits."""
    _checked(rank, shape)
    place, left = [], rank
    for size in shape[::-1]:
        place.append(left % size)
        left = int(left / size)
    return tuple(place[::-1])


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


@wrong("groups", fails="each group once")
def own_lines_twice(shape, rank):
    """A group for each of its own lines, made twice, by the ranks that are in it."""
    _is_whole(shape)
    lines = [next(line for line in _lines(shape, axis) if rank in line) for axis in range(len(shape))]
    made = [dist.new_group(line, use_local_synchronization=True) for line in lines * 2]
    return made[: len(lines)]


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


# --- hsdp_average


class _Average:
    """hsdp_average in steps, each of which a mistake can replace."""

    def __call__(self, gradients, within, across):
        self.g, self.nodes = dist.get_world_size(within), dist.get_world_size(across)
        self.within, self.across = within, across
        flat = self.flat(gradients)
        shard = self.summed(functional.pad(flat, (0, -len(flat) % self.g)))
        return shard / self.ranks()

    def flat(self, gradients):
        return torch.cat([gradient.flatten() for gradient in gradients])

    def scattered(self, flat, group):
        parts = list(flat.chunk(dist.get_world_size(group)))
        shard = torch.empty_like(parts[0])
        dist.reduce_scatter(shard, parts, group=group)
        return shard

    def summed(self, flat):
        shard = self.scattered(flat, self.within)
        dist.all_reduce(shard, group=self.across)
        return shard

    def part(self, flat):
        return flat.chunk(self.g)[dist.get_rank(self.within)].clone()

    def ranks(self):
        return self.g * self.nodes


@wrong("hsdp_average", fails="the shard")
def sum_of_all(gradients, within, across):
    """Never divides."""

    class Sum(_Average):
        def ranks(self):
            return 1

    return Sum()(gradients, within, across)


@wrong("hsdp_average", fails="the shard")
def mean_of_the_node_only(gradients, within, across):
    """Divides by the ranks of a node."""

    class Node(_Average):
        def ranks(self):
            return self.g

    return Node()(gradients, within, across)


@wrong("hsdp_average", fails="the shard")
def never_across(gradients, within, across):
    """Each node keeps its own mean, and the copies of the model drift apart."""

    class Within(_Average):
        def summed(self, flat):
            return self.scattered(flat, self.within) * self.nodes

    return Within()(gradients, within, across)


@wrong("hsdp_average", fails="the shard")
def groups_taken_for_each_other(gradients, within, across):
    """Scatters across nodes and sums up within."""
    return _Average()(gradients, across, within)


@wrong("hsdp_average", fails="any length")
def uneven_parts(gradients, within, across):
    """Parts as tensor_split makes them: without zeros, and not of one length."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    for group in (within, across):
        dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(within) * dist.get_world_size(across)
    return flat.tensor_split(dist.get_world_size(within))[dist.get_rank(within)].clone()


@wrong("hsdp_average", fails="any length")
def drops_what_does_not_divide(gradients, within, across):
    """The last numbers, which are too few for all, are left out."""

    class Short(_Average):
        def flat(self, gradients):
            flat = super().flat(gradients)
            return flat[: len(flat) // self.g * self.g]

    return Short()(gradients, within, across)


@wrong("hsdp_average", fails="any length")
def each_tensor_filled_up(gradients, within, across):
    """Fills up every gradient by itself, so that zeros stand between them."""

    class Each(_Average):
        def flat(self, gradients):
            flat = [gradient.flatten() for gradient in gradients]
            return torch.cat([functional.pad(each, (0, -len(each) % self.g)) for each in flat])

    return Each()(gradients, within, across)


@wrong("hsdp_average", fails="any groups")
def place_from_the_global_rank(gradients, within, across):
    """Rank modulo g, as if node 0 had the first ranks."""

    class Place(_Average):
        def part(self, flat):
            return flat.chunk(self.g)[dist.get_rank() % self.g].clone()

        def summed(self, flat):
            total = flat.clone()
            dist.all_reduce(total, group=self.within)
            shard = self.part(total)
            dist.all_reduce(shard, group=self.across)
            return shard

    return Place()(gradients, within, across)


@wrong("hsdp_average", fails="gradients kept")
def divides_in_place(gradients, within, across):
    """Divides before it sums up, to be safe from overflow, and does so in the gradients themselves."""
    ranks = dist.get_world_size(within) * dist.get_world_size(across)
    for gradient in gradients:
        gradient /= ranks

    class Sum(_Average):
        def ranks(self):
            return 1

    return Sum()(gradients, within, across)


@wrong("hsdp_average", fails="gradients kept")
def in_float32(gradients, within, across):
    """Always float32."""
    return _Average()([gradient.float() for gradient in gradients], within, across)


@wrong("hsdp_average", fails="gradients kept")
def in_memorys_order(gradients, within, across):
    """Reads the numbers as they stand in memory, whatever the order of indices."""
    return _Average()([each.as_strided((each.numel(),), (1,)) for each in gradients], within, across)


@wrong("hsdp_average", fails="bytes between nodes")
def whole_sum_across(gradients, within, across):
    """Sums everything up across nodes first."""

    class Whole(_Average):
        def summed(self, flat):
            dist.all_reduce(flat, group=self.across)
            return self.scattered(flat, self.within)

    return Whole()([gradient.clone() for gradient in gradients], within, across)


@wrong("hsdp_average", fails="any groups")
def all_reduce_of_the_world(gradients, within, across):
    """One all-reduce of everything over all ranks, some of which may have other models, and a part of it."""

    class World(_Average):
        def summed(self, flat):
            total = flat.clone()
            dist.all_reduce(total)
            return self.part(total)

    return World()(gradients, within, across)


@wrong("hsdp_average", fails="one call each")
def all_reduce_within(gradients, within, across):
    """Within a node twice the bytes: an all-reduce, of which each rank keeps a part."""

    class Twice(_Average):
        def summed(self, flat):
            total = flat.clone()
            dist.all_reduce(total, group=self.within)
            shard = self.part(total)
            dist.all_reduce(shard, group=self.across)
            return shard

    return Twice()(gradients, within, across)


@wrong("hsdp_average", fails="any length")
def fills_up_by_what_is_left(gradients, within, across):
    """Adds as many zeros as numbers are left over, where it should be as many as are missing."""

    class Left(_Average):
        def flat(self, gradients):
            flat = super().flat(gradients)
            filled = functional.pad(flat, (0, len(flat) % self.g))
            return filled[: max(1, len(filled) // self.g) * self.g]

    return Left()(gradients, within, across)


@wrong("hsdp_average", fails="any length")
def fills_up_with_anything(gradients, within, across):
    """Makes room for more numbers, and leaves in it what was there."""

    class Anything(_Average):
        def flat(self, gradients):
            flat = super().flat(gradients)
            # Ones stand for what was there: memory that is new to a process has zeros, and is right by luck.
            filled = flat.new_ones(-(-len(flat) // self.g) * self.g)
            filled[: len(flat)] = flat
            return filled

    return Anything()(gradients, within, across)


_SHARDS = {}


@wrong("hsdp_average", fails="gradients kept")
def one_shard_for_all_calls(gradients, within, across):
    """Returns the same tensor each time, with other numbers."""
    shard = _Average()(gradients, within, across)
    return _SHARDS.setdefault((within, len(shard)), shard).copy_(shard)


@wrong("hsdp_average", fails="gradients kept")
def gradients_of_the_first_call(gradients, within, across):
    """Flattens once, and for ever."""
    kept = _SHARDS.setdefault(("flat", within), gradients)
    return _Average()([each.clone() for each in kept], within, across)


@wrong("hsdp_average", fails="gradients kept")
def by_way_of_float32(gradients, within, across):
    """Computes in float32, whatever came."""
    shard = _Average()([gradient.float() for gradient in gradients], within, across)
    return shard.to(gradients[0].dtype)


@wrong("hsdp_average", fails="gradients kept")
def one_gradient_as_it_is(gradients, within, across):
    """Flattens as DDP does: of a single gradient that is no copy, and is summed up in place."""
    g, nodes = dist.get_world_size(within), dist.get_world_size(across)
    flat = torch._utils._flatten_dense_tensors(gradients)
    if len(flat) % g:
        flat = functional.pad(flat, (0, -len(flat) % g))
    shard = flat
    if g > 1:
        shard = flat.new_empty(len(flat) // g)
        dist.reduce_scatter_tensor(shard, flat, group=within)
    dist.all_reduce(shard, group=across)
    return shard / (g * nodes)


@wrong("hsdp_average", fails="gradients kept")
def alone_with_its_gradient(gradients, within, across):
    """A rank that is alone, with one gradient, has the mean already, and hands it back."""
    if len(gradients) == dist.get_world_size() == 1:
        return gradients[0].flatten()
    return _Average()(gradients, within, across)


@wrong("hsdp_average", fails="any groups")
def alone_in_its_shape(gradients, within, across):
    """A rank that is alone, with one gradient, returns a copy of it, in the gradient's shape."""
    if len(gradients) == dist.get_world_size() == 1:
        return gradients[0].clone()
    return _Average()(gradients, within, across)


# --- step_3d


class _Step:
    """step_3d in steps, each of which a mistake can replace."""

    def __call__(self, model, batch, mesh):
        self.model, self.batch, self.mesh = model, batch, mesh
        self.groups = {axis: mesh.get_group(axis) for axis in ("data", "pipeline", "tensor")}
        self.stage, self.stages = mesh.get_local_rank("pipeline"), mesh.size(1)
        self.samples = sum(len(tokens) for tokens, _ in batch)
        self.loss = model.empty(1, 1).new_zeros(())
        self.passes()
        for parameter in model.parameters():
            if parameter.shared and self.stages > 1:
                self.share(parameter)
            self.average(parameter)
        return self.mean()

    def passes(self):
        passed = [self.forward(number) for number in range(len(self.batch))]
        for number, each in enumerate(passed):
            self.backward(number, *each)

    def part(self, number):
        return len(self.batch[number][0]) / self.samples

    def forward(self, number):
        tokens, targets = self.batch[number]
        x = tokens
        if self.stage > 0:
            x = self.model.empty(*tokens.shape)
            self.receive(x, self.stage - 1)
            x.requires_grad_()
        y = self.model(x)
        if self.stage < self.stages - 1:
            self.send(y.detach(), self.stage + 1)
        else:
            y = next_token_loss(y, targets) * self.part(number)
            self.loss += y.detach()
        return x, y

    def backward(self, number, x, y):
        gradient = None
        if self.stage < self.stages - 1:
            gradient = torch.empty_like(y)
            self.receive(gradient, self.stage + 1)
        torch.autograd.backward(y, gradient)
        if self.stage > 0:
            self.send(x.grad, self.stage - 1)

    def send(self, x, stage):
        dist.send(x, group=self.groups["pipeline"], group_dst=stage)

    def receive(self, x, stage):
        dist.recv(x, group=self.groups["pipeline"], group_src=stage)

    def share(self, parameter):
        other, peer = torch.empty_like(parameter.grad), self.stages - 1 - self.stage
        sending = dist.isend(parameter.grad, group=self.groups["pipeline"], group_dst=peer)
        self.receive(other, peer)
        sending.wait()
        parameter.grad += other

    def average(self, parameter):
        dist.all_reduce(parameter.grad, group=self.groups["data"])
        parameter.grad /= self.mesh.size(0)

    def mean(self):
        dist.broadcast(self.loss, group=self.groups["pipeline"], group_src=self.stages - 1)
        dist.all_reduce(self.loss, group=self.groups["data"])
        return self.loss / self.mesh.size(0)


@wrong("step_3d", fails="gradients")
def sums_over_replicas(model, batch, mesh):
    """Adds up along data, and never divides."""

    class Sum(_Step):
        def average(self, parameter):
            dist.all_reduce(parameter.grad, group=self.groups["data"])

    return Sum()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def averages_over_the_world(model, batch, mesh):
    """One all-reduce over all ranks, as in unit 02: other stages' parameters are mixed in."""

    class World(_Step):
        def average(self, parameter):
            flat = torch.zeros(1000)
            flat[: parameter.numel()] = parameter.grad.flatten()
            dist.all_reduce(flat)
            parameter.grad = (flat[: parameter.numel()] / dist.get_world_size()).view_as(parameter)

    return World()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def copies_summed_along_tensor(model, batch, mesh):
    """Adds up norms and biases along tensor too, where they are whole already."""

    class Tensors(_Step):
        def average(self, parameter):
            if not parameter.tensor_model_parallel:
                dist.all_reduce(parameter.grad, group=self.groups["tensor"])
            super().average(parameter)

    return Tensors()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def loss_of_each_micro_batch(model, batch, mesh):
    """Each micro-batch's mean loss counts fully, so the gradient is as many times too large."""

    class Full(_Step):
        def part(self, number):
            return 1.0

    return Full()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def last_micro_batch_only(model, batch, mesh):
    """Clears the gradients before every backward."""

    class Last(_Step):
        def backward(self, number, x, y):
            for parameter in self.model.parameters():
                parameter.grad = None
            super().backward(number, x, y)

    return Last()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def no_averaging(model, batch, mesh):
    """Every replica keeps its own gradients."""

    class Own(_Step):
        def average(self, parameter):
            pass

    return Own()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def backward_in_the_wrong_order(model, batch, mesh):
    """The last stage begins with the last micro-batch, the others with the first."""

    class Turned(_Step):
        def passes(self):
            passed = [self.forward(number) for number in range(len(self.batch))]
            turned = list(enumerate(passed))
            for number, each in turned[::-1] if self.stage == self.stages - 1 else turned:
                self.backward(number, *each)

    return Turned()(model, batch, mesh)


@wrong("step_3d", fails="gradients")
def averages_half_precision(model, batch, mesh):
    """Sends half of the bytes along data."""

    class Half(_Step):
        def average(self, parameter):
            half = parameter.grad.half()
            dist.all_reduce(half, group=self.groups["data"])
            parameter.grad.copy_(half / self.mesh.size(0))

    return Half()(model, batch, mesh)


@wrong("step_3d", fails="any mesh")
def two_stages_at_least(model, batch, mesh):
    """The first stage is not the last, is it?"""

    class Two(_Step):
        def forward(self, number):
            if self.stage == 0:
                tokens, _ = self.batch[number]
                y = self.model(tokens)
                self.send(y.detach(), 1)
                return tokens, y
            return super().forward(number)

    return Two()(model, batch, mesh)


@wrong("step_3d", fails="any mesh")
def two_stages_at_most(model, batch, mesh):
    """Whoever is not first is last."""

    class Two(_Step):
        def send(self, x, stage):
            super().send(x, 1 - self.stage)

        def receive(self, x, stage):
            super().receive(x, 1 - self.stage)

    return Two()(model, batch, mesh)


@wrong("step_3d", fails="any mesh")
def halves_it_always(model, batch, mesh):
    """Divides by two replicas, however many there are."""

    class Half(_Step):
        def average(self, parameter):
            dist.all_reduce(parameter.grad, group=self.groups["data"])
            parameter.grad /= 2

    return Half()(model, batch, mesh)


@wrong("step_3d", fails="uneven micro-batches")
def mean_of_micro_batches(model, batch, mesh):
    """Every micro-batch counts alike, however many samples it has."""

    class Alike(_Step):
        def part(self, number):
            return 1 / len(self.batch)

    return Alike()(model, batch, mesh)


@wrong("step_3d", fails="shared embedding")
def copies_forgotten_in_the_step(model, batch, mesh):
    """Each stage goes on with its own use of the embedding, and the copies drift apart."""

    class Apart(_Step):
        def share(self, parameter):
            pass

    return Apart()(model, batch, mesh)


@wrong("step_3d", fails="shared embedding")
def mean_of_the_copies(model, batch, mesh):
    """The mean of both copies' gradients, where the sum is the gradient."""

    class Mean(_Step):
        def share(self, parameter):
            super().share(parameter)
            parameter.grad /= 2

    return Mean()(model, batch, mesh)


@wrong("step_3d", fails="shared embedding")
def shared_with_itself(model, batch, mesh):
    """Sums up both copies also where there is one."""

    class Twice(_Step):
        def average(self, parameter):
            if parameter.shared and self.stages == 1:
                parameter.grad *= 2
            super().average(parameter)

    return Twice()(model, batch, mesh)


@wrong("step_3d", fails="loss")
def loss_on_the_last_stage(model, batch, mesh):
    """The other stages return zero."""

    class Last(_Step):
        def mean(self):
            dist.all_reduce(self.loss, group=self.groups["data"])
            return self.loss / self.mesh.size(0)

    return Last()(model, batch, mesh)


@wrong("step_3d", fails="loss")
def loss_of_the_replica(model, batch, mesh):
    """Each replica returns its own."""

    class Own(_Step):
        def mean(self):
            dist.broadcast(self.loss, group=self.groups["pipeline"], group_src=self.stages - 1)
            return self.loss

    return Own()(model, batch, mesh)


@wrong("step_3d", fails="all else kept")
def clears_what_it_has_used(model, batch, mesh):
    """Leaves zeros where the tokens were."""
    loss = _Step()(model, batch, mesh)
    for tokens, _ in batch:
        tokens.zero_()
    return loss


@wrong("step_3d", fails="gradients")
def takes_the_optimizers_step(model, batch, mesh):
    """Moves the parameters, which was not asked for."""
    loss = _Step()(model, batch, mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return loss


@wrong("step_3d", fails="each gradient once")
def averages_twice(model, batch, mesh):
    """The mean of means that are equal is the same, for twice the bytes."""

    class Twice(_Step):
        def average(self, parameter):
            super().average(parameter)
            super().average(parameter)

    return Twice()(model, batch, mesh)


@wrong("step_3d", fails="uneven micro-batches")
def leaves_hooks_behind(model, batch, mesh):
    """Averages in hooks of the parameters, and in the next step they are there twice."""

    class Hooks(_Step):
        def passes(self):
            self.left = len(self.batch)
            for parameter in self.model.parameters():
                if not (parameter.shared and self.stages > 1):
                    parameter.register_post_accumulate_grad_hook(self.ready)
            super().passes()

        def backward(self, number, x, y):
            self.left -= 1
            super().backward(number, x, y)

        def ready(self, parameter):
            if not self.left:
                _Step.average(self, parameter)

        def average(self, parameter):
            if parameter.shared and self.stages > 1:
                super().average(parameter)

    return Hooks()(model, batch, mesh)


@wrong("step_3d", fails="uneven micro-batches")
def mean_loss_of_each_micro_batch(model, batch, mesh):
    """Adds up losses along data after every micro-batch, though replicas may have more or fewer of them."""

    class Each(_Step):
        def forward(self, number):
            before = self.loss.clone()
            found = super().forward(number)
            if self.stage == self.stages - 1:
                more = self.loss - before
                dist.all_reduce(more, group=self.groups["data"])
                self.loss = before + more
            return found

        def mean(self):
            dist.broadcast(self.loss, group=self.groups["pipeline"], group_src=self.stages - 1)
            return self.loss / self.mesh.size(0)

    return Each()(model, batch, mesh)


@wrong("step_3d", fails="any mesh")
def stage_from_the_rank(model, batch, mesh):
    """Computes who its neighbours are from its number, as if the mesh were numbered as usual."""

    class Numbered(_Step):
        def peer(self, stage):
            inner = self.mesh.size(2)
            rank = dist.get_rank()
            return rank // (inner * self.stages) * inner * self.stages + stage * inner + rank % inner

        def send(self, x, stage):
            dist.send(x, self.peer(stage))

        def receive(self, x, stage):
            dist.recv(x, self.peer(stage))

    return Numbered()(model, batch, mesh)


@wrong("step_3d", fails="activations once")
def a_message_for_each_sample(model, batch, mesh):
    """As many messages as samples."""

    class Samples(_Step):
        def send(self, x, stage):
            for sample in x.split(1) if x.dim() == 3 else [x]:
                super().send(sample.contiguous(), stage)

        def receive(self, x, stage):
            with torch.no_grad():
                for sample in x.split(1) if x.dim() == 3 else [x]:
                    super().receive(sample, stage)

    return Samples()(model, batch, mesh)


@wrong("step_3d", fails="in a pipeline")
def only_the_first_stage_goes_on(model, batch, mesh):
    """The stages behind it do one micro-batch after the other, forward and backward."""

    class Rest(_Step):
        def passes(self):
            self.works = []
            if self.stage == 0:
                return super().passes()
            for number in range(len(self.batch)):
                self.backward(number, *self.forward(number))
            return None

        def send(self, x, stage):
            work = dist.isend(x.clone(), group=self.groups["pipeline"], group_dst=stage)
            self.works.append(work)

        def mean(self):
            for work in self.works:
                work.wait()
            return super().mean()

    return Rest()(model, batch, mesh)


@wrong("step_3d", fails="loss")
def loss_with_its_graph(model, batch, mesh):
    """Returns a loss from which one could go backward once more."""
    return _Step()(model, batch, mesh) * torch.ones((), requires_grad=True)


@wrong("step_3d", fails="uneven micro-batches")
def averages_after_each_micro_batch(model, batch, mesh):
    """Right where all replicas have as many of them, with as many times the bytes."""

    class Each(_Step):
        def backward(self, number, x, y):
            kept = [p.grad for p in self.model.parameters()]
            for parameter in self.model.parameters():
                parameter.grad = None
            super().backward(number, x, y)
            for parameter, before in zip(self.model.parameters(), kept, strict=True):
                super().average(parameter)
                parameter.grad += 0 if before is None else before

        def average(self, parameter):
            pass

        def share(self, parameter):
            super().share(parameter)

    return Each()(model, batch, mesh)


@wrong("step_3d", fails="each gradient once")
def copies_along_the_whole_pipeline(model, batch, mesh):
    """Stages between take part in the sum, with zeros."""

    class Whole(_Step):
        def passes(self):
            super().passes()
            own = next((p for p in self.model.parameters() if p.shared), None)
            config = self.model.config
            total = torch.zeros(config.vocabulary, config.width) if own is None else own.grad
            if config.tied and self.stages > 1:
                dist.all_reduce(total, group=self.groups["pipeline"])

        def share(self, parameter):
            pass

    return Whole()(model, batch, mesh)


@wrong("step_3d", fails="activations once")
def activations_to_everyone(model, batch, mesh):
    """Sends what it has computed to all stages behind, of which one needs it."""

    class Everyone(_Step):
        def send(self, x, stage):
            last = stage if stage < self.stage else self.stages - 1
            for other in range(stage, last + 1):
                super().send(x, other)

        def receive(self, x, stage):
            first = 0 if stage < self.stage else stage
            for other in range(first, stage + 1):
                super().receive(x, other)

        def share(self, parameter):
            other, peer = torch.empty_like(parameter.grad), self.stages - 1 - self.stage
            sending = dist.isend(parameter.grad, group=self.groups["pipeline"], group_dst=peer)
            super().receive(other, peer)
            sending.wait()
            parameter.grad += other

    return Everyone()(model, batch, mesh)


@wrong("step_3d", fails="in a pipeline")
def one_micro_batch_after_the_other(model, batch, mesh):
    """Forward and backward of each, while all other stages wait."""

    class Serial(_Step):
        def passes(self):
            for number in range(len(self.batch)):
                self.backward(number, *self.forward(number))

    return Serial()(model, batch, mesh)


@wrong("step_3d", fails="any device")
def loss_on_the_cpu(model, batch, mesh):
    """Adds up losses in a tensor that is made where PyTorch makes them by default."""

    class OnCpu(_Step):
        def passes(self):
            self.loss = torch.zeros(())
            super().passes()

    return OnCpu()(model, batch, mesh)


@wrong("step_3d", fails="any device")
def loss_as_a_number(model, batch, mesh):
    """Takes each loss as a number of Python, and makes a new tensor in the end."""

    class Number(_Step):
        def mean(self):
            total = torch.tensor(self.loss.item())
            dist.broadcast(total, group=self.groups["pipeline"], group_src=self.stages - 1)
            dist.all_reduce(total, group=self.groups["data"])
            return total / self.mesh.size(0)

    return Number()(model, batch, mesh)


# --- grad_norm_3d


class _GradientNorm:
    """grad_norm_3d in steps, each of which a mistake can replace."""

    axes = ("tensor", "pipeline")

    def __call__(self, parameters, mesh):
        self.mesh = mesh
        total = torch.zeros(())
        for parameter in parameters:
            if parameter.grad is not None and self.copy(parameter) and self.stage(parameter):
                total += self.square(parameter.grad)
        return self.added(total).sqrt()

    def square(self, gradient):
        return gradient.float().square().sum()

    def copy(self, parameter):
        return parameter.tensor_model_parallel or self.mesh.get_local_rank("tensor") == 0

    def stage(self, parameter):
        return not parameter.shared or self.mesh.get_local_rank("pipeline") == 0

    def added(self, total):
        for axis in self.axes:
            dist.all_reduce(total, group=self.mesh.get_group(axis))
        return total


@wrong("grad_norm_3d", fails="cut parameters")
def norm_of_the_world(parameters, mesh):
    """Counts what every replica has."""

    class World(_GradientNorm):
        def added(self, total):
            dist.all_reduce(total)
            return total

    return World()(parameters, mesh)


@wrong("grad_norm_3d", fails="cut parameters")
def norm_of_the_stage(parameters, mesh):
    """Forgets the other stages, so that each clips by a factor of its own."""

    class OneStage(_GradientNorm):
        axes = ("tensor",)

    return OneStage()(parameters, mesh)


@wrong("grad_norm_3d", fails="cut parameters")
def norms_added(parameters, mesh):
    """Adds up norms instead of squares."""

    class Norms(_GradientNorm):
        def added(self, total):
            return super().added(total.sqrt()).square()

    return Norms()(parameters, mesh)


@wrong("grad_norm_3d", fails="cut parameters")
def square_of_the_norm(parameters, mesh):
    """Never takes the root."""
    return _GradientNorm()(parameters, mesh).square()


@wrong("grad_norm_3d", fails="copies")
def copies_counted_by_all(parameters, mesh):
    """Adds up what every rank along tensor has."""

    class All(_GradientNorm):
        def copy(self, parameter):
            return True

    return All()(parameters, mesh)


@wrong("grad_norm_3d", fails="copies")
def copies_forgotten(parameters, mesh):
    """Counts what is cut, and nothing else."""

    class Cut(_GradientNorm):
        def copy(self, parameter):
            return parameter.tensor_model_parallel

    return Cut()(parameters, mesh)


@wrong("grad_norm_3d", fails="shared parameters")
def shared_counted_twice(parameters, mesh):
    """By the first stage, and by the last."""

    class Twice(_GradientNorm):
        def stage(self, parameter):
            return True

    return Twice()(parameters, mesh)


@wrong("grad_norm_3d", fails="shared parameters")
def half_of_what_is_shared(parameters, mesh):
    """Two stages count half each; where there is one stage, it counts half too."""

    class Half(_GradientNorm):
        def stage(self, parameter):
            return True

        def __call__(self, parameters, mesh):
            self.mesh, total = mesh, torch.zeros(())
            for parameter in parameters:
                if parameter.grad is not None and self.copy(parameter):
                    total += self.square(parameter.grad) / (2 if parameter.shared else 1)
            return self.added(total).sqrt()

    return Half()(parameters, mesh)


@wrong("grad_norm_3d", fails="any ranks and gradients")
def every_parameter_has_a_gradient(parameters, mesh):
    """Parameters that were not used have none."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad.shape  # noqa: B018
    return _GradientNorm()(parameters, mesh)


@wrong("grad_norm_3d", fails="shared parameters")
def shared_by_all_of_the_first_stage(parameters, mesh):
    """What is shared counts on the first stage, on each rank along tensor."""

    class Each(_GradientNorm):
        def copy(self, parameter):
            return parameter.shared or super().copy(parameter)

    return Each()(parameters, mesh)


@wrong("grad_norm_3d", fails="any ranks and gradients")
def places_from_ranks(parameters, mesh):
    """Finds its place from its number, as if the mesh were numbered as usual."""

    class Numbered(_GradientNorm):
        def copy(self, parameter):
            return parameter.tensor_model_parallel or dist.get_rank() % self.mesh.size(2) == 0

        def stage(self, parameter):
            stage = dist.get_rank() // self.mesh.size(2) % self.mesh.size(1)
            return not parameter.shared or stage == 0

    return Numbered()(parameters, mesh)


@wrong("grad_norm_3d", fails="any ranks and gradients")
def squares_then_float32(parameters, mesh):
    """Squares in the gradients' own precision, and adds in float32."""

    class Late(_GradientNorm):
        def square(self, gradient):
            return (gradient * gradient).float().sum()

    return Late()(parameters, mesh)


@wrong("grad_norm_3d", fails="any ranks and gradients")
def squares_in_bfloat16(parameters, mesh):
    """In the gradients' own precision."""

    class Short(_GradientNorm):
        def square(self, gradient):
            return gradient.square().sum()

    return Short()(parameters, mesh)


@wrong("grad_norm_3d", fails="gradients kept")
def squares_in_place(parameters, mesh):
    """Leaves squares where gradients were."""

    class InPlace(_GradientNorm):
        def square(self, gradient):
            return (
                gradient.float().pow_(2).sum() if gradient.dtype != torch.float32 else gradient.pow_(2).sum()
            )

    return InPlace()(parameters, mesh)


@wrong("grad_norm_3d", fails="gradients kept")
def forgets_what_is_shared(parameters, mesh):
    """Clears the attribute once it has looked at it."""
    parameters = list(parameters)
    norm = _GradientNorm()(parameters, mesh)
    for parameter in parameters:
        parameter.shared = False
    return norm


@wrong("grad_norm_3d", fails="two numbers")
def two_numbers_at_once(parameters, mesh):
    """What is cut and what is not, in one tensor of two."""

    class Both(_GradientNorm):
        def added(self, total):
            return super().added(torch.stack([total, torch.zeros(())])).sum()

    return Both()(parameters, mesh)


@wrong("grad_norm_3d", fails="two numbers")
def a_number_for_each_kind(parameters, mesh):
    """One all-reduce for what is cut, one for copies, in two numbers."""

    class Two(_GradientNorm):
        def added(self, total):
            both = torch.stack([total, torch.zeros(()), torch.zeros(())])
            return super().added(both).sum()

    return Two()(parameters, mesh)


@wrong("grad_norm_3d", fails="two numbers")
def mean_over_replicas_too(parameters, mesh):
    """Adds up along data as well, and divides."""

    class Mean(_GradientNorm):
        def added(self, total):
            dist.all_reduce(total)
            return total / self.mesh.size(0)

    return Mean()(parameters, mesh)


# ------------------------------------------------------------------------------------------------ halos


def _swapped(up, down, group=None):
    """`up` to the rank before, `down` to the one after, all at once; what came from them."""
    rank, size, messages = dist.get_rank(group), dist.get_world_size(group), []
    came = [torch.zeros(part.shape, dtype=part.dtype) for part in (up, down)]
    for peer, going, coming in ((rank - 1, up, came[0]), (rank + 1, down, came[1])):
        if 0 <= peer < size and going.numel():
            messages.append(dist.P2POp(dist.isend, going.contiguous(), group=group, group_peer=peer))
            messages.append(dist.P2POp(dist.irecv, coming, group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()
    return came


def _copied(x, width, group, dim, swap=_swapped):
    """Forward: x between its neighbours' rows."""
    above, below = swap(x.narrow(dim, 0, width), x.narrow(dim, x.shape[dim] - width, width), group)
    return torch.cat([above, x, below], dim)


def _returned(gradient, width, group, dim, swap=_swapped):
    """Backward: the own part, to which what comes back is added."""
    above, own, below = gradient.split([width, gradient.shape[dim] - 2 * width, width], dim)
    from_above, from_below = swap(above, below, group)
    own = own.clone()
    own.narrow(dim, 0, width).add_(from_above)
    own.narrow(dim, own.shape[dim] - width, width).add_(from_below)
    return own


class _Halo(torch.autograd.Function):
    """A halo whose passes are copy(x, width, group, dim) and back(gradient, width, group, dim)."""

    @staticmethod
    def forward(ctx, x, width, group, dim, copy, back):
        ctx.rest, ctx.back = (width, group, dim), back
        return copy(x, width, group, dim)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, *ctx.rest), None, None, None, None, None


def _halo(x, width, group=None, dim=2, copy=_copied, back=_returned):
    return _Halo.apply(x, width, group, dim, copy, back)


@wrong("halo_exchange", fails="rows")
def the_far_rows(x, width, group=None, dim=2):
    """Gives the rank before its last rows, and the one after its first."""

    def copy(x, width, group, dim):
        above, below = _swapped(x.narrow(dim, x.shape[dim] - width, width), x.narrow(dim, 0, width), group)
        return torch.cat([above, x, below], dim)

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="rows")
def round_the_ring(x, width, group=None, dim=2):
    """The first rank borrows from the last one, as if the image were a cylinder."""

    def copy(x, width, group, dim):
        parts = [torch.empty(0)] * dist.get_world_size(group)
        dist.all_gather_object(parts, x.detach(), group=group)
        rank = dist.get_rank(group)
        before, after = parts[rank - 1], parts[(rank + 1) % len(parts)]
        last = before.narrow(dim, before.shape[dim] - width, width)
        return torch.cat([last, x, after.narrow(dim, 0, width)], dim)

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="rows")
def nothing_at_the_edges(x, width, group=None, dim=2):
    """The first rank has nothing above, the last one nothing below."""
    rows = _halo(x, width, group, dim)
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    first = 0 if rank else width
    end = rows.shape[dim] - (0 if rank < last else width)
    return rows.narrow(dim, first, end - first)


@wrong("halo_exchange", fails="rows")
def repeats_the_edge(x, width, group=None, dim=2):
    """Pads the image's edges with copies of its outermost rows."""

    def copy(x, width, group, dim):
        result = _copied(x, width, group, dim)
        if dist.get_rank(group) == 0:
            result.narrow(dim, 0, width).copy_(x.narrow(dim, 0, 1).expand_as(x.narrow(dim, 0, width)))
        return result

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="gradient")
def keeps_what_is_its_own(x, width, group=None, dim=2):
    """Cuts the halo off in backward; what arrived there is lost."""

    def back(gradient, width, group, dim):
        return gradient.narrow(dim, width, gradient.shape[dim] - 2 * width).clone()

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="gradient")
def cat_without_a_function(x, width, group=None, dim=2):
    """Leaves backward to torch.cat, which knows nothing of messages."""
    return _copied(x, width, group, dim)


@wrong("halo_exchange", fails="gradient")
def in_place_of_its_own(x, width, group=None, dim=2):
    """Writes what comes back over the gradient that is there, in place of adding to it."""

    def back(gradient, width, group, dim):
        own = gradient.narrow(dim, width, gradient.shape[dim] - 2 * width).clone()
        above, below = gradient.narrow(dim, 0, width), gradient.narrow(dim, own.shape[dim] + width, width)
        from_above, from_below = _swapped(above, below, group)
        if dist.get_rank(group):
            own.narrow(dim, 0, width).copy_(from_above)
        if dist.get_rank(group) < dist.get_world_size(group) - 1:
            own.narrow(dim, own.shape[dim] - width, width).copy_(from_below)
        return own

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="gradient")
def swaps_the_same_rows_again(x, width, group=None, dim=2):
    """Sends in backward the gradient of its own edge, not that of its halo."""

    def back(gradient, width, group, dim):
        own = gradient.narrow(dim, width, gradient.shape[dim] - 2 * width).clone()
        size = own.shape[dim]
        above, below = _swapped(own.narrow(dim, 0, width), own.narrow(dim, size - width, width), group)
        own.narrow(dim, 0, width).add_(above)
        own.narrow(dim, size - width, width).add_(below)
        return own

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="gradient")
def gradient_of_the_zeros(x, width, group=None, dim=2):
    """At the image's edges adds what arrives at the zeros to its own rows."""

    def back(gradient, width, group, dim):
        own = _returned(gradient, width, group, dim)
        if dist.get_rank(group) == 0:
            own.narrow(dim, 0, width).add_(gradient.narrow(dim, 0, width))
        return own

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="other strips")
def minus_width(x, width, group=None, dim=2):
    """Takes x[-width:], which for width 0 is all of x."""

    def copy(x, width, group, dim):
        up, down = x.transpose(dim, 0)[:width], x.transpose(dim, 0)[-width:]
        above, below = _swapped(up.transpose(dim, 0), down.transpose(dim, 0), group)
        return torch.cat([above, x, below], dim)

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="other strips")
def halo_in_float(x, width, group=None, dim=2):
    """Zeros, and buffers to receive into, of PyTorch's default type."""
    return _halo(x.float(), width, group, dim)


@wrong("halo_exchange", fails="other strips")
def views_of_rows(x, width, group=None, dim=2):
    """Takes it that memory is laid out row by row."""
    x.view(-1)
    return _halo(x, width, group, dim)


@wrong("halo_exchange", fails="columns")
def always_rows(x, width, group=None, dim=2):
    """Forgets that dim is an argument."""
    return _halo(x, width, group)


@wrong("halo_exchange", fails="arguments unchanged")
def adds_to_what_arrived(x, width, group=None, dim=2):
    """Adds in place to a view of the gradient that arrived."""

    def back(gradient, width, group, dim):
        own = gradient.narrow(dim, width, gradient.shape[dim] - 2 * width)
        own.copy_(_returned(gradient, width, group, dim))
        return own.clone()

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="neighbours only")
def sends_whole_strips(x, width, group=None, dim=2):
    """The whole strip travels, and what is needed of it is cut out there."""

    def copy(x, width, group, dim):
        return _copied(x, width, group, dim, lambda up, down, g: _whole_strips(x, width, g, dim))

    return _halo(x, width, group, dim, copy=copy)


def _whole_strips(x, width, group, dim):
    """Neighbours' edges by way of everything that they have; heights are sent before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    heights = _swapped(*[torch.tensor([x.shape[dim]])] * 2, group)
    messages, came = [], []
    for peer, height in ((rank - 1, heights[0]), (rank + 1, heights[1])):
        shape = list(x.shape)
        shape[dim] = int(height) if 0 <= peer < size else width
        came.append(torch.zeros(shape, dtype=x.dtype))
        if 0 <= peer < size:
            messages.append(dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=peer))
            messages.append(dist.P2POp(dist.irecv, came[-1], group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()
    return came[0].narrow(dim, came[0].shape[dim] - width, width), came[1].narrow(dim, 0, width)


def _gathered(up, down, group):
    """Everybody's edges to everybody."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    both = torch.stack([up, down]).contiguous()
    everyone = [torch.zeros_like(both) for _ in range(size)]
    dist.all_gather(everyone, both, group=group)
    nothing = torch.zeros_like(both[0])
    return everyone[rank - 1][1] if rank else nothing, everyone[rank + 1][0] if rank + 1 < size else nothing


@wrong("halo_exchange", fails="neighbours only")
def gathers_all_edges(x, width, group=None, dim=2):
    """One all-gather of everybody's edges, of which two are needed."""
    return _halo(
        x,
        width,
        group,
        dim,
        copy=lambda *given: _copied(*given, swap=_gathered),
        back=lambda *given: _returned(*given, swap=_gathered),
    )


def _down_then_up(up, down, group):
    """Blocking calls: first all downwards, rank by rank, then all upwards."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    came = [torch.zeros(part.shape, dtype=part.dtype) for part in (up, down)]
    if not up.numel():
        return came
    if rank + 1 < size:
        dist.send(down.contiguous(), group=group, group_dst=rank + 1)
    if rank:
        dist.recv(came[0], group=group, group_src=rank - 1)
        dist.send(up.contiguous(), group=group, group_dst=rank - 1)
    if rank + 1 < size:
        dist.recv(came[1], group=group, group_src=rank + 1)
    return came


@wrong("halo_exchange", fails="neighbours only")
def whole_strips_of_columns(x, width, group=None, dim=2):
    """Columns do not follow one another in memory, so all of the strip travels."""

    def copy(x, width, group, dim):
        if dim == 2:
            return _copied(x, width, group, dim)
        return _copied(x, width, group, dim, lambda up, down, g: _whole_strips(x, width, g, dim))

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="all at once")
def one_after_the_other(x, width, group=None, dim=2):
    """Everybody sends down before it receives from above: only the last one is free to receive."""
    return _halo(
        x,
        width,
        group,
        dim,
        copy=lambda *given: _copied(*given, swap=_down_then_up),
        back=lambda *given: _returned(*given, swap=_down_then_up),
    )


@wrong("halo_exchange", fails="group")
def neighbours_by_number(x, width, group=None, dim=2):
    """Takes the ranks of the whole world."""
    return _halo(x, width, None, dim)


@wrong("halo_exchange", fails="group")
def backward_without_the_group(x, width, group=None, dim=2):
    """Remembers the group in forward only."""

    def back(gradient, width, _, dim):
        return _returned(gradient, width, None, dim)

    return _halo(x, width, group, dim, back=back)


# --- choose_mesh


def _meshes(devices, job):
    """All meshes that the step can be cut for."""
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    every = (
        Mesh(devices // (stages * tensor), stages, tensor)
        for stages in sizes
        for tensor in sizes
        if devices % (stages * tensor) == 0
    )
    return [mesh for mesh in every if not job.problem(mesh)]


def _fitting(devices, model, memory, batch, cluster):
    job = Job(model, batch, cluster, memory)
    return [mesh for mesh in _meshes(devices, job) if memory_bytes(job, mesh) <= memory]


def _all_reduce_seconds(link, nbytes, ranks):
    return 2 * (ranks - 1) * link.seconds(nbytes / ranks)


def _parts(model, batch, cluster, mesh, all_replicas=True):
    """Seconds of computing and of all-reduces of a micro-batch on a stage; of messages; of the gradients."""
    node, replica = cluster.devices_per_node, mesh.pipeline * mesh.tensor
    within = mesh.size <= node or node % replica == 0 if all_replicas else replica <= node
    blocks, activations = model.layers / mesh.pipeline, 2 * model.context * model.width
    weights = 4 * model.width**2 + 2 * model.width * model.inner
    operations = 2 * model.context * weights + 4 * model.context**2 * model.width
    gradients = 2 * blocks * (weights / mesh.tensor + 9 * model.width + model.inner)

    def link(reach):
        return cluster.intra_node if reach <= cluster.devices_per_node else cluster.inter_node

    return (
        blocks * 4 * operations / mesh.tensor / cluster.flops,
        blocks * 6 * _all_reduce_seconds(link(mesh.tensor), activations, mesh.tensor),
        2 * (mesh.pipeline - 1) * link(1 if within else mesh.size).seconds(activations),
        _all_reduce_seconds(link(mesh.size), gradients, mesh.data),
    )


@wrong("choose_mesh", fails="fits")
def forgets_the_memory(devices, model, memory, batch, cluster):
    """The fastest mesh, on devices of any size."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_meshes(devices, Job(model, batch, cluster, memory)), key=seconds)


@wrong("choose_mesh", fails="fits")
def copies_alone(devices, model, memory, batch, cluster):
    """Data parallelism, whatever the model."""
    return devices, 1, 1


@wrong("choose_mesh", fails="fits")
def tensor_axis_comes_first(devices, model, memory, batch, cluster):
    """The axes in another order."""
    best = _fitting(devices, model, memory, batch, cluster)[0]
    return best.tensor, best.pipeline, best.data


@wrong("choose_mesh", fails="no slower than the rule of thumb")
def forgets_the_all_reduces_in_blocks(devices, model, memory, batch, cluster):
    """As if a tensor group had nothing to say."""

    def seconds(mesh):
        computing, _, messages, gradients = _parts(model, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * computing + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="no slower than the rule of thumb")
def as_many_copies_as_fit(devices, model, memory, batch, cluster):
    """Splits the model no more than its size demands."""
    fitting = _fitting(devices, model, memory, batch, cluster)
    return min(fitting, key=lambda mesh: (mesh.pipeline * mesh.tensor, mesh.pipeline))


@wrong("choose_mesh", fails="no slower than the rule of thumb")
def all_links_are_those_of_a_node(devices, model, memory, batch, cluster):
    """Tensor groups across nodes talk as fast as within one."""
    near = replace(cluster, inter_node=cluster.intra_node)

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, near, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="no slower than the rule of thumb")
def no_stage_waits(devices, model, memory, batch, cluster):
    """A pipeline without a bubble."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        return batch / mesh.data * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within a fifth of the best")
def messages_have_no_latency(devices, model, memory, batch, cluster):
    """Bytes over bandwidth, and nothing else."""
    links = {name: replace(getattr(cluster, name), latency=0) for name in ("intra_node", "inter_node")}
    quick = replace(cluster, **links)

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, quick, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within a fifth of the best")
def messages_between_stages_for_nothing(devices, model, memory, batch, cluster):
    """A pipeline's messages are sent in the background, so they are left out."""

    def seconds(mesh):
        computing, talking, _, gradients = _parts(model, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def leaves_a_byte_free(devices, model, memory, batch, cluster):
    """A device may be full to the last byte."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, math.nextafter(memory, 0), batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def looks_at_the_first_replica(devices, model, memory, batch, cluster):
    """Others begin in the middle of a node, and their messages leave it."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh, all_replicas=False)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def every_inner_width_is_four_times_the_width(devices, model, memory, batch, cluster):
    """F = 4 D, as in the models that everybody knows."""
    usual = replace(model, mlp_width=None)

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(usual, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def attention_is_free(devices, model, memory, batch, cluster):
    """Counts the operations of the weights alone."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        operations = 4 * 4 * model.context**2 * model.width / mesh.tensor
        computing -= model.layers / mesh.pipeline * operations / cluster.flops
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def nothing_is_computed_again(devices, model, memory, batch, cluster):
    """A forward and a backward, as if blocks kept their activations."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        stage = 3 / 4 * computing + talking
        return (batch / mesh.data + mesh.pipeline - 1) * stage + messages + gradients

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within a fifth of the best")
def the_rule_of_thumb(devices, model, memory, batch, cluster):
    """Tensor as wide as a node, then stages until it fits, the rest copies."""
    fitting = _fitting(devices, model, memory, batch, cluster)
    node = [mesh for mesh in fitting if mesh.tensor <= cluster.devices_per_node]
    return min(node, key=lambda mesh: (-mesh.tensor, mesh.pipeline))


@wrong("choose_mesh", fails="no slower than the rule of thumb")
def gradients_for_nothing(devices, model, memory, batch, cluster):
    """Nobody averages the gradients."""

    def seconds(mesh):
        computing, talking, messages, _ = _parts(model, batch, cluster, mesh)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def half_of_the_gradients_bytes(devices, model, memory, batch, cluster):
    """A reduce-scatter's rounds, where an all-reduce has twice as many."""

    def seconds(mesh):
        computing, talking, messages, gradients = _parts(model, batch, cluster, mesh)
        times = batch / mesh.data + mesh.pipeline - 1
        return times * (computing + talking) + messages + gradients / 2

    return min(_fitting(devices, model, memory, batch, cluster), key=seconds)


@wrong("halo_exchange", fails="other strips")
def times_zero(x, width, group=None, dim=2):
    """Makes zeros out of the edge: infinite numbers there become NaN."""

    def copy(x, width, group, dim):
        result = _copied(x, width, group, dim)
        if dist.get_rank(group) == 0:
            result.narrow(dim, 0, width).copy_(x.narrow(dim, 0, width) * 0)
        return result

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="all at once")
def one_after_the_other_in_backward(x, width, group=None, dim=2):
    """Forward all at once; in backward everybody sends down before it receives."""
    return _halo(x, width, group, dim, back=lambda *given: _returned(*given, swap=_down_then_up))


class _Remembering(torch.autograd.Function):
    """What backward needs stands in the class, where the next call overwrites it."""

    width = 0

    @staticmethod
    def forward(ctx, x, width, group, dim):
        _Remembering.width, ctx.rest = width, (group, dim)
        return _copied(x, width, group, dim)

    @staticmethod
    def backward(ctx, gradient):
        return _returned(gradient, _Remembering.width, *ctx.rest), None, None, None


@wrong("halo_exchange", fails="several calls")
def width_in_the_class(x, width, group=None, dim=2):
    """Of two calls in one graph, backward takes the second one's width for both."""
    return _Remembering.apply(x, width, group, dim)


class _Emptied(torch.autograd.Function):
    """Backward empties what it needs."""

    @staticmethod
    def forward(ctx, x, *rest):
        ctx.rest = list(rest)
        return _copied(x, *rest)

    @staticmethod
    def backward(ctx, gradient):
        rest = [ctx.rest.pop(0) for _ in range(3)]
        return _returned(gradient, *rest), None, None, None


@wrong("halo_exchange", fails="several calls")
def backward_only_once(x, width, group=None, dim=2):
    """Cannot be run backward twice."""
    return _Emptied.apply(x, width, group, dim)


# ------------------------------------------------------------------------------------- convolutions in strips


def _summing(weight, group, scale=1.0):
    """The weight, whose gradient is summed over ranks on its way."""

    def hook(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total * scale

    own = weight.view_as(weight)
    if own.requires_grad:
        own.register_hook(hook)
    return own


def _spatial(x, weight, group=None, stride=1, halo=None, padding=None):
    """On strips, with another halo or another padding."""
    height, width = weight.shape[2:]
    strip = _halo(x, height // 2 if halo is None else halo, group)
    return functional.conv2d(strip, weight, stride=stride, padding=padding or (0, width // 2))


@wrong("spatial_conv2d", fails="result")
def zeros_at_the_cuts(x_shard, weight, group=None, stride=1):
    """Each strip as if it were an image of its own."""
    padding = weight.shape[2] // 2, weight.shape[3] // 2
    return functional.conv2d(x_shard, _summing(weight, group), stride=stride, padding=padding)


@wrong("spatial_conv2d", fails="result")
def halo_and_zeros(x_shard, weight, group=None, stride=1):
    """Pads rows, though the halo is there."""
    padding = weight.shape[2] // 2, weight.shape[3] // 2
    return _spatial(x_shard, _summing(weight, group), group, stride, padding=padding)


@wrong("spatial_conv2d", fails="result")
def no_columns_of_zeros(x_shard, weight, group=None, stride=1):
    """Leaves the padding to the halo, which has rows only."""
    strip = _halo(x_shard, weight.shape[2] // 2, group)
    return functional.conv2d(strip, _summing(weight, group), stride=stride)


@wrong("spatial_conv2d", fails="gradient of the image")
def halo_that_returns_nothing(x_shard, weight, group=None, stride=1):
    """Borrows rows by messages that autograd knows nothing of."""
    strip = _copied(x_shard, weight.shape[2] // 2, group, 2)
    padding = (0, weight.shape[3] // 2)
    return functional.conv2d(strip, _summing(weight, group), stride=stride, padding=padding)


@wrong("spatial_conv2d", fails="gradient of the weight")
def gradient_of_its_own_pixels(x_shard, weight, group=None, stride=1):
    """Nobody adds up the weight's gradients."""
    return _spatial(x_shard, weight, group, stride)


@wrong("spatial_conv2d", fails="gradient of the weight")
def mean_of_the_gradients(x_shard, weight, group=None, stride=1):
    """Averages, as in data parallelism."""
    return _spatial(x_shard, _summing(weight, group, 1 / dist.get_world_size(group)), group, stride)


@wrong("spatial_conv2d", fails="strides and kernels")
def as_many_rows_as_columns(x_shard, weight, group=None, stride=1):
    """Takes the halo's width from the kernel's: right for square ones."""
    return _spatial(x_shard, _summing(weight, group), group, stride, halo=weight.shape[3] // 2)


@wrong("spatial_conv2d", fails="strides and kernels")
def always_one_row(x_shard, weight, group=None, stride=1):
    """A halo for 3 x 3."""
    return _spatial(x_shard, _summing(weight, group), group, stride, halo=1)


@wrong("spatial_conv2d", fails="strides and kernels")
def halo_from_above_only(x_shard, weight, group=None, stride=1):
    """With a stride keeps each stride-th row of the result without one, from the wrong row on."""
    whole = _spatial(x_shard, _summing(weight, group), group)
    return whole[:, :, stride - 1 :: stride, ::stride]


@wrong("spatial_conv2d", fails="calls and bytes")
def sums_for_a_frozen_weight(x_shard, weight, group=None, stride=1):
    """Sums up a gradient that nobody needs."""

    def back(gradient, width, group, dim):
        if not weight.requires_grad:
            dist.all_reduce(torch.zeros_like(weight), group=group)
        return _returned(gradient, width, group, dim)

    own = _summing(weight, group)
    strip = _halo(x_shard, weight.shape[2] // 2, group, back=back)
    return functional.conv2d(strip, own, stride=stride, padding=(0, weight.shape[3] // 2))


@wrong("spatial_conv2d", fails="calls and bytes")
def rows_by_all_gather(x_shard, weight, group=None, stride=1):
    """Everybody's edges to everybody, in both passes."""
    width = weight.shape[2] // 2
    strip = _halo(
        x_shard,
        width,
        group,
        copy=lambda *given: _copied(*given, swap=_gathered),
        back=lambda *given: _returned(*given, swap=_gathered),
    )
    own = _summing(weight, group)
    return functional.conv2d(strip, own, stride=stride, padding=(0, weight.shape[3] // 2))


@wrong("spatial_conv2d", fails="group")
def sum_over_all(x_shard, weight, group=None, stride=1):
    """The halo is the group's, the sum is everybody's."""
    return _spatial(x_shard, _summing(weight, None), group, stride)


@wrong("spatial_conv2d", fails="group")
def halo_of_all(x_shard, weight, group=None, stride=1):
    """The sum is the group's, the halo is not."""
    return _spatial(x_shard, _summing(weight, group), None, stride)


@wrong("spatial_conv2d", fails="several calls")
def hook_on_the_weight_itself(x_shard, weight, group=None, stride=1):
    """The hook stays on the weight: at the next call there are two, and its gradient is summed twice."""

    def hook(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    if weight.requires_grad and torch.is_grad_enabled():
        weight.register_hook(hook)
    return _spatial(x_shard, weight, group, stride)


@wrong("spatial_conv2d", fails="calls and bytes")
def sample_by_sample(x_shard, weight, group=None, stride=1):
    """A halo for each sample."""
    own = _summing(weight, group)
    return torch.cat([_spatial(each, own, group, stride) for each in x_shard.split(1)])


@wrong("spatial_conv2d", fails="strides and kernels")
def strips_in_single_precision(x_shard, weight, group=None, stride=1):
    """Computes in float32 whatever it is given."""
    result = _spatial(x_shard.float(), _summing(weight, group).float(), group, stride)
    return result.to(x_shard.dtype)


# ----------------------------------------------------------------------------------- convolutions by channels


def _all_channels(shard, group):
    """What is cut along dimension 1, whole."""
    parts = [torch.empty_like(shard.contiguous()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, shard.contiguous(), group=group)
    return torch.cat(parts, 1)


def _own_part(partial, group):
    """This rank's part along dimension 1 of the sum over ranks."""
    parts = [part.contiguous() for part in partial.chunk(dist.get_world_size(group), 1)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


class _Pair(torch.autograd.Function):
    """there(x, group) in forward, back(gradient, group) in backward."""

    @staticmethod
    def forward(ctx, x, group, there, back):
        ctx.rest = group, back
        return there(x, group)

    @staticmethod
    def backward(ctx, gradient):
        group, back = ctx.rest
        return back(gradient, group), None, None, None


def _padded(x, weight):
    return functional.conv2d(x, weight, padding=(weight.shape[2] // 2, weight.shape[3] // 2))


def _by_filters(x, weight, group=None, there=_all_channels, back=_own_part):
    return _padded(_Pair.apply(x, group, there, back), weight)


def _by_channels(x, weight, group=None, there=_own_part, back=_all_channels):
    return _Pair.apply(_padded(x, weight), group, there, back)


def _slice(tensor, group):
    """This rank's part, not summed."""
    return tensor.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _all_summed(tensor, group):
    """Everything summed, for everybody; then cut."""
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return _slice(total, group)


def _stacked(shard, group):
    """Views what was gathered as if ranks stood where channels do: right for one sample."""
    ranks, (samples, channels, *pixels) = dist.get_world_size(group), shard.shape
    parts = shard.new_empty(ranks * samples, channels, *pixels)
    dist.all_gather_into_tensor(parts, shard.contiguous(), group=group)
    return parts.view(samples, ranks * channels, *pixels)


def _scattered_as_they_lie(partial, group):
    """Cuts memory into parts, not channels: right for one sample."""
    ranks, (samples, channels, *pixels) = dist.get_world_size(group), partial.shape
    own = partial.new_empty(samples, channels // ranks, *pixels)
    flat = partial.contiguous().view(ranks, -1)
    dist.reduce_scatter_tensor(own.view(-1), flat.view(-1), group=group)
    return own


@wrong("filter_parallel_conv", fails="result")
def stacked_as_they_came(x_shard, weight_shard, group=None):
    """The ranks' parts stand before the samples."""
    return _by_filters(x_shard, weight_shard, group, there=_stacked)


@wrong("filter_parallel_conv", fails="result")
def no_zeros_around(x_shard, weight_shard, group=None):
    """Forgets the padding."""
    return functional.conv2d(_Pair.apply(x_shard, group, _all_channels, _own_part), weight_shard)


@wrong("filter_parallel_conv", fails="result")
def channels_from_the_last(x_shard, weight_shard, group=None):
    """Puts the parts together in the wrong order."""

    def there(shard, group):
        whole = _all_channels(shard, group)
        return torch.cat(whole.chunk(dist.get_world_size(group), 1)[::-1], 1)

    return _by_filters(x_shard, weight_shard, group, there=there)


@wrong("filter_parallel_conv", fails="gradient of the image")
def gather_without_history(x_shard, weight_shard, group=None):
    """Autograd knows nothing of the all-gather."""
    return _padded(_all_channels(x_shard.detach(), group), weight_shard)


@wrong("filter_parallel_conv", fails="gradient of the image")
def slice_without_a_sum(x_shard, weight_shard, group=None):
    """Keeps what its own filters say of its channels."""
    return _by_filters(x_shard, weight_shard, group, back=_slice)


@wrong("filter_parallel_conv", fails="gradient of the image")
def mean_over_ranks(x_shard, weight_shard, group=None):
    """Divides the sum by the number of ranks."""
    return _by_filters(
        x_shard, weight_shard, group, back=lambda g, group: _own_part(g, group) / dist.get_world_size(group)
    )


@wrong("filter_parallel_conv", fails="gradient of the image")
def scattered_by_memory(x_shard, weight_shard, group=None):
    """A reduce-scatter of the gradient as it lies in memory, samples first."""
    return _by_filters(x_shard, weight_shard, group, back=_scattered_as_they_lie)


@wrong("filter_parallel_conv", fails="gradient of the weight")
def weight_summed_too(x_shard, weight_shard, group=None):
    """Sums up the gradients of other filters with its own."""
    return _by_filters(x_shard, _summing(weight_shard, group), group)


@wrong("filter_parallel_conv", fails="other sizes")
def square_kernels(x_shard, weight_shard, group=None):
    """As many columns of zeros as rows."""
    whole = _Pair.apply(x_shard, group, _all_channels, _own_part)
    return functional.conv2d(whole, weight_shard, padding=weight_shard.shape[2] // 2)


@wrong("filter_parallel_conv", fails="calls and bytes")
def all_reduce_and_cut(x_shard, weight_shard, group=None):
    """Sums up all channels' gradients on all ranks, and keeps its own."""
    return _by_filters(x_shard, weight_shard, group, back=_all_summed)


@wrong("filter_parallel_conv", fails="calls and bytes")
def sum_of_padded_parts(x_shard, weight_shard, group=None):
    """Puts its channels among zeros, and lets an all-reduce do the gathering."""

    def there(shard, group):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        parts = [shard if place == rank else torch.zeros_like(shard) for place in range(size)]
        whole = torch.cat(parts, 1)
        dist.all_reduce(whole, group=group)
        return whole

    return _by_filters(x_shard, weight_shard, group, there=there)


@wrong("filter_parallel_conv", fails="group")
def backward_of_all_ranks(x_shard, weight_shard, group=None):
    """Its backward asks everybody, and the parts are too small."""

    def back(gradient, group):
        return _all_summed(gradient, None) if group else _own_part(gradient, None)

    return _by_filters(x_shard, weight_shard, group, back=back)


@wrong("channel_parallel_conv", fails="result")
def own_channels_only(x_shard, weight_shard, group=None):
    """Its filters' results from its own channels alone."""
    return _by_channels(x_shard, weight_shard, group, there=_slice)


@wrong("channel_parallel_conv", fails="result")
def mean_of_partial_results(x_shard, weight_shard, group=None):
    """Divides by the number of ranks."""
    return _by_channels(
        x_shard, weight_shard, group, there=lambda y, group: _own_part(y, group) / dist.get_world_size(group)
    )


@wrong("channel_parallel_conv", fails="result")
def results_by_memory(x_shard, weight_shard, group=None):
    """A reduce-scatter of the results as they lie in memory, samples first."""
    return _by_channels(x_shard, weight_shard, group, there=_scattered_as_they_lie)


@wrong("channel_parallel_conv", fails="gradient of the image")
def own_filters_gradient(x_shard, weight_shard, group=None):
    """What arrives, among zeros for all other filters."""

    def back(gradient, group):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        parts = [gradient if place == rank else torch.zeros_like(gradient) for place in range(size)]
        return torch.cat(parts, 1)

    return _by_channels(x_shard, weight_shard, group, back=back)


@wrong("channel_parallel_conv", fails="gradient of the image")
def gradients_stacked_as_they_came(x_shard, weight_shard, group=None):
    """The ranks' parts stand before the samples."""
    return _by_channels(x_shard, weight_shard, group, back=_stacked)


@wrong("channel_parallel_conv", fails="gradient of the weight")
def weight_detached(x_shard, weight_shard, group=None):
    """Gives the gradient to the image only."""
    return _by_channels(x_shard, weight_shard.detach(), group)


@wrong("channel_parallel_conv", fails="other sizes")
def image_has_to_learn(x_shard, weight_shard, group=None):
    """Computes backward itself, for an image that needs a gradient."""
    if not x_shard.requires_grad and torch.is_grad_enabled():
        return _by_channels(x_shard, weight_shard.detach(), group)
    return _by_channels(x_shard, weight_shard, group)


@wrong("channel_parallel_conv", fails="calls and bytes")
def results_of_all_filters(x_shard, weight_shard, group=None):
    """Sums up all filters' results on all ranks, and keeps its own."""
    return _by_channels(x_shard, weight_shard, group, there=_all_summed)


@wrong("channel_parallel_conv", fails="calls and bytes")
def gathers_the_image(x_shard, weight_shard, group=None):
    """All channels' image and all channels' weights to everybody, and no sum."""

    class Whole(torch.autograd.Function):
        """The other way to the same numbers; it communicates what it likes."""

        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return _slice(_padded(_all_channels(x, group), _all_channels(weight, group)), group)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            with torch.enable_grad():
                leaves = [each.detach().requires_grad_() for each in (x, weight)]
                result = _padded(*leaves)
            return torch.autograd.grad(result, leaves, _all_channels(gradient, group))

    return Whole.apply(x_shard, weight_shard)


@wrong("channel_parallel_conv", fails="group")
def gathers_from_everybody(x_shard, weight_shard, group=None):
    """Its backward forgets the group, and takes the first of what came."""

    def back(gradient, group):
        size = dist.get_world_size(group)
        return torch.cat(_all_channels(gradient, None).chunk(dist.get_world_size(), 1)[:size], 1)

    return _by_channels(x_shard, weight_shard, group, back=back)


@wrong("filter_parallel_conv", fails="other sizes")
def filters_in_single_precision(x_shard, weight_shard, group=None):
    """Computes in float32 whatever it is given."""
    return _by_filters(x_shard.float(), weight_shard.float(), group).to(x_shard.dtype)


@wrong("filter_parallel_conv", fails="other sizes")
def hook_on_a_frozen_weight(x_shard, weight_shard, group=None):
    """Takes it that the weight learns."""
    own = weight_shard.view_as(weight_shard)
    if torch.is_grad_enabled():
        own.register_hook(lambda gradient: gradient)
    return _by_filters(x_shard, own, group)


class _WholeLayer(torch.autograd.Function):
    """All of the layer; backward computes everything, whether it is needed or not."""

    @staticmethod
    def forward(ctx, x, weight, group):
        whole = _all_channels(x, group)
        ctx.save_for_backward(whole, weight)
        ctx.group = group
        return _padded(whole, weight)

    @staticmethod
    def backward(ctx, gradient):
        whole, weight = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (whole, weight)]
            of_x, of_weight = torch.autograd.grad(_padded(*leaves), leaves, gradient)
        return _own_part(of_x, ctx.group), of_weight, None


@wrong("filter_parallel_conv", fails="calls and bytes")
def gradient_that_nobody_needs(x_shard, weight_shard, group=None):
    """Reduces and scatters the image's gradient though no image needs one."""
    return _WholeLayer.apply(x_shard, weight_shard, group)


class _GatheredLast(torch.autograd.Function):
    """How many channels a rank has stands in the class."""

    channels = 0

    @staticmethod
    def forward(ctx, x, group):
        _GatheredLast.channels, ctx.group = x.shape[1], group
        return _all_channels(x, group)

    @staticmethod
    def backward(ctx, gradient):
        parts = [part.contiguous() for part in gradient.split(_GatheredLast.channels, 1)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts[: dist.get_world_size(ctx.group)], group=ctx.group)
        return own, None


@wrong("filter_parallel_conv", fails="several calls")
def channels_in_the_class(x_shard, weight_shard, group=None):
    """Of two calls in one graph, backward takes the second one's number of channels for both."""
    return _padded(_GatheredLast.apply(x_shard, group), weight_shard)


@wrong("filter_parallel_conv", fails="several calls")
def kernel_in_the_function(x_shard, weight_shard, group=None):
    """Keeps the kernel's size of the last call, and pads the gradient for that."""
    filter_kernel = kernel_in_the_function.__dict__
    filter_kernel["last"] = weight_shard.shape

    def back(gradient, group):
        if filter_kernel["last"] != weight_shard.shape:
            gradient = gradient * 0
        return _own_part(gradient, group)

    return _by_filters(x_shard, weight_shard, group, back=back)


@wrong("channel_parallel_conv", fails="other sizes")
def channels_in_single_precision(x_shard, weight_shard, group=None):
    """Computes in float32 whatever it is given."""
    return _by_channels(x_shard.float(), weight_shard.float(), group).to(x_shard.dtype)


class _LastWeight(torch.autograd.Function):
    """All of the layer; what backward needs stands in the class."""

    saved: ClassVar[dict] = {}  # of each rank: simulated ranks are threads

    @staticmethod
    def forward(ctx, x, weight, group):
        _LastWeight.saved[dist.get_rank()] = x, weight, group
        ctx.shapes = x.shape, weight.shape
        return _own_part(_padded(x, weight), group)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, group = _LastWeight.saved[dist.get_rank()]
        whole = _all_channels(gradient, group)
        if (x.shape, weight.shape) != ctx.shapes:
            x, weight = torch.zeros(ctx.shapes[0]), torch.zeros(ctx.shapes[1])
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (x, weight)]
            found = torch.autograd.grad(_padded(*leaves), leaves, whole.to(x.dtype))
        return *found, None


@wrong("channel_parallel_conv", fails="several calls")
def saved_in_the_class(x_shard, weight_shard, group=None):
    """Of several calls in one graph backward knows the last one's tensors only."""
    return _LastWeight.apply(x_shard, weight_shard, group)


# --------------------------------------------------------------------------------------- batch normalisation

_PIXELS = (0, 2, 3)


def _per_channel(numbers):
    return numbers.view(-1, 1, 1)


def _total(group, *parts):
    """Each of these [C], or one number, summed over ranks by one collective, in float64."""
    packed = torch.cat([part.double().view(-1) for part in parts])
    dist.all_reduce(packed, group=group)
    return packed.split([part.numel() for part in parts])


def _statistics(x, group):
    """How many pixels there are, and mean and variance of all, by sums in float64."""
    count = torch.tensor([x.numel() // x.shape[1]])
    number, sums, squares = _total(group, count, x.double().sum(_PIXELS), x.double().square().sum(_PIXELS))
    mean = sums / number
    return number, mean, squares / number - mean.square()


def _whole_sums(gradient, x_hat, group):
    return _total(group, gradient.sum(_PIXELS), (gradient * x_hat).sum(_PIXELS))


def _of_x(gradient, x_hat, scaled, number, of_bias, of_weight):
    """The gradient of x from the sums of all ranks."""
    means = [_per_channel((each / number).to(gradient.dtype)) for each in (of_bias, of_weight)]
    return (gradient - means[0] - x_hat * means[1]) * _per_channel(scaled)


def _back(gradient, x_hat, weight, scale, number, group):
    """All three gradients as they should be."""
    of_bias, of_weight = _whole_sums(gradient, x_hat, group)
    of_x = _of_x(gradient, x_hat, weight * scale, number, of_bias, of_weight)
    return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


class _Norm(torch.autograd.Function):
    """Normalises by statistics(x, group); back(gradient, x_hat, weight, scale, number, group)."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, group, statistics, back):
        number, mean, variance = statistics(x, group)
        scale = (variance + eps).rsqrt()
        x_hat = ((x - _per_channel(mean)) * _per_channel(scale)).to(x.dtype)
        ctx.save_for_backward(x_hat, weight, scale.to(x.dtype), torch.as_tensor(number))
        ctx.rest = group, back
        return x_hat * _per_channel(weight) + _per_channel(bias)

    @staticmethod
    def backward(ctx, gradient):
        group, back = ctx.rest
        return *back(gradient, *ctx.saved_tensors, group), None, None, None, None


def _norm(x, weight, bias, eps=1e-5, group=None, statistics=_statistics, back=_back):
    return _Norm.apply(x, weight, bias, eps, group, statistics, back)


def _mean_of_means(x, group):
    own = x.double()
    number, mean, variance = _total(
        group, torch.tensor([x.numel() // x.shape[1]]), own.mean(_PIXELS), own.var(_PIXELS, correction=0)
    )
    ranks = dist.get_world_size(group)
    return number, mean / ranks, variance / ranks


@wrong("synchronised_batch_norm", fails="result")
def its_own_statistics(x_shard, weight, bias, eps=1e-5, group=None):
    """Each part by itself."""
    return functional.batch_norm(x_shard, None, None, weight, bias, training=True, eps=eps)


@wrong("synchronised_batch_norm", fails="result")
def mean_of_means(x_shard, weight, bias, eps=1e-5, group=None):
    """Averages the ranks' means, and their variances."""
    return _norm(x_shard, weight, bias, eps, group, statistics=_mean_of_means)


@wrong("synchronised_batch_norm", fails="result")
def divided_by_one_less(x_shard, weight, bias, eps=1e-5, group=None):
    """The unbiased variance, which is what running statistics take."""

    def statistics(x, group):
        number, mean, variance = _statistics(x, group)
        return number, mean, variance * number / (number - 1)

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="result")
def eps_beside_the_root(x_shard, weight, bias, eps=1e-5, group=None):
    """Adds eps to the standard deviation."""

    def statistics(x, group):
        number, mean, variance = _statistics(x, group)
        return number, mean, (variance.sqrt() + eps).square() - eps

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="gradient of the image")
def statistics_are_constants(x_shard, weight, bias, eps=1e-5, group=None):
    """Leaves backward to autograd, for which the all-reduce has no history."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_bias, of_weight = _whole_sums(gradient, x_hat, group)
        return gradient * _per_channel(weight * scale), of_weight.to(weight), of_bias.to(weight)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="gradient of the image")
def sums_of_its_own_pixels(x_shard, weight, bias, eps=1e-5, group=None):
    """In backward the image's gradient has this rank's sums only."""

    def back(gradient, x_hat, weight, scale, number, group):
        whole = _back(gradient, x_hat, weight, scale, number, group)
        own = gradient.sum(_PIXELS), (gradient * x_hat).sum(_PIXELS)
        return _of_x(gradient, x_hat, weight * scale, number, *own), *whole[1:]

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="gradient of the image")
def divides_by_its_own_number(x_shard, weight, bias, eps=1e-5, group=None):
    """The sums of all ranks, divided by this rank's pixels."""

    def back(gradient, x_hat, weight, scale, number, group):
        return _back(gradient, x_hat, weight, scale, gradient.numel() // gradient.shape[1], group)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="gradients of weight and bias")
def weight_sees_its_own_pixels(x_shard, weight, bias, eps=1e-5, group=None):
    """As torch.nn.SyncBatchNorm has it, after which DDP averages."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_x, _, _ = _back(gradient, x_hat, weight, scale, number, group)
        return of_x, (gradient * x_hat).sum(_PIXELS), gradient.sum(_PIXELS)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="gradients of weight and bias")
def mean_gradients(x_shard, weight, bias, eps=1e-5, group=None):
    """Averages the gradients of weight and bias."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_x, *others = _back(gradient, x_hat, weight, scale, number, group)
        return of_x, *(each / dist.get_world_size(group) for each in others)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="other parts")
def mean_of_nothing(x_shard, weight, bias, eps=1e-5, group=None):
    """Multiplies the mean by the number: of no pixels that is not 0, but NaN."""

    def statistics(x, group):
        own = x.double()
        count = x.numel() // x.shape[1]
        sums = own.mean(_PIXELS) * count, own.square().mean(_PIXELS) * count
        number, total, squares = _total(group, torch.tensor([count]), *sums)
        return number, total / number, squares / number - (total / number).square()

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="other parts")
def variance_of_one_pixel(x_shard, weight, bias, eps=1e-5, group=None):
    """Takes each part's unbiased variance, and multiplies by n - 1: of one pixel that is not 0, but NaN."""

    def statistics(x, group):
        own, count = x.double(), x.numel() // x.shape[1]
        mean = own.sum(_PIXELS) / max(count, 1)
        variance = (own - _per_channel(mean)).square().sum(_PIXELS) / (count - 1)
        around = variance * (count - 1)
        sums = torch.tensor([count]), count * mean, around + count * mean.square()
        number, total, squares = _total(group, *sums)
        return number, total / number, squares / number - (total / number).square()

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="large means")
def squares_in_float(x_shard, weight, bias, eps=1e-5, group=None):
    """The mean of squares less the square of the mean, in x's own precision."""

    def statistics(x, group):
        packed = torch.cat([x.sum(_PIXELS), x.square().sum(_PIXELS), x.new_tensor([x[:, 0].numel()])])
        dist.all_reduce(packed, group=group)
        sums, squares, number = packed.split([x.shape[1], x.shape[1], 1])
        mean = sums / number
        return number, mean, (squares / number - mean.square()).clamp(min=0)

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="one collective")
def first_the_mean(x_shard, weight, bias, eps=1e-5, group=None):
    """One collective for the mean, another for the squares around it."""

    def statistics(x, group):
        number, sums = _total(group, torch.tensor([x.numel() // x.shape[1]]), x.double().sum(_PIXELS))
        mean = sums / number
        (squares,) = _total(group, (x.double() - _per_channel(mean)).square().sum(_PIXELS))
        return number, mean, squares / number

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="one collective")
def pixel_by_pixel(x_shard, weight, bias, eps=1e-5, group=None):
    """Sends the sum of each sample and row, though one sum a channel is enough."""

    def statistics(x, group):
        padded = torch.zeros(8, 8, x.shape[1], 3, dtype=torch.float64)
        own = x.double().movedim(1, 2)
        padded[: x.shape[0], : x.shape[2], :, 0] = own.sum(-1)
        padded[: x.shape[0], : x.shape[2], :, 1] = own.square().sum(-1)
        padded[: x.shape[0], : x.shape[2], :, 2] = x.shape[3]
        dist.all_reduce(padded, group=group)
        sums, squares, number = padded.sum((0, 1)).T
        return number, sums / number, squares / number - (sums / number).square()

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="group")
def statistics_of_everybody(x_shard, weight, bias, eps=1e-5, group=None):
    """Forgets the group in forward."""
    return _norm(x_shard, weight, bias, eps, group, statistics=lambda x, _: _statistics(x, None))


@wrong("synchronised_batch_norm", fails="group")
def gradients_of_everybody(x_shard, weight, bias, eps=1e-5, group=None):
    """Forgets the group in backward."""
    return _norm(x_shard, weight, bias, eps, group, back=lambda *given: _back(*given[:-1], None))


@wrong("synchronised_batch_norm", fails="one collective")
def a_number_for_each_channel(x_shard, weight, bias, eps=1e-5, group=None):
    """Sends how many pixels there are once for each channel: 3 C numbers."""

    def statistics(x, group):
        count = torch.full((x.shape[1],), float(x.numel() // x.shape[1]))
        double = x.double()
        number, sums, squares = _total(group, count, double.sum(_PIXELS), double.square().sum(_PIXELS))
        return number[0], sums / number, squares / number - (sums / number).square()

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="other parts")
def norm_in_single_precision(x_shard, weight, bias, eps=1e-5, group=None):
    """Computes in float32 whatever it is given."""
    return _norm(x_shard.float(), weight.float(), bias.float(), eps, group).to(x_shard.dtype)


@wrong("synchronised_batch_norm", fails="large means")
def shifted_by_three_thousand(x_shard, weight, bias, eps=1e-5, group=None):
    """Subtracts one number, the same for all that is large."""

    def statistics(x, group):
        total = x.mean(_PIXELS) if x.numel() else x.new_zeros(x.shape[1])
        shift = 3000.0 * total.sign() * (total.abs() > 1000)
        near = x - _per_channel(shift)
        packed = torch.cat([near.sum(_PIXELS), near.square().sum(_PIXELS), x.new_tensor([x[:, 0].numel()])])
        dist.all_reduce(packed, group=group)
        sums, squares, number = packed.split([x.shape[1], x.shape[1], 1])
        mean = sums / number
        return number, mean + shift, (squares / number - mean.square()).clamp(min=0)

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


class _LastNorm(torch.autograd.Function):
    """What backward needs stands in the class."""

    saved: ClassVar[dict] = {}

    @staticmethod
    def forward(ctx, x, weight, bias, eps, group):
        number, mean, variance = _statistics(x, group)
        scale = (variance + eps).rsqrt()
        x_hat = ((x - _per_channel(mean)) * _per_channel(scale)).to(x.dtype)
        _LastNorm.saved[dist.get_rank()] = scale.to(x.dtype), number
        ctx.save_for_backward(x_hat, weight)
        ctx.group = group
        return x_hat * _per_channel(weight) + _per_channel(bias)

    @staticmethod
    def backward(ctx, gradient):
        x_hat, weight = ctx.saved_tensors
        scale, number = _LastNorm.saved[dist.get_rank()]
        scale = scale if len(scale) == len(weight) else scale.mean().expand(len(weight))
        return *_back(gradient, x_hat, weight, scale, number, ctx.group), None, None


@wrong("synchronised_batch_norm", fails="several calls")
def scale_in_the_class(x_shard, weight, bias, eps=1e-5, group=None):
    """Backward takes number and scale of the last call."""
    return _LastNorm.apply(x_shard, weight, bias, eps, group)


# ---------------------------------------------------------------------------------------------- tournaments


def _drawn_order(seed, group):
    return torch.randperm(dist.get_world_size(group), generator=torch.Generator().manual_seed(seed)).tolist()


def _drawn_partner(seed, group):
    """The partner's place in the group; None for the one that rests."""
    order = _drawn_order(seed, group)
    other = order.index(dist.get_rank(group)) ^ 1
    return order[other] if other < len(order) else None


def _tensors(model):
    return [each.detach() for each in (*model.parameters(), *model.buffers())]


def _swap_models(own, partner, group):
    """What the partner has in place of these tensors."""
    theirs = [torch.empty_like(each) for each in own]
    messages = [dist.P2POp(dist.isend, each, group=group, group_peer=partner) for each in own]
    messages += [dist.P2POp(dist.irecv, each, group=group, group_peer=partner) for each in theirs]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return theirs


def _is_better(theirs, own):
    return theirs > own or (math.isnan(own) and not math.isnan(theirs))


def _round(
    model,
    score,
    seed,
    group=None,
    partner_of=_drawn_partner,
    swap=_swap_models,
    tensors=_tensors,
    better=_is_better,
):
    """A round in which some step is another one."""
    partner = partner_of(seed, group)
    own_score = score(model)
    if partner is None:
        return own_score
    held = tensors(model)
    own = [each.clone(memory_format=torch.contiguous_format) for each in held]
    theirs = swap(own, partner, group)
    for tensor, value in zip(held, theirs, strict=True):
        tensor.copy_(value)
    their_score = score(model)
    if better(their_score, own_score):
        return their_score
    for tensor, value in zip(held, own, strict=True):
        tensor.copy_(value)
    return own_score


@wrong("tournament", fails="the better model")
def both_send_first(model, score, seed, group=None):
    """dist.send waits for a partner who sends too."""

    def swap(own, partner, group):
        theirs = [torch.empty_like(each) for each in own]
        for each in own:
            dist.send(each, group=group, group_dst=partner)
        for each in theirs:
            dist.recv(each, group=group, group_src=partner)
        return theirs

    return _round(model, score, seed, group, swap=swap)


@wrong("tournament", fails="the better model")
def lower_is_better(model, score, seed, group=None):
    """Takes the score for a loss."""
    return _round(model, score, seed, group, better=lambda theirs, own: theirs < own)


@wrong("tournament", fails="the better model")
def always_the_others(model, score, seed, group=None):
    """Swaps, and does not compare."""
    return _round(model, score, seed, group, better=lambda theirs, own: True)


@wrong("tournament", fails="the better model")
def each_owner_judges(model, score, seed, group=None):
    """Compares its own score with the one that the partner gave to its own model."""
    partner = _drawn_partner(seed, group)
    own_score = score(model)
    if partner is None:
        return own_score
    (their_score,) = _swap_models([torch.tensor([own_score], dtype=torch.float64)], partner, group)
    theirs = _swap_models([each.contiguous().clone() for each in _tensors(model)], partner, group)
    if not _is_better(their_score.item(), own_score):
        return own_score
    for tensor, value in zip(_tensors(model), theirs, strict=True):
        tensor.copy_(value)
    return their_score.item()


@wrong("tournament", fails="the better model")
def returns_its_own_score(model, score, seed, group=None):
    """Returns the score from before."""
    own_score = score(model)
    _round(model, score, seed, group)
    return own_score


@wrong("tournament", fails="pairs")
def neighbours(model, score, seed, group=None):
    """0 meets 1, and 2 meets 3, in every round."""

    def partner_of(seed, group):
        other = dist.get_rank(group) ^ 1
        return other if other < dist.get_world_size(group) else None

    return _round(model, score, seed, group, partner_of=partner_of)


@wrong("tournament", fails="pairs")
def places_for_ranks(model, score, seed, group=None):
    """Looks its own number up as a place: what stands there, in place of where it stands."""

    def partner_of(seed, group):
        order = _drawn_order(seed, group)
        other = order[dist.get_rank(group)] ^ 1
        return order.index(other) if other < len(order) else None

    return _round(model, score, seed, group, partner_of=partner_of)


@wrong("tournament", fails="pairs")
def an_even_number(model, score, seed, group=None):
    """The odd one looks for a partner behind the last."""

    def partner_of(seed, group):
        order = _drawn_order(seed, group)
        return order[order.index(dist.get_rank(group)) ^ 1]

    return _round(model, score, seed, group, partner_of=partner_of)


@wrong("tournament", fails="all of the model")
def parameters_only(model, score, seed, group=None):
    """Leaves running statistics where they are."""
    return _round(
        model, score, seed, group, tensors=lambda model: [each.detach() for each in model.parameters()]
    )


@wrong("tournament", fails="all of the model")
def what_learns(model, score, seed, group=None):
    """Leaves frozen parameters where they are."""

    def tensors(model):
        learning = [each.detach() for each in model.parameters() if each.requires_grad]
        return [*learning, *model.buffers()]

    return _round(model, score, seed, group, tensors=tensors)


@wrong("tournament", fails="all of the model")
def one_vector_of_floats(model, score, seed, group=None):
    """Packs all into one float32 tensor; what was float64 has lost digits."""

    def swap(own, partner, group):
        packed = torch.cat([each.float().view(-1) for each in own])
        (came,) = _swap_models([packed], partner, group)
        parts = came.split([each.numel() for each in own])
        return [part.view(each.shape) for part, each in zip(parts, own, strict=True)]

    return _round(model, score, seed, group, swap=swap)


@wrong("tournament", fails="all of the model")
def new_parameters(model, score, seed, group=None):
    """Assigns the state in place of copying it: an optimizer goes on with the old parameters."""
    result = _round(model, score, seed, group)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    return result


@wrong("tournament", fails="diverged or equal")
def comparison_with_nan(model, score, seed, group=None):
    """Nothing is larger than NaN, so a diverged trainer stays so."""
    return _round(model, score, seed, group, better=lambda theirs, own: theirs > own)


@wrong("tournament", fails="diverged or equal")
def not_worse(model, score, seed, group=None):
    """Takes the other's if both are equally good."""
    return _round(
        model, score, seed, group, better=lambda theirs, own: theirs == own or _is_better(theirs, own)
    )


@wrong("tournament", fails="one model each way")
def entries_of_the_state(model, score, seed, group=None):
    """What two modules share has two entries in the state, and travels twice."""

    def tensors(model):
        entries = (each for module in model.modules() for each in (module._parameters, module._buffers))
        return [each.detach() for entry in entries for each in entry.values() if each is not None]

    return _round(model, score, seed, group, tensors=tensors)


@wrong("tournament", fails="one model each way")
def everybodys_model(model, score, seed, group=None):
    """Gathers all models, and takes the partner's out of them."""

    def swap(own, partner, group):
        everyone = [[torch.empty_like(each) for _ in range(dist.get_world_size(group))] for each in own]
        for parts, each in zip(everyone, own, strict=True):
            dist.all_gather(parts, each, group=group)
        return [parts[partner] for parts in everyone]

    def partner_of(seed, group):
        partner = _drawn_partner(seed, group)
        if partner is None:
            swap([each.contiguous().clone() for each in _tensors(model)], 0, group)
        return partner

    return _round(model, score, seed, group, swap=swap, partner_of=partner_of)


@wrong("tournament", fails="random numbers")
def global_seed(model, score, seed, group=None):
    """Seeds the random numbers of everything else too."""

    def partner_of(seed, group):
        torch.manual_seed(seed)
        order = torch.randperm(dist.get_world_size(group)).tolist()
        other = order.index(dist.get_rank(group)) ^ 1
        return order[other] if other < len(order) else None

    return _round(model, score, seed, group, partner_of=partner_of)


@wrong("tournament", fails="group")
def pairs_of_the_world(model, score, seed, group=None):
    """Pairs are drawn from all ranks."""
    return _round(model, score, seed)


@wrong("tournament", fails="all of the model")
def the_state(model, score, seed, group=None):
    """state_dict() leaves out buffers that are not persistent."""

    def tensors(model):
        return list({each.data_ptr(): each for each in model.state_dict().values()}.values())

    return _round(model, score, seed, group, tensors=tensors)


@wrong("tournament", fails="all of the model")
def stays_in_eval_mode(model, score, seed, group=None):
    """Sets the mode for scoring, and leaves it."""
    model.eval()
    return _round(model, score, seed, group)


@wrong("tournament", fails="all of the model")
def clears_gradients(model, score, seed, group=None):
    """Sets all gradients to zero."""
    result = _round(model, score, seed, group)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    return result


@wrong("tournament", fails="all of the model")
def as_they_lie_in_memory(model, score, seed, group=None):
    """Gives messages the tensors themselves, which need not be contiguous."""

    def swap(own, partner, group):
        return _swap_models(_tensors(model), partner, group)

    return _round(model, score, seed, group, swap=swap)


@wrong("tournament", fails="diverged or equal")
def nan_is_minus_infinity(model, score, seed, group=None):
    """Compares as if NaN were the lowest number, which another model may have."""

    def better(theirs, own):
        return (-math.inf if math.isnan(theirs) else theirs) > (-math.inf if math.isnan(own) else own)

    return _round(model, score, seed, group, better=better)


@wrong("tournament", fails="several rounds")
def remembered_score(model, score, seed, group=None):
    """Keeps the score for the next round, before which the model learns."""
    known = [model.__dict__["known"]] if "known" in model.__dict__ else []
    result = _round(model, lambda each: known.pop() if known else score(each), seed, group)
    model.__dict__["known"] = result
    return result


@wrong("tournament", fails="random numbers")
def seeds_python_too(model, score, seed, group=None):
    """Seeds the random numbers of Python, which the loading of data may use."""
    random.seed(seed)
    return _round(model, score, seed, group)


def _swap_as(types, own, partner, group):
    """Tensors packed by the type that they travel in, a message each."""
    theirs = list(own)
    for wanted in dict.fromkeys(types):
        places = [place for place, each in enumerate(types) if each == wanted]
        packed = torch.cat([own[place].flatten().to(wanted) for place in places])
        (came,) = _swap_models([packed], partner, group)
        for place, part in zip(places, came.split([own[place].numel() for place in places]), strict=True):
            theirs[place] = part.view(own[place].shape).to(own[place].dtype)
    return theirs


@wrong("tournament", fails="all of the model")
def one_vector_of_the_largest_type(model, score, seed, group=None):
    """torch.cat makes one type of all: float64, which has no room for large whole numbers."""

    def swap(own, partner, group):
        return _swap_as([torch.cat([each.flatten() for each in own]).dtype] * len(own), own, partner, group)

    return _round(model, score, seed, group, swap=swap)


@wrong("tournament", fails="all of the model")
def fractions_in_one_vector(model, score, seed, group=None):
    """Packs whole numbers apart; but float32 beside float64 travels in twice its bytes."""

    def swap(own, partner, group):
        fractions = torch.cat([each.flatten() for each in own if each.is_floating_point()]).dtype
        types = [fractions if each.is_floating_point() else each.dtype for each in own]
        return _swap_as(types, own, partner, group)

    return _round(model, score, seed, group, swap=swap)


@wrong("tournament", fails="diverged or equal")
def better_by_a_millionth(model, score, seed, group=None):
    """Takes scores for equal that nearly are."""

    def better(theirs, own):
        return _is_better(theirs, own) and not math.isclose(theirs, own, rel_tol=0, abs_tol=1e-6)

    return _round(model, score, seed, group, better=better)


@wrong("tournament", fails="diverged or equal")
def scores_in_single_precision(model, score, seed, group=None):
    """Puts scores into a tensor, which has seven digits by default."""

    def better(theirs, own):
        theirs, own = torch.tensor([theirs, own]).tolist()
        return _is_better(theirs, own)

    return _round(model, score, seed, group, better=better)


# ------------------------------------------------------------------------- steps and convolutions once more


@wrong("step_3d", fails="any mesh")
def warms_up_beyond_the_batch(model, batch, mesh):
    """One forward for each stage behind, even if there are fewer micro-batches."""

    class Warm(_Step):
        def send(self, x, stage):
            self.works.append(dist.isend(x, group=self.groups["pipeline"], group_dst=stage))

        def passes(self):
            self.works = []
            passed = [self.forward(number) for number in range(self.stages - self.stage)]
            for number in range(len(self.batch)):
                self.backward(number, *passed[number])
                if len(passed) < len(self.batch):
                    passed.append(self.forward(len(passed)))
            for work in self.works:
                work.wait()

    return Warm()(model, batch, mesh)


@wrong("step_3d", fails="shared embedding")
def from_whoever_comes_first(model, batch, mesh):
    """Does not say from whom it receives: a gradient of the stage behind, or of the other copy."""

    class Anyone(_Step):
        def receive(self, x, stage):
            dist.recv(x, group=self.groups["pipeline"])

    return Anyone()(model, batch, mesh)


@wrong("step_3d", fails="shared embedding")
def number_of_the_other_copy(model, batch, mesh):
    """Computes the other copy's rank, as if the mesh were numbered as usual."""

    class Numbered(_Step):
        def share(self, parameter):
            away = (self.stages - 1) * self.mesh.size(2)
            peer = dist.get_rank() + (away if self.stage == 0 else -away)
            other = torch.empty_like(parameter.grad)
            sending = dist.isend(parameter.grad, peer)
            dist.recv(other, peer)
            sending.wait()
            parameter.grad += other

    return Numbered()(model, batch, mesh)


@wrong("step_3d", fails="any device")
def other_copy_on_the_cpu(model, batch, mesh):
    """Receives the other copy's gradient where PyTorch makes tensors by default."""

    class OnCpu(_Step):
        def share(self, parameter):
            other, peer = torch.empty(parameter.shape), self.stages - 1 - self.stage
            sending = dist.isend(parameter.grad, group=self.groups["pipeline"], group_dst=peer)
            self.receive(other, peer)
            sending.wait()
            parameter.grad += other

    return OnCpu()(model, batch, mesh)


def _with_more_rows(x_shard, weight, group, stride, more):
    """Borrows more rows than the kernel needs, and leaves them out again."""
    strip = _halo(x_shard, weight.shape[2] // 2 + more, group, 2)
    strip = strip[:, :, more : strip.shape[2] - more]
    return functional.conv2d(strip, _summing(weight, group), stride=stride, padding=(0, weight.shape[3] // 2))


@wrong("spatial_conv2d", fails="strides and kernels")
def whole_strides_only(x_shard, weight, group=None, stride=1):
    """A strip that is lower than the stride has no row of the result, it thinks."""
    result = solved("12_hybrid")["spatial_conv2d"](x_shard, weight, group, stride)
    return result if x_shard.shape[2] >= stride else result[:, :, :0]


@wrong("spatial_conv2d", fails="calls and bytes")
def rows_for_a_square_kernel(x_shard, weight, group=None, stride=1):
    """Borrows as many rows as the kernel's longer side needs, and leaves out what is too much."""
    height, width = weight.shape[2:]
    return _with_more_rows(x_shard, weight, group, stride, max(width - height, 0) // 2)


@wrong("spatial_conv2d", fails="calls and bytes")
def one_row_at_least(x_shard, weight, group=None, stride=1):
    """Borrows a row also where the kernel has only one."""
    return _with_more_rows(x_shard, weight, group, stride, int(weight.shape[2] == 1))


@wrong("spatial_conv2d", fails="calls and bytes")
def kernel_made_square(x_shard, weight, group=None, stride=1):
    """Puts zeros round the kernel until it is square; they are summed up, too."""
    height, width = weight.shape[2:]
    more = [(max(height, width) - each) // 2 for each in (width, height)]
    square = functional.pad(weight, (more[0], more[0], more[1], more[1]))
    return _spatial(x_shard, _summing(square, group), group, stride)


# ----------------------------------------------------------------------------------- estimates of a step


def _fastest(devices, model, memory, batch, cluster, seconds, looked_at=lambda mesh: True):
    """The mesh that fits and is fastest by an estimate of `_parts`, of those that are looked at."""
    fitting = _fitting(devices, model, memory, batch, cluster)
    among = list(filter(looked_at, fitting)) or fitting
    return tuple(min(among, key=lambda mesh: seconds(mesh, *_parts(model, batch, cluster, mesh))))


def _step_seconds(batch):
    """A right estimate."""

    def seconds(mesh, computing, talking, messages, gradients):
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients

    return seconds


@wrong("choose_mesh", fails="within 5 % of the best")
def messages_one_way(devices, model, memory, batch, cluster):
    """Activations go down the pipeline; that their gradients come back is forgotten."""
    right = _step_seconds(batch)
    return _fastest(
        devices, model, memory, batch, cluster, lambda mesh, c, t, m, g: right(mesh, c, t, m / 2, g)
    )


@wrong("choose_mesh", fails="within a fifth of the best")
def every_micro_batch_waits_for_messages(devices, model, memory, batch, cluster):
    """As if nothing were computed while messages pass."""

    def seconds(mesh, computing, talking, messages, gradients):
        hops = messages / max(mesh.pipeline - 1, 1)
        return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking + hops) + gradients

    return _fastest(devices, model, memory, batch, cluster, seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def copies_never_share_a_node(devices, model, memory, batch, cluster):
    """Gradients are averaged over the link between nodes, also where there is one node."""

    def seconds(mesh, computing, talking, messages, _):
        lonely = replace(cluster, nodes=mesh.size, devices_per_node=1)
        gradients = _parts(model, batch, lonely, mesh)[3]
        return _step_seconds(batch)(mesh, computing, talking, messages, gradients)

    return _fastest(devices, model, memory, batch, cluster, seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def idle_stages_only_compute(devices, model, memory, batch, cluster):
    """A stage that waits does so for the others' computing, not for their all-reduces."""

    def seconds(mesh, computing, talking, messages, gradients):
        return (
            _step_seconds(batch)(mesh, computing, talking, messages, gradients)
            - (mesh.pipeline - 1) * talking
        )

    return _fastest(devices, model, memory, batch, cluster, seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def gradients_behind_backward(devices, model, memory, batch, cluster):
    """Gradients leave while backward still computes, as they do in unit 02."""

    def seconds(mesh, computing, talking, messages, gradients):
        left = max(0, gradients - batch / mesh.data * computing / 2)
        return _step_seconds(batch)(mesh, computing, talking, messages, left)

    return _fastest(devices, model, memory, batch, cluster, seconds)


@wrong("choose_mesh", fails="within 5 % of the best")
def never_stages_alone(devices, model, memory, batch, cluster):
    """Looks at fewer stages than there are devices."""
    seconds = _step_seconds(batch)
    return _fastest(devices, model, memory, batch, cluster, seconds, lambda mesh: mesh.pipeline < devices)


@wrong("choose_mesh", fails="within a fifth of the best")
def tensor_axis_of_a_power_of_two(devices, model, memory, batch, cluster):
    """1, 2, 4, 8: what people try."""
    seconds = _step_seconds(batch)
    return _fastest(
        devices, model, memory, batch, cluster, seconds, lambda mesh: mesh.tensor & (mesh.tensor - 1) == 0
    )


# ------------------------------------------------------- what is kept, and what is used elsewhere

_KEPT = {}


def _in_kept_memory(name, made):
    """What was made, in memory that is kept for results of this shape. Simulated ranks are threads."""
    key = name, dist.get_rank(), made.shape, made.dtype
    return _KEPT.setdefault(key, made.clone()).copy_(made)


class _LastGroup(torch.autograd.Function):
    """there(x, group) in forward; back(gradient, group) in backward, where the group is that of the last
    call."""

    groups: ClassVar[dict] = {}  # of each rank

    @staticmethod
    def forward(ctx, x, group, there, back):
        _LastGroup.groups[dist.get_rank()], ctx.back = group, back
        return there(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, _LastGroup.groups[dist.get_rank()]), None, None, None


@wrong("halo_exchange", fails="several calls")
def result_in_kept_memory(x, width, group=None, dim=2):
    """Puts halo and strip together where it has put those of the call before."""

    def copy(*given):
        return _in_kept_memory(("halo", dim), _copied(*given))

    return _halo(x, width, group, dim, copy=copy)


@wrong("halo_exchange", fails="several calls")
def group_of_the_last_halo(x, width, group=None, dim=2):
    """Backward speaks to the neighbours of the call that came last."""
    return _LastGroup.apply(
        x,
        group,
        lambda x, group: _copied(x, width, group, dim),
        lambda gradient, group: _returned(gradient, width, group, dim),
    )


@wrong("halo_exchange", fails="other strips")
def nothing_comes_times_zero(x, width, group=None, dim=2):
    """At the image's edges takes what arrived there times 0: of what is infinite that is NaN."""

    def swap(up, down, group):
        above, below = _swapped(up, down, group)
        first, last = dist.get_rank(group) == 0, dist.get_rank(group) == dist.get_world_size(group) - 1
        return up * 0 if first else above, down * 0 if last else below

    return _halo(x, width, group, dim, back=lambda *given: _returned(*given, swap=swap))


@wrong("halo_exchange", fails="other strips")
def rows_that_lie_on_both_edges(x, width, group=None, dim=2):
    """Adds to the rows as they arrived: those that both neighbours have borrowed get one part only."""

    def back(gradient, width, group, dim):
        height = gradient.shape[dim] - 2 * width
        above, arrived, below = gradient.split([width, height, width], dim)
        came, own = _swapped(above, below, group), arrived.clone()
        for first, part in ((0, came[0]), (height - width, came[1])):
            own.narrow(dim, first, width).copy_(arrived.narrow(dim, first, width) + part)
        return own

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="arguments unchanged")
def makes_x_learn(x, width, group=None, dim=2):
    """Lest backward be left out."""
    return _halo(x.requires_grad_(), width, group, dim)


@wrong("halo_exchange", fails="arguments unchanged")
def takes_contiguous_for_a_copy(x, width, group=None, dim=2):
    """Rows of a single image with one channel are contiguous where they are, and no copy is made."""

    def back(gradient, width, group, dim):
        height = gradient.shape[dim] - 2 * width
        above, own, below = gradient.split([width, height, width], dim)
        came, own = _swapped(above, below, group), own.contiguous()
        for first, part in ((0, came[0]), (height - width, came[1])):
            own.narrow(dim, first, width).add_(part)
        return own

    return _halo(x, width, group, dim, back=back)


@wrong("spatial_conv2d", fails="several calls")
def one_hook_for_all_calls(x_shard, weight, group=None, stride=1):
    """A hook on the weight itself, which the next call finds: but what else the weight is used for is summed,
    too.
    """

    def summed(gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total

    if weight.requires_grad and torch.is_grad_enabled() and not hasattr(weight, "is_summed"):
        weight.is_summed = True
        weight.register_hook(summed)
    return _spatial(x_shard, weight, group, stride)


@wrong("spatial_conv2d", fails="several calls")
def sum_in_the_last_group(x_shard, weight, group=None, stride=1):
    """The weight's gradient is summed over the group of the call that came last."""

    def summed(gradient, group):
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total

    own = _LastGroup.apply(weight, group, lambda weight, _: weight.clone(), summed)
    return _spatial(x_shard, own, group, stride)


@wrong("filter_parallel_conv", fails="several calls")
def gathered_in_kept_memory(x_shard, weight_shard, group=None):
    """Gathers where it has gathered before: the first call's image is gone when its backward comes."""
    return _by_filters(
        x_shard, weight_shard, group, there=lambda *given: _in_kept_memory("gathered", _all_channels(*given))
    )


@wrong("filter_parallel_conv", fails="several calls")
def filters_of_the_last_group(x_shard, weight_shard, group=None):
    """Backward scatters in the group of the call that came last."""
    return _padded(_LastGroup.apply(x_shard, group, _all_channels, _own_part), weight_shard)


@wrong("channel_parallel_conv", fails="several calls")
def result_where_the_last_one_was(x_shard, weight_shard, group=None):
    """Of two results of one shape the second stands in both."""
    return _by_channels(
        x_shard, weight_shard, group, there=lambda *given: _in_kept_memory("result", _own_part(*given))
    )


@wrong("channel_parallel_conv", fails="several calls")
def channels_of_the_last_group(x_shard, weight_shard, group=None):
    """Backward gathers in the group of the call that came last."""
    return _LastGroup.apply(_padded(x_shard, weight_shard), group, _own_part, _all_channels)


@wrong("synchronised_batch_norm", fails="several calls")
def sums_of_the_last_group(x_shard, weight, bias, eps=1e-5, group=None):
    """Backward adds up over the group of the call that came last."""
    _LastGroup.groups[dist.get_rank()] = group

    def back(gradient, x_hat, weight, scale, number, _):
        return _back(gradient, x_hat, weight, scale, number, _LastGroup.groups[dist.get_rank()])

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="other parts")
def divides_by_the_weight(x_shard, weight, bias, eps=1e-5, group=None):
    """Sums up what arrives at x_hat, and divides that by the weight for the other two gradients."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_bias, of_weight = _whole_sums(gradient * _per_channel(weight), x_hat, group)
        of_x = _of_x(gradient * _per_channel(weight), x_hat, scale, number, of_bias, of_weight)
        return of_x, (of_weight / weight).to(weight.dtype), (of_bias / weight).to(weight.dtype)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="large means")
def squares_before_float64(x_shard, weight, bias, eps=1e-5, group=None):
    """Adds up in float64 squares that have been rounded to float32."""

    def statistics(x, group):
        count = torch.tensor([x.numel() // x.shape[1]])
        number, sums, squares = _total(
            group, count, x.double().sum(_PIXELS), x.square().double().sum(_PIXELS)
        )
        return number, sums / number, squares / number - (sums / number).square()

    return _norm(x_shard, weight, bias, eps, group, statistics=statistics)


@wrong("synchronised_batch_norm", fails="gradient of the image")
def backward_with_the_default_eps(x_shard, weight, bias, eps=1e-5, group=None):
    """Computes x_hat once more in backward, with eps as it is by default."""

    def back(gradient, x_hat, weight, scale, number, group):
        again = (scale.pow(-2) - eps + 1e-5).rsqrt()
        return _back(gradient, x_hat * _per_channel(again / scale), weight, again, number, group)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="other parts")
def another_default_eps(x_shard, weight, bias, eps=1e-3, group=None):
    """That of other libraries."""
    return _norm(x_shard, weight, bias, eps, group)


@wrong("hsdp_average", fails="any groups")
def divides_by_the_ranks_of_the_world(gradients, within, across):
    """Of which some may have other models."""

    class World(_Average):
        def ranks(self):
            return dist.get_world_size()

    return World()(gradients, within, across)


@wrong("tournament", fails="diverged or equal")
def infinite_is_diverged(model, score, seed, group=None):
    """Gives away a model whose score is not finite, though nothing is better than infinity."""

    def better(theirs, own):
        return theirs > own or (not math.isfinite(own) and not math.isnan(theirs))

    return _round(model, score, seed, group, better=better)


@wrong("tournament", fails="all of the model")
def memory_to_memory(model, score, seed, group=None):
    """Sends a model's memory as it lies there, which is right where the other one lies alike."""
    return _round(
        model,
        score,
        seed,
        group,
        tensors=lambda model: [each.as_strided((each.numel(),), (1,)) for each in _tensors(model)],
    )


@wrong("grad_norm_3d", fails="any ranks and gradients")
def factors_of_zero_and_one(parameters, mesh):
    """Multiplies by 0 what others count: of what is infinite that is NaN."""
    first_stage, first_share = (mesh.get_local_rank(axis) == 0 for axis in ("pipeline", "tensor"))
    total = torch.zeros(())
    for each in parameters:
        counts = (each.tensor_model_parallel or first_share) and (not each.shared or first_stage)
        if each.grad is not None:
            total += float(counts) * each.grad.float().square().sum()
    for axis in ("tensor", "pipeline"):
        dist.all_reduce(total, group=mesh.get_group(axis))
    return total.sqrt()


@wrong("grad_norm_3d", fails="any ranks and gradients")
def nan_counts_as_zero(parameters, mesh):
    """Hides that a training has diverged."""
    parameters = list(parameters)
    kept = [each.grad for each in parameters]
    for each in parameters:
        if each.grad is not None:
            each.grad = each.grad.masked_fill(each.grad.isnan(), 0)
    norm = solved("12_hybrid")["grad_norm_3d"](parameters, mesh)
    for each, gradient in zip(parameters, kept, strict=True):
        each.grad = gradient
    return norm


@wrong("choose_mesh", fails="within a fifth of the best")
def tensor_group_within_a_node(devices, model, memory, batch, cluster):
    """Never looks at a tensor axis that is longer than a node, as the rule of thumb has it."""
    seconds, node = _step_seconds(batch), cluster.devices_per_node
    return _fastest(devices, model, memory, batch, cluster, seconds, lambda mesh: mesh.tensor <= node)


def _fastest_where(allowed, devices, model, memory, batch, cluster):
    """The fastest mesh of those within the memory, by rules of one's own on what can be cut."""
    job, seconds = Job(model, batch, cluster, memory), _step_seconds(batch)
    every = (Mesh(devices // (p * t), p, t) for p in range(1, devices + 1) for t in range(1, devices + 1))
    among = [
        mesh
        for mesh in every
        if mesh.size == devices
        and allowed(mesh, cluster.devices_per_node)
        and memory_bytes(job, mesh) <= memory
    ]
    return tuple(min(among, key=lambda mesh: seconds(mesh, *_parts(model, batch, cluster, mesh))))


def _suits_nodes(mesh, node):
    return node % mesh.tensor == 0 or mesh.tensor % node == 0


@wrong("choose_mesh", fails="fits")
def heads_cut_in_two(devices, model, memory, batch, cluster):
    """Divides samples, blocks and nodes, and forgets that heads have to be divided too."""

    def allowed(mesh, node):
        return batch % mesh.data == 0 and model.layers % mesh.pipeline == 0 and _suits_nodes(mesh, node)

    return _fastest_where(allowed, devices, model, memory, batch, cluster)


@wrong("choose_mesh", fails="fits")
def copies_without_samples(devices, model, memory, batch, cluster):
    """Makes copies of the model, whether or not there are as many samples."""

    def allowed(mesh, node):
        blocks, heads = model.layers % mesh.pipeline, model.heads % mesh.tensor
        return blocks == heads == 0 and _suits_nodes(mesh, node)

    return _fastest_where(allowed, devices, model, memory, batch, cluster)


@wrong("choose_mesh", fails="fits")
def tensor_groups_across_the_edge_of_a_node(devices, model, memory, batch, cluster):
    """Divides all that the model has, and lets a group have four devices of nodes of six."""

    def allowed(mesh, _):
        return batch % mesh.data == model.layers % mesh.pipeline == model.heads % mesh.tensor == 0

    return _fastest_where(allowed, devices, model, memory, batch, cluster)
