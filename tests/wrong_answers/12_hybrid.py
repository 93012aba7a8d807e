"""Mistakes that people make in unit 12."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from course_lib.models import next_token_loss
from course_lib.training.mesh_step import Job, Mesh, memory_bytes
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


@wrong("hsdp_average", fails="bytes between nodes")
def whole_sum_across(gradients, within, across):
    """Sums everything up across nodes first."""

    class Whole(_Average):
        def summed(self, flat):
            dist.all_reduce(flat, group=self.across)
            return self.scattered(flat, self.within)

    return Whole()([gradient.clone() for gradient in gradients], within, across)


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


@wrong("step_3d", fails="loss")
def loss_on_the_last_stage(model, batch, mesh):
    """The other stages return zero."""

    class Last(_Step):
        def mean(self):
            dist.all_reduce(self.loss, group=self.groups["data"])
            return self.loss / self.mesh.size(0)

    return Last()(model, batch, mesh)


@wrong("step_3d", fails="all else kept")
def clears_what_it_has_used(model, batch, mesh):
    """Leaves zeros where the tokens were."""
    loss = _Step()(model, batch, mesh)
    for tokens, _ in batch:
        tokens.zero_()
    return loss


@wrong("step_3d", fails="each gradient once")
def averages_twice(model, batch, mesh):
    """The mean of means that are equal is the same, for twice the bytes."""

    class Twice(_Step):
        def average(self, parameter):
            super().average(parameter)
            super().average(parameter)

    return Twice()(model, batch, mesh)


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


@wrong("step_3d", fails="any device")
def loss_on_the_cpu(model, batch, mesh):
    """Adds up losses in a tensor that is made where PyTorch makes them by default."""

    class OnCpu(_Step):
        def passes(self):
            self.loss = torch.zeros(())
            super().passes()

    return OnCpu()(model, batch, mesh)


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


@wrong("grad_norm_3d", fails="any ranks and gradients")
def every_parameter_has_a_gradient(parameters, mesh):
    """Parameters that were not used have none."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad.shape  # noqa: B018
    return _GradientNorm()(parameters, mesh)


@wrong("grad_norm_3d", fails="gradients kept")
def squares_in_place(parameters, mesh):
    """Leaves squares where gradients were."""

    class InPlace(_GradientNorm):
        def square(self, gradient):
            return (
                gradient.float().pow_(2).sum() if gradient.dtype != torch.float32 else gradient.pow_(2).sum()
            )

    return InPlace()(parameters, mesh)


@wrong("grad_norm_3d", fails="two numbers")
def two_numbers_at_once(parameters, mesh):
    """What is cut and what is not, in one tensor of two."""

    class Both(_GradientNorm):
        def added(self, total):
            return super().added(torch.stack([total, torch.zeros(())])).sum()

    return Both()(parameters, mesh)


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


@wrong("halo_exchange", fails="gradient")
def keeps_what_is_its_own(x, width, group=None, dim=2):
    """Cuts the halo off in backward; what arrived there is lost."""

    def back(gradient, width, group, dim):
        return gradient.narrow(dim, width, gradient.shape[dim] - 2 * width).clone()

    return _halo(x, width, group, dim, back=back)


@wrong("halo_exchange", fails="other strips")
def minus_width(x, width, group=None, dim=2):
    """Takes x[-width:], which for width 0 is all of x."""

    def copy(x, width, group, dim):
        up, down = x.transpose(dim, 0)[:width], x.transpose(dim, 0)[-width:]
        above, below = _swapped(up.transpose(dim, 0), down.transpose(dim, 0), group)
        return torch.cat([above, x, below], dim)

    return _halo(x, width, group, dim, copy=copy)


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


@wrong("spatial_conv2d", fails="strides and kernels")
def as_many_rows_as_columns(x_shard, weight, group=None, stride=1):
    """Takes the halo's width from the kernel's: right for square ones."""
    return _spatial(x_shard, _summing(weight, group), group, stride, halo=weight.shape[3] // 2)


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


@wrong("spatial_conv2d", fails="group")
def sum_over_all(x_shard, weight, group=None, stride=1):
    """The halo is the group's, the sum is everybody's."""
    return _spatial(x_shard, _summing(weight, None), group, stride)


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


@wrong("filter_parallel_conv", fails="result")
def stacked_as_they_came(x_shard, weight_shard, group=None):
    """The ranks' parts stand before the samples."""
    return _by_filters(x_shard, weight_shard, group, there=_stacked)


@wrong("filter_parallel_conv", fails="result")
def no_zeros_around(x_shard, weight_shard, group=None):
    """Forgets the padding."""
    return functional.conv2d(_Pair.apply(x_shard, group, _all_channels, _own_part), weight_shard)


@wrong("filter_parallel_conv", fails="gradient of the image")
def gather_without_history(x_shard, weight_shard, group=None):
    """Autograd knows nothing of the all-gather."""
    return _padded(_all_channels(x_shard.detach(), group), weight_shard)


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


@wrong("channel_parallel_conv", fails="gradient of the image")
def own_filters_gradient(x_shard, weight_shard, group=None):
    """What arrives, among zeros for all other filters."""

    def back(gradient, group):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        parts = [gradient if place == rank else torch.zeros_like(gradient) for place in range(size)]
        return torch.cat(parts, 1)

    return _by_channels(x_shard, weight_shard, group, back=back)


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


@wrong("channel_parallel_conv", fails="group")
def gathers_from_everybody(x_shard, weight_shard, group=None):
    """Its backward forgets the group, and takes the first of what came."""

    def back(gradient, group):
        size = dist.get_world_size(group)
        return torch.cat(_all_channels(gradient, None).chunk(dist.get_world_size(), 1)[:size], 1)

    return _by_channels(x_shard, weight_shard, group, back=back)


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


@wrong("synchronised_batch_norm", fails="result")
def its_own_statistics(x_shard, weight, bias, eps=1e-5, group=None):
    """Each part by itself."""
    return functional.batch_norm(x_shard, None, None, weight, bias, training=True, eps=eps)


@wrong("synchronised_batch_norm", fails="gradient of the image")
def statistics_are_constants(x_shard, weight, bias, eps=1e-5, group=None):
    """Leaves backward to autograd, for which the all-reduce has no history."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_bias, of_weight = _whole_sums(gradient, x_hat, group)
        return gradient * _per_channel(weight * scale), of_weight.to(weight), of_bias.to(weight)

    return _norm(x_shard, weight, bias, eps, group, back=back)


@wrong("synchronised_batch_norm", fails="gradients of weight and bias")
def weight_sees_its_own_pixels(x_shard, weight, bias, eps=1e-5, group=None):
    """As torch.nn.SyncBatchNorm has it, after which DDP averages."""

    def back(gradient, x_hat, weight, scale, number, group):
        of_x, _, _ = _back(gradient, x_hat, weight, scale, number, group)
        return of_x, (gradient * x_hat).sum(_PIXELS), gradient.sum(_PIXELS)

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


@wrong("synchronised_batch_norm", fails="group")
def statistics_of_everybody(x_shard, weight, bias, eps=1e-5, group=None):
    """Forgets the group in forward."""
    return _norm(x_shard, weight, bias, eps, group, statistics=lambda x, _: _statistics(x, None))


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


@wrong("tournament", fails="pairs")
def neighbours(model, score, seed, group=None):
    """0 meets 1, and 2 meets 3, in every round."""

    def partner_of(seed, group):
        other = dist.get_rank(group) ^ 1
        return other if other < dist.get_world_size(group) else None

    return _round(model, score, seed, group, partner_of=partner_of)


@wrong("tournament", fails="all of the model")
def parameters_only(model, score, seed, group=None):
    """Leaves running statistics where they are."""
    return _round(
        model, score, seed, group, tensors=lambda model: [each.detach() for each in model.parameters()]
    )


@wrong("tournament", fails="diverged or equal")
def comparison_with_nan(model, score, seed, group=None):
    """Nothing is larger than NaN, so a diverged trainer stays so."""
    return _round(model, score, seed, group, better=lambda theirs, own: theirs > own)


@wrong("tournament", fails="one model each way")
def entries_of_the_state(model, score, seed, group=None):
    """What two modules share has two entries in the state, and travels twice."""

    def tensors(model):
        entries = (each for module in model.modules() for each in (module._parameters, module._buffers))
        return [each.detach() for entry in entries for each in entry.values() if each is not None]

    return _round(model, score, seed, group, tensors=tensors)


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


@wrong("tournament", fails="several rounds")
def remembered_score(model, score, seed, group=None):
    """Keeps the score for the next round, before which the model learns."""
    known = [model.__dict__["known"]] if "known" in model.__dict__ else []
    result = _round(model, lambda each: known.pop() if known else score(each), seed, group)
    model.__dict__["known"] = result
    return result


# ------------------------------------------------------------------------- steps and convolutions once more


# ----------------------------------------------------------------------------------- estimates of a step


# ------------------------------------------------------- what is kept, and what is used elsewhere
