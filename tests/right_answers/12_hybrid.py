"""Right answers of unit 12, written differently."""

import copy
import functools
import itertools
import math
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    all_reduce,
    reduce_scatter_tensor,
    reduce_scatter_tensor_autograd,
    wait_tensor,
)
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from course_lib.models import next_token_loss
from course_lib.runtime.communication.costs import seconds_of
from course_lib.runtime.simulator.network_model import Timing
from course_lib.training.mesh_step import Job, Mesh, memory_bytes
from tests.answers import right


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


@right("groups")
def by_their_own_ranks(shape, rank):
    """Each rank makes only the groups that it is in, and of two with the same ranks one."""
    if math.prod(shape) != dist.get_world_size():
        raise ValueError(f"{shape} for {dist.get_world_size()} ranks")
    place, found = _place(rank, shape), {}
    numbers = torch.arange(math.prod(shape)).view(shape)
    lines = [
        tuple(numbers.movedim(axis, -1)[*place[:axis], *place[axis + 1 :]].tolist())
        for axis in range(len(shape))
    ]
    for line in lines:
        if line not in found:
            found[line] = dist.new_group(list(line), use_local_synchronization=True)
    return [found[line] for line in lines]


@right("hsdp_average")
def without_needless_calls(gradients, within, across):
    """Leaves out what a rank would do with itself, and waits for each call."""
    g, nodes = dist.get_world_size(within), dist.get_world_size(across)
    numbers = [number for gradient in gradients for number in gradient.flatten().unbind()]
    while len(numbers) % g:
        numbers.append(numbers[0].new_zeros(()))
    parts = list(torch.stack(numbers).view(g, -1))
    shard = parts[0].clone()
    if g > 1:
        dist.reduce_scatter(shard, parts, group=within, async_op=True).wait()
    if nodes > 1:
        dist.all_reduce(shard, group=across, async_op=True).wait()
    return shard.div_(g).div_(nodes)


@right("hsdp_average")
def by_functional_collectives(gradients, within, across):
    """Collectives that return a new tensor, whose first call imports torch's compiler."""
    g, nodes = dist.get_world_size(within), dist.get_world_size(across)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    flat = functional.pad(flat, (0, -len(flat) % g))
    shard = wait_tensor(reduce_scatter_tensor(flat, "sum", 0, within))
    return wait_tensor(all_reduce(shard, "sum", across)) / (g * nodes)


@right("step_3d")
def one_forward_one_backward(model, batch, mesh):
    """A schedule as unit 05 has it, in which backward begins as early as it can; gradients in one piece."""
    _, stage, _ = mesh.get_coordinate()
    replicas, stages, _ = mesh.shape
    pipeline = mesh.get_group("pipeline")
    samples = sum(len(tokens) for tokens, _ in batch)
    losses, kept, sending = [], {}, []

    def forward(number):
        tokens, targets = batch[number]
        x = tokens
        if stage:
            x = model.empty(*tokens.shape)
            dist.irecv(x, group=pipeline, group_src=stage - 1, tag=2 * number).wait()
            x.requires_grad_(True)
        y = model(x)
        if stage == stages - 1:
            y = next_token_loss(y, targets) * len(targets) / samples
            losses.append(y.detach())
        else:
            leaving = y.detach()
            work = dist.isend(leaving, group=pipeline, group_dst=stage + 1, tag=2 * number)
            sending.append((work, leaving))
        kept[number] = x, y

    def backward(number):
        x, y = kept.pop(number)
        arrives = None
        if stage < stages - 1:
            arrives = torch.zeros_like(y)
            dist.irecv(arrives, group=pipeline, group_src=stage + 1, tag=2 * number + 1).wait()
        torch.autograd.backward(y, arrives)
        if stage:
            work = dist.isend(x.grad, group=pipeline, group_dst=stage - 1, tag=2 * number + 1)
            sending.append((work, x.grad))

    warm = min(stages - stage, len(batch))
    for number in range(warm):
        forward(number)
    for number in range(len(batch)):
        backward(number)
        if number + warm < len(batch):
            forward(number + warm)
    for work, _ in sending:
        work.wait()
    shared = [p for p in model.parameters() if p.shared]
    if stages > 1 and shared:
        theirs = torch.empty_like(shared[0].grad)
        peer = dist.get_global_rank(pipeline, stages - 1 if stage == 0 else 0)
        calls = [
            dist.P2POp(dist.isend, shared[0].grad.clone(), peer),
            dist.P2POp(dist.irecv, theirs, peer),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        shared[0].grad.add_(theirs)
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, group=mesh.get_group("data"))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = (part / replicas).view_as(parameter)
    loss = sum(losses, model.empty(1, 1).new_zeros(())) / replicas
    dist.all_reduce(loss, group=mesh.get_group("data"))
    dist.all_reduce(loss, group=pipeline)
    return loss


@right("step_3d")
def by_hooks_and_a_group_of_two(model, batch, mesh):
    """Each gradient is divided and summed by a hook of its parameter, in the last backward."""
    data, pipeline, _ = mesh.get_all_groups()
    stage, stages = dist.get_rank(pipeline), dist.get_world_size(pipeline)
    lines = mesh.mesh.movedim(1, -1).reshape(-1, stages).tolist()
    pairs = [dist.new_group(sorted({line[0], line[-1]})) for line in lines]
    own = next(number for number, line in enumerate(lines) if dist.get_rank() in line)
    samples = sum(map(len, (tokens for tokens, _ in batch)))
    works, waiting, loss = [], [], model.empty(1, 1).new_zeros(())

    def ready(parameter):
        if len(waiting) == 1 and not parameter.shared:
            parameter.grad.div_(mesh.size(0))
            works.append(dist.all_reduce(parameter.grad, group=data, async_op=True))

    hooks = [each.register_post_accumulate_grad_hook(ready) for each in model.parameters()]
    for tokens, targets in batch:
        x = tokens if stage == 0 else model.empty(*tokens.shape)
        if stage > 0:
            dist.recv(x, group=pipeline, group_src=stage - 1)
            x.requires_grad_()
        y = model(x)
        if stage + 1 < stages:
            dist.send(y.detach(), group=pipeline, group_dst=stage + 1)
        else:
            y = len(tokens) * next_token_loss(y, targets) / samples
            loss = loss + y.detach()
        waiting.append((x, y))
    while waiting:
        x, y = waiting[0]
        if stage + 1 < stages:
            gradient = y.new_empty(y.shape)
            dist.recv(gradient, group=pipeline, group_src=stage + 1)
            torch.autograd.backward(y, gradient)
        else:
            torch.autograd.backward(y)
        if stage > 0:
            dist.send(x.grad, group=pipeline, group_dst=stage - 1)
        waiting.pop(0)
    for work in works:
        work.wait()
    for hook in hooks:
        hook.remove()
    for parameter in filter(lambda each: each.shared, model.parameters()):
        if stages > 1:
            dist.all_reduce(parameter.grad, group=pairs[own])
        dist.all_reduce(parameter.grad, group=data)
        parameter.grad.div_(mesh.size(0))
    dist.all_reduce(loss, group=pipeline)
    dist.all_reduce(loss, group=data)
    return loss / mesh.size(0)


@right("grad_norm_3d")
def one_sum_where_one_is_enough(parameters, mesh):
    """Norms of norms, in double precision; and no call along an axis with one rank."""
    _, stage, share = mesh.get_coordinate()
    counted = [
        parameter.grad
        for parameter in parameters
        if parameter.grad is not None
        and (parameter.tensor_model_parallel or share == 0)
        and (stage == 0 or not parameter.shared)
    ]
    squares = torch.tensor(
        [torch.linalg.vector_norm(each, dtype=torch.float64).item() ** 2 for each in counted]
    ).sum()
    total = squares.double()
    for group in mesh.get_all_groups()[1:]:
        if dist.get_world_size(group) > 1:
            dist.all_reduce(total, group=group)
    return total.sqrt().float()


# ------------------------------------------------------------------------------------------------ halos


def _even_odd(parts, group):
    """Blocking calls in turns: of each pair of neighbours the even one sends first. parts: up, down."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    came = [torch.zeros(part.shape, dtype=part.dtype) for part in parts]
    sides = ((1, rank + 1), (0, rank - 1)) if rank % 2 == 0 else ((0, rank - 1), (1, rank + 1))
    for side, peer in sides:
        if 0 <= peer < size:
            calls = [
                lambda side=side, peer=peer: dist.send(parts[side].contiguous(), group=group, group_dst=peer),
                lambda side=side, peer=peer: dist.recv(came[side], group=group, group_src=peer),
            ]
            for call in calls if rank % 2 == 0 else calls[::-1]:
                call()
    return came


class _Borrowed(torch.autograd.Function):
    """The neighbours' edges alone: up and down go out, above and below come in."""

    @staticmethod
    def forward(ctx, up, down, group):
        ctx.group = group
        return tuple(_even_odd((up, down), group))

    @staticmethod
    def backward(ctx, above, below):
        return *_even_odd((above, below), ctx.group), None


def cat_by_autograd(x, width, group=None, dim=2):
    """Only the edges pass through a function of its own; autograd adds up, and cuts. Blocking calls."""
    above, below = _Borrowed.apply(x.narrow(dim, 0, width), x.narrow(dim, x.shape[dim] - width, width), group)
    return torch.cat([above, x, below], dim)


class _Padded(torch.autograd.Function):
    """Writes into a padded copy."""

    @staticmethod
    def forward(ctx, x, width, group, dim):
        ctx.rest = width, group, dim
        shape = list(x.shape)
        shape[dim] += 2 * width
        result = x.new_zeros(shape)
        result.narrow(dim, width, x.shape[dim]).copy_(x)
        _Padded.fill(result, x, width, group, dim)
        return result

    @staticmethod
    def fill(result, x, width, group, dim):
        """Receives into buffers, and copies these where they belong."""
        rank, size, works, coming = dist.get_rank(group), dist.get_world_size(group), [], []
        ends = ((rank - 1, 0, 0), (rank + 1, x.shape[dim] - width, result.shape[dim] - width))
        for peer, first, place in ends:
            if 0 <= peer < size and width:
                own = x.narrow(dim, first, width).contiguous()
                works.append((dist.isend(own, group=group, group_dst=peer), own))
                buffer = torch.empty_like(own)
                coming.append((dist.irecv(buffer, group=group, group_src=peer), buffer, place))
        for work, buffer, place in coming:
            work.wait()
            result.narrow(dim, place, width).copy_(buffer)
        for work, _ in works:
            work.wait()

    @staticmethod
    def backward(ctx, gradient):
        width, group, dim = ctx.rest
        size = gradient.shape[dim]
        edges = torch.cat([gradient.narrow(dim, 0, width), gradient.narrow(dim, size - width, width)], dim)
        came = edges.new_zeros(edges.shape)
        frame = torch.cat([came.narrow(dim, 0, width), edges, came.narrow(dim, 0, width)], dim)
        _Padded.fill(frame, edges, width, group, dim)
        own = gradient.narrow(dim, width, size - 2 * width)
        rows = own.shape[dim]
        shape = list(own.shape)
        shape[dim] = rows - width
        nothing = own.new_zeros(shape)
        above = torch.cat([frame.narrow(dim, 0, width), nothing], dim)
        below = torch.cat([nothing, frame.narrow(dim, 3 * width, width)], dim)
        return own + above + below, None, None, None


@right("halo_exchange")
def padded_first(x, width, group=None, dim=2):
    """Makes room first; no call in place on what arrives."""
    return _Padded.apply(x, width, group, dim)


def _by_turns(up, down, group):
    """Even places send first: down, then up. What comes from above and from below, zeros where nobody is."""
    place, size = dist.get_rank(group), dist.get_world_size(group)
    came = [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in (up, down)]

    def passed(downwards):
        there, back = (down, came[1]) if downwards else (up, came[0])
        peer = place + 1 if downwards else place - 1
        calls = [
            lambda: dist.send(there.contiguous(), group=group, group_dst=peer),
            lambda: dist.recv(back, group=group, group_src=peer),
        ]
        if 0 <= peer < size and there.numel():
            for call in calls if place % 2 == 0 else calls[::-1]:
                call()

    for downwards in (True, False) if place % 2 == 0 else (False, True):
        passed(downwards)
    return came


@right("halo_exchange")
def a_hook_on_the_result(x, width, group=None, dim=2):
    """Autograd knows of torch.cat alone; a hook of the result brings the copies' gradients to its own rows.
    Messages by dist.send and dist.recv, even ranks first.
    """
    first, last = 0, x.shape[dim] - width
    edges = (x.detach().narrow(dim, start, width) for start in (first, last))
    above, below = _by_turns(*edges, group)
    result = torch.cat([above, x, below], dim)

    def home(gradient):
        edges = (gradient.narrow(dim, start, width) for start in (first, last + 2 * width))
        found = gradient.clone()
        for start, part in zip((first, last), _by_turns(*edges, group), strict=True):
            found.narrow(dim, width + start, width).add_(part)
        return found

    if result.requires_grad:
        result.register_hook(home)
    return result


class _Swapped(torch.autograd.Function):
    """What goes up and down becomes what comes from above and from below; its backward is the same again."""

    @staticmethod
    def forward(ctx, up, down, group):
        ctx.group = group
        return tuple(_by_turns(up, down, group))

    @staticmethod
    def backward(ctx, from_above, from_below):
        return *_by_turns(from_above, from_below, ctx.group), None


@right("halo_exchange")
def only_messages_are_a_function(x, width, group=None, dim=2):
    """Rows are taken and put together by autograd's own; columns are rows of the transposed image."""
    if dim == 3:
        return only_messages_are_a_function(x.transpose(2, 3), width, group).transpose(2, 3)
    above, below = _Swapped.apply(x[:, :, :width], x[:, :, x.shape[2] - width :], group)
    return torch.cat([above, x, below], 2)


# --- choose_mesh


@right("choose_mesh")
def walks_down_the_divisors(devices, model, memory, batch, cluster):
    """Recursion over the axes; collectives by the course's table of costs."""
    job, tokens = Job(model, batch, cluster, memory), model.context
    matrices = 4 * model.width**2 + 2 * model.width * model.inner

    def shapes(left, axes):
        if axes == 1:
            return [(left,)]
        return [
            (size, *rest)
            for size in range(1, left + 1)
            if left % size == 0
            for rest in shapes(left // size, axes - 1)
        ]

    def link(reach):
        return cluster.intra_node if reach <= cluster.devices_per_node else cluster.inter_node

    def seconds(shape):
        data, pipeline, tensor = shape
        layers = model.layers // pipeline
        passing = 2 * tokens * model.width
        operations = 8 * tokens * (matrices + 2 * tokens * model.width) / tensor
        talk = seconds_of("all_reduce", passing, tensor, link(tensor))
        rounds = batch // data + pipeline - 1
        total = rounds * layers * (operations / cluster.flops + 6 * talk)
        starts = range(0, devices, tensor)
        nodes = [first // cluster.devices_per_node for first in starts]
        crossed = any(
            one != two for at, (one, two) in enumerate(itertools.pairwise(nodes), 1) if at % pipeline
        )
        if pipeline > 1:
            total += 2 * (pipeline - 1) * seconds_of("send", passing, 2, link(devices if crossed else 1))
        return total + seconds_of("all_reduce", 2 * layers * matrices // tensor, data, link(devices))

    possible = [Mesh(*shape) for shape in shapes(devices, 3)]
    fitting = [mesh for mesh in possible if not job.problem(mesh) and memory_bytes(job, mesh) <= memory]
    return sorted(fitting, key=seconds)[0]


@right("choose_mesh")
def goes_through_all_triples(devices, model, memory, batch, cluster):
    """Parts of the time as a dictionary, the best so far in a loop; it asks the simulator's rules of time."""
    job, best = Job(model, batch, cluster, memory), (math.inf, None)
    timing_of = partial(Timing, cluster, devices)
    sizes = range(1, devices + 1)
    for triple in itertools.product(sizes, repeat=3):
        mesh = Mesh(*triple)
        if math.prod(triple) != devices or job.problem(mesh) or memory_bytes(job, mesh) > memory:
            continue
        ranks = torch.arange(devices).reshape(triple)
        passing, blocks = 2 * model.context * model.width, model.layers // mesh.pipeline
        matrices = blocks * (4 * model.width**2 + 2 * model.width * model.inner) // mesh.tensor
        attention = 2 * blocks * model.context * model.width // mesh.tensor
        group, copies = tuple(ranks[0, 0].tolist()), tuple(ranks[:, 0, 0].tolist())
        hops = itertools.chain.from_iterable(map(itertools.pairwise, ranks[:, :, 0].tolist()))
        message = max((timing_of().message(*hop, passing, 0.0) for hop in hops), default=0.0)
        parts = {
            "computing": 8 * model.context * (matrices + attention) / cluster.flops,
            "talking": 6 * blocks * timing_of().collective("all_reduce", passing, group, 0.0),
        }
        turns = batch // mesh.data + mesh.pipeline - 1
        total = turns * sum(parts.values())
        total += timing_of().collective("all_reduce", 2 * matrices, copies, 0.0)
        total += 2 * (mesh.pipeline - 1) * message
        best = min(best, (total, triple))
    return best[1]


# ------------------------------------------------------------------------------------------- convolutions


class _Strip(torch.autograd.Function):
    """A convolution of a strip that has its halo; both gradients by PyTorch's own formulas."""

    @staticmethod
    def forward(ctx, strip, weight, stride, group):
        ctx.save_for_backward(strip, weight)
        ctx.rest = (stride, (0, weight.shape[3] // 2)), group
        return functional.conv2d(strip, weight, None, *ctx.rest[0])

    @staticmethod
    def backward(ctx, gradient):
        strip, weight = ctx.saved_tensors
        options, group = ctx.rest
        of_strip = of_weight = None
        if ctx.needs_input_grad[0]:
            of_strip = conv2d_input(strip.shape, weight, gradient, *options)
        if ctx.needs_input_grad[1]:
            of_weight = conv2d_weight(strip, weight.shape, gradient, *options).contiguous()
            dist.all_reduce(of_weight, group=group)
        return of_strip, of_weight, None, None


@right("spatial_conv2d")
def gradients_by_formula(x_shard, weight, group=None, stride=1):
    """One function for the convolution; the halo by another way."""
    return _Strip.apply(cat_by_autograd(x_shard, weight.shape[2] // 2, group), weight, stride, group)


class _SummedLater(torch.autograd.Function):
    """The weight itself; what backward returns is waited for when it is used."""

    @staticmethod
    def forward(ctx, weight, group):
        ctx.group = group or dist.group.WORLD
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        return all_reduce(gradient.contiguous(), "sum", ctx.group), None


@right("spatial_conv2d")
def by_a_functional_collective(x_shard, weight, group=None, stride=1):
    """The gradients' sum by one of PyTorch's functional collectives."""
    strip = cat_by_autograd(x_shard, weight.shape[2] // 2, group)
    padding = 0, weight.shape[3] // 2
    return functional.conv2d(strip, _SummedLater.apply(weight, group), stride=stride, padding=padding)


class _Same(torch.autograd.Function):
    """The weight itself; backward sums over ranks."""

    @staticmethod
    def forward(ctx, weight, group):
        ctx.group = group
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


@right("spatial_conv2d")
def patches(x_shard, weight, group=None, stride=1):
    """Convolution as a product of matrices: patches by weights."""
    (samples, _, rows, columns), (filters, _, height, width) = x_shard.shape, weight.shape
    strip = cat_by_autograd(x_shard, height // 2, group)
    columns_of = functional.unfold(strip, (height, width), padding=(0, width // 2), stride=stride)
    result = _Same.apply(weight, group).flatten(1) @ columns_of
    return result.view(samples, filters, -(-rows // stride), -(-columns // stride))


class _Move(torch.autograd.Function):
    """A function of a tensor and a group in forward, and its adjoint in backward."""

    @staticmethod
    def forward(ctx, x, group, there, back):
        ctx.rest = group, back
        return there(x, group)

    @staticmethod
    def backward(ctx, gradient):
        group, back = ctx.rest
        return back(gradient, group), None, None, None


def _gather_single(shard, group):
    parts = shard.new_empty(dist.get_world_size(group), *shard.shape)
    dist.all_gather_into_tensor(parts.flatten(0, 1), shard.contiguous(), group=group)
    return parts.movedim(0, 1).flatten(1, 2)


def _scatter_single(partial, group):
    parts = partial.unflatten(1, (dist.get_world_size(group), -1)).movedim(1, 0).contiguous()
    own = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=group)
    return own


def _same_size(x, weight):
    return functional.conv2d(x, weight, padding=(weight.shape[2] // 2, weight.shape[3] // 2))


@right("filter_parallel_conv")
def one_tensor_of_parts(x_shard, weight_shard, group=None):
    """With the collectives that take one tensor."""
    return _same_size(_Move.apply(x_shard, group, _gather_single, _scatter_single), weight_shard)


@right("channel_parallel_conv")
def one_tensor_of_results(x_shard, weight_shard, group=None):
    """With the collectives that take one tensor."""
    return _Move.apply(_same_size(x_shard, weight_shard), group, _scatter_single, _gather_single)


# ------------------------------------------------------------------------------------ batch normalisation


class _Whitened(torch.autograd.Function):
    """By sums in float64; backward knows of the mean and the variance."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, group):
        rows = x.movedim(1, -1).flatten(0, -2).double()
        packed = torch.cat([rows.sum(0), rows.square().sum(0), torch.tensor([len(rows)])])
        dist.all_reduce(packed, group=group)
        channels = x.shape[1]
        number = packed[-1]
        mean = packed[:channels] / number
        deviation = (packed[channels:-1] / number - mean**2 + eps).sqrt()
        x_hat = ((rows - mean) / deviation).to(x.dtype)
        ctx.save_for_backward(x_hat, weight, deviation, number)
        ctx.group, ctx.shape = group, x.movedim(1, -1).shape
        return (x_hat * weight + bias).view(ctx.shape).movedim(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        x_hat, weight, deviation, number = ctx.saved_tensors
        rows = gradient.movedim(1, -1).flatten(0, -2)
        both = torch.stack([(rows * x_hat).sum(0), rows.sum(0)])
        dist.all_reduce(both, group=ctx.group)
        centred = number * rows - both[1] - x_hat * both[0]
        of_x = (centred * weight / (number * deviation)).to(gradient.dtype)
        return of_x.view(ctx.shape).movedim(-1, 1), both[0], both[1], None, None


@right("synchronised_batch_norm")
def sums_in_float64(x_shard, weight, bias, eps=1e-5, group=None):
    """One all-reduce of sums in float64, whose digits are enough."""
    return _Whitened.apply(x_shard, weight, bias, eps, group)


def _merged(one, other):
    """Number, mean and sum of squares around it of two parts together."""
    (n, mean, squares), (m, other_mean, other_squares) = one, other
    both = n + m
    if not both:
        return one
    apart = other_mean - mean
    return both, mean + apart * (m / both), squares + other_squares + apart**2 * (n * m / both)


class _Merged(torch.autograd.Function):
    """Statistics gathered as a list, and merged part by part."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, group):
        count, channels = x[:, 0].numel(), x.shape[1]
        mean = x.mean((0, 2, 3)) if count else x.new_zeros(channels)
        squares = ((x - mean[:, None, None]) ** 2).sum((0, 2, 3))
        own = torch.cat([mean, squares, x.new_tensor([count])])
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, own, group=group)
        parts = [(int(each[-1]), each[:channels], each[channels:-1]) for each in everyone]
        number, mean, squares = functools.reduce(_merged, parts)
        deviation = (squares / number + eps).sqrt()
        x_hat = (x - mean[:, None, None]) / deviation[:, None, None]
        ctx.save_for_backward(x_hat, weight / deviation)
        ctx.rest = number, group
        return torch.addcmul(bias[:, None, None], x_hat, weight[:, None, None])

    @staticmethod
    def backward(ctx, gradient):
        (x_hat, scale), (number, group) = ctx.saved_tensors, ctx.rest
        sums = torch.cat([torch.einsum("ncij,ncij->c", gradient, x_hat), gradient.sum((0, 2, 3))])
        everyone = [torch.empty_like(sums) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, sums, group=group)
        of_weight, of_bias = sum(everyone).chunk(2)
        means = [(each / number)[:, None, None] for each in (of_bias, of_weight)]
        return scale[:, None, None] * (gradient - means[0] - means[1] * x_hat), of_weight, of_bias, None, None


@right("synchronised_batch_norm")
def merged_part_by_part(x_shard, weight, bias, eps=1e-5, group=None):
    """All-gathers in both passes; statistics merged two at a time."""
    return _Merged.apply(x_shard, weight, bias, eps, group)


# ------------------------------------------------------------------------------------------- tournaments


def _pairs(seed, ranks):
    order = torch.randperm(ranks, generator=torch.Generator().manual_seed(seed))
    return dict(pair for a, b in order[: ranks // 2 * 2].view(-1, 2).tolist() for pair in ((a, b), (b, a)))


@right("tournament")
def a_guest(model, score, seed, group=None):
    """Receives into a copy of the model, and scores that; the lower rank sends first."""
    rank = dist.get_rank(group)
    partner = _pairs(seed, dist.get_world_size(group)).get(rank)
    own = score(model)
    if partner is None:
        return own
    guest = copy.deepcopy(model)
    mine, places = ([*each.parameters(), *each.buffers()] for each in (model, guest))
    theirs = [torch.empty(each.shape, dtype=each.dtype) for each in mine]
    for turn in range(2):
        for tensor in mine if (turn == 0) == (rank < partner) else theirs:
            if (turn == 0) == (rank < partner):
                dist.send(tensor.detach().contiguous(), group=group, group_dst=partner)
            else:
                dist.recv(tensor, group=group, group_src=partner)
    with torch.no_grad():
        for place, value in zip(places, theirs, strict=True):
            place.copy_(value)
    other = score(guest)
    if math.isnan(other) or own >= other:
        return own
    with torch.no_grad():
        for tensor, value in zip(mine, theirs, strict=True):
            tensor.copy_(value)
    return other


@right("tournament")
def packed_by_type(model, score, seed, group=None):
    """A message for each type; pairs from PyTorch's own random numbers, which are put back."""
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        order = torch.randperm(ranks).tolist()
    place = order.index(me) ^ 1
    own = score(model)
    if place >= ranks:
        return own
    by_type = {}
    for each in (*model.parameters(), *model.buffers()):
        by_type.setdefault(each.dtype, []).append(each.detach())
    mine = [torch.cat([each.flatten() for each in tensors]) for tensors in by_type.values()]
    theirs = list(map(torch.empty_like, mine))
    works = [dist.isend(each, group=group, group_dst=order[place]) for each in mine]
    works += [dist.irecv(each, group=group, group_src=order[place]) for each in theirs]
    for work in works:
        work.wait()

    def take(packed):
        for tensors, flat in zip(by_type.values(), packed, strict=True):
            parts = flat.split([each.numel() for each in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    take(theirs)
    other = score(model)
    if not (own >= other or math.isnan(other)):
        return other
    take(mine)
    return own


@right("filter_parallel_conv")
def gathered_by_a_functional_collective(x_shard, weight_shard, group=None):
    """PyTorch has an all-gather that autograd knows."""
    whole = all_gather_tensor_autograd(x_shard.contiguous(), 1, group or dist.group.WORLD)
    padding = [side // 2 for side in weight_shard.shape[2:]]
    return functional.conv2d(whole, weight_shard, padding=padding)


@right("channel_parallel_conv")
def scattered_by_a_functional_collective(x_shard, weight_shard, group=None):
    """PyTorch has a reduce-scatter that autograd knows."""
    padding = [side // 2 for side in weight_shard.shape[2:]]
    partial_results = functional.conv2d(x_shard, weight_shard, padding=padding)
    return reduce_scatter_tensor_autograd(partial_results, "sum", 1, group or dist.group.WORLD)


@right("tournament")
def in_bytes(model, score, seed, group=None):
    """One message, of bytes."""
    order = torch.randperm(dist.get_world_size(group), generator=torch.Generator().manual_seed(seed)).tolist()
    place = order.index(dist.get_rank(group))
    mine = score(model)
    if place ^ 1 >= len(order):
        return mine
    held = [each.detach() for each in (*model.parameters(), *model.buffers())]
    going = torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in held])
    coming = torch.empty_like(going)
    works = [
        dist.isend(going, group=group, group_dst=order[place ^ 1]),
        dist.irecv(coming, group=group, group_src=order[place ^ 1]),
    ]
    for work in works:
        work.wait()

    def hold(flat):
        for each, part in zip(held, flat.split([each.nbytes for each in held]), strict=True):
            each.copy_(part.clone().view(each.dtype).view(each.shape))

    hold(coming)
    theirs = score(model)
    if theirs > mine or (theirs == theirs and mine != mine):
        return theirs
    hold(going)
    return mine


@right("grad_norm_3d")
def the_last_ones_count(parameters, mesh):
    """The last stage counts what is shared, the last share what is copied."""
    last_stage, last_share = (
        mesh.get_local_rank(axis) == mesh[axis].size() - 1 for axis in ("pipeline", "tensor")
    )
    norms = [
        torch.linalg.vector_norm(each.grad, dtype=torch.float64)
        for each in parameters
        if each.grad is not None
        and (each.tensor_model_parallel or last_share)
        and (last_stage or not each.shared)
    ]
    total = torch.tensor([sum(norm.square().item() for norm in norms)], dtype=torch.float64)
    dist.all_reduce(total, group=mesh.get_group("pipeline"))
    dist.all_reduce(total, group=mesh.get_group("tensor"))
    return total.sqrt().float()[0]
