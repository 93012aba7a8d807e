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
# Copies of a model share the samples of a batch, stages share its layers, and ranks share its matrices. Each way has a
# limit: a batch has only so many samples, a model so many layers, and a node so many devices with fast links between
# them. The largest trainings therefore combine all three. In this unit you combine them too. Then you cut what earlier
# units left whole: images that are too large for one device, and convolutions. At the end you compare predictions with
# published measurements.
#
# After this unit you can
#
# - say where each rank stands in a mesh, and make the groups along its axes;
# - average gradients that are sharded within a node, with few bytes between nodes;
# - write a training step with data, pipeline and tensor parallelism at once, and compute the norm of its gradient;
# - cut images in space with halos, and convolutions by their channels and filters, forward and backward;
# - normalise with the statistics of all ranks, in one collective;
# - let trainers compete in a tournament instead of averaging them;
# - choose the axes of a mesh for a model and a machine;
# - judge where a prediction of a training's time holds.

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
# 1. Sixteen ranks stand in a mesh of 2 x 2 x 4. Each is in three process groups, one along each axis. How many
#    different groups does the whole mesh have (section 1)?
# 2. Every rank adds up the squares of all gradients that it holds, and all ranks add up these sums. The root of that is
#    larger than the norm of the model's gradient, since several ranks hold the same parameters. By how many percent,
#    for a small transformer whose matrices are cut among 8 ranks, on a mesh of 1 x 1 x 8 (section 4)?
# 3. One image of 2,048 × 2,048 pixels goes through eight convolutions, forward and backward. In strips on 32 devices of
#    four nodes of LUMI-G, how many times as fast is it as on one device (section 5)?

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
# You know three ways to cut a training: copies of a model share the samples (unit 02), stages share its layers
# (unit 05), and ranks share each matrix (unit 06). With all three, each rank belongs to one copy of the model, is one
# stage of that copy, and has one share of that stage.
#
# Think of the ranks as standing in a box with three axes: **data**, **pipeline** and **tensor**, in this order. Such a
# box is called a **mesh**. Its **shape** says how many ranks it has along each axis, and a rank's three numbers in it
# are its **coordinates**. A mesh of 2 x 2 x 4 has 2 copies, of 2 stages, of 4 shares.
#
# The axes need the links unequally often. Tensor parallelism sums activations in every layer, twice in forward and
# twice in backward. A pipeline hands a tensor on once for each micro-batch, and data parallelism averages once in a
# step. So the tensor axis should have the fastest links, those within a node. That is why it comes last: neighbours
# along the last axis have consecutive numbers, and Slurm gives consecutive numbers to the tasks of one node.
# Megatron-LM numbers its ranks so too.


# %% exercise="mesh_coordinates" points=4
def mesh_coordinates(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where a rank stands in a mesh: a tuple of ints, one coordinate for each axis.

    shape: how many ranks stand along each axis, at least 1; of any number of axes.

    Rank 0 is at (0, ..., 0, 0), rank 1 at (0, ..., 0, 1): from rank to rank the last coordinate changes
    fastest, the first slowest. Raises ValueError for a rank that is not in the mesh.
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
# Sixteen ranks on two nodes of eight, as 2 x 2 x 4. Each box is a rank, in the colour and hatch of its tensor group:

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
# A collective takes a process group, so every rank needs one group for each axis. The group along an axis has the ranks
# that share all *other* coordinates; along an axis of size 1 that is the rank alone. In this picture rank 6, at
# (0, 1, 2), averages gradients with rank 14, exchanges activations with rank 2, and sums with ranks 4, 5 and 7.
#
# `dist.new_group` has to be called by all ranks of the world, members or not, and for the same groups in the same
# order. If each rank makes only the groups that it is in, all of them wait for ever.


# %% exercise="groups" points=8
def groups(shape: tuple[int, ...], rank: int) -> list[dist.ProcessGroup]:
    """This rank's process group along each axis of a mesh: a list, in the order of the axes.

    shape: as in mesh_coordinates. rank: the one that calls. Every rank calls once.

    The ranks of a group are in ascending order. Make each group of the mesh once, with dist.new_group,
    not with a DeviceMesh.

    Raises ValueError on every rank, before any group is made, if the mesh has more or fewer ranks than
    there are.
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
# There are 20 groups: 8 along data, 8 along pipeline and 4 along tensor. No tensor group crosses a node, and here no
# pipeline does. PyTorch makes the same groups: `init_device_mesh("cuda", (2, 2, 4), mesh_dim_names=("data", "pipeline",
# "tensor"))` returns a mesh, and `mesh.get_group("tensor")` is this rank's group. From here on we use these.

# %% [markdown]
# ## 2 Shards within a node, copies across nodes
#
# Before all three axes at once, a mesh of two. Unit 09 shards a model over all ranks: each keeps a part of weights,
# gradients and optimizer state, and the weights are gathered before a layer computes. With a thousand ranks each gather
# runs over a thousand ranks and the slowest links.
#
# **Hybrid sharding** (HSDP; in PyTorch FSDP with a mesh of two axes) shards within a node only, and every node has a
# whole copy. Weights are gathered within the node alone. The price is memory: a model is cut into g parts, for the g
# ranks of a node, and not into as many parts as there are ranks.
#
# Only gradients travel between nodes. Flattened, one after the other, they are n numbers on each rank. These are cut
# into g shards of s = ceil(n / g) numbers, the last ones filled up with zeros. The rank at place i of its node's group
# keeps shard i, the numbers i s to (i + 1) s, and needs the mean of these numbers over all ranks of all nodes.


# %% exercise="hsdp_average" points=9
def hsdp_average(gradients: list[Tensor], within: dist.ProcessGroup, across: dist.ProcessGroup) -> Tensor:
    """This rank's shard of the mean of all ranks' gradients, as in the text above.

    gradients: tensors of any shapes, the same shapes on every rank. They stay as they are.
    within: the g ranks of this node. across: the ranks that are at this rank's place on all nodes.

    Returns a new tensor of s numbers, of the gradients' dtype.

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
# 64 MiB of gradients on every rank of four nodes with eight devices each: averaged by your function, and by one
# all-reduce over all 32 ranks. Printed are the time, and what a rank sends in groups that cross nodes:


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
# With N nodes each rank sends $2\frac{N-1}{N}\frac{n}{g}$ numbers to other nodes: 12 MiB for 64 MiB of gradients. An
# all-reduce over all ranks ignores where nodes end. (Its ring crosses from node to node in a few places only, so most
# ranks' 124 MiB stay within their node. But the ring is as slow as these crossings.)

# %% [markdown]
# ## 3 A step along three axes
#
# The model of this section is a transformer of `course_lib` that takes a mesh: `MeshTransformer(config, mesh)`. On each
# rank it has the blocks of that rank's stage, and of each block some **branches**. A branch of the attention is one
# head; a branch of the MLP is a few of its hidden units. A block's result is a sum over all branches: each rank adds up
# its own, and an all-reduce along the tensor axis adds up the ranks' sums. In backward another all-reduce gives all
# ranks the whole gradient of the block's input. This is unit 06's conjugate pair, and the model calls it itself. You
# call the model like any stage, on all ranks of a tensor group alike.

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
# The step is left to you. For the gradients the axes differ:
#
# - Ranks that differ along **tensor** have different branches, whose gradients concern nobody else. All of them have
#   the norms and biases, and get the same gradients for these, since each saw all of x and its whole gradient. Nothing
#   has to be done.
# - Ranks that differ along **pipeline** have different blocks, with one exception. In a **tied** model the embedding's
#   matrix is also that of the output. The first stage has a copy and the last has one, and each sees the gradient of
#   one of the two uses.
# - Ranks that differ along **data** have the same parameters, and have seen different samples.
#
# One sum too many is as wrong as one too few, and no error tells you.
#
# **The mesh.** Its axes are "data", "pipeline" and "tensor", in this order; each may have one rank only.
# `mesh.get_local_rank("pipeline")` is this rank's coordinate along an axis, and `mesh.size(1)` the length of that axis.
# For messages along it use `group=mesh.get_group("pipeline")` with `group_dst` and `group_src`, which are places within
# the group. (`dst` and `src` are numbers in the whole world; `dist.get_process_group_ranks(group)` lists them. Do not
# compute them: ranks may stand in a mesh in any order.)
#
# **The model.** On the first stage it takes tokens [B, T], on the others the float [B, T, D] that the stage before
# returned. On the last stage it returns logits. `model.empty(B, T)` is an empty tensor for what arrives, on the right
# device. Call the model once for each micro-batch. A parameter's attribute `shared` is True if the first and the last
# stage have a copy each; with one stage its gradient is whole already. The model may be on the device "meta", whose
# tensors have shapes but no numbers: make new tensors on the model's device, and read no values with `.item()`.
#
# **The batch.** All ranks of a replica are given the same micro-batches, which may differ in size. All replicas have
# equally many samples in all.
#
# **What may travel in a step:**
#
# - Across each cut, in each direction, one point-to-point message a micro-batch.
# - Along data, each gradient in one all-reduce, after the last micro-batch.
# - For shared parameters, the sum of the two copies' gradients: a message each way, or a collective in a group of these
#   two ranks.
# - For the loss, collectives of at most 8 bytes; and what the model itself sums.
#
# The pipeline has to be full: with m micro-batches and p stages, stage s, counted from 0, sends at least min(m, p - s)
# micro-batches on before the first gradient comes back.


# %% exercise="step_3d" points=18
def step_3d(model: MeshTransformer, batch: list[tuple[Tensor, Tensor]], mesh: DeviceMesh) -> Tensor:
    """One training step on a mesh: forward, backward, and gradients averaged.

    model: this rank's part of the model. No parameter has a .grad yet.
    batch: this replica's micro-batches (tokens [B, T], targets [B, T]), at least one.

    Returns the loss, the mean of next_token_loss over all samples of all replicas: float32 [],
    detached, the same on all ranks. Afterwards the .grad of each parameter is the gradient of this
    loss. Parameters and batch stay as they are. What may travel is listed above.
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
# A step each on one rank and on five meshes of eight, on the same sixteen samples of Python's documentation:


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
# All meshes give the same gradients, up to the last digits, which depend on the order of sums. (This model is tied.)
# Which mesh is fastest, and which one fits, is the subject of sections 9 and 13.
#
# ### Many ranks
#
# On tensors without data your `step_3d` runs on many more ranks: here 2 replicas of 4 stages of 8 ranks, on eight of
# LUMI-G's nodes. Each stage has one block, as wide as those of a model with 7 billion parameters, and each replica has
# two micro-batches of one sample with 2,048 tokens. A rank of a middle stage communicates along all three axes:


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
# A block has two all-reduces in each pass, so eight calls along tensor for two micro-batches. Each sends nearly twice
# the activations, within the node. Along the pipeline activations cross once in each direction; much of the time is
# waiting, since with two micro-batches and four stages the bubble is large (unit 05). Along data the gradients go once,
# however many micro-batches there are.

# %% [markdown]
# ## 4 The norm of all gradients
#
# Before the optimizer's step the norm of the whole model's gradient is measured, and a gradient that is too long is
# scaled down (unit 09). On a mesh no rank has the whole gradient: each has its stage, of that its share, and also
# copies of what other ranks have. The sum of all ranks' squares counts some numbers several times. All ranks then clip
# by the same wrong factor, and nothing fails.
#
# Two attributes of a parameter say who else has it, as in Megatron-LM. `tensor_model_parallel` is True if each rank
# along the tensor axis has a part of it, and False if each has a copy. `shared` is True if the first and the last stage
# have a copy each; where there is one stage, that is one copy. Along data all ranks have the same.


# %% exercise="grad_norm_3d" points=9
def grad_norm_3d(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> Tensor:
    """The norm of the whole model's gradient, in which each number of the model counts once:
    float32 [], the same on every rank.

    parameters: of this rank, perhaps none, with the attributes above. Their .grad are averaged already,
        and stay as they are; a .grad of None counts as zeros.
    mesh: as in step_3d.

    Calls: at most two all-reduces of one number each, none along "data".
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
# The parameters of section 3's model have both attributes. Its norm on four meshes, beside the one from all ranks'
# squares:


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
# Your norm is the same on every mesh. The other one grows with the number of copies, so a run that is moved to another
# mesh would be clipped harder and learn more slowly.

# %% [markdown]
# ## 5 Images cut in space
#
# Some samples, such as a climate model's output, a microscope's slide or a tomogram, are so large that one of them,
# with all activations of a deep network, does not fit into a device. Data parallelism cannot cut a sample. Nor does it
# help where samples are few: a batch of four keeps four devices busy. But an image has many rows. To cut it into
# horizontal strips, one for each rank, is **spatial parallelism**.
#
# A ReLU treats each pixel by itself, and needs no change. A convolution does: with a kernel of 3 × 3 each output needs
# the pixels one row above and one row below, and at the edge of a strip one of these rows is on another rank. The rows
# that a rank borrows are its **halo**, or ghost rows.

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
# Beyond the image's own edges stand zeros, with which a convolution pads anyway. In backward a row that was copied has
# been used in two places.
#
# The exchange costs latency in every convolution, so it matters who waits for whom. `dist.send` may return only when
# its message has been received. Suppose that every rank first sends down and then receives from above. The last rank
# sends nothing, so it receives at once; then the one above it can, and so on up. That ends well, but it takes longer
# the more ranks there are.
#
# For all layers that you write from here to section 7:
#
# - `group` has the ranks that share an image or a batch, in the order of their parts; None stands for all ranks.
# - A kernel has k rows and l columns, both odd. A convolution pads the whole image with k // 2 rows of zeros above and
#   below, and l // 2 columns left and right.
# - Tensors are float32 or float64, in `halo_exchange` of any floating-point dtype. Arguments stay as they are, and so
#   does the gradient that arrives in backward.
# - Each rank has a loss of its own. Gradients are those of the sum of all ranks' losses. An argument needs a gradient
#   on all ranks or on none.
# - A layer may be called several times in one graph, in any groups, beside other uses of its arguments; and backward
#   may run twice.


# %% exercise="halo_exchange" points=15
def halo_exchange(x: Tensor, width: int, group: dist.ProcessGroup | None = None, dim: int = 2) -> Tensor:
    """This rank's strip of an image, between the neighbours' nearest rows.

    x: [samples, channels, rows, columns], a strip of at least `width` rows. width: at least 0.
    dim: 2, or 3 if columns are cut in place of rows.

    Returns in one tensor the last `width` rows of the rank before, x, and the first `width` rows of the
    rank after; zeros where there is no such rank.

    Messages only: in each pass a rank sends each neighbour one message of `width` rows. A pass takes no
    longer than four such messages, however many ranks there are.
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
# 4 MiB to each neighbour on a node of LUMI-G: by your function, and by ranks that first send down and then receive:


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
# The chain takes more than twice as long with eight ranks as with four, though its rows go in one direction only. Your
# exchange, in both directions, takes as long with eight ranks as with four.

# %% [markdown]
# A convolution on strips needs a halo, and one thing more: each rank has a copy of the weight, and each copy has seen
# other pixels.


# %% exercise="spatial_conv2d" points=12
def spatial_conv2d(
    x_shard: Tensor, weight: Tensor, group: dist.ProcessGroup | None = None, stride: int = 1
) -> Tensor:
    """This rank's strip of conv2d of the whole, padded image.

    x_shard: [samples, channels, rows, columns]. Each strip has at least k // 2 rows, and each but the
        last one a multiple of `stride` rows.
    weight: [filters, channels, k, l], the same on all ranks.

    Returns [samples, filters, ceil(rows / stride), ceil(columns / stride)]. In backward every rank gets
    the weight's whole gradient.

    Calls: in each pass messages as in halo_exchange, of k // 2 rows; and one dist.all_reduce of the
    weight's gradient, if it needs one.
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
# Two layers on three strips, beside the same on one rank, on both engines. Each rank's loss is the sum of its results'
# squares:


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
# **Squares in place of strips.** On 16 ranks the strips of a square image are long and low, and much of them is edge.
# Squares have less. The image is cut along two axes of a mesh, and the exchange runs twice: rows first, then columns of
# the result. The corner pixel of the diagonal neighbour needs no message of its own. The neighbour beside has received
# it in the first exchange, and sends it with its column:


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
# The 10 at the lower right is rank 3's, and rank 0 has exchanged no message with rank 3.
#
# **One image, many devices.** How much faster is it? One image of 2,048 × 2,048 pixels, eight convolutions of 3 × 3
# with 64 channels, on one to four nodes of LUMI-G. The tensors have shapes only. Times are the simulator's, and memory
# is the most that a rank holds.


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
# On eight devices it is nearly eight times as fast, and each has an eighth of the memory. Beyond a node halos cross the
# network, and a strip of 64 rows has little to compute meanwhile: 32 devices are 18 times as fast. Memory goes on
# falling, which is what counts where one image does not fit into a device.
#
# <details><summary>More: who does it</summary>
#
# Dryden et al. (2019) built this into LBANN, the Livermore Big Artificial Neural Network toolkit. There the inner rows,
# which need no neighbour, are computed while messages are under way.
#
# </details>
#
# ### PyTorch's own
#
# DTensor can convolve images that are cut by columns. Three times the same columns: from `conv2d` of a DTensor; from
# PyTorch's own function behind it, called by hand; and with your halo.


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
# PyTorch's function agrees with you. But in PyTorch 2.13 `conv2d` of a DTensor does not reach it: the result is taken
# for replicated, no halo is exchanged, and all columns beside a cut are computed as if zeros stood there. Nothing
# warns. (Backward is wrong there too; pytorch/pytorch, issue 191926, calls it a regression from 2.12.) So compare with
# one rank before you rely on a library's layout.

# %% [markdown]
# ## 6 Convolutions cut three ways
#
# Deep in a network images are small: 7 × 7 pixels with 2,048 channels in the last layers of ResNet-50. So there each
# rank gets all pixels of some of the channels. A layer takes channels that are cut over ranks, and returns its filters'
# results cut over ranks, since they are the next layer's channels.
#
# | | image | weight | result |
# |---|---|---|---|
# | `spatial_conv2d` | some rows | all of it | some rows |
# | `filter_parallel_conv` | some channels | some filters, for all channels | some filters' |
# | `channel_parallel_conv` | some channels | all filters, for some channels | some filters' |
#
# In the two new ways no rank keeps the whole weight, and no weight's gradient is summed over ranks. Instead activations
# travel, in one collective a pass; the two ways differ in which collective, and of what. They are the column- and the
# row-parallel layer of unit 06, except that here activations are cut before and after the layer.
#
# Rank r of p has the r-th of p equal parts of C channels, and returns the results of the r-th of p equal parts of F
# filters. What section 5 says of all layers and of kernels holds here too. The stride is 1, so a result has as many
# pixels as the image. In each collective a rank sends at most (p - 1) / p of the bytes of the whole: of the image in
# `filter_parallel_conv`, of the result in `channel_parallel_conv`.


# %% exercise="filter_parallel_conv" points=11
def filter_parallel_conv(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's filters' results, from an image whose channels are cut over ranks.

    x_shard: [samples, C / p, rows, columns], this rank's channels.
    weight_shard: [F / p, C, k, l], this rank's filters, for all channels.

    Returns [samples, F / p, rows, columns]: conv2d of the whole, padded image by this rank's filters.

    Calls: one all-gather of x_shard in forward, and one reduce-scatter in backward, if x_shard needs a
    gradient.
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
# With the other way a rank begins to compute with the channels that it has.


# %% exercise="channel_parallel_conv" points=11
def channel_parallel_conv(
    x_shard: Tensor, weight_shard: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's filters' results, from weights that are cut by channels, as the image is.

    x_shard: as for filter_parallel_conv.
    weight_shard: [F, C / p, k, l], all filters, for this rank's channels.

    Returns [samples, F / p, rows, columns], the same as filter_parallel_conv.

    Calls: one reduce-scatter in forward, and one all-gather in backward, of the gradient that arrives.
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
# How many bytes does a rank send, in forward and backward together? Convolutions of ResNet-50 on four ranks, with one
# image and with 32:


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
# In the first layers images are large and weights small, so strips send little: rows of pixels, and the weight's
# gradient. In the last layers, with one image, a strip's rank sends more than ninety times what the other two ways do,
# nearly all of it the weight's gradient. So a network should change from strips to channels on its way.
#
# Between the other two ways the smaller tensor decides. `filter_parallel_conv` moves the image, and
# `channel_parallel_conv` the result. Where 256 channels become 64, the second sends a quarter of what the first does;
# where 64 become 256 it is the reverse.

# %% [markdown]
# ## 7 Statistics of all samples
#
# **Batch normalisation** shifts and scales each channel so that over the batch and all pixels it has mean 0 and
# variance 1. A weight and a bias of the channel come after that: `(x - mean) / sqrt(variance + eps) * weight + bias`.
# If the batch or the image is cut, each rank knows the statistics of its own part only. With 32 images a device that
# does little harm. With one image on eight devices it is wrong: a strip of sky would be normalised to the same mean as
# a strip of forest.
#
# So the statistics have to be those of all ranks. There are two traps. Parts differ in size, so the mean of their means
# is wrong. And the variance must not be computed as the mean of squares less the square of the mean: where the mean is
# large it loses its digits. With a mean of 3,000 and a variance of 1 it is the difference of two numbers near nine
# million, where neighbouring float32 numbers are 1 apart.


# %% exercise="synchronised_batch_norm" points=13
def synchronised_batch_norm(
    x_shard: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Batch normalisation of this rank's part, by mean and variance over all ranks' parts.

    x_shard: [samples, C, rows, columns]. Parts may differ in all but C, and one may be empty.
    weight, bias: [C], the same on all ranks. All three need a gradient, or none.

    Returns this part normalised by the formula above, exact to 0.01 even if a channel's mean is 3,000
    standard deviations. In backward every rank gets the whole gradients of weight and bias.

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
# With its own statistics each strip comes out the same: that the lower ones are brighter is lost.
#
# In PyTorch `torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` replaces all batch normalisations of a model by
# `torch.nn.SyncBatchNorm`. It does not run on CPUs. And it leaves the gradients of weight and bias as each rank's own
# part, since DDP averages them afterwards.

# %% [markdown]
# ## 8 A tournament of trainers
#
# LBANN has one more axis, of another kind: several **trainers**, each of which may have many GPUs, train models of
# their own on their own parts of the data. Nothing is averaged. Now and then trainers meet in pairs, drawn anew each
# time, and exchange models. Each of the two scores both models on samples that it has kept for this, and goes on with
# the better one. Good models spread, with what they have learnt from data that the new owner has never seen. This is
# the tournament of Jacobs et al. (2019), in LBANN called LTFB.
#
# All p ranks of a group draw the same order of their numbers in the group, by
# `torch.randperm(p, generator=torch.Generator().manual_seed(seed))`. The two at places 0 and 1 of this order meet, those
# at 2 and 3, and so on; an odd one rests. A trainer keeps its own model if both score the same. The score of a model
# that has diverged is NaN, and any number is better than that.
#
# One round costs a trainer one model's bytes, however many trainers there are, and nobody waits for more than one
# other.


# %% exercise="tournament" points=12
def tournament(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    seed: int,
    group: dist.ProcessGroup | None = None,
) -> float:
    """One round, as in the text above: trainers meet in pairs, and each goes on with the better model.

    model: of the same layers on every rank of the group (None: all), with other numbers.
    score: score(model) is larger for a better model, on this rank's own samples.
    seed: of the draw, the same on all ranks.

    Afterwards `model` holds, in its own tensors, the parameters and buffers of the better model.
    Returns the score of that model. Global random states stay as they are.

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
# Eight trainers learn to read digits. Each has an eighth of the data, and a learning rate drawn between 0.001 and 3.2:
# some far too small, some too large. After every 15 steps there is a round, or there is none:


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
# Alone, a trainer with a bad learning rate stays bad. With rounds all of them get good weights, with each of the three
# seeds, for less than a twentieth of the bytes of data parallelism. (A bad learning rate can still ruin a model that
# was just won. Population based training, Jaderberg et al. 2017, hands on the learning rate with the weights.)

# %% [markdown]
# ## 9 What each axis costs
#
# A wider **tensor** axis means less memory and less computing on each device for a sample, and two all-reduces of
# activations in every block and pass. A longer **pipeline** means fewer blocks on each device, and stages that wait.
# More **copies** save no memory for weights, and gradients have to be averaged once in a step.
#
# What that costs depends on the links. Here is a transformer of 32 blocks of width 4,096, with 64 samples of 2,048
# tokens in a step, on 32 devices: four nodes of LUMI-G, and four nodes with H100 cards. `step_time`, of
# `course_lib.training.mesh_step`, puts a step together from simulated parts. The tensor axis grows from 1 to 32, and
# the rest are copies. The last mesh has four stages, one on each node.

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
# Within a node the tensor axis costs little. Where it leaves the node, from 8 to 16, its all-reduces take 5.4 times as
# long on LUMI-G and 16.6 times on the H100 nodes, and the whole step 1.7 and 2.5 times. One reason is that a ring is as
# slow as its slowest link: on the H100 nodes that has a 7.4th of the bandwidth of the others, on LUMI-G half. The other
# is that with half as many copies each device sees twice as many samples.
#
# So **tensor parallelism across nodes loses**, the more the faster the links within a node are. A pipeline crosses
# nodes at little cost: 1 x 4 x 8 takes at most 4 % longer than 4 x 1 x 8, and on it a device holds 12 GB instead of 22.
# Copies alone would hold 105 GB on each device, more than either has. Hence the rule of thumb (Narayanan et al. 2021,
# section 3): the tensor axis at most as wide as a node, then stages until the model fits, then copies. Section 13 has
# machines where this rule is wrong.

# %% [markdown]
# ## 10 The whole against published tables
#
# All that this course simulates rests on few rules: a device takes the longer of its operations and its bytes (the
# roofline), a message takes its latency and its bytes over the bandwidth, collectives are rings and trees, a pipeline
# has a bubble. Here they predict, together, what others measured:
#
# - D. Narayanan et al. (2021): ten models trained with Megatron-LM, from 1.7 billion parameters on 32 A100 to a
#   thousand billion on 3,072, with data, pipeline and tensor parallelism.
# - M. Shoeybi et al. (2019), the first Megatron-LM, on up to 512 V100; S. Rajbhandari et al. (2020), ZeRO, on 400.
# - Image networks with copies alone: FireCaffe (F. Iandola et al., 2016), P. Goyal et al. (2017), Horovod's
#   documentation (2018).
#
# A row shows how the devices are cut: data x pipeline x tensor for transformers, nodes x GPUs of a node for image
# networks.
#
# A prediction uses the model, the mesh and the machine's data sheet, as the source gives them, and one number for each
# type of GPU: what it reaches in matrix products, measured by others on one GPU (230 TFLOP/s on an A100, by
# [transformers-benchmarks](https://github.com/mli/transformers-benchmarks); 95 on a V100). For image networks that is
# the speed of one GPU with the same network. No row's measurement goes into its own prediction, and no number was
# fitted; but *what* is counted was decided with the tables in view. `course_lib.published` has all inputs with their
# sources.

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
of_zero = by_name["Rajbhandari 2020", "100 billion on 400 = 25 x 1 x 16"].predicted
assert [round(of_zero), round(0.75 * of_zero)] == [52, 39]

# %% [markdown]
# Over all 21 rows the median error is 11 %, and the worst is 63 %.
#
# **Where it holds.** All ten rows of Narayanan's table are within 12 %, with a median error of 9 %. All ten predictions
# are too fast. Two things are left out: memory is never read at its peak rate, and few matrix products are as fast as
# the best. Where two rows of that table differ by more than a tenth, the prediction knows which one is faster. Across
# sources it may not. Horovod's and Goyal's numbers are within 15 %.
#
# **Small pieces.** Shoeybi cut a model of 1.2 billion parameters among 2, 4 and 8 GPUs. We are 10 %, 29 % and 49 % too
# fast. By the roofline half a matrix product takes half as long. On a GPU it takes longer: small products fill it
# badly, and starting an operation takes microseconds however small it is. For 8.3 billion parameters on 8 GPUs the
# error is 1 %.
#
# **What overlaps.** For 8.3 billion parameters on 512 GPUs we predict 54 % of perfect scaling instead of 76 %. In our
# description gradients leave after backward, by one of a node's eight network cards. NCCL opens several rings over all
# cards, and may begin during backward.
#
# **What was left out.** FireCaffe is off by the most: we predict 89 % and 60 % of perfect scaling instead of 62.5 % and
# 36.7 %. Reading and decoding images, for one, takes time that we do not count.
#
# **What was counted.** ZeRO's 38 TFLOP/s are predicted as 52. If the authors did not count the operations of blocks
# that are computed again, a quarter of all, ours are 39. The abstract does not say. Ask of every published rate which
# operations it counts.

# %% [markdown]
# ## 11 PyTorch's own, on real processes
#
# Three tools of PyTorch make the same step on one mesh, one tool for each axis. `parallelize_module` cuts the matrices
# of a block along "tensor" (unit 06). `fully_shard` then shards what a rank has left along "data" (FSDP2, unit 09). A
# `PipelineStage` with a schedule, around all of it, sends along "pipeline" (unit 05).

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
# The numbers agree, but PyTorch's tools send other bytes. FSDP shards along data, where your step has whole copies: it
# gathers weights and scatters gradients. The pipeline's schedule would not add up the two gradients of a shared
# embedding, as your step does; so the model is untied here.
#
# `torch.nn.utils.clip_grad_norm_` is right for DTensors that lie on one mesh: here those of a stage that are cut along
# data and tensor. For all parameters of a stage it raises a `RuntimeError`, since norms, embedding and head lie on
# "data" alone. The norms of the stages still have to be added up, as squares, as you did.

# %% [markdown]
# ## 12 Now on nodes
#
# A script makes the mesh from what the launcher says; the rest is what you have written:
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
# Plain `srun` does not set these variables: read `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` and
# `SLURM_NTASKS_PER_NODE` instead, and set `RANK` and `WORLD_SIZE` first.
#
# The last axis is a node long, so tensor parallelism stays inside if the ranks of a node follow one another. `torchrun`
# numbers them so; with `srun` it is `--distribution=block`. With `cyclic` each tensor group spreads over several nodes,
# and nothing fails. So let every job look. (Simulated ranks always follow one another. The second line below therefore
# swaps the axes' names, which also puts a tensor group on two nodes.)


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
# On an allocation the same line is `launch(nodes_of_tensor_groups, AXES, shape, on="slurm")`, and should say 1.
#
# Each group has an NCCL communicator of its own, with buffers on every GPU: three or four groups a rank are fine, one
# for every pair of ranks is not. And all groups of a rank share its network card: an all-reduce of gradients during
# backward slows down the pipeline's messages.

# %% [markdown]
# ## 13 Open task: a mesh for a model
#
# How long should each axis be, for a model, a machine and a batch? There are 30 ways to write 24 devices as a product
# of three numbers, and trying all of them costs hours of the whole machine. So estimate. A step's time has five parts:
# what a device computes, the all-reduces within each block, the stages that wait, the messages between stages, and the
# gradients at the end. Your function decides with arithmetic alone, and is compared with simulations of all meshes.
#
# With `job = Job(model, batch, cluster, memory)` and `mesh = Mesh(data, pipeline, tensor)`, both of
# `course_lib.training.mesh_step`, a mesh fits if `job.problem(mesh)` finds nothing and `memory_bytes(job, mesh)` is at
# most `memory`. `step_time(job, mesh)` simulates the step, and cannot be called in your function. In the simulations:
#
# - Only matrix products take computing time, at `cluster.flops`.
# - A message of n bytes takes `link.seconds(n)`. The link is `cluster.intra_node`, or `cluster.inter_node` from node to
#   node, which is better in nothing. Each device has a network card of its own.
# - An all-reduce is a ring of 2 (p - 1) rounds with a p-th of the tensor in each message. A round is over when its
#   slowest message has come. A replica may begin in the middle of a node.
# - In backward each block computes its forward again (unit 09), with its sums: ALL_REDUCES of `mesh_step` says how many
#   sums a block has, and may be imported.
# - Activations, weights and gradients have 2 bytes a number. With D = `model.width` and F = `model.inner` a device has
#   `(4 D^2 + 2 D F) / tensor + 9 D + F` gradients of each block.
# - Blocks alone count, in time and in memory: no embedding, no head, no shared weights.
#
# The docstrings of `memory_bytes` and `step_time` say the rest.


# %% exercise="choose_mesh" points=12
def choose_mesh(
    devices: int, model: TransformerConfig, memory: float, batch: int, cluster: Cluster
) -> tuple[int, int, int]:
    """(data, pipeline, tensor): on which mesh a step takes the least time, of those that fit as said in
    the text above. Some mesh does.

    devices: how many there are: cluster.size, at most 32, and the product of the three.
    memory: bytes of each device.
    batch: samples of a step, each of model.context tokens, and each a micro-batch.

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
# Try it on three nodes of eight devices that speak over PCIe, so that links are slow everywhere:

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
# By the rule of thumb the tensor axis is as wide as a node, and three stages follow: 1 x 3 x 8. On this machine that is
# the slowest of all meshes that fit, and takes 2.3 times as long as 24 stages without any tensor axis. The rule was
# found on nodes with fast links. The reasons for it, which you have written down, hold everywhere.

# %% [markdown]
# ## Where it comes from
#
# <details><summary>More: the papers</summary>
#
# - D. Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, SC 2021
#   ([arXiv:2104.04473](https://arxiv.org/abs/2104.04473)): table 1; how to choose the axes (section 3). The runs'
#   settings are in [the authors' scripts](https://github.com/NVIDIA/Megatron-LM/tree/main/examples/sc21).
# - M. Shoeybi et al., *Megatron-LM*, 2019 ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)): 8.3 billion
#   parameters on 512 V100, 76 % of perfect scaling.
# - S. Rajbhandari et al., *ZeRO*, SC 2020 ([arXiv:1910.02054](https://arxiv.org/abs/1910.02054)): 100 billion
#   parameters on 400 V100, 15 petaFLOP/s.
# - Y. Zhao et al., *PyTorch FSDP*, VLDB 2023 ([arXiv:2304.11277](https://arxiv.org/abs/2304.11277)): hybrid sharding.
# - W. Liang et al., *TorchTitan*, 2024 ([arXiv:2410.06511](https://arxiv.org/abs/2410.06511)): FSDP2, tensor and
#   pipeline parallelism on one mesh.
# - F. Iandola et al., *FireCaffe*, CVPR 2016 ([arXiv:1511.00175](https://arxiv.org/abs/1511.00175)): GoogLeNet 47 times
#   as fast on 128 GPUs. P. Goyal et al. ([arXiv:1706.02677](https://arxiv.org/abs/1706.02677)) and Horovod: unit 04.
# - N. Dryden et al., *Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism*, IPDPS 2019
#   ([arXiv:1903.06681](https://arxiv.org/abs/1903.06681)): cuts by samples and in space; and *Channel and Filter
#   Parallelism for Large-Scale CNN Training*, SC 2019.
# - S. A. Jacobs et al., *Parallelizing Training of Deep Generative Models on Massive Scientific Datasets*, 2019
#   ([arXiv:1910.02270](https://arxiv.org/abs/1910.02270)): the tournament.
# - M. Jaderberg et al., *Population Based Training of Neural Networks*, 2017
#   ([arXiv:1711.09846](https://arxiv.org/abs/1711.09846)).
#
# </details>
#
# ## What goes wrong in practice
#
# - **The job uses all devices and is slow.** The tensor axis leaves the node. Look at which ranks form a group before
#   you look at the network.
# - **Norms and biases drift apart along the tensor axis.** Their gradients are equal only while all these ranks see all
#   of x. With sequence parallelism (unit 06) each sees some tokens, and a sum along that axis is needed.
# - **It fits on paper and not on the device.** The inputs that blocks keep grow with the micro-batches under way, and a
#   block that is computed again needs its whole activations for a moment.
# - **A network on strips learns worse than on one device.** Some layer still looks at its strip alone: zeros at the
#   cuts, statistics of each rank. Compare one forward pass with one rank's; errors sit in the rows beside the cuts.
# - **A tournament ends with copies of one model.** Rounds come so often that nobody learns anything of its own in
#   between, or all are judged on the same few samples.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
