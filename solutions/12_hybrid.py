# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Hybrid parallelism
#
# Copies of a model share the samples of a batch, stages share its layers, and ranks share its matrices. Each of these ways has an end:
# a batch has so many samples, a model so many layers, and a node so many devices with fast links between them. The largest trainings use all three ways at once.
# This unit puts them together: which rank does what, who talks to whom about which number, and what that costs. Then it cuts what the others
# left whole, images that are too large for one device, and lets whole trainings compete. At its end stand measurements that
# others published, beside what this course predicts for them.
#
# After this unit you can
#
# - say where each rank stands in a mesh, and make the groups along its axes;
# - average gradients that are sharded within a node, with few bytes between nodes;
# - write a step of training with data, pipeline and tensor parallelism at once, and the norm of its gradient, equal to those on one rank;
# - cut images in space with halos, and convolutions by their channels and filters, forward and backward;
# - normalise with the statistics of all ranks, in one collective;
# - let trainers compete in a tournament instead of averaging them;
# - choose the axes of a mesh for a model and a machine;
# - predict what a published training took, and judge where such a prediction holds.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes".
ranks = 4
on = "simulated"

# %%
import math
import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

from course_lib import Cluster, Link, launch, per_rank
from course_lib.cluster import presets
from course_lib.data import load, load_text
from course_lib.figures.style import COLOURS, HATCHES, look, new_figure, rank_colour
from course_lib.models import TransformerConfig, next_token_loss
from course_lib.training.mesh_step import Job, Mesh, memory_bytes, step_time
from course_lib.training.mesh_transformer import AXES, MeshTransformer
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. Folded cells check that the text's numbers are what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below; the sections in parentheses have the answers.
#
# 1. Sixteen ranks stand in a mesh of 2 x 2 x 4. Each is in three process groups, one along each axis. How many different groups does the whole
#    mesh have (section 1)?
# 2. Every rank adds up the squares of all gradients that it has, and all ranks add up these sums. The root of that is not the norm of the gradient, for
#    some parameters are on many ranks. On a small transformer whose matrices are cut among 8 ranks, in one stage and without copies of the model:
#    by how many percent of the right norm is it too large (section 4)?
# 3. One image of 2,048 × 2,048 pixels goes through eight convolutions, forward and backward. Cut into strips on 32 devices of four nodes of LUMI-G, how many
#    times as fast is it as on one device (section 5)?

# %% demo=true
guesses = predict(
    "12_hybrid",
    different_groups_in_a_mesh_of_2_x_2_x_4=None,
    percent_by_which_the_norm_is_too_large_on_1_x_1_x_8=None,
    times_as_fast_in_strips_on_32_devices_as_on_1=None,
)

# %% [markdown]
# ## 1 A mesh of ranks
#
# Three ways to cut a training are behind you: copies of a model share the samples (unit 02), stages share its layers (unit 05),
# and ranks share each matrix (unit 06). A large model needs them all at once. Then every rank plays three parts: it belongs
# to one copy of the model, is one stage of that copy, and has one share of that stage.
#
# So think of the ranks as standing in a box with three axes. **Data** goes along the first, **pipeline** along the second, **tensor** along the third.
# Such a box is called a **mesh**, and how many ranks it has along each axis is its shape. A rank's three numbers there are its **coordinates**.
#
# Which rank stands where? The axes do not talk equally much. Tensor parallelism sums up in every layer, twice in forward
# and twice in backward; a pipeline hands a tensor to its neighbour once for each micro-batch; data parallelism speaks once in a step. So the tensor axis should have the
# fastest links, those within a node, and that is why it comes last: neighbours along the last axis have neighbouring numbers, and
# Slurm gives neighbouring numbers to the tasks of one node. Megatron-LM numbers its ranks so too.


# %% exercise="mesh_coordinates" points=4
def mesh_coordinates(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where a rank stands in a mesh: one coordinate for each axis.

    shape: how many ranks stand along each axis, at least 1; of any number of axes. No axis at all is a
        mesh of one rank.

    Rank 0 is at (0, ..., 0, 0), rank 1 at (0, ..., 0, 1): coordinates of the last axis are counted
    through first, those of the first axis last.

    Returns the coordinates as ints. Also a mesh of 10^18 ranks takes no longer than a moment. Raises
    ValueError for a rank that is not in the mesh.
    """
    ### BEGIN SOLUTION
    place = []
    left = rank
    for size in reversed(shape):
        left, coordinate = divmod(left, size)
        place.append(coordinate)
    if left:
        raise ValueError(f"A mesh of shape {shape} has no rank {rank}.")
    return tuple(reversed(place))
    ### END SOLUTION


# %% [markdown]
# Sixteen ranks on two nodes of eight, as 2 x 2 x 4. In each box stands a rank, in the colour and hatch of its tensor group:

# %% demo=true jupyter={"source_hidden": true}
# %%needs mesh_coordinates
figure, axes = new_figure(
    height=2.6,
    alt="Sixteen boxes, numbered from 0 to 15, in two rows: the upper row is data coordinate 0, the lower row 1. In each row "
    "four boxes of pipeline coordinate 0 stand left, four of coordinate 1 right. Each group of four boxes has one "
    "colour and hatch. The upper row is node 0, the lower row node 1.",
)
for rank in range(16):
    data, stage, share = mesh_coordinates(rank, (2, 2, 4))
    group = 2 * data + stage
    x = share + 4.8 * stage
    axes.bar(
        x,
        0.8,
        0.9,
        bottom=-data,
        color=rank_colour(group),
        alpha=0.4,
        hatch=HATCHES[group],
        edgecolor="black",
    )
    axes.text(x, 0.4 - data, str(rank), ha="center", va="center", fontsize=12)
axes.set(
    xticks=[1.5, 6.3],
    xticklabels=["pipeline 0", "pipeline 1"],
    yticks=[0.4, -0.6],
    yticklabels=["data 0\n(node 0)", "data 1\n(node 1)"],
)
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
axes.grid(visible=False)
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds mesh_coordinates
places = [mesh_coordinates(rank, (2, 2, 4)) for rank in range(16)]
assert len(set(places)) == 16
for rank, (data, stage, share) in enumerate(places):
    assert rank // 8 == data
    assert rank == 8 * data + 4 * stage + share

# %% [markdown]
# A collective takes a process group. So every rank needs one group for each axis: of the ranks that it shares
# all *other* coordinates with. Rank 6 here, at (0, 1, 2), averages gradients with rank 14, sends activations to and from rank 2, and sums up
# with ranks 4, 5 and 7.
#
# Making groups has a trap that unit 07's lab showed. `dist.new_group` is a call of all ranks of the world, members or not. Where ranks make the groups
# that they are in, and only these, each waits for somebody else.


# %% exercise="groups" points=8
def groups(shape: tuple[int, ...], rank: int) -> list[dist.ProcessGroup]:
    """This rank's process group along each axis of a mesh that has all ranks.

    shape: as in mesh_coordinates. rank: the one that calls. Every rank calls once.

    Returns a list of groups, in the order of the axes. The group of an axis has, in ascending order,
    the ranks that differ from this one along this axis at most: along an axis of size 1 this rank
    alone.

    Make them with dist.new_group (none of a DeviceMesh): each group of the mesh once, not once a rank.
    Where one has all ranks, the default group may serve. Raises ValueError on every rank, before any
    group is made, if the mesh has more or fewer ranks than there are.
    """
    ### BEGIN SOLUTION
    if math.prod(shape) != dist.get_world_size():
        raise ValueError(f"A mesh of shape {shape} has not {dist.get_world_size()} ranks.")
    numbers = torch.arange(math.prod(shape)).view(shape)
    own = []
    for axis, size in enumerate(shape):
        for members in numbers.movedim(axis, -1).reshape(-1, size).tolist():
            group = dist.new_group(members)
            if rank in members:
                own.append(group)
    return own
    ### END SOLUTION


# %% demo=true
# %%needs groups
def groups_of_sixteen() -> list[list[int]]:
    """The ranks of this rank's group along each axis of 2 x 2 x 4."""
    return [dist.get_process_group_ranks(group) for group in groups((2, 2, 4), dist.get_rank())]


members = launch(groups_of_sixteen, cluster=Cluster(nodes=2, devices_per_node=8)).results
for axis, ranks_of_axis in zip(("data", "pipeline", "tensor"), members[6], strict=True):
    print(f"rank 6 along {axis:8} {ranks_of_axis}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds groups
assert members[6] == [[6, 14], [2, 6], [4, 5, 6, 7]]
for ranks_of_axes in members:
    assert len({rank // 8 for rank in ranks_of_axes[2]}) == 1
    assert len({rank // 8 for rank in ranks_of_axes[1]}) == 1
different = {tuple(group) for of_rank in members for group in of_rank}
assert len(different) == 8 + 8 + 4
guesses.measured(different_groups_in_a_mesh_of_2_x_2_x_4=len(different))

# %% [markdown]
# There are 20 groups: 8 along data, 8 along pipeline and 4 along tensor. No tensor group crosses a node, and here no pipeline does. PyTorch has all this: `init_device_mesh("cuda", (2, 2, 4), mesh_dim_names=("data", "pipeline", "tensor"))`
# makes the same groups, and `mesh.get_group("tensor")` is yours. From here on a mesh is one of these.

# %% [markdown]
# ## 2 Shards within a node, copies across nodes
#
# Before all three axes at once, two of one kind. Unit 09 shards a model over all ranks: each keeps a part of weights, gradients and
# optimizer state, and before a layer computes, its weights are gathered. With a thousand ranks each gather runs over a thousand ranks, in every
# layer, and over the slowest links. **Hybrid sharding** (HSDP; PyTorch's FSDP with a mesh of two axes) takes a middle way: the shards are dealt out within a node, and every
# node has them all. Weights are gathered within the node alone. What it costs is memory: a model is now cut into g parts, for the g ranks
# of a node, and no longer into one part for each rank of all nodes.
#
# What is left between nodes are the gradients. Each rank has n numbers of them, and needs, for its own shard, the mean over all ranks. How much
# has to cross from node to node?


# %% exercise="hsdp_average" points=9
def hsdp_average(gradients: list[Tensor], within: dist.ProcessGroup, across: dist.ProcessGroup) -> Tensor:
    """This rank's shard of the mean of gradients over all ranks of all nodes.

    gradients: tensors of any shapes, the same on every rank, n numbers in all. Read in the order of
        their indices, they follow one another. They stay as they are.
    within: the g ranks of this node.
    across: the ranks at the same place in `within` of all nodes.

    Returns a new tensor of s = ceil(n / g) numbers of their dtype: on the rank at place i of `within`
    the numbers i s to (i + 1) s of the mean over all ranks, and zeros beyond the last one.

    Calls: one reduce-scatter in `within` and one all-reduce of s numbers in `across`.
    """
    ### BEGIN SOLUTION
    g, nodes = dist.get_world_size(within), dist.get_world_size(across)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    parts = functional.pad(flat, (0, -len(flat) % g)).chunk(g)
    shard = torch.empty_like(parts[0])
    dist.reduce_scatter(shard, list(parts), group=within)
    dist.all_reduce(shard, group=across)
    return shard / (g * nodes)
    ### END SOLUTION


# %% [markdown]
# 64 MiB of gradients on every rank of four nodes with eight devices each, once like this, and once by an all-reduce of everything over all
# 32 ranks. Time, and the most that a rank sends to ranks of other nodes:


# %% demo=true
# %%needs hsdp_average groups
def averaged_like_this(gradient: Tensor) -> None:
    across, within = groups((dist.get_world_size() // 8, 8), dist.get_rank())
    hsdp_average([gradient], within, across)


def averaged_by_all(gradient: Tensor) -> None:
    dist.all_reduce(gradient)


gradient = torch.empty(2**24, device="meta")
crossed, took = {}, {}
for way in (averaged_like_this, averaged_by_all):
    run = launch(way, gradient, cluster=presets.lumi_g(4))
    own = [event for event in run.events if event.rank == 0 and event.kind == "collective"]
    crossed[way] = sum(event.sent for event in own if len({rank // 8 for rank in event.group}) > 1) / 2**20
    took[way] = 1e3 * run.seconds
    print(
        f"{way.__name__:18} {took[way]:6.2f} ms; in groups that cross nodes a rank sends {crossed[way]:6.2f} MiB"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds hsdp_average groups
assert crossed[averaged_like_this] == 2 * 3 / 4 * 64 / 8
assert crossed[averaged_by_all] == 2 * 31 / 32 * 64
assert took[averaged_like_this] < took[averaged_by_all]

# %% [markdown]
# Each rank sends $2\frac{N-1}{N}\frac{n}{g}$ numbers to other nodes, for N nodes: 12 MiB of 64. An all-reduce over all ranks does not know
# where nodes end. (Its ring crosses from node to node in a few places, so not all of its 124 MiB leave a node, but whatever does so has
# to pass there.)

# %% [markdown]
# ## 3 A step along three axes
#
# Now all three. The model is a transformer of `course_lib` that takes a mesh, `MeshTransformer(config, mesh)`. On each rank it is that rank's part: the
# blocks of its stage, and of each block some **branches**. A branch of the attention is one head, and a branch of the MLP a few of the
# hidden units. What comes out of a block is a sum over all branches, so each rank adds up its own, and an all-reduce along the tensor axis
# adds up the rest; in backward another all-reduce brings the whole gradient of what came in. These two are unit 06's conjugate pair, and the model
# makes them itself. Whoever calls it sees a stage like any other, and has to call it on all ranks of the tensor axis alike.

# %% demo=true
small = TransformerConfig(layers=4, width=16, heads=4, vocabulary=32, context=8)


def own_parts() -> tuple[int, list[str]]:
    """How many numbers this rank has of a model on 1 x 2 x 2, and the names of its parameters in the last block it has."""
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=AXES)
    model = MeshTransformer(small, mesh)
    names = [name for name, _ in model.blocks.named_parameters()]
    return sum(parameter.numel() for parameter in model.parameters()), names


parts = launch(own_parts, ranks=4, on=on).results
for rank, (count, names) in enumerate(parts):
    own = [name.split(".attention.branches.") for name in names if name.endswith("output.weight")]
    heads = ", ".join(f"{head[0]} of block {number}" for number, head in own)
    print(f"rank {rank}: {count:,} numbers; heads {heads}")

# %% demo=true jupyter={"source_hidden": true}
for rank, (_, names) in enumerate(parts):
    stage, share = divmod(rank, 2)
    blocks = {int(name.split(".")[0]) for name in names}
    heads = {int(name.split(".branches.")[1].split(".")[0]) for name in names if "attention.branches" in name}
    assert blocks == {2 * stage, 2 * stage + 1}
    assert heads == {2 * share, 2 * share + 1}

# %% [markdown]
# What is left is the step. Which ranks have to talk about a gradient, and which must not?
#
# - Ranks that differ along **tensor** have other branches, whose gradients are their own affair; norms and biases they all have, and the same gradient for
#   them, since all of them saw all of x and all of its gradient. Nothing has to be done.
# - Ranks that differ along **pipeline** have other blocks. One thing is on two stages, though: in a **tied** model the matrix of the
#   embedding is that of the output too. The first stage has a copy and the last has one, and each sees one of the two uses.
# - Ranks that differ along **data** have the same parameters, and have seen other samples.
#
# A sum too many is as wrong as one too few, and as silent. A sum over all ranks of the world is seldom right here.
#
# The mesh says where a rank stands: `mesh.get_local_rank("pipeline")` is its coordinate along an axis, `mesh.size(1)` how long that axis is. Messages along an
# axis go by `group=mesh.get_group("pipeline")` with `group_dst` and `group_src`, which are places within the group. `dst` and `src` would be numbers in the whole world;
# `dist.get_process_group_ranks(group)` has them. Do not compute them: ranks may stand in a mesh in any order.
#
# **The model.** On the first stage it takes tokens [B, T], on the others what the stage before returned, float [B, T, D]. On the last it returns
# logits. `model.empty(B, T)` is room for what arrives, on the right device. Call it once for each micro-batch. The attribute `shared` of a parameter
# is True if the first and the last stage have a copy of it each; if there is one stage, its gradient is whole. The model may be on the device
# "meta", whose tensors have shapes but no numbers; so make new tensors where the model is, and ask for no numbers.
#
# **What may travel in a step:**
#
# - Across each cut, in each direction, one message a micro-batch, point to point.
# - Along data, each gradient in one all-reduce, after the last micro-batch.
# - For shared parameters the sum of the two copies' gradients: a message each way, or a collective in a group of these two ranks.
# - For the loss, collectives of at most 8 bytes. And what the model itself sums.
#
# The pipeline has to be full: with m micro-batches and p stages, stage s sends min(m, p - s) micro-batches on before the first of them is back.


# %% exercise="step_3d" points=18
def step_3d(model: MeshTransformer, batch: list[tuple[Tensor, Tensor]], mesh: DeviceMesh) -> Tensor:
    """One training step on a mesh: forward, backward, and gradients averaged. Returns the loss.

    model: this rank's part of the model. No parameter has a .grad yet.
    batch: of this replica, at least one micro-batch (tokens [B, T], targets [B, T]), of any sizes B.
        All ranks of a replica have it. Replicas have equally many samples in all.
    mesh: with the axes "data", "pipeline" and "tensor", in this order; each may have one rank.

    The loss is the mean of next_token_loss over all samples of all replicas: float32 [], detached, the
    same on all ranks. Afterwards each parameter's .grad is its gradient.
    Parameters and batch stay as they are. What may travel is listed above.
    """
    ### BEGIN SOLUTION
    pipeline, data = mesh.get_group("pipeline"), mesh.get_group("data")
    stage, stages, replicas = mesh.get_local_rank("pipeline"), mesh.size(1), mesh.size(0)
    samples = sum(len(tokens) for tokens, _ in batch)
    loss = model.empty(1, 1).new_zeros(())
    passed = []
    for tokens, targets in batch:
        x = tokens
        if stage > 0:
            x = model.empty(*tokens.shape)
            dist.recv(x, group=pipeline, group_src=stage - 1)
            x.requires_grad_()
        y = model(x)
        if stage < stages - 1:
            dist.send(y.detach(), group=pipeline, group_dst=stage + 1)
        else:
            y = next_token_loss(y, targets) * (len(tokens) / samples)
            loss += y.detach()
        passed.append((x, y))
    for x, y in passed:
        gradient = None
        if stage < stages - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, group=pipeline, group_src=stage + 1)
        torch.autograd.backward(y, gradient)
        if stage > 0:
            dist.send(x.grad, group=pipeline, group_dst=stage - 1)
    for parameter in model.parameters():
        if parameter.shared and stages > 1:
            other, peer = torch.empty_like(parameter.grad), stages - 1 - stage
            sending = dist.isend(parameter.grad, group=pipeline, group_dst=peer)
            dist.recv(other, group=pipeline, group_src=peer)
            sending.wait()
            parameter.grad += other
        dist.all_reduce(parameter.grad, group=data)
        parameter.grad /= replicas
    dist.broadcast(loss, group=pipeline, group_src=stages - 1)
    dist.all_reduce(loss, group=data)
    return loss / replicas
    ### END SOLUTION


# %% [markdown]
# Five meshes of eight ranks, and one rank. A step each on the same sixteen samples of Python's documentation:


# %% demo=true
# %%needs step_3d
def step_on_a_mesh(config: TransformerConfig, samples: tuple[Tensor, Tensor], shape: tuple[int, int, int]):
    """The loss, and this rank's gradients by name. samples: tokens and targets of all replicas."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    own = [part.tensor_split(shape[0])[mesh.get_local_rank("data")] for part in samples]
    batch = list(zip(*(part.split(2) for part in own), strict=True))
    model = MeshTransformer(config, mesh)
    loss = step_3d(model, batch, mesh)
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


text = load_text(32)
sixteen_samples = text.train.batch(torch.arange(16))
config = TransformerConfig(layers=4, width=32, heads=8, context=32)
shapes = ((1, 1, 1), (2, 2, 2), (8, 1, 1), (1, 4, 2), (2, 1, 4), (1, 1, 8))
steps = {
    shape: launch(step_on_a_mesh, config, sixteen_samples, shape, ranks=math.prod(shape)) for shape in shapes
}
alone = steps[1, 1, 1].results[0]
off = {}
for shape, run in steps.items():
    gradients = [(name, gradient) for _, own in run.results for name, gradient in own.items()]
    off[shape] = max(
        (gradient - alone[1].get(name, alone[1]["embedding.tokens.weight"])).abs().max().item()
        for name, gradient in gradients
    )
    sent = max(run.traffic[rank].sent for rank in range(math.prod(shape))) / 2**10
    print(
        f"{' x '.join(map(str, shape)):9}  loss {run.results[0][0]:.6f}, gradients off by at most {off[shape]:.0e}; a rank sends at most {sent:5.0f} KiB"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds step_3d
for shape, run in steps.items():
    assert off[shape] < 1e-5, off
    assert all(abs(loss - alone[0]) < 1e-5 for loss, _ in run.results)

# %% [markdown]
# All of them learn the same, but for the last digits, in which sums of another order differ. (This model is tied: where there are several stages, your
# step has added up the two gradients of the matrix that the first and the last one share.) Which one is fastest, and which one fits at
# all, is the question of sections 9 and 13.
#
# ### Many ranks
#
# On tensors without data your `step_3d` runs on many more: here 2 replicas of 4 stages of 8 ranks, on eight of LUMI-G's nodes, so that each
# tensor-parallel group has a node. Four blocks, one a stage, are each as wide as those of a model with 7 billion parameters; each replica has two micro-batches of
# one sample with 2,048 tokens. What does a rank of a middle stage do along each axis?


# %% demo=true
# %%needs step_3d
def step_of_shapes(tokens: Tensor, config: TransformerConfig, shape: tuple[int, int, int]) -> int:
    """A step, and how many numbers this rank has. tokens: [B, T + 1] of each replica, without data."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(config, mesh, device="meta")
    step_3d(model, [(own[:, :-1], own[:, 1:]) for own in tokens.split(1)], mesh)
    return sum(parameter.numel() for parameter in model.parameters())


wide = TransformerConfig(layers=4, width=4096, heads=8, vocabulary=50_257, context=2048)
shape_of_64 = (2, 4, 8)
tokens = torch.empty(2, 2049, dtype=torch.int64, device="meta")
of_64 = launch(step_of_shapes, tokens, wide, shape_of_64, cluster=presets.lumi_g(8))
along: dict[str, list[float]] = {"tensor": [0, 0, 0], "pipeline": [0, 0, 0], "data": [0, 0, 0]}
for event in of_64.events:
    if event.rank == 8 and event.kind in ("collective", "point-to-point") and event.nbytes > 8:
        axis = {8: "tensor", 2: "data"}.get(len(event.group), "pipeline")
        for place, more in enumerate((1, event.sent / 2**20, 1e3 * event.seconds)):
            along[axis][place] += more
print(
    f"rank 8, with {of_64.results[8]:,} numbers; the step takes {1e3 * of_64.seconds:.0f} ms of virtual time"
)
for axis, (calls, sent, milliseconds) in along.items():
    print(f"  along {axis:9} {calls:3} calls, {sent:7.1f} MiB sent, {milliseconds:6.1f} ms in them")

# %% demo=true jupyter={"source_hidden": true}
# %%holds step_3d
activations = 4 * 2048 * 4096 / 2**20
assert along["tensor"][:2] == [8, 8 * 2 * 7 / 8 * activations]
assert along["pipeline"][:2] == [8, 4 * activations]
assert along["data"][1] == 4 * of_64.results[8] / 2**20

# %% [markdown]
# A block has two all-reduces in each pass, for each of two micro-batches, and each of them sends nearly twice the activations, over
# the links within the node. Along the pipeline activations cross once in each direction; much of the time in these calls is waiting, for
# with two micro-batches and four stages the bubble is large (unit 05). Along data the gradients go once. (The more micro-batches, the more calls along
# tensor and pipeline, and along data still the same.)
#
# `make bench SUBJECTS=hybrid` times your own functions' solution on 8 x 8 x 8, 512 ranks with all their messages: that takes less
# than half a minute on an idle machine, with two micro-batches.

# %% [markdown]
# ## 4 The norm of all gradients
#
# Before the optimizer's step the gradient's norm is measured, and a gradient that is too long is scaled down (unit 09). The norm is that of the whole model's
# gradient. On a mesh no rank has it. A rank has its stage, of that its share; and it also has
# copies of what others have. To add up all ranks' squares counts some numbers many times, and the norm comes out too large. Nothing fails then: all ranks clip by the same factor, a wrong one.
#
# Three attributes of a parameter would say who else has it; in Megatron-LM, as here, there are two, for along data everybody has the
# same. `tensor_model_parallel` says that it is cut along the tensor axis, and `shared` that the first and the last stage have a copy each.


# %% exercise="grad_norm_3d" points=9
def grad_norm_3d(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> Tensor:
    """The norm of the whole model's gradient, the same on every rank: float32 [].

    parameters: of this rank, perhaps none. Their .grad are averaged already; None counts as zeros.
        tensor_model_parallel: True if ranks along "tensor" have a part of it each, False if copies.
        shared: True if the first and the last stage have a copy each; one stage alone has one copy.
    mesh: with the axes "data", "pipeline" and "tensor", in this order.

    Each number of the model counts once; if one is infinite, or NaN, so is the norm. Squares are added
    in float32, or in more. Nothing is changed. Calls: at most two all-reduces of one number each, none
    along "data".
    """
    ### BEGIN SOLUTION
    first_stage, first_share = (mesh.get_local_rank(axis) == 0 for axis in ("pipeline", "tensor"))
    total = torch.zeros(())
    for parameter in parameters:
        counts_here = (parameter.tensor_model_parallel or first_share) and (
            not parameter.shared or first_stage
        )
        if parameter.grad is not None and counts_here:
            total += parameter.grad.float().square().sum()
    for axis in ("tensor", "pipeline"):
        dist.all_reduce(total, group=mesh.get_group(axis))
    return total.sqrt()
    ### END SOLUTION


# %% [markdown]
# The model of section 3 has both attributes. Its norm on four meshes, beside what the squares of all ranks give:


# %% demo=true
# %%needs step_3d grad_norm_3d
def two_norms(config: TransformerConfig, samples: tuple[Tensor, Tensor], shape: tuple[int, int, int]):
    """The norm of the whole gradient; and what comes out if every rank counts all that it has."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    model = MeshTransformer(config, mesh)
    own = [part.tensor_split(shape[0])[mesh.get_local_rank("data")] for part in samples]
    step_3d(model, list(zip(*(part.split(2) for part in own), strict=True)), mesh)
    squares = sum(parameter.grad.square().sum() for parameter in model.parameters())
    dist.all_reduce(squares)
    return grad_norm_3d(model.parameters(), mesh).item(), squares.sqrt().item()


norms = {}
for shape in ((1, 1, 1), (2, 2, 2), (1, 4, 2), (1, 1, 8)):
    norms[shape] = launch(two_norms, config, sixteen_samples, shape, ranks=math.prod(shape)).results[-1]
    print(f"{' x '.join(map(str, shape))}: {norms[shape][0]:.5f}; all ranks' squares: {norms[shape][1]:.5f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds step_3d grad_norm_3d
right = norms[1, 1, 1][0]
assert all(abs(norm / right - 1) < 1e-4 for norm, _ in norms.values())
assert all(counted > 1.1 * right for shape, (_, counted) in norms.items() if shape != (1, 1, 1))
guesses.measured(percent_by_which_the_norm_is_too_large_on_1_x_1_x_8=100 * (norms[1, 1, 8][1] / right - 1))

# %% [markdown]
# Your norm is the same on every mesh. The other one grows with the number of copies, so a run that is moved to another mesh would clip harder, and nobody
# would see why it learns more slowly.

# %% [markdown]
# ## 5 Images cut in space
#
# A climate model's output, a microscope's slide, a tomogram: some samples are so large that one of them, with all the
# activations of a deep network, does not fit into a device. Data parallelism does not help there, since it cannot cut a sample. Nor does it
# help where samples are few: a batch of four keeps four devices busy, and no fifth. But an image has many rows. Cut it
# into horizontal strips, one for each rank: this is **spatial parallelism**.
#
# Most layers do not notice. A ReLU treats each pixel by itself. A convolution does notice, at the cuts: with a kernel
# of 3 × 3 each output needs the pixels one row above and one row below, and at the edge of a strip one of these is another
# rank's. The rows that a rank has to borrow are called its **halo**, or ghost rows; every simulation of a fluid or of the weather on many
# nodes has them.

# %% demo=true jupyter={"source_hidden": true}
figure, axes = new_figure(
    height=3.2,
    alt="On the left an image of nine rows, cut into three strips of three rows, of ranks 0, 1 and 2. On the right the three "
    "strips apart, each with one more row above and one below: a copy of the neighbour's, hatched, or zeros at the image's two outer edges.",
)
with look():
    strip_colours = ("sky_blue", "orange", "bluish_green")
    for row in range(9):
        owner = row // 3
        axes.barh(-row, 3, height=0.9, color=COLOURS[strip_colours[owner]], edgecolor="white")
    for rank in range(3):
        axes.text(-0.2, -3 * rank - 1, f"rank {rank}", ha="right", va="center")
        for place in range(-1, 4):
            row, left = 3 * rank + place, 5 + 4.2 * rank
            inside = 0 <= row < 9
            axes.barh(
                -2 - place, 3, left=left, height=0.9, edgecolor="white" if inside else COLOURS["black"],
                color=COLOURS[strip_colours[row // 3]] if inside else "white",
                hatch="" if place in range(3) or not inside else "////",
            )  # fmt: skip
            if not inside:
                axes.text(left + 1.5, -2 - place, "zeros", ha="center", va="center")
        axes.text(5 + 4.2 * rank + 1.5, 0.2, f"rank {rank} with its halo", ha="center")
axes.set(xlim=(-2, 17), ylim=(-9, 1.2))
axes.axis("off")
figure

# %% [markdown]
# At the image's own edges nobody has a row to lend. There stand zeros, which is what a convolution pads with anyway. And backward? A row that was copied
# has been used in two places.
#
# The exchange costs latency, twice in every convolution, so it matters who waits for whom. `dist.send` may return only when
# its message has been received. If every rank first sends down, then receives from above, only the last one, which has
# nobody below, is free to receive at once; the one above it comes next, and so on up. That ends well, but the more ranks there are, the longer it takes.
#
# For all layers that you write from here to section 7, four things hold:
#
# - `group` has the ranks that share an image; None stands for all.
# - Tensors are float32 or float64. Arguments stay as they are, and so does the gradient that arrives in backward.
# - Each rank has a loss of its own. Gradients are those of the sum of all ranks' losses. An argument needs a gradient on all ranks or on none.
# - A layer may be called several times in one graph, in any groups, beside other uses of its arguments; and backward may run twice.


# %% exercise="halo_exchange" points=15
def halo_exchange(x: Tensor, width: int, group: dist.ProcessGroup | None = None, dim: int = 2) -> Tensor:
    """This rank's strip of an image, with the neighbours' nearest rows on both sides.

    x: [samples, channels, rows, columns]. Along dimension dim, 2 or 3, the image is cut into strips, in
        the order of the ranks. (What follows says rows, as for 2.) Each has at least `width` rows.
    width: at least 0.

    Returns the last `width` rows of the rank before, x, and the first `width` rows of the rank after,
    in one tensor. Above the first strip and below the last one are zeros.

    Messages only: in each pass, each rank sends each neighbour one message of `width` rows. However
    many ranks there are, a pass takes no longer than four such messages.
    """
    ### BEGIN SOLUTION
    return Halo.apply(x, width, group, dim)
    ### END SOLUTION


class Halo(torch.autograd.Function):
    """Rows of the neighbours, and their gradients back."""

    @staticmethod
    def forward(ctx, x: Tensor, width: int, group, dim: int) -> Tensor:
        ### BEGIN SOLUTION
        ctx.rest = width, group, dim
        above, below = swap(x.narrow(dim, 0, width), x.narrow(dim, x.shape[dim] - width, width), group)
        return torch.cat([above, x, below], dim)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ### BEGIN SOLUTION
        width, group, dim = ctx.rest
        above, own, below = gradient.split([width, gradient.shape[dim] - 2 * width, width], dim)
        from_above, from_below = swap(above, below, group)
        own = own.clone()
        own.narrow(dim, 0, width).add_(from_above)
        own.narrow(dim, own.shape[dim] - width, width).add_(from_below)
        return own, None, None, None
        ### END SOLUTION


def swap(up: Tensor, down: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Sends `up` to the rank before and `down` to the one after, and returns what came from these two:
    zeros where there is none. Both passes need it. Only halo_exchange is judged; do it another way if
    you like.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    came = torch.zeros(up.shape).to(up), torch.zeros(down.shape).to(down)
    messages = []
    for peer, going, coming in ((rank - 1, up, came[0]), (rank + 1, down, came[1])):
        if 0 <= peer < size and going.numel():
            messages.append(dist.P2POp(dist.isend, going.contiguous(), group=group, group_peer=peer))
            messages.append(dist.P2POp(dist.irecv, coming, group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()
    return came
    ### END SOLUTION


# %% [markdown]
# Three strips of a column of pixels, 1 to 7, on three ranks:

# %% demo=true
# %%needs halo_exchange
column = torch.arange(1.0, 8).view(1, 1, 7, 1)
strips = column.tensor_split(3, dim=2)
run = launch(halo_exchange, per_rank(strips), 1, ranks=3, on=on)
for rank, strip in enumerate(run.results):
    print(f"rank {rank}: {strips[rank].flatten().tolist()} became {strip.flatten().tolist()}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange
assert [strip.flatten().tolist() for strip in run.results] == [[0, 1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 0]]

# %% [markdown]
# And the order of calls? 4 MiB to each neighbour on a node of LUMI-G: all at once, as yours, beside ranks that send down first and then
# receive.


# %% demo=true
# %%needs halo_exchange
def one_after_another(x: Tensor) -> None:
    """Sends down, then receives from above; and not even anything upwards."""
    rank = dist.get_rank()
    if rank + 1 < dist.get_world_size():
        dist.send(x, rank + 1)
    if rank:
        dist.recv(torch.empty_like(x), rank - 1)


edge = torch.empty(1, 1, 1, 2**20, device="meta")
halo_us = {
    (name, count): 1e6 * launch(way, *given, ranks=count, cluster=presets.lumi_g(1)).seconds
    for name, way, given in (
        ("one after another", one_after_another, (edge,)),
        ("all at once", halo_exchange, (edge, 1)),
    )
    for count in (4, 8)
}
for (name, count), taken in halo_us.items():
    print(f"{name:17}, {count} ranks: {taken:4.0f} µs")

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange
assert halo_us["one after another", 8] > 2 * halo_us["one after another", 4]
assert halo_us["all at once", 8] < 1.05 * halo_us["all at once", 4] < 0.85 * halo_us["one after another", 4]

# %% [markdown]
# With eight ranks the chain takes more than twice as long as with four, though its rows go in one direction only; all at once, in both directions, takes
# as long with eight ranks as with four.

# %% [markdown]
# What a convolution on strips needs beside that is soon said, but one thing is easily forgotten. Pixels are on one rank each; the weight is on all, and each
# copy of it has seen other pixels.


# %% exercise="spatial_conv2d" points=12
def spatial_conv2d(
    x_shard: Tensor, weight: Tensor, group: dist.ProcessGroup | None = None, stride: int = 1
) -> Tensor:
    """This rank's strip of a convolution of an image that is cut into strips.

    x_shard: a strip as for halo_exchange. Each has at least k // 2 rows, and all but the last one a
        multiple of `stride`.
    weight: [filters, channels, k, l], k and l odd, the same on all ranks.

    Returns [samples, filters, ceil(rows / stride), ceil(columns / stride)]: this strip of conv2d of the
    whole image, with k // 2 rows and l // 2 columns of zeros on each side. In backward the weight gets
    the whole gradient, on every rank.

    Calls: messages as in halo_exchange with k // 2 rows, in each pass, and one dist.all_reduce of
    the weight's gradient, if it needs one.
    """
    ### BEGIN SOLUTION
    height, width = weight.shape[2:]

    def summed(gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    own = weight.view_as(weight)  # a hook on the weight itself would see its other uses too
    if own.requires_grad:
        own.register_hook(summed)
    strip = halo_exchange(x_shard, height // 2, group)
    return functional.conv2d(strip, own, stride=stride, padding=(0, width // 2))
    ### END SOLUTION


# %% [markdown]
# Two layers on three strips, beside the same on one rank; a loss on each rank, the sum of the squares of what comes out. On simulated ranks, and on
# real processes:


# %% demo=true
# %%needs halo_exchange spatial_conv2d
def two_layers(strip: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """The result, and the gradients of the image and of both weights."""
    leaves = [each.clone().requires_grad_() for each in (strip, *weights)]
    hidden = torch.relu(spatial_conv2d(leaves[0], leaves[1]))
    result = spatial_conv2d(hidden, leaves[2], stride=2)
    result.square().sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


torch.manual_seed(0)
image = torch.randn(1, 2, 14, 6)
weights = [torch.randn(4, 2, 3, 3), torch.randn(3, 4, 5, 3)]
(whole,) = launch(two_layers, image, weights, ranks=1).results
off = {}
for engine in ("simulated", "processes"):
    run = launch(two_layers, per_rank(image.split([4, 6, 4], 2)), weights, ranks=3, on=engine)
    result, of_image = (torch.cat([part[number] for part in run.results], 2) for number in range(2))
    together = [result, of_image, *run.results[1][2:]]
    off[engine] = max(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(together, whole, strict=True)
    )
    print(f"{engine}: off by {off[engine]:.0e} at most; the middle rank's calls: {run.traffic[1].calls}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange spatial_conv2d
assert max(off.values()) < 1e-5
assert run.traffic[1].calls == {"send": 8, "recv": 8, "all_reduce": 2}

# %% [markdown]
# **Squares in place of strips.** Of a square image on 16 ranks a strip is long and low, and most of it is edge; a square has a smaller edge. The image is cut along two axes of a mesh, and the exchange runs
# twice: rows first, then columns of what came of that. A pixel at the corner, which belongs to a rank diagonally opposite, needs no message of its
# own. It comes along with the second exchange, since the neighbour has it by then:


# %% demo=true
# %%needs halo_exchange
def with_corners(square: Tensor) -> Tensor:
    """A halo of one on all four sides, on a mesh of 2 x 2."""
    by_rows = [dist.new_group(members) for members in ([0, 2], [1, 3])]
    by_columns = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    rank = dist.get_rank()
    taller = halo_exchange(square, 1, by_rows[rank % 2], dim=2)
    return halo_exchange(taller, 1, by_columns[rank // 2], dim=3)


numbers = torch.arange(16.0).view(1, 1, 4, 4)
squares = [part for half in numbers.chunk(2, 2) for part in half.chunk(2, 3)]
run = launch(with_corners, per_rank(squares), ranks=4, on=on)
print(run.results[0][0, 0])

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange
padded = functional.pad(numbers, (1, 1, 1, 1))
for rank, square in enumerate(run.results):
    top, left = 2 * (rank // 2), 2 * (rank % 2)
    assert torch.equal(square, padded[:, :, top : top + 4, left : left + 4])
assert run.results[0][0, 0, 3, 3] == 10

# %% [markdown]
# The 10 at the lower right is rank 3's, to which rank 0 has never spoken.
#
# **One image, many devices.** What is it good for? An image of 2,048 × 2,048 pixels, eight convolutions of 3 × 3 with 64 channels, one
# sample, on one to four nodes of LUMI-G. Data parallelism has no use for the second device: there is one sample. The tensors have shapes
# only; times are the simulator's, and memory is what each rank holds at most.


# %% demo=true
# %%needs halo_exchange spatial_conv2d
def one_image(rows: int, weights: list[nn.Parameter]) -> None:
    """Forward and backward of eight convolutions of a strip of so many rows."""
    hidden = torch.empty(1, 64, rows, 2048, device="meta", requires_grad=True)
    for weight in weights:
        hidden = torch.relu(spatial_conv2d(hidden, weight))
    hidden.sum().backward()


with torch.device("meta"):
    eight = [nn.Parameter(torch.empty(64, 64, 3, 3)) for _ in range(8)]
devices = [1, 2, 4, 8, 16, 32]
in_strips = {
    count: launch(
        one_image,
        2048 // count,
        eight,
        ranks=count,
        cluster=presets.lumi_g(max(1, count // 8)),
        memory=True,
    )
    for count in devices
}
for count, run in in_strips.items():
    faster = in_strips[1].seconds / run.seconds
    held = run.memory.peak / 1e9
    print(f"{count:2} devices: {1e3 * run.seconds:5.1f} ms, {faster:4.1f} times as fast, {held:5.2f} GB each")

# %% demo=true jupyter={"source_hidden": true}
# %%needs halo_exchange spatial_conv2d
figure, panels = new_figure(
    rows=1, columns=2, height=3,
    alt="Two panels over 1 to 32 devices, both axes logarithmic. Left, the speedup: it lies on the ideal line up to 8 devices, at 13 on 16 and at 18 on 32. "
    "Right, memory of a device: it falls along the ideal line from 20 GB to 0.65 GB.",
)  # fmt: skip
with look():
    speedups = [in_strips[1].seconds / in_strips[count].seconds for count in devices]
    held = [in_strips[count].memory.peak / 1e9 for count in devices]
    for axes, seen, ideal, label in (
        (panels[0], speedups, devices, "times as fast as one device"),
        (panels[1], held, [held[0] / count for count in devices], "memory of a device (GB)"),
    ):
        axes.plot(devices, ideal, color=COLOURS["black"], linestyle=":", label="ideal")
        axes.plot(devices, seen, color=COLOURS["blue"], marker="o", label="in strips")
        axes.set(xscale="log", yscale="log", xlabel="devices, one image", ylabel=label, xticks=devices)
        axes.set_xticks(devices, [str(count) for count in devices])
        ticks = devices if axes is panels[0] else [0.5, 1, 2, 5, 10, 20]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.legend()
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange spatial_conv2d
assert speedups[3] > 7.5
assert 12 < speedups[4] < 15
assert 16 < speedups[5] < 21
guesses.measured(times_as_fast_in_strips_on_32_devices_as_on_1=speedups[5])
assert held[0] > 20
assert all(abs(each * count / held[0] - 1) < 0.03 for each, count in zip(held, devices, strict=True))

# %% [markdown]
# On eight devices it is nearly eight times as fast, and each has an eighth of the memory. Beyond a node halos cross the network, and a strip of 64 rows
# has little to compute while it waits: 32 devices are 18 times as fast. Memory goes on falling all the same, and where one image does not fit into a device that is what counts.
# Dryden et al. (2019) built this into LBANN, for large images of the meshes of hydrodynamics simulations, in which a network looks for cells that are about
# to tangle. Their DistConv hides halos too: it computes the inner rows, which need no neighbour, while messages are under way.
#
# ### PyTorch's own
#
# DTensor cuts images by columns, and exchanges halos round a ring. Three times the same columns, on both engines: as `conv2d` of a DTensor gives them; as the
# function of PyTorch gives them that DTensor uses for this, called by hand; and by your halo:


# %% demo=true
# %%needs torch>=2.11 halo_exchange
def by_columns(image: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, str]:
    """This rank's columns of a convolution, in three ways, and what DTensor says where its result
    is."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor._tp_conv import tp_convolution

    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    x, whole = distribute_tensor(image, mesh, [Shard(3)]), distribute_tensor(weight, mesh, [Replicate()])
    as_dtensor = functional.conv2d(x, whole, padding=1)
    own = image.chunk(size, 3)[rank]
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, and so on
    cut_by_width = [-1, -1, -1, 0]
    by_hand = tp_convolution(
        torch.ops.aten.convolution.default, (own, weight, None, *options), {}, cut_by_width
    )
    yours = functional.conv2d(halo_exchange(own, 1, dim=3), weight, padding=(1, 0))
    return yours, as_dtensor.to_local(), by_hand, str(as_dtensor.placements)


torch.manual_seed(0)
given = torch.randn(2, 3, 6, 16), torch.randn(4, 3, 3, 3)
on_both = {engine: launch(by_columns, *given, ranks=4, on=engine) for engine in ("simulated", "processes")}
for engine, run in on_both.items():
    yours, as_dtensor, by_hand, placements = run.results[1]
    other = [100 * (~torch.isclose(each, yours, atol=1e-5)).float().mean() for each in (as_dtensor, by_hand)]
    print(f"{engine}, rank 1: of DTensor's numbers {other[0]:.0f} % differ from yours, of its function's {other[1]:.0f} %; "
          f"DTensor says {placements}")  # fmt: skip

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.11 halo_exchange
whole = functional.conv2d(*given, padding=1)
for run in on_both.values():
    torch.testing.assert_close(torch.cat([yours for yours, _, _, _ in run.results], 3), whole)
    torch.testing.assert_close(torch.cat([by_hand for _, _, by_hand, _ in run.results], 3), whole)
if torch.__version__.startswith("2.13."):
    for run in on_both.values():
        assert {placements for _, _, _, placements in run.results} == {"(Replicate(),)"}
        for rank, (yours, as_dtensor, _, _) in enumerate(run.results):
            wrong = (~torch.isclose(as_dtensor, yours, atol=1e-5)).any(0).any(0).any(0).tolist()
            assert wrong == [rank > 0, False, False, rank < 3]

# %% [markdown]
# Its function agrees. But in PyTorch 2.13 `conv2d` of a DTensor does not get that far: it takes the result for
# replicated, so no halo is exchanged, and all columns beside a cut are computed as if there were zeros. Nothing warns. (Backward is
# wrong there too: pytorch/pytorch, issue 191926, calls it a regression from 2.12.) So compare with one rank before you rely on a library's layout. Its function
# has limits that are intended: with padding the stride has to be 1, it is the width that is cut, and the first rank sends to the last one too, who throws it away.

# %% [markdown]
# ## 6 Convolutions cut three ways
#
# Strips are good where images are large. Deep in a network for pictures they are small, 7 × 7 pixels and 2,048 channels in the last layers of ResNet-50:
# there are no rows to cut, but many channels. So cut those: each rank has all pixels of some of the
# channels. A layer then takes channels cut over ranks and has to return its filters' results cut over ranks, for they are the next layer's channels.
#
# | | image | weight | result |
# |---|---|---|---|
# | `spatial_conv2d` | some rows | all of it | some rows |
# | `filter_parallel_conv` | some channels | some filters, for all channels | some filters' |
# | `channel_parallel_conv` | some channels | all filters, for some channels | some filters' |
#
# Unlike with strips, no rank keeps the whole weight, and no weight's gradient has to be summed over ranks. The price is that activations move. In
# both ways each pass has one collective; which one it is, and of what, is where they differ. (It is Megatron-LM's pair
# of column- and row-parallel layers from unit 06 again, but for the fact that here the activations are cut before and after. Dryden et al.
# (SC 2019) call the first way stationary-y, for no result moves, and the second stationary-x.)


# %% exercise="filter_parallel_conv" points=11
def filter_parallel_conv(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's filters' results, from an image whose channels are cut over ranks.

    x_shard: [samples, C / p, rows, columns]: of C channels the r-th part, on rank r of p.
    weight_shard: [F / p, C, k, l], k and l odd: the r-th part of F filters, for all channels.

    Returns [samples, F / p, rows, columns]: conv2d of the whole image by this rank's filters, with
    k // 2 rows and l // 2 columns of zeros on each side.

    Calls: one all-gather of x_shard in forward, and one reduce-scatter in backward, if x_shard needs a
    gradient. In each a rank sends at most (p - 1) / p of the whole image's bytes.
    """
    ### BEGIN SOLUTION
    return padded_conv2d(Gather.apply(x_shard, group), weight_shard)
    ### END SOLUTION


class Gather(torch.autograd.Function):
    """All ranks' channels. Use it if you like; only filter_parallel_conv is judged."""

    @staticmethod
    def forward(ctx, x_shard: Tensor, group) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        return gathered(x_shard, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        return summed_and_cut(gradient, ctx.group), None
        ### END SOLUTION


def gathered(shard: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The whole of what is cut along dimension 1. By one all-gather."""
    ### BEGIN SOLUTION
    parts = [shard.new_empty(shard.shape) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, shard.contiguous(), group=group)
    return torch.cat(parts, 1)
    ### END SOLUTION


def summed_and_cut(partial: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's part, along dimension 1, of the sum over ranks. By one reduce-scatter."""
    ### BEGIN SOLUTION
    parts = [part.contiguous() for part in partial.chunk(dist.get_world_size(group), 1)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own
    ### END SOLUTION


def padded_conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """conv2d with as many zeros around that the result has the image's size; the kernel is odd."""
    return functional.conv2d(x, weight, padding=(weight.shape[2] // 2, weight.shape[3] // 2))


# %% [markdown]
# In the other way each rank begins to compute with what it has.


# %% exercise="channel_parallel_conv" points=11
def channel_parallel_conv(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's filters' results, from weights that are cut by channels, as the image is.

    x_shard, group: as for filter_parallel_conv. weight_shard: [F, C / p, k, l]: all F filters, for this
        rank's channels.

    Returns [samples, F / p, rows, columns], the same as filter_parallel_conv.

    Calls: one reduce-scatter in forward, and one all-gather in backward, of the gradient that arrives.
    In each a rank sends at most (p - 1) / p of the whole result's bytes.
    """
    ### BEGIN SOLUTION
    return Scatter.apply(padded_conv2d(x_shard, weight_shard), group)
    ### END SOLUTION


class Scatter(torch.autograd.Function):
    """This rank's filters of the sum over ranks. Use it if you like."""

    @staticmethod
    def forward(ctx, partial: Tensor, group) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        return summed_and_cut(partial, group)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        return gathered(gradient, ctx.group), None
        ### END SOLUTION


# %% [markdown]
# ### Which way is the cheapest?
#
# Convolutions of ResNet-50 on four ranks, one image and 32: how many bytes does a rank send in forward and backward together?


# %% demo=true
# %%needs halo_exchange spatial_conv2d filter_parallel_conv channel_parallel_conv
def both_passes(conv: Callable[[Tensor, Tensor], Tensor], x_shard: Tensor, weight: Tensor) -> None:
    """Forward and backward, with shapes only."""
    conv(x_shard.requires_grad_(), weight.requires_grad_()).sum().backward()


LAYERS = {  # channels, filters, pixels of a side, kernel
    "3 x 3, 64 to 64, 56 pixels": (64, 64, 56, 3),
    "3 x 3, 128 to 128, 28 pixels": (128, 128, 28, 3),
    "3 x 3, 256 to 256, 14 pixels": (256, 256, 14, 3),
    "3 x 3, 512 to 512, 7 pixels": (512, 512, 7, 3),
    "1 x 1, 256 to 64, 56 pixels": (256, 64, 56, 1),
    "1 x 1, 64 to 256, 56 pixels": (64, 256, 56, 1),
}


def megabytes(samples: int, channels: int, filters: int, side: int, kernel: int) -> list[float]:
    """What a rank that has neighbours on both sides sends: in space, by filters, by channels."""
    heights = [len(part) for part in torch.arange(side).tensor_split(4)]
    with torch.device("meta"):
        cut = torch.empty(samples, channels // 4, side, side)
        ways = (
            (
                spatial_conv2d,
                per_rank([torch.empty(samples, channels, height, side) for height in heights]),
                torch.empty(filters, channels, kernel, kernel),
            ),
            (filter_parallel_conv, cut, torch.empty(filters // 4, channels, kernel, kernel)),
            (channel_parallel_conv, cut, torch.empty(filters, channels // 4, kernel, kernel)),
        )
    return [launch(both_passes, *way, ranks=4).traffic[1].sent / 1e6 for way in ways]


sent_mb = {(images, name): megabytes(images, *layer) for images in (1, 32) for name, layer in LAYERS.items()}
print(f"{'megabytes a rank':44} {'in space':>9} {'by filters':>11} {'by channels':>12}")
for (images, name), (space, filters, channels) in sent_mb.items():
    print(
        f"{images:2} image{'s' if images > 1 else ' '}, {name:33} {space:9.2f} {filters:11.2f} {channels:12.2f}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds halo_exchange spatial_conv2d filter_parallel_conv channel_parallel_conv
names = list(LAYERS)
for images in (1, 32):
    first, last = sent_mb[images, names[0]], sent_mb[images, names[3]]
    assert first[0] < first[1] == first[2]
    assert last[0] > 3 * last[1]
    down, up = sent_mb[images, names[4]], sent_mb[images, names[5]]
    assert abs(down[1] / down[2] - 4) < 0.01
    assert abs(up[2] / up[1] - 4) < 0.01
assert sent_mb[1, names[3]][0] > 90 * sent_mb[1, names[3]][1]

# %% [markdown]
# In the first layers images are large and weights small: strips send a row of pixels and a little weight. In the last
# ones it is the other way round: with one image a strip's rank sends more than ninety times what the other two ways do, nearly all of it the weight's gradient. So a network changes from one to the other
# on its way. Between the other two the smaller tensor decides: all that `filter_parallel_conv` moves is the image, all that `channel_parallel_conv` moves is
# the result. Where 256 channels become 64, the second sends a quarter; where 64 become 256, the first. Alternate them as these layers alternate.
# (With many samples on few ranks there is still the simplest way: each rank its samples. It sends the weight's gradient only, and no pixel.)

# %% [markdown]
# ## 7 Statistics of all samples
#
# Convolutional networks are full of **batch normalisation**: each channel is shifted and scaled so that over the batch and all pixels it has
# mean 0 and variance 1. Cut the batch or the image, and each rank has statistics of its own part only. With 32 images a device nobody minds: data
# parallelism usually leaves it so. With one image on eight devices it is wrong: the strip with the sky would be
# normalised to the same mean as the strip with the forest, and the network would no longer compute what it does on one device.
#
# So the statistics have to be those of all ranks. Two traps are on the way. Parts differ in size, so that a mean of means is wrong. And
# the variance as the mean of squares less the square of the mean loses its digits where the mean is large: with a mean of 3,000 and a variance
# of 1 it is a difference of two numbers near nine million, and float32 is exact to about one of these.


# %% exercise="synchronised_batch_norm" points=13
def synchronised_batch_norm(
    x_shard: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Batch normalisation of this rank's part, by mean and variance over all ranks' parts.

    x_shard: [samples, C, rows, columns]: a part of the batch or of the image. Parts may differ in
        all but C, and one may be empty.
    weight, bias: [C], the same on all ranks. All three need a gradient, or none.

    Returns (x_shard - mean) / sqrt(variance + eps) * weight + bias, with a channel's mean and
    variance over all ranks, exact to 0.01 even if the mean is 3,000 standard deviations. In backward,
    weight and bias get the whole gradient, on every rank.

    Calls: one collective in each pass: forward of at most 2 C + 1 numbers a rank, backward of 2 C.
    """
    ### BEGIN SOLUTION
    return Normalise.apply(x_shard, weight, bias, eps, group)
    ### END SOLUTION


class Normalise(torch.autograd.Function):
    """Both passes; use it if you like, only synchronised_batch_norm is judged."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group) -> Tensor:
        ### BEGIN SOLUTION
        own = x.new_tensor([x.numel() // x.shape[1]])
        own_mean = x.sum(PIXELS) / own.clamp(min=1)
        own_squares = (x - by_channel(own_mean)).square().sum(PIXELS)
        packed = torch.cat([own, own_mean, own_squares])
        everyone = packed.new_empty(dist.get_world_size(group) * len(packed))
        dist.all_gather_into_tensor(everyone, packed, group=group)
        numbers, means, squares = everyone.view(-1, len(packed)).split([1, len(weight), len(weight)], 1)
        total = numbers.sum()
        mean = (numbers * means).sum(0) / total
        variance = (squares + numbers * (means - mean).square()).sum(0) / total
        scale = (variance + eps).rsqrt()
        x_hat = (x - by_channel(mean)) * by_channel(scale)
        ctx.save_for_backward(x_hat, weight, scale, total)
        ctx.group = group
        return x_hat * by_channel(weight) + by_channel(bias)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        ### BEGIN SOLUTION
        x_hat, weight, scale, total = ctx.saved_tensors
        sums = torch.stack([gradient.sum(PIXELS), (gradient * x_hat).sum(PIXELS)])
        dist.all_reduce(sums, group=ctx.group)
        of_bias, of_weight = sums
        mean_part, variance_part = by_channel(of_bias / total), by_channel(of_weight / total)
        of_x = (gradient - mean_part - x_hat * variance_part) * by_channel(weight * scale)
        return of_x, of_weight, of_bias, None, None
        ### END SOLUTION


PIXELS = (0, 2, 3)
"""The dimensions over which a channel's statistics go."""


def by_channel(numbers: Tensor) -> Tensor:
    """[C] as [C, 1, 1], which goes with [samples, C, rows, columns]."""
    return numbers.view(-1, 1, 1)


# %% [markdown]
# Three strips of an image that gets brighter from top to bottom, with statistics of each strip and of all:

# %% demo=true
# %%needs synchronised_batch_norm
picture = torch.arange(9.0).view(1, 1, 9, 1)
strips = picture.tensor_split(3, dim=2)
run = launch(synchronised_batch_norm, per_rank(strips), torch.ones(1), torch.zeros(1), ranks=3, on=on)
alone = [functional.batch_norm(strip, None, None, training=True) for strip in strips]
for name, parts in (("each by itself", alone), ("synchronised", run.results)):
    print(f"{name:15}", ["  ".join(f"{each:5.2f}" for each in part.flatten().tolist()) for part in parts])

# %% demo=true jupyter={"source_hidden": true}
# %%holds synchronised_batch_norm
torch.testing.assert_close(
    torch.cat(run.results, 2), functional.batch_norm(picture, None, None, training=True)
)
assert all(torch.allclose(alone[0], part, atol=1e-5) for part in alone)
nine_million = torch.tensor(3000.0) ** 2
assert nine_million.nextafter(2 * nine_million) - nine_million == 1
assert run.traffic[0].calls == {"all_gather_into_tensor": 1}

# %% [markdown]
# By itself each strip comes out the same: that the lower ones are brighter is lost.

# %% [markdown]
# PyTorch's own is `torch.nn.SyncBatchNorm`; `torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` puts it in place of all batch normalisations of a model. It gathers mean,
# inverse standard deviation and number of each rank: 2 C + 1 numbers, as yours may. Two differences: it runs on
# GPUs only, and the gradients of weight and bias are each rank's own part, since it counts on DDP to average them afterwards.


# %% demo=true
def on_cpus() -> str:
    """What SyncBatchNorm says to tensors on a CPU."""
    try:
        nn.SyncBatchNorm(2)(torch.randn(3, 2, 4, 4))
    except ValueError as error:
        return str(error)
    return "it works"


print(launch(on_cpus, ranks=2, on=on).results[0])

# %% [markdown]
# ## 8 A tournament of trainers
#
# All that this unit has done so far cuts one training. LBANN, the Livermore Big Artificial Neural Network toolkit, has one more axis on top, of another
# kind: several **trainers**, each of which may have many GPUs, train models of their own, on parts of the data of their own. Nothing is averaged. Every now and
# then trainers meet in pairs that are drawn anew each time, and swap models. Each of the two now has two models, tries both on samples that
# it has kept for this, and goes on with the better one. Good models spread, and with them what they
# have learnt from data that the new owner has never seen; bad ones die out. This is the tournament of Jacobs et al. (2019), in LBANN called LTFB.
#
# One round costs one model's bytes a trainer, however many trainers there are, and nobody waits for more than one other.


# %% exercise="tournament" points=12
def tournament(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    seed: int,
    group: dist.ProcessGroup | None = None,
) -> float:
    """One round: trainers meet in pairs, and each goes on with the better of two models.

    model: of the same layers on every rank of the group (None: all), with other numbers.
    score: score(model) is larger for a better model, on this rank's own samples. NaN is a model that
        has diverged: any number is better.
    seed: the same on all ranks. Of torch.randperm(p, generator=torch.Generator().manual_seed(seed)),
        places 0 and 1 meet, 2 and 3, and so on; an odd one rests.

    Afterwards `model` holds, in its own tensors, the parameters and buffers of the better model, its
    own if both are equal. Returns that score. Global random states stay.

    Messages only: partners send each other each parameter and buffer once.
    """
    ### BEGIN SOLUTION
    order = torch.randperm(dist.get_world_size(group), generator=torch.Generator().manual_seed(seed)).tolist()
    place = order.index(dist.get_rank(group)) ^ 1
    own_score = score(model)
    if place == len(order):
        return own_score
    held = [each.detach() for each in (*model.parameters(), *model.buffers())]
    own = [each.clone(memory_format=torch.contiguous_format) for each in held]
    theirs = [torch.empty_like(each) for each in own]
    messages = [
        dist.P2POp(call, each, group=group, group_peer=order[place])
        for call, tensors in ((dist.isend, own), (dist.irecv, theirs))
        for each in tensors
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    fill(held, theirs)
    their_score = score(model)
    if their_score > own_score or (math.isnan(own_score) and not math.isnan(their_score)):
        return their_score
    fill(held, own)
    return own_score
    ### END SOLUTION


def fill(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Write values into tensors, each of the same shape."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


# %% [markdown]
# Eight trainers learn to read digits. Each has an eighth of the data, and a learning rate that was drawn for it between 0.001 and 3.2: some are far too
# small, some too large. After every 15 steps there is a round, or there is none:


# %% demo=true
# %%needs tournament
reading = load("digits")


def trainer(seed: int, meet: bool, rounds: int = 12, steps: int = 15) -> list[float]:
    """Trains a small network on this rank's digits; after each round its accuracy on digits that nobody
    has."""
    rank, train, test = dist.get_rank(), reading.train, reading.test
    own = torch.arange(rank, len(train), dist.get_world_size())
    judged, own = own[:32], own[32:]
    torch.manual_seed(100 * seed + rank)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=10 ** (-3 + 3.5 * torch.rand(1).item()))

    @torch.no_grad()
    def score(model: nn.Module) -> float:
        return -functional.cross_entropy(model(train.images[judged]), train.labels[judged]).item()

    accuracy = []
    for number in range(rounds):
        for _ in range(steps):
            batch = own[torch.randint(len(own), (16,))]
            optimizer.zero_grad()
            functional.cross_entropy(net(train.images[batch]), train.labels[batch]).backward()
            optimizer.step()
        if meet:
            tournament(net, score, 100 * seed + number)
        with torch.no_grad():
            right = net(test.images).argmax(1) == test.labels
        accuracy.append(100 * right.float().mean().item())
    return accuracy


learnt = {(seed, meet): launch(trainer, seed, meet, ranks=8) for seed in range(3) for meet in (False, True)}
for (seed, meet), run in learnt.items():
    last = [curve[-1] for curve in run.results]
    way = "with rounds" if meet else "alone      "
    print(
        f"seed {seed}, {way}: mean {sum(last) / 8:4.1f} %, best {max(last):4.1f} %, worst {min(last):4.1f} %"
    )
model_bytes = 4 * (64 * 32 + 32 + 32 * 10 + 10)
sent_kb = learnt[0, True].traffic[0].sent / 1e3
print(f"a trainer sent {sent_kb:.0f} kB in 12 rounds; all-reduces in each of 180 steps would send "
      f"{180 * 2 * 7 / 8 * model_bytes / 1e3:,.0f} kB")  # fmt: skip

# %% demo=true jupyter={"source_hidden": true}
# %%needs tournament
figure, axes = new_figure(
    height=3,
    alt="Mean accuracy of eight trainers over 12 rounds, for three seeds each. With tournaments all three curves rise to about "
    "90 %; alone they end between 40 and 65 %.",
)
with look():
    for (seed, meet), run in learnt.items():
        mean = [sum(each) / 8 for each in zip(*run.results, strict=True)]
        axes.plot(
            range(1, 13), mean, color=COLOURS["blue" if meet else "vermillion"], linestyle="-" if meet else "--",
            marker="o" if meet else "s", label=("with rounds" if meet else "alone") if not seed else None,
        )  # fmt: skip
    axes.set(xlabel="round", ylabel="mean accuracy of the trainers (%)", ylim=(0, 100))
    axes.legend()
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds tournament
for seed in range(3):
    alone, meeting = (sum(curve[-1] for curve in learnt[seed, meet].results) / 8 for meet in (False, True))
    assert meeting > alone + 12, (seed, alone, meeting)
assert learnt[0, True].traffic[0].sent == 12 * model_bytes
assert 25 < 180 * 2 * 7 / 8 / 12 < 27

# %% [markdown]
# Alone, a trainer with a bad learning rate stays bad. With rounds all get hold of good weights, with each of the three seeds, for less than
# a twentieth of the bytes of data parallelism. (A model that has just been
# won can be ruined by the new owner's learning rate until the next round. Population based training, Jaderberg et al. 2017, hands that on with the weights.)
#
# Jacobs et al. trained so a network of several parts, an adversarial one among them, on tens of millions of simulations of fusion experiments. With 64 trainers of 16 GPUs each they report to be 70.2 times
# as fast as with one trainer, which they call 109 % of what is ideal. How can 64 do more than 64 times the work? A likely answer: the
# baseline is one trainer on 16 GPUs with *all* of the data, and 64 of them share it. What must be read, shuffled and kept is 64 times smaller for each; what did not fit
# into the memory of the one's nodes does fit now. So the yardstick is slow, not the team unusually fast: an efficiency above 100 % nearly always means that
# the work is not the same. And data parallelism is inside each trainer: 16 GPUs all-reduce, 1,024 do not.

# %% [markdown]
# ## 9 What each axis costs
#
# Each axis saves something and costs something. A wider **tensor** axis means less memory for weights, and less to compute on each
# device for a sample, and two all-reduces of activations in every block and pass. A longer **pipeline** means fewer blocks on each device, and
# stages that wait. More **copies** save no weights at all, and the gradients have to be averaged, once in a step.
#
# How much each of them costs depends on the links that it gets. Here is a transformer of 32 blocks of width 4,096, 64 samples of 2,048 tokens in
# a step, on 32 devices of two machines: four nodes of LUMI-G, and four nodes with H100 cards. `step_time` puts a step together from simulated parts:
# `course_lib.training.mesh_step` says how. The tensor axis grows from 1 to 32, the rest are copies. Then the same 32 devices with four stages, one on each node.

# %% demo=true
large = TransformerConfig(layers=32, width=4096, heads=32, vocabulary=51200, context=2048)
machines = [presets.lumi_g(nodes=4), presets.h100_pod(nodes=4)]
shapes = [Mesh(32 // tensor, 1, tensor) for tensor in (1, 2, 4, 8, 16, 32)] + [Mesh(1, 4, 8)]
steps = {machine.name: [step_time(Job(large, 64, machine), mesh) for mesh in shapes] for machine in machines}
for name, times in steps.items():
    for mesh, time in zip(shapes, times, strict=True):
        print(
            f"{name:9} {mesh.data:2} x {mesh.pipeline} x {mesh.tensor:2}: {time.seconds:5.2f} s, of which computing "
            f"{time.computing:5.2f}, tensor {time.tensor:5.2f}, waiting {time.waiting:.2f}, data {time.data:.2f}"
        )

# %% demo=true jupyter={"source_hidden": true}
parts = {"computing": "sky_blue", "tensor": "vermillion", "waiting": "yellow", "data": "bluish_green"}
figure, both = new_figure(
    alt="Seconds of a step for tensor axes of 1 to 32 devices and for a pipeline, in parts. "
    + "; ".join(
        f"{name}: " + ", ".join(f"{tuple(mesh)} {time.seconds:.1f} s" for mesh, time in zip(shapes, times))
        for name, times in steps.items()
    ),
    columns=2,
    height=3.6,
)
for axes, (name, times) in zip(both, steps.items(), strict=True):
    labels = [f"{mesh.data} x {mesh.pipeline} x {mesh.tensor}" for mesh in shapes]
    left = [0.0] * len(times)
    for (part, colour), hatch in zip(parts.items(), ("", "//", "..", "xx"), strict=True):
        widths = [getattr(time, part) for time in times]
        axes.barh(
            labels, widths, left=left, color=COLOURS[colour], hatch=hatch, edgecolor="black", label=part
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set(title=name, xlabel="a step (s)")
    axes.invert_yaxis()
both[0].set_ylabel("data x pipeline x tensor")
both[1].legend(loc="upper right")
figure

# %% demo=true jupyter={"source_hidden": true}
lumi, h100 = steps["LUMI-G"], steps["H100 pod"]
assert [round(times[4].seconds / times[3].seconds, 1) for times in (lumi, h100)] == [1.7, 2.5]
assert [round(times[4].tensor / times[3].tensor, 1) for times in (lumi, h100)] == [5.4, 16.6]
assert round(machines[1].intra_node.bandwidth / machines[1].inter_node.bandwidth, 1) == 7.4
assert machines[0].intra_node.bandwidth / machines[0].inter_node.bandwidth == 2
assert all(times[6].seconds < 1.04 * times[3].seconds for times in (lumi, h100))
assert all(times[5].computing < 1.11 * times[0].computing for times in (lumi, h100))
held = [memory_bytes(Job(large, 64, machines[1]), mesh) / 1e9 for mesh in shapes]
assert [round(held[place]) for place in (0, 3, 6)] == [105, 22, 12]

# %% [markdown]
# Within a node the tensor axis costs little. Where it leaves the node, from 8 to 16, its all-reduces take 5.4 times as long on LUMI-G
# and 16.6 times on the H100 nodes, and the whole step 1.7 and 2.5 times. A ring is as slow as its slowest link. On the H100 nodes that
# link has a 7.4th of the bandwidth; and with half as many copies, each device sees twice as many samples. LUMI-G's
# two links differ by a factor of 2 only, but devices share network cards.
#
# The faster the links within a node are, the more is lost by leaving it. **Tensor parallelism across nodes loses**, and pipelines are what
# crosses nodes at little cost: 1 x 4 x 8 takes at most 4 % longer than 4 x 1 x 8, and a device holds 12 GB instead of 22.
# Copies alone would hold 105 GB on each device, more than any of these devices has. So the rule of thumb is: the tensor axis as wide as a node at most, stages until the
# model fits, copies with what is left (Narayanan et al. 2021, section 3). Section 13 has machines where this rule is wrong.
#
# ### Ten frameworks
#
# Nichols et al. (2021) have a table of ten frameworks: which parallelism each offers, the most accelerators and the largest network that it was shown
# with. Multiply: Adam in mixed precision takes 16 bytes a parameter (unit 09). What would a device of each row have to hold?

# %% demo=true
from course_lib.published.frameworks import FRAMEWORKS, frameworks_figure

for each in FRAMEWORKS:
    by_kind = f", by its kind {each.as_said / 1e9:6.1f} GB" if each.as_said else ""
    print(
        f"{each.name:16} {each.kind:12} {each.accelerators:5} devices {each.parameters / 1e9:8.3f} billion: "
        f"{each.least / 1e9:7.3f} to {each.most / 1e9:7.1f} GB a device{by_kind}"
    )
frameworks_figure()

# %% demo=true jupyter={"source_hidden": true}
frameworks = {each.name: each for each in FRAMEWORKS}
assert [round(frameworks[name].most / 1e9) for name in ("KARMA", "LBANN", "ZeRO")] == [272, 1258, 1600]
assert round(frameworks["Megatron-LM"].as_said / 1e9, 1) == 16.6
assert round((2 + 14 / 25) * 100 / 16) == 16
assert sum(each.kind == "data" and each.most > 80e9 for each in FRAMEWORKS) == 3

# %% [markdown]
# A bar reaches from one copy that all devices share to a copy for each. The three rows with the largest networks say "data",
# and a copy of theirs needs 272, 1,258 and 1,600 GB. No device has that. So their kind must be more than copies: KARMA keeps most of the
# states in the host's memory (unit 09). ZeRO has 400 devices: 16 split each layer, and 400 / 16 = 25 copies of that keep 2 bytes of a weight each and share out the other
# 14, so that a device has (2 + 14/25) / 16 bytes a parameter, which is 16 GB; and LBANN splits single samples and layers (sections 5 and 6). Megatron-LM's 512 devices are 64 copies on 8 devices each, so 16.6 GB.
# One word for a framework hides what it does: the largest networks are all trained in a hybrid way.

# %% [markdown]
# ## 10 The whole against published tables
#
# Everything that this course simulates rests on few rules: a device takes the longer of its operations and its bytes (the
# roofline), a message takes its latency and its bytes over the bandwidth, collectives are rings and trees, a pipeline has a bubble. Each rule has been
# tested alone. Do they, put together, say what large machines really did?
#
# So take measurements that others published, and predict them:
#
# - D. Narayanan et al. (2021) trained ten models with Megatron-LM, from 1.7 billion parameters on 32 A100 to a thousand billion on
#   3,072, with data, pipeline and tensor parallelism. Their table 1 has the cut, the batch and the operations a second of each GPU.
# - M. Shoeybi et al. (2019), the first Megatron-LM, on up to 512 V100. S. Rajbhandari et al. (2020), ZeRO, on 400.
# - Image networks with copies alone: FireCaffe (F. Iandola et al., 2016), P. Goyal et al. (2017), Horovod's documentation (2018).
#
# A row says how many devices there were, and how they were cut: data x pipeline x tensor for transformers, nodes x GPUs of a node for
# image networks, which have copies alone.
#
# What may go into such a prediction? The model, the machine's data sheet and the cut, as the source gives them; and one number for
# a type of GPU: what it reaches in matrix products. Somebody else measured that, on one GPU: 230 TFLOP/s on an A100
# ([transformers-benchmarks](https://github.com/mli/transformers-benchmarks)), 95 on a V100. For the image networks it is the speed of one GPU
# with that very network. No number is chosen so that a row comes out right, and no row's measurement goes into its own prediction.
# A step is that of `course_lib.training.mesh_step`, with the head, and with what Megatron-LM's program does besides: gradients of micro-batches are
# added up, dropouts keep masks, the optimizer goes through its states, and a stage waits for each of its messages. What is
# counted was settled with the tables in view; how much each thing takes was not: that follows from the program. `course_lib.published` has
# all inputs with their sources.

# %% demo=true
from course_lib.published import predictions
from course_lib.published.drawing import published_figure

rows = list(predictions())
print(f"{'':53} published predicted {'':22} error")
for row in rows:
    print(
        f"{row.source:17} {row.what:35} {row.measured:9.1f} {row.predicted:9.1f} {row.unit:22} {row.error:+5.0%}"
    )
published_figure(rows)

# %% demo=true jupyter={"source_hidden": true}
errors = {}
for row in rows:
    errors.setdefault(row.source, []).append(row.error)
table_1 = sorted(map(abs, errors["Narayanan 2021"]))
assert len(table_1) == 10
assert max(table_1) < 0.12
assert round(100 * (table_1[4] + table_1[5]) / 2) == 9
assert min(errors["Narayanan 2021"]) > 0
of_table_1 = [row for row in rows if row.source == "Narayanan 2021"]
assert all(
    one.predicted > other.predicted
    for one in of_table_1
    for other in of_table_1
    if one.measured > 1.1 * other.measured
)
assert max(abs(error) for source in ("Horovod 2018", "Goyal 2017") for error in errors[source]) < 0.15
everything = sorted(abs(row.error) for row in rows)
assert len(everything) == 21
assert [round(100 * everything[place]) for place in (10, 20)] == [11, 63]
by_name = {(row.source, row.what): row for row in rows}
small = [by_name["Shoeybi 2019", f"1.2 billion on {t} = 1 x 1 x {t}"] for t in (2, 4, 8)]
assert [round(100 * row.error) for row in small] == [10, 29, 49]
assert round(100 * by_name["Shoeybi 2019", "8.3 billion on 8 = 1 x 1 x 8"].error) == 1
slower, faster = small[1], by_name["Shoeybi 2019", "8.3 billion on 512 = 64 x 1 x 8"]
assert faster.measured > 1.1 * slower.measured
assert faster.predicted < slower.predicted
assert round(faster.predicted) == 54
of_firecaffe = [row for row in rows if row.source == "Iandola 2016"]
assert [round(row.predicted) for row in of_firecaffe] == [89, 60]
assert [round(row.measured, 1) for row in of_firecaffe] == [62.5, 36.7]
on_one = 1024 * 21 * 86_400 / (2_400_000 * 32)
theirs, ours = (
    [100 * on_one / count / share for count, share in zip((32, 128), shares, strict=True)]
    for shares in ([row.measured for row in of_firecaffe], [row.predicted for row in of_firecaffe])
)
assert [round(each, 2) for each in (*theirs, *ours)] == [1.21, 0.51, 0.85, 0.32]
assert [round(a - b, 2) for a, b in zip(theirs, ours, strict=True)] == [0.36, 0.2]
of_zero = by_name["Rajbhandari 2020", "100 billion on 400 = 25 x 1 x 16"].predicted
assert [round(of_zero), round(0.75 * of_zero)] == [52, 39]

# %% [markdown]
# Over all 21 rows the median error is 11 %, and the worst is 63 %. It is worth more to see where a prediction fails, and why, than to
# turn a knob until it does not.
#
# **Where it holds.** All ten rows of Narayanan's table are met within 12 %, with a median error of 9 %, from 32 devices to 3,072. All
# ten predictions are too fast, so something is missing everywhere. We know of two things that we left out: nobody reads memory at its
# peak, and few matrix products have a shape with which a GPU is as fast as with the best. Where two rows of that table differ by more than a
# tenth, the prediction knows which one is faster; and that is what one predicts for. Over all sources it need not: below are rows whose order it turns round. Horovod's and Goyal's numbers are met within 15 %.
#
# **Small pieces.** Shoeybi cut a model of 1.2 billion parameters among 2, 4 and 8 GPUs, for the same batch. We are 10 %, 29 % and
# 49 % too fast. The roofline believes that half a matrix product takes half as long. A GPU does not: small products fill it badly,
# and starting an operation takes microseconds however small it is. For 8.3 billion parameters on 8 GPUs, where the pieces
# are large, the error is 1 %.
#
# **What was left out.** FireCaffe is off by the most: 89 % and 60 % instead of 62.5 % and 36.7 %. A step of 1,024 images took it 1.21 s on 32
# GPUs and 0.51 s on 128; ours take 0.85 s and 0.32 s. So 0.36 s are missing on 32 GPUs, and 0.20 s on 128. A slower network alone does not
# explain that: on 128 the tree is deeper, and more would be missing there. Nor do small pieces: on 32 GPUs each has 32 images, and so had the
# one GPU that they are compared with. A good part has to be something that takes less the fewer images a GPU has. Its reading and decoding of
# images would be such a thing, and we count none. We count no sums on the way up the tree either, no copies from the GPU to its host
# and back, and no GPU that waits for a slower one. We know of no time that was published for any of these, so we could only choose
# numbers until the row comes out right. (And one input is a guess: that the 21 days on one GPU were 2,400,000 steps of 32 images.)
#
# **What overlaps.** For 8.3 billion parameters on 512 GPUs we predict 54 % instead of 76 %. Our gradients leave after backward, in one ring
# for each group, and of eight network cards such a ring leaves a node by one. NCCL opens several rings over all cards, and may begin
# during backward. Here a better description of the program is needed, not a better network.
#
# **What was counted.** ZeRO's 38 TFLOP/s are predicted as 52. If the authors did not count the operations of blocks that are
# computed again, which are a quarter of all, ours are 39. The abstract does not say which. Ask of every published rate which operations it counts.

# %% [markdown]
# ## 11 PyTorch's own, on real processes
#
# Three tools of PyTorch make the same step, one for each axis. They meet in one mesh: `parallelize_module` cuts the matrices of a block
# along "tensor" (unit 06), `fully_shard` shards what is left along "data" (FSDP2, unit 09), and a `PipelineStage` with a schedule sends
# what crosses along "pipeline" (unit 05). The order matters: first the tensor axis, so that FSDP shards what a rank really has; the pipeline comes
# last, around all of it.

# %% demo=true jupyter={"source_hidden": true}
import logging
import runpy
from pathlib import Path

import course_lib

# It would say on each rank that gathering along two axes takes two calls.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
torchs_own = runpy.run_path(
    str(Path(course_lib.__file__).parents[1] / "examples" / "hybrid" / "torchs_own.py")
)
whole_model, renamed = torchs_own["whole"], torchs_own["renamed"]


# %% demo=true
def torchs_step(config: TransformerConfig, samples: tuple[Tensor, Tensor], shape: tuple[int, int, int]):
    """The losses of micro-batches, on the last stage, and all gradients of this stage, whole, by name; and what
    clip_grad_norm_ says to all parameters, then to those cut along both axes, beside their real norm."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    stage, stages = mesh.get_local_rank("pipeline"), mesh.size(1)
    columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
    plan = {
        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        **{name: ColwiseParallel() for name in columns},
        **{name: RowwiseParallel() for name in ("attention.output", "mlp.down")},
    }
    model = whole_model(config)
    own_blocks = torch.arange(config.layers).tensor_split(stages)[stage].tolist()
    for number in own_blocks:
        parallelize_module(model.blocks[number], mesh["tensor"], plan)
        fully_shard(model.blocks[number], mesh=mesh["data"])
    names = (
        ["embedding"] * (stage == 0)
        + [f"blocks.{number}" for number in own_blocks]
        + ["head"] * (stage == stages - 1)
    )
    part = nn.Sequential()
    for name in names:
        part.add_module(name.replace(".", "-"), model.get_submodule(name))
    fully_shard(part, mesh=mesh["data"])

    pipeline = PipelineStage(part, stage, stages, torch.device("cpu"), group=mesh.get_group("pipeline"))
    own = [each.tensor_split(shape[0])[mesh.get_local_rank("data")] for each in samples]
    tokens, targets = (each.contiguous() for each in own)  # PyTorch 2.11 asks stages for such
    schedule = ScheduleGPipe(pipeline, len(tokens) // 2, loss_fn=next_token_loss)
    losses = []
    given = {"target": targets, "losses": losses} if stage == stages - 1 else {}
    schedule.step(*([tokens] if stage == 0 else []), **given)
    gradients = {name.replace("-", "."): each.grad.full_tensor() for name, each in part.named_parameters()}
    try:
        refused = ""
        nn.utils.clip_grad_norm_(part.parameters(), math.inf)
    except RuntimeError as error:
        refused = str(error)
    cut_twice = [each for each in part.parameters() if each.device_mesh.ndim == 2]
    norm = nn.utils.clip_grad_norm_(cut_twice, math.inf).full_tensor().item()
    squares = sum(each.grad.full_tensor().square().sum().item() for each in cut_twice)
    return [loss.item() for loss in losses], gradients, (refused, norm, math.sqrt(squares))


# %% [markdown]
# The same untied model on 2 x 2 x 2 ranks, with PyTorch's tools and with your step, on simulated ranks and on eight real processes:

# %% demo=true
# %%needs torch>=2.8 step_3d
untied = TransformerConfig(layers=2, width=32, heads=4, context=32, tied=False)
both = {}
for engine in ("simulated", "processes"):
    theirs = launch(
        torchs_step, untied, sixteen_samples, (2, 2, 2), ranks=8, on=engine, timeout=240, quiet=True
    )
    yours = launch(step_on_a_mesh, untied, sixteen_samples, (2, 2, 2), ranks=8, on=engine, timeout=240)
    of_theirs = {name: each for _, own, _ in theirs.results for name, each in own.items()}
    of_yours = renamed({name: each for _, own in yours.results for name, each in own.items()}, untied)
    last = [loss for losses, *_ in theirs.results for loss in losses]
    both[engine] = (
        sum(last) / len(last),
        yours.results[0][0],
        max((each - of_yours[name]).abs().max().item() for name, each in of_theirs.items()),
        set(of_theirs) == set(of_yours),
        [clipped for *_, clipped in theirs.results],
    )
    print(
        f"{engine}: losses {both[engine][0]:.6f} and {both[engine][1]:.6f}, gradients differ by at most {both[engine][2]:.0e}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 step_3d
for theirs_mean, your_mean, difference, all_of_them, clipped in both.values():
    assert abs(theirs_mean - your_mean) < 1e-5
    assert difference < 1e-5
    assert all_of_them
    for refused, norm, expected in clipped:
        assert "must have the same mesh" in refused
        assert math.isclose(norm, expected, rel_tol=1e-4)
    assert len({round(norm, 4) for _, norm, _ in clipped}) == 2  # One for each stage

# %% [markdown]
# The numbers agree. What PyTorch's tools do differently is what they send. FSDP shards along data where your step has whole copies: it gathers
# weights and scatters gradients. The pipeline's schedule knows nothing of tied weights: it would not add up the two copies of a shared embedding, as your
# step does. That is why the model is untied here.
#
# `DTensor` knows of each parameter how it lies on its mesh, and so `torch.nn.utils.clip_grad_norm_` is right for parameters that all lie on
# one mesh: on each stage it finds the norm of those that are cut along data and tensor. For all parameters of a stage it raises a `RuntimeError` here,
# for norms, embedding and head lie on "data" alone, and it does not put together what lies on two meshes.
# And along the pipeline each rank has a model of its own: those norms have to be added up, as squares, as torchtitan does and as you did.

# %% [markdown]
# ## 12 Now on nodes
#
# A script makes the mesh from what the launcher says, and everything else is what you have written:
#
# ```python
# dist.init_process_group()                      # torchrun has set RANK and WORLD_SIZE
# gpus = int(os.environ["LOCAL_WORLD_SIZE"])
# torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
# nodes = dist.get_world_size() // gpus
# stages = 4
# names = ("data", "pipeline", "tensor")
# mesh = init_device_mesh("cuda", (nodes // stages, stages, gpus), mesh_dim_names=names)
# ```
#
# ```bash
# course slurm render train_torchrun --nodes 8 -- hybrid.py >train.sbatch
# sbatch train.sbatch
# ```
#
# Under plain `srun` nobody sets the four variables. There a script reads `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` and
# `SLURM_NTASKS_PER_NODE` instead, and sets `RANK` and `WORLD_SIZE` before its first line here.
#
# The last axis is a node long, so tensor parallelism stays inside. That rests on the numbering: ranks of a node have to follow one another. `torchrun`
# numbers them so; with `srun` it is `--distribution=block`. With `cyclic` neighbouring ranks are on different nodes, and each tensor-parallel
# group goes over as many nodes as it can: all of them, or as many as it has ranks. Nothing fails then. Let every job look. (Simulated ranks always
# follow one another. So the second line below swaps the axes' names, which puts neighbours of a tensor group on different nodes, too.)


# %% demo=true
def nodes_of_tensor_groups(names: tuple[str, ...], shape: tuple[int, ...]) -> int:
    """How many nodes this rank's tensor-parallel group is on."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    host = [None] * dist.get_world_size(mesh.get_group("tensor"))
    dist.all_gather_object(
        host, os.environ.get("SLURMD_NODENAME", dist.get_rank() // 4), group=mesh.get_group("tensor")
    )
    return len(set(host))


two_nodes = Cluster(nodes=2, devices_per_node=4)
spread = {
    names: max(launch(nodes_of_tensor_groups, names, shape, cluster=two_nodes).results)
    for names, shape in ((AXES, (1, 2, 4)), (("tensor", "pipeline", "data"), (4, 2, 1)))
}
for names, count in spread.items():
    print(f"axes {', '.join(names)}: a tensor group is on {count} node{'s' * (count > 1)}")

# %% demo=true jupyter={"source_hidden": true}
assert list(spread.values()) == [1, 2]

# %% [markdown]
# On an allocation the same line is `launch(nodes_of_tensor_groups, AXES, shape, on="slurm")`. What it should say is 1.
#
# What else is different on nodes: each group has an NCCL communicator of its own, with buffers on every GPU, so hundreds of groups take memory, and seconds to make. Each rank is in
# three or four, which is fine; to make them for every pair is not. And all groups of a rank share its network card: a gradient's all-reduce along data
# that runs during backward slows down messages of the pipeline that the next stage waits for.

# %% [markdown]
# ## 13 Open task: a mesh for a model
#
# You have a model, a machine and a batch, and before the first job is submitted somebody has to say how long each axis is.
# With 24 devices there are already 30 ways to write 24 as a product of three numbers. Trying them all on the machine costs
# hours of all its devices; the wrong one costs more, on every day of the training.
#
# So estimate. What a step takes has five parts, and you have met each: what a device computes, the all-reduces
# within each block (unit 06), the stages that wait (unit 05), the messages between stages, and the gradients at the end (unit 02).
# Your function is not given the simulator; it decides with arithmetic alone, and is then held against simulations of all meshes. This counts in a step:
#
# - Only matrix products take computing time, at `cluster.flops`.
# - A message of n bytes takes `link.seconds(n)`. The link is `cluster.intra_node`, or from node to node `cluster.inter_node`, which is in nothing better. Each device has a network card of its own.
# - An all-reduce is a ring of 2 (p - 1) rounds with a p-th of the tensor in each message. A round is over when its slowest message has come. A replica may begin in the middle of a node.
# - A tensor group sums in the repeated forward, too: ALL_REDUCES of `mesh_step` says how often, and may be imported.
# - Activations, weights and gradients have 2 bytes a number. Of each block a device has `(4 D^2 + 2 D F) / tensor + 9 D + F` gradients; D is `model.width`, F `model.inner`.
#
# The docstrings of `memory_bytes` and `step_time` say the rest.
#
# Blocks alone count here, in time and in memory. Embedding and head are left out, and so is what your `step_3d` does for weights that the first and the
# last stage share: to add up their two gradients. For a model with a large vocabulary and few blocks that would be too simple.


# %% exercise="choose_mesh" points=12
def choose_mesh(
    devices: int, model: TransformerConfig, memory: float, batch: int, cluster: Cluster
) -> tuple[int, int, int]:
    """(data, pipeline, tensor): on which mesh a step takes the least time, of those that fit.

    devices: how many there are: cluster.size, at most 32, and the product of the three.
    memory: bytes of each device.
    batch: samples of a step, each of model.context tokens, and each a micro-batch.

    With job = Job(model, batch, cluster, memory), of course_lib.training.mesh_step, a mesh fits if
    job.problem(Mesh(...)) finds nothing and memory_bytes(job, mesh) is at most `memory`. Some mesh
    does. step_time(job, mesh) simulates the step, and cannot be called here; above stands what counts.

    Full marks are for a step within 5 % of the shortest.
    """
    ### BEGIN SOLUTION
    job = Job(model, batch, cluster, memory)
    tokens, width = model.context, model.width
    weights = 4 * width**2 + 2 * width * model.inner
    block_flops = 4 * (2 * tokens * weights + 4 * tokens**2 * width)
    activations = 2 * tokens * width

    def all_reduce(nbytes, ranks, within):
        link = cluster.intra_node if within else cluster.inter_node
        return 2 * (ranks - 1) * link.seconds(nbytes / ranks)

    def seconds(mesh):
        data, pipeline, tensor = mesh
        blocks, node = model.layers / pipeline, cluster.devices_per_node
        block = block_flops / tensor / cluster.flops + 6 * all_reduce(activations, tensor, tensor <= node)
        together = devices <= node or node % (pipeline * tensor) == 0
        hop = cluster.intra_node if together else cluster.inter_node
        gradients = 2 * blocks * (weights / tensor + 9 * width + model.inner)
        return (
            (batch / data + pipeline - 1) * blocks * block
            + 2 * (pipeline - 1) * hop.seconds(activations)
            + all_reduce(gradients, data, devices <= node)
        )

    meshes = (
        Mesh(devices // (pipeline * tensor), pipeline, tensor)
        for pipeline in range(1, devices + 1)
        for tensor in range(1, devices // pipeline + 1)
    )
    fitting = [mesh for mesh in meshes if not job.problem(mesh) and memory_bytes(job, mesh) <= memory]
    return tuple(min(fitting, key=seconds))
    ### END SOLUTION


# %% [markdown]
# Try it on a machine whose links are slow everywhere: three nodes with eight devices that speak over PCIe.

# %% demo=true
# %%needs choose_mesh
pcie = Cluster(
    nodes=3, devices_per_node=8, intra_node=Link(5e-6, 25e9), inter_node=Link(5e-6, 12e9), flops=1e14
)
wide = TransformerConfig(layers=24, width=4096, heads=16, vocabulary=256, context=1024)
job = Job(wide, batch=96, cluster=pcie, memory=16e9)
chosen = Mesh(*choose_mesh(24, wide, 16e9, 96, pcie))
every = [Mesh(24 // (p * t), p, t) for p in range(1, 25) for t in range(1, 25)]
simulated = {
    mesh: step_time(job, mesh).seconds
    for mesh in every
    if not job.problem(mesh) and memory_bytes(job, mesh) <= job.memory
}
for mesh, seconds in sorted(simulated.items(), key=lambda pair: pair[1]):
    print(
        f"{mesh.data:2} x {mesh.pipeline:2} x {mesh.tensor}: {seconds:.2f} s, "
        f"{memory_bytes(job, mesh) / 1e9:4.1f} GB{'   your choice' if mesh == chosen else ''}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds choose_mesh
fastest = min(simulated, key=simulated.get)
assert sum(24 % (mesh.pipeline * mesh.tensor) == 0 for mesh in every) == 30
assert simulated[chosen] <= 1.05 * simulated[fastest]
assert fastest == (1, 24, 1)
assert max(simulated, key=simulated.get) == (1, 3, 8)
assert round(simulated[1, 3, 8] / simulated[fastest], 1) == 2.3

# %% [markdown]
# The rule of thumb takes the tensor axis as wide as a node, and then three stages: 1 x 3 x 8. On this machine that is the slowest of
# all that fit, and takes 2.3 times as long as 24 stages without any tensor axis. The rule was found on nodes with fast links; the reasons for it are what
# you have written, and they hold everywhere.

# %% [markdown]
# ## Where it comes from
#
# - D. Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, SC 2021
#   ([arXiv:2104.04473](https://arxiv.org/abs/2104.04473)): ten models up to 1,008 billion parameters, 502 petaFLOP/s on 3,072 A100 (table 1);
#   how to choose the axes (section 3). The runs' settings are in
#   [the authors' scripts](https://github.com/NVIDIA/Megatron-LM/tree/main/examples/sc21).
# - M. Shoeybi et al., *Megatron-LM*, 2019 ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)): 8.3 billion parameters, 512 V100, 15.1
#   petaFLOP/s, 76 % of perfect scaling.
# - S. Rajbhandari et al., *ZeRO*, SC 2020 ([arXiv:1910.02054](https://arxiv.org/abs/1910.02054)): 100 billion parameters on 400 V100, 15 petaFLOP/s.
# - Y. Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, VLDB 2023
#   ([arXiv:2304.11277](https://arxiv.org/abs/2304.11277)): hybrid sharding beside full sharding.
# - W. Liang et al., *TorchTitan: One-stop PyTorch native solution for production ready LLM pretraining*, 2024
#   ([arXiv:2410.06511](https://arxiv.org/abs/2410.06511)): FSDP2, tensor and pipeline parallelism on one mesh.
# - F. Iandola et al., *FireCaffe*, CVPR 2016 ([arXiv:1511.00175](https://arxiv.org/abs/1511.00175)): GoogLeNet 47 times as fast on 128 GPUs.
#   P. Goyal et al. ([arXiv:1706.02677](https://arxiv.org/abs/1706.02677)) and Horovod: unit 04.
# - D. Nichols et al., *A Survey and Empirical Evaluation of Parallel Deep Learning Frameworks*, 2021
#   ([arXiv:2111.04949](https://arxiv.org/abs/2111.04949)): the ten frameworks.
# - N. Dryden et al., *Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism*, IPDPS 2019
#   ([arXiv:1903.06681](https://arxiv.org/abs/1903.06681)): convolutions cut by samples and in space, with halos, in LBANN; and *Channel and Filter Parallelism for
#   Large-Scale CNN Training*, SC 2019: up to 4.1 times less time for residual networks.
# - S. A. Jacobs et al., *Parallelizing Training of Deep Generative Models on Massive Scientific Datasets*, 2019
#   ([arXiv:1910.02270](https://arxiv.org/abs/1910.02270)): the tournament; 70.2 times as fast with 64 trainers (1,024 GPUs) as with one (16 GPUs).
# - M. Jaderberg et al., *Population Based Training of Neural Networks*, 2017 ([arXiv:1711.09846](https://arxiv.org/abs/1711.09846)): weights are handed on together with learning rates.
#
# ## What goes wrong in practice
#
# - **The job uses all devices and is slow.** The tensor axis leaves the node. Look at which ranks form a group before you look at the network.
# - **It hangs before the first step.** Ranks make their groups in another order, or only those that they are in.
# - **Norms and biases drift apart along the tensor axis.** Their gradients are equal only while all of those ranks see all of x. With sequence parallelism
#   (unit 06) each sees some tokens, and then they do need a sum along that axis. Compare copies now and then, bit by bit.
# - **A tied embedding learns half of what it should.** Each copy has the gradient of its own use only.
# - **The gradient's norm jumps when a job moves to another mesh.** Something is counted once a copy.
# - **A rate looks too good.** It may count operations that are done twice, or a peak with sparse matrices. Ask which operations were counted.
# - **It fits on paper and not on the device.** Model states are not all: inputs that blocks keep grow with the micro-batches under way, and a
#   block that is computed again needs its whole activations for a moment.
# - **A prediction is right for large pieces only.** Below some size a device starts operations for longer than it computes them.
# - **A network on strips learns worse than on one device.** Some layer still looks at its strip alone: zeros at the cuts, statistics of each rank. Compare
#   one forward pass with one rank's, number by number; errors sit in the rows beside the cuts.
# - **Exchanges take longer the more ranks there are.** Neighbours wait for neighbours who wait. Start all messages, then wait for all.
# - **A tournament ends with copies of one model.** Rounds come so often that nobody learns anything of its own in between, or all are judged on the same few samples.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
