"""Mistakes that people make in unit 12."""

import math

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.answers import instead, wrong

# --- mesh_coordinates


@instead(
    "mesh_coordinates",
    ("in reversed(shape)", "in shape"),
    ("tuple(reversed(place))", "tuple(place)"),
    fails="coordinates",
)
def first_axis_fastest():
    """Neighbours along the first axis, as Fortran lays out arrays."""


@instead("mesh_coordinates", ("tuple(reversed(place))", "tuple(place)"), fails="coordinates")
def forgets_to_turn_round():
    """Counts from the last axis, and returns its coordinate first."""


@wrong("mesh_coordinates", fails="any mesh")
def three_axes_only(rank, shape):
    """Data, pipeline and tensor, and nothing else."""
    data, pipeline, tensor = shape
    if not 0 <= rank < data * pipeline * tensor:
        raise ValueError(rank)
    return rank // (pipeline * tensor), rank // tensor % pipeline, rank % tensor


@instead(
    "mesh_coordinates",
    ("place.append(coordinate)", "place += [coordinate] * (size > 1)"),
    fails="any mesh",
)
def axes_of_one_left_out():
    """No coordinate where there is no choice."""


@instead("mesh_coordinates", ("if left:", "if False:"), fails="refuses")
def anything_goes():
    """Rank 12 of 12 is rank 0 again."""


# --- groups


@instead(
    "groups",
    ("            group = dist.new_group(members)\n", ""),
    ("own.append(group)", "own.append(dist.new_group(members))"),
    fails="own groups",
)
def only_own_groups():
    """Each rank makes the groups that it is in."""


@wrong("groups", fails="made once")
def of_a_device_mesh(shape, rank):
    """Has PyTorch do it."""
    if math.prod(shape) != dist.get_world_size():
        raise ValueError(shape)
    return init_device_mesh("cpu", shape).get_all_groups()


@instead("groups", ("if rank in members:", "if rank in members and size > 1:"), fails="any mesh")
def no_group_of_one():
    """Nothing for axes along which there is nobody else."""


@instead(
    "groups",
    ("group = dist.new_group(members)", "group = [dist.new_group(members) for _ in members][0]"),
    fails="made once",
)
def once_for_every_rank():
    """Makes a line as often as it has ranks."""


@instead("groups", ("if math.prod(shape) != dist.get_world_size():", "if False:"), fails="refuses")
def never_looks():
    """Makes groups of the ranks that are not there, or leaves some out."""


# --- hsdp_average


@instead("hsdp_average", ("return shard / (g * nodes)", "return shard"), fails="the shard")
def sum_of_all():
    """Never divides."""


@instead(
    "hsdp_average",
    ("functional.pad(flat, (0, -len(flat) % g))", "flat[: len(flat) // g * g]"),
    fails="any length",
)
def drops_what_does_not_divide():
    """The last numbers, which are too few for all, are left out."""


@instead(
    "hsdp_average",
    ("gradient.flatten() for gradient", "gradient.div_(g * nodes).flatten() for gradient"),
    ("return shard / (g * nodes)", "return shard"),
    fails="gradients kept",
)
def divides_in_place():
    """Divides before it sums up, to be safe from overflow, and does so in the gradients themselves."""


@instead(
    "hsdp_average",
    ("    parts = functional", "    dist.all_reduce(flat, group=across)\n    parts = functional"),
    ("    dist.all_reduce(shard, group=across)\n", ""),
    fails="calls and bytes",
)
def whole_sum_across():
    """Sums everything up across nodes first."""


@instead(
    "hsdp_average",
    ("    parts = functional", "    dist.all_reduce(flat, group=within)\n    parts = functional"),
    ("    shard = torch.empty_like(parts[0])\n", ""),
    ("dist.reduce_scatter(shard, list(parts), group=within)", "shard = parts[dist.get_rank(within)].clone()"),
    fails="calls and bytes",
)
def all_reduce_within():
    """Within a node twice the bytes: an all-reduce, of which each rank keeps a part."""


# --- step_3d


@instead("step_3d", ("        parameter.grad /= replicas\n", ""), fails="gradients")
def sums_over_replicas():
    """Adds up along data, and never divides."""


@instead("step_3d", ("(len(tokens) / samples)", "(1 / len(batch))"), fails="any mesh and batch")
def mean_of_micro_batches():
    """Every micro-batch counts alike, however many samples it has."""


@instead("step_3d", ("if parameter.shared and stages > 1:", "if False:"), fails="shared embedding")
def copies_forgotten_in_the_step():
    """Each stage goes on with its own use of the embedding, and the copies drift apart."""


@instead(
    "step_3d",
    ("group=pipeline, group_dst=peer)", "group_dst=peer)"),
    ("group=pipeline, group_src=peer)", "group_src=peer)"),
    fails="shared embedding",
)
def copies_swapped_in_the_world():
    """Takes the number of a stage for that of a rank: right with one replica and one share."""


@instead(
    "step_3d",
    (
        "parameter.grad /= replicas",
        "parameter.grad /= replicas\n        dist.all_reduce(parameter.grad.div_(replicas), group=data)",
    ),
    fails="bytes and messages",
)
def averages_twice():
    """The mean of means that are equal is the same, for twice the bytes."""


@instead(
    "step_3d",
    ("        passed.append((x, y))\n    for x, y in passed:\n", ""),
    fails="in a pipeline",
)
def one_micro_batch_after_the_other():
    """The pipeline is empty before the next one comes."""


@instead("step_3d", ("loss = model.empty(1, 1).new_zeros(())", "loss = torch.zeros(())"), fails="any device")
def loss_on_the_cpu():
    """Adds up losses in a tensor that is made where PyTorch makes them by default."""


# --- grad_norm_3d


@instead("grad_norm_3d", ("group=mesh.get_group(axis)", "group=None"), fails="cut parameters")
def norm_of_the_world():
    """Counts what every replica has."""


@instead("grad_norm_3d", ("parameter.tensor_model_parallel or first_share", "True"), fails="copies")
def copies_counted_by_all():
    """Adds up what every rank along tensor has."""


@instead("grad_norm_3d", ("not parameter.shared or first_stage", "True"), fails="shared parameters")
def shared_counted_twice():
    """By the first stage, and by the last."""


@instead(
    "grad_norm_3d", ("if parameter.grad is not None and counts_here", "if counts_here"), fails="any ranks"
)
def every_parameter_has_a_gradient():
    """Parameters that were not used have none."""


@instead(
    "grad_norm_3d", ("parameter.grad.float().square()", "parameter.grad.square_()"), fails="gradients kept"
)
def squares_in_place():
    """Leaves squares where gradients were."""


# --- halo_exchange

AT_ONCE = "    for work in dist.batch_isend_irecv(messages) if messages else ():\n        work.wait()\n"
DOWN_THEN_UP = """
    if up.numel() and rank + 1 < size:
        dist.send(down.contiguous(), group=group, group_dst=rank + 1)
    if up.numel() and rank:
        dist.recv(came[0], group=group, group_src=rank - 1)
        dist.send(up.contiguous(), group=group, group_dst=rank - 1)
    if up.numel() and rank + 1 < size:
        dist.recv(came[1], group=group, group_src=rank + 1)
"""
BY_ALL_GATHER = """
    own = torch.stack([down, up])
    every = [torch.zeros_like(own) for _ in range(size + 1)]
    dist.all_gather(every[:-1], own, group=group)
    came = every[rank - 1][0], every[rank + 1][1]
"""


@instead(
    "halo_exchange",
    (
        "x.narrow(dim, 0, width), x.narrow(dim, x.shape[dim] - width, width)",
        "x.narrow(dim, x.shape[dim] - width, width), x.narrow(dim, 0, width)",
    ),
    fails="rows",
)
def the_far_rows():
    """Gives the rank before its last rows, and the one after its first."""


@instead(
    "halo_exchange",
    ("        own.narrow(dim, 0, width).add_(from_above)\n", ""),
    ("        own.narrow(dim, own.shape[dim] - width, width).add_(from_below)\n", ""),
    fails="gradient",
)
def keeps_what_is_its_own():
    """Cuts the halo off in backward; what arrived there is lost."""


@instead(
    "halo_exchange",
    ("x.narrow(dim, x.shape[dim] - width, width)", "x.transpose(dim, 0)[-width:].transpose(dim, 0)"),
    fails="other strips",
)
def minus_width():
    """Takes x[-width:], which for width 0 is all of x."""


@instead("halo_exchange", (AT_ONCE, BY_ALL_GATHER), fails="neighbours only")
def everybody_gets_all_edges():
    """All-gathers the edges: p times what is needed."""


@instead("halo_exchange", (AT_ONCE, DOWN_THEN_UP), fails="all at once")
def one_after_the_other():
    """Everybody sends down before it receives from above: only the last one is free to receive."""


# --- spatial_conv2d


@instead(
    "spatial_conv2d",
    ("halo_exchange(x_shard, height // 2, group)", "x_shard"),
    ("padding=(0, width // 2)", "padding=(height // 2, width // 2)"),
    fails="result",
)
def zeros_at_the_cuts():
    """Each strip as if it were an image of its own."""


@instead(
    "spatial_conv2d",
    (
        "halo_exchange(x_shard, height // 2, group)",
        "halo_exchange(x_shard.detach(), height // 2, group)\n"
        "    strip.narrow(2, height // 2, x_shard.shape[2]).copy_(x_shard)",
    ),
    fails="gradient of the image",
)
def halo_that_returns_nothing():
    """Borrows rows by messages that autograd knows nothing of."""


@instead("spatial_conv2d", ("if own.requires_grad:", "if False:"), fails="gradient of the weight")
def gradient_of_its_own_pixels():
    """Nobody adds up the weight's gradients."""


@instead("spatial_conv2d", ("x_shard, height // 2", "x_shard, width // 2"), fails="strides and kernels")
def as_many_rows_as_columns():
    """Takes the halo's width from the kernel's: right for square ones."""


@instead("spatial_conv2d", ("weight.view_as(weight)", "weight"), fails="strides and kernels")
def hook_on_the_weight_itself():
    """The hook stays on the weight: at the next call there are two, and its gradient is summed twice."""


# --- filter_parallel_conv


@instead(
    "filter_parallel_conv",
    ("torch.cat(parts, 1)", "torch.cat(parts).view(len(shard), -1, *shard.shape[2:])"),
    fails="result",
)
def stacked_as_they_came():
    """The ranks' parts stand before the samples: right for one sample."""


@instead(
    "filter_parallel_conv",
    ("Gather.apply(x_shard, group)", "gathered(x_shard.detach(), group)"),
    fails="gradient of the image",
)
def gather_without_history():
    """Autograd knows nothing of the all-gather."""


SUMMED_TOO = """
    def hook(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    weight_shard = weight_shard.view_as(weight_shard)
    weight_shard.register_hook(hook)
    return padded_conv2d(Gather"""


@instead(
    "filter_parallel_conv", ("    return padded_conv2d(Gather", SUMMED_TOO), fails="gradient of the weight"
)
def weight_summed_too():
    """Sums up the gradients of other filters with its own."""


@instead(
    "filter_parallel_conv",
    ("(weight.shape[2] // 2, weight.shape[3] // 2)", "weight.shape[2] // 2"),
    fails="other sizes",
)
def square_kernels():
    """As many columns of zeros as rows."""


@instead(
    "filter_parallel_conv",
    ("dist.reduce_scatter(own, parts, group=group)", "total = partial.contiguous().clone()"),
    (
        "    return own\n",
        "    dist.all_reduce(total, group=group)\n"
        "    return total.chunk(len(parts), 1)[dist.get_rank(group)].contiguous()\n",
    ),
    fails="calls and bytes",
)
def all_reduce_and_cut():
    """Sums up all channels' gradients on all ranks, and keeps its own."""


# --- channel_parallel_conv

OWN_PART = ".chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()"


@instead("channel_parallel_conv", ("summed_and_cut(partial, group)", f"partial{OWN_PART}"), fails="result")
def own_channels_only():
    """Its filters' results from its own channels alone."""


@instead(
    "channel_parallel_conv",
    (
        "gathered(gradient, ctx.group)",
        "torch.cat([gradient * (place == dist.get_rank(ctx.group)) "
        "for place in range(dist.get_world_size(ctx.group))], 1)",
    ),
    fails="gradient of the image",
)
def own_filters_gradient():
    """What arrives, among zeros for all other filters."""


@instead(
    "channel_parallel_conv",
    ("padded_conv2d(x_shard, weight_shard)", "padded_conv2d(x_shard, weight_shard.detach())"),
    fails="gradient of the weight",
)
def weight_detached():
    """Gives the gradient to the image only."""


@instead(
    "channel_parallel_conv",
    (
        "return summed_and_cut(partial, group)",
        f"dist.all_reduce(partial, group=group)\n        return partial{OWN_PART}",
    ),
    fails="calls and bytes",
)
def results_of_all_filters():
    """Sums up all filters' results on all ranks, and keeps its own."""


@instead(
    "channel_parallel_conv",
    (
        "gathered(gradient, ctx.group)",
        "gathered(gradient, None)[:, : gradient.shape[1] * dist.get_world_size(ctx.group)]",
    ),
    fails="group",
)
def gathers_from_everybody():
    """Its backward forgets the group, and takes the first of what came."""


# --- synchronised_batch_norm


@instead(
    "synchronised_batch_norm",
    (
        "Normalise.apply(x_shard, weight, bias, eps, group)",
        "functional.batch_norm(x_shard, None, None, weight, bias, training=True, eps=eps)",
    ),
    fails="result",
)
def its_own_statistics():
    """Each part by itself."""


@instead(
    "synchronised_batch_norm",
    ("(gradient - mean_part - x_hat * variance_part)", "gradient"),
    fails="gradient of the image",
)
def statistics_are_constants():
    """Leaves backward to autograd, for which the all-reduce has no history."""


@instead(
    "synchronised_batch_norm",
    (
        "        dist.all_reduce(sums",
        "        own_bias, own_weight = sums.clone()\n        dist.all_reduce(sums",
    ),
    ("return of_x, of_weight, of_bias", "return of_x, own_weight, own_bias"),
    fails="gradients of weight and bias",
)
def weight_sees_its_own_pixels():
    """As torch.nn.SyncBatchNorm has it, after which DDP averages."""


@instead(
    "synchronised_batch_norm",
    ("(x - by_channel(own_mean)).square()", "x.square()"),
    (
        "(squares + numbers * (means - mean).square()).sum(0) / total",
        "(squares.sum(0) / total - mean.square()).clamp(min=0)",
    ),
    fails="large means",
)
def squares_in_float():
    """The mean of squares less the square of the mean, in x's own precision."""


@instead(
    "synchronised_batch_norm",
    (
        "own_mean = x.sum(PIXELS) / own.clamp(min=1)",
        "first = torch.cat([own, x.sum(PIXELS)])\n"
        "        dist.all_reduce(first, group=group)\n"
        "        own_mean = first[1:] / first[0]",
    ),
    fails="one collective",
)
def first_the_mean():
    """One collective for the mean, another for the squares around it."""


# --- tournament

SEND_THEN_RECEIVE = """
    for each in own:
        dist.send(each, group=group, group_dst=order[place])
    for each in theirs:
        dist.recv(each, group=group, group_src=order[place])
"""


@instead(
    "tournament",
    ("    for work in dist.batch_isend_irecv(messages):\n        work.wait()\n", SEND_THEN_RECEIVE),
    fails="the better model",
)
def both_send_first():
    """dist.send waits for a partner who sends too."""


@instead(
    "tournament",
    ("torch.randperm(", "torch.arange("),
    (", generator=torch.Generator().manual_seed(seed)", ""),
    fails="pairs",
)
def neighbours():
    """0 meets 1, and 2 meets 3, in every round."""


@instead(
    "tournament", ("(*model.parameters(), *model.buffers())", "model.parameters()"), fails="all of the model"
)
def parameters_only():
    """Leaves running statistics where they are."""


@instead(
    "tournament",
    (" or (math.isnan(own_score) and not math.isnan(their_score))", ""),
    fails="diverged or equal",
)
def comparison_with_nan():
    """Nothing is larger than NaN, so a diverged trainer stays so."""


@instead("tournament", ("torch.Generator().manual_seed(", "torch.manual_seed("), fails="random numbers")
def global_seed():
    """Seeds the random numbers of everything else too."""


# --- choose_mesh


@instead("choose_mesh", (" and memory_bytes(job, mesh) <= memory", ""), fails="fits")
def forgets_the_memory():
    """The fastest mesh, on devices of any size."""


@wrong("choose_mesh", fails="fits")
def copies_alone(devices, model, memory, batch, cluster):
    """Data parallelism, whatever the model."""
    return devices, 1, 1


@instead(
    "choose_mesh",
    ("key=seconds", "key=lambda mesh: (mesh.pipeline * mesh.tensor, mesh.pipeline)"),
    fails="within a fifth of the best",
)
def as_many_copies_as_fit():
    """Splits the model no more than its size demands."""


@instead(
    "choose_mesh",
    ("link.seconds(nbytes / ranks)", "nbytes / ranks / link.bandwidth"),
    ("hop.seconds(activations)", "activations / hop.bandwidth"),
    fails="within a fifth of the best",
)
def messages_have_no_latency():
    """Bytes over bandwidth, and nothing else."""


@instead(
    "choose_mesh",
    ("node % (pipeline * tensor) == 0", "pipeline * tensor <= node"),
    fails="within 5 % of the best",
)
def looks_at_the_first_replica():
    """Others begin in the middle of a node, and their messages leave it."""
