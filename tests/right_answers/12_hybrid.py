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
from tests.answers import right, solved


def _own(name):
    """The solution of an exercise that others build on."""
    return solved("12_hybrid")[name]


@right("mesh_coordinates")
def by_torch(rank, shape):
    """PyTorch knows how tensors are numbered."""
    if not 0 <= rank < math.prod(shape):
        raise ValueError(rank)
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape)) if shape else ()


def _place(rank, shape):
    return tuple(int(each) for each in torch.unravel_index(torch.tensor(rank), shape))


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
def by_a_group_of_two(model, batch, mesh):
    """Backward in the order of forward, from a list; copies are summed in a group of their own."""
    data, pipeline, _ = mesh.get_all_groups()
    stage, stages = dist.get_rank(pipeline), dist.get_world_size(pipeline)
    lines = mesh.mesh.movedim(1, -1).reshape(-1, stages).tolist()
    pairs = [dist.new_group(sorted({line[0], line[-1]})) for line in lines]
    own = next(number for number, line in enumerate(lines) if dist.get_rank() in line)
    samples = sum(map(len, (tokens for tokens, _ in batch)))
    waiting, loss = [], model.empty(1, 1).new_zeros(())
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
    for x, y in waiting:
        gradient = None
        if stage + 1 < stages:
            gradient = y.new_empty(y.shape)
            dist.recv(gradient, group=pipeline, group_src=stage + 1)
        torch.autograd.backward(y, gradient)
        if stage > 0:
            dist.send(x.grad, group=pipeline, group_dst=stage - 1)
    for parameter in model.parameters():
        if parameter.shared and stages > 1:
            dist.all_reduce(parameter.grad, group=pairs[own])
        dist.all_reduce(parameter.grad.div_(mesh.size(0)), group=data)
    for group in (pipeline, data):
        dist.all_reduce(loss, group=group)
    return loss / mesh.size(0)


# ------------------------------------------------------------------------------------------------ halos


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
    return _Strip.apply(_own("halo_exchange")(x_shard, weight.shape[2] // 2, group), weight, stride, group)


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
    strip = _own("halo_exchange")(x_shard, weight.shape[2] // 2, group)
    padding = 0, weight.shape[3] // 2
    return functional.conv2d(strip, _SummedLater.apply(weight, group), stride=stride, padding=padding)


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
