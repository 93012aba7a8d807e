# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Data parallelism: one model on many workers
#
# Every worker holds a whole copy of the model and a part of the data. After each backward pass the workers average
# their gradients, so that all copies take the same step. Nothing else is shared. It is the first kind of parallelism
# to try, and the one that all others are combined with.
#
# After this unit you can
#
# - derive which average of the workers' gradients is the gradient of the whole batch, and say when the plain mean is
#   not;
# - deal out a data set so that every sample is seen once an epoch, and differently in every epoch;
# - turn a training script for one process into one for many, with your own parts and with PyTorch's;
# - write a small `DistributedDataParallel` with hooks and buckets, and read from a timeline what it hides;
# - prove that many workers train the model that one would have trained.

# %% tags=["parameters"]
ranks = 4
on = "simulated"
dataset = "digits"
epochs = 3

# %%
import os
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from course_lib import Cluster, Link, launch, per_rank
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. The folded cells below check the text's numbers against what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## The picture
#
# Each worker is a rank with a device of its own. One step with three workers, whose parts of the batch need not be equally
# large:

# %% demo=true
from course_lib.figures.pictures import averaging_picture, weighted_average_picture

averaging_picture((8, 8, 5))

# %% [markdown]
# 1. All workers hold the same weights. Each copy of the model is called a **replica**.
# 2. Each runs forward and backward on its own samples, the **shard** of the batch that it was dealt, and has a
#    gradient of its own.
# 3. The gradients are averaged over the workers: an **all-reduce**, after which all hold the same average.
# 4. Each takes the same optimizer step from the same weights with the same gradient. So the weights are the same
#    again, and are never sent.
#
# Step 3 is a collective computation and a synchronization (unit 00), since nobody has the average before the last worker
# has come. Data movement comes once, when all workers get the same weights (section 3).
#
# **Predict, before you measure.** Write your guesses into the cell below.
#
# 1. ResNet-50 has 25,557,032 parameters, so its gradients take 97.5 MiB in 32 bits. Four workers average them with an
#    all-reduce that sends no more than it must. How much does each worker send in a step? How much with 1,000 workers?
#    (Section 4)
# 2. Every worker now computes on twice as many samples. How much does it send then? (Section 4)
# 3. Gradients can be sent while backward is still computing others. Does that go faster in many small messages or in
#    few large ones? (Section 5)

# %% demo=true
guesses = predict(
    "02_data_parallel",
    mib_sent_by_each_of_4_workers=None,
    mib_sent_by_each_of_1000_workers=None,
    times_as_much_with_twice_the_samples=None,
    many_small_or_few_large_messages=None,
)

# %% [markdown]
# ## 1 The average that is right
#
# A batch of $n$ samples has the loss $L = \frac1n \sum_{i=1}^{n} \ell_i$. Deal the samples out to $p$ workers: worker $k$ gets
# the set $S_k$ of $m_k$ samples, $\sum_k m_k = n$. It computes the gradient of its own mean loss,
#
# $$ g_k = \nabla \frac{1}{m_k} \sum_{i \in S_k} \ell_i . $$
#
# The gradients of single samples are not kept: you have only the $g_k$ and the $m_k$. How do you make $\nabla L$ from them?
#
# A worker without samples ($m_k = 0$) contributes nothing. Its mean loss is $0/0$, which is NaN. (PyTorch's gradient is zero
# for an empty batch, but NaN where a mask, `(losses * mask).sum() / mask.sum()`, leaves no sample.) But do not replace NaNs by
# zeros: a NaN of a worker that has samples is a fault that must stay visible.


# %% exercise="combine_gradients" points=4
def combine_gradients(gradients: list[Tensor], counts: list[int]) -> Tensor:
    """The gradient of the mean loss over all samples, from the workers' gradients.

    gradients: for each worker the gradient of the mean loss over its samples; all of one shape and
        dtype.
    counts: how many samples each worker had; at least one had some. A worker without samples has a
        gradient of NaN, which counts for nothing; a NaN of another worker stays visible.
    Returns a new tensor of that shape and dtype; gradients and counts stay as they are.
    """
    ### BEGIN SOLUTION
    total = sum(counts)
    pairs = zip(gradients, counts, strict=True)
    return sum(count / total * gradient for gradient, count in pairs if count > 0)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: the formula</summary>
#
# Since $m_k \, g_k = \sum_{i \in S_k} \nabla \ell_i$, the sum over all samples can be taken worker by worker:
#
# $$ \nabla L = \frac1n \sum_k \sum_{i \in S_k} \nabla \ell_i = \sum_k \frac{m_k}{n} \, g_k . $$
#
# If all shards are equally large, $m_k / n = 1/p$, and this is the plain mean. If not, the plain mean is the gradient of
# another loss, in which a sample of a small shard counts more than one of a large shard. The derivation uses one property of
# the loss: it is a mean of terms, one a sample. A batch norm breaks that, since it makes each $\ell_i$ depend on the other
# samples of its shard.
#
# </details>

# %% demo=true
# %%needs combine_gradients
weighted_average_picture((8, 8, 5))

# %% [markdown]
# With a real model: 32 images on three workers that get 20, 8 and 4 of them.

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


# %% demo=true
# %%needs combine_gradients
model = new_model()
whole = flat_gradient(model, 0, 32)
parts = [flat_gradient(model, 0, 20), flat_gradient(model, 20, 28), flat_gradient(model, 28, 32)]
weighted = combine_gradients(parts, [20, 8, 4])
plain = sum(parts) / len(parts)
for name, combined in [("weights m_k / n", weighted), ("plain mean", plain)]:
    print(f"{name:16} relative error {(combined - whole).norm() / whole.norm():.1e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds combine_gradients
# The sentence below is about digits.
assert (weighted - whole).norm() < 1e-5 * whole.norm()
if dataset == "digits":
    assert 0.28 < (plain - whole).norm() / whole.norm() < 0.39

# %% [markdown]
# The weighted sum differs by rounding only. The plain mean differs by about a third, and raises no error. Training would go on,
# a little worse.
#
# ## 2 Who gets which sample
#
# Samples can be dealt out in several ways. One rank can read them and send each other rank its part. A worker that is free can
# fetch the next batch (unit 08). Or all ranks can read everything, and each takes its own part, which is the usual way.
# PyTorch's `DistributedSampler` deals out the samples of an epoch in four moves, without any communication:
#
# - **shuffle**: all ranks put the samples into the same random order, from the same seed;
# - **pad**: if the number of samples does not divide by the number of ranks, some are given out twice, so that all ranks get
#   equally many (with `drop_last=True` some are left out instead);
# - **partition**: each rank takes its part of this order;
# - **reshuffle**: the training loop calls `sampler.set_epoch(epoch)` before each epoch. Without it every epoch deals out the
#   samples in the same way.


# %% demo=true
def dealt(epoch: int) -> list[list[int]]:
    """What each of 4 ranks gets of 10 samples."""
    samplers = [DistributedSampler(range(10), num_replicas=4, rank=rank, seed=1) for rank in range(4)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


for epoch in (0, 1):
    print(f"epoch {epoch}: {dealt(epoch)}")

# %% demo=true jupyter={"source_hidden": true}
# Twelve places for ten samples: all come at least once, two of them twice; and the epochs differ.
for epoch in (0, 1):
    places = sorted(sample for part in dealt(epoch) for sample in part)
    assert len(places) == 12
    assert set(places) == set(range(10))
    assert max(places.count(sample) for sample in range(10)) == 2
assert dealt(0) != dealt(1)

# %% [markdown]
# Ten samples, twelve places: two samples come twice. For training that hardly matters. For validation it makes the accuracy
# slightly wrong, and different for another number of ranks. The version that you write deals every sample out once. So shards
# may differ by one, and the training loop has to cope with it (section 8).


# %% exercise="shard_indices" points=6
def shard_indices(length: int, epoch: int, seed: int) -> Tensor:
    """This rank's part of the samples 0 .. length - 1 in this epoch.

    Returns a 1-D int64 tensor of indices, in random order. Over all ranks every index is dealt once,
    and the ranks' sizes differ by at most one; some are 0 if there are fewer samples than ranks.
    Another epoch or seed gives another order, the same pair always the same.

    No communication. Torch's random states, which dropout uses, stay as they are.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    permutation = torch.randperm(length, generator=generator)
    return permutation[dist.get_rank() :: dist.get_world_size()]
    ### END SOLUTION


# %% [markdown]
# Three epochs of 26 samples, each coloured by the rank that gets it:

# %% demo=true jupyter={"source_hidden": true}
# %%needs shard_indices
from course_lib.figures.style import new_figure, rank_colour

figure, axes = new_figure(
    alt="A row of 26 squares for each of three epochs, coloured by rank: every row has each sample once, and no "
    "two rows are alike.",
    height=2.2,
)
for epoch in range(3):
    for rank, part in enumerate(launch(shard_indices, 26, epoch, 0, ranks=ranks, on=on).results):
        colour = rank_colour(rank)
        label = f"rank {rank}" if epoch == 0 else None
        axes.scatter(part, [epoch] * len(part), marker="s", s=150, color=colour, label=label)
        for index in part.tolist():
            axes.text(index, epoch, str(rank), ha="center", va="center", fontsize=8)
axes.set(xlabel="sample", ylabel="epoch", yticks=range(3), ylim=(2.6, -0.6))
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=ranks, frameon=False)
figure

# %% [markdown]
# ## 3 The same start
#
# Equal weights and equal updates give equal weights, so replicas stay equal. The updates are equal if the gradients are. The
# weights have to be made equal once, at the start.
#
# Weights drawn from the same seed are equal only as long as no rank has drawn one random number more, or has loaded a
# checkpoint that the others do not see. Step by step, on ranks that stay (unit 00, section 5):

# %% demo=true
# %ranks start $ranks --on $on

# %% demo=true
# %%ranks
torch.manual_seed(0)
first = nn.Linear(2, 1)

# %% demo=true
# %%rank 1
torch.rand(1)

# %% demo=true
# %%ranks
second = nn.Linear(2, 1)
first.weight.tolist(), second.weight.tolist()

# %% demo=true jupyter={"source_hidden": true}
from course_lib.notebook.staying_magics import present

drawn = [(present()[rank]["first"].weight, present()[rank]["second"].weight) for rank in range(ranks)]
assert all(torch.equal(own, drawn[0][0]) for own, _ in drawn)
assert [torch.equal(own, drawn[0][1]) for _, own in drawn] == [rank != 1 for rank in range(ranks)]

# %% demo=true
# %ranks stop

# %% [markdown]
# The first layer is the same on all ranks, the second one is not: rank 1 was a number ahead. A **broadcast** from one rank always makes them equal. It takes almost as long as a
# step (section 5), but it happens once in a training. Buffers are sent too: the running statistics of a batch norm are not
# parameters, yet a replica with other statistics is another model.
#
# A broadcast has no gradient. If you hand it a parameter as it is, autograd records it, and a later backward warns of an
# operation that it cannot differentiate. So communicate where autograd does not record.
#
# A tensor is **contiguous** if its numbers lie in memory in the order of its indices. A transposed one is not: `w.t()` only
# reads the memory of `w` in another order. A collective needs contiguous tensors. Of others `contiguous()`, `flatten()` and
# `torch.cat` make a contiguous copy, and what arrives in a copy has to be copied back.


# %% exercise="broadcast_parameters" points=5
def broadcast_parameters(model: nn.Module, src: int) -> None:
    """Give every rank's model the parameters and buffers that rank src's model has.

    Called on every rank of the default group, with models of one architecture. All parameters (frozen
    ones too) and all buffers (also those that the state dict leaves out) are overwritten in place. Some
    may be transposed. Autograd must not record it.
    Communication: each byte once, by dist.broadcast, and nothing else.
    """
    ### BEGIN SOLUTION
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.detach(), src)
    ### END SOLUTION


# %% demo=true
# %%needs broadcast_parameters
def first_weights(model: nn.Module) -> tuple[float, float]:
    """The sum of this rank's weights before and after the broadcast."""
    before = sum(parameter.sum().item() for parameter in model.parameters())
    broadcast_parameters(model, src=0)
    return before, sum(parameter.sum().item() for parameter in model.parameters())


models = per_rank(new_model(seed) for seed in range(ranks))
for rank, (before, after) in enumerate(launch(first_weights, models, ranks=ranks, on=on).results):
    print(f"rank {rank}: sum of the weights {before:+.6f} before, {after:+.6f} after")

# %% [markdown]
# ## 4 The same gradient
#
# Now the average itself. From here on shards are equally large, or the loss is scaled so that the plain mean over ranks is
# right (section 8).
#
# Two things make this more than a loop over `model.parameters()`.
#
# **Every rank must make the same calls.** A collective is complete when all ranks of the group have made it. Suppose that a
# rank skips one, because a parameter got no gradient in its forward pass. Then the others wait for ever, or their call for one
# parameter is paired with its call for the next. So a rank sends zeros for what it lacks.
#
# **Every call costs latency.** A message takes a time $\alpha$ however short it is, the **latency**, and a time $\beta$ for
# each of its bytes. Now take a tensor of $b$ bytes on each of $p$ ranks. In a **ring all-reduce** the ranks stand in a ring,
# and the tensor is cut into $p$ chunks of $b/p$ bytes. In every step each rank sends one chunk to the next rank. After $p - 1$
# steps each rank has the complete sum of one chunk, and after $p - 1$ more all ranks have the sums of all chunks. (Unit 07
# builds it.) So each rank sends $2(p-1)$ messages one after another, which takes
#
# $$ 2(p-1)\Big(\alpha + \frac{b}{p}\,\beta\Big) = 2(p-1)\,\alpha + 2\,\frac{p-1}{p}\,b\,\beta . $$
#
# The first part does not depend on $b$: a small tensor pays it in full. So few calls are better than many.


# %% exercise="average_gradients" points=6
def average_gradients(model: nn.Module) -> None:
    """Replace every gradient of the model by its mean over the ranks of the default group.

    Called on every rank after backward, also on a single one. The mean is written into the .grad that
    is there. A .grad that is None, on any rank, counts as zero and holds the mean afterwards. Frozen
    parameters are left alone. All gradients have one dtype; they need not be contiguous.

    Communication: one all_reduce of all gradients together.
    """
    ### BEGIN SOLUTION
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    means = flat.split([parameter.numel() for parameter in parameters])
    for parameter, mean in zip(parameters, means, strict=True):
        parameter.grad.copy_(mean.view_as(parameter))
    ### END SOLUTION


# %% [markdown]
# The first prediction, measured on simulated ranks: what one rank sends for each byte of gradients.


# %% demo=true
# %%needs average_gradients
def backward_and_average(model: nn.Module, samples: int = 8) -> int:
    """One backward pass over this many samples and one averaging; returns the bytes of the gradients."""
    images, labels = data.train[:samples]
    functional.cross_entropy(model(images), labels).backward()
    average_gradients(model)
    return sum(parameter.grad.nbytes for parameter in model.parameters())


ratios = {}
for size in (2, 4, 8, 16):
    run = launch(backward_and_average, new_model(), ranks=size)
    sent, gradients = run.traffic[0].sent, run.results[0]
    ratios[size] = sent / gradients
    print(f"{size:4} ranks: {sent:9,} bytes sent for {gradients:,} of gradients: x {ratios[size]:.3f}")

print()
resnet_bytes = 4 * 25_557_032
for size in (4, 1000):
    sent = 2 * (size - 1) / size * resnet_bytes
    latency = 2 * (size - 1) * 20e-6
    print(f"ResNet-50 on {size:5,} ranks: {sent / 2**20:.0f} MiB, {latency * 1e3:5.2f} ms of latency")

# %% demo=true jupyter={"source_hidden": true}
# %%holds average_gradients
# The numbers in the text around this cell.
from course_lib.models import parameter_count
from course_lib.torchvision_compat import import_torchvision

with torch.device("meta"):
    assert 4 * parameter_count(import_torchvision().models.resnet50()) == resnet_bytes
assert round(resnet_bytes / 2**20, 1) == 97.5
assert all(abs(ratio - 2 * (size - 1) / size) < 1e-3 for size, ratio in ratios.items())
assert round(2 * 3 / 4 * resnet_bytes / 2**20) == 146
assert round(2 * 999 / 1000 * resnet_bytes / 2**20) == 195
assert round(2 * 999 * 20e-6 * 1e3) == 40
guesses.measured(
    mib_sent_by_each_of_4_workers=2 * 3 / 4 * resnet_bytes / 2**20,
    mib_sent_by_each_of_1000_workers=2 * 999 / 1000 * resnet_bytes / 2**20,
)

# %% [markdown]
# A worker sends $2\frac{p-1}{p}$ times its gradients: 146 MiB for ResNet-50 on 4 workers, 195 MiB on 1,000. That is never more
# than twice its gradients, however many workers there are, and no all-reduce sends less (Patarasuk and Yuan 2009). So the bytes
# are no obstacle to many workers.
#
# The latency is an obstacle. The ring has $2(p-1)$ messages one after another, and with 20 µs each that is 40 ms on 1,000
# workers. Unit 07 has algorithms in which the number of messages grows with $\log_2 p$ instead.
#
# The second prediction. What does a worker send that computes on twice as many samples?

# %% demo=true
# %%needs average_gradients
for samples in (8, 16):
    run = launch(backward_and_average, new_model(), samples, ranks=ranks)
    print(f"{samples:2} samples a worker: {run.traffic[0].sent:,} bytes")

# %% demo=true jupyter={"source_hidden": true}
# %%holds average_gradients
# The bytes do not depend on the batch.
half = launch(backward_and_average, new_model(), 8, ranks=ranks)
assert run.traffic[0].sent == half.traffic[0].sent
guesses.measured(times_as_much_with_twice_the_samples=run.traffic[0].sent / half.traffic[0].sent)

# %% [markdown]
# It sends the same: there are as many gradients as parameters, whatever the batch. But it computes twice as long. So with
# larger batches a worker spends a smaller share of its time on communication. Section 9 says what large batches cost.
#
# The simulator also shows how much one call saves in place of many. Here are sixteen layers, one rank on each node, and a
# latency of 20 µs. The function that calls once for every parameter only sums; it does not divide.

# %% demo=true
# %%needs average_gradients
network = Cluster(nodes=ranks, inter_node=Link(latency=20e-6, bandwidth=2.5e9))


def one_call_a_parameter(model: nn.Module) -> None:
    """Only the communication: one all_reduce for each gradient."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def averaged_by(average, layers: int) -> None:
    """Layers with gradients, averaged by the function given."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    average(model)


runs = {
    f"{name}, {average.__name__}": launch(averaged_by, average, 16, cluster=network)
    for name, average in [("many calls", one_call_a_parameter), ("one call", average_gradients)]
}
for name, run in runs.items():
    print(f"{name:33} {run.traffic[0].calls['all_reduce']:3} calls {run.seconds * 1e3:6.3f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds average_gradients
# Sixteen layers have 32 parameters: as many calls, and the difference is 31 times the latency of a call.
many, one = runs.values()
assert (many.traffic[0].calls["all_reduce"], one.traffic[0].calls["all_reduce"]) == (32, 1)
assert abs(many.traffic[0].sent / one.traffic[0].sent - 1) < 0.01
assert abs((many.seconds - one.seconds) - 31 * 2 * (ranks - 1) * 20e-6) < 0.02 * many.seconds

# %% [markdown]
# Both send the same bytes, but many calls pay the latency many times. Here `average_gradients` runs on real processes. They
# talk over Gloo, PyTorch's library for communication between CPUs (unit 00):

# %% demo=true
# %%needs average_gradients
run = launch(backward_and_average, new_model(), ranks=ranks, on="processes")
run.traffic

# %% [markdown]
# ## 5 The same gradient, while backward still computes
#
# Backward works from the last layer to the first. When it has the last layer's gradient, that gradient is final, and can be
# sent while the layers before it are still being computed. The picture shows the step of a network with four equal parts, once
# with all communication after backward, once with each part sent as soon as it is complete.

# %% demo=true
from course_lib.figures.pictures import bucket_picture

bucket_picture(backward=[1.0, 1.0, 1.0, 1.0], communication=[0.8, 0.8, 0.8, 0.8])

# %% [markdown]
# PyTorch's `DistributedDataParallel` does this by three means: buckets, hooks and asynchronous calls. You build a small one
# from them in three steps.
#
# ### Which gradients travel together
#
# One message a parameter would pay the latency many times. One message for all parameters could not start before the end of
# backward. So gradients are gathered in **buckets** of a bounded size. The gradients that backward completes first share the
# first bucket, so that it can be sent as early as possible.


# %% exercise="make_buckets" points=3
def make_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The model's trainable parameters in buckets, in the order in which the buckets will be sent.

    Over all buckets, the parameters come in the reverse order of model.parameters(); one that several
    layers share comes once. A bucket is closed before the parameter that would take it above
    bucket_bytes, so a parameter larger than that has a bucket to itself. No bucket is empty; without
    trainable parameters the list is.
    """
    ### BEGIN SOLUTION
    buckets = []
    room = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        if not buckets or parameter.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
    ### END SOLUTION


# %% demo=true
# %%needs make_buckets
chain_of_eight = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
for kib in (2, 257, 514, 2056):
    sizes = [sum(p.nbytes for p in bucket) / 1024 for bucket in make_buckets(chain_of_eight, kib * 1024)]
    print(
        f"at most {kib:4} KiB: {len(sizes):2} bucket{'s' * (len(sizes) > 1)} of "
        + ", ".join(f"{size:g}" for size in sizes)
    )

# %% [markdown]
# ### When a bucket sets off
#
# - **Hooks.** `parameter.register_post_accumulate_grad_hook(hook)` makes autograd call `hook(parameter)` during
#   backward, as soon as `parameter.grad` is complete.
# - **Asynchronous calls.** `handle = dist.all_reduce(flat, async_op=True)` returns at once. Until `handle.wait()` has
#   returned, `flat` belongs to the communication: do not read it, do not write it.
#
# First for one bucket alone.


# %% exercise="Bucket" points=6
class Bucket:
    """Averages the gradients of some parameters over the ranks by one all_reduce, begun in backward.

    bucket = Bucket(parameters)     # once, on every rank, with the same parameters in the same order
    loss.backward()                 # starts the all_reduce when the last of their gradients is complete
    bucket.finish()                 # waits; now the .grad of each is the mean over ranks

    Every backward completes all of these gradients, in an order that may differ between steps and
    ranks. A model may have several Buckets.

    Communication: one asynchronous all_reduce a step, for which backward never waits.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        ### BEGIN SOLUTION
        self.parameters = parameters
        self.missing = len(parameters)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_ready)
        ### END SOLUTION

    # The next one is a suggestion: change it as you like.

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        """The hook: this parameter's gradient is complete."""
        ### BEGIN SOLUTION
        self.missing -= 1
        if self.missing == 0:
            self.flat = torch.cat([p.grad.flatten() for p in self.parameters])
            self.handle = dist.all_reduce(self.flat, async_op=True)
        ### END SOLUTION

    def finish(self) -> None:
        """Complete the averaging: call it after backward."""
        ### BEGIN SOLUTION
        self.handle.wait()
        means = (self.flat / dist.get_world_size()).split([p.numel() for p in self.parameters])
        for parameter, mean in zip(self.parameters, means, strict=True):
            parameter.grad.copy_(mean.view_as(parameter))
        self.missing = len(self.parameters)
        ### END SOLUTION


# %% [markdown]
# Four layers, of which the last two are in a bucket. The cell prints when the all-reduce is called:


# %% demo=true
# %%needs Bucket
from course_lib import mark


def with_one_bucket(width: int) -> None:
    """One step in which the last two of four layers are averaged."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    bucket = Bucket([*model[2].parameters(), *model[3].parameters()])
    loss = model(torch.ones(64, width)).sum()
    mark("backward begins")
    loss.backward()
    mark("backward ends")
    bucket.finish()


one_bucket = launch(
    with_one_bucket,
    256,
    cluster=Cluster(
        nodes=2, inter_node=Link(latency=20e-6, bandwidth=2.5e9), flops=1e11, memory_bandwidth=1e11
    ),
)
[sent] = [event for event in one_bucket.events if event.op == "all_reduce" and event.rank == 0]
[begun] = [event for event in one_bucket.events if event.op == "backward begins" and event.rank == 0]
[ended] = [event for event in one_bucket.events if event.op == "backward ends" and event.rank == 0]
print(f"backward begins at {begun.start * 1e3:.2f} ms, all_reduce is called at {sent.start * 1e3:.2f} ms")
print(f"backward ends at {ended.start * 1e3:.2f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds Bucket
# After about half of backward.
assert 0.45 < (sent.start - begun.start) / (ended.start - begun.start) < 0.6

# %% [markdown]
# It is called when about half of backward is done: the two layers in the bucket are the first that backward comes to.
#
# ### All buckets of a model
#
# Several buckets raise two problems. The order of the calls must be the same on every rank, but hooks are called in the order
# of the rank's own graph. And no hook is called for a parameter that the forward pass did not use. So buckets start strictly in
# order, bucket $i + 1$ only after bucket $i$, and `finish()` starts those that are left. As before, backward never waits
# for communication. Frozen parameters are left alone.
#
# Where gradients are accumulated over micro-batches (unit 01), only the last backward pass has to communicate. PyTorch's `with
# ddp.no_sync():` says so.


# %% exercise="BucketedDDP" points=10
class BucketedDDP(nn.Module):
    """Averages a model's gradients over the ranks while backward is still computing.

    ddp = BucketedDDP(model, bucket_bytes=1_000_000)
    loss_fn(ddp(inputs), targets).backward()
    ddp.finish()                                # every p.grad is the mean over ranks

    The model gets rank 0's parameters and buffers. Each of make_buckets' buckets starts in backward,
    when it and all before it are complete; finish() starts the rest and waits. A gradient that is None
    counts as zero.

    Communication: one asynchronous all_reduce a bucket.
    """

    def __init__(self, model: nn.Module, bucket_bytes: int) -> None:
        super().__init__()
        self.module = model
        ### BEGIN SOLUTION
        broadcast_parameters(model, src=0)
        self.buckets = make_buckets(model, bucket_bytes)
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, number))
        self.synchronizes = True
        self.reset()
        ### END SOLUTION

    def forward(self, *args, **kwargs):
        """What the model itself computes."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        """In this block backward sends nothing; the next one sends the sums."""
        ### BEGIN SOLUTION
        self.synchronizes = False
        try:
            yield
        finally:
            self.synchronizes = True
        ### END SOLUTION

    # The next three are a suggestion: change them as you like.

    def reset(self) -> None:
        """Forget the last step: no bucket is under way."""
        ### BEGIN SOLUTION
        self.missing = [len(bucket) for bucket in self.buckets]
        self.under_way = []
        ### END SOLUTION

    def gradient_ready(self, bucket: int, parameter: nn.Parameter) -> None:
        """The hook of a parameter in this bucket."""
        ### BEGIN SOLUTION
        if not self.synchronizes:
            return
        self.missing[bucket] -= 1
        while len(self.under_way) < len(self.buckets) and self.missing[len(self.under_way)] == 0:
            self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Start the first bucket that is not under way."""
        ### BEGIN SOLUTION
        bucket = self.buckets[len(self.under_way)]
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        self.under_way.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def finish(self) -> None:
        """Complete the averaging."""
        ### BEGIN SOLUTION
        while len(self.under_way) < len(self.buckets):
            self.start_next()
        for bucket, (flat, handle) in zip(self.buckets, self.under_way, strict=True):
            handle.wait()
            flat /= dist.get_world_size()
            means = flat.split([parameter.numel() for parameter in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.reset()
        ### END SOLUTION


# %% [markdown]
# ### What the buckets hide
#
# Eight linear layers, and again one rank on each node. Here a device computes $10^{11}$ operations a second, so that
# computing takes virtual time; the network is the one from above. All ranks do the same, so two of them are shown. First
# all gradients after backward, then in buckets of two layers each: a layer of width 256 has $256^2 + 256$ parameters of 4
# bytes, which are 257 KiB, and two layers have 514 KiB.

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
from course_lib.cluster.device import Device
from course_lib.training.data_parallel import Replication
from course_lib.training.step_timing import step_limits, timed_step


def broadcast_and_keep(model: nn.Module) -> nn.Module:
    """Equal replicas without a wrapper."""
    broadcast_parameters(model, src=0)
    return model


def in_buckets(kib: int) -> Replication:
    """Your class as the training loops of this course take it."""
    return Replication("BucketedDDP", partial(BucketedDDP, bucket_bytes=kib * 1024), BucketedDDP.finish)


def step_with(replication: Replication, latency_us: float, dispatch_us: float = 0):
    """One step of eight linear layers of width 256 on devices of 100 GFLOP/s and a network of 20 Gbit/s.

    dispatch_us: microseconds in which a program queues an operation; 0: it goes in step with its device.
    """
    link = Link(latency=latency_us * 1e-6, bandwidth=2.5e9)
    device = Device(flops=1e11, memory_bandwidth=1e11, dispatch_seconds=dispatch_us * 1e-6)
    cluster = Cluster(nodes=ranks, inter_node=link, device=device)
    return launch(timed_step, replication, 8, 256, 64, cluster=cluster)


def milliseconds(run) -> float:
    """How long the step took."""
    start, end = step_limits(run)
    return (end - start) * 1e3


def draw_step(run, title: str):
    """The timeline of the step on two ranks."""
    start, end = step_limits(run)
    return run.timeline(
        start=start, end=end, ranks=range(min(2, ranks)), title=f"{title}: {milliseconds(run):.2f} ms"
    )


at_the_end = step_with(Replication("average_gradients", broadcast_and_keep, average_gradients), latency_us=20)
draw_step(at_the_end, "All after backward")

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
overlapped = step_with(in_buckets(514), latency_us=20)
draw_step(overlapped, "Buckets of two layers")

# %% [markdown]
# In the second picture the first all-reduce is called when backward has done two layers of eight, after a quarter of its time.
# A bar begins with the call and ends when the sum is there. The network carries one all-reduce at a time, and the next one
# waits for its turn. So bars overlap, although only one of them is being sent at any moment. The short bars of computing within
# synchronize are the averages that are written back. The same in numbers:

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
start, end = step_limits(overlapped)
backward = next(event for event in overlapped.events if event.op == "backward" and event.rank == 0)
calls = [event for event in overlapped.events if event.op == "all_reduce" and event.rank == 0]
before = start
for event in calls:
    called, sending, done = event.start - start, event.end - max(event.start, before), event.end - start
    print(
        f"{event.nbytes:8,} bytes, called at {called * 1e3:.2f} ms, under way for {sending * 1e3:.2f} ms, "
        f"done at {done * 1e3:.2f} ms"
    )
    before = event.end
print(f"backward ends at {(backward.end - start) * 1e3:.2f} ms, the step at {(end - start) * 1e3:.2f} ms")

broadcasts = [event for event in at_the_end.events if event.op == "broadcast" and event.rank == 0]
setup = sum(event.seconds for event in broadcasts)
print(f"once, before the first step: {len(broadcasts)} broadcasts, {setup * 1e3:.2f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_parameters average_gradients BucketedDDP
# What the text around this cell says of the two pictures.
assert 4 * (256**2 + 256) == 257 * 1024
first = (calls[0].start - backward.start) / backward.seconds
assert 2 / 8 <= first < 0.29
busy = [
    event.end - max(event.start, before) for before, event in zip([start, *(c.end for c in calls)], calls)
]
assert max(busy) - min(busy) < 0.01 * max(busy)
assert milliseconds(overlapped) < milliseconds(at_the_end)
if ranks == 4:
    assert round(milliseconds(at_the_end), 1) == 3.5
    assert round(milliseconds(overlapped), 1) == 2.8
    assert round(setup * 1e3, 1) == 2.3

# %% [markdown]
# All all-reduces take equally long, and the step ends when the last of them does: 2.8 ms after its beginning instead of 3.5 ms,
# with four ranks. Only what is sent after backward makes the step longer. The broadcast at the start takes 2.3 ms, once.
#
# **On a GPU** the program runs ahead of its device (unit 01). An all-reduce waits in a queue of its own, a **stream**, until
# backward has computed its bucket. `work.wait()` then makes the device wait, and the program goes on:

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
on_streams = step_with(in_buckets(514), latency_us=20, dispatch_us=2)
draw_step(on_streams, "The same with a queue")

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_parameters average_gradients BucketedDDP
queued_by = max(event.end for event in on_streams.events if event.kind == "host" and event.rank == 0)
start, end = step_limits(on_streams)
if ranks == 4:
    assert milliseconds(on_streams) < 1.1 * milliseconds(overlapped)
    assert (queued_by - start) < 0.5 * (end - start)

# %% [markdown]
# The host has queued the whole step before half of its time is over. The step takes as long as before: a queue costs nothing while it is
# not empty.
#
# A program can have more streams, and says itself which waits for which. Simulated ranks have them too, without a GPU. Here every rank
# sums up a product in a **side stream**, and computes three others meanwhile:


# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
def product_and_sum(x: Tensor, beside: bool) -> float:
    """Milliseconds of a product, its sum over the ranks, and three other products."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    own = torch.cuda.current_stream()
    side = torch.cuda.Stream() if beside else own
    begin.record()
    y = x @ x
    side.wait_stream(own)  # the product has to be there
    with torch.cuda.stream(side):
        dist.all_reduce(y)
    for _ in range(3):
        x @ x
    own.wait_stream(side)  # and now the sum
    end.record()
    return begin.elapsed_time(end)


four = Cluster(1, 4, Link(20e-6, 5e9), device=Device(flops=1e12, dispatch_seconds=2e-6))
in_line, aside = (
    launch(product_and_sum, torch.ones(512, 512), beside, cluster=four) for beside in (False, True)
)
print(f"in one stream {in_line.results[0]:.2f} ms, in two {aside.results[0]:.2f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_parameters average_gradients BucketedDDP
assert [round(run.results[0], 1) for run in (in_line, aside)] == [1.5, 1.1]

# %% [markdown]
# Leave out the first `wait_stream`, and the sum is of a product that is not there yet. On a GPU no error says so.
#
# ### How large should a bucket be?
#
# The third prediction. Small buckets start early, but each pays the latency. Large buckets pay it seldom, but start late. The
# sizes here are one parameter a bucket (2 KiB is less than any weight has), and one, two, four and eight layers. A ring marks
# the shortest step of each line.

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
from course_lib.figures.plots import draw_lines, legend_beside
from course_lib.figures.style import COLOURS, new_figure

bucket_kib = [2, 257, 514, 1028, 2056]
latencies_us = [1, 20, 100]
steps = {(kib, us): step_with(in_buckets(kib), us) for us in latencies_us for kib in bucket_kib}
best = {us: min(bucket_kib, key=lambda kib: milliseconds(steps[kib, us])) for us in latencies_us}

places = range(len(bucket_kib))
figure, axes = new_figure(
    height=3.4,
    alt="Time of a step against bucket size. "
    + "; ".join(
        f"With a latency of {us} µs: "
        + ", ".join(f"{milliseconds(steps[kib, us]):.2f} ms with {kib} KiB" for kib in bucket_kib)
        for us in latencies_us
    ),
)
draw_lines(
    axes,
    {
        f"latency {us} µs": (places, [milliseconds(steps[kib, us]) for kib in bucket_kib])
        for us in latencies_us
    },
    x="bucket size (KiB)",
    y="step (ms)",
)
contents = ["1 parameter", "1 layer", "2 layers", "4 layers", "8 layers"]
axes.set_xticks(places, [f"{kib}\n{content}" for kib, content in zip(bucket_kib, contents, strict=True)])
for us, kib in best.items():
    shortest = milliseconds(steps[kib, us])
    axes.plot(bucket_kib.index(kib), shortest, "o", markersize=13, fillstyle="none", color=COLOURS["black"])
legend_beside(axes)
figure

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
for us, kib in best.items():
    print(f"latency {us:3} µs: buckets of {kib:4} KiB are best, {milliseconds(steps[kib, us]):.2f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_parameters average_gradients BucketedDDP
# The sentences below, which are about four ranks.
assert round(16 * 2 * (4 - 1) * 100e-6 * 1e3, 6) == 9.6
if ranks == 4:
    assert best == {1: 257, 20: 514, 100: 1028}
    assert milliseconds(steps[2, 1]) < 1.02 * milliseconds(steps[257, 1])
    assert milliseconds(steps[2056, 100]) < 1.02 * milliseconds(steps[1028, 100])
    assert 2.9 < milliseconds(steps[2, 100]) / milliseconds(steps[1028, 100]) < 3.1
best_sizes = ", ".join(f"{kib} KiB with a latency of {us} µs" for us, kib in best.items())
guesses.measured(many_small_or_few_large_messages=f"it depends: best are {best_sizes}")

# %% [markdown]
# So it depends on the network. On four ranks: with a latency of 1 µs, small buckets are best, since they overlap best. With 20
# µs two layers are best. With 100 µs it is four layers, and a single bucket for everything is almost as good. Sixteen buckets
# take three times as long there: they wait $16 \cdot 2(p-1)\,\alpha = 9.6$ ms for latency alone.
#
# PyTorch's default is 25 MiB (`bucket_cap_mb=25`), with a first bucket of 1 MiB so that communication starts soon. It was
# chosen for networks and models larger than these.
#
# **Question for the sliders:** with which of these settings does the network stand idle for most of the time, and with which
# does the device?

# %% demo=true
# %%needs broadcast_parameters average_gradients BucketedDDP
from course_lib.notebook.widgets import Slider, explore


def draw(kib: int, us: float):
    """The timeline of one step."""
    run = steps[kib, us]
    calls = run.traffic[0].calls["all_reduce"]
    return draw_step(run, f"{calls} buckets of at most {kib} KiB, latency {us} µs")


explore(
    draw,
    kib=Slider(bucket_kib, start=514, label="bucket size (KiB)"),
    us=Slider(latencies_us, start=20, label="latency (µs)"),
)


# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_parameters average_gradients BucketedDDP
def idle_shares(run) -> tuple[float, float]:
    """The parts of rank 0's step in which the network is idle, and in which the device is."""
    start, end = step_limits(run)
    mine = [event for event in run.events if event.rank == 0]
    until, carried = start, 0.0
    for call in (event for event in mine if event.op == "all_reduce"):
        carried += call.end - max(call.start, until)
        until = call.end
    computed = sum(event.seconds for event in mine if event.kind == "compute" and event.start >= start)
    return 1 - carried / (end - start), 1 - computed / (end - start)


idle = {setting: idle_shares(run) for setting, run in steps.items()}
# The answer below, which is about four ranks.
if ranks == 4:
    network_bound = [setting for setting, (network_idle, _) in idle.items() if network_idle > 0.5]
    device_bound = [setting for setting, (_, device_idle) in idle.items() if device_idle > 0.5]
    assert sorted(network_bound) == [(1028, 1), (2056, 1), (2056, 20), (2056, 100)]
    assert sorted(device_bound) == [(2, 100), (257, 100), (514, 100)]

# %% [markdown]
# <details><summary>Answer</summary>
#
# With four ranks the network is idle for more than half of the step with one bucket for everything, and with two buckets where
# the latency is 1 µs: it has nothing to send until backward has filled a bucket. The device is idle for more than half of the
# step with a latency of 100 µs and four buckets or more: it waits for message after message.
#
# </details>
#
# ## 6 One accuracy for all
#
# Each rank evaluates its part of the test set. What rank 0 prints should be the accuracy on the whole test set, so the ranks'
# numbers have to be combined first. As in section 1, the mean of the accuracies is right only if all parts are equally large.


# %% exercise="global_accuracy" points=3
def global_accuracy(correct: int, total: int) -> float:
    """The accuracy over the samples of all ranks, the same float on every rank.

    correct, total: how many samples this rank classified correctly, and how many it had; total may be 0
    here, but not on all ranks. Communication: one collective.
    """
    ### BEGIN SOLUTION
    counts = torch.tensor([correct, total])
    dist.all_reduce(counts)
    all_correct, everything = counts.tolist()
    return all_correct / everything
    ### END SOLUTION


# %% demo=true
# %%needs global_accuracy
correct, total = [9, 1, 50, 90], [10, 10, 100, 100]
print("mean of the ranks' accuracies:", sum(c / t for c, t in zip(correct, total, strict=True)) / 4)
print(
    "accuracy over all samples:    ",
    launch(global_accuracy, per_rank(correct), per_rank(total), ranks=4, on=on).results[0],
)

# %% [markdown]
# ## 7 One download for all
#
# Four ranks of a node that all find the data set missing download it four times, into the same files. So on each node one rank
# should load the data before the others begin. Each node needs a rank of its own for that, since each may have its own disk:
# the rank whose local rank is 0, which is `int(os.environ["LOCAL_RANK"])`, as in unit 00, or `dist.get_node_local_rank()`. The
# ranks have nothing to send to each other. What they need is an order. Which call makes ranks wait for each other (unit 00,
# section 5), and when must each rank make it: before its `load()`, or after?
#
# If the first rank's `load()` fails, the others must not wait for ever. Here they go on and call `load()` too: the first rank's
# exception ends the training anyway.
#
# **Find the mistake.** A slide of a lecture loads the data by `if local_rank == 0: train_set = ...`, and breaks off there. What
# would go wrong if nothing followed?
#
# <details><summary>Answer</summary>
#
# The other ranks of the node have no `train_set`, and raise a `NameError` at its first use. The `if` may guard the download
# only: after it every rank has to load the data for itself.
#
# </details>


# %% exercise="load_once" points=4
def load_once(load):
    """Call load() on every rank, on one rank of each node before all others, and return what it gave.

    load: takes no arguments. Every rank calls it once: local rank 0 at once, the others when the first
    rank of their node has; they may wait for those of other nodes, too.

    If load() raises an Exception on a rank, load_once raises it there. If that is the first rank of a
    node, the others go on as if it had returned.
    """
    ### BEGIN SOLUTION
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    try:
        return load()
    finally:
        dist.barrier()
    ### END SOLUTION


# %% [markdown]
# ## 8 The whole thing
#
# A training script is written for one process first. Here is one:


# %%
def train_one(model, dataset, optimizer, epochs, batch_size, seed, device) -> list[float]:
    """Train in one process; returns the mean loss of each epoch."""
    model.to(device)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, batch_size, shuffle=True, generator=generator)
    history = []
    for epoch in range(epochs):
        total = 0.0
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
        history.append(total / len(dataset))
        print(f"epoch {epoch}: loss {history[-1]:.4f}")
    return history


# %% [markdown]
# To run on many devices it needs what the sections above have made. PyTorch has a part of its own for each:
#
# | | PyTorch's own | in this unit |
# |---|---|---|
# | set up | `dist.init_process_group(backend="nccl", rank=global_rank, world_size=world_size)` | `launch` has done it; under `torchrun`, `dist.init_process_group()` finds both numbers in the environment |
# | device | `device = torch.device("cuda", local_rank)` | the argument `device` |
# | wrap | `model = DistributedDataParallel(model, device_ids=[local_rank])`, which also broadcasts rank 0's weights | `broadcast_parameters`, and `average_gradients` or `BucketedDDP` |
# | deal | `train_sampler = DistributedSampler(train_set, num_replicas=world_size, rank=global_rank)` | `shard_indices` |
# | load | `DataLoader(train_set, batch_size=batch_size, sampler=train_sampler)` | the same, with the indices as `sampler` |
# | deal anew | `train_sampler.set_epoch(epoch)` at the beginning of every epoch | `shard_indices(..., epoch, ...)` |
# | report | `if global_rank == 0: print(...)` | the same |
# | end | `dist.destroy_process_group()` | `launch` does it |
#
# `batch_size` is that of one worker. `shuffle=True` must go: a `DataLoader` takes a sampler or shuffles by itself, and refuses
# to do both. `device_ids` is for GPUs only.
#
# The script for one process, with PyTorch's own parts. Few lines change:


# %% demo=true
def train_pytorch(model, dataset, epochs, batch_size) -> list[float]:
    """train_one on many processes, as it is written with PyTorch's parts; every rank's own losses."""
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset, dist.get_world_size(), dist.get_rank())
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
        history.append(total / len(sampler))
    return history


images, labels = data.train[:301]
subset = list(zip(images, labels, strict=True))
by_pytorch = launch(train_pytorch, new_model(), subset, 2, 16, ranks=ranks)
for rank, history in enumerate(by_pytorch.results):
    print(f"rank {rank}: " + ", ".join(f"{loss:.4f}" for loss in history))

# %% [markdown]
# It runs, and two things are not yet as in one process. Each rank knows the loss of its own samples only. And 301 samples do
# not divide by four ranks, so `DistributedSampler` gives some out twice. This loop needs that padding, so that all ranks have
# equally many steps.
#
# Your version deals every sample once. Before you write it, think of 301 samples on four ranks with 16 of them a rank in a
# step. How many steps do all ranks need, and how many samples has the whole batch of the last step? And of 257 samples?
#
# All else stays as in `train_one`. Random states stay the ranks' own, since dropout must differ from rank to rank. `dataset`
# and `seed` are the same on all ranks. You may use what the unit has built, or PyTorch's parts.


# %% exercise="train_ddp" points=12
def train_ddp(model, dataset, optimizer, epochs, batch_size, seed, device) -> list[float]:
    """train_one on all ranks of the default group: one model, trained on everybody's samples.

    model: this rank's replica, all trainable; training starts from rank 0's weights.
    batch_size: samples of one rank in a step.

    An epoch deals every sample to one rank once, in an order drawn anew. In a step each rank takes its
    next batch_size samples, or what it has left, perhaps none; the step follows the gradient of the
    mean loss over all of them. All ranks take equally many steps.

    Returns, on every rank, each epoch's mean loss over all samples. Only rank 0 prints.

    Communication: the model once, by broadcast; each step the gradients, by all_reduce; each epoch one
    collective of at most 16 bytes.
    """
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    model.to(device)
    broadcast_parameters(model, src=0)
    history = []
    for epoch in range(epochs):
        shard = shard_indices(len(dataset), epoch, seed).tolist()
        batches = iter(DataLoader(dataset, batch_size, sampler=shard))
        total = torch.zeros(1, device=device)
        for start in range(0, len(dataset), ranks * batch_size):
            whole = min(ranks * batch_size, len(dataset) - start)
            optimizer.zero_grad()
            for inputs, targets in islice(batches, 1):
                logits = model(inputs.to(device))
                loss = functional.cross_entropy(logits, targets.to(device), reduction="sum")
                (loss * ranks / whole).backward()
                total += loss.detach()
            average_gradients(model)
            optimizer.step()
        dist.all_reduce(total)
        history.append(total.item() / len(dataset))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {history[-1]:.4f}")
    return history
    ### END SOLUTION


# %% demo=true
# %%needs train_ddp
def train_both(model: nn.Module, size: int) -> list[float]:
    """Two epochs of train_ddp on the first samples of the training set, 16 a rank in a step."""
    images, labels = data.train[:size]
    subset = list(zip(images, labels, strict=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train_ddp(model, subset, optimizer, 2, 16, 0, torch.device("cpu"))


together = {size: launch(train_both, new_model(), size, ranks=ranks, on=on) for size in (301, 257)}
for size, run in together.items():
    calls = run.traffic[0].calls
    print(f"{size} samples: losses {run.results[0]}, rank 0's calls {dict(calls)}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds train_ddp
# All ranks return the same; PyTorch's ranks do not. Steps of 301 and of 257 samples.
for run in together.values():
    assert all(history == run.results[0] for history in run.results)
if ranks == 4:
    assert len({history[0] for history in by_pytorch.results}) == 4
    assert (-(-301 // 64), 301 - 4 * 64, -(-257 // 64), 257 - 4 * 64) == (5, 45, 5, 1)

# %% [markdown]
# <details><summary>The answers</summary>
#
# Five steps each. In the last one the four ranks have 45 of the 301 samples together: 12, 11, 11 and 11. Of 257 samples one is
# left: one rank has it, and three have none. They take part all the same, since the others wait for them in the all-reduce.
#
# </details>
#
# PyTorch has another way for ranks that have nothing left: `with ddp.join():`. Ranks that have finished then answer the calls
# of those that go on. It costs one more collective in every step, and takes the mean over ranks, not over samples.
#
# ### With real processes
#
# Now everything together: real processes, Gloo between them, your functions in the loop
# `course_lib.training.data_parallel.train`. It is short; read it beside your own.
#
# <details><summary>Answer: how it weights the ranks</summary>
#
# It scales each rank's summed loss by $p / n$, where $n$ is the size of the whole batch, so the mean over ranks of these
# gradients is $\sum_k \frac{m_k}{n} g_k$, the formula of section 1. An empty batch adds a loss of 0, not NaN.
#
# </details>

# %% demo=true
# %%needs shard_indices broadcast_parameters average_gradients BucketedDDP global_accuracy load_once
from course_lib.training.data_parallel import TORCH_DDP, Pieces, deal_epochs, train, train_alone
from course_lib.training.recipe import Recipe

recipe = Recipe(dataset=dataset, epochs=epochs)
pieces = Pieces(shard_indices, global_accuracy, load_once)
mine = launch(train, recipe, in_buckets(128), pieces, ranks=ranks, on="processes", timeout=300)

# %% [markdown]
# The same with PyTorch's own `DistributedDataParallel` in place of yours, and once in a single process, on the union
# of the ranks' batches and on the same kind of device:

# %% demo=true
# %%needs shard_indices broadcast_parameters average_gradients BucketedDDP global_accuracy load_once
pytorchs = launch(train, recipe, TORCH_DDP, pieces, ranks=ranks, on="processes", timeout=300)
shards = launch(deal_epochs, shard_indices, len(data.train), epochs, recipe.seed, ranks=ranks).results
alone = train_alone(recipe, shards, mine.results[0].device)
print(f"one process: loss {alone.losses[-1]:.4f}, test accuracy {alone.accuracies[-1]:.2%}")

# %% [markdown]
# The replicas are still equal, in every bit: a **fingerprint**, a hash of all weights, is the same on all ranks. And the loss
# curves are equal up to rounding: an all-reduce adds in another order than a matrix product, and floating-point sums depend on
# their order. The next cell asserts both.

# %% demo=true
# %%needs shard_indices broadcast_parameters average_gradients BucketedDDP global_accuracy load_once
for run in (mine, pytorchs):
    assert len({result.fingerprint for result in run.results}) == 1, "the replicas differ"

curves = {
    f"{ranks} processes, BucketedDDP": mine.results[0].losses,
    f"{ranks} processes, torch's DDP": pytorchs.results[0].losses,
    "1 process": alone.losses,
}
# In a long training rounding errors grow like any other difference, so the claim is about the first 50 steps.
expected = torch.tensor(alone.losses[:50])
for name, losses in curves.items():
    torch.testing.assert_close(torch.tensor(losses[:50]), expected, rtol=0, atol=1e-4)
    print(f"{name:25} largest difference {(torch.tensor(losses[:50]) - expected).abs().max():.1e}")

# %% demo=true jupyter={"source_hidden": true}
# %%needs shard_indices broadcast_parameters average_gradients BucketedDDP global_accuracy load_once
figure, (left, right) = new_figure(
    columns=2,
    alt="Left: three loss curves that lie on one another. Right: their differences from the single process's, which "
    "stay near the rounding error of 32-bit numbers. A line marks step 50 in both.",
)
styles = zip(curves.items(), ("blue", "vermillion", "black"), ("-", "--", ":"), strict=True)
for (name, losses), colour, style in styles:
    left.plot(losses, style, color=COLOURS[colour], label=name, linewidth=2)
    if name != "1 process":
        difference = [(a - b) * 1e7 for a, b in zip(losses, alone.losses, strict=True)]
        right.plot(difference, style, color=COLOURS[colour], label=name)
for axes in (left, right):
    axes.axvline(50, color="grey", linewidth=1)
left.set(xlabel="step", ylabel="training loss")
left.legend(frameon=False)
right.set(xlabel="step", ylabel="loss minus that of 1 process ($10^{-7}$)")
figure

# %% [markdown]
# The grey line is at step 50, as far as the curves have been compared; later differences may be larger. Where the loss jumps,
# it does so in all three trainings: the step was too long, and the replicas still agree.
#
# ## 9 What a larger batch costs
#
# If every worker keeps its batch, more workers make the whole batch larger. An epoch then has fewer steps. Each step sends as
# many bytes as before, so an epoch sends fewer. But are there enough steps?
#
# Here the same data is seen twelve times in five ways. Each training is done with three seeds, which draw other weights and
# other orders of the samples. Three processes train side by side, one a seed, as in unit 01. A **warm-up** lets the learning
# rate grow step by step in the first two epochs.

# %% demo=true
# %%needs shard_indices
from dataclasses import replace

from course_lib.training.data_parallel import deal_epochs, train_alone
from course_lib.training.recipe import Recipe

seeds = [1, 2, 3]
small = Recipe(dataset=dataset, epochs=12, batch_size=32, learning_rate=0.02)
four = replace(small, batch_size=4 * 32)
sixteen = replace(small, batch_size=16 * 32)


def scaled(recipe: Recipe, warmup_epochs: int) -> Recipe:
    """The learning rate multiplied by what the batch was multiplied by."""
    factor = recipe.batch_size // small.batch_size
    steps_an_epoch = -(-len(data.train) // recipe.batch_size)
    return replace(recipe, learning_rate=factor * 0.02, warmup_steps=warmup_epochs * steps_an_epoch)


recipes = {
    "batch 32": small,
    "batch 128": four,
    "batch 128, rate x 4": scaled(four, warmup_epochs=0),
    "batch 128, rate x 4, warm-up": scaled(four, warmup_epochs=2),
    "batch 512, rate x 16, warm-up": scaled(sixteen, warmup_epochs=2),
}


def accuracies_with(recipe: Recipe, seed: int, order: list[Tensor]) -> list[float]:
    """The test accuracy in percent after each epoch. order: the samples of each epoch."""
    return [100 * a for a in train_alone(replace(recipe, seed=seed), [order]).accuracies]


orders = [launch(deal_epochs, shard_indices, len(data.train), 12, seed, ranks=1).results[0] for seed in seeds]
curves = {
    name: launch(
        accuracies_with,
        recipe,
        per_rank(seeds),
        per_rank(orders),
        ranks=len(seeds),
        on="processes",
        timeout=600,
    ).results
    for name, recipe in recipes.items()
}
final = {name: [of_seed[-1] for of_seed in of_seeds] for name, of_seeds in curves.items()}
for name, ends in final.items():
    steps_taken = 12 * -(-len(data.train) // recipes[name].batch_size)
    print(f"{name:30} {steps_taken:4} steps: " + ", ".join(f"{end:.1f} %" for end in ends))

# %% demo=true jupyter={"source_hidden": true}
# %%needs shard_indices
from course_lib.figures.plots import line_figure

line_figure(
    {
        name: (list(range(1, 13)), [sum(epoch) / len(seeds) for epoch in zip(*of_seeds, strict=True)])
        for name, of_seeds in curves.items()
    },
    x="epoch",
    y="test accuracy (%), mean of three seeds",
    alt="Test accuracy against epochs, the mean of three seeds. At the end: "
    + ", ".join(f"{sum(ends) / len(ends):.0f} percent with {name}" for name, ends in final.items())
    + ".",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds shard_indices
# The sentences below, which are about digits.
means = {name: sum(ends) / len(ends) for name, ends in final.items()}
assert recipes["batch 512, rate x 16, warm-up"].warmup_steps > 0
if dataset == "digits":
    assert max(final["batch 128"]) < min(final["batch 32"])
    assert means["batch 128"] < means["batch 32"] - 3
    for name in ("batch 128, rate x 4", "batch 128, rate x 4, warm-up"):
        assert abs(means[name] - means["batch 32"]) < 2
        assert min(final[name]) > max(final["batch 128"])
    assert max(final["batch 512, rate x 16, warm-up"]) < min(final["batch 32"])
    assert means["batch 512, rate x 16, warm-up"] < means["batch 32"] - 10

# %% [markdown]
# With a batch of 128 and the same learning rate, every seed ends below the batch of 32. A gradient over four times as many
# samples is more exact, but one step along it is no longer than before, and there are four times fewer steps. The **linear
# scaling rule** makes up for it: multiply the learning rate by what the batch was multiplied by. With four times the rate the
# batch of 128 ends about where the batch of 32 does, with each of the three seeds, for a quarter of the communication.
#
# The rule has a limit. With a batch of 512 and sixteen times the rate the training fails in spite of the warm-up: such long
# steps overshoot, and 36 of them are too few to recover. No seed reaches the batch of 32, and the seeds differ widely, so one
# run alone would prove nothing. The limit differs from problem to problem.
#
# Here the warm-up changes little. It helps where the rule fails only at the beginning, when the weights change fast. Goyal et
# al. (2017) needed it to train ResNet-50 on ImageNet with batches of up to 8,192 images without loss of accuracy: on 256 GPUs
# in one hour, with about 90 % scaling efficiency from 8 GPUs to 256. Unit 04 builds that warm-up.
#
# ## 10 Now on nodes
#
# Nothing in your functions knows how the ranks were started. Copy the answers `shard_indices`, `global_accuracy` and
# `load_once`, with their imports, into `answers.py`, and beside it put `train_on_nodes.py`:
#
# ```python
# import torch.distributed as dist
#
# from answers import global_accuracy, load_once, shard_indices
# from course_lib.training.data_parallel import TORCH_DDP, Pieces, train
# from course_lib.training.recipe import Recipe
#
# dist.init_process_group()  # rank, world size and meeting place come from the environment
# train(Recipe(epochs=5), TORCH_DDP, Pieces(shard_indices, global_accuracy, load_once))
# dist.destroy_process_group()
# ```
#
# On this machine, four ranks:
#
# ```bash
# torchrun --standalone --nproc-per-node=4 train_on_nodes.py
# ```
#
# In a Slurm allocation of two nodes (`salloc --nodes=2 --ntasks-per-node=4`), started by `torchrun`, one a node:
#
# ```bash
# head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 \
#      torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id="$SLURM_JOB_ID" \
#      --rdzv-backend=c10d --rdzv-endpoint="$head:29500" train_on_nodes.py
# ```
#
# or by `srun` itself, which gives every task a number but calls it by other names:
#
# ```bash
# export MASTER_ADDR=$head MASTER_PORT=29500
# srun --nodes=2 --ntasks=8 --ntasks-per-node=4 bash -c \
#      'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
#       export LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID
#       exec python train_on_nodes.py'
# ```
#
# Both files and the Python environment must be under the same path on all nodes. The first node must let the others reach a
# port, 29500 here. If nodes have several networks, `export GLOO_SOCKET_IFNAME=...` names the one to use.
#
# **Which backend when.** The script names no backend: PyTorch then takes NCCL for tensors on GPUs and Gloo for those on CPUs.
# Where there are GPUs, `train` moves model and batches to `torch.device("cuda", local_rank)`, one rank a GPU; with
# `init_process_group("gloo")` it stays on the CPU. MPI needs a PyTorch that was built from source against the site's MPI
# library. That is worth the effort only if no other library supports the network well.
#
# ## 11 What goes wrong
#
# Gradients that are accumulated over micro-batches (unit 01) may be averaged after each micro-batch or once at the end. Both
# are right. Here each rank has two micro-batches of its own:


# %% demo=true
# %%needs average_gradients
def accumulate_and_average(model: nn.Module, every_time: bool) -> Tensor:
    """The averaged gradient of two micro-batches of 8 samples a rank, as one long vector."""
    first = 16 * dist.get_rank()
    for start in (first, first + 8):
        images, labels = data.train[start : start + 8]
        (functional.cross_entropy(model(images), labels) / 2).backward()
        if every_time or start > first:
            average_gradients(model)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


often = launch(accumulate_and_average, new_model(), True, ranks=ranks)
once = launch(accumulate_and_average, new_model(), False, ranks=ranks)
difference = (often.results[0] - once.results[0]).norm() / once.results[0].norm()
print(f"after every micro-batch: {often.traffic[0].sent:,} bytes; once: {once.traffic[0].sent:,} bytes")
print(f"relative difference of the gradients {difference:.0e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds average_gradients
# The same gradient; twice the bytes.
assert difference < 1e-5
assert often.traffic[0].sent == 2 * once.traffic[0].sent

# %% [markdown]
# | What you see | What happened | What to do |
# |---|---|---|
# | Hangs at the end of the first epoch | Shards of unequal size: one rank has left the loop, the others wait in its all-reduce | Equal numbers of steps: pad, drop the rest, let empty batches take part, or `with ddp.join():` |
# | Hangs, or an error about unused parameters | A parameter got no gradient on some rank | `find_unused_parameters=True`, or a model that uses all; your `finish()` sends zeros |
# | Trains, but worse than one process | Every epoch deals the same samples | `sampler.set_epoch(epoch)` |
# | The loss falls too slowly | Gradients divided twice: by `all_reduce` with `AVG` and again, or by the loss and again | Find the one place that divides |
# | Loss differs from one process after a few steps | Batch norm computes its statistics a shard | `SyncBatchNorm`, group or layer norm, or larger batches a worker |
# | Replicas drift apart | Other seeds and no broadcast; or a rank that skips its step | Broadcast at the start; compare a hash of the weights now and then |
# | All ranks augment alike | One seed for everything | The same seed for weights and shuffling, another a rank for augmentation and dropout |
# | Every line comes four times, files are torn | All ranks print and save | `if rank == 0:`, but never before a collective |
# | Right, but slow with gradient accumulation | An all-reduce in every micro-step | `with ddp.no_sync():` in all micro-steps but the last |
#
# Printing on one rank has a trap of its own: `if rank == 0: print(global_accuracy(...))` hangs. Rank 0 waits for an all-reduce
# that the others never make. First reduce on all ranks, then print on one.
#
# ## 12 Where it comes from
#
# - S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, PVLDB 13(12), 2020
#   ([arXiv:2006.15704](https://arxiv.org/abs/2006.15704)): `DistributedDataParallel`. Buckets, overlap with backward, and
#   skipping synchronisation when gradients are accumulated; near-linear scaling to 256 GPUs when configured well.
# - P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017
#   ([arXiv:1706.02677](https://arxiv.org/abs/1706.02677)): linear scaling and warm-up.
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel and Distributed
#   Computing 69(2), 2009: the ring, and why no all-reduce sends less.
#
# Data parallelism keeps a whole model on every worker. When the model no longer fits, its layers are split over workers (unit
# 05), or each layer is (unit 06).

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
