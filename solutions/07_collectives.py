# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Collectives from scratch
#
# Every parallel training step ends in a collective: ranks that each hold a tensor, and want the sum. `dist.all_reduce`
# does it in one line. What happens behind that line decides whether a thousand GPUs train a thousand times as fast as
# one, or wait for each other. In this unit you write them yourself, with nothing but `send` and `recv`.
#
# After this unit you can
#
# - build scatter, gather, broadcast, reduce, reduce-scatter, all-gather, all-reduce and all-to-all out of messages;
# - say which algorithm sends what, prove it by counting, and explain why rings and halving-doubling exist;
# - fit the two numbers of a network to measurements, and predict a transfer on 10,000 GPUs with them;
# - read a deadlock report, name the mistake, and fix the program;
# - write the same algorithm with MPI.
#
# It is a long unit. Good places to stop are the ends of sections 4 and 7.

# %% tags=["parameters"]
# For the demonstrations: their number of ranks, unless the text says otherwise; and whether these are "simulated" or
# "processes".
ranks = 4
on = "simulated"

# %%
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import Cluster, CollectiveMismatch, Deadlock, Link, RankFailed, RankLost, launch, per_rank
from course_lib.figures.plots import draw_lines, legend_beside, line_figure
from course_lib.figures.style import new_figure, show
from graders import check, hint, predict, progress, reset

# %% [markdown]
# ## The picture
#
# `MPI_Reduce` is usually explained with four ranks that hold two numbers each: (5, 1), (2, 3), (7, 8) and
# (4, 2). Element by element they add up to $5 + 2 + 7 + 4 = 18$ and $1 + 3 + 8 + 2 = 14$. After a **reduce** the root
# has (18, 14); after an **all-reduce** everyone has.

# %% demo=true
# %load_ext course_lib.notebook.magics
from course_lib.figures.pictures import collective_picture
from course_lib.notebook.collective_steps import steps_of
from course_lib.notebook.widgets import Slider, explore
from course_lib.notebook.stepping import step_through, steps_figure

# In this order algorithms get their colours, the same in all figures.
LOOKS = ["master", "exchange", "tree", "ring", "halving-doubling", "hierarchical", "dist.all_reduce"]

collective_picture("all_reduce")

# %% demo=true
numbers = per_rank([torch.tensor(pair) for pair in ([5, 1], [2, 3], [7, 8], [4, 2])])


def library_all_reduce(x: Tensor) -> Tensor:
    """PyTorch's own."""
    dist.all_reduce(x)
    return x


sums = launch(library_all_reduce, numbers, ranks=4, on=on).results
sums

# %% demo=true jupyter={"source_hidden": true}
assert [total.tolist() for total in sums] == [[18, 14]] * 4

# %% [markdown]
# How should four ranks do that? The obvious way has a **master**: all send to rank 0, which adds up and sends the result
# back. A parameter server works like this. Take ResNet-50: its gradients are 25,557,032 numbers of 4 bytes, 102.2 MB.
# Suppose that each of 256 workers has a new gradient every third of a second. Into the server flow
#
# $$ 256 \times 102.2\ \text{MB} \times 3\ \text{s}^{-1} = 78.5\ \text{GB/s}, $$
#
# and as much flows out. A network card of 100 Gbit/s moves 12.5 GB/s, so the server's machine would need seven of them,
# while each worker uses a fortieth of its own card.
#
# <details><summary>If you know this example from a lecture</summary>
#
# In this unit a MB has $10^6$ bytes and a GB $10^9$, as in the data sheets of networks. Where a MB has $2^{20}$ bytes and a
# GB $2^{30}$, the same numbers are 97.5 MB and 73.1 GB/s. And the lecture counts the gradients as what goes out of the
# master, and the weights as what comes in. That is how the workers see it. For the master it is the other way round.
#
# </details>

# %% demo=true jupyter={"source_hidden": true}
from course_lib.torchvision_compat import import_torchvision

resnet50 = import_torchvision().models.resnet50

with torch.device("meta"):
    resnet_bytes = 4 * sum(parameter.numel() for parameter in resnet50().parameters())
into_server = 256 * resnet_bytes * 3
assert resnet_bytes == 4 * 25_557_032
assert (round(resnet_bytes / 1e6, 1), round(into_server / 1e9, 1)) == (102.2, 78.5)
assert (round(resnet_bytes / 2**20, 1), round(into_server / 2**30, 1)) == (97.5, 73.1)
assert math.ceil(into_server / 12.5e9) == 7
assert round(12.5e9 / (resnet_bytes * 3)) == 41

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below; sections 3, 7 and 9 measure them.
#
# 1. In the best all-reduce there is, how many bytes must a rank send for each byte of its tensor, with 16 ranks? A number.
# 2. An all-reduce of these 102.2 MB round a ring of 8 GPUs takes 14 ms, if each message takes 10 µs and 12.5 GB/s flow
#    over each link. How many milliseconds does it take with 10,000 GPUs?
# 3. Two ranks each send a tensor to the other, then receive. Does that always work, sometimes, or never? Write "always",
#    "sometimes" or "never".

# %% demo=true
guesses = predict(
    "07_collectives",
    bytes_sent_for_each_byte_of_the_tensor=None,
    milliseconds_on_10000_gpus=None,
    two_ranks_send_first=None,
)

# %% [markdown]
# ## Rules for all exercises
#
# - **In place.** What a `torch.distributed` call would change in place, your function changes in place and returns.
# - **Chunks** are those of `torch.tensor_split(x.flatten(), p)`, of elements and not of rows: of 10 elements, 4 ranks get 3, 3,
#   2, 2. Some may be empty.
# - **Any tensor**: any length, dtype and device, the same dtype and device for all tensors of a call. So make your own
#   tensors like x: `torch.empty_like(x)`, `x.new_empty(n)`. A tensor may have gaps in its memory (`x[::2]`), while messages
#   need contiguous tensors. `x.contiguous()` returns x itself if it is contiguous, else a copy. So receive into
#   `buffer = x.contiguous()`, and end with `x.copy_(buffer)`.
# - **Any group.** `group=None` is all ranks. A group of $p$ ranks has the places 0 to $p - 1$. This rank's place is
#   `dist.get_rank(group)`, $p$ is `dist.get_world_size(group)`, and `dist.send(t, group_dst=place, group=group)` and
#   `dist.recv(t, group_src=place, group=group)` talk to a place; give both arguments. Only roots (`src`, `dst`) are global
#   ranks: the place of one is `dist.get_group_rank(group or dist.group.WORLD, src)`, since this function does not take
#   `None` for a group.
# - **A send may have to wait.** Whether `send` returns before its receiver has taken the message depends on the network.
#   Your functions have to be right if it does not; the simulator waits, unless told otherwise.
# - **Name the source of each `recv`.** A fast rank may already be in the next round, or in the next call, while you are still
#   in this one.
# - **Messages only**: `send`, `recv`, `isend`, `irecv`, and no more of them than needed: the check counts messages and
#   bytes. It also measures rounds, as virtual time on a slow link.
#
# ## 1 From one to all, from all to one
#
# **Scatter** deals out a list of the root's, **gather** collects one. They are each other's mirror image.


# %% exercise="scatter_from" points=10
def scatter_from(
    x: Tensor, parts: list[Tensor] | None = None, src: int = 0, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Give every rank of the group its part of a list that rank src has.

    x: of the shape and dtype of this rank's part; overwritten with it, and returned. parts: on src one
    tensor for each place of the group, of any lengths, which stay as they are; elsewhere None.
    src: a global rank. The root sends each other rank its part, and nothing else is sent.
    """
    ### BEGIN SOLUTION
    rank, root = dist.get_rank(group), dist.get_group_rank(group or dist.group.WORLD, src)
    if rank == root:
        for place, part in enumerate(parts):
            if place != root:
                dist.send(part.contiguous(), group_dst=place, group=group)
        return x.copy_(parts[root])
    arriving = x.contiguous()
    dist.recv(arriving, group_src=root, group=group)
    return x.copy_(arriving)
    ### END SOLUTION


# %% exercise="gather_to" points=10
def gather_to(
    x: Tensor, parts: list[Tensor] | None = None, dst: int = 0, group: dist.ProcessGroup | None = None
) -> list[Tensor] | None:
    """Collect every rank's x on rank dst.

    parts: on dst one tensor for each place of the group, of the shape and dtype of that rank's x;
    overwritten, and returned. On all other ranks parts is None, and None is returned. x stays as it is.
    dst: a global rank. Each rank but the root sends its x once, to the root.
    """
    ### BEGIN SOLUTION
    rank, root = dist.get_rank(group), dist.get_group_rank(group or dist.group.WORLD, dst)
    if rank != root:
        dist.send(x.contiguous(), group_dst=root, group=group)
        return None
    for place, part in enumerate(parts):
        arriving = part.contiguous()
        if place == root:
            arriving = x
        else:
            dist.recv(arriving, group_src=place, group=group)
        part.copy_(arriving)
    return parts
    ### END SOLUTION


# %% [markdown]
# The root is the bottleneck: all bytes pass through its link, one message after another. Here on slow links, 1.125 ms for
# each message:

# %% demo=true
# %%needs scatter_from
slow = Cluster(nodes=8, inter_node=Link(latency=1e-3, bandwidth=1e9))


def scatter_a_megabyte() -> None:
    """125 kB for each of 8 ranks."""
    parts = list(torch.zeros(8, 31_250)) if dist.get_rank() == 0 else None
    scatter_from(torch.empty(31_250), parts)


scattering = launch(scatter_a_megabyte, cluster=slow)
scattering.timeline(title="scatter from rank 0")

# %% demo=true jupyter={"source_hidden": true}
# %%holds scatter_from
assert math.isclose(scattering.seconds, 7 * 1.125e-3)

# %% [markdown]
# ## 2 Trees
#
# In a **broadcast** everyone gets the same tensor. That makes all the difference: whoever has it can pass it on. In the
# first round one rank has it and sends it, in the second two have it and send it, then four, then eight. After
# $\lceil \log_2 p \rceil$ rounds all have it. This is the **binomial tree**. The same tree run backwards, with sums on the
# way, is the **reduce**. Eight ranks, of which rank 0 has the tensor; filled is who has it:

# %% demo=true
from course_lib.figures.pictures import ring_picture, tree_picture

tree_picture(8)

# %% [markdown]
# With a number of ranks that is no power of two, some have nobody to send to in the last round. And if rank 3 is the root,
# it takes place 0 of this tree, rank 4 place 1, and so on round to rank 2.


# %% exercise="broadcast_tree" points=12
def broadcast_tree(x: Tensor, src: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    """Give every rank of the group rank src's x, by a binomial tree.

    x: on src the tensor, on all others one of its shape and dtype; overwritten, and returned. src: a
    global rank. Takes ceil(log2 p) rounds on p ranks; every rank but the root receives once.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place = (rank - root) % size
    data = x.contiguous()
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            dist.recv(data, group_src=(rank - distance) % size, group=group)
        distance *= 2
    return x.copy_(data)
    ### END SOLUTION


# %% exercise="reduce_tree" points=12
def reduce_tree(x: Tensor, dst: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    """Add up every rank's x on rank dst, by a binomial tree.

    x: of one shape and dtype on all ranks. On dst it becomes the sum; on all other ranks it stays as it
    is. Returned is x. dst: a global rank. Takes ceil(log2 p) rounds on p ranks; every rank but the root
    sends once.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    root = dist.get_group_rank(group or dist.group.WORLD, dst)
    place = (rank - root) % size
    total = x.clone(memory_format=torch.contiguous_format)
    arriving = torch.empty_like(total)
    distance = 1
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if rank == root else x
    ### END SOLUTION


# %% [markdown]
# Look at it step by step. Each cell is a chunk of a rank's tensor; its colours and digits say whose data is in it, a bold
# frame what the step has changed. The figure is drawn from what your function really does: it runs with numbers that
# tell where they come from, and is watched.

# %% demo=true
# %%needs broadcast_tree
broadcasting = steps_of(broadcast_tree, ranks=8, chunks=2)
step_through(broadcasting)

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_tree
assert len(broadcasting.steps) - 1 == math.ceil(math.log2(8))
assert all(chunk[0] == 1 for rank in broadcasting.steps[-1].held for chunk in rank)

# %% [markdown]
# A reduce to rank 0 and a broadcast from it make an all-reduce in $2 \lceil \log_2 p \rceil$ rounds. For short tensors
# that is hard to beat. For long ones it is bad: each round moves the *whole* tensor, and most ranks stand idle.
#
# ## 3 Rings
#
# Cut the tensor into $p$ chunks and let every rank work all the time. Each sends to its right neighbour and receives
# from its left one, a chunk per step:

# %% demo=true
ring_picture(4)

# %% [markdown]
# The chunks go round twice. Before you write the first half: if rank 0 is to end with chunk 0 of the sum, where must chunk 0
# set off?
#
# - **Reduce-scatter.** A chunk travels once round the ring; each rank that it comes to adds its own part. After $p - 1$
#   steps each chunk has been everywhere, and each rank has one chunk of the sum.
# - **All-gather.** The finished chunks travel round once more, and are copied instead of added.


# %% exercise="ring_reduce_scatter" points=13
def ring_reduce_scatter(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's chunk of the sum of all ranks' x, by p - 1 steps round the ring.

    x: of one shape and dtype on all ranks; stays as it is. Returns a new 1-D tensor: on the rank at
    place r, chunk r of torch.tensor_split(sum.flatten(), p). Each rank sends only to the next place,
    p - 1 messages of a chunk each, all ranks at the same time.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = torch.tensor_split(x.clone(memory_format=torch.contiguous_format).view(-1), size)
    for step in range(size - 1):
        outgoing, target = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        sending = dist.isend(outgoing, group_dst=right, group=group)
        dist.recv(arriving, group_src=left, group=group)
        sending.wait()
        target += arriving
    return chunks[rank].clone()
    ### END SOLUTION


# %% exercise="ring_all_gather" points=13
def ring_all_gather(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Give every rank every chunk of x, by p - 1 steps round the ring.

    x: of one shape and dtype on all ranks. The rank at place r brings chunk r of
    torch.tensor_split(x.flatten(), p); its other chunks are overwritten with those of the other ranks.
    Returns x. Each rank sends only to the next place, p - 1 messages of a chunk each, all ranks at the
    same time.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(size - 1):
        sending = dist.isend(chunks[(rank - step) % size], group_dst=right, group=group)
        dist.recv(chunks[(rank - step - 1) % size], group_src=left, group=group)
        sending.wait()
    return x.copy_(data)
    ### END SOLUTION


# %% exercise="ring_all_reduce" points=13
def ring_all_reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Replace x by the sum of all ranks' x, by 2 (p - 1) steps round the ring; returns x.

    x: of one shape and dtype on all ranks. Each rank sends only to the next place, 2 (p - 1) messages
    of one chunk of torch.tensor_split(x.flatten(), p) each, and all ranks send at the same time.
    """
    ### BEGIN SOLUTION
    # Both halves once more, because here x may be overwritten: that saves copying it, and one buffer serves all steps.
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    buffer = torch.empty_like(chunks[0])
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = buffer[: target.numel()]
        sending = dist.isend(chunks[(rank - 1 - step) % size], group_dst=right, group=group)
        dist.recv(arriving, group_src=left, group=group)
        sending.wait()
        target += arriving
    ring_all_gather(data, group)
    return x.copy_(data)
    ### END SOLUTION


# %% [markdown]
# The ring, all steps at once. Follow one column from panel to panel: that is a chunk on its way. Σ is a complete sum.

# %% demo=true
# %%needs ring_all_reduce
few = min(ranks, 8)  # The figures have colours for eight.
around = steps_of(ring_all_reduce, ranks=few)
steps_figure(around)

# %% demo=true
# %%needs ring_all_reduce
step_through(around)

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce
assert len(around.steps) - 1 == 2 * (few - 1)
assert all(chunk == (1,) * few for rank in around.steps[-1].held for chunk in rank)

# %% [markdown]
# Now measure, for the first prediction. Four ways to add up 1 MB: how many messages come one after another (counted on a
# link where each takes one second), how much the busiest rank sends, and how much all send together. The first two are the
# obvious ways: through a **master**, and an **exchange** in which everyone sends the whole tensor to everyone.


# %% demo=true
# %%needs broadcast_tree reduce_tree ring_all_reduce
def master_all_reduce(x: Tensor) -> None:
    """All to rank 0, which adds up and answers."""
    others = range(1, dist.get_world_size())
    if dist.get_rank() != 0:
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    for other in others:
        arriving = torch.empty_like(x)
        dist.recv(arriving, other)
        x += arriving
    for other in others:
        dist.send(x, other)


def exchange_all_reduce(x: Tensor) -> None:
    """Everyone sends everything to everyone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = x.clone()
    for step in range(1, size):
        arriving = torch.empty_like(x)
        sending = dist.isend(own, (rank + step) % size)
        dist.recv(arriving, (rank - step) % size)
        sending.wait()
        x += arriving


def tree_all_reduce(x: Tensor) -> None:
    """Up the tree and down again."""
    broadcast_tree(reduce_tree(x))


megabyte = torch.ones(250_000)
fast = Link(latency=10e-6, bandwidth=12.5e9)
sizes = (2, 4, 8, 16)
ways = {
    "master": master_all_reduce,
    "exchange": exchange_all_reduce,
    "tree": tree_all_reduce,
    "ring": ring_all_reduce,
}

# %% demo=true jupyter={"source_hidden": true}
# %%needs broadcast_tree reduce_tree ring_all_reduce
one_a_second = Link(latency=1.0, bandwidth=1e30)
in_a_row, busiest, together = {}, {}, {}
for name, way in ways.items():
    steps = [
        launch(way, torch.ones(16), cluster=Cluster(nodes=p, inter_node=one_a_second)).seconds for p in sizes
    ]
    runs = [launch(way, megabyte, cluster=Cluster(nodes=p, inter_node=fast)) for p in sizes]
    in_a_row[name] = (sizes, [round(step) for step in steps])
    busiest[name] = (sizes, [max(rank.sent for rank in run.traffic.ranks) / 1e6 for run in runs])
    together[name] = (sizes, [run.traffic.sent / 1e6 for run in runs])

figure, panels = new_figure(
    alt="Four ways to add up 1 MB against the number of ranks. Messages one after another: master and ring grow fastest, "
    "the tree with the logarithm. Busiest rank: master and exchange grow with the number of ranks, the tree with its "
    "logarithm, the ring stays below 2 MB. All together: the exchange grows with the square, the others linearly.",
    columns=3,
    width=12.0,
)
labels = ["messages one after another", "busiest rank sends (MB)", "all ranks send (MB)"]
for panel, lines, label in zip(panels, (in_a_row, busiest, together), labels, strict=True):
    draw_lines(panel, lines, x="ranks", y=label, order=LOOKS)
panels[-1].set_yscale("log")
legend_beside(panels[-1])
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_tree reduce_tree ring_all_reduce
for place, p in enumerate(sizes):
    rounds = math.ceil(math.log2(p))
    expected = {
        "master": (2 * (p - 1), p - 1, 2 * (p - 1)),
        "exchange": (p - 1, p - 1, p * (p - 1)),
        "tree": (2 * rounds, rounds, 2 * (p - 1)),
        "ring": (2 * (p - 1), 2 * (p - 1) / p, 2 * (p - 1)),
    }
    for name, counts in expected.items():
        measured = [lines[name][1][place] for lines in (in_a_row, busiest, together)]
        assert torch.allclose(torch.tensor(measured), torch.tensor(counts, dtype=torch.float32)), (
            name,
            p,
            measured,
        )
guesses.measured(bytes_sent_for_each_byte_of_the_tensor=busiest["ring"][1][-1])

# %% [markdown]
# (Where lines cover one another: left master and ring, in the middle master and exchange, right all but the exchange.) The
# middle panel answers the first prediction. In the ring each rank sends $p - 1$ chunks in each of the two passes. A chunk
# of a tensor of $b$ bytes has $b/p$ bytes, so a rank sends
#
# $$ 2(p-1) \cdot \frac{b}{p} = 2\,\frac{p-1}{p}\,b \ \text{bytes:} $$
#
# less than 2 bytes for each byte of the tensor, however many ranks there are. No other all-reduce out of messages between
# ranks can do with less (Patarasuk and Yuan, 2009).
#
# How this grows with $p$: O(p) grows in proportion to $p$, O(p²) in proportion to its square, O(log p) to its logarithm, and
# O(1) stays below a limit. A step is a round in which ranks work at the same time; the busiest rank's bytes are what its
# network card must carry:
#
# | algorithm | steps | bytes of the busiest rank | bytes of all together |
# |---|---|---|---|
# | reduce and broadcast through a master | O(1), if it can take all at once; measured above: O(p) | O(p) | O(p) |
# | exchange of everything with everyone | likewise | O(p) | O(p²) |
# | ring | O(p) | O(1) | O(p) |
# | recursive halving and doubling | O(log p) | O(1) | O(p) |
#
# "If it can take all at once": no network card can. On a real link the O(p) bytes of the master take O(p) time, one
# message after another, as in the left panel. The ring needs as many steps, but its messages are $p$ times shorter. The
# last row needs few steps and few bytes. It comes next.
#
# ## 4 Halving and doubling
#
# A ring has $2(p-1)$ steps. If a message takes 10 µs however short it is, that is 0.2 s with 10,000 ranks, before the
# bytes have taken any time. **Recursive doubling** needs the fewest steps. In the first round partners at distance 1 swap
# their tensors and add; then each rank has the sum of two. In the next round partners at distance 2 swap these sums, and
# have those of four; then at distance 4, and so on: $\log_2 p$ rounds. A rank's number differs from its partner's in one
# bit: `rank ^ distance`.
#
# So it works if $p$ is a power of two. Otherwise let $c$ be the largest power of two that is at most $p$. Each rank
# $r$ from $c$ on **folds**: first it sends its tensor to rank $r - c$, which adds it to its own; in the end rank $r - c$ sends it
# the result. That costs two more messages, of the whole tensor each.


# %% exercise="recursive_doubling_all_reduce" points=13
def recursive_doubling_all_reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Replace x by the sum of all ranks' x, by recursive doubling; returns x.

    x: of one shape and dtype on all ranks. Any number p of ranks: those from place c on fold (above).
    Among the places below c, log2 c rounds with one message each way, at the same time: a rank swaps
    what it has added up with partners at distance 1, 2, 4, ...
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    if rank >= core:
        dist.send(data, group_dst=rank - core, group=group)
        dist.recv(data, group_src=rank - core, group=group)
        return x.copy_(data)
    arriving = torch.empty_like(data)
    folded = rank + core < size
    if folded:
        dist.recv(arriving, group_src=rank + core, group=group)
        data += arriving
    distance = 1
    while distance < core:
        sending = dist.isend(data, group_dst=rank ^ distance, group=group)
        dist.recv(arriving, group_src=rank ^ distance, group=group)
        sending.wait()
        data += arriving
        distance *= 2
    if folded:
        dist.send(data, group_dst=rank + core, group=group)
    return x.copy_(data)
    ### END SOLUTION


# %% [markdown]
# Few steps, and many bytes: every round sends the whole tensor. Eight ranks, for each byte of it:

# %% demo=true
# %%needs recursive_doubling_all_reduce ring_all_reduce
for way in (recursive_doubling_all_reduce, ring_all_reduce):
    run = launch(way, torch.ones(64_000), ranks=8)
    sent = run.traffic[0]
    print(f"{way.__name__:30} {sent.messages:2} messages, {sent.sent / 256_000:.2f} bytes")

# %% demo=true jupyter={"source_hidden": true}
# %%holds recursive_doubling_all_reduce ring_all_reduce
# The ring's are the numbers left over from the loop.
assert (sent.messages, sent.sent) == (14, 2 * 7 * 256_000 // 8)
sent = launch(recursive_doubling_all_reduce, torch.ones(64_000), ranks=8).traffic[0]
assert (sent.messages, sent.sent) == (3, 3 * 256_000)

# %% [markdown]
# **Find the mistake.** A lecture's slide on the costs of collectives is headed "recursive halving". Its partners are at distance 1, then
# 2, then 4, and it counts O(p) bytes of all ranks together. What does not fit?
#
# <details><summary>Answer</summary>
#
# Whoever swaps whole tensors at distance 1, 2, 4 is doubling: each rank sends $\log_2 p$ tensors, which is O(p log p) of all
# ranks together. It is O(p) only if partners swap halves, then quarters, and so on, as below. Then the distances may come in any
# order.
#
# </details>
#
# So recursive doubling is for short tensors. Rabenseifner's algorithm has few steps and few bytes, with $2 \log_2 p$ rounds:
#
# - **Halve.** Partners at distance $p/2$ swap halves: the lower rank of a pair keeps the lower half, gets the partner's
#   lower half and adds. Then the same at distance $p/4$ with what is left: a quarter, and so on. After $\log_2 p$ rounds
#   each rank has a $p$-th of the sum: a reduce-scatter in $b/2 + b/4 + \dots = \frac{p-1}{p} b$ bytes.
# - **Double.** The same partners in reverse order swap what they have: an all-gather.
#
# It sends exactly as many bytes as the ring, in far fewer messages. Where $p$ is no power of two the ranks from $c$ on fold,
# as above.


# %% exercise="halving_doubling_all_reduce" points=14
def halving_doubling_all_reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Replace x by the sum of all ranks' x, by recursive halving and doubling; returns x.

    x: of one shape and dtype on all ranks. Any number p of ranks: those from place c on fold (above).
    Among the places below c, 2 log2 c rounds with one message each way; what is sent halves from round
    to round (halves may differ by one element, nothing is padded), then doubles.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    flat = data.view(-1)

    def swap(outgoing: Tensor, incoming: Tensor, partner: int) -> None:
        sending = dist.isend(outgoing, group_dst=partner, group=group)
        dist.recv(incoming, group_src=partner, group=group)
        sending.wait()

    if rank >= core:
        dist.send(flat, group_dst=rank - core, group=group)
        dist.recv(flat, group_src=rank - core, group=group)
        return x.copy_(data)
    folded = rank + core < size
    if folded:
        arriving = torch.empty_like(flat)
        dist.recv(arriving, group_src=rank + core, group=group)
        flat += arriving

    buffer = flat.new_empty((flat.numel() + 1) // 2)
    part, rounds, distance = flat, [], core // 2
    while distance:
        middle = part.numel() // 2
        lower, upper = part[:middle], part[middle:]
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        arriving = buffer[: kept.numel()]
        swap(given, arriving, rank ^ distance)
        kept += arriving
        rounds.append((rank ^ distance, kept, given))
        part, distance = kept, distance // 2
    for partner, kept, given in reversed(rounds):
        swap(kept, given, partner)

    if folded:
        dist.send(flat, group_dst=rank + core, group=group)
    return x.copy_(data)
    ### END SOLUTION


# %% demo=true
# %%needs halving_doubling_all_reduce
step_through(steps_of(halving_doubling_all_reduce, ranks=8))

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce halving_doubling_all_reduce
both = [launch(way, torch.ones(64_000), ranks=8) for way in (ring_all_reduce, halving_doubling_all_reduce)]
assert len({rank.sent for run in both for rank in run.traffic.ranks}) == 1
assert [run.traffic.messages for run in both] == [8 * 14, 8 * 6]

# %% [markdown]
# ## 5 Hierarchies
#
# A node has several GPUs with fast links between them, and slower links to the other nodes. A ring over all ranks crosses
# from node to node as often as there are nodes, each time with all of its bytes. Better is a sum in three stages:
#
# 1. within each node a reduce-scatter: GPU $i$ of the node holds chunk $i$ of the node's sum;
# 2. between nodes: the GPUs with the same local rank on each node all-reduce their chunk, all chunks at the same time;
# 3. within each node an all-gather.
#
# Let there be $N$ nodes. Of $b$ bytes a node now sends $2\frac{N-1}{N} b$ to other nodes. That is a little less than in the
# ring, where one GPU of each node sends everything that leaves the node; here it is spread over all GPUs of the node, which
# send at the same time. So it pays most where each GPU has a network card of its own.
#
# All stages are rings that you have, over some of the ranks. Either write the ring's steps for a list of places, or make a
# group of these ranks. Mind that `dist.new_group(ranks)` takes global ranks and waits for *all* ranks of the default group,
# while only those of `group` come here; `dist.new_group(ranks, use_local_synchronization=True)` waits for its members only.


# %% exercise="hierarchical_all_reduce" points=13
def hierarchical_all_reduce(x: Tensor, gpus_per_node: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Replace x by the sum of all ranks' x, within nodes first; returns x.

    x: of one shape and dtype on all ranks. The group's places 0 to gpus_per_node - 1 are node 0, and so
    on; its size is a multiple of gpus_per_node. Ring reduce-scatter within the node, ring all-reduce of
    this rank's chunk among the ranks with the same local rank (place % gpus_per_node), ring all-gather
    within it.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    node, local = divmod(rank, gpus_per_node)
    data = x.contiguous()

    def pass_on(members: list[int], outgoing: Tensor, incoming: Tensor) -> None:
        """To the next of the members, from the one before."""
        me = members.index(rank)
        sending = dist.isend(outgoing, group_dst=members[(me + 1) % len(members)], group=group)
        dist.recv(incoming, group_src=members[me - 1], group=group)
        sending.wait()

    def reduce_scatter(chunks: list[Tensor], members: list[int]) -> None:
        count, me = len(members), members.index(rank)
        for step in range(count - 1):
            target = chunks[(me - 2 - step) % count]
            arriving = torch.empty_like(target)
            pass_on(members, chunks[(me - 1 - step) % count], arriving)
            target += arriving

    def all_gather(chunks: list[Tensor], members: list[int]) -> None:
        count, me = len(members), members.index(rank)
        for step in range(count - 1):
            pass_on(members, chunks[(me - step) % count], chunks[(me - step - 1) % count])

    neighbours = list(range(node * gpus_per_node, (node + 1) * gpus_per_node))
    rail = list(range(local, size, gpus_per_node))
    chunks = list(torch.tensor_split(data.view(-1), gpus_per_node))
    pieces = list(torch.tensor_split(chunks[local], len(rail)))
    reduce_scatter(chunks, neighbours)
    reduce_scatter(pieces, rail)
    all_gather(pieces, rail)
    all_gather(chunks, neighbours)
    return x.copy_(data)
    ### END SOLUTION


# %% [markdown]
# Four nodes with 4 GPUs each, fast links inside and one slower link per GPU outside, 4 MB:

# %% demo=true
# %%needs ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
nodes = Cluster(
    nodes=4,
    devices_per_node=4,
    intra_node=Link(latency=3e-6, bandwidth=200e9),
    inter_node=Link(latency=10e-6, bandwidth=12.5e9),
)
four_megabytes = torch.ones(1_000_000)


def between_nodes(run) -> list:
    """The messages that ranks sent to other nodes than their own."""
    node = run.cluster.node_of
    return [event for event in run.events if event.op == "send" and node(event.rank) != node(event.peer)]


crossing = {}
print(f"{'':17} {'time':>8} {'between nodes':>14} {'busiest GPU':>15} {'longest message':>16}")
for name, run in {
    "ring": launch(ring_all_reduce, four_megabytes, cluster=nodes),
    "halving-doubling": launch(halving_doubling_all_reduce, four_megabytes, cluster=nodes),
    "hierarchical": launch(hierarchical_all_reduce, four_megabytes, 4, cluster=nodes),
}.items():
    sent = between_nodes(run)
    total, longest = sum(message.sent for message in sent), max(message.sent for message in sent)
    most = max(sum(message.rank == rank for message in sent) for rank in range(run.ranks))
    crossing[name] = (run.seconds, total, most, longest)
    print(
        f"{name:17} {run.seconds * 1e6:5.0f} µs {total / 1e6:11.1f} MB {most:6} messages {longest:10,} bytes"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
assert crossing["ring"][1:] == (30_000_000, 30, 250_000)
assert crossing["hierarchical"][1:] == (24_000_000, 6, 250_000)
assert crossing["halving-doubling"][3] == 2_000_000
assert crossing["hierarchical"][0] == min(crossing.values())[0]

# %% [markdown]
# In the ring each of the four nodes sends 7.5 MB to another one, 30 MB altogether, and it is always the same GPU of a node that
# sends: $2(p-1) = 30$ messages of $b/p$ = 250,000 bytes, one after another. In the hierarchy each node sends 6 MB, 24 MB
# altogether, in messages of the same length, of which each of its four GPUs sends $2(N-1) = 6$, all at the same time.
# Halving-doubling crosses with its largest messages first, half of the tensor, unless ranks are numbered so that distant partners
# sit on the same node.
#
# ## 6 All to all
#
# In an **all-to-all** every rank has a different part for every other, as if a matrix of parts were transposed. There is
# nothing to add and nothing to pass on: $p(p-1)$ parts must go from where they are to where they belong. What is left to
# choose is the order. If all ranks send to rank 0 first, they have to wait in line there.


# %% exercise="all_to_all_pairwise" points=12
def all_to_all_pairwise(
    outputs: list[Tensor], inputs: list[Tensor], group: dist.ProcessGroup | None = None
) -> list[Tensor]:
    """Send inputs[i] to the rank at place i, and receive outputs[i] from it; returns outputs.

    inputs, outputs: one tensor for each place of the group, in any lengths; outputs[i] has the shape
    and dtype of what place i has for this rank, and is overwritten. inputs stay as they are. In each of
    p - 1 rounds every rank sends and receives one message, no two to the same rank.
    """
    ### BEGIN SOLUTION
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        arriving = outputs[left].contiguous()
        sending = dist.isend(inputs[right].contiguous(), group_dst=right, group=group)
        dist.recv(arriving, group_src=left, group=group)
        sending.wait()
        outputs[left].copy_(arriving)
    return outputs
    ### END SOLUTION


# %% [markdown]
# ## 7 What it costs
#
# Three numbers describe a network well enough to choose an algorithm (Hockney 1994; Thakur, Rabenseifner and Gropp 2005):
#
# - $\alpha$, the latency: seconds until a message of no bytes has arrived;
# - $\beta$, seconds per byte, one over the bandwidth; a message of $b$ bytes takes $\alpha + b\beta$ seconds;
# - $\gamma$, seconds to add a byte that has arrived to what is there.
#
# A rank sends one message and receives one at a time. Count, for each algorithm, the messages, bytes and additions that
# come one after another.


# %% exercise="predict_time" points=8
def predict_time(
    algorithm: str, nbytes: int, ranks: int, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """Seconds that an all-reduce of nbytes on so many ranks takes.

    alpha: seconds per message. beta: seconds per byte. gamma: seconds to add a received byte.
    algorithm is one of
        "master"            each rank in turn sends its tensor to rank 0, then rank 0 the sum to each
        "exchange"          all ranks at once send their tensor to each other one in turn, and add
        "tree"              reduce_tree, then broadcast_tree: ceil(log2 p) rounds each
        "ring"              ring_all_reduce, in chunks of nbytes / ranks
        "halving_doubling"  with c the largest power of two up to ranks: 2 log2 c rounds, and if
                            ranks > c one message of nbytes before, which is added, and one after
    A single rank takes 0 seconds.
    """
    ### BEGIN SOLUTION
    n, p = nbytes, ranks
    rounds = (p - 1).bit_length()
    core = 1 << (p.bit_length() - 1)
    fold = int(p > core)
    half = (core - 1) / core * n
    messages, sent, added = {
        "master": (2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n),
        "exchange": (p - 1, (p - 1) * n, (p - 1) * n),
        "tree": (2 * rounds, 2 * rounds * n, rounds * n),
        "ring": (2 * (p - 1), 2 * (p - 1) * n / p, (p - 1) * n / p),
        "halving_doubling": (
            2 * (core.bit_length() - 1) + 2 * fold,
            2 * half + 2 * fold * n,
            half + fold * n,
        ),
    }[algorithm]
    return messages * alpha + sent * beta + added * gamma
    ### END SOLUTION


# %% [markdown]
# Does the simulator agree? It knows nothing of these formulas: it moves the messages that your functions send. Where no link is
# shared, the two must meet exactly.

# %% demo=true
# %%needs broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce predict_time
functions = {**ways, "halving_doubling": halving_doubling_all_reduce}
print(f"{'algorithm':17} {'formula':>12} {'simulated':>12}   (8 ranks, 1 MB, 10 µs, 12.5 GB/s)")
for name, function in functions.items():
    predicted = predict_time(name, 1_000_000, 8, fast.latency, 1 / fast.bandwidth)
    simulated = launch(function, megabyte, cluster=Cluster(nodes=8, inter_node=fast)).seconds
    print(f"{name:17} {predicted * 1e6:9.2f} µs {simulated * 1e6:9.2f} µs")

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce predict_time
for p in (2, 3, 4, 5, 8, 16):
    for name, function in functions.items():
        predicted = predict_time(name, 960_000, p, fast.latency, 1 / fast.bandwidth)
        simulated = launch(function, torch.ones(240_000), cluster=Cluster(nodes=p, inter_node=fast)).seconds
        assert math.isclose(predicted, simulated, rel_tol=1e-6), (name, p, predicted, simulated)

# %% [markdown]
# ### Measure your machine
#
# Now for real: two processes of this machine throw a tensor back and forth. Half a round trip is one message. Whatever else
# the machine does can only make it slower, so the fastest of several trips is nearest to what the link can do.

# %% demo=true


def ping_pong(sizes: list[int], repeats: int = 15) -> list[tuple[int, float]]:
    """(bytes, seconds) of one message, for each size: the fastest of several round trips, halved."""
    me, samples = dist.get_rank(), []
    for nbytes in sizes:
        ball, seconds = torch.zeros(nbytes, dtype=torch.uint8), []
        for _ in range(repeats):
            start = time.perf_counter()
            for turn in (0, 1):
                dist.send(ball, 1 - me) if me == turn else dist.recv(ball, 1 - me)
            seconds.append((time.perf_counter() - start) / 2)
        samples.append((nbytes, min(seconds)))
    return samples


message_sizes = [4**power for power in range(6, 14)]
samples = launch(ping_pong, message_sizes, ranks=2, on="processes", timeout=120).results[0]
for nbytes, seconds in samples:
    print(f"{nbytes:12,} bytes {seconds * 1e6:10.1f} µs {nbytes / seconds / 1e9:8.2f} GB/s")

# %% [markdown]
# The line $\alpha + b\beta$ through these points has to be right at both ends. An ordinary least-squares fit minds
# only the longest messages, since their errors in seconds are largest, and makes $\alpha$ whatever suits them. So
# minimise *relative* errors: with $t_i$ the seconds measured for $b_i$ bytes, $\sum_i \big((\alpha + b_i\beta)/t_i - 1\big)^2$.


# %% exercise="fit_alpha_beta" points=6
def fit_alpha_beta(samples: list[tuple[int, float]]) -> tuple[float, float]:
    """The (alpha, beta) for which alpha + nbytes * beta is nearest to the measured seconds, in relative
    terms.

    samples: pairs (nbytes, seconds), at least two different sizes, in any order; the list stays as it
    is. Minimises the sum of squared relative errors (above); alpha may come out
    negative. Returns two Python floats.
    """
    ### BEGIN SOLUTION
    nbytes, seconds = torch.tensor(samples, dtype=torch.float64).T
    columns = torch.stack([1 / seconds, nbytes / seconds], dim=1)
    scale = columns.max(dim=0).values
    solution = torch.linalg.lstsq(columns / scale, torch.ones(len(samples), 1, dtype=torch.float64)).solution
    alpha, beta = (solution[:, 0] / scale).tolist()
    return alpha, beta
    ### END SOLUTION


# %% demo=true
# %%needs fit_alpha_beta
alpha, beta = fit_alpha_beta(samples)
print(
    f"alpha = {alpha * 1e6:.0f} µs, beta = {beta * 1e9:.3f} ns per byte, a bandwidth of {1 / beta / 1e9:.2f} GB/s"
)
line_figure(
    {
        "measured": tuple(zip(*((nbytes, seconds * 1e6) for nbytes, seconds in samples), strict=True)),
        "alpha + b beta": (message_sizes, [(alpha + nbytes * beta) * 1e6 for nbytes in message_sizes]),
    },
    x="message (bytes)",
    y="time (µs)",
    log_x=True,
    log_y=True,
    alt="Time of one message between two processes against its size, on logarithmic axes: flat "
    "where latency counts, then rising in proportion; the fitted line, nearest to the points in relative terms.",
)

# %% [markdown]
# The size at which both terms are equal, $\alpha/\beta$, divides short messages, for which only their number matters,
# from long ones, for which only their bytes do.
#
# ### Where one algorithm overtakes another
#
# With your two numbers, on 16 ranks:

# %% demo=true
# %%needs predict_time
names = ["master", "tree", "ring", "halving_doubling"]
lengths = [4**power for power in range(4, 15)]


def curves(ranks: int, alpha: float, beta: float) -> dict:
    """Predicted milliseconds of each algorithm against the tensor's bytes."""
    return {
        name.replace("_", "-"): (
            lengths,
            [predict_time(name, nbytes, ranks, alpha, beta) * 1e3 for nbytes in lengths],
        )
        for name in names
    }


def crossover(first: str, second: str, ranks: int, alpha: float, beta: float) -> float | None:
    """Bytes at which `second` becomes the faster one: where two straight lines meet."""
    (a1, b1), (a2, b2) = (
        (predict_time(name, 0, ranks, alpha, beta), predict_time(name, 1, ranks, 0, beta))
        for name in (first, second)
    )
    return (a2 - a1) / (b1 - b2) if b1 > b2 and a2 > a1 else None


# %% demo=true
# %%needs predict_time fit_alpha_beta
meeting = crossover("tree", "ring", 16, alpha, beta)
print(f"On 16 ranks the ring overtakes the tree at {meeting:,.0f} bytes.")
print(f"alpha / beta is {alpha / beta:,.0f} bytes.")

# %% demo=true
# %%needs predict_time


def compare(ranks: int, latency: float):
    """The curves of all algorithms on links of 12.5 GB/s."""
    return line_figure(
        curves(ranks, latency * 1e-6, 1 / 12.5e9),
        x="tensor (bytes)",
        y="predicted time (ms)",
        title=f"{ranks:,} ranks, {latency} µs, 12.5 GB/s",
        log_x=True,
        log_y=True,
        order=LOOKS,
        alt=f"Predicted time of an all-reduce against size on {ranks:,} ranks, latency {latency} µs: the "
        "tree is fastest for short tensors together with halving-doubling, the ring catches up for long "
        "ones, the master loses.",
    )


explore(
    compare,
    ranks=Slider([4, 16, 64, 256, 1024, 10_000], start=256, label="ranks"),
    latency=Slider([1, 3, 10, 30, 100], start=10, label="latency (µs)"),
)

# %% [markdown]
# Move the number of ranks to 10,000. Why do ring and halving-doubling cross there, and not at 1,024? Because 10,000 is no
# power of two: 1,808 ranks are folded, which costs two messages of the whole tensor, and long tensors notice.
#
# ### Ten thousand GPUs
#
# The second prediction, with ResNet-50's 102.2 MB, 10 µs per message and links of 12.5 GB/s:

# %% demo=true
# %%needs predict_time
gradients = 4 * 25_557_032
milliseconds = {}
print(f"{'ranks':>7}" + "".join(f"{name:>18}" for name in names))
for count in (8, 64, 1024, 8192, 10_000):
    for name in names:
        milliseconds[name, count] = predict_time(name, gradients, count, 10e-6, 1 / 12.5e9) * 1e3
    print(f"{count:7,}" + "".join(f"{milliseconds[name, count]:15.1f} ms" for name in names))
meeting = crossover("halving_doubling", "ring", 10_000, 10e-6, 1 / 12.5e9)
print(f"On 10,000 ranks the ring overtakes halving-doubling at {meeting / 1e6:,.0f} MB.")

# %% demo=true jupyter={"source_hidden": true}
# %%holds predict_time
assert (round(milliseconds["ring", 8]), round(milliseconds["ring", 10_000])) == (14, 216)
latency = predict_time("ring", 0, 10_000, 10e-6, 1 / 12.5e9) * 1e3
assert (round(latency), round(milliseconds["ring", 10_000] - latency)) == (200, 16)
assert round(milliseconds["halving_doubling", 8192]) == 17
assert 120_000 < milliseconds["master", 10_000] < 180_000
assert crossover("halving_doubling", "ring", 1024, 10e-6, 1 / 12.5e9) is None
assert meeting is not None
assert 10_000 - 8192 == 1808
guesses.measured(milliseconds_on_10000_gpus=milliseconds["ring", 10_000])

# %% [markdown]
# From 8 ranks to 10,000 the ring goes from 14 ms to 216 ms: 16 ms for the bytes, hardly more than with 8, and 200 ms of
# latency. Halving-doubling takes 17 ms on 8,192. The master would need over two minutes. That is the whole reason why a
# library has several algorithms and chooses among them by size, number of ranks and network; NCCL calls its tree and
# its ring by these names (`NCCL_ALGO=Ring,Tree`).
#
# ## 8 The simulator as an instrument
#
# So far all links were alike. In a real machine some devices sit on one node and others do not, and the devices of a node
# may share a network card: then their messages to other nodes take turns. `course_lib.cluster.presets` has five machines, with
# numbers from their makers' documents (`help(presets.lumi_g)`). Three of them, with 16 devices each:

# %% demo=true
from course_lib.cluster import presets

machines = [presets.h100_pod(nodes=2), presets.lumi_g(nodes=2), presets.frontera_rtx(nodes=4)]
for machine in machines:
    print(
        f"{machine.name:13} {machine.nodes} nodes of {machine.devices_per_node} devices, cards per node: "
        f"{machine.cards_per_node}; GB/s: {machine.intra_node.bandwidth / 1e9:.0f} within a node, "
        f"{machine.inter_node.bandwidth / 1e9:.1f} a card"
    )


def seconds_on(machine: Cluster, function, nbytes: int, *arguments) -> float:
    """Predicted seconds of one call on all devices of a machine."""
    return launch(function, torch.empty(nbytes // 4, device="meta"), *arguments, cluster=machine).seconds


# %% [markdown]
# **Predict.** Halving-doubling sends as many bytes as the ring, in far fewer messages. On which of these machines does the
# ring win over it nevertheless, for long tensors? Write "yes" or "no".
#
# The tensors below are on the device `meta`: they have a shape and no numbers. Messages, additions and their times are the
# same, and 268 MB on each of 16 ranks take no memory.

# %% demo=true
guesses.ask(ring_wins_on_h100_pod=None, ring_wins_on_lumi_g=None, ring_wins_on_frontera=None)

# %% demo=true
# %%needs broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
instrument_sizes = [2**power for power in (14, 17, 20, 23, 26, 28)]


def times_on(machine: Cluster) -> dict:
    """Predicted milliseconds of each algorithm against the tensor's bytes."""
    contestants = {
        "tree": (tree_all_reduce,),
        "ring": (ring_all_reduce,),
        "halving-doubling": (halving_doubling_all_reduce,),
        "hierarchical": (hierarchical_all_reduce, machine.devices_per_node),
    }
    return {
        name: (instrument_sizes, [seconds_on(machine, call, n, *more) * 1e3 for n in instrument_sizes])
        for name, (call, *more) in contestants.items()
    }


predictions = {machine.name: times_on(machine) for machine in machines}

# %% demo=true jupyter={"source_hidden": true}
# %%needs broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
figure, panels = new_figure(
    alt="Predicted time of an all-reduce against size on 16 devices of three machines. H100 pod: hierarchical "
    "is fastest for long tensors, then halving-doubling, then the ring. LUMI-G: hierarchical, ring, "
    "halving-doubling. Frontera: ring, hierarchical, halving-doubling. For short tensors tree and "
    "halving-doubling lead everywhere.",
    columns=3,
    width=12.0,
)
for axes, (machine, lines) in zip(panels, predictions.items(), strict=True):
    draw_lines(axes, lines, x="tensor (bytes)", y="predicted time (ms)", order=LOOKS)
    axes.set(xscale="log", yscale="log", ylim=(0.03, 500), title=machine)
legend_beside(panels[-1])
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
for machine, fastest_first in {
    "H100 pod": ["hierarchical", "halving-doubling", "ring"],
    "LUMI-G": ["hierarchical", "ring", "halving-doubling"],
    "Frontera rtx": ["ring", "hierarchical", "halving-doubling"],
}.items():
    lines = predictions[machine]
    assert sorted(fastest_first, key=lambda name: lines[name][1][-1]) == fastest_first, machine
    assert {"tree", "halving-doubling"} == set(sorted(lines, key=lambda name: lines[name][1][0])[:2]), machine
    ring, halving = lines["ring"][1][-1], lines["halving-doubling"][1][-1]
    question = "ring_wins_on_" + machine.lower().replace(" rtx", "").replace(" ", "_").replace("-", "_")
    guesses.measured(**{question: "yes" if ring < halving else "no"})

# %% [markdown]
# Not on the H100 pod, where each device has a card of its own. On LUMI-G two devices share a card, on Frontera four. Halving-doubling
# begins with half of the tensor, from every device to another node, all at the same time: two devices on a card take twice
# as long, four take four times as long. In a ring one device of a node sends to the next node, and the card is never shared.
#
# The hierarchy wins where a node's own links are much faster than its cards. On Frontera they are not: it saves nothing on
# the card that the ring had not saved, and its two passes inside the node cost time. There is no best algorithm, only
# a best one for a size and a machine.
#
# What would more cards change? LUMI-G with one card a node, with two, with its four, with eight:

# %% demo=true
# %%needs broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
from dataclasses import replace


def with_cards(cards: int):
    """The curves of all algorithms on two nodes like LUMI-G's that have so many cards."""
    return line_figure(
        times_on(replace(presets.lumi_g(nodes=2), cards_per_node=cards)),
        x="tensor (bytes)",
        y="predicted time (ms)",
        title=f"2 nodes of 8 devices, {cards} card{'s' * (cards > 1)} a node",
        log_x=True,
        log_y=True,
        order=LOOKS,
        alt=f"Predicted time of an all-reduce against size on two nodes of 8 devices with {cards} cards each. "
        "Tree, halving-doubling and hierarchical get faster with more cards; the ring does not.",
    )


explore(with_cards, cards=Slider([1, 2, 4, 8], start=1, label="cards per node"))

# %% demo=true jupyter={"source_hidden": true}
# %%holds broadcast_tree reduce_tree ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce
one_card, eight_cards = (times_on(replace(presets.lumi_g(nodes=2), cards_per_node=cards)) for cards in (1, 8))
faster = {name for name in one_card if eight_cards[name][1][-1] < 0.9 * one_card[name][1][-1]}
assert faster == {"tree", "halving-doubling", "hierarchical"}, faster
assert math.isclose(eight_cards["ring"][1][-1], one_card["ring"][1][-1])

# %% [markdown]
# The ring is the only one that seven more cards do not help: it uses one of them. NCCL therefore runs several rings at
# once, each leaving a node through another card.
#
# ### When something is wrong
#
# A cluster can be disturbed: one rank that computes slowly, a bad cable, a bad node, messages that are not all equally
# fast. Take a training step that computes, then sums up 64 MB of gradients round the ring:

# %% demo=true
# %%needs ring_all_reduce


def training_step(x: Tensor, weights: Tensor) -> None:
    """A matrix product for the forward and backward pass, then the gradients."""
    weights @ weights
    ring_all_reduce(x)


healthy = presets.lumi_g(nodes=2)
conditions = {
    "healthy": healthy,
    "rank 5 computes half as fast": healthy.with_straggler(5, slowdown=2),
    "cable between ranks 7 and 8, 10 times slower": healthy.with_slow_link(7, 8, slowdown=10),
    "cable between ranks 2 and 12, 10 times slower": healthy.with_slow_link(2, 12, slowdown=10),
    "node 1 sends and receives at half speed": healthy.with_slow_node(1, slowdown=2),
}
mine, weights = torch.empty(16_000_000, device="meta"), torch.empty(4096, 4096, device="meta")
whole, alone = {}, {}
print(f"{'':46} {'step':>8} {'all-reduce alone':>17}")
for name, cluster in conditions.items():
    whole[name] = launch(training_step, mine, weights, cluster=cluster).seconds
    alone[name] = seconds_on(cluster, ring_all_reduce, mine.nbytes)
    print(f"{name:46} {whole[name] * 1e3:5.1f} ms {alone[name] * 1e3:14.1f} ms")

print("\nEach message a fifth longer on average, five draws: the ring takes longer by")
jitter = {}
for machine in (healthy, presets.frontera_rtx(nodes=4)):
    quiet = seconds_on(machine, ring_all_reduce, mine.nbytes)
    drawn = [machine.with_jitter(seed=seed, spread=0.2) for seed in range(5)]
    jitter[machine.name] = [seconds_on(each, ring_all_reduce, mine.nbytes) / quiet - 1 for each in drawn]
    print(f"{machine.name:13}", *(f"{longer:5.0%}" for longer in jitter[machine.name]))

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce
computing = whole["healthy"] - alone["healthy"]
assert math.isclose(whole["rank 5 computes half as fast"] - whole["healthy"], computing, rel_tol=0.05)
assert alone["cable between ranks 7 and 8, 10 times slower"] > 5 * alone["healthy"]
assert alone["cable between ranks 2 and 12, 10 times slower"] == alone["healthy"]
assert min(jitter["Frontera rtx"]) > 1 / 3
assert all(0.15 < longer < 0.25 for longer in jitter["LUMI-G"])

# %% [markdown]
# The straggler delays everyone by all of its delay: the ring waits for it. One bad cable slows the whole ring if the ring
# uses it, and nobody if it does not. And why does the same jitter cost about a fifth on LUMI-G, but more than a third on
# Frontera? On Frontera all links are about equally fast, so each step waits for the slowest of 16 messages. On LUMI-G the
# two messages between the nodes decide; those within a node, twice as fast, have time to spare.
#
# Worst is a rank that answers nothing any more. On a real cluster that is a hang, until a time limit ends it: by default
# after 10 minutes with NCCL, after half an hour with Gloo. Here it has a name:

# %% demo=true
# %%needs ring_all_reduce
try:
    launch(training_step, mine, weights, cluster=presets.pcie_box().with_lost_rank(2, after=0.015))
    raise AssertionError("nobody missed rank 2")
except RankLost as error:
    print(error.report)

# %% [markdown]
# How far can one trust these times? On the same star of links they are within 0.1 % of those of SimGrid, with which
# networks are simulated in research (`benchmarks/smpi.py`). That says that the calculation is right; whether the
# model is depends on its numbers, and those of makers are peaks. Fit your own, as in section 7.
#
# ## 9 The deadlock lab
#
# Six programs that hang. A real cluster would sit there until the time limit, 10 minutes or half an hour later. The
# simulator knows at once, because it sees that no rank can go on, and says who waits for whom and in which line. A report also
# ends with a line "What to do". It is left out here, for it would give the cause away. Read each report; in the end you name the
# causes, and fix the programs. You know what most of them need, so take this section as a rest.

# %% demo=true


def seen(error) -> str:
    """The report of a program that hangs, without the advice at its end."""
    return error.report.partition("\n\nWhat to do:")[0]


def hangs(program, *arguments, ranks: int) -> None:
    """Run a program that hangs, and print what is seen of it."""
    try:
        launch(program, *arguments, ranks=ranks, quiet=True)
        raise AssertionError(f"{program.__name__} does not hang")
    except (Deadlock, CollectiveMismatch, RankFailed) as error:
        print(f"{type(error).__name__}: {seen(error)}")


def each_rank_its_number(ranks: int):
    """A tensor a rank, with its rank in it."""
    return per_rank(torch.full((3,), float(rank)) for rank in range(ranks))


# %% [markdown]
# **swap**: ranks 2k and 2k + 1 swap tensors.

# %% demo=true


def swap(x):
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    dist.recv(arriving, partner)
    dist.send(x, partner)
    return arriving


hangs(swap, each_rank_its_number(2), ranks=2)

# %% [markdown]
# **shift**: everyone sends its tensor to the right neighbour, then receives from the left one. Here the network is one on
# which short messages need not wait for their receivers. The same program, with 12 bytes and with 8,000:

# %% demo=true


def shift(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.send(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    return arriving


eager = Cluster(devices_per_node=ranks, eager_limit=4096)
arrived = launch(shift, each_rank_its_number(ranks), cluster=eager).results
assert [x[0].item() for x in arrived] == [(rank - 1) % ranks for rank in range(ranks)]
print("   12 bytes:", arrived[0])
try:
    launch(shift, torch.zeros(2000), cluster=eager)
    raise AssertionError("long messages did not wait for their receivers")
except Deadlock as error:
    print(f"8,000 bytes: {seen(error)}")
    show(error.figure())
    guesses.measured(two_ranks_send_first="sometimes")

# %% [markdown]
# The third prediction: it works sometimes. Many systems keep a short message in a buffer, so that its send returns at
# once. What is longer than the **eager limit**, some kilobytes in MPI, has to wait until the receiver takes it. A program
# that needs the buffer works in every test with small tensors, and hangs as soon as they grow. That is worse than a
# program that never works.
#
# **report**: rank 0 prints the mean loss. It is shown twice, first without its barrier.

# %% demo=true


def report(loss):
    if dist.get_rank() == 0:
        total = torch.tensor(loss)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    dist.barrier()
    return None


def report_without_barrier(loss):
    if dist.get_rank() == 0:
        total = torch.tensor(loss)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    return None


hangs(report_without_barrier, 0.5, ranks=3)
print("\nAnd with a later collective on all ranks, which meets the wrong one:\n")
hangs(report, 0.5, ranks=3)

# %% [markdown]
# **grid_sums**: ranks in a grid add up along their row and along their column. Each rank makes the two groups that it
# needs, neatly sorted.

# %% demo=true


def grid_sums(x, columns):
    rank, size = dist.get_rank(), dist.get_world_size()
    row = [r for r in range(size) if r // columns == rank // columns]
    column = [r for r in range(size) if r % columns == rank % columns]
    groups = {tuple(line): dist.new_group(line) for line in sorted([row, column])}
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=groups[tuple(row)])
    dist.all_reduce(column_sum, group=groups[tuple(column)])
    return row_sum, column_sum


hangs(grid_sums, each_rank_its_number(4), 2, ranks=4)

# %% [markdown]
# **collect**: each rank has some rows, and rank 0 collects them. It expects as many of each rank as it has itself.

# %% demo=true


def collect(rows):
    if dist.get_rank() != 0:
        for row in rows:
            dist.send(row, 0)
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        for _ in rows:
            arriving = torch.empty(40)
            dist.recv(arriving, rank)
            collected.append(arriving)
    return collected


hangs(collect, per_rank([list(torch.zeros(count, 40)) for count in (3, 3, 2)]), ranks=3)

# %% [markdown]
# **chain**: each rank adds the square root of its value to what the rank before it has, and all meet at a barrier in
# the end, whatever happens. Rank 1 has a negative value, and `math.sqrt` raises. Where is its error message?

# %% demo=true


def chain(value):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(1, dtype=torch.float64)
    try:
        if rank > 0:
            dist.recv(total, rank - 1)
        total += math.sqrt(value)
        if rank < size - 1:
            dist.send(total, rank + 1)
        return total.item()
    finally:
        dist.barrier()


hangs(chain, per_rank([4.0, -9.0, 16.0]), ranks=3)

# %% [markdown]
# First the diagnosis. Which cause belongs to which program?


# %% exercise="causes_of_hangs" points=6
def causes_of_hangs() -> dict[str, str]:
    """Why each program hangs: a dictionary from program to cause.

    The keys are "swap", "shift", "report", "grid_sums", "collect" and "chain". The values, each
    used once: "all receive first" · "all send first" · "a collective that some ranks skip" · "groups
    made in different orders" · "more receives than sends" · "a barrier after an error".
    """
    ### BEGIN SOLUTION
    return {
        "swap": "all receive first",
        "shift": "all send first",
        "report": "a collective that some ranks skip",
        "grid_sums": "groups made in different orders",
        "collect": "more receives than sends",
        "chain": "a barrier after an error",
    }
    ### END SOLUTION


# %% [markdown]
# Now fix them, one after the other. Copy the program from above and change as little as you can.


# %% exercise="mend_swap" points=4
def mend_swap(x: Tensor) -> Tensor:
    """The tensor of the partner: ranks 2k and 2k + 1 swap. The number of ranks is even. x: contiguous.

    Returns a new tensor; x stays as it is. One send and one receive a rank.
    """
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    arriving = torch.empty_like(x)
    if rank % 2 == 0:
        dist.send(x, rank ^ 1)
        dist.recv(arriving, rank ^ 1)
    else:
        dist.recv(arriving, rank ^ 1)
        dist.send(x, rank ^ 1)
    return arriving
    ### END SOLUTION


# %% exercise="mend_shift" points=5
def mend_shift(x: Tensor) -> Tensor:
    """The tensor of the left neighbour on the ring, for any number of ranks from 2. x: contiguous.

    Returns a new tensor; x stays as it is. Each rank sends once and receives once; the whole takes at
    most the time of three messages, however many ranks there are.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    sending = dist.isend(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    sending.wait()
    return arriving
    ### END SOLUTION


# %% exercise="mend_report" points=4
def mend_report(loss: float) -> float | None:
    """The mean of all ranks' losses, on rank 0; None on all other ranks. One all_reduce."""
    ### BEGIN SOLUTION
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size() if dist.get_rank() == 0 else None
    ### END SOLUTION


# %% exercise="mend_grid_sums" points=6
def mend_grid_sums(x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The sums of x over the ranks of this rank's row, and over those of its column.

    Rank r stands in row r // columns and column r % columns; the grid is full. x stays as it is.
    Returns the pair. One all_reduce in a group of the row's ranks, and one in a group of the column's.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [dist.new_group(list(range(first, first + columns))) for first in range(0, size, columns)]
    verticals = [dist.new_group(list(range(first, size, columns))) for first in range(columns)]
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(column_sum, group=verticals[rank % columns])
    return row_sum, column_sum
    ### END SOLUTION


# %% exercise="mend_collect" points=5
def mend_collect(rows: list[Tensor]) -> list[Tensor] | None:
    """The rows of all ranks, in the order of ranks, in a new list on rank 0; None on all other ranks.

    rows: contiguous float32 tensors of 40 elements; each rank has its own number of them, perhaps 0.
    The list stays as it is. Each row is sent once, without padding; a rank may send at most 64 bytes
    more, to say how many there are.
    """
    ### BEGIN SOLUTION
    if dist.get_rank() != 0:
        dist.send(torch.tensor([len(rows)]), 0)
        for row in rows:
            dist.send(row, 0)
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, rank)
        for _ in range(count.item()):
            arriving = torch.empty(40)
            dist.recv(arriving, rank)
            collected.append(arriving)
    return collected
    ### END SOLUTION


# %% exercise="mend_chain" points=5
def mend_chain(value: float) -> float:
    """The sum of the square roots of the values of ranks 0 to this one.

    Each rank receives the sum so far from the rank before it, adds its own root and sends the new sum
    on, in float64; all ranks meet in one barrier at the end. If a value is negative, its rank raises
    math.sqrt's ValueError, which ends the run.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(1, dtype=torch.float64)
    if rank > 0:
        dist.recv(total, rank - 1)
    total += math.sqrt(value)
    if rank < size - 1:
        dist.send(total, rank + 1)
    dist.barrier()
    return total.item()
    ### END SOLUTION


# %% [markdown]
# ## 10 Now on real processes
#
# Your functions are plain `torch.distributed` code, so they run on real processes unchanged. `dist.all_reduce`, on the
# same tensor, is the yardstick; on CPUs it is the work of Gloo, the library behind `torch.distributed` there.

# %% demo=true
# %%needs ring_all_reduce halving_doubling_all_reduce predict_time fit_alpha_beta


def timed(function, length: int, repeats: int = 7) -> float:
    """Seconds of function(x) on `length` float32 elements, the fastest of several calls."""
    x, seconds = torch.ones(length), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        function(x)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


contestants = {
    "ring": ring_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "dist.all_reduce": library_all_reduce,
}
tensor_bytes = [4**power for power in range(6, 13)]


def race(repeats: int = 7) -> dict[str, list[float]]:
    """Milliseconds of each contestant for each size."""
    return {
        name: [timed(function, nbytes // 4, repeats) * 1e3 for nbytes in tensor_bytes]
        for name, function in contestants.items()
    }


measured = launch(race, ranks=ranks, on="processes", timeout=300).results[0]
lines = {name: (tensor_bytes, values) for name, values in measured.items()}
predicted = [predict_time("ring", nbytes, ranks, alpha, beta) * 1e3 for nbytes in tensor_bytes]
above = sum(seen > said for seen, said in zip(measured["ring"], predicted, strict=True))
print(
    f"{ranks} processes on {len(os.sched_getaffinity(0))} cores; {above} of {len(predicted)} times of the ring lie above"
)
line_figure(
    {**lines, "ring, predicted": (tensor_bytes, predicted)},
    x="tensor (bytes)",
    y="time (ms)",
    log_x=True,
    log_y=True,
    order=LOOKS,
    alt=f"Time of an all-reduce on {ranks} real processes against size: ring, halving-doubling and Gloo's "
    "all_reduce, and what the fitted alpha and beta predict for the ring.",
)

# %% [markdown]
# The model was fitted to single messages between two processes, and predicts a whole algorithm. It leaves out the
# additions ($\gamma$), Python's own time for each step, and that several messages at once share the memory of one machine.
# And where there are more processes than cores, ranks also wait for a core, which no network model knows. So the measured
# points mostly lie above the line; by how much depends on the cores. On a machine with a free core for each rank the measured
# curves have the same shape: flat as long as the number of messages counts, then straight.
#
# Scatter, gather and all-gather as well. Rank 0 deals out numbers, each rank doubles its own, rank 0 collects them, and in the end
# all ranks get all:

# %% demo=true
# %%needs scatter_from gather_to ring_all_gather


def doubled(length: int) -> tuple[list[int] | None, list[int]]:
    """Twice the numbers 0 .. length - 1, as rank 0 has collected them (None elsewhere), and as all have them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(length)
    parts = [part.clone() for part in numbers.tensor_split(size)]
    mine = 2 * scatter_from(torch.empty_like(parts[rank]), parts if rank == 0 else None)
    collected = gather_to(mine, parts if rank == 0 else None)
    everything = torch.zeros_like(numbers)
    everything.tensor_split(size)[rank].copy_(mine)
    ring_all_gather(everything)
    return collected and torch.cat(collected).tolist(), everything.tolist()


on_processes = launch(doubled, 10, ranks=ranks, on="processes")
for rank, (collected, everything) in enumerate(on_processes.results):
    print(f"rank {rank}: collected {collected}, has {everything}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds scatter_from gather_to ring_all_gather
twice = list(range(0, 20, 2))
assert [collected for collected, _ in on_processes.results] == [twice] + [None] * (ranks - 1)
assert all(everything == twice for _, everything in on_processes.results)
assert on_processes.traffic[0].messages == launch(doubled, 10, ranks=ranks).traffic[0].messages

# %% [markdown]
# Any run can be stepped through from its log, one of real processes too. The log says who sent how much to whom; of what
# is in a message it knows only whose data can have reached its sender.

# %% demo=true
# %%needs ring_all_reduce
from course_lib.notebook.log_steps import steps_of_log

logged = steps_of_log(launch(ring_all_reduce, torch.ones(1000), ranks=few, on="processes"))
step_through(logged)

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce
assert sum(len(step.messages) for step in logged.steps) == few * 2 * (few - 1)

# %% [markdown]
# ## 11 Now on nodes
#
# On a cluster nothing changes but the start. Put the functions into a file, and at its end
#
# ```python
# if __name__ == "__main__":
#     device = torch.device("cpu")
#     if torch.cuda.is_available():
#         device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun says which is ours
#         torch.cuda.set_device(device)
#     # Rank and size are torchrun's too. NCCL for tensors on GPUs, Gloo for those on CPUs.
#     dist.init_process_group()
#     x = torch.ones(25_000_000, device=device)
#     hierarchical_all_reduce(x, gpus_per_node=int(os.environ["LOCAL_WORLD_SIZE"]))
#     dist.destroy_process_group()
# ```
#
# and start one torchrun per node: `srun --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4
# --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29500 file.py`. Two things are different with NCCL. If two ranks send to
# each other at the same time, both directions belong in one `batch_isend_irecv`, since NCCL takes the operations of
# one pair in the order of their calls. And `wait()` does not hold up the processor, only the GPU's queue of work: call
# `torch.cuda.synchronize()` before you look at the clock.
#
# ## 12 The same with MPI
#
# `torch.distributed` took its names from MPI, which has had all of this since 1994:
#
# | `torch.distributed` | mpi4py, on arrays | |
# |---|---|---|
# | `dist.get_rank()`, `dist.get_world_size()` | `comm.Get_rank()`, `comm.Get_size()` | the communicator is the group |
# | `dist.send(x, 1)`, `dist.recv(x, 0)` | `comm.Send(x, dest=1)`, `comm.Recv(x, source=0)` | blocking |
# | `dist.isend(x, 1).wait()` | `comm.Isend(x, dest=1).Wait()` | |
# | `batch_isend_irecv` | `comm.Sendrecv(x, dest=1, recvbuf=y, source=0)` | both at once, never a deadlock |
# | `dist.broadcast(x, 0)`, `dist.reduce(x, 0)` | `comm.Bcast(x, root=0)`, `comm.Reduce(x, y, root=0)` | |
# | `dist.all_reduce(x)` | `comm.Allreduce(MPI.IN_PLACE, x)` | |
# | `dist.all_gather_into_tensor(y, x)` | `comm.Allgather(x, y)` | |
# | `dist.reduce_scatter_tensor(y, x)` | `comm.Reduce_scatter_block(x, y)` | |
# | `dist.all_to_all_single(y, x)` | `comm.Alltoall(x, y)` | |
# | `dist.new_group(ranks)` | `comm.Split(color, key)` | MPI's is one call for all groups |
# | `dist.barrier()` | `comm.Barrier()` | |
#
# Methods in small letters (`comm.send`) pickle Python objects; those with a capital letter move the bytes of arrays.
# MPI ranks are started by `mpirun`, each runs the whole program:
#
#     mpirun -np 4 python -m mpi4py program.py
#
# The `-m mpi4py` matters. In plain Python a rank that raises ends by itself, and the other three wait for it for ever.
# With it, the first uncaught exception aborts all ranks. Try it; `mpirun` below runs a notebook's function just so.

# %% demo=true
from course_lib.launch.mpi import mpi_missing, mpirun


def sum_of_example(comm, pairs):
    """The example from the beginning, by MPI's own Reduce."""
    mine, total = np.array(pairs[comm.Get_rank()]), np.zeros(2, dtype=int)
    comm.Reduce(mine, total, root=0)
    return total


def rank_1_raises(comm):
    """One rank raises; the others wait in a barrier."""
    if comm.Get_rank() == 1:
        raise ValueError("rank 1 found no data")
    comm.Barrier()


if mpi_missing():
    print(mpi_missing())
else:
    reduced = mpirun(sum_of_example, [[5, 1], [2, 3], [7, 8], [4, 2]], ranks=4)
    print(reduced)
    assert reduced[0].tolist() == [18, 14]
    try:
        mpirun(rank_1_raises, ranks=4)
        raise AssertionError("a rank that raises did not end the others")
    except RankFailed as error:
        print(error.report)

# %% [markdown]
# Your ring once more, now for NumPy arrays and a communicator. The check runs it under `mpirun -np 3`, which takes a
# second or two.


# %% exercise="mpi_ring_all_reduce" points=8
def mpi_ring_all_reduce(comm, x: np.ndarray) -> np.ndarray:
    """Replace x by the sum of all ranks' x, by 2 (p - 1) steps round the ring; returns x.

    comm: mpi4py's communicator. x: a contiguous 1-D array, of one length and dtype on all ranks, in
    chunks as numpy.array_split(x, p) cuts it. Each rank sends 2 (p - 1) messages of one chunk each, all
    to the next rank, and has waited for each when it returns. No collective of MPI's is called.
    """
    ### BEGIN SOLUTION
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(x, size)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = np.empty_like(target)
        comm.Sendrecv(chunks[(rank - 1 - step) % size], dest=right, recvbuf=arriving, source=left)
        target += arriving
    for step in range(size - 1):
        outgoing, target = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        comm.Sendrecv(outgoing, dest=right, recvbuf=target, source=left)
    return x
    ### END SOLUTION


# %% [markdown]
# ## 13 Open task
#
# You have eight all-reduces now: through a master, by exchange, by tree, ring, recursive doubling, halving-doubling, in a hierarchy,
# and PyTorch's own. None is best everywhere. Libraries choose by the length of the tensor and by the machine (NCCL's
# `tuning.cc`, the tables of MPICH and Open MPI). Write one that is given the cluster: nodes of several GPUs, a latency and a
# bandwidth within nodes, and others between them. You may choose among what you have, `dist.all_reduce` included: here
# collectives are allowed. But there is better than that.
#
# You know from section 7 what a message takes. A message sets off when both its send and its receive have been called. So a
# rank that wants several under way starts all its `irecv` and all its `isend`, and then waits. Their bytes leave one after
# another, and arrive in that order. But the latencies overlap: three messages of $b$ bytes that leave together have all arrived
# after $\alpha + 3 b \beta$, and not after $3(\alpha + b \beta)$. If two messages meet at their receiver, one waits. So let rank
# $r$ send to $r + 1$ first, then to $r + 2$, and so on round, as in section 6.
#
# The simulator has a limit here. It serves messages that begin at the same moment in the order of its ranks' turns. On 2, 4
# or 8 ranks that is a good order: messages to all others take $\alpha + (p - 1) b \beta$. On 3, 5 or 6 ranks they take as
# long as on the next power of two.


# %% demo=true jupyter={"source_hidden": true}
def to_all_others(length: int) -> None:
    """A message of so many numbers to each other rank, all at once, to the next one first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [(rank + distance) % size for distance in range(1, size)]
    works = [dist.irecv(torch.empty(length), other) for other in others]
    works += [dist.isend(torch.zeros(length), other) for other in others]
    for work in works:
        work.wait()


for size, slots in ((2, 1), (3, 3), (4, 3), (5, 7), (6, 7), (8, 7)):
    one_node = Cluster(devices_per_node=size, intra_node=Link(latency=1e-6, bandwidth=1e9))
    seconds = max(event.end for event in launch(to_all_others, 1000, ranks=size, cluster=one_node).events)
    print(f"{size} ranks: {slots} times as long as the bytes of one message")
    assert math.isclose(seconds, 1e-6 + slots * 4000 / 1e9, rel_tol=1e-6)


# %% exercise="design_all_reduce" points=8
def design_all_reduce(x: Tensor, cluster: Cluster) -> Tensor:
    """Replace x by the sum of all ranks' x in as little virtual time as possible; returns x.

    x: [length], float32, contiguous; it may have fewer elements than there are ranks. cluster: nodes
    of cluster.devices_per_node GPUs, rank r on node r // cluster.devices_per_node; cluster.intra_node
    and cluster.inter_node have a latency (s) and a bandwidth (bytes/s). Each GPU has a network card of
    its own, and adding up takes no time.
    Points: the sum (2). The virtual time until the last rank has it, for several lengths and clusters:
    in each at least half-way from this unit's best to the best known time (2), at most a tenth above
    the best known (2), at most a thirtieth above it (2).
    """
    ### BEGIN SOLUTION
    gpus, rank = cluster.devices_per_node, dist.get_rank()
    everyone = list(range(cluster.size))
    node = [other for other in everyone if other // gpus == rank // gpus]
    rail = [other for other in everyone if other % gpus == rank % gpus]

    def seconds(members: list[int], nbytes: float) -> float:
        """Of messages of so many bytes to all other members, all at once."""
        near = sum(other in node for other in members) - 1
        far = len(members) - 1 - near
        latency = cluster.inter_node.latency if far else cluster.intra_node.latency
        return latency + nbytes * (near / cluster.intra_node.bandwidth + far / cluster.inter_node.bandwidth)

    def plan(groups: list[list[int]], nbytes: float) -> tuple[float, list[bool]]:
        """The fastest way to sum up in one group after the other: its seconds, and which of them go in
        parts.
        """
        if not groups:
            return 0.0, []
        members, *rest = groups
        after, ways = plan(rest, nbytes)
        part = nbytes / len(members)
        after_parts, ways_of_part = plan(rest, part)
        whole = seconds(members, nbytes) + after, [False, *ways]
        return min(whole, (2 * seconds(members, part) + after_parts, [True, *ways_of_part]))

    def swap(outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        works = [dist.irecv(data, other) for other, data in incoming.items()]
        works += [dist.isend(data, other) for other, data in outgoing.items()]
        for work in works:
            work.wait()

    def sum_up(data: Tensor, groups: list[list[int]], in_parts: list[bool]) -> None:
        """In one group after the other; where a group goes in parts, the next has this rank's part
        alone.
        """
        if not groups:
            return
        members, size = groups[0], len(groups[0])
        chunks = dict(zip(members, data.tensor_split(size) if in_parts[0] else [data] * size, strict=True))
        own = chunks.pop(rank)
        arriving = {other: torch.empty_like(own) for other in chunks}
        swap(chunks, arriving)
        own += sum(arriving.values())
        sum_up(own, groups[1:], in_parts[1:])
        if in_parts[0]:
            swap(dict.fromkeys(chunks, own), chunks)

    ways = [[everyone], [node, rail]]
    (_, in_parts), groups = min((plan(groups, x.nbytes), groups) for groups in ways)
    sum_up(x, groups, in_parts)
    return x
    ### END SOLUTION


# %% [markdown]
# On four nodes of four GPUs, from 64 bytes to 4 MB:

# %% demo=true
# %%needs ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce design_all_reduce
four_by_four = Cluster(nodes=4, devices_per_node=4, intra_node=Link(2e-6, 20e9), inter_node=Link(20e-6, 1e9))
designs = {
    "ring": ring_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "hierarchical": lambda x: hierarchical_all_reduce(x, 4),
    "yours": lambda x: design_all_reduce(x, four_by_four),
}
design_seconds = {
    name: [
        launch(way, torch.ones(length), cluster=four_by_four).seconds
        for length in (16, 1_000, 10_000, 100_000, 1_000_000)
    ]
    for name, way in designs.items()
}
print(f"{'':17}" + "".join(f"{4 * length:>14,} B" for length in (16, 1_000, 10_000, 100_000, 1_000_000)))
for name, row in design_seconds.items():
    print(f"{name:17}" + "".join(f"{seconds * 1e6:13,.0f} µs" for seconds in row))

# %% demo=true jupyter={"source_hidden": true}
# %%holds ring_all_reduce halving_doubling_all_reduce hierarchical_all_reduce design_all_reduce
for *others, own in zip(*design_seconds.values(), strict=True):
    assert own <= 1.001 * min(others)

# %% [markdown]
# ## Where it comes from
#
# - R. Hockney, *The communication challenge for MPP*, Parallel Computing 20(3), 1994: $\alpha + b\beta$.
# - R. Rabenseifner, *Optimization of collective reduction operations*, ICCS 2004; R. Thakur, R. Rabenseifner, W. Gropp,
#   *Optimization of collective communication operations in MPICH*, Int. J. High Performance Computing Applications 19(1),
#   2005: trees, halving and doubling, and which to choose when.
# - P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel and
#   Distributed Computing 69(2), 2009: the ring, and $2\frac{p-1}{p} b$ as a lower bound that it meets.
# - A. Sergeev, M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*, arXiv:1802.05799, 2018: the ring in TensorFlow. Standard distributed TensorFlow, with
#   parameter servers, lost about half of its GPUs' time at 128 GPUs. Horovod's documentation reports 90 % scaling efficiency
#   for Inception V3 and ResNet-101 and 68 % for VGG-16 on 512 Pascal GPUs with 25 Gbit/s RoCE: VGG-16 has the most
#   parameters for its computing.
# - P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, arXiv:1706.02677, 2017: ImageNet in one hour on 256 GPUs, about 90 %
#   efficient from 8 to 256, with halving and doubling between nodes.
#
# ## What goes wrong in practice
#
# - **Sums that differ in the last digit.** Floating-point addition is not associative, and every algorithm adds in its
#   own order. In a ring, each chunk is even added up in another order than the next. All ranks still get the same bits, since
#   each chunk is added up once and then copied; with an exchange they would not.
# - **float16 sums overflow** at 65,504. Add up in float32, or divide before you add.
# - **The wrong neighbours.** A ring that follows the numbering of ranks crosses between nodes once a node, if ranks fill
#   one node after the other. With ranks dealt out to the nodes in turn (`--distribution=cyclic`) every connection crosses.
# - **One slow rank** slows all: a ring is as fast as its slowest link. Look at the timeline, not at the mean.
# - **A time-out is not the cause.** "Watchdog caught collective operation timeout" names the ranks that waited. Look for
#   the rank that did not come: it raised, ran out of data, or is in another collective. `TORCH_NCCL_DUMP_ON_TIMEOUT=1`
#   with `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` writes down the last calls of every rank.
# - **Short messages hide deadlocks**, as `shift` does. Test with long ones, or with synchronous sends (`MPI_Ssend`).

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
