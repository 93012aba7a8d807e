# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Memory
#
# In data parallelism every GPU holds the whole model: its weights, their gradients, and what the optimizer keeps. 64 GPUs
# hold the same numbers 64 times. This unit removes the copies. What fills a GPU can be cut into shards, one for each
# rank. It can be moved to the host and fetched again. Or it can be thrown away and computed again. Each way costs bytes
# on a wire or computing time, and you will measure how much.
#
# After this unit you can
#
# - say what fills a GPU in training, and how much of it is left on each rank in the three stages of ZeRO;
# - write the three stages: an optimizer, gradients and a model of which each rank holds a part, with the same result as
#   without, and say what they send;
# - compute the norm of a gradient that is cut over ranks, and gather a state that is cut into one file;
# - move activations to the host, or compute them again, and plan which of the two pays for which layer.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes". Only sections 6 and 7 look at `on`; section 12 uses both, and all others simulate.
ranks = 4
on = "simulated"

# %%
import copy
import itertools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from course_lib import Cluster, Link, Run, launch, per_rank, span
from course_lib.cluster import presets
from course_lib.data import load as load_data
from course_lib.figures.pictures.model_states import gigabytes_of_kind, model_states_figure
from course_lib.figures.plots import line_figure
from course_lib.notebook.widgets import Slider, explore
from course_lib.training.deepspeed_stages import calls_within, deepspeed_steps
from course_lib.training.host_memory import Arriving, HostMemory, HostTensor
from course_lib.training.memory_plan import Layer, Plan, Task, plan_cost
from course_lib.training.out_of_core import DoesNotFit, Way, step
from course_lib.training.out_of_core_drawing import out_of_core_figure
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. Folded cells check that the text's numbers are what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below. The sections in parentheses have the answers. A
# cell with `guesses` alone shows what you guessed beside what was measured.
#
# 1. Weights, gradients and Adam's numbers of a model, in mixed precision, take 120 GB on each of 64 GPUs. Now only Adam's
#    numbers are cut into 64 shards, one for each GPU. How many GB does a GPU hold then (section 1)?
# 2. Data parallelism all-reduces the gradients. If each rank keeps only a shard of the gradients and of Adam's numbers,
#    how many times as many bytes does it send in a step (section 4)?
# 3. And if it keeps only a shard of the weights too, and asks the others for theirs whenever it computes (section 5)?

# %% demo=true
guesses = predict(
    "09_memory",
    gigabytes_with_shards_of_adams_numbers=None,
    times_the_bytes_with_shards_of_gradients=None,
    times_the_bytes_with_shards_of_weights=None,
)

# %% [markdown]
# ## 1 What fills the memory
#
# Unit 01 counted what a GPU holds for each parameter, in mixed precision with Adam: 2 bytes for the weight, 2 for its
# gradient, and 12 for the optimizer. The optimizer keeps a copy of the weight, the mean of the gradients and the mean of
# their squares, in 4 bytes each. These 16 bytes are the **model states**. Beside them are activations (sections 9 to 11)
# and buffers.
#
# With data parallelism on $p$ GPUs, all $p$ hold the same model states. ZeRO, the Zero Redundancy Optimizer of
# Microsoft's DeepSpeed, removes these copies in three stages. In stage 1 each rank keeps $1/p$ of the optimizer's
# numbers, in stage 2 also $1/p$ of the gradients, in stage 3 also $1/p$ of the weights. The part that a rank keeps is its
# **shard**. The computation is not cut, unlike in units 05 and 06: every rank still trains the whole model, on its own
# samples. It only does not keep what it does not need at the moment.


# %% exercise="zero_memory" points=5
def zero_memory(parameters: int, ranks: int, stage: int, state_bytes: int = 12) -> int:
    """Bytes of model states on the rank that holds most.

    parameters: how many numbers the model learns. Each has a weight of 2 bytes and a gradient of 2, and
        takes state_bytes of the optimizer.
    stage: 0, where every rank holds everything, to 3. Shards are whole numbers of parameters, and the
        largest is as small as it can be.

    S. Rajbhandari et al., ZeRO, 2020, figure 1.
    """
    ### BEGIN SOLUTION
    shard = -(-parameters // ranks)
    weights = shard if stage == 3 else parameters
    gradients = shard if stage >= 2 else parameters
    states = shard if stage >= 1 else parameters
    return 2 * weights + 2 * gradients + state_bytes * states
    ### END SOLUTION


# %% [markdown]
# Figure 1 of the ZeRO paper has 7.5 billion parameters on 64 GPUs. Try other numbers. From how many GPUs on does a model
# of 34 billion parameters fit into 80 GB, in each of the stages?

# %% demo=true jupyter={"source_hidden": true}
# %%needs zero_memory
PAPER = {"parameters": 7_500_000_000, "ranks": 64}


def gigabytes(parameters: int, ranks: int) -> list[float]:
    """What each rank holds under stages 0 to 3."""
    return [zero_memory(parameters, ranks, stage) / 1e9 for stage in range(4)]


def memory_bars(billions: float, gpus: int) -> Any:
    parameters = round(billions * 1e9)
    return model_states_figure(parameters, gpus, gigabytes(parameters, gpus))


explore(
    memory_bars,
    billions=Slider([1.5, 7.5, 13, 34, 70, 175, 1000], start=7.5, label="parameters (billions)"),
    gpus=Slider([2**power for power in range(11)], start=64, label="GPUs"),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds zero_memory
of_paper = gigabytes(**PAPER)
assert [round(taken, 1) for taken in of_paper] == [120.0, 31.4, 16.6, 1.9]
kinds_of_paper = gigabytes_of_kind(PAPER["parameters"], of_paper)
assert kinds_of_paper["optimizer"][0] == 90.0
assert all(taken >= 0 for kind in kinds_of_paper.values() for taken in kind)
LARGER = 34_000_000_000
assert zero_memory(LARGER, 2**40, 1) > 80e9
assert all(
    zero_memory(LARGER, first - 1, stage) > 80e9 >= zero_memory(LARGER, first, stage)
    for stage, first in ((2, 40), (3, 7))
)
guesses.measured(gigabytes_with_shards_of_adams_numbers=of_paper[1])

# %% [markdown]
# 120, 31.4, 16.6 and 1.9 GB, as in the paper. The first stage brings most: three quarters of all bytes are the
# optimizer's, and it needs them only at the end of a step. With more and more ranks the first two stages approach a floor
# of 4 and 2 bytes a parameter. The third has none. So 34 billion parameters do not fit into 80 GB with stage 1 on any
# number of GPUs. With stage 2 they fit on 40 GPUs or more, with stage 3 on 7 or more.
#
# What has been cut must be put together again by messages. Stage by stage you will measure how many bytes that takes.

# %% [markdown]
# ## 2 A shard for each rank
#
# Which part belongs to which rank? A shard need not end where a layer ends: all parameters are laid end to end in one
# flat tensor, and that is cut. ZeRO needs two collectives, the two halves of unit 07's ring all-reduce. A
# **reduce-scatter** sums a tensor over ranks and leaves each rank with one part of the sum. An **all-gather** gives every
# rank all parts. PyTorch's fastest versions work on one flat tensor of equal parts:
#
# | Call | In | Out |
# |---|---|---|
# | `dist.reduce_scatter_tensor(part, whole)` | `whole` of $p$ parts, on each rank another | `part`: this rank's, summed over ranks |
# | `dist.all_gather_into_tensor(whole, part)` | `part`, this rank's | `whole`: all parts, in the order of the ranks |
#
# (PyTorch 2.13 has renamed them `reduce_scatter_single` and `all_gather_single`. The names here work in every version.)
#
# Equal parts need **padding**. Ten numbers on four ranks are three for each, so two zeros are added at the end: the last
# rank's part is one number and two zeros. (`torch.tensor_split` would cut 3, 3, 2, 2.) DeepSpeed and the first FSDP pad
# in this way too. Today's FSDP (`fully_shard`, section 12) cuts each parameter by its rows, and pads these.


# %% exercise="shard_range" points=4
def shard_range(numel: int, ranks: int, rank: int) -> tuple[int, int]:
    """Which numbers of a flat tensor a rank holds: from the first one up to, and without, the second.

    The tensor of numel numbers is padded at its end, and cut into `ranks` equal parts, as short as
    possible. Each rank has one, in the order of the ranks. Padding does not count: a rank that has
    nothing else holds (numel, numel).
    """
    ### BEGIN SOLUTION
    length = -(-numel // ranks)
    return min(rank * length, numel), min((rank + 1) * length, numel)
    ### END SOLUTION


# %% demo=true
# %%needs shard_range
for numel, parts in ((12, 4), (10, 4), (5, 4)):
    print(f"{numel} numbers on {parts} ranks:", *(shard_range(numel, parts, rank) for rank in range(parts)))

# %% demo=true jupyter={"source_hidden": true}
# %%holds shard_range
assert [shard_range(10, 4, rank) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
assert [shard_range(5, 4, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]

# %% [markdown]
# Five numbers on four ranks: two for each of the first two ranks, one for the third, none for the last. That happens,
# with a bias of a few numbers on a few hundred GPUs. Whatever you write below has to work for a rank without numbers.
#
# These two functions lay tensors end to end with padding, and take them apart again:


# %%
def flat(tensors: Iterable[Tensor], ranks: int) -> Tensor:
    """The tensors' numbers end to end, in a new tensor that is padded with zeros for so many ranks."""
    numbers = [tensor.detach().flatten() for tensor in tensors]
    missing = -sum(map(len, numbers)) % ranks
    return torch.cat([*numbers, numbers[0].new_zeros(missing)])


def unflat(whole: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The tensors of these shapes whose numbers lie end to end in a whole, as views of it."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = whole[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# %% [markdown]
# ## 3 Shards of the optimizer's state
#
# After the all-reduce of data parallelism every rank has the mean of all gradients, and every rank makes the same step of
# Adam. That is the waste. Adam treats each number by itself: the new value of weight 7 depends on gradient 7 and on its
# two running means, and on nothing else. So a rank can update its own shard of the weights, and needs the mean gradient
# of that shard only. A step has three parts:
#
# 1. a reduce-scatter of the gradients: each rank gets the sum for its shard;
# 2. a step of Adam on the shard, with a shard of the running means;
# 3. an all-gather of the weights: each rank gets the shards of the others.
#
# A ring's all-reduce is a reduce-scatter followed by an all-gather (unit 07). Stage 1 puts the optimizer's step between
# the two, and sends exactly as many bytes.
#
# PyTorch's optimizers take a model's parameters, or **groups** of them with options of their own: a list of dicts such as
# `{"params": [...], "lr": 0.1}`. Their attribute `param_groups` holds a dict for each group (one, if no groups were
# given), and training may change the options there, such as `"lr"`. Yours does all this too. Each group has a flat tensor
# of its own, of which a rank keeps its padded part alone. These parts, one a group, are what PyTorch's optimizer gets.


# %% exercise="ShardedOptimizer" points=18
class ShardedOptimizer:
    """An optimizer whose numbers are cut over the ranks: ZeRO's first stage.

    parameters: of a model, or groups of them. What needs no gradient is left alone.
    optimizer_class, options: as those of torch.optim.
    param_groups: a dict for each group, whose options may be changed.

    step(): every parameter gets, in its own memory, what a step of optimizer_class with the mean of
        .grad over ranks makes of it. None counts as zeros. Every .grad stays.
    zero_grad(): sets every .grad to None.

    Calls in a step: one reduce-scatter and one all-gather a group.
    """

    def __init__(
        self, parameters: Iterable[Any], optimizer_class: type[torch.optim.Optimizer], **options: Any
    ) -> None:
        ### BEGIN SOLUTION
        ranks, rank = dist.get_world_size(), dist.get_rank()
        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.trained = [[p for p in group["params"] if p.requires_grad] for group in groups]
        shards = [nn.Parameter(flat(own, ranks).view(ranks, -1)[rank].clone()) for own in self.trained]
        self.optimizer = optimizer_class(
            [{**group, "params": [shard]} for group, shard in zip(groups, shards, strict=True)], **options
        )
        self.param_groups = self.optimizer.param_groups
        ### END SOLUTION

    @torch.no_grad()
    def step(self) -> None:
        ### BEGIN SOLUTION
        ranks = dist.get_world_size()
        shards = [group["params"][0] for group in self.param_groups]
        for own, shard in zip(self.trained, shards, strict=True):
            whole = flat((torch.zeros_like(p) if p.grad is None else p.grad for p in own), ranks)
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter_tensor(shard.grad, whole)
            shard.grad /= ranks
        self.optimizer.step()
        for own, shard in zip(self.trained, shards, strict=True):
            whole = shard.new_empty(ranks * len(shard))
            dist.all_gather_into_tensor(whole, shard)
            for parameter, values in zip(own, unflat(whole, [p.shape for p in own]), strict=True):
                parameter.copy_(values)
        ### END SOLUTION

    def zero_grad(self) -> None:
        ### BEGIN SOLUTION
        for own in self.trained:
            for parameter in own:
                parameter.grad = None
        ### END SOLUTION


# %% [markdown]
# Now a real training: a network of four layers learns the digits, with Adam, on four ranks. First as in unit 02, then
# with your optimizer. `launch(..., memory=True)` counts what each rank holds. Flat and gathered tensors count as
# activations.


# %% demo=true
def network() -> Iterator[nn.Module]:
    """The layers of a classifier of the digits, one after the other, the same wherever they are made."""
    torch.manual_seed(0)
    for _ in range(3):
        yield nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh())
    yield nn.Linear(64, 10)


STEPS, RATE = 4, 3e-3
digits = load_data("digits").train
numbers = sum(parameter.numel() for layer in network() for parameter in layer.parameters())


def data_parallel(images: Tensor, labels: Tensor) -> list[Tensor]:
    """Some steps with an all-reduce of the gradients, and the whole of Adam on every rank."""
    model = nn.Sequential(*network())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.flatten(1)), labels).backward()
        total = flat((p.grad for p in model.parameters()), 1)
        dist.all_reduce(total)
        for parameter, mean in zip(
            model.parameters(), unflat(total / dist.get_world_size(), [p.shape for p in model.parameters()])
        ):
            parameter.grad.copy_(mean)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def stage_1(images: Tensor, labels: Tensor) -> list[Tensor]:
    """The same with shards of Adam's numbers."""
    model = nn.Sequential(*network())
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.flatten(1)), labels).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def trained(way, size: int = ranks, memory: bool = True, cluster: Cluster | None = None) -> Run:
    """What a training on so many ranks shows, each with 16 images of its own."""
    samples = [digits.batch(torch.arange(rank, 16 * size, size), "cpu") for rank in range(size)]
    images, labels = zip(*samples, strict=True)
    return launch(way, per_rank(images), per_rank(labels), ranks=size, memory=memory, cluster=cluster)


def told(name: str, run: Run) -> None:
    """Print what a rank sent in a step, in bytes of the model, and the most that it held of each kind."""
    held = ", ".join(f"{kind} {run.memory[0].peak_of(kind):,}" for kind in KINDS)
    print(f"{name:17} sends {sent_in_a_step(run):.2f} times the model; most bytes held: {held}")


KINDS = "parameters", "gradients", "optimizer", "activations"


def sent_in_a_step(run: Run) -> float:
    """Bytes that rank 0 sent in a step, as a multiple of the model's."""
    return run.traffic.ranks[0].sent / STEPS / (4 * numbers)


# A device that is slow in everything, for timelines.
machine = Cluster(devices_per_node=ranks, intra_node=Link(5e-6, 2e9), flops=1e10, memory_bandwidth=1e10)
whole = trained(data_parallel)
told("data parallelism", whole)

# %% demo=true
# %%needs ShardedOptimizer
one = trained(stage_1)
told("stage 1", one)


# %% demo=true jupyter={"source_hidden": true}
# %%holds ShardedOptimizer
def same_weights(seen: Run) -> bool:
    """Whether all ranks have the weights of data parallelism, to rounding."""
    return all(
        torch.allclose(own, each, atol=2e-4)
        for rank in seen.results
        for own, each in zip(rank, whole.results[0], strict=True)
    )


assert same_weights(one)
assert abs(sent_in_a_step(one) / sent_in_a_step(whole) - 1) < 0.01
assert one.memory[0].peak_of("optimizer") < 1.02 / ranks * whole.memory[0].peak_of("optimizer")

# %% [markdown]
# The weights and the bytes sent are the same, and Adam's memory is a quarter. (A rank also holds one more shard of
# weights and of gradients, since Adam changes a tensor of its own. In mixed precision that is the copy in 4 bytes, which
# is among the 12.) In bytes stage 1 is free; section 8 measures the time. PyTorch has it as `ZeroRedundancyOptimizer`
# (section 12), Megatron-LM as its distributed optimizer.
#
# Two limits. Adam divides by the size of the gradients, so with it you would hardly notice a sum in place of the mean;
# with SGD you would. And some optimizers look at more than one number at a time: LARS and LAMB at the norm of a layer,
# Shampoo at a matrix. They cannot work on a shard that begins and ends anywhere.

# %% [markdown]
# ## 4 Shards of the gradients
#
# After the reduce-scatter a rank needs its shard of the gradients only. Yet at the end of backward all gradients are
# there, 2 bytes for each parameter, and a moment later they are thrown away. To save this memory, send them while
# backward computes: a **bucket** of gradients as soon as it is complete, as in unit 02. Then its memory is free for the
# next bucket.
#
# The reduce-scatter is asynchronous, so that backward goes on meanwhile. But a tensor that is being sent is still in
# memory. If you start the reduce-scatter of each bucket and wait for all of them at the end, then all gradients are in
# memory at the end of backward, in flat tensors. So at most one bucket may be under way.
#
# All ranks must send their buckets in the same order. A bucket is sent when all its gradients are there and all buckets
# before it have been sent. To send it:
#
# 1. wait for the bucket before;
# 2. lay the gradients end to end, with padding (section 2), and set each `.grad` to `None`;
# 3. start an asynchronous reduce-scatter, and do not wait for it.
#
# A parameter that this rank does not use in a step gets no gradient, so its bucket is not complete at the end of
# backward. A last call, `finish()`, sends such buckets too, with zeros for what is missing.


# %% exercise="ShardedGradients" points=20
class ShardedGradients:
    """Gradients that are cut over the ranks while backward computes them: ZeRO's second stage.

    buckets: lists of the trainable ones of model.parameters(), from the last to the first. One is
        closed before the parameter that would take it above bucket_bytes.
    finish(): called after each backward. Sends what backward has not sent, and returns of each bucket
        this rank's padded part of the mean over ranks. No .grad is left.

    Calls: one reduce-scatter a bucket, as described above.
    """

    def __init__(self, model: nn.Module, bucket_bytes: int) -> None:
        ### BEGIN SOLUTION
        self.buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
            if not self.buckets or parameter.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._arrived(number))
        self._begin()
        ### END SOLUTION

    def finish(self) -> list[Tensor]:
        ### BEGIN SOLUTION
        while len(self.shards) < len(self.buckets):
            self._send()
        self.under_way.wait()
        shards = self.shards
        self._begin()
        return shards

    def _begin(self) -> None:
        self.missing = [len(bucket) for bucket in self.buckets]
        self.shards: list[Tensor] = []
        self.under_way: Any = None

    def _arrived(self, number: int) -> None:
        self.missing[number] -= 1
        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:
            self._send()

    def _send(self) -> None:
        """Send the next bucket, with zeros for what is not there."""
        if self.under_way:
            self.under_way.wait()
            self.under_way = None
        bucket, ranks = self.buckets[len(self.shards)], dist.get_world_size()
        whole = flat((torch.zeros_like(p) if p.grad is None else p.grad for p in bucket), ranks)
        for parameter in bucket:
            parameter.grad = None
        self.shards.append(whole.new_empty(len(whole) // ranks))
        self.under_way = dist.reduce_scatter_tensor(self.shards[-1], whole.div_(ranks), async_op=True)
        ### END SOLUTION


# %% [markdown]
# Stage 2 is this, an optimizer for the shards, and the all-gather of section 3:


# %% demo=true
def stage_2(images: Tensor, labels: Tensor) -> list[Tensor]:
    """The training with shards of the gradients too."""
    model = nn.Sequential(*network())
    sharded = ShardedGradients(model, bucket_bytes=20_000)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [nn.Parameter(flat(bucket, ranks).view(ranks, -1)[rank].clone()) for bucket in sharded.buckets]
    optimizer = torch.optim.Adam(parts, lr=RATE)
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(images.flatten(1)), labels)
        with span("backward"):
            loss.backward()
        for part, gradient in zip(parts, sharded.finish(), strict=True):
            part.grad = gradient
        optimizer.step()
        for bucket, part in zip(sharded.buckets, parts, strict=True):
            together = part.new_empty(ranks * len(part)).detach()
            dist.all_gather_into_tensor(together, part.detach())
            for parameter, values in zip(bucket, unflat(together, [p.shape for p in bucket]), strict=True):
                parameter.data.copy_(values)
    return [parameter.detach() for parameter in model.parameters()]


# %% demo=true
# %%needs ShardedGradients
two = trained(stage_2)
told("data parallelism", whole)
told("stage 2", two)


# %% demo=true jupyter={"source_hidden": true}
# %%holds ShardedGradients
assert same_weights(two)
assert abs(sent_in_a_step(two) / sent_in_a_step(whole) - 1) < 0.02
assert two.memory[0].peak_of("gradients") < (1 / ranks + 0.4) * whole.memory[0].peak_of("gradients")
guesses.measured(times_the_bytes_with_shards_of_gradients=sent_in_a_step(two) / sent_in_a_step(whole))

# %% [markdown]
# Your second prediction: as many bytes as before. A rank holds its shard of the gradients, and about one bucket. In the
# timeline of one step the reduce-scatters (the low bars) begin while backward computes. A short gap within backward is
# the wait for the bucket before, whose memory is needed. The long gap behind backward is `finish()`, which waits for the
# last bucket:

# %% demo=true
# %%needs ShardedGradients
shown = trained(stage_2, cluster=machine)
shown.timeline(ranks=[0, 1], start=0.25 * shown.seconds, end=0.52 * shown.seconds)

# %% [markdown]
# ## 5 Shards of the parameters
#
# In stages 1 and 2 every rank still has all weights, 2 bytes each. But a layer's weights are needed only twice in a step:
# for its forward, and again for its backward. So a rank keeps a shard of them, and gathers the shards of the others just
# before it computes:
#
# | | before | after |
# |---|---|---|
# | forward of a unit | all-gather of its weights | frees them |
# | backward of a unit | all-gather of its weights | reduce-scatter of its gradients; frees both |
#
# A **unit** is a part of the model that is gathered together, such as a block of a transformer. It must not be the whole
# model, or all weights would be there at once. Its parameters are laid end to end (section 2), and each rank keeps its
# padded part. PyTorch's FSDP, Fully Sharded Data Parallel, works in this way.
#
# To free weights it is not enough to set a variable to `None`: autograd keeps what backward will need. For a linear layer
# that is its input and its weight. PyTorch lets you say what is kept in place of a tensor:


# %% demo=true
def pack(tensor: Tensor) -> str:
    """Called in forward with each tensor that autograd wants to keep; what comes back is kept in its place."""
    print(f"forward wants to keep {list(tensor.shape)}")
    remembered[str(list(tensor.shape))] = tensor
    return str(list(tensor.shape))


def unpack(kept: str) -> Tensor:
    """Called in backward, when the tensor is needed."""
    print(f"backward asks for {kept}")
    return remembered[kept]


remembered: dict[str, Tensor] = {}
with saved_tensors_hooks(pack, unpack):
    loss = nn.Linear(3, 2)(torch.ones(1, 3, requires_grad=True)).sum()
loss.backward()

# %% demo=true jupyter={"source_hidden": true}
assert sorted(remembered) == ["[1, 3]", "[2, 3]"] or sorted(remembered) == ["[1, 3]", "[3, 2]"]

# %% [markdown]
# Both are kept: the input and the weight (transposed or not, depending on PyTorch's version). These hooks keep the
# tensors in a dictionary, which saves nothing. Yours can do better: for a weight it is enough to keep where in the unit's
# flat tensor it lies.
#
# Two more tools. `torch.func.functional_call(module, tensors, inputs)` runs a module's code with other tensors, given by
# name, in place of its parameters. `copy.deepcopy(module, memo)` copies a module; the dictionary `memo` says what stands
# in the copy for a parameter, by the parameter's `id`. With an empty tensor for each, the code is copied without its
# numbers.


# %% exercise="FullyShardedUnit" points=28
class FullyShardedUnit(nn.Module):
    """A part of a model whose weights are cut over the ranks: ZeRO's third stage.

    module: stays as it is. Its parameters all need gradients, and have one dtype.
    unit.shard: its only parameter, this rank's padded part.

    unit(*inputs): what module returns, with the weights of all ranks' shards. Backward adds this rank's
        part of the mean gradient over ranks to shard.grad, and gives inputs theirs.
    start(): begins to gather the weights, unless they are there or on their way, and does not wait. The
        next pass takes these.

    Calls and frees: see the table above; but backward need not gather.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.ranks = dist.get_world_size()
        whole = flat(parameters.values(), self.ranks)
        self.shard = nn.Parameter(whole.view(self.ranks, -1)[dist.get_rank()].clone())
        # Its code, with a tensor of no numbers for each parameter; in a list, since its parameters are not the unit's.
        empty = {id(parameter): nn.Parameter(parameter.new_empty(0)) for parameter in parameters.values()}
        self.code = [copy.deepcopy(module, empty)]
        self.whole: Tensor | None = None
        self.arriving: Any = None
        ### END SOLUTION

    def start(self) -> None:
        ### BEGIN SOLUTION
        if self.whole is None:
            with torch.no_grad():
                self.whole = self.shard.new_empty(self.ranks * len(self.shard))
                self.arriving = dist.all_gather_into_tensor(self.whole, self.shard.detach(), async_op=True)
        ### END SOLUTION

    def forward(self, *inputs: Any) -> Any:
        ### BEGIN SOLUTION
        weights = unflat(Gathered.apply(self.shard, self), list(self.shapes.values()))
        with saved_tensors_hooks(self._pack, self._unpack):
            result = functional_call(self.code[0], dict(zip(self.shapes, weights, strict=True)), inputs)
        self.whole = None
        return result

    def gather(self) -> Tensor:
        """The weights, waited for."""
        self.start()
        if self.arriving:
            self.arriving.wait()
            self.arriving = None
        return self.whole

    def _pack(self, tensor: Tensor) -> Any:
        """What autograd is to keep for backward: of a part of the weights only where it lies."""
        if tensor.untyped_storage().data_ptr() != self.whole.untyped_storage().data_ptr():
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, kept: Any) -> Tensor:
        return kept if isinstance(kept, Tensor) else self.gather().as_strided(*kept)


class Gathered(torch.autograd.Function):
    """From a unit's shard to all of its weights, and back from their gradient to that of the shard."""

    @staticmethod
    def forward(ctx, shard: Tensor, unit: FullyShardedUnit) -> Tensor:
        ctx.unit = unit
        return unit.gather().view(-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        unit = ctx.unit
        if unit.arriving:  # started for a backward that did not need them
            unit.gather()
        unit.whole = None
        own = torch.empty_like(unit.shard)
        dist.reduce_scatter_tensor(own, gradient)
        return own / unit.ranks, None
        ### END SOLUTION


# %% [markdown]
# The same training, with a unit for each layer:


# %% demo=true
def in_units(model: nn.Sequential, images: Tensor, labels: Tensor) -> list[Tensor]:
    """The training of units; the parts of their weights that this rank has at the end."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with span("forward"):
            loss = functional.cross_entropy(model(images.flatten(1)), labels)
        with span("backward"):
            loss.backward()
        optimizer.step()
    return [unit.shard.detach() for unit in model]


def stage_3(images: Tensor, labels: Tensor) -> list[Tensor]:
    """The training with shards of everything; each layer is cut before the next one is made."""
    return in_units(nn.Sequential(*map(FullyShardedUnit, network())), images, labels)


# %% demo=true
# %%needs FullyShardedUnit
three = trained(stage_3)
told("data parallelism", whole)
told("stage 3", three)


# %% demo=true jupyter={"source_hidden": true}
# %%holds FullyShardedUnit
def put_together(run: Run) -> list[Tensor]:
    """The weights of the whole model, from the shards of all ranks."""
    together = [torch.cat(parts) for parts in zip(*run.results, strict=True)]
    layers = [[p.shape for p in layer.parameters()] for layer in network()]
    return [w for flat_unit, shapes in zip(together, layers, strict=True) for w in unflat(flat_unit, shapes)]


assert all(
    torch.allclose(own, each, atol=2e-4)
    for own, each in zip(put_together(three), whole.results[0], strict=True)
)
assert 1.3 < sent_in_a_step(three) / sent_in_a_step(whole) < 1.4
assert three.memory[0].peak_of("optimizer") < 1.05 / ranks * whole.memory[0].peak_of("optimizer")

# %% [markdown]
# An all-reduce is one reduce-scatter and one all-gather. Stage 3 has one all-gather more, so it should send half as much
# again. Here it sends a third more: the backward of the first layer does not need its weights, which would serve only for
# the gradient of the images.
#
# ### One unit ahead
#
# Stages 1 and 2 never wait for weights, stage 3 does. The remedy is to ask for them earlier: while one unit computes, the
# weights of the next are on their way. In backward the next unit is the one before. Asking for more than one ahead would
# fill the memory again.


# %% exercise="prefetch" points=10
def prefetch(modules: Sequence[nn.Module]) -> nn.Sequential:
    """Your FullyShardedUnits of the modules, one behind the other, that gather one unit ahead.

    modules: each is called with what the one before returned.

    Before a unit computes, it starts itself and then its neighbour: in forward the next unit, in
    backward the one before. Nobody else is started, and only the unit that computes waits for weights.
    There are no calls but those of the units.
    """
    ### BEGIN SOLUTION
    units = [FullyShardedUnit(module) for module in modules]

    def start(first: FullyShardedUnit, second: FullyShardedUnit) -> None:
        first.start()
        second.start()

    for unit, following in pairwise(units):
        unit.register_forward_pre_hook(lambda *_, pair=(unit, following): start(*pair))
        following.register_full_backward_pre_hook(lambda *_, pair=(following, unit): start(*pair))
    return nn.Sequential(*units)
    ### END SOLUTION


# %% demo=true
# %%needs FullyShardedUnit prefetch
def ahead(images: Tensor, labels: Tensor) -> list[Tensor]:
    """Stage 3, one unit ahead."""
    return in_units(prefetch([*network()]), images, labels)


late, early = trained(stage_3, cluster=machine), trained(ahead, cluster=machine)
print(f"stage 3: {late.seconds * 1e6:,.0f} µs; one unit ahead: {early.seconds * 1e6:,.0f} µs")
most = {name: run.memory[0].peak_of("activations") for name, run in (("late", late), ("early", early))}
print(f"most bytes of weights, flat gradients and activations: {most['late']:,} and {most['early']:,}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds FullyShardedUnit prefetch
assert early.seconds < 0.95 * late.seconds
assert abs(sent_in_a_step(early) / sent_in_a_step(whole) - 1.5) < 0.02
guesses.measured(times_the_bytes_with_shards_of_weights=sent_in_a_step(early) / sent_in_a_step(whole))
assert most["early"] <= most["late"] + 2 * 4 * (64 * 64 + 64)
assert all(torch.allclose(a, b) for a, b in zip(put_together(early), put_together(late), strict=True))

# %% [markdown]
# The third prediction: half as much again, since in backward the first unit's weights are now gathered too. In the
# timeline all-gathers (the low bars) run while units compute. A unit still waits where its neighbour computes for less
# time than its weights take to arrive. The bars of full height are reduce-scatters, for which backward waits. FSDP runs
# these too beside the next unit's backward:

# %% demo=true
# %%needs FullyShardedUnit prefetch
early.timeline(ranks=[0, 1], start=0.27 * early.seconds, end=0.53 * early.seconds)

# %% [markdown]
# ## 6 The norm of a gradient in shards
#
# Many trainings bound the norm of the gradient, the root of the sum of the squares of all its numbers: a longer one is
# scaled down to the bound.
# `torch.nn.utils.clip_grad_norm_` does that for a model whose gradients are all there. On shards it goes wrong without an
# error. Each rank finds the norm of its own shard only, which is too small, and each rank scales by another factor. The
# step then has another direction than the gradient. (PyTorch's own shards, in section 12, know that they are shards, and
# there `clip_grad_norm_` is right.)


# %% exercise="clip_grad_norm" points=7
def clip_grad_norm(shards: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale the gradient, of which all ranks have shards, down to max_norm, if its norm is larger.

    shards: this rank's parameters, whose .grad are its shards of the gradient, or None. Each number is
        on one rank only. A rank may have no shards.

    Returns the norm before scaling: float32 [], the same on all ranks, computed in float32, also of
    bfloat16. If it is larger than max_norm, every .grad is multiplied, in place, by max_norm / norm;
    else all stay. Calls: one all-reduce of a number.
    """
    ### BEGIN SOLUTION
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    total = torch.zeros(())
    for gradient in gradients:
        total += gradient.float().square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


# %% demo=true
# %%needs clip_grad_norm
def both_ways(gradient: Tensor) -> tuple[float, float, Tensor]:
    """The norm from shards, the norm that torch finds on this rank's shard, and the shard after clipping to 1."""
    shard = nn.Parameter(torch.zeros(len(gradient) // ranks))
    shard.grad = gradient.view(ranks, -1)[dist.get_rank()].clone()
    alone = torch.nn.utils.clip_grad_norm_([shard], math.inf).item()
    return clip_grad_norm([shard], 1.0).item(), alone, shard.grad


gradient = torch.arange(1.0, 1 + 4 * ranks)
norms = launch(both_ways, gradient, ranks=ranks, on=on).results
for rank, (norm, alone, _) in enumerate(norms):
    print(f"rank {rank}: norm {norm:.3f}, of its shard alone {alone:.3f}")
length = torch.cat([clipped for *_, clipped in norms]).norm().item()
print(f"the whole gradient after clipping: {length:.3f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds clip_grad_norm
assert all(abs(norm / gradient.norm().item() - 1) < 1e-5 for norm, _, _ in norms)
assert abs(length - 1) < 1e-5
assert all(alone < norm for norm, alone, _ in norms)

# %% [markdown]
# ## 7 The whole state in one file
#
# At the end the model should be in one file. Its state is a dict of tensors by name, each with a shape and a dtype of its
# own. No rank has all of it, and it may be too large for one GPU. Rank 0 can put it together in the memory of its host,
# which is larger. It takes one tensor after the other, so that no other rank has
# to hold a whole one. Checkpoints during training are not put together at all. Each rank saves its shards, and whoever
# loads them on another number of ranks cuts them anew (`torch.distributed.checkpoint`).


# %% exercise="gather_state" points=12
def gather_state(shards: dict[str, Tensor], shapes: dict[str, torch.Size]) -> dict[str, Tensor] | None:
    """The whole state on rank 0, from the shards of all ranks; None on the others.

    shapes: name -> shape of a whole tensor, which may be (). shards: name -> this rank's numbers of it,
        see shard_range, in one dimension. Both dicts stay as they are.

    Returns new tensors, in the order of shapes. Rank 0 sends nothing, each other rank each shard once,
    padded at most. Beside what it is given and returns, rank 0 never holds more than twice the largest
    whole tensor, another rank never more than twice its largest shard.
    """
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = {}
    for name, shape in shapes.items():
        if rank:
            if len(shards[name]):
                dist.send(shards[name], 0)
            continue
        numel = math.prod(shape)
        whole = shards[name].new_empty(numel)
        for source in range(ranks):
            begin, end = shard_range(numel, ranks, source)
            if source == 0:
                whole[begin:end] = shards[name]
            elif begin < end:
                dist.recv(whole[begin:end], source)
        state[name] = whole.view(shape)
    return None if rank else state
    ### END SOLUTION


# %% [markdown]
# Eight matrices of 64 KiB, gathered on four ranks:


# %% demo=true
# %%needs shard_range gather_state
def to_rank_0() -> dict[str, Tensor] | None:
    """A state of which each rank has made its shards, gathered."""
    shapes = {f"layers.{number}.weight": torch.Size([128, 128]) for number in range(8)}
    shards = {}
    for number, (name, shape) in enumerate(shapes.items()):
        begin, end = shard_range(shape.numel(), dist.get_world_size(), dist.get_rank())
        shards[name] = torch.arange(begin, end, dtype=torch.float32) + number
    return gather_state(shards, shapes)


gathered = launch(to_rank_0, ranks=4, on=on, memory=True)
for rank, own in enumerate(gathered.memory.ranks):
    print(
        f"rank {rank}: at most {own.peak / 1024:.0f} KiB, sends {gathered.traffic.ranks[rank].sent / 1024:.0f} KiB"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds shard_range gather_state
state, *others = gathered.results
assert others == [None] * 3
for number, matrix in enumerate(state.values()):
    assert torch.equal(matrix, torch.arange(128.0 * 128).view(128, 128) + number)
assert gathered.traffic.ranks[0].sent == 0
assert gathered.memory[0].peak <= (8 + 2 + 2) * 2**16
assert all(own.peak <= (2 + 0.5) * 2**16 for own in gathered.memory.ranks[1:])

# %% [markdown]
# Rank 0 holds its own quarter, the whole state, and little more. The others hold their quarter.

# %% [markdown]
# ## 8 Traffic against memory
#
# The ZeRO paper (section 7) counts what a rank sends in multiples of the model: data parallelism, stage 1 and stage 2
# send it twice, stage 3 three times. That leaves out the factor $\frac{p-1}{p}$: a rank does not send its own part to
# itself. What your four trainings sent, divided by this factor, for 2 to 8 ranks:


# %% demo=true
# %%needs ShardedOptimizer ShardedGradients FullyShardedUnit prefetch
ways = {"data parallelism": data_parallel, "stage 1": stage_1, "stage 2": stage_2, "stage 3": ahead}
traffic = {name: {} for name in ways}
for size in (2, 4, 8):
    for name, way in ways.items():
        traffic[name][size] = sent_in_a_step(trained(way, size, memory=False)) * size / (size - 1)
for name, of_ranks in traffic.items():
    print(f"{name:17}", ", ".join(f"{size} ranks: {sent:.2f}" for size, sent in of_ranks.items()))

# %% demo=true jupyter={"source_hidden": true}
# %%holds ShardedOptimizer ShardedGradients FullyShardedUnit prefetch
for name, times in (("data parallelism", 2), ("stage 1", 2), ("stage 2", 2), ("stage 3", 3)):
    assert all(abs(sent / times - 1) < 0.03 for sent in traffic[name].values()), (name, traffic[name])

# %% [markdown]
# 2, 2, 2 and 3, for any number of ranks. The memory shrinks with more ranks:

# %% demo=true
# %%needs zero_memory
sizes = [2**power for power in range(11)]
line_figure(
    {
        name: (sizes, [zero_memory(7_500_000_000, size, stage) / 1e9 for size in sizes])
        for stage, name in enumerate(ways)
    },
    x="GPUs",
    y="model states on each (GB)",
    log_x=True,
    log_y=True,
    at_points=True,
    title="7.5 billion parameters, in mixed precision with Adam",
    alt="Gigabytes on each GPU from one GPU to 1,024, both axes logarithmic. Data parallelism stays at 120. "
    "Stage 1 falls to a floor of 30, stage 2 to one of 15, stage 3 falls in a straight line to 0.1.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds zero_memory
floors = [zero_memory(7_500_000_000, 1024, stage) / 1e9 for stage in range(4)]
assert [round(floor, 1) for floor in floors] == [120.0, 30.1, 15.1, 0.1]

# %% [markdown]
# Bytes are not time. Here is each training once more on the slow device of the timelines:
# %% demo=true
# %%needs ShardedOptimizer ShardedGradients FullyShardedUnit prefetch
five_ways = {**ways, "stage 3": stage_3, "stage 3, one ahead": ahead}
beside = {name: trained(way, cluster=machine) for name, way in five_ways.items()}
for name, run in beside.items():
    print(f"{name:18} {run.seconds * 1e6:5,.0f} µs, at most {run.memory[0].peak / 1e3:3.0f} kB,", end=" ")
    print(f"sends {sent_in_a_step(run):.2f} times the model in a step")

# %% demo=true jupyter={"source_hidden": true}
# %%holds ShardedOptimizer ShardedGradients FullyShardedUnit prefetch
peaks = [run.memory[0].peak for run in beside.values()]
plain, first, second, third, one_ahead = peaks
assert plain > first > second > one_ahead > third
seconds = {name: run.seconds for name, run in beside.items()}
assert seconds["stage 1"] < 0.85 * seconds["data parallelism"]
assert seconds["stage 1"] < seconds["stage 2"] < seconds["stage 3, one ahead"] < seconds["stage 3"]

# %% [markdown]
# Each stage holds less than the one before. Stage 1 sends as much as data parallelism, and is faster here: each rank
# makes only a quarter of Adam's step, which takes long on this device. But it sends everything after backward. An
# all-reduce can be hidden beside backward (unit 02). The all-gather of stage 1 comes after the optimizer's step, so it
# can only be hidden beside the next forward, which Megatron-LM does and yours does not. Stage 3 is the slowest, and with
# one unit ahead it comes nearer to stage 2.
#
# | Stage | What it costs | When to take it |
# |---|---|---|
# | 1 | nothing in bytes | always, with an optimizer that treats each number by itself |
# | 2 | nothing in bytes; with accumulated gradients, a reduce-scatter for each part of the batch | where gradients do not fit, and none are accumulated |
# | 3 | half as many bytes again, which have to arrive in time | where the weights do not fit |
#
# Because of the second row many use stage 1 with a pipeline: a step has many micro-batches (unit 05), whose gradients are
# accumulated. Stage 2 would send at each of them.


# %% [markdown]
# ## 9 Activations on the host
#
# Stages 1 to 3 cut the model states. Activations are not among them: each rank has its own samples, so nobody else has
# its activations. With a long sequence or a large batch they are the larger part (unit 01, section 6). Between a layer's
# forward and its backward they can be kept, copied to the host and back, or thrown away and computed again. This section
# copies, section 10 computes again, and section 11 chooses for each layer.
#
# A host has more memory than its GPUs, but the link between them is slow. A Quadro RTX 5000 reads its own memory at 448
# GB/s, and its host's, over PCIe, at 12 GB/s (`presets.pcie_box`). Can the copies be hidden behind the computing? Take a
# layer that multiplies its input by a square matrix, for 8,192 samples:

# %% demo=true
box = presets.pcie_box(devices=1)
batch = 8192
for width in (512, 1024, 2048, 4096):
    computing, copying = 2 * batch * width**2 / box.flops, box.host.seconds(4 * batch * width)
    print(f"{width:4} columns: forward computes for {computing * 1e3:4.1f} ms,", end=" ")
    print(f"what it keeps is copied in {copying * 1e3:4.1f} ms")

# %% demo=true jupyter={"source_hidden": true}
hidden_from = 4 / box.host.bandwidth * box.flops / 2
assert round(hidden_from) == 1867
assert (box.memory_bandwidth, box.host.bandwidth) == (448e9, 12e9)

# %% [markdown]
# Both times grow with the samples, but only computing grows with the square of the width. With more than 1,867 columns a
# forward takes longer than the copy of what it keeps, whatever the batch. Backward takes twice as long as forward, so the
# copy back is hidden from half as many columns on.
#
# The hooks are those of section 5: autograd keeps what `pack` makes of a tensor, and gets the tensor back from `unpack`.
# Not all that is saved is an activation: a linear layer saves its weights as well.
#
# `course_lib.training.host_memory` has the host:
#
# | Call | What it does |
# |---|---|
# | `host = HostMemory()` | this rank's part of the host's memory; `host.nbytes` says how much lies there |
# | `held = host.to_host(tensor)` | begins a copy to the host and returns at once; when nobody refers to `held` any more, its memory is free |
# | `arriving = held.to_device()` | begins a copy back, into new memory of the device, as often as you like |
# | `arriving.wait()` | waits for that copy and returns the tensor |
#
# Copies in one direction go one after the other. The two directions, and the computing, go side by side: on a GPU by two
# streams and pinned memory, on simulated ranks in virtual time, over the cluster's `host` link.
#
# Backward asks for tensors in about the reverse order of forward. It would wait for each of them if its copy began only
# then. So copies begin ahead: when backward asks for a tensor, begin its copy, if it is not on its way yet, and then
# those of the `ahead` tensors that were packed just before it, the last one first. No copy begins earlier than that, nor
# twice in one backward. A tensor whose graph is gone (nobody holds what `pack` returned for it) does not count.


# %% exercise="HostOffload" points=18
class HostOffload:
    """Hooks that hold on the host what autograd saves for backward, and have it back in time.

    host: a HostMemory.
    stays: tensors that are on the device anyway. They, and views of them, are not copied.
    ahead: how many copies begin ahead, as described above.

    One object serves many passes, with any number of backwards. On the device it keeps only `stays` and
    what is on its way there; on the host nothing whose graph is gone.
    """

    def __init__(self, host: HostMemory, stays: Iterable[Tensor], ahead: int = 1) -> None:
        ### BEGIN SOLUTION
        self.host, self.ahead = host, ahead
        # Held, so that no other storage comes to lie at one of these addresses.
        self.stays = list(stays)
        self.known = {tensor.untyped_storage().data_ptr() for tensor in self.stays}
        # In the order of packing. Only the graph holds a tensor of the host: with the graph it goes.
        self.arriving: WeakKeyDictionary[HostTensor, Arriving | None] = WeakKeyDictionary()
        self.had: WeakSet[HostTensor] = WeakSet()
        ### END SOLUTION

    def pack(self, tensor: Tensor) -> Any:
        """What autograd keeps in its place."""
        ### BEGIN SOLUTION
        if tensor.untyped_storage().data_ptr() in self.known:
            return tensor
        held = self.host.to_host(tensor)
        self.arriving[held] = None
        return held
        ### END SOLUTION

    def unpack(self, packed: Any) -> Tensor:
        """The tensor that was packed."""
        ### BEGIN SOLUTION
        if isinstance(packed, Tensor):
            return packed
        if packed in self.had:
            self.had.clear()
        order = list(self.arriving)
        place = order.index(packed)
        for due in reversed(order[max(0, place - self.ahead) : place + 1]):
            if self.arriving[due] is None and due not in self.had:
                self.arriving[due] = due.to_device()
        self.had.add(packed)
        arriving, self.arriving[packed] = self.arriving[packed], None
        return arriving.wait()
        ### END SOLUTION


# %% [markdown]
# Six small linear layers, on a device so slow that a forward takes 2.2 times as long as the copy of what it keeps:

# %% demo=true
# %%needs HostOffload
WIDTH, SAMPLES = 64, 512
device = Cluster(flops=1e9, memory_bandwidth=2.6e9, host=Link(0.0, 0.07e9))
torch.manual_seed(0)
six_layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for layer in range(6)))
inputs = torch.randn(SAMPLES, WIDTH)


def offloaded_step(model: nn.Module, x: Tensor, ahead: int | None, leaving: int | None = 2) -> list[Tensor]:
    """The gradients of a step; ahead=None: with everything kept."""
    offload = HostOffload(HostMemory(leaving), model.parameters(), ahead or 0)
    hooks = nullcontext() if ahead is None else saved_tensors_hooks(offload.pack, offload.unpack)
    with hooks, span("forward"):
        loss = model(x).square().mean()
    with span("backward"):
        loss.backward()
    return [parameter.grad for parameter in model.parameters()]


offloads = {
    ahead: launch(offloaded_step, six_layers, inputs, ahead, ranks=1, cluster=device, memory=True)
    for ahead in (None, 0, 1, 2)
}
one_layer = inputs.nbytes
for ahead, run in offloads.items():
    name = "all kept" if ahead is None else f"ahead={ahead}"
    print(f"{name:8}: {run.seconds * 1e3:4.1f} ms,", end=" ")
    print(f"at most {run.memory[0].peak_of('activations') / one_layer:.1f} layers' activations on the device")
offloads[1].timeline()

# %% demo=true jupyter={"source_hidden": true}
# %%holds HostOffload
for run in offloads.values():
    assert all(map(torch.equal, run.results[0], offloads[None].results[0]))
longer = {ahead: run.seconds / offloads[None].seconds - 1 for ahead, run in offloads.items()}
for ahead, text in ((0, 0.20), (1, 0.07), (2, 0.07)):
    assert abs(longer[ahead] - text) < 0.03, (
        f"The text says {text:.0%}; yours takes {longer[ahead]:.0%} longer."
    )
most_layers = [run.memory[0].peak_of("activations") / one_layer for run in offloads.values()]
assert most_layers[0] > 9.5
assert all(most < 7.5 + ahead for ahead, most in enumerate(most_layers[1:])), most_layers
copies = [event for event in offloads[1].events if event.kind == "copy"]
assert sum(event.nbytes for event in copies) == 2 * 7 * one_layer

# %% [markdown]
# With `ahead=0` a step takes 20 % longer than with everything kept. With `ahead=1` it takes 7 % longer, and `ahead=2`
# gains nothing more. What remains is at the turn from forward to backward, as the timeline shows. What forward saved last
# has just begun to leave when backward asks for it, and it has to arrive on the host before it can come back. It should
# have stayed. Each tensor more ahead costs a layer's activations, and gains nothing where one copy is shorter than one
# backward.
#
# This device works in step with its program. A real GPU lags behind: its program, the host, queues operations faster than
# the GPU works them off (unit 01). A tensor that leaves stays in the GPU's memory until its copy is over, so copies pile
# up. Therefore `to_host` lets at most two leave at a time: before a third it waits for the oldest.
# `HostMemory(leaving=...)` changes how many. Here the same device has a queue, and the model twice as many layers:

# %% demo=true
# %%needs HostOffload
from course_lib.cluster.device import Device

lagging = Cluster(
    device=Device(device.flops, device.memory_bandwidth, dispatch_seconds=50e-6), host=device.host
)
ways = {
    "all kept": (None, None),
    "copies without a bound": (1, None),
    "at most 1 copy leaving": (1, 1),
    "at most 2 copies leaving": (1, 2),
}
twelve_layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for layer in range(12)))
queued = {
    way: launch(offloaded_step, twelve_layers, inputs, *numbers, ranks=1, cluster=lagging, memory=True)
    for way, numbers in ways.items()
}
for way, run in queued.items():
    print(f"{way:24}: {run.seconds * 1e3:5.1f} ms,", end=" ")
    print(
        f"at most {run.memory[0].peak_of('activations') / one_layer:4.1f} layers' activations on the device"
    )
queued["copies without a bound"].timeline(title="copies without a bound")

# %% demo=true jupyter={"source_hidden": true}
# %%holds HostOffload
layers_held = [run.memory[0].peak_of("activations") / one_layer for run in queued.values()]
assert layers_held[1] > layers_held[0], layers_held
assert max(layers_held[2:]) < 0.6 * layers_held[0], layers_held

# %% [markdown]
# Without a bound the program has queued the whole of forward, and taken memory for all of it, before the second copy is
# over: it needs more than with everything kept. Below are steps of 12 layers of width 4096 on an H100
# (`course_lib.published.h100`), and of eight small layers on this machine. On a CPU their time says little: the host's
# memory is the device's own.

# %% demo=true
# %%needs HostOffload
from course_lib.published import h100
from course_lib.training.device import best_device, synchronize

for each in h100.OFFLOADS:
    print(f"H100, {each.way:33} {each.seconds:5.3f} s, {each.peak_gib:.2f} GiB")
here = best_device()
rows = torch.randn(256 if here.type == "cpu" else 16384, 1024, device=here)
chain = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for layer in range(8))).to(here)


def seconds_here(hooks: Any) -> float:
    """Of a forward and a backward, the second of two."""
    for _ in range(2):
        synchronize(here)
        start = time.perf_counter()
        with hooks:
            loss = chain(rows).square().mean()
        loss.backward()
        synchronize(here)
    return time.perf_counter() - start


offload = HostOffload(HostMemory(), chain.parameters())
for way, hooks in (("kept", nullcontext()), ("copied", saved_tensors_hooks(offload.pack, offload.unpack))):
    if here.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    print(f"this machine, {here.type}, {way:6} {seconds_here(hooks):.4f} s", end="")
    print(f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if here.type == "cuda" else "")

# %% demo=true jupyter={"source_hidden": true}
# %%holds HostOffload
by_way = {each.way: (each.seconds, each.peak_gib) for each in h100.OFFLOADS}
assert by_way["everything kept"] == (0.38, 8.06)
assert by_way["copies without a bound"] == (0.404, 8.56)
assert by_way["at most 1 copy leaving, ahead 1"] == (0.46, 2.81)
assert by_way["at most 2 copies leaving, ahead 1"] == (0.404, 3.06)
assert (by_way["save_on_cpu, pinned"][0], by_way["save_on_cpu, not pinned"][0]) == (0.66, 6.84)

# %% [markdown]
# Copies without a bound save nothing: 8.56 GiB, where everything kept takes 8.06. With two that leave at a time it is
# 3.06 GiB and 0.404 s, 6 % more time than with everything kept. With one it is 0.460 s: the device waits for copies.
# PyTorch's own `torch.autograd.graph.save_on_cpu` copies the weights too, waits for each copy, and begins none ahead:
# 0.66 s with pinned memory, 6.84 s without.
#
# ## 10 Computing again
#
# What has been thrown away can be computed again from its input. Unit 05 did so with whole stages, and a step took a
# third longer. On one device the question is which inputs to keep. The layers are cut into **segments**. Forward keeps
# the input of each segment, the **checkpoint** (saved states have the same name), and nothing inside. Backward begins
# with the last segment. It computes the segment's forward again, this time keeping all that backward needs, goes back
# through it, and frees it with its checkpoint. Then comes the segment before. (`torch.utils.checkpoint` runs one segment
# that way.)
#
# While a segment goes through backward, these are held: the checkpoints of this segment and of all segments before it,
# and all that this segment's layers keep, their inputs included. An input counts once, though a segment's first input is
# both. The most that is held so is the **peak**.
#
# Many segments mean many checkpoints, and few segments mean that each keeps much. The least memory is in between. How low
# does it get?


# %% exercise="checkpoint_segments" points=16
def checkpoint_segments(layers: list[tuple[int, int]]) -> list[int]:
    """How many layers each segment gets, in order, so that the peak of backward is as low as can be.

    layers: of each layer, in order, the bytes of its input, and the bytes that it keeps for backward
        besides its input. The list stays as it is.

    Segments are runs of neighbouring layers, none empty. The peak counts as above. 150 layers must take
    less than three seconds.
    """
    ### BEGIN SOLUTION
    count = len(layers)
    until = [0, *itertools.accumulate(before + inside for before, inside in layers)]
    # From each layer on: the lowest peak, as if there were none before it, and the end of the first segment.
    best = [(0, count)] * (count + 1)
    for begin in reversed(range(count)):
        checkpoint = layers[begin][0]
        best[begin] = min(
            (max(until[end] - until[begin], checkpoint + best[end][0]), end)
            for end in range(begin + 1, count + 1)
        )
    lengths, begin = [], 0
    while begin < count:
        lengths.append(best[begin][1] - begin)
        begin = best[begin][1]
    return lengths
    ### END SOLUTION


# %% [markdown]
# First with equal layers, each of which keeps its input and nothing else:


# %% demo=true
# %%needs checkpoint_segments
def held_in_backward(lengths: list[int], layers: list[tuple[int, int]]) -> list[int]:
    """Bytes held while each segment goes through backward."""
    begins = [0, *itertools.accumulate(lengths)]
    checkpoints = itertools.accumulate(layers[begin][0] for begin in begins[:-1])
    return [
        held + sum(x + inside for x, inside in layers[begin:end]) - layers[begin][0]
        for held, begin, end in zip(checkpoints, begins, begins[1:], strict=False)
    ]


lowest_peaks = {}
for count in (6, 21, 55, 100):
    lengths = checkpoint_segments([(1, 0)] * count)
    lowest_peaks[count] = max(held_in_backward(lengths, [(1, 0)] * count))
    print(f"{count:3} layers in {len(lengths):2} segments {lengths}: at most {lowest_peaks[count]} are held")

# %% demo=true jupyter={"source_hidden": true}
# %%holds checkpoint_segments
assert all((peak - 1) * peak // 2 < count <= peak * (peak + 1) // 2 for count, peak in lowest_peaks.items())
assert max(held_in_backward([10] * 10, [(1, 0)] * 100)) == 19
assert lowest_peaks[100] == 14

# %% [markdown]
# Chen and others, who brought this to deep learning, cut $n$ layers into $\sqrt n$ segments of $\sqrt n$ layers. For 100
# layers that is 10 checkpoints and 10 layers, of which one is both: 19.
#
# <details><summary>Answer: how low it gets</summary>
#
# You have found 14. Segments of equal length are not best. By the time the first one goes through backward, all later
# checkpoints are gone, so it may be long, and the last must be short. Of $k$ segments with $k, k-1, \dots, 1$ layers
# each needs exactly $k$. Together they have $n = k(k+1)/2$ layers, so $k$ is about $\sqrt{2n}$.
#
# </details>
#
# The price is one forward more. A step without it takes as long as three forwards, so that is a third more time, for
# memory that grows with the root of the depth.
#
# Now a real network. Its layers become wider, each with a ReLU between two matrices, as in a transformer's block. A layer
# keeps its input and what is inside, which is twice as wide. What the device holds is counted operation by operation:


# %% demo=true
class Widening(nn.Module):
    """Two linear layers and a rectifier in between."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(before, 2 * before), nn.Linear(2 * before, after)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.enter(x).relu())


def step_in_segments(model: nn.Sequential, x: Tensor, lengths: list[int]) -> list[Tensor]:
    """The gradients of a step; a model without segments keeps everything."""
    begin, output = 0, x.requires_grad_()
    for length in lengths:
        output = checkpoint(model[begin : begin + length], output, use_reentrant=False)
        begin += length
    model[begin:](output).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


torch.manual_seed(0)
widths = [width for width in (32, 64, 128, 256) for layer in range(3)]
wider = nn.Sequential(*(Widening(*pair) for pair in zip(widths, [*widths[1:], 16], strict=True)))
x = torch.randn(2048, widths[0])
kept_by_layer = [(4 * len(x) * width, 8 * len(x) * width) for width in widths]

# %% demo=true
# %%needs checkpoint_segments
cuts = {"all kept": [], "equal segments": [3, 3, 3, 3], "yours": checkpoint_segments(kept_by_layer)}
segmented = {
    name: launch(step_in_segments, wider, x, lengths, ranks=1, memory=True) for name, lengths in cuts.items()
}
for name, run in segmented.items():
    predicted = max(held_in_backward(cuts[name] or [len(widths)], kept_by_layer))
    print(f"{name:14} {cuts[name]}: {predicted / 1e6:.1f} MB for backward,", end=" ")
    print(f"{run.memory[0].peak_of('activations') / 1e6:.1f} MB with the gradients that pass through")

# %% demo=true jupyter={"source_hidden": true}
# %%holds checkpoint_segments
for run in segmented.values():
    assert all(map(torch.allclose, run.results[0], segmented["all kept"].results[0]))
megabytes = [f"{run.memory[0].peak_of('activations') / 1e6:.1f}" for run in segmented.values()]
assert megabytes[:2] == ["43.5", "29.0"]
assert float(megabytes[2]) < 19

# %% [markdown]
# 43.5 MB become 29.0 with four equal segments, and less than 19 with the best ones, whose last segments are short. The
# gradients are the same.
#
# ## 11 Out of core
#
# Keeping takes memory, swapping (to the host and back) takes the link, computing again takes the device. Each of the
# three has room where another is short, so the best plan mixes them. KARMA (Wahib and others, 2020) makes such a plan. It
# trains **out of core**: with models that are larger than a device's memory. On 2,048 GPUs it trained one of 17 billion
# parameters with plain data parallelism.
#
# `course_lib.training.out_of_core.step` says when everything happens in a step of a chain of layers, for a given plan:

# %% demo=true
chain = {"bytes_": [4e9] * 8, "seconds": [0.15] * 8, "capacity": 16e9, "bandwidth": 12e9}
one_for_all = {}
for way in ("recompute", "swap"):
    one_for_all[way] = step([way] * 8, **chain)
    print(f"{way:9} all: {one_for_all[way].seconds:.2f} s, at most {one_for_all[way].peak / 1e9:.0f} GB")
out_of_core_figure({"all computed again": one_for_all["recompute"], "all swapped": one_for_all["swap"]})

# %% [markdown]
# Eight layers with 4 GB each, on a device with 16 GB free. With room for all a step would take 3.6 s. Computing all again
# takes a third more, and does not use the link. Swapping all takes 5.8 s. A copy takes longer than a forward, so after a
# few layers forward waits until there is room, and backward waits for each layer in turn. The last layers go to the host
# only to come back.


# %% exercise="out_of_core_plan" points=14
def out_of_core_plan(
    bytes_: list[float], seconds: list[float], capacity: float, bandwidth: float
) -> list[str]:
    """For each layer "keep", "swap" or "recompute", so that a step is as short as you can make it.

    The arguments are those of course_lib.training.out_of_core.step, whose model of time counts. They
    stay as they are. There is a plan that fits, and yours must. Its step has to be within 5 % of the
    shortest. 12 layers must take less than three seconds.
    """
    ### BEGIN SOLUTION
    ways = ("keep", "swap", "recompute")

    def taken(plan: Sequence[str]) -> float:
        try:
            return step(plan, bytes_, seconds, capacity, bandwidth).seconds
        except DoesNotFit:
            return math.inf

    # Needs least memory of all, so it fits.
    plan = ["recompute"] * len(bytes_)
    best = taken(plan)
    # One layer, then two, then three at once: one may have to make room for others.
    for size in (1, 2, 3):
        before = math.inf
        while best < before:
            before = best
            for places in itertools.combinations(range(len(plan)), size):
                for chosen in itertools.product(ways, repeat=size):
                    changed = list(plan)
                    for place, way in zip(places, chosen, strict=True):
                        changed[place] = way
                    if (seconds_now := taken(changed)) < best:
                        plan, best = changed, seconds_now
    return plan
    ### END SOLUTION


# %% [markdown]
# The same chain, planned:

# %% demo=true
# %%needs out_of_core_plan
planned = out_of_core_plan(**chain)
mixed = step(planned, **chain)
print(planned)
for name, timed in {**one_for_all, "planned": mixed}.items():
    print(f"{name:9}: {timed.seconds:.2f} s; without a bound {3 * sum(chain['seconds']):.2f} s")


# %% demo=true jupyter={"source_hidden": true}
# %%needs out_of_core_plan
def planned_step(capacity: int, link: int) -> Any:
    """The step of the plan for a device with so many GB free, whose link has so many GB a second."""
    given = {**chain, "capacity": capacity * 1e9, "bandwidth": link * 1e9}
    plan = out_of_core_plan(**given)
    counts = ", ".join(f"{plan.count(way)} {way}" for way in ("keep", "swap", "recompute") if way in plan)
    return out_of_core_figure({f"{capacity} GB, {link} GB/s ({counts})": step(plan, **given)})


explore(
    planned_step,
    capacity=Slider(range(4, 36, 4), start=16, label="memory for activations (GB)"),
    link=Slider([3, 6, 12, 24, 48], start=12, label="link to the host (GB/s)"),
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds out_of_core_plan
best = step(["swap", "swap", "recompute", "swap", *["keep"] * 4], **chain)
assert mixed.seconds <= 1.05 * best.seconds
assert [f"{timed.seconds:.2f}" for timed in (*one_for_all.values(), best)] == ["4.80", "5.78", "3.85"]
assert [f"{timed.seconds / best.seconds:.2f}" for timed in one_for_all.values()] == ["1.25", "1.50"]
assert f"{best.seconds / 3.6 - 1:.0%}" == "7%"

# %% [markdown]
# The best plans take 3.85 s. One of them keeps the last four layers, which backward needs first. It swaps what has time
# to come back, and computes one layer again where the link is still busy. That is 1.25 times as fast as computing all
# again, 1.50 times as fast as swapping all, and 7 % slower than a device with room for all. KARMA reports 1.52 times the
# speed of other out-of-core methods on average (its abstract), by the same means. It also plans how layers are grouped
# into blocks.
#
# KARMA swaps the model states too, so plain data parallelism trains what no device holds, and pays with time on the link.
# ZeRO's stage 3 fetches each state from other devices instead. ZeRO-Offload and ZeRO-Infinity combine the two: they put
# shards onto the host and onto disks.

# %% [markdown]
# ## 12 PyTorch's own
#
# `ZeroRedundancyOptimizer`, for use with DDP, is PyTorch's stage 1, and `fully_shard` (FSDP2) its stage 3. Four layers on
# two ranks, with Adam and the same samples for DDP and both of these:

# %% demo=true
# %%needs torch>=2.8
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

TORCHS_WAYS = ("DDP", "ZeroRedundancyOptimizer", "fully_shard")


def torch_steps(model: nn.Sequential, ways: Sequence[str], steps: int) -> list[list[Tensor]]:
    """The parameters after some steps with Adam, for each way."""
    told = []
    for way in ways:
        own = copy.deepcopy(model)
        if way == "fully_shard":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # else a GPU's, where there is one
            for layer in own:
                fully_shard(layer, mesh=mesh)
            fully_shard(own, mesh=mesh)
        trained = own if way == "fully_shard" else DistributedDataParallel(own)
        sharded = way == "ZeroRedundancyOptimizer"
        options = {"optimizer_class": torch.optim.Adam} if sharded else {}
        kind = ZeroRedundancyOptimizer if sharded else torch.optim.Adam
        optimizer = kind(trained.parameters(), lr=0.01, **options)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(steps):
            trained(torch.randn(8, 32, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        parameters = own.parameters()
        told.append([p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in parameters])
    return told


torch.manual_seed(0)
four_layers = nn.Sequential(
    *(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for layer in range(4))
)
model_bytes = sum(parameter.nbytes for parameter in four_layers.parameters())
with_torch, sent_a_step = {}, {}
for way in TORCHS_WAYS:
    one, two = (
        launch(torch_steps, four_layers, [way], steps, ranks=2, memory=True, quiet=True) for steps in (1, 2)
    )
    with_torch[way] = two
    sent_a_step[way] = (
        two.traffic[0].sent + two.traffic[1].sent - one.traffic[0].sent - one.traffic[1].sent
    ) / 2
    state = two.memory[0].peak_of("optimizer") / model_bytes
    print(f"{way:23}: sends {sent_a_step[way] / model_bytes:.2f} times the model's bytes a step,", end=" ")
    print(f"holds {state:.2f} times as many of Adam's numbers")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8
assert [f"{sent_a_step[way] / model_bytes:.1f}" for way in TORCHS_WAYS] == ["1.0", "1.5", "1.5"]
states = [run.memory[0].peak_of("optimizer") / model_bytes for run in with_torch.values()]
assert [f"{state:.1f}" for state in states] == ["2.0", "1.0", "1.0"]
after_torch = {way: run.results[0][0] for way, run in with_torch.items()}
for parameters in after_torch.values():
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parameters, after_torch["DDP"], strict=True))

# %% [markdown]
# On two ranks an all-reduce sends the model's bytes once, $2(p-1)/p$ times. FSDP2 sends half as much again, as stage 3
# must: two all-gathers and a reduce-scatter, each half of the model. `ZeroRedundancyOptimizer` sends as much as that,
# though it cuts only Adam's numbers: DDP's all-reduce gives every rank all gradients, and then each rank broadcasts its
# updated weights. A reduce-scatter in place of the all-reduce would do, and stage 1 would cost what DDP costs. Yours does
# that (section 3):


# %% demo=true
# %%needs torch>=2.8 ShardedOptimizer
def your_steps(model: nn.Sequential, steps: int) -> list[Tensor]:
    """The parameters after some steps of Adam whose numbers are cut over the ranks by you."""
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        model(torch.randn(8, 32, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


one, two = (launch(your_steps, four_layers, steps, ranks=2, memory=True) for steps in (1, 2))
yours_a_step = (two.traffic.sent - one.traffic.sent) / 2 / model_bytes
print(f"yours: sends {yours_a_step:.2f} times the model's bytes a step,", end=" ")
print(f"holds {two.memory[0].peak_of('optimizer') / model_bytes:.2f} times as many of Adam's numbers")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 ShardedOptimizer
assert f"{yours_a_step:.1f}" == "1.0"
assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(two.results[0], after_torch["DDP"], strict=True))

# %% [markdown]
# Yours, and the three of PyTorch, on real processes:

# %% demo=true
# %%needs torch>=2.8 ShardedOptimizer
yours_for_real = launch(your_steps, four_layers, 2, ranks=2, on="processes")
print(f"yours sent {yours_for_real.traffic.sent:,} bytes; simulated {two.traffic.sent:,}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 ShardedOptimizer
assert all(
    torch.allclose(a, b, atol=1e-6) for a, b in zip(yours_for_real.results[0], two.results[0], strict=True)
)
assert yours_for_real.traffic.sent == two.traffic.sent

# %% demo=true
# %%needs torch>=2.8
on_processes = launch(torch_steps, four_layers, TORCHS_WAYS, 2, ranks=2, on="processes", quiet=True)
for rank in range(2):
    simulated_bytes = sum(run.traffic[rank].sent for run in with_torch.values())
    print(f"rank {rank} sent {on_processes.traffic[rank].sent:,} bytes; simulated {simulated_bytes:,}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8
for parameters, way in zip(on_processes.results[0], TORCHS_WAYS, strict=True):
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parameters, after_torch[way], strict=True))
both_ranks = [sum(run.traffic[rank].sent for run in with_torch.values()) for rank in range(2)]
assert sum(both_ranks) == on_processes.traffic.sent

# %% [markdown]
# The bytes are those of simulated ranks. Rank 0 sends more, since DDP begins with a broadcast of its weights, here twice.
#
# PyTorch also counts memory. `MemTracker` looks at the same step as `launch(..., memory=True)`:

# %% demo=true
# %%needs torch>=2.8
from torch.distributed._tools.mem_tracker import MemTracker


def a_step(model: nn.Module) -> None:
    """With Adam, whose numbers come into being in the first step."""
    optimizer, x = torch.optim.Adam(model.parameters(), foreach=False), torch.randn(64, 32)
    model(x).square().mean().backward()
    optimizer.step()


followed, tracker = copy.deepcopy(four_layers), MemTracker()
tracker.track_external(followed)
with tracker:
    a_step(followed)
theirs = next(iter(tracker.get_tracker_snapshot("peak").values()))
ours = launch(a_step, four_layers, ranks=1, memory=True).memory[0]
print(
    "MemTracker, at the peak:",
    {str(kind).rsplit(".")[-1]: nbytes for kind, nbytes in theirs.items() if nbytes},
)
print(f"launch(..., memory=True): {ours.peak:,} bytes at the peak")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8
assert theirs["Total"] == ours.peak == 293_184

# %% [markdown]
# They agree to the byte. The peak is in the optimizer's step, when Adam's numbers and what it computes with stand beside
# gradients and weights. `FSDPMemTracker`, in the same package, counts for `fully_shard`.
#
# ## 13 DeepSpeed
#
# DeepSpeed is by the authors of ZeRO. `course beside deepspeed` puts it beside this workbook. Stages 0 to 3, with the
# samples and weights of section 12, and for each its messages in the second step:

# %% demo=true
# %%needs torch>=2.8 beside:deepspeed
FRUGAL = ("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size")
STAGES: dict[str, dict[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "2, reduced to one rank": {"stage": 2, "use_multi_rank_bucket_allreduce": False},
    "3": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "3, nothing held longer": {"stage": 3, "stage3_param_persistence_threshold": 0}
    | dict.fromkeys(FRUGAL, 0),
    "2, Adam on the host": {
        "stage": 2,
        "use_multi_rank_bucket_allreduce": False,
        "offload_optimizer": {"device": "cpu"},
    },
}
as_real = {"ranks": 2, "on": "processes", "beside": "deepspeed", "timeout": 300, "quiet": True}
with_deepspeed = launch(deepspeed_steps, four_layers, STAGES, 2, **as_real)
second_steps = {name: calls_within(with_deepspeed.events, f"{name}: step 1") for name in STAGES}
for name, calls in second_steps.items():
    times = sum(call.sent for call in calls) / model_bytes
    print(f"{name:23}: {times:.1f} times the model's bytes; {dict(Counter(call.op for call in calls))}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 beside:deepspeed
after_deepspeed, clipped_to = with_deepspeed.results[0]
for parameters in after_deepspeed.values():
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(parameters, after_torch["DDP"], strict=True))
multiples = [f"{sum(call.sent for call in calls) / model_bytes:.1f}" for calls in second_steps.values()]
assert multiples == ["1.0", "1.5", "1.5", "1.0", "1.0", "1.5", "1.0"]
assert clipped_to == 1.0
assert not any("reduce_scatter" in call.op for name in ("1", "2") for call in second_steps[name])

# %% [markdown]
# The weights are those of DDP, in all seven. The traffic is not what the paper says:
#
# - **Stages 1 and 2 all-reduce** their gradients, and then gather the weights: 1.5 times the bytes of DDP. Each bucket
#   holds parts of several ranks' shards, and one all-reduce is simpler than a reduce to each. With
#   `use_multi_rank_bucket_allreduce` off, each part is reduced to the rank that keeps it, and the bytes are DDP's.
# - **Stage 3** in its second step sends as little as DDP: what a layer has gathered in forward is still there in
#   backward. This model is smaller than `stage3_max_live_parameters`, a billion, so nothing is freed. With that, the
#   reuse distance and the prefetching at zero, weights are gathered twice: 1.5 times the bytes, for the memory that the
#   paper promises. Besides, parameters with fewer than 100,000 numbers stay whole on every rank, here all of them, unless
#   `stage3_param_persistence_threshold` is 0.
# - **Gradients are clipped to a norm of 1** by default: `gradient_clipping` is 1.0. Here it is set to 0; otherwise
#   comparisons fail for a reason that is hard to find.
# - With `offload_optimizer`, Adam's numbers and its step are on the host (ZeRO-Offload). The messages are the same.
#   Gradients go to the host and weights come back, 4 bytes a parameter and step in 16 bits.
#
# ## 14 Now on nodes
#
# Between nodes the collectives of stage 3 are slower. An H100 node has 371 GB/s from GPU to GPU, and 50 GB/s from each
# GPU to another node. Here are a step's messages for a model of seven billion parameters, 14 GB in 16 bits, on four
# nodes. (Tensors on `meta` have no numbers, so this takes no memory.)


# %% demo=true
def stage_3_messages(numel: int, ranks_a_group: int) -> None:
    """Two all-gathers and a reduce-scatter among neighbours, and an all-reduce of the shard between the groups."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = ranks_a_group
    shards = [dist.new_group(range(begin, begin + size)) for begin in range(0, ranks, size)]
    replicas = [dist.new_group(range(begin, ranks, size)) for begin in range(size)]
    whole = torch.empty(numel, dtype=torch.bfloat16, device="meta")
    shard = torch.empty(numel // size, dtype=torch.bfloat16, device="meta")
    for _ in ("forward", "backward"):
        dist.all_gather_into_tensor(whole, shard, group=shards[rank // size])
    dist.reduce_scatter_tensor(shard, whole, group=shards[rank // size])
    if size < ranks:
        dist.all_reduce(shard, group=replicas[rank % size])


pod = presets.h100_pod(nodes=4)
seconds_of = {
    size: launch(stage_3_messages, 7 * 10**9, size, ranks=32, cluster=pod).seconds for size in (32, 8)
}
print(
    f"shards over 32 GPUs: {seconds_of[32]:.2f} s; over the 8 of a node, copied on 4 nodes: {seconds_of[8]:.2f} s"
)

# %% demo=true jupyter={"source_hidden": true}
assert [f"{seconds:.2f}" for seconds in seconds_of.values()] == ["0.82", "0.16"]
assert round(pod.intra_node.bandwidth / 1e9) == 371
assert pod.inter_node.bandwidth == 50e9

# %% [markdown]
# 0.82 s become 0.16 s when each node has all of the shards. Then whole weights travel inside the nodes only, and between
# them no more than a shard's gradients. The price is memory: four times the model states on each GPU. This is **hybrid
# sharding**. With FSDP2 it is one argument, a mesh of two axes: along one the model is replicated, along the other
# sharded:
#
# ```python
# mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
# for block in model.blocks:
#     fully_shard(block, mesh=mesh)
# fully_shard(model, mesh=mesh)
# ```
#
# The script is started as every other (unit 02, section 10): `torchrun` once a node, or `srun` for each rank. Three
# things differ on nodes:
#
# - **Never make the model whole.** Eight processes that each make it fill a node's memory before the first shard is cut.
#   Make it on `torch.device("meta")`, shard it, `to_empty(device=...)`, and load shards from a checkpoint of
#   `torch.distributed.checkpoint`.
# - **Save shards.** Section 7's way takes the memory of rank 0 and everybody's time.
# - **Count pinned memory.** What is offloaded lies in memory that the system cannot move, of all ranks of a node
#   together. A job's `--mem` has to have room for it. Otherwise the job is killed, without a Python traceback.

# %% [markdown]
# ## 15 Open task: the fastest step that fits
#
# Three levers at once. A higher stage leaves more room for activations and costs messages. More micro-batches need less
# memory each, but every layer has to be started more often, and from stage 2 on messages come with each micro-batch. And
# each layer can keep, swap or recompute. `course_lib.training.memory_plan.plan_cost` says what a plan takes, and its
# docstring how that is counted.


# %% exercise="plan_memory" points=8
def plan_memory(task: Task) -> Plan:
    """The stage, number of micro-batches and ways with which a step is as short as you can make it.

    task, Plan and what a plan takes: see course_lib.training.memory_plan, whose plan_cost counts. There
    is a plan that fits. Full marks are for a step within 5 % of the shortest. There are up to 12
    samples and 4 layers, and a plan may take a second.
    """
    ### BEGIN SOLUTION
    tried = []
    divisors = [count for count in range(1, task.samples + 1) if task.samples % count == 0]
    for stage, micro_batches in itertools.product(range(4), divisors):
        part = task.samples // micro_batches
        bytes_ = [layer.activations * part for layer in task.layers]
        seconds = [task.start + layer.seconds * part for layer in task.layers]
        room = task.room(stage)
        if max(bytes_) > room:
            continue
        plan = Plan(stage, micro_batches, out_of_core_plan(bytes_, seconds, room, task.host))
        tried.append((plan_cost(plan, task).seconds, stage, micro_batches, plan))
    return min(tried, key=lambda each: each[0])[-1]
    ### END SOLUTION


# %% [markdown]
# A model of four layers with 2.4 billion parameters, eight samples a rank, on eight GPUs with 16 GB each, whose network
# has 12.5 or 50 GB/s. Beside your plan stands the best one that computes everything again, the usual first remedy:


# %% demo=true
# %%needs plan_memory
def states_of(parameters: int, ranks: int) -> tuple[float, ...]:
    """Bytes of the model states on a rank, under stages 0 to 3, with Adam in mixed precision."""
    cut = ((1, 1, 1), (1, 1, ranks), (1, ranks, ranks), (ranks, ranks, ranks))
    return tuple(parameters * (2 / weights + 2 / gradients + 12 / adam) for weights, gradients, adam in cut)


def best_recomputing(task: Task) -> Plan:
    """Of the plans that fit and compute all layers again, the fastest."""
    found = []
    for stage, micro_batches in itertools.product(range(4), (1, 2, 4, 8)):
        plan = Plan(stage, micro_batches, ["recompute"] * len(task.layers))
        with suppress(DoesNotFit):
            found.append((plan_cost(plan, task).seconds, stage, micro_batches, plan))
    return min(found)[-1]


compared = {}
for network in (12.5e9, 50e9):
    memory_task = Task(
        layers=tuple(Layer(600_000_000, activations, 0.006) for activations in (16e8, 12e8, 8e8, 4e8)),
        samples=8,
        ranks=8,
        memory=16e9,
        states=states_of(2_400_000_000, 8),
        network=network,
        host=12e9,
        start=0.004,
    )
    for name, plan in (("all again", best_recomputing(memory_task)), ("yours", plan_memory(memory_task))):
        compared[network, name] = plan, plan_cost(plan, memory_task).seconds
        print(
            f"{network / 1e9:4} GB/s, {name:9}: {compared[network, name][1]:.2f} s, stage {plan.stage},",
            end=" ",
        )
        print(f"{plan.micro_batches} micro-batches, {', '.join(plan.ways)}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds plan_memory
assert all(
    compared[network, "yours"][1] < 0.95 * compared[network, "all again"][1] for network in (12.5e9, 50e9)
)
best_stages = []
for network in (12.5e9, 50e9):
    tried = []
    for stage, count, ways in itertools.product(range(4), (1, 2, 4, 8), itertools.product(Way, repeat=4)):
        with suppress(DoesNotFit):
            task = replace(memory_task, network=network)
            tried.append((plan_cost(Plan(stage, count, ways), task).seconds, stage, count))
    best_stages.append(min(tried)[1:])
assert best_stages == [(1, 8), (2, 2)]

# %% [markdown]
# On the slow network stage 1 is best, though it leaves so little room that samples come one by one. Four times the
# bandwidth pays for stage 2 and larger micro-batches. So a plan is made for one machine.

# %% [markdown]
# ## Where it comes from
#
# - S. Rajbhandari et al., ZeRO, SC 2020 ([arXiv:1910.02054](https://arxiv.org/abs/1910.02054)): the three stages, figure
#   1, and 100 billion parameters on 400 GPUs, with tensor parallelism inside the nodes.
# - J. Ren et al., ZeRO-Offload, USENIX ATC 2021 ([arXiv:2101.06840](https://arxiv.org/abs/2101.06840)): optimizer and its
#   step on the host; 13 billion parameters on one GPU. S. Rajbhandari et al., ZeRO-Infinity, SC 2021
#   ([arXiv:2104.07857](https://arxiv.org/abs/2104.07857)): disks too.
# - Y. Zhao et al., PyTorch FSDP, VLDB 2023 ([arXiv:2304.11277](https://arxiv.org/abs/2304.11277)): stage 3 in PyTorch,
#   its prefetching, and its hybrid sharding.
# - T. Chen et al., Training deep nets with sublinear memory cost, 2016
#   ([arXiv:1604.06174](https://arxiv.org/abs/1604.06174)): checkpoints in the root of the number of layers. A. Griewank,
#   A. Walther, Algorithm 799: revolve, ACM TOMS 26(1), 2000: recomputing within recomputing, with memory in the
#   logarithm.
# - M. Rhu et al., vDNN, MICRO 2016 ([arXiv:1602.08124](https://arxiv.org/abs/1602.08124)): activations of convolutional
#   networks to the host and back, fetched ahead.
# - M. Wahib et al., KARMA, SC 2020 ([arXiv:2008.11421](https://arxiv.org/abs/2008.11421)): swapping and computing again
#   in one plan.
# - P. Jain et al., Checkmate, MLSys 2020 ([arXiv:1910.02653](https://arxiv.org/abs/1910.02653)): which tensors to compute
#   again, as an integer program. PyTorch's planner does so too: `torch.distributed._tools.sac_ilp`.
#
# ## What goes wrong in practice
#
# | What you see | What happened | What to do |
# |---|---|---|
# | Out of memory in the first step, though the states fit | Optimizer states come with the first step, activations with the first batch of full size | Try one full step with the longest samples |
# | Out of memory after hours, with memory free | The allocator's blocks are in pieces | `PYTORCH_ALLOC_CONF=expandable_segments:True`; equal shapes |
# | The model is gathered whole | Only the outermost module was given to `fully_shard`: one unit | Shard each block, then the whole |
# | Stage 3 slower than stage 2 by more than half | Units so small that latency counts, or nothing is fetched ahead | Larger units; `set_modules_to_forward_prefetch`; keep the last unit (`reshard_after_forward=False`) |
# | More micro-batches, more traffic | From stage 2 on, gradients travel with each | `set_requires_gradient_sync(False)`, which keeps whole gradients, or larger micro-batches |
# | A checkpoint holds a shard of each weight | `state_dict()` of a sharded model has shards | `torch.distributed.checkpoint`, which loads onto other numbers of ranks |
# | The optimizer trains nothing | It was made before the model was sharded, and has the old parameters | Shard first, then make the optimizer |
# | Recomputation changes the loss | Dropout drew anew, or batch norm counted twice | `preserve_rng_state=True`; no running statistics inside |
# | No gradients at all inside a checkpoint | The reentrant kind, and no input asks for a gradient | `use_reentrant=False` |
# | Offloading halves the speed | Copies from memory that is not pinned block, or weights are copied as well | Pinned memory, a stream of its own, a list of what stays |
