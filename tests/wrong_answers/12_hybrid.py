"""Mistakes that people make in unit 12."""

import math
from dataclasses import replace

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


@wrong("groups", fails="made once")
def of_a_device_mesh(shape, rank):
    """Has PyTorch do it."""
    _is_whole(shape)
    return init_device_mesh("cpu", shape).get_all_groups()


@wrong("groups", fails="any mesh")
def no_group_of_one(shape, rank):
    """Nothing for axes along which there is nobody else."""
    _is_whole(shape)
    return [_own(_lines(shape, axis), rank) for axis, size in enumerate(shape) if size > 1]


@wrong("groups", fails="made once")
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


@wrong("hsdp_average", fails="any length")
def drops_what_does_not_divide(gradients, within, across):
    """The last numbers, which are too few for all, are left out."""

    class Short(_Average):
        def flat(self, gradients):
            flat = super().flat(gradients)
            return flat[: len(flat) // self.g * self.g]

    return Short()(gradients, within, across)


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


@wrong("hsdp_average", fails="calls and bytes")
def whole_sum_across(gradients, within, across):
    """Sums everything up across nodes first."""

    class Whole(_Average):
        def summed(self, flat):
            dist.all_reduce(flat, group=self.across)
            return self.scattered(flat, self.within)

    return Whole()([gradient.clone() for gradient in gradients], within, across)


@wrong("hsdp_average", fails="calls and bytes")
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


@wrong("step_3d", fails="any mesh and batch")
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


@wrong("step_3d", fails="bytes and messages")
def averages_twice(model, batch, mesh):
    """The mean of means that are equal is the same, for twice the bytes."""

    class Twice(_Step):
        def average(self, parameter):
            super().average(parameter)
            super().average(parameter)

    return Twice()(model, batch, mesh)


@wrong("step_3d", fails="in a pipeline")
def one_micro_batch_after_the_other(model, batch, mesh):
    """The pipeline is empty before the next one comes."""

    class One(_Step):
        def passes(self):
            for number in range(len(self.batch)):
                self.backward(number, *self.forward(number))

    return One()(model, batch, mesh)


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


@wrong("grad_norm_3d", fails="copies")
def copies_counted_by_all(parameters, mesh):
    """Adds up what every rank along tensor has."""

    class All(_GradientNorm):
        def copy(self, parameter):
            return True

    return All()(parameters, mesh)


@wrong("grad_norm_3d", fails="shared parameters")
def shared_counted_twice(parameters, mesh):
    """By the first stage, and by the last."""

    class Twice(_GradientNorm):
        def stage(self, parameter):
            return True

    return Twice()(parameters, mesh)


@wrong("grad_norm_3d", fails="any ranks")
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


@wrong("halo_exchange", fails="neighbours only")
def everybody_gets_all_edges(x, width, group=None, dim=2):
    """All-gathers the edges: p times what is needed."""

    def swap(up, down, group):
        rank, own = dist.get_rank(group), torch.stack([down, up])
        every = [torch.zeros_like(own) for _ in range(dist.get_world_size(group) + 1)]
        dist.all_gather(every[:-1], own, group=group)
        return every[rank - 1][0], every[rank + 1][1]

    return _halo(x, width, group, dim, copy=lambda *given: _copied(*given, swap=swap))


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


def _seconds(model, batch, cluster, mesh, **options):
    computing, talking, messages, gradients = _parts(model, batch, cluster, mesh, **options)
    return (batch / mesh.data + mesh.pipeline - 1) * (computing + talking) + messages + gradients


@wrong("choose_mesh", fails="fits")
def forgets_the_memory(devices, model, memory, batch, cluster):
    """The fastest mesh, on devices of any size."""
    meshes = _meshes(devices, Job(model, batch, cluster, memory))
    return min(meshes, key=lambda mesh: _seconds(model, batch, cluster, mesh))


@wrong("choose_mesh", fails="fits")
def copies_alone(devices, model, memory, batch, cluster):
    """Data parallelism, whatever the model."""
    return devices, 1, 1


@wrong("choose_mesh", fails="within a fifth of the best")
def as_many_copies_as_fit(devices, model, memory, batch, cluster):
    """Splits the model no more than its size demands."""
    fitting = _fitting(devices, model, memory, batch, cluster)
    return min(fitting, key=lambda mesh: (mesh.pipeline * mesh.tensor, mesh.pipeline))


@wrong("choose_mesh", fails="within a fifth of the best")
def messages_have_no_latency(devices, model, memory, batch, cluster):
    """Bytes over bandwidth, and nothing else."""
    links = {name: replace(getattr(cluster, name), latency=0) for name in ("intra_node", "inter_node")}
    quick = replace(cluster, **links)
    fitting = _fitting(devices, model, memory, batch, cluster)
    return min(fitting, key=lambda mesh: _seconds(model, batch, quick, mesh))


@wrong("choose_mesh", fails="within 5 % of the best")
def looks_at_the_first_replica(devices, model, memory, batch, cluster):
    """Others begin in the middle of a node, and their messages leave it."""
    fitting = _fitting(devices, model, memory, batch, cluster)
    return min(fitting, key=lambda mesh: _seconds(model, batch, cluster, mesh, all_replicas=False))


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


@wrong("spatial_conv2d", fails="strides and kernels")
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


@wrong("channel_parallel_conv", fails="result")
def own_channels_only(x_shard, weight_shard, group=None):
    """Its filters' results from its own channels alone."""
    return _by_channels(x_shard, weight_shard, group, there=_slice)


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


@wrong("tournament", fails="random numbers")
def global_seed(model, score, seed, group=None):
    """Seeds the random numbers of everything else too."""

    def partner_of(seed, group):
        torch.manual_seed(seed)
        order = torch.randperm(dist.get_world_size(group)).tolist()
        other = order.index(dist.get_rank(group)) ^ 1
        return order[other] if other < len(order) else None

    return _round(model, score, seed, group, partner_of=partner_of)
