# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Pipeline parallelism
#
# A model that does not fit into one GPU is cut between its layers: each GPU computes a few of them and hands on what comes out.
#
# After this unit you can
#
# - write the mean over all ranks with one collective call.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import copy
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import Cluster, Link, launch, per_rank
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## 1 Four layers on four workers
#
# A model of four layers lies on four workers, a layer on each. A batch comes in at worker 0; each worker computes its layer
# and sends what comes out, the **activations**, to the next. Worker 3 has the loss. Then backward comes the other way:
# each worker sends the gradient of its input back to the worker that computed that input. Backward takes about twice as long as
# forward, since for every layer there are two products in place of one: the gradient of its input, and that of its weights.
#
# Nothing else has to be sent, and each worker holds a quarter of the weights, of their gradients and of the optimizer's
# state. What is wrong with it? Look at one step:

# %% demo=true
from course_lib.training.pipeline import Backward, Forward, cost

one_batch = [[Forward(0), Backward(0)] for worker in range(4)]
naive = cost(one_batch, micro_batches=1)
for worker, row in enumerate(naive.stages):
    print(
        f"worker {worker}: "
        + ", ".join(f"{timed.action} from {timed.begin:2.0f} to {timed.end:2.0f}" for timed in row)
    )
print(
    f"One step takes {naive.seconds:.0f} units of time. The workers compute for {1 - naive.bubble:.0%} of it."
)

# %% demo=true jupyter={"source_hidden": true}
assert naive.seconds == 4 * (1 + 2)
assert naive.bubble == 3 / 4

# %% [markdown]
# A **utilisation** of 1/4: each worker needs the output of another one as its input, so one works and three wait. Four GPUs
# are as fast as one. What they wait is called the **bubble**, here 3/4 of the time, and it is what the schedules of
# this unit fight over: GPipe, 1F1B, interleaved stages, zero bubble. The way out is known from data
# parallelism. A batch is a sum over its samples (unit 02), so it can be cut into **micro-batches**, whose gradients add up as
# in `accumulate_gradients` of unit 01; while worker 1 has the first, worker 0 computes the second.
#
# ### Its names
#
# Three lectures use the word "model parallel" for three things, and two words stand for nearly the same:
#
# | Name | Used by | Meaning |
# |---|---|---|
# | model parallel | a survey of frameworks (001) | any way to split the model over workers, in contrast to splitting the data |
# | model parallel | a supercomputer centre (000) | splitting *within* layers; this unit's subject is "pipeline parallel" there |
# | model parallel | a course on training costs (004) | all of pipeline, tensor and expert parallelism |
# | inter-layer, intra-layer | a course on HPC (002) | between layers: this unit; within layers: unit 06 |
# | inter-operator, intra-operator | Alpa (2022), and 004 | the same for graphs of operators, of which a layer has several |
# | pipeline parallel | GPipe (2018), PipeDream (2018) | between layers, with several micro-batches under way |
#
# Lecture 000 says of pipeline parallelism that "weights are distributed to all nodes", and of data parallelism that
# "parameters are duplicated on all nodes". That is the difference in memory: $1/p$ of the model on each of $p$ workers,
# or all of it.
#
# ## 2 Where to cut
#
# A pipeline is as fast as its slowest **stage**: the others wait for it, micro-batch after micro-batch. So layers are
# dealt out by what they cost. They stay in order, since a stage sends to the next one only. How hard can it be? The obvious
# way goes through the layers and closes a stage as soon as it has its fair share:


# %% demo=true
def greedy(costs: list[float], stages: int) -> list[int]:
    """Close a stage when the mean is reached, and leave a layer for each stage that is still to come."""
    lengths, filled, taken = [], 0.0, 0
    for layer, seconds in enumerate(costs):
        filled, taken = filled + seconds, taken + 1
        to_come = stages - len(lengths) - 1
        if to_come and (filled >= sum(costs) / stages or len(costs) - layer - 1 == to_come):
            lengths.append(taken)
            filled, taken = 0.0, 0
    return [*lengths, taken]


def slowest(costs: list[float], lengths: list[int]) -> float:
    """What the slowest stage of a cut takes."""
    ends = np.cumsum(lengths)
    return max(sum(costs[end - length : end]) for end, length in zip(ends, lengths, strict=True))


print(greedy([3, 3, 3, 3, 4, 4], 3), slowest([3, 3, 3, 3, 4, 4], greedy([3, 3, 3, 3, 4, 4], 3)))

# %% demo=true jupyter={"source_hidden": true}
assert slowest([3, 3, 3, 3, 4, 4], greedy([3, 3, 3, 3, 4, 4], 3)) == 9
assert slowest([3, 3, 3, 3, 4, 4], [2, 2, 2]) == 8

# %% [markdown]
# Six layers, 20 units of work, three stages. Greedy closes the first stage at 9, the second at 7, and the rest is 4. Two layers a stage
# would take 6, 6 and 8. What is cut off once cannot be taken back.


# %% exercise="balance_stages" points=8
def balance_stages(costs: list[float], stages: int) -> list[int]:
    """How many layers each stage gets, so that the slowest stage is as fast as possible.

    costs: what each layer takes, of at least 0, in the order of the layers; stays as it is. Stages are runs of
    neighbouring layers, in order, and none is empty. Returns their lengths; where several cuts are equally good,
    any of them. Raises ValueError if there are fewer layers than stages.

    300 layers in 24 stages must take less than five seconds.
    """
    ### BEGIN SOLUTION
    layers = len(costs)
    if layers < stages:
        raise ValueError(f"{layers} layers cannot fill {stages} stages: at most {layers}.")
    until = [0.0, *itertools.accumulate(costs)]
    # best[n]: the slowest stage of the first n layers, with as many stages as there have been rounds.
    best = [0.0] + [math.inf] * layers
    begins = []
    for _ in range(stages):
        begin = [
            min(range(end), key=lambda k: max(best[k], until[end] - until[k]), default=0)
            for end in range(layers + 1)
        ]
        best = [math.inf] + [
            max(best[begin[end]], until[end] - until[begin[end]]) for end in range(1, layers + 1)
        ]
        begins.append(begin)
    lengths, end = [], layers
    for begin in reversed(begins):
        lengths.append(end - begin[end])
        end = begin[end]
    return lengths[::-1]
    ### END SOLUTION


# %% [markdown]
# How much does it matter? VGG-16 has 138 million parameters; it is the model on which PipeDream was shown on 16
# GPUs. Its costs below are counted: three times the operations of each layer's forward pass, one for forward and two for backward.

# %% demo=true
from torch.utils.flop_counter import FlopCounterMode

from course_lib.torchvision_compat import import_torchvision


@dataclass(frozen=True, slots=True)
class Profile:
    """What each layer of a model takes for a batch: operations of forward and backward, bytes that it hands on, bytes of weights."""

    operations: list[int]
    activation_bytes: list[int]
    weight_bytes: list[int]


def profile(layers: list[nn.Module], batch: int) -> Profile:
    """Count on tensors without data; images are 224 x 224 pixels."""
    operations, activations, weights = [], [], []
    x = torch.empty(batch, 3, 224, 224, device="meta")
    for layer in layers:
        with FlopCounterMode(display=False) as counter:
            x = layer(x)
        operations.append(3 * counter.get_total_flops())
        activations.append(4 * x.numel())
        weights.append(4 * sum(parameter.numel() for parameter in layer.parameters()))
    return Profile(operations, activations, weights)


models = import_torchvision().models
with torch.device("meta"):
    vgg, resnet = models.vgg16(), models.resnet50()
vgg16 = profile([*vgg.features, vgg.avgpool, nn.Flatten(), *vgg.classifier], batch=64)
resnet_layers = [resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool]
resnet_layers += [
    *resnet.layer1,
    *resnet.layer2,
    *resnet.layer3,
    *resnet.layer4,
    resnet.avgpool,
    nn.Flatten(),
    resnet.fc,
]
resnet50 = profile(resnet_layers, batch=128)
print(f"VGG-16: {len(vgg16.operations)} layers, {sum(vgg16.weight_bytes) / 4e6:.1f} million parameters")

# %% demo=true jupyter={"source_hidden": true}
assert sum(vgg16.weight_bytes) == 4 * 138_357_544

# %% demo=true
# %%needs balance_stages
work = [operations / 1e12 for operations in vgg16.operations]
for stages in (2, 4, 8):
    cuts = {"greedy": greedy(work, stages), "balanced": balance_stages(work, stages)}
    for name, lengths in cuts.items():
        worst = slowest(work, lengths)
        print(f"{stages} stages, {name:8} {lengths}: speed-up at most {sum(work) / worst:.2f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds balance_stages
assert round(sum(work) / slowest(work, greedy(work, 8)), 1) == 4.2
assert round(sum(work) / slowest(work, balance_stages(work, 8)), 1) == 5.6
assert round(max(work) / sum(work), 2) == 0.12

# %% [markdown]
# Greedy loses most with eight stages: 4.2 times the speed of one GPU at best, where 5.6 are possible. More than 5.6 are not,
# since a layer is not divisible: the dearest takes 12 % of the work, nearly an eighth, so there is no room beside it. (Unit 06 cuts
# within layers.)
#
# torchgpipe, which brought GPipe to PyTorch, has a balancer of its own: it starts from equal numbers of layers and moves borders
# (Bárány and Grinberg, Block partitions of sequences, 2013) until no two stages differ by more than the dearest layer
# does from the cheapest. It says of itself that "the result might not be optimal". Is it, for drawn costs?


# %% demo=true
# %%needs beside:torchgpipe balance_stages
def torchgpipe_cuts(cases: list[tuple[list[float], int]]) -> list[list[int]]:
    """How torchgpipe cuts layers of these costs."""
    from torchgpipe.balance import balance_cost

    return [balance_cost(costs, stages) for costs, stages in cases]


generator = np.random.default_rng(0)
drawn = [(generator.integers(1, 100, 24).tolist(), 4) for case in range(200)]
theirs = launch(torchgpipe_cuts, drawn, ranks=1, on="processes", beside="torchgpipe").results[0]
slower = [
    slowest(costs, lengths) / slowest(costs, balance_stages(costs, stages))
    for (costs, stages), lengths in zip(drawn, theirs, strict=True)
]
print(
    f"torchgpipe's slowest stage takes {statistics.mean(slower):.2f} times as long as it must, at worst {max(slower):.2f} times; "
    f"in {sum(ratio == 1 for ratio in slower)} of {len(slower)} cases it is as good as can be."
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:torchgpipe balance_stages
assert min(slower) == 1
assert 1.02 < statistics.mean(slower) < 1.3

# %% [markdown]
# ## 3 One stage
#
# Now the messages. A rank has one stage, its neighbours are the ranks before and after it. Autograd knows nothing of the
# others: on rank $r$ its graph begins with a tensor that has arrived, and ends with one that is sent. Backward has to be
# carried over each cut by hand. You need no schedule for that; here a whole batch goes through at once.


# %% exercise="run_stage" points=12
def run_stage(
    stage: nn.Module,
    x: Tensor,
    target: Tensor | None,
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Tensor | None:
    """Forward and backward of one batch through a model whose stages lie on the ranks, in order.

    stage: this rank's; it takes one tensor and returns one. Some of its parameters, or all, may be frozen.
    x: on rank 0 the batch, of any dtype; on every other rank a tensor of the shape and dtype of what arrives
    there, whose values mean nothing. It stays as it is. target: on the last rank the targets of the batch, on
    all others None. loss_function(output, target): a scalar.

    Afterwards the gradients of the whole model's loss have been added to the stage's parameters, as backward()
    does. Returns the loss on the last rank, without its graph, on all others None.

    Every rank but the last sends its output to the next rank, once; every rank but the first sends the gradient
    of its input, of the same shape and dtype, to the rank before, once. Nothing else is sent.
    """
    ### BEGIN SOLUTION
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    arrived = x
    if rank > 0:
        arrived = torch.empty_like(x)
        dist.recv(arrived, rank - 1)
        arrived.requires_grad_()
    output = stage(arrived)
    loss = None
    if rank == last:
        loss = loss_function(output, target)
        if loss.requires_grad:
            loss.backward()
    else:
        dist.send(output.detach().contiguous(), rank + 1)
        gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
        dist.recv(gradient, rank + 1)
        if output.requires_grad:
            output.backward(gradient)
    if rank > 0:
        dist.send(arrived.grad.contiguous(), rank - 1)
    return None if loss is None else loss.detach()
    ### END SOLUTION


# %% [markdown]
# The same four layers, once on one rank and once on four:

# %% demo=true
# %%needs run_stage
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for stage in range(4)]
batch, wanted = torch.randn(64, 32), torch.randn(64, 32)
whole = nn.Sequential(*copy.deepcopy(layers))
whole_loss = functional.mse_loss(whole(batch), wanted)
whole_loss.backward()


def by_hand(layer: nn.Module, x: Tensor) -> tuple[Tensor | None, list[Tensor]]:
    """One step of a stage: the loss, and the gradients of its parameters."""
    target = wanted if dist.get_rank() == 3 else None
    loss = run_stage(layer, x, target, functional.mse_loss)
    return loss, [parameter.grad for parameter in layer.parameters()]


computes = Cluster(devices_per_node=4, intra_node=Link(latency=1e-6, bandwidth=1e11), flops=1e9)
stepped = launch(by_hand, per_rank(layers), batch, cluster=computes, on="simulated")
worst = max(
    (gradient - parameter.grad).abs().max().item()
    for layer, (_, gradients) in zip(whole, stepped.results, strict=True)
    for gradient, parameter in zip(gradients, layer.parameters(), strict=True)
)
print(
    f"loss {stepped.results[3][0]:.6f} on four ranks, {whole_loss:.6f} on one; largest difference of a gradient {worst:.0e}"
)
stepped.timeline(title="One batch through four stages")

# %% demo=true jupyter={"source_hidden": true}
# %%holds run_stage
assert worst < 1e-7
assert stepped.traffic.messages == 2 * 3
assert stepped.traffic.sent == 2 * 3 * batch.numel() * 4

# %% [markdown]
# Each worker computes for about a quarter of the time, as in section 1. (Worker 0 for less: of the batch itself nobody needs
# a gradient.) Three cuts, each crossed by the activations and by
# their gradients, of the same size: six messages of 8 kB. Called once for each of several micro-batches, `run_stage` would
# add up their gradients, and the workers would still wait for each other, since each micro-batch goes all the way before the next one begins. What is missing is
# an order of work in which a stage begins another micro-batch while it waits: a **schedule**.

# %% [markdown]
# ## 4 Micro-batches
#
# A collective is called by every rank, and `dist.all_reduce` leaves the sum over all ranks in each rank's tensor.


# %% exercise="pipeline_parallel_example" points=4
def pipeline_parallel_example(x: Tensor) -> Tensor:
    """The mean of x over all ranks, the same on every rank.

    x: float32 [n], of one length on all ranks. It stays as it is; the mean is a new tensor.
    One collective call.
    """
    ### BEGIN SOLUTION
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
    ### END SOLUTION


# %% [markdown]
# Rank r holds the number r:

# %% demo=true
# %%needs pipeline_parallel_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(pipeline_parallel_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 5 What waits in memory

# %% [markdown]
# ## 6 One forward, one backward

# %% [markdown]
# ## 7 Several chunks a worker

# %% [markdown]
# ## 8 Backward in two halves

# %% [markdown]
# ## 9 A schedule at a glance

# %% [markdown]
# ## 10 Weights that have moved on

# %% [markdown]
# ## 11 A cut found by a program

# %% [markdown]
# ## 12 Bytes at a cut

# %% [markdown]
# ## 13 On real processes

# %% [markdown]
# ## 14 Now on nodes

# %% [markdown]
# ## 15 Open task

# %% [markdown]
# ## Where it comes from
#
# Papers, with their numbers.
#
# ## What goes wrong in practice
#
# Mistakes that people make, and how they show.
