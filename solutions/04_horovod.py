# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Horovod: a script for one GPU, on many
#
# In 2017 a few lines added to a training script for one GPU made it run on hundreds. Horovod, an open-source library from
# Uber, was the first that made it so easy, and many scripts on supercomputers still use it. Behind the few lines
# stand ideas that all libraries of data parallelism have taken over: a ring instead of a server, communication in the
# background, small tensors fused into large ones. In this unit you build these ideas, and use the library itself.
#
# After this unit you can
#
# - say, in bytes, why training with a parameter server scales badly and training in a ring does not;
# - turn a script for one GPU into one that `horovodrun` starts on many, in PyTorch and in TensorFlow;
# - scale the learning rate with the batch, warm it up, and show over several seeds what happens without;
# - write a `DistributedOptimizer` with the parts that it stands on: fusion and a coordinator;
# - record a timeline, and find in it the slow rank, the fusion buffer, and what is hidden behind backward;
# - read the report of a stall, and let a training survive a worker that is killed.

# %% tags=["parameters"]
# ranks: of the simulated demonstrations, where the text does not say. The real Horovod gets two, and four once.
ranks = 4
dataset = "digits"

# %%
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import Link, launch, per_rank
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved, or says how to install Horovod. Folded cells check that the text's
# numbers are what was measured.
# %load_ext course_lib.notebook.magics
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from unittest.mock import patch

from course_lib import Cluster, CollectiveMismatch, TimedOut
from course_lib.figures.style import new_figure
from course_lib.torchvision_compat import import_torchvision

# %% [markdown]
# ## The picture
#
# Data-parallel workers each have a gradient and want the mean (unit 02). There are two ways to organise that:

# %% demo=true
from course_lib.figures.pictures import negotiation_picture, server_and_ring_picture

server_and_ring_picture(4)

# %% [markdown]
# - **Centralised.** A **parameter server** holds the weights. Each worker pulls them, computes its gradient and sends it to
#   the server, which averages the gradients and updates the weights. Workers do not talk to each other.
# - **Decentralised.** There is no server. The workers form a ring: each sends parts of its gradient to the next and receives
#   parts from the one before, until all have the mean. Each then updates its own weights. After the start, weights are
#   never sent.
#
# Horovod is of the second kind. While backward computes, a thread in the background looks every millisecond or so which
# gradients are there *on all ranks*, and sums those up:

# %% demo=true
negotiation_picture()

# %% [markdown]
# Time runs to the right. Backward computes the gradients d, c, b, a, from the last layer to the first, and rank 1 is the
# slower one. A dotted line is the beginning of a **cycle**, in which the ranks agree on what is ready everywhere: the
# **negotiation**. At 2 ms that is d. At 4 ms it is c and b, which are **fused**: copied into one buffer and summed in a
# single all-reduce. Rank 0 has a after 4 ms, but nobody can sum it before rank 1 has it too.
#
# **Predict, before you measure.** Write your guesses into the cell below.
#
# 1. ResNet-50's gradients have 102 MB. How many MB enter the network card of a parameter server in a step with 8 workers,
#    and how many with 64? How many enter the card of a worker in a ring? (Section 1)
# 2. Rank 0 asks for the sums of a and then b, rank 1 for those of b and then a. What happens with `torch.distributed`, and
#    what with Horovod? (Section 7)
# 3. Two processes on this machine train the same model, once with Horovod and once with PyTorch's
#    `DistributedDataParallel`. Are the weights the same? Which is faster? (Section 12)

# %% demo=true
guesses = predict(
    "04_horovod",
    mb_into_the_server_of_8_workers=None,
    mb_into_the_server_of_64_workers=None,
    mb_into_a_worker_of_a_ring_of_64=None,
    sums_with_torch_distributed=None,
    are_the_weights_the_same=None,
    which_is_faster=None,
)

# %% [markdown]
# ## 1 A server or a ring
#
# There are $N$ workers, and each computes on $B$ samples, so a step has $NB$ samples. The lecture writes its gradient as
#
# $$ \nabla f(w) = \frac1N \left( \frac1B \sum_{i=1}^{B} \nabla \ell_i + \frac1B \sum_{i=B+1}^{2B} \nabla \ell_i + \dots
#    + \frac1B \sum_{i=(N-1)B+1}^{NB} \nabla \ell_i \right). $$
#
# Each inner mean is one worker's gradient $g_k$. It is the formula of unit 02, $\sum_k \frac{m_k}{n} g_k$, for shards of
# equal size: with $m_k = B$ and $n = NB$ every weight is $\frac{B}{NB} = \frac1N$, so the plain mean over workers is right.

# %% demo=true
from course_lib.data import load
from course_lib.models import SmallCNN

data = load(dataset)
channels, _, side = data.image_shape


def new_model(seed: int = 0) -> nn.Module:
    """The classifier of unit 01 with weights drawn from `seed`."""
    torch.manual_seed(seed)
    return SmallCNN(channels, len(data.classes), side)


def flat_gradient(model: nn.Module, first: int, last: int) -> Tensor:
    """The gradient of the mean loss over the training samples first .. last - 1, as one long vector."""
    images, labels = data.train[first:last]
    loss = functional.cross_entropy(model(images), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


model, N, B = new_model(), ranks, 16
whole = flat_gradient(model, 0, N * B)
mean = sum(flat_gradient(model, k * B, (k + 1) * B) for k in range(N)) / N
print(f"{N} workers with {B} samples each: relative difference {(mean - whole).norm() / whole.norm():.0e}")

# %% demo=true jupyter={"source_hidden": true}
assert (mean - whole).norm() < 1e-5 * whole.norm()

# %% [markdown]
# The difference is rounding. Server and ring compute the same; they differ in who carries how much. Here are both, as
# plain `torch.distributed` code. The simulator's `all_reduce` is a ring (unit 02).


# %% demo=true
def step_with_server(weights: Tensor, gradient: Tensor) -> Tensor:
    """One step in which rank 0 is the server and holds the weights; all others are workers."""
    if dist.get_rank() > 0:
        dist.send(gradient, 0)
        dist.recv(weights, 0)
        return weights
    workers = range(1, dist.get_world_size())
    total, arriving = torch.zeros_like(weights), torch.empty_like(weights)
    for worker in workers:
        dist.recv(arriving, worker)
        total += arriving
    weights -= 0.1 * total / len(workers)
    for worker in workers:
        dist.send(weights, worker)
    return weights


def step_in_ring(weights: Tensor, gradient: Tensor) -> Tensor:
    """The same step without a server: every rank is a worker with weights of its own."""
    dist.all_reduce(gradient)
    weights -= 0.1 * gradient / dist.get_world_size()
    return weights


def gradients(workers: int) -> list[Tensor]:
    """A gradient of 1 MB for each worker."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(workers, 250_000, generator=generator))


start = torch.ones(250_000)
worker_counts = [2, 4, 8, 16]
entering = {"server": [], "ring": []}
for workers in worker_counts:
    own = gradients(workers)
    # The server has no gradient; what stands in its place is not used.
    central = launch(step_with_server, start, per_rank([start, *own]), ranks=workers + 1)
    ring = launch(step_in_ring, start, per_rank(own), ranks=workers)
    torch.testing.assert_close(central.results[1], ring.results[0])
    for name, run in (("server", central), ("ring", ring)):
        entering[name].append(max(rank.received for rank in run.traffic.ranks) / 1e6)
    print(
        f"{workers:3} workers: {entering['server'][-1]:5.1f} MB enter the server, "
        f"{entering['ring'][-1]:.2f} MB enter the busiest worker of the ring"
    )

# %% demo=true jupyter={"source_hidden": true}
for workers, server_mb, ring_mb in zip(worker_counts, entering["server"], entering["ring"], strict=True):
    assert server_mb == workers
    assert abs(ring_mb - 2 * (workers - 1) / workers) < 1e-3
resnet_mb = 4 * 25_557_032 / 1e6
assert round(resnet_mb) == 102
assert [round(workers * resnet_mb) for workers in (8, 64)] == [818, 6543]
assert [round(2 * (workers - 1) / workers * resnet_mb) for workers in (8, 64)] == [179, 201]
guesses.measured(
    mb_into_the_server_of_8_workers=8 * resnet_mb,
    mb_into_the_server_of_64_workers=64 * resnet_mb,
    mb_into_a_worker_of_a_ring_of_64=2 * 63 / 64 * resnet_mb,
)

# %% [markdown]
# All workers end with the same weights both ways. But what enters the server grows with the number of workers; what enters a
# worker of the ring stays below twice the gradient. With ResNet-50's 102 MB, the first prediction: 818 MB enter the server with
# 8 workers and 6.5 GB with 64, and as much leaves it. Into a worker of the ring flow 179 MB with 8 and 201 MB with 64. That
# is what the lecture means when it says of parameter servers that "the scaling is poor". (Several servers can share the
# parameters, and workers need not wait for each other: unit 08.) No all-reduce sends less than a ring (Patarasuk and Yuan
# 2009). It came from supercomputing to deep learning in 2017, with Gibiansky's work at Baidu; Horovod began with that code.
#
# ### Two published figures
#
# The lecture shows two. One, standard distributed TensorFlow, is from the paper on Horovod (Sergeev and Del Balso 2018): with
# parameter servers about half of the GPUs' time was lost on 128 GPUs. On the same network Horovod reached 88 % of perfect
# scaling. The other one is in Horovod's documentation, and has 512 GPUs on 128 machines with networks of 25 Gbit/s: 90 % with
# Inception V3 and with ResNet-101, and 68 % with VGG-16. Why is VGG-16 so much worse? A few lines of arithmetic say so.
# Take what one GPU of this generation (a P100) processes alone, 142 images a second with Inception V3 and 154 with VGG-16,
# in batches of 64. A step computes for $T$ seconds and communicates for $C$. In the ring, all bytes that leave a machine
# go over its one network card, so $C = 2\frac{p-1}{p}\, b\, \beta$ with $p$ GPUs, $b$ bytes of gradients and $\beta$
# seconds for each byte. If nothing overlaps, a part $T / (T + C)$ of the time is
# computing. At best communication overlaps with all of backward, two thirds of $T$.

# %% demo=true
models = import_torchvision().models
with torch.device("meta"):
    networks = {
        "Inception V3": (models.inception_v3(aux_logits=False, init_weights=False), 142, 0.90),
        "VGG-16": (models.vgg16(), 154, 0.68),
    }
bounds = {}
for name, (network, images_a_second, published) in networks.items():
    nbytes = 4 * sum(parameter.numel() for parameter in network.parameters())
    computing = 64 / images_a_second
    communicating = 2 * 511 / 512 * nbytes / (25e9 / 8)
    at_least = computing / (computing + communicating)
    at_most = computing / (computing + max(0, communicating - 2 / 3 * computing))
    bounds[name] = (at_least, published, at_most)
    print(
        f"{name:12} {nbytes / 1e6:4.0f} MB: computes {computing * 1e3:.0f} ms, communicates "
        f"{communicating * 1e3:3.0f} ms; {at_least:.0%} to {at_most:.0%}, published {published:.0%}"
    )
    if name == "Inception V3":
        into_server = 128 * nbytes / (25e9 / 8)
print(f"128 gradients of Inception V3 enter a single server in {into_server:.1f} s")

# %% demo=true jupyter={"source_hidden": true}
# Name -> per cent of perfect scaling. Sources: section 17.
figures = {
    "128 GPUs (the paper)": {"TensorFlow's parameter servers": 50, "Horovod": 88},
    "512 GPUs (the documentation)": {"Inception V3": 90, "ResNet-101": 90, "VGG-16": 68},
}
said = "; ".join(
    f"{title}: " + ", ".join(f"{name} {value} %" for name, value in bars.items())
    for title, bars in figures.items()
)
figure, both = new_figure(
    alt=f"Published scaling in per cent of perfect scaling. {said}. Bounds from the arithmetic: "
    + "; ".join(f"{name} {low:.0%} to {high:.0%}" for name, (low, _, high) in bounds.items()),
    height=2.8,
    columns=2,
    sharex=True,
)
for axes, (title, bars) in zip(both, figures.items(), strict=True):
    drawn = axes.barh(list(bars), list(bars.values()), height=0.5, color="#56B4E9")
    axes.bar_label(drawn, fmt="%g %%", label_type="center")
    for name, (low, _, high) in bounds.items():
        if name in bars:
            (line,) = axes.plot([100 * low, 100 * high], [name, name], "k|-", markersize=12)
    axes.axvline(100, color="black", linestyle=":")
    axes.set(title=title, xlabel="part of perfect scaling (%)", xlim=(0, 105))
    axes.invert_yaxis()
line.set_label("bounds from the arithmetic")
figure.legend(loc="outside lower right")
figure

# %% demo=true jupyter={"source_hidden": true}
assert all(low < published < high for low, published, high in bounds.values())
assert [round(100 * published) for _, published, _ in bounds.values()] == [
    figures["512 GPUs (the documentation)"][name] for name in bounds
]
assert [f"{low:.0%}" for low, _, _ in bounds.values()] == ["88%", "54%"]
assert [f"{high:.0%}" for _, _, high in bounds.values()] == ["100%", "84%"]
assert 3.8 < into_server < 4.0

# %% [markdown]
# Drawn are the numbers that the sources have in words; nothing is read off their figures, and "about half" is drawn as 50 %.
# Both numbers with bounds lie between them: 88 % and 100 % for Inception V3, 54 % and 84 % for VGG-16, whose gradients are
# six times as large while a step computes about as long. So what a GPU loses is decided by the bytes for each second of
# computing, and by how much of them is hidden.
# A single server on this network would need almost 4 s to take the gradients of 128 GPUs, for steps of half a second.
# %% [markdown]
# ## 2 The library
#
# Horovod stands between a deep-learning framework and a communication library. It knows four of the one kind, TensorFlow,
# Keras, PyTorch and Apache MXNet, and these of the other, any of which goes with any framework (two more, IBM's DDL and
# Intel's CCL, are not treated here):
#
# | | on | for the tensors | for the negotiation (a "controller") |
# |---|---|---|---|
# | NCCL | GPUs | yes | no |
# | MPI | CPUs, GPUs if the MPI library can | yes | yes |
# | Gloo | CPUs | yes | yes |
#
# Which of them you have was decided when Horovod was built. Ask it first, on any machine:

# %% demo=true
# %%needs beside:horovod
# `horovodrun --check-build`. It asks each library in a process of its own; here these need not import torch each.
CHECK = "import sys, torch; sys.argv[1:] = ['--check-build']; from horovod.runner.launch import *; run_commandline()"
check_build = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True)
print(check_build.stdout)

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert "[X] PyTorch" in check_build.stdout
assert "[X] Gloo" in check_build.stdout

# %% [markdown]
# An `X` marks what was built in. On a cluster the lines to look for are your framework and, for GPUs, NCCL. In this unit
# cells that need Horovod say so where it is absent; all exercises but one can be solved without.
#
# In a notebook, `launch(..., on="horovod")` starts a function on Horovod's ranks, and calls `hvd.init()` first:

# %% demo=true
# %%needs beside:horovod


def hello(value: float) -> str:
    """Who this rank is, and the mean of all ranks' values."""
    import horovod.torch as hvd

    mean = hvd.allreduce(torch.tensor(value), name="value")
    return f"rank {hvd.rank()} of {hvd.size()}, local rank {hvd.local_rank()}: the mean is {mean.item()}"


greetings = launch(hello, per_rank([1.0, 2.0]), ranks=2, on="horovod").results
greetings

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert all(greeting.endswith("the mean is 1.5") for greeting in greetings)

# %% [markdown]
# `hvd.allreduce` **averages**, where `dist.all_reduce` sums; `op=hvd.Sum` makes it sum. And it takes a **name**. Section 7
# shows why that name is the heart of Horovod.
#
# ## 3 Six steps
#
# These steps make a script for one GPU one for many. In PyTorch:
#
# ```python
# import horovod.torch as hvd                                  # 0 import
#
# hvd.init()                                                   # 1 begin
# torch.cuda.set_device(hvd.local_rank())                      # 2 one GPU a process
# optimizer = SGD(model.parameters(), lr=rate * hvd.size())    # 3 scale the learning rate
# optimizer = hvd.DistributedOptimizer(                        # 4 wrap the optimizer
#     optimizer, named_parameters=model.named_parameters()
# )
# # A checkpoint is loaded here, into the wrapped optimizer (section 5).
# # 5 broadcast, after model and optimizer are initialised. Only if rank 0 has read a checkpoint:
# hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# # and always, and last:
# hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# if hvd.rank() == 0:                                          # 6 checkpoint on one rank
#     torch.save(...)
# ```
#
# In TensorFlow with Keras:
#
# ```python
# import horovod.tensorflow.keras as hvd                       # 0
#
# hvd.init()                                                   # 1
# gpus = tf.config.list_physical_devices("GPU")                # 2
# for gpu in gpus:
#     tf.config.experimental.set_memory_growth(gpu, True)
# tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
# optimizer = Adadelta(learning_rate=rate * hvd.size())        # 3
# optimizer = hvd.DistributedOptimizer(optimizer)              # 4
# callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]    # 5
# if hvd.rank() == 0:                                          # 6
#     callbacks.append(ModelCheckpoint(...))
# ```
#
# And in a training loop of your own in TensorFlow, with `import horovod.tensorflow as hvd`:
#
# ```python
# tape = hvd.DistributedGradientTape(tape)                     # 4, in every step
# hvd.broadcast_variables(model.variables, root_rank=0)        # 5, after the first step,
# hvd.broadcast_variables(optimizer.variables(), root_rank=0)  #    which makes the optimizer's
# if hvd.rank() == 0:                                          # 6
#     checkpoint.save(...)
# ```
#
# Three things belong to them. The data must be dealt out: rank `hvd.rank()` of `hvd.size()` trains on its own part.
# Metrics are averaged over ranks (`hvd.allreduce`, in Keras `hvd.callbacks.MetricAverageCallback()`). And the scaled learning
# rate is warmed up (section 4, in Keras `hvd.callbacks.LearningRateWarmupCallback`). `set_memory_growth` keeps TensorFlow
# from taking all memory of a GPU at once.
#
# The script is started by `horovodrun -np 2 python train.py`, on several nodes by
# `horovodrun -np 8 -H node1:4,node2:4 python train.py`.

# %% [markdown]
# ## 4 The learning rate
#
# Eight workers with 32 samples each take steps on 256 samples: the **effective batch size** is the batch size times the
# number of workers. The **linear scaling rule** (unit 02) multiplies the learning
# rate by the number of workers, for there are an eighth as many steps. Goyal et al. (2017) explain when that is
# right. Eight small steps and one large step end at about the same weights if the gradient hardly changes in between.
# With $w_j$ the weights before small step $j$, $g_j$ the gradient of its batch, and $\eta$ the learning rate:
#
# $$ w - \eta \sum_{j=1}^{8} g_j(w_j) \;\approx\; w - 8\eta \cdot \frac18 \sum_{j=1}^{8} g_j(w). $$
#
# At the beginning of a training the gradient does change, with every step. Hence the **warm-up**: begin with the
# learning rate of one worker, and let it grow.


# %% exercise="warmup_lr" points=4
def warmup_lr(step: int, warmup_steps: int, base_lr: float, size: int) -> float:
    """The learning rate of one step, scaled to `size` workers, with a gradual warm-up.

    step: from 0. warmup_steps: how many steps the warm-up takes; 0 for none. base_lr: the rate with
    which one worker trains well.

    Step 0 of a warm-up has the rate of one worker. From there it grows by the same amount every step.
    Step warmup_steps is the first one with the rate of `size` workers.
    """
    ### BEGIN SOLUTION
    grown = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return base_lr * (1 + (size - 1) * grown)
    ### END SOLUTION


# %% [markdown]
# What happens without it? A network of five layers, its initial weights scaled as for ReLUs (He et al. 2015), is trained for
# twelve epochs: by one worker with a batch of 16, or as eight workers would, with a batch of 128. Each training is done 32
# times, with other weights and other orders of the samples.


# %% demo=true
# %%needs warmup_lr
def accuracies_after(workers: int, rate: Callable[[int], float], passes: int = 12) -> list[float]:
    """The test accuracies in percent of 32 trainings after so many passes, in batches of 16 a worker.

    rate: step -> learning rate. Each training has initial weights and orders of the samples of its own; they do not
    know of each other, and are computed at once only because that is faster.
    """
    torch.manual_seed(4)
    times = 32
    widths = [channels * side**2, 64, 64, 64, 64, len(data.classes)]
    weights = [torch.randn(times, before, after) * (2 / before) ** 0.5 for before, after in pairwise(widths)]
    biases = [torch.zeros(times, 1, after) for after in widths[1:]]
    optimizer = torch.optim.SGD([each.requires_grad_() for each in weights + biases], momentum=0.9)

    def outputs(inputs: Tensor) -> Tensor:
        """[times, B, classes] of inputs [times, B, pixels]."""
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs = torch.baddbmm(bias, inputs, weight).relu()
        return torch.baddbmm(biases[-1], inputs, weights[-1])

    images, labels = data.train[:]
    steps = len(images) // (16 * workers)
    for step in range(passes * steps):
        if step % steps == 0:
            orders = torch.rand(times, len(images)).argsort(1)
        batch = orders[:, step % steps * 16 * workers :][:, : 16 * workers]
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        # The sum of the trainings' losses: each has the gradient of its own.
        loss = functional.cross_entropy(
            outputs(images[batch].flatten(2)).flatten(0, 1), labels[batch].flatten(), reduction="sum"
        )
        (loss / (16 * workers)).backward()
        optimizer.step()
    images, labels = data.test[:]
    found = outputs(images.flatten(1).expand(times, -1, -1)).argmax(2)
    return (100 * (found == labels).float().mean(1)).tolist()


one, epoch = 0.025, len(data.train) // (16 * 8)
trainings = {
    "1 worker": (1, lambda step: one),
    "8 workers, rate of one": (8, lambda step: one),
    "8 workers, rate x 8": (8, lambda step: warmup_lr(step, 0, one, 8)),
    "8 workers, rate x 8, warm-up": (8, lambda step: warmup_lr(step, 6 * epoch, one, 8)),
}
threads = torch.get_num_threads()
torch.set_num_threads(1)
ends = {name: accuracies_after(*training) for name, training in trainings.items()}
torch.set_num_threads(threads)
for name, accuracies in ends.items():
    bad = sum(accuracy < 90 for accuracy in accuracies)
    print(
        f"{name:29} {min(accuracies):5.1f} to {max(accuracies):5.1f} %, {bad:2} of {len(accuracies)} below 90 %"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%needs warmup_lr
figure, axes = new_figure(
    alt="Test accuracy after twelve epochs, 32 trainings each. "
    + "; ".join(
        f"{name}: {min(accuracies):.0f} to {max(accuracies):.0f} %" for name, accuracies in ends.items()
    ),
    height=2.6,
)
for place, accuracies in enumerate(ends.values()):
    axes.plot(
        accuracies, [place] * len(accuracies), linestyle="", marker="|", markersize=18, markeredgewidth=2
    )
axes.set(xlabel="test accuracy (%), a line a training", xlim=(0, 100), ylim=(3.6, -0.6))
axes.set_yticks(range(len(ends)), list(ends))
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds warmup_lr
# The sentences below, which are about digits. Which of the trainings fail differs from machine to machine, since
# processors round differently; about how many does not.
failed = {name: sum(accuracy < 90 for accuracy in accuracies) for name, accuracies in ends.items()}
if dataset == "digits":
    assert failed["1 worker"] <= 4
    assert failed["8 workers, rate of one"] <= 4
    assert failed["8 workers, rate x 8"] >= 8
    assert min(ends["8 workers, rate x 8"]) < 50
    assert failed["8 workers, rate x 8, warm-up"] <= 6

# %% [markdown]
# Without a warm-up, eight times the rate is a gamble: of the 32 trainings a quarter or more end below 90 %, some far below, down to
# the 10 % of a guess. The first steps throw the weights so far that the training does not come back. With a warm-up over the first half of the training nearly
# all of them end where one worker does, in an eighth of the steps. (Goyal et al. warmed up for 5 of 90 epochs. Here an
# epoch has only eleven steps.) On this small problem the rate of one worker would do for eight as well: look at its row. Section 9
# of unit 02 has a batch for which it does not.
#
# ### Find the mistakes
#
# In Keras, `LearningRateWarmupCallback` does nearly the same: it is one step further on, so its first step is already a
# little above the rate of one worker. `WarmupCallback` stands for it here, and `tutorials_warmup` has what the
# lecture's script does. It runs, and nothing warns. But the rate is not what its author wanted, for two reasons.


# %%
class WarmupCallback:
    """Sets the learning rate before every step: initial_lr / size at first, initial_lr after warmup_steps.

    That of Horovod for Keras is one step ahead: its first step has the rate that is step 1's here.
    """

    def __init__(self, optimizer: Any, initial_lr: float, warmup_steps: int, size: int) -> None:
        self.optimizer = optimizer
        self.initial_lr = initial_lr
        self.warmup_steps = warmup_steps
        self.size = size

    def before_step(self, step: int) -> None:
        """step: from 0, counted over all epochs."""
        rate = warmup_lr(step, self.warmup_steps, self.initial_lr / self.size, self.size)
        for group in self.optimizer.param_groups:
            group["lr"] = rate


def tutorials_warmup(
    new_optimizer: Callable[[float], Any], learning_rate: float, size: int, steps_per_epoch: int
) -> WarmupCallback:
    """What the tutorial does: an optimizer with a scaled rate, and three epochs of warm-up."""
    optimizer = new_optimizer(learning_rate * size)
    return WarmupCallback(optimizer, initial_lr=1e-3 * size, warmup_steps=3, size=size)


# %% exercise="mend_warmup" points=3
def mend_warmup(
    new_optimizer: Callable[[float], Any], learning_rate: float, size: int, steps_per_epoch: int
) -> WarmupCallback:
    """The tutorial's warm-up without its mistakes: a WarmupCallback over an optimizer of its own.

    new_optimizer(lr): makes an optimizer; it is called once. learning_rate: with which one worker
    trains well. steps_per_epoch: steps that every worker takes in an epoch.

    In its first step the training has the rate of one worker, and after three epochs that of `size`
    workers, which is also the rate that the optimizer is made with.
    """
    ### BEGIN SOLUTION
    scaled = learning_rate * size
    return WarmupCallback(new_optimizer(scaled), scaled, 3 * steps_per_epoch, size)
    ### END SOLUTION


# %% [markdown]
# ## 5 The same start, the same numbers
#
# Equal gradients keep replicas equal only if they begin equal (unit 02). With an optimizer that has a state, such as
# momentum, the state belongs to it: a training that resumes from a checkpoint has the momentum of the epochs before,
# and perhaps only rank 0 has read the file. That is why step 5 comes after models *and* optimizers exist, and after the
# checkpoint has been read.


# %% exercise="broadcast_state" points=7
def broadcast_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give every rank rank 0's model and optimizer, with which a training begins or goes on.

    Models have one architecture; optimizers are of one kind and have the model's parameters, in one
    order. What rank 0 has may come from a checkpoint; what others have does not count.

    Afterwards every rank has rank 0's parameters and buffers, in the tensors that were there, and its
    optimizer has rank 0's options (each of optimizer.param_groups, beside "params") and rank 0's state.
    A parameter without a state on rank 0, as in a new optimizer, has none anywhere.
    Nothing else changes, and no rank takes a step.
    """
    ### BEGIN SOLUTION
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state, src=0)
    if dist.get_rank() != 0:
        optimizer.load_state_dict(state[0])
    ### END SOLUTION


# %% [markdown]
# Horovod's own `broadcast_optimizer_state` has a trap. On a rank whose optimizer has no state yet it takes a step with
# gradients of zero, to make one. With weight decay that step is not nothing. Here a weight is 1 on both ranks, and should
# be 1 after the broadcasts:

# %% demo=true
# %%needs beside:horovod


def after_broadcasts(resumed: bool, calls: list[str]) -> float:
    """A weight of 1 after these broadcasts. resumed: whether rank 0's optimizer has a state."""
    import horovod.torch as hvd

    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    if resumed and hvd.rank() == 0:
        weight.grad = torch.ones(1)
        optimizer.step()
        weight.data.fill_(1)
    for call in calls:
        if call == "state":
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            hvd.broadcast_parameters([("weight", weight)], root_rank=0)
    return weight.item()


def all_broadcasts(cases: list[tuple[bool, list[str]]]) -> list[float]:
    """The weight after each of the cases."""
    return [after_broadcasts(*case) for case in cases]


cases = [
    (False, ["parameters", "state"]),
    (False, ["state", "parameters"]),
    (False, ["parameters"]),
    (True, ["parameters", "state"]),
    (True, ["state", "parameters"]),
]
weights = list(zip(*launch(all_broadcasts, cases, ranks=2, on="horovod").results, strict=True))
for (resumed, calls), (first, second) in zip(cases, weights, strict=True):
    has = "rank 0 has a state" if resumed else "nobody has a state"
    print(f"{has:18}, broadcast {', then '.join(calls):22}: {first:.2f} on rank 0, {second:.2f} on rank 1")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
# AdamW takes lr x weight decay off each weight: 0.1 x 0.5.
expected = torch.tensor([[0.95, 0.95], [0.95, 0.95], [1, 1], [1, 0.95], [1, 1]])
torch.testing.assert_close(torch.tensor(weights), expected)

# %% [markdown]
# If nobody has a state, all ranks take the step, rank 0 too, and no order helps: the broadcast of the parameters sends the
# smaller weight. But then there is no state to send, so leave that broadcast out. If rank 0 has a state from a checkpoint and
# the others do not, only theirs shrink: broadcast the parameters last, and they are right again.
#
# There is a second trap in step 4. `hvd.DistributedOptimizer` makes a new optimizer, with the options of the one that it is
# given and without its state:

# %% demo=true
# %%needs beside:horovod


def states_after_wrapping() -> tuple[int, int]:
    """Of how many parameters an optimizer has a state after a step; and of how many the one that wraps it."""
    import horovod.torch as hvd

    weight = nn.Parameter(torch.ones(1))
    plain = torch.optim.AdamW([weight])
    weight.grad = torch.ones(1)
    plain.step()
    wrapped = hvd.DistributedOptimizer(plain, named_parameters=[("weight", weight)])
    return len(plain.state), len(wrapped.state)


kept = launch(states_after_wrapping, ranks=2, on="horovod").results
print(f"parameters with a state: {kept[0][0]} before wrapping, {kept[0][1]} after")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert kept == [(1, 0)] * 2

# %% [markdown]
# So wrap first and load the checkpoint into the wrapped optimizer. What was loaded before is gone, on rank 0 too, and then the first
# trap is open again.
#
# What is printed should not depend on the number of ranks either.


# %% exercise="average_metrics" points=5
def average_metrics(metrics: dict[str, float], samples: int) -> dict[str, float]:
    """The means of metrics over all samples of all ranks, the same on every rank.

    metrics: on each rank the means over its own samples. All ranks have the same names, in any order.
    samples: how many this rank had; at least one rank had some. Metrics of none are NaN, and count for
    nothing.

    Returns a new dictionary of floats, in double precision. One all_reduce for all metrics.
    """
    ### BEGIN SOLUTION
    names = sorted(metrics)
    sums = [metrics[name] * samples if samples else 0.0 for name in names]
    total = torch.tensor([*sums, samples], dtype=torch.float64)
    dist.all_reduce(total)
    means = dict(zip(names, (total[:-1] / total[-1]).tolist(), strict=True))
    return {name: means[name] for name in metrics}
    ### END SOLUTION


# %% demo=true
# %%needs average_metrics
accuracies = per_rank([{"accuracy": 0.9}, {"accuracy": 0.5}, {"accuracy": 0.8}])
averaged = launch(average_metrics, accuracies, per_rank([100, 10, 100]), ranks=3).results[0]
print(
    f"mean of the ranks' accuracies {(0.9 + 0.5 + 0.8) / 3:.3f}, over all samples {averaged['accuracy']:.3f}"
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds average_metrics
assert abs(averaged["accuracy"] - (90 + 5 + 80) / 210) < 1e-9

# %% [markdown]
# Horovod's `MetricAverageCallback` takes the plain mean of the ranks. With shards of equal size that is the same.
#
# ### The lecture's tutorial
#
# A classifier of small images, for one GPU and for many, in both frameworks. The scripts are in the folder
# `examples/horovod`. Here they stand side by side, what differs is marked with ▸.

# %% demo=true
import course_lib
from course_lib.notebook.side_by_side import side_by_side

examples = Path(course_lib.__file__).parents[1] / "examples" / "horovod"
side_by_side(examples / "single_torch.py", examples / "horovod_torch.py")

# %% demo=true
side_by_side(examples / "single_keras.py", examples / "horovod_keras.py")

# %% [markdown]
# `get_dataset(rank, size)` deals the data out by the number of processes. Before a long job run `check_hvd.py`: it says what
# Horovod was built with, who is there, and whether a sum over all ranks is right. Then all four scripts, on this unit's data,
# written to a file as Keras' `mnist.npz` has it. With Horovod they run as `horovodrun -np 2 python horovod_torch.py digits.npz`:

# %% demo=true
# %%needs beside:horovod
import numpy as np

folder = Path(tempfile.mkdtemp())
arrays = {}
for part, samples in (("train", data.train), ("test", data.test)):
    images, labels = samples[:]
    arrays[f"x_{part}"] = (images[:, 0] * 255).to(torch.uint8).numpy()
    arrays[f"y_{part}"] = labels.numpy()
np.savez(folder / "digits.npz", **arrays)


# horovodrun, without the seconds in which it asks each framework whether Gloo is built in.
HOROVODRUN = "-P", str(Path(course_lib.__file__).parent / "beside" / "horovodrun.py")
# Else the threads of one process wait for a core that those of another have.
ONE_CORE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def run_example(name: str, python: Path, processes: int = 0) -> list[str]:
    """The lines that an example printed, under horovodrun if a number of processes is given."""
    command = [str(python), str(examples / name), str(folder / "digits.npz")]
    if processes:
        options = f"-np {processes} --gloo --network-interface lo".split()
        command = [str(python), *HOROVODRUN, *options, *command]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | ONE_CORE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.strip()]


def last_accuracy(lines: list[str]) -> float:
    """The number behind the last "val_accuracy" of an output."""
    return float(re.findall(r"val_accuracy:? ([0-9.]+)", "\n".join(lines))[-1])


checked = run_example("check_hvd.py", Path(sys.executable), processes=2)
print("\n".join(line.partition(":")[2] for line in checked))
pytorch = {
    "one process": run_example("single_torch.py", Path(sys.executable)),
    "two with Horovod": run_example("horovod_torch.py", Path(sys.executable), processes=2),
}
for name, lines in pytorch.items():
    print(f"PyTorch, {name}: validation accuracy {last_accuracy(lines):.1%}")

# %% demo=true
# %%needs beside:horovod beside:horovod-tensorflow
from course_lib.beside import interpreter

tensorflow = interpreter("horovod-tensorflow")
keras = {
    "one process": run_example("single_keras.py", tensorflow),
    "two with Horovod": run_example("horovod_keras.py", tensorflow, processes=2),
}
for name, lines in keras.items():
    print(f"Keras, {name}: validation accuracy {last_accuracy(lines):.1%}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert "the sum of all ranks is 1, as it should be" in "\n".join(checked)
# The sentence below is about digits.
if dataset == "digits":
    assert all(last_accuracy(lines) > 0.85 for lines in pytorch.values())
# Rank 0 alone speaks and saves.
assert "\n".join(pytorch["two with Horovod"]).count("val_accuracy") == 8
assert {"single_torch.pt", "horovod_torch.pt"} <= {path.name for path in folder.iterdir()}

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod beside:horovod-tensorflow
if dataset == "digits":
    assert all(last_accuracy(lines) > 0.85 for lines in keras.values())
# The warm-up ends where the optimizer is: at the scaled rate.
assert "finished gradual learning rate warmup to 2" in "\n".join(keras["two with Horovod"])
assert {"single_keras.h5", "horovod_keras.h5"} <= {path.name for path in folder.iterdir()}

# %% [markdown]
# Where Horovod and TensorFlow are installed, all four end above 85 %. Two processes take half as many steps.

# %% [markdown]
# ## 6 Tensor fusion
#
# A step of the ring costs a latency $\alpha$, however short its message is (unit 02). ResNet-50 has 161 parameter tensors, and
# most of them are short. Horovod copies tensors that are ready at the same time into one **fusion buffer**, sums
# up the buffer with one all-reduce, and copies the sums back. The buffer has a size, the
# **threshold**. Which tensors go together?
#
# By the rules of Horovod 0.28 (`FuseResponses` in its `controller.cc`, for tensors in the memory of the processor) a message
# begins with the first tensor that waits, however large it is. Then Horovod goes through those behind it:
#
# - The message takes a tensor of its dtype, if all in it together do not exceed the threshold then.
# - Any other tensor is passed over and waits for a later message, if it, all that were passed over before it and all
#   that the message holds by then together do not exceed the threshold.
# - Else the message is complete.
#
# Four tensors of 4, 5, 6 and 2 bytes with the dtypes a, b, a and a go as `[[0, 2], [1], [3]]`, where the threshold is 10.


# %% exercise="plan_fusion" points=7
def plan_fusion(sizes: list[int], dtypes: list[str], threshold: int) -> list[list[int]]:
    """Which tensors are sent together, by the rules above.

    sizes: bytes of each tensor, in the order in which they are to be sent; 0 is possible. dtypes: of
    each. threshold: bytes of the fusion buffer. The lists stay as they are.

    Returns the messages in the order in which they are sent, each a list of positions in `sizes`,
    ascending. Every tensor is in one of them.
    """
    ### BEGIN SOLUTION
    messages = []
    waiting = list(range(len(sizes)))
    while waiting:
        first = waiting.pop(0)
        message, filled, passed = [first], sizes[first], []
        while waiting:
            position = waiting[0]
            if dtypes[position] == dtypes[first] and filled + sizes[position] <= threshold:
                message.append(position)
                filled += sizes[position]
            elif filled + sum(sizes[each] for each in [*passed, position]) <= threshold:
                passed.append(position)
            else:
                break
            waiting.pop(0)
        waiting = passed + waiting
        messages.append(message)
    return messages
    ### END SOLUTION


# %% exercise="fuse" points=4
def fuse(tensors: list[Tensor]) -> Tensor:
    """The fusion buffer: all numbers of the tensors, end to end.

    tensors: at least one, all of one dtype, of any shapes and layouts in memory. They stay as they are.
    Returns a new, contiguous 1-D tensor without history, with memory of its own: the numbers of
    tensors[0], as flatten() orders them, then those of tensors[1], and so on.
    """
    ### BEGIN SOLUTION
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
    ### END SOLUTION


# %% exercise="unfuse" points=4
def unfuse(flat: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """The tensors that lie end to end in a fusion buffer.

    flat: 1-D, contiguous, perhaps part of a larger tensor. shapes: of the tensors, in order.
    Returns one tensor a shape. No number is copied: what is written into one of them is written into
    `flat`.
    Raises ValueError if the shapes do not take up exactly the numbers that `flat` has.
    """
    ### BEGIN SOLUTION
    counts = [shape.numel() for shape in shapes]
    if sum(counts) != len(flat):
        raise ValueError(f"the shapes hold {sum(counts)} numbers, and the buffer {len(flat)}")
    return [part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)]
    ### END SOLUTION


# %% [markdown]
# How much is it worth? All gradients of ResNet-50, 102 MB in 161 tensors, on 16 nodes with 25 Gbit/s and a latency of 50 µs.
# A threshold of 0 means no fusion at all. Horovod's default is 128 MiB.


# %% demo=true
# %%needs plan_fusion
def reduce_planned(sizes: list[int], threshold: int) -> None:
    """One all-reduce a message of the plan; the tensors have no data, so only time passes."""
    for message in plan_fusion(sizes, ["float32"] * len(sizes), threshold):
        dist.all_reduce(torch.empty(sum(sizes[place] for place in message) // 4, device="meta"))


with torch.device("meta"):
    sizes = [parameter.nbytes for parameter in reversed(list(models.resnet50().parameters()))]
network = Cluster(nodes=16, inter_node=Link(latency=50e-6, bandwidth=25e9 / 8))
fusing = {}
for threshold in (0, 2**16, 2**20, 2**23, 2**27):
    run = launch(reduce_planned, sizes, threshold, cluster=network)
    fusing[threshold] = (run.traffic[0].calls["all_reduce"], run.seconds * 1e3)
    print(f"threshold {threshold:11,}: {fusing[threshold][0]:3} messages, {fusing[threshold][1]:5.0f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds plan_fusion
assert len(sizes) == 161
assert fusing[0][0] == 161
assert fusing[2**27][0] == 1
assert round(161 * 2 * 15 * 50e-6 * 1e3) in (241, 242)
assert round(fusing[0][1] - fusing[2**27][1]) == round(160 * 2 * 15 * 50e-6 * 1e3) == 240
assert fusing[2**23][1] < 1.4 * fusing[2**27][1]

# %% [markdown]
# Without fusion 161 messages wait $161 \cdot 2(p-1)\,\alpha = 242$ ms for latency alone, four times as long as all bytes take. Most of it is
# gone with 8 MiB, and one large message is fastest. But that is so only because all gradients were ready at once here. In
# a training a large buffer has to wait for the end of backward (unit 02), and the open task at the end is to find the best
# size. The paper reports up to 65 % more speed from fusion, for models with many layers on a network without RDMA (cards that write into each other's memory).

# %% [markdown]
# ## 7 Negotiation
#
# `torch.distributed` has one rule: all ranks make the same calls in the same order. The second prediction breaks it. Rank 0
# asks for the sum of a and then of b, rank 1 the other way round:

# %% demo=true


def in_another_order(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Each rank sums up a and b, the odd ones b first."""
    for tensor in (a, b) if dist.get_rank() % 2 == 0 else (b, a):
        dist.all_reduce(tensor)
    return a, b


a, b = torch.ones(3), torch.ones(2)
try:
    launch(in_another_order, a, b, ranks=ranks)
    raise AssertionError("calls in different orders were matched")
except CollectiveMismatch as error:
    print(error.report)
# Equal shapes are worse: nobody notices.
a, b = torch.tensor([1.0]), torch.tensor([100.0])
mixed = launch(in_another_order, a, b, ranks=ranks).results
for name, got, one_rank in zip("ab", mixed[0], (a, b), strict=True):
    print(f"The sum of {name} is {got.item():.0f}, and should be {ranks * one_rank.item():.0f}.")

# %% demo=true jupyter={"source_hidden": true}
# The first call adds the even ranks' a to the odd ranks' b, the second one what is left.
even, odd = (ranks + 1) // 2, ranks // 2
calls = even * a + odd * b, even * b + odd * a
assert mixed == [calls if rank % 2 == 0 else calls[::-1] for rank in range(ranks)]
if ranks == 4:
    assert mixed[0] == (202, 202)
guesses.measured(sums_with_torch_distributed=f"refused, or wrong: {mixed[0][0].item():g} for a")

# %% [markdown]
# Of different lengths, the two calls are refused here, and on a real cluster they hang or abort. Of equal lengths nobody
# notices: the a of some ranks is added to the b of others. And autograd gives no promise about the order in which hooks fire. Unit 02's
# buckets solve it by a fixed order. TensorFlow's graphs, which Horovod was first made for, run whatever is ready, so there is no
# order to fix. Horovod's answer:
#
# - Ranks do not call a collective; they **submit** a tensor under a **name** and go on.
# - In each cycle the ranks tell rank 0, the **coordinator**, which names they have submitted.
# - The coordinator counts. A name that all ranks have submitted is ready. It answers everyone with the same list of
#   ready names, in one order.
# - Every rank carries out that list. What is not on it stays for a later cycle.


# %% exercise="ready_everywhere" points=9
def ready_everywhere(requests: list[str], table: dict[str, Any]) -> list[str]:
    """One cycle of the negotiation: which tensors have become ready on all ranks.

    Called on every rank, cycle after cycle. requests: names of the tensors that became ready on this
    rank since its last call. table: this rank's memory between the cycles, an empty dictionary at
    first.

    Returns the names that all ranks have requested since they were last returned, all of them, in one
    order on all ranks; none waits for another. In the next step the same names come again, each as soon
    as it has been returned.

    Communication: at most one dist.gather_object to rank 0 and one dist.broadcast_object_list a cycle,
    or what sends as much. A request is sent once.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(requests, gathered, dst=0)
    answer = [None]
    if rank == 0:
        for names in gathered:
            for name in names:
                table[name] = table.get(name, 0) + 1
        answer = [[name for name, count in table.items() if count == size]]
        for name in answer[0]:
            del table[name]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]
    ### END SOLUTION


# %% [markdown]
# The same on the real one. The order differs from rank to rank, and the sums are right:

# %% demo=true
# %%needs beside:horovod


def submit_in_another_order() -> dict[str, float]:
    """The sums of a and b, of which the odd ranks submit b first."""
    import horovod.torch as hvd

    values = {"a": torch.tensor([1.0]), "b": torch.tensor([100.0])}
    names = list(values) if hvd.rank() % 2 == 0 else list(reversed(values))
    handles = {name: hvd.allreduce_async(values[name], name=name, op=hvd.Sum) for name in names}
    return {name: hvd.synchronize(handles[name]).item() for name in "ab"}


sums = launch(submit_in_another_order, ranks=2, on="horovod").results
sums

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert sums == [{"a": 2.0, "b": 200.0}] * 2

# %% [markdown]
# Negotiation costs messages in every cycle. Since a training submits the same names step after step, Horovod remembers them
# in a **response cache**: after the first steps the ranks exchange only a few bits that say which of the known tensors are
# ready.
#
# ### Stalls
#
# What if a rank never submits a name? The others wait, and the coordinator knows for whom. Here a name is mistyped on
# rank 1. The launch is stopped after its time limit, and its report lists what was never ready on all ranks:


# %% demo=true
# %%needs beside:horovod
def mistyped() -> None:
    """Two sums; the second one has another name on rank 1."""
    import horovod.torch as hvd

    hvd.allreduce(torch.ones(1), name="loss")
    hvd.allreduce(torch.ones(1), name="accuracy" if hvd.rank() == 0 else "acuracy")


try:
    launch(mistyped, ranks=2, on="horovod", timeout=12)
    raise AssertionError("a tensor that rank 1 never submits was summed")
except TimedOut as error:
    stall_report = error.report
print(stall_report)

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert "accuracy waited for rank 1" in stall_report
assert "acuracy waited for rank 0" in stall_report

# %% [markdown]
# On a cluster Horovod reports it itself, after a minute (`HOROVOD_STALL_CHECK_TIME_SECONDS`), and goes on waiting, unless it was told
# when to give up (`HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`). But Horovod 0.28.1 does so only when its ranks negotiate over MPI.
# Over Gloo its list of ranks stays empty by a mistake in the library, so it never finds one missing, and the job hangs
# in silence. So the next cell uses `mpirun`, and needs a Horovod that is built with MPI. Here the limits are 1 and 2 seconds.

# %% demo=true
# %%needs beside:horovod-mpi
STALLING = """
import torch
import horovod.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(1), name="loss")
hvd.allreduce(torch.ones(1), name="accuracy" if hvd.rank() == 0 else "acuracy")
"""
allowed = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2",
    "HOROVOD_LOG_HIDE_TIME": "1",
    # Open MPI asks these of the user root, as in containers.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
stalled = subprocess.run(
    ["mpirun", "--oversubscribe", "-np", "2", sys.executable, "-c", STALLING],
    env=os.environ | allowed,
    capture_output=True,
    text=True,
    timeout=120,
)
print(re.search(r"One or more tensors[^!]*?Missing ranks:(\n\d+!?: .*)+", stalled.stderr)[0])
print(re.findall(r"HorovodInternalError: .*?\.", stalled.stderr)[-1])

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod-mpi
assert stalled.returncode != 0
# On a busy machine the first report comes when the time to give up is over too; then it marks ranks with "!".
assert re.search(r"1!?: \[allreduce\.accuracy\]", stalled.stderr)
assert re.search(r"0!?: \[allreduce\.acuracy\]", stalled.stderr)

# %% [markdown]
# The report names each rank that is missing, and the tensors that it has not submitted. Rank 1 lacks `accuracy` and rank 0
# lacks `acuracy`: look for the difference. The usual cause is a call behind `if hvd.rank() == 0:`, or a rank that has
# fewer batches than the others. When the time to give up is over, all ranks get a `HorovodInternalError`.

# %% [markdown]
# ## 8 The optimizer that talks
#
# Now the parts come together. As in unit 02, hooks start the communication of a gradient when it is complete. But here the
# optimizer is wrapped, not the model, and what is sent together is what your `plan_fusion` says.
#
# - **Messages.** The constructor sends nothing. It lays the trainable parameters, in the reverse of their order, into messages by
#   the rules of `plan_fusion`. A parameter that has two names is sent once; a frozen one is not sent.
# - **Backward.** A message is started, with `async_op=True`, as soon as all its gradients are complete and all messages before it have
#   been started. Backward never waits for communication.
# - **Several passes.** With `backward_passes_per_step=n` a gradient is complete after $n$ passes of its own; those before only add
#   to it.
# - **`synchronize()`.** It starts what is left, in order, and waits for all. Then every trainable parameter's `.grad`, the
#   tensor that was there, holds the mean over ranks; what a rank lacks counts as zero, and is there afterwards.
#
# A step sends one `all_reduce` a message, in one order on all ranks, and nothing else. What is not defined here, such as
# `param_groups` or `state_dict()`, is the optimizer's own.


# %% exercise="DistributedOptimizer" points=17
class DistributedOptimizer:
    """An optimizer whose gradients are averaged over the ranks while backward still computes.

    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), model.named_parameters())
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()      # hooks start messages
    optimizer.step()                                # waits, then steps with the means

    threshold: bytes of the fusion buffer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        backward_passes_per_step: int = 1,
        threshold: int = 128 * 2**20,
    ) -> None:
        self.optimizer = optimizer
        self.backward_passes_per_step = backward_passes_per_step
        ### BEGIN SOLUTION
        parameters = list(dict.fromkeys(p for _, p in named_parameters if p.requires_grad))[::-1]
        plan = plan_fusion([p.nbytes for p in parameters], [str(p.dtype) for p in parameters], threshold)
        self.messages = [[parameters[position] for position in message] for message in plan]
        for number, message in enumerate(self.messages):
            for parameter in message:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, number))
        self.reset()
        self.synchronized = False
        ### END SOLUTION

    def __getattr__(self, name: str) -> Any:
        """What is not defined here is the optimizer's."""
        return getattr(self.__dict__["optimizer"], name)

    # The next three are a suggestion: change them as you like.

    def reset(self) -> None:
        """Nothing is under way."""
        ### BEGIN SOLUTION
        self.passes = {parameter: 0 for message in self.messages for parameter in message}
        self.missing = [len(message) for message in self.messages]
        self.under_way = []
        ### END SOLUTION

    def gradient_ready(self, number: int, parameter: nn.Parameter) -> None:
        """The hook: a pass has added to the gradient of this parameter of this message."""
        ### BEGIN SOLUTION
        self.synchronized = False
        self.passes[parameter] += 1
        if self.passes[parameter] == self.backward_passes_per_step:
            self.missing[number] -= 1
        while len(self.under_way) < len(self.messages) and self.missing[len(self.under_way)] == 0:
            self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Start the first message that is not under way."""
        ### BEGIN SOLUTION
        message = self.messages[len(self.under_way)]
        for parameter in message:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = fuse([parameter.grad for parameter in message])
        self.under_way.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def synchronize(self) -> None:
        """Start what is left, wait, and leave the means in .grad."""
        ### BEGIN SOLUTION
        while len(self.under_way) < len(self.messages):
            self.start_next()
        for message, (flat, work) in zip(self.messages, self.under_way, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for parameter, mean in zip(message, unfuse(flat, [p.shape for p in message]), strict=True):
                parameter.grad.copy_(mean)
        self.reset()
        self.synchronized = True
        ### END SOLUTION

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """The optimizer's own step(closure), once, after synchronize(), unless that has been called
        since the last backward. Returns what the optimizer's returns.
        """
        ### BEGIN SOLUTION
        if not self.synchronized:
            self.synchronize()
        self.synchronized = False
        return self.optimizer.step(closure)
        ### END SOLUTION

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's own. Raises RuntimeError between a backward and its step() or
        synchronize().
        """
        ### BEGIN SOLUTION
        if any(self.passes.values()):
            raise RuntimeError("zero_grad() between backward and step(): gradients would be lost")
        self.optimizer.zero_grad(set_to_none=set_to_none)
        ### END SOLUTION


# %% [markdown]
# Beside the real one: twenty steps with the same data and the same initial weights, on real processes.

# %% demo=true
# %%needs beside:horovod plan_fusion fuse unfuse DistributedOptimizer


def twenty_steps(wrapper: str) -> Tensor:
    """The weights after twenty steps, as one long vector. wrapper: "mine" or "Horovod"."""
    if wrapper == "mine":
        rank, size, wrap = dist.get_rank(), dist.get_world_size(), DistributedOptimizer
    else:
        import horovod.torch as hvd

        rank, size, wrap = hvd.rank(), hvd.size(), hvd.DistributedOptimizer
    model = new_model()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
    for step in range(20):
        images, labels = data.train[64 * step + rank : 64 * step + 64 : size]
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


differences = {}
for size in (2, 4):
    mine = launch(twenty_steps, "mine", ranks=size, on="processes").results[0]
    horovods = launch(twenty_steps, "Horovod", ranks=size, on="horovod").results[0]
    differences[size] = (mine - horovods).abs().max().item()
    print(f"{size} processes: largest difference of a weight {differences[size]:.0e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod plan_fusion fuse unfuse DistributedOptimizer
assert max(differences.values()) < 1e-6

# %% [markdown]
# The same weights, to rounding. Yours sends in a fixed order; Horovod negotiates one.

# %% [markdown]
# ## 9 The timeline
#
# With `HOROVOD_TIMELINE=file.json` (or `horovodrun --timeline-filename`) the coordinator writes down what happens to each
# tensor. Chrome and <https://ui.perfetto.dev> show the file; here is this course's view of one. A network of four layers
# trains for three steps on two ranks, and one of the ranks is slower than the other. Which one, and where does it lose its
# time? (The folded cell has the answer.)


# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:horovod
def train_unevenly(steps: int = 3) -> None:
    """Four layers of width 512; one rank waits for its data in every step."""
    import horovod.torch as hvd

    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.Tanh())))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(steps):
        if hvd.rank() == 1:
            time.sleep(0.5)  # A slow data loader.
        optimizer.zero_grad()
        model(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()


# %% demo=true
# %%needs beside:horovod
def recorded(function, *arguments) -> Path:
    """Horovod's own file on a run of this function on two ranks."""
    file = Path(tempfile.mkdtemp()) / "timeline.json"
    # Without the cache of responses, every negotiation is in the file.
    with patch.dict(os.environ, HOROVOD_TIMELINE=str(file), HOROVOD_CACHE_CAPACITY="0"):
        launch(function, *arguments, ranks=2, on="horovod")
    return file


from course_lib.figures.horovod import horovod_figure
from course_lib.runtime.communication.horovod_timeline import load_trace, timeline_of

trace = load_trace(recorded(train_unevenly))
timeline = timeline_of(trace)
last_step = list({operation.tensor: operation for operation in timeline.operations}.values())
begun = min(operation.asked for operation in last_step)
there = min(max(operation.ready.values()) for operation in last_step)
ended = max(operation.end for operation in last_step)
horovod_figure(timeline, start=begun, end=ended, title="The last of three steps")

# %% [markdown]
# A row is a tensor. Its negotiation begins when the first rank has submitted it and ends when the last one has. The marks
# say which ranks these are. What comes after it is too short to be seen. So here is the end of the same step, from the moment when a
# first tensor is ready on both ranks:

# %% demo=true
# %%needs beside:horovod
horovod_figure(timeline, start=there, end=ended, title="The end of the step")

# %% [markdown]
# After its negotiation a tensor is copied into the fusion buffer (`MEMCPY_IN_FUSION_BUFFER`), summed over Gloo
# (`GLOO_ALLREDUCE`), and copied back. Tensors that were in the buffer together have the same times. On GPUs there can be
# more rows of waiting in between: until the GPU has computed the tensor (`WAIT_FOR_DATA`) and those that share its buffer
# (`WAIT_FOR_OTHER_TENSOR_DATA`), and **queueing** (`QUEUE`), while NCCL is still busy with the message before. In numbers:

# %% demo=true
# %%needs beside:horovod
waited = {0: 0.0, 1: 0.0}
for operation in last_step:
    late = operation.last_ready
    waited[late] = max(waited[late], max(operation.ready.values()) - min(operation.ready.values()))
messages = [group for group in timeline.fused() if group[0] in last_step]
largest = max(messages, key=len)
print(
    f"In the last step a tensor waited up to {waited[0] * 1e3:.0f} ms for rank 0, "
    f"up to {waited[1] * 1e3:.0f} ms for rank 1."
)
print(
    f"Its {len(last_step)} sums went in {len(messages)} messages. The largest one has {len(largest)} tensors:"
)
for activity in largest[0].activities:
    print(f"    {activity.name:27} {(activity.end - activity.start) * 1e6:6.0f} µs")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert waited[1] > waited[0]
assert sum(len(message) for message in messages) == len(last_step) == 8
if len(largest) > 1:
    assert "MEMCPY_IN_FUSION_BUFFER" in [activity.name for activity in largest[0].activities]

# %% [markdown]
# Rank 1 is the **straggler**. The timeline shows that it comes late to *every* tensor, the first one too, so it loses
# the time before backward and not in a layer. (It waits 500 ms for its data: unfold the cell.) A rank with a slower processor
# would come later and later, as in the picture at the beginning. One slow layer shows as a jump: on time before it, late by
# the same amount for it and all that follow, for backward goes through one layer after the other.
#
# What of all this costs time? Most of all the waiting for the straggler. Of the communication only what is not hidden behind
# backward.
#
# ### The file
#
# It is a list of events. What one is, its `"ph"` says: `"B"` is a beginning, with `"name"`, `"ts"` (microseconds) and `"pid"`;
# `"E"` is the end of what was last begun under that `"pid"`; `"M"` names a pid; others are moments. Every tensor has a pid. In
# each step of a training it is negotiated once (`NEGOTIATE_ALLREDUCE`) and then reduced (`ALLREDUCE`). Within that lies
# its time on the network, whose name ends in `_ALLREDUCE` and depends on the library: `GLOO_ALLREDUCE`, `NCCL_ALLREDUCE`,
# `MPI_ALLREDUCE`. Tensors that were fused are on the network together, and each shows the same time. Two messages may be
# on it at the same time. A training also broadcasts; that does not count here.


# %% exercise="overlap_fraction" points=7
def overlap_fraction(trace: list[dict[str, Any]]) -> float:
    """How much of the all-reduces a training hides behind its backward passes, 0 to 1.

    trace: the events of a Horovod timeline, as json.load gives them, in any order; it stays as it is.

    A step's backward pass ends when the negotiation of its last tensor does. Returns the share of the
    time with an all-reduce on the network that lies before the end of its step's backward pass.
    """
    ### BEGIN SOLUTION
    open_spans, negotiated, network = {}, {}, {}
    for event in sorted(trace, key=lambda event: event.get("ts", -1)):
        stack = open_spans.setdefault(event.get("pid"), [])
        if event["ph"] == "B":
            stack.append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            name, start = stack.pop()
            spans = negotiated if name == "NEGOTIATE_ALLREDUCE" else network
            if name.endswith("_ALLREDUCE"):
                spans.setdefault(event["pid"], []).append((start, event["ts"]))
    ends = [max(span[1] for span in step) for step in zip(*negotiated.values(), strict=True)]
    busy = hidden = 0
    for backward_end, step in zip(ends, zip(*network.values(), strict=True), strict=True):
        reached = 0
        for start, end in sorted(step):
            start, reached = max(start, reached), max(end, reached)
            busy += reached - start
            hidden += max(0, min(reached, backward_end) - start)
    return hidden / busy
    ### END SOLUTION


# %% demo=true
# %%needs beside:horovod overlap_fraction
# Without the first step, in which buffers and connections are made.
first_step = {operation.tensor: operation for operation in reversed(timeline.operations)}.values()
warm = max(operation.end for operation in first_step) * 1e6
hidden = overlap_fraction([event for event in trace if event["ph"] == "M" or event["ts"] > warm])
print(f"{hidden:.0%} of the time on the network is hidden behind backward.")

# %% [markdown]
# It is hidden behind the backward of rank 1, which is the later one. What is not hidden is, above all, the last message: nothing
# is left to compute while it is on the network. (The share changes from run to run.)
#
# ## 10 Your script
#
# Now the six steps are yours. This is a script for one GPU, as a function, so that it can be checked. It can resume from a checkpoint,
# and it tests in the end; neither may be forgotten.


# %%
def train_alone(
    new_model: Callable[[], nn.Module],
    data: dict[str, Tensor],
    folder: Path,
    epochs: int,
    use_gpu: Callable[[int], torch.device],
) -> tuple[nn.Module, float]:
    """Train on one GPU, and go on where a checkpoint in `folder` ends; returns the model and its accuracy.

    data: "inputs" [n, 6], "labels" [n], and for the test "test_inputs" [m, 6], "test_labels" [m]. epochs: how many
    there are altogether. use_gpu(number): from then on this process uses this GPU of its node; returns the device.
    """
    device = use_gpu(0)
    model = new_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    first = 0
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]

    for epoch in range(first, epochs):
        for start in range(0, len(data["inputs"]), 4):
            inputs = data["inputs"][start : start + 4].to(device)
            labels = data["labels"][start : start + 4].to(device)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(state, checkpoint)

    model.eval()
    with torch.no_grad():
        predicted = model(data["test_inputs"].to(device)).argmax(1)
    right = (predicted == data["test_labels"].to(device)).sum().item()
    return model, right / len(data["test_labels"])


# %% exercise="six_steps" points=12
def six_steps(
    new_model: Callable[[], nn.Module],
    data: dict[str, Tensor],
    folder: Path,
    epochs: int,
    use_gpu: Callable[[int], torch.device],
) -> tuple[nn.Module, float]:
    """`train_alone`, made for Horovod: `horovodrun -np 2` runs it on every process.
    Import horovod.torch in here; nothing has been initialised.

    Rank r of p trains on the samples r, r + p, ... in this order, four a batch; n divides by 4p. The
    learning rate is scaled to p workers, without a warm-up. Test samples are dealt out alike, but m
    need not divide by p; all ranks return the accuracy over all.

    new_model draws other weights and buffers on every rank; those of rank 0 count. Only rank 0's folder
    holds a checkpoint, and only rank 0 writes one, after every epoch, in the form of train_alone. A
    training that goes on does so on all ranks.
    """
    ### BEGIN SOLUTION
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = use_gpu(hvd.local_rank())
    model = new_model().to(device)
    plain = torch.optim.SGD(model.parameters(), lr=0.05 * size, momentum=0.9, weight_decay=0.01)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    first = 0
    checkpoint = folder / "checkpoint.pt"
    if rank == 0 and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    first = hvd.broadcast_object(first, root_rank=0)
    if first > 0:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    all_inputs, all_labels = data["inputs"][rank::size], data["labels"][rank::size]
    for epoch in range(first, epochs):
        for start in range(0, len(all_inputs), 4):
            inputs = all_inputs[start : start + 4].to(device)
            labels = all_labels[start : start + 4].to(device)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, checkpoint)

    model.eval()
    with torch.no_grad():
        predicted = model(data["test_inputs"][rank::size].to(device)).argmax(1)
    right = (predicted == data["test_labels"][rank::size].to(device)).sum()
    right = hvd.allreduce(right, name="right", op=hvd.Sum).item()
    return model, right / len(data["test_labels"])
    ### END SOLUTION


# %% [markdown]
# Started on two processes here, on random samples of two classes:

# %% demo=true
# %%needs beside:horovod six_steps


def six_steps_here(folder: Path) -> tuple[float, float]:
    """The accuracy of six_steps on random samples of two classes, and a checksum of its weights."""
    generator = torch.Generator().manual_seed(0)
    inputs, test_inputs = torch.randn(64, 6, generator=generator), torch.randn(30, 6, generator=generator)
    samples = {
        "inputs": inputs,
        "labels": (inputs[:, 0] > 0).long(),
        "test_inputs": test_inputs,
        "test_labels": (test_inputs[:, 0] > 0).long(),
    }
    model, accuracy = six_steps(
        lambda: nn.Linear(6, 2), samples, folder, 5, lambda number: torch.device("cpu")
    )
    return accuracy, sum(parameter.sum().item() for parameter in model.parameters())


learned = launch(six_steps_here, Path(tempfile.mkdtemp()), ranks=2, on="horovod").results
for rank, (accuracy, checksum) in enumerate(learned):
    print(f"rank {rank}: accuracy {accuracy:.0%}, sum of the weights {checksum:.6f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod six_steps
assert learned[0] == learned[1]
assert learned[0][0] > 0.8

# %% [markdown]
# ## 11 Half the bytes
#
# `compression=hvd.Compression.fp16` makes 16-bit numbers of gradients before they are sent, and 32-bit numbers of the means.
# That is one word in the script. What does it save, and what does it cost?


# %% demo=true
# %%needs beside:horovod
def compressed_gradient(compression: str) -> Tensor:
    """The mean gradient of a batch that two ranks share, as one long vector. compression: "none" or "fp16"."""
    import horovod.torch as hvd

    model = new_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, compression),
    )
    images, labels = data.train[32 * hvd.rank() : 32 * hvd.rank() + 32]
    functional.cross_entropy(model(images), labels).backward()
    optimizer.synchronize()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


runs = {name: launch(compressed_gradient, name, ranks=2, on="horovod") for name in ("none", "fp16")}
exact, rounded = (run.results[0] for run in runs.values())
error = (rounded - exact).norm() / exact.norm()
for name, run in runs.items():
    print(f"{name:5} {run.traffic[0].sent:9,} bytes sent by a rank")
print(f"relative error of the gradient {error:.0e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert 2 * runs["fp16"].traffic[0].sent == runs["none"].traffic[0].sent
assert 1e-6 < error < 2e-3

# %% [markdown]
# Half the bytes, and an error far below the noise of a small batch's gradient. Two warnings: the sum is made in 16 bits,
# which end at 65,504, so many ranks with large gradients overflow; and numbers below $3 \cdot 10^{-8}$ become zero, so
# small gradients want a scaled loss. Unit 11 goes further.
#
# ## 12 Horovod beside DistributedDataParallel
#
# The third prediction. Both libraries train the same three layers on the same data, on two processes of this machine and over Gloo.
# Each training has a launch of its own, for Horovod's thread works on while the other library computes. Horovod is tried with
# two lengths of its cycle: 1 ms, its default, and 20 ms.


# %% demo=true
# %%needs beside:horovod
import statistics

from torch.nn.parallel import DistributedDataParallel


def forty_steps(library: str, width: int) -> tuple[Tensor, float]:
    """Train three layers: the weights, and the seconds of a step (the median without the first ten)."""
    torch.manual_seed(0)
    linear = [nn.Linear(width, width) for _ in range(3)]
    model: nn.Module = nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if library == "Horovod":
        import horovod.torch as hvd

        rank, size = hvd.rank(), hvd.size()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        rank, size = dist.get_rank(), dist.get_world_size()
        model = DistributedDataParallel(model)
    inputs, targets = torch.randn(2, 128, width, generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(40):
        start = time.perf_counter()
        optimizer.zero_grad()
        functional.mse_loss(model(inputs[rank::size]), targets[rank::size]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), statistics.median(seconds[10:])


step_ms, difference = {}, 0.0
for width in (64, 512):
    ddps, seconds = launch(forty_steps, "DDP", width, ranks=2, on="processes").results[0]
    step_ms[width, "DDP"] = seconds * 1e3
    for cycle in (1, 20):
        with patch.dict(os.environ, HOROVOD_CYCLE_TIME=str(cycle), HOROVOD_TIMELINE=""):
            horovods, seconds = launch(forty_steps, "Horovod", width, ranks=2, on="horovod").results[0]
        difference = max(difference, (horovods - ddps).abs().max().item())
        step_ms[width, cycle] = seconds * 1e3
        print(
            f"width {width:3}, cycle {cycle:2} ms: a step takes {step_ms[width, cycle]:5.1f} ms with Horovod, "
            f"{step_ms[width, 'DDP']:5.1f} ms with DDP, "
            f"{step_ms[width, cycle] / step_ms[width, 'DDP']:.2f} times as long"
        )
print(f"largest difference of a weight {difference:.0e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert difference < 1e-6
# A step cannot end before the next cycle, however busy the machine is.
assert step_ms[64, 20] > 15
first = ", ".join(
    f"{'Horovod' if step_ms[width, 1] < step_ms[width, 'DDP'] else 'DDP'} at width {width}"
    for width in (64, 512)
)
guesses.measured(are_the_weights_the_same="yes" if difference < 1e-6 else "no", which_is_faster=first)

# %% [markdown]
# The weights are the same. DDP knows its buckets beforehand, and sends one as soon as it is full. Horovod asks: a gradient
# waits for the next cycle and for the coordinator's answer. With cycles of 20 ms a step takes at least about as long as a
# cycle. With 1 ms, either may be faster. For its question
# Horovod gets freedom: any order of the tensors, another graph in each step.

# %% [markdown]
# ## 13 When a worker dies
#
# A training on a thousand GPUs loses one now and then. **Elastic Horovod** goes on with those that are left, and takes new
# ones in. It needs three things of a script: a **state** that says what has to be equal on all ranks, a `commit()` now
# and then, and a training function that can be called again:

# %% demo=true
from IPython.display import Markdown

Markdown(f"```python\n{(examples / 'elastic_torch.py').read_text()}```")

# %% [markdown]
# When a worker is lost, the others get an error out of their all-reduce. `hvd.elastic.run` catches it, puts back the state of the last
# commit, negotiates a new group, broadcasts the state from a rank that has it, and calls the function again. Where the
# workers can run, a script of yours says each time that Horovod asks:

# %% demo=true
Markdown(f"```bash\n{(examples / 'discover_hosts.sh').read_text()}```")

# %% demo=true
# %%needs beside:horovod
# As `horovodrun -np 2 --min-np 1 --host-discovery-script discover_hosts.sh python elastic_torch.py digits.npz`.
command = "--gloo --network-interface lo -np 2 --min-np 1 --host-discovery-script"
survived = subprocess.run(
    [
        *(sys.executable, *HOROVODRUN, *command.split()),
        *(str(examples / "discover_hosts.sh"), sys.executable),
        *(str(examples / "elastic_torch.py"), str(folder / "digits.npz")),
    ],
    env=os.environ | ONE_CORE,
    capture_output=True,
    text=True,
    timeout=300,
)
told = [line.partition(":")[2] for line in survived.stdout.splitlines() if "<stdout>" in line]
print("\n".join(told))

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:horovod
assert survived.returncode == 0
assert any("SIGKILL" in line for line in told)
assert "rank 0 of 1 begins at step 20" in "\n".join(told)
assert "ends after step 40" in told[-1]

# %% [markdown]
# Two workers begin. One of them is killed in step 26 by SIGKILL, which no program can catch. The other goes
# on at step 20, the last commit, alone; six steps are done again. The learning rate is set anew for one worker. On this
# machine the two "hosts" are two names of one. Compare unit 03, where a job was restarted from a checkpoint on disk: here nothing was
# started again, and nothing was read from a disk.
#
# ## 14 An open task
#
# Which threshold and which cycle time are best? That depends on the network, on the sizes of the gradients, and on when backward
# has them. Horovod can look for them while it trains (`HOROVOD_AUTOTUNE=1`). Here is a model of Horovod's communication, which says what a choice costs:


# %%
def step_seconds(
    sizes: list[int], ready: list[float], ranks: int, link: Link, threshold: int, cycle_seconds: float
) -> float:
    """Seconds from the beginning of backward until the last gradient is averaged, in a model of Horovod.

    sizes: bytes of the gradients. ready: seconds after which each is complete, ascending. link: between two of
    the ranks, which stand in a ring. The ranks negotiate cycle_seconds after the beginning, and then
    cycle_seconds after they last did or when those messages are through, whichever is later. That takes two
    latencies; then what is ready everywhere is sent as plan_fusion says, one message after another. Each takes a
    ring all-reduce, and the copies into the fusion buffer and out of it take as long as its bytes do at 10 GB/s;
    the copy of a message goes on while the one before it is on the network.
    """
    start, sent, done = 0.0, 0, 0.0
    while sent < len(sizes):
        start = max(start + cycle_seconds, done)
        copied = network = start + 2 * link.latency
        complete = sum(moment <= start for moment in ready)
        for message in plan_fusion(sizes[sent:complete], ["float32"] * (complete - sent), threshold):
            nbytes = sum(sizes[sent + position] for position in message)
            copied += nbytes / 10e9
            ring = 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)
            network = max(copied, network) + ring
            done = network + nbytes / 10e9
        sent = complete
    return done


# %% exercise="tune_fusion" points=6
def tune_fusion(sizes: list[int], ready: list[float], ranks: int, link: Link) -> tuple[int, float]:
    """A fusion threshold, in bytes, and a cycle time, in seconds, for a model on a cluster.

    The arguments are those of step_seconds, which says what a choice costs. The threshold is an int of
    at least 1, the cycle time a float of at least 0.1 ms. The answer has to come within a few seconds.

    Points, for each of which three networks have to agree: for a third of the time that the best choice
    known saves against Horovod's defaults (128 MiB, 1 ms), for at most 10 %, and for at most 5 % more
    time than with that choice.
    """
    ### BEGIN SOLUTION
    thresholds = [sum(sizes) // parts for parts in range(1, 25)]
    # A hair longer than the part, so that rounding leaves no gradient to one more cycle.
    cycles = {max(1e-4, ready[-1] * (1 + 1e-9) / parts) for parts in range(1, 41)}
    choices = [(threshold, cycle) for threshold in thresholds for cycle in cycles]
    return min(choices, key=lambda choice: step_seconds(sizes, ready, ranks, link, *choice))
    ### END SOLUTION


# %% [markdown]
# ResNet-50 again, whose backward takes 200 ms on each of 64 GPUs, with 25 Gbit/s and a latency of 200 µs:

# %% demo=true
# %%needs plan_fusion tune_fusion
ready = [0.2 * (place + 1) / len(sizes) for place in range(len(sizes))]
link = Link(latency=200e-6, bandwidth=25e9 / 8)
choices = {
    "no fusion, 1 ms": (1, 1e-3),
    "Horovod's defaults: 128 MiB, 1 ms": (2**27, 1e-3),
    "everything at the end: 128 MiB, 200 ms": (2**27, 0.2),
    "yours": tune_fusion(sizes, ready, 64, link),
}
took = {name: step_seconds(sizes, ready, 64, link, *choice) * 1e3 for name, choice in choices.items()}
for name, milliseconds in took.items():
    print(f"{name:38} {milliseconds:4.0f} ms, {milliseconds - 200:3.0f} ms of them after backward")

# %% demo=true jupyter={"source_hidden": true}
# %%holds plan_fusion tune_fusion
defaults = took["Horovod's defaults: 128 MiB, 1 ms"]
assert took["no fusion, 1 ms"] > 10 * defaults
assert 1.2 * defaults < took["everything at the end: 128 MiB, 200 ms"]
assert took["yours"] < 1.05 * defaults

# %% [markdown]
# The defaults are not bad: while one message is on the network, the next gradients gather, so messages grow by themselves where the
# network is slow. A better choice can only shorten what is left after backward.

# %% [markdown]
# ## 15 Now on nodes
#
# `horovodrun` reaches other nodes by ssh: `horovodrun -np 8 -H node1:4,node2:4 python train.py`. Many clusters do not allow
# that. With MPI built in, `mpirun -np 8 python train.py` or `srun --mpi=pmix python train.py` (PMIx: how Slurm tells MPI's ranks of each other) start the ranks instead. With
# Gloo, this course's batch script gives `horovodrun` an `ssh` that is in truth a step of the job (`srun --overlap`):
#
# ```bash
# course slurm render train_horovod --nodes 2 >train.sbatch
# course slurm submit train.sbatch
# ```
#
# On GPUs build Horovod with `HOROVOD_GPU_OPERATIONS=NCCL`; on AMD's GPUs the same NCCL calls go to RCCL. On a site with containers take an
# image that has Horovod built against the site's network (unit 03). Set `HOROVOD_GLOO_IFACE`, `NCCL_SOCKET_IFNAME` or
# `--network-interface` where nodes have several networks, and give each process its share of the cores (`OMP_NUM_THREADS`).
#
# ## 16 What goes wrong in practice
#
# | What you see | What happened | What to do |
# |---|---|---|
# | All processes are on GPU 0 | Step 2 is missing, or comes after something has used a GPU | Set the device right after `hvd.init()` |
# | Hangs, no message | A rank lacks a tensor; over Gloo 0.28.1 says nothing | Record a timeline: a negotiation that never ends has marks of the ranks that were there |
# | Hangs at the end of an epoch | Shards of different length | Equal numbers of steps, or `hvd.join()` on the ranks that have finished |
# | The loss starts well and then jumps | Rate scaled, no warm-up; or the warm-up and the optimizer have two different rates | One number, from which both are computed |
# | Replicas differ | Broadcast before the optimizer existed, or before the checkpoint was read | Model, optimizer, wrapper, checkpoint, then broadcast |
# | A resumed training jumps | The checkpoint was loaded before `hvd.DistributedOptimizer` made a new optimizer, without a state | Wrap, then load |
# | A torn or mixed checkpoint | All ranks write the same file | `if hvd.rank() == 0:`, but never around a collective |
# | "Gradients were computed more than backward_passes_per_step times" | Accumulation that Horovod was not told of | `backward_passes_per_step=n` |
# | Clipping has no effect, or clips local gradients | Clipped before the sums are there | `optimizer.synchronize()`, clip, `with optimizer.skip_synchronize(): optimizer.step()` |
#
# ### What the lecture concludes
#
# | It says of Horovod | What you have seen of it |
# |---|---|
# | simple to implement | six steps; but where one is forgotten, an error seldom says so (section 16) |
# | suitable for large scale | a worker receives less than twice the gradient, however many there are (section 1); warm-up (4); elastic workers (13) |
# | works with several frameworks | one tutorial in PyTorch and Keras, which differ from their scripts for one GPU in the same places (5) |
# | ring all-reduce | and what makes it fast for many small tensors: fusion (6) and negotiation (7) |
# | timeline for profiling | the straggler and the fusion buffer (9) |
#
# ## 17 Where it comes from
#
# <details><summary>More: the papers</summary>
#
# - A. Sergeev, M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*, 2018
#   ([arXiv:1802.05799](https://arxiv.org/abs/1802.05799)): about half of the GPUs' time lost by standard distributed TensorFlow at 128
#   GPUs, 88 % scaling efficiency with Horovod; fusion up to 65 % faster. The 512 GPUs (90 %, 90 %, 68 %) are in
#   [Horovod's documentation](https://horovod.readthedocs.io/en/stable/benchmarks_include.html), and so are the
#   [phases of a timeline](https://horovod.readthedocs.io/en/stable/timeline_include.html).
# - A. Gibiansky, *Bringing HPC techniques to deep learning*, Baidu Research, 2017: the ring all-reduce in a deep-learning framework.
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel and Distributed
#   Computing 69, 117-124, 2009: the ring, and that no all-reduce sends less.
# - P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017
#   ([arXiv:1706.02677](https://arxiv.org/abs/1706.02677)): linear scaling and gradual warm-up; batches of 8,192 on 256 GPUs without
#   loss of accuracy.
# - The speeds of one P100 in section 1: TensorFlow's
#   [benchmarks](https://github.com/tensorflow/docs/blob/master/site/en/r1/guide/performance/benchmarks.md) of May 2017, synthetic data.
#
# </details>
#
# ### Where Horovod stands
#
# The lecture has Horovod in a table of frameworks by what is split and by how workers wait for each other:
#
# | Framework | Parallelism | Workers |
# |---|---|---|
# | DistBelief (Dean et al. 2012) | model + data | asynchronous |
# | FireCaffe (Iandola et al. 2016) | data | synchronous |
# | Petuum (Xing et al. 2015) | model + data | bounded asynchronous |
# | MXNet (Chen et al. 2015) | model + data | bounded asynchronous |
# | TensorFlow (Abadi et al. 2016) | model + data | bounded asynchronous |
# | Horovod (Sergeev and Del Balso 2018) | model + data | synchronous |
# | PyTorch DDP (Li et al. 2020) | model + data | synchronous |
# | DeepSpeed (Rasley et al. 2020) | model + data | synchronous |
#
# "Bounded asynchronous": workers may run ahead of each other, but only so far (unit 08). What Horovod and DDP themselves do
# is data parallelism; they do not split a model. Units 05, 06, 09, 12 and 13 are about what they do not do: splitting the
# model, or its state.
#
# <details><summary>More: how far each framework had been taken</summary>
#
# A second lecture's table, after Nichols et al. ([arXiv:2111.04949](https://arxiv.org/abs/2111.04949)), has DDP as "data", and
# says how far each framework had been taken:
#
# | Framework | Parallelism | Largest number of accelerators | Largest network (parameters) |
# |---|---|---|---|
# | FlexFlow | hybrid | 64 | 24 million |
# | PipeDream | between layers | 16 | 138 million |
# | PyTorch DDP | data | 256 | 345 million |
# | GPipe | between layers | 8 | 557 million |
# | Mesh-TensorFlow | within layers | 512 (TPU cores) | 4.9 billion |
# | Megatron-LM | within layers | 512 | 8.3 billion |
# | torchgpipe | between layers | 8 | 15.8 billion |
# | KARMA | data | 2,048 | 17 billion |
# | LBANN | data | 3,072 (CPUs) | 78.6 billion |
# | ZeRO | data | 400 | 100 billion |
#
# </details>

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
