# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Tensor and sequence parallelism
#
# A pipeline cuts a model between its layers, and each GPU waits for the one before. Here the layers themselves are cut.
# Every GPU holds a part of each matrix, all work on the same tokens at the same time, and together they compute what one
# would have computed. Nobody waits for a stage. In exchange they talk to each other in every layer, forward and backward.
# This unit shows where they must, how seldom is enough, and what it costs.
#
# After this unit you can
#
# - cut a matrix by columns and by rows, and say what each cut asks of the other ranks in both passes;
# - write Megatron-LM's $f$ and $g$, and with them linear layers, an MLP and an attention that run on many ranks;
# - cut a whole transformer, and show that it learns what it learns on one rank;
# - draw dropout masks that fit together, cut the vocabulary, and compute a loss whose logits no rank has whole;
# - cut the rest along the sequence, for the same bytes and less memory;
# - say which collective a layout needs, and what tensor parallelism costs beside data and pipeline parallelism;
# - let PyTorch's DTensor do all that, and recognise on the timeline what it does.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes".
ranks = 4
on = "simulated"

# %%
import copy
import math
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from course_lib import Cluster, Link, launch, per_rank
from course_lib.data import load_text
from course_lib.figures.plots import line_figure
from course_lib.figures.style import new_figure
from course_lib.models import MLP, Attention
from course_lib.training.activation_memory import KeptForBackward
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. Folded cells check that the text's numbers are what was measured.
# %load_ext course_lib.notebook.magics
import inspect
import runpy
from functools import partial
from pathlib import Path


import course_lib
from course_lib import Run, mark
from course_lib.cluster import presets
from course_lib.figures.pictures import branches_picture, cut_picture
from course_lib.models import Transformer, TransformerConfig, next_token_loss, parameter_count

examples = Path(course_lib.__file__).parents[1] / "examples" / "tensor_parallel"

# %% [markdown]
# **Names.** Splitting within layers is *intra-layer* in one lecture, *intra-operator* in another, and *tensor
# parallelism* to most people today. *Model parallelism* may also mean the pipeline of unit 05. Tensors are named as in
# `course_lib.models`: `x_BTD` has B samples, T tokens each, and D numbers for each token. H heads have K numbers each,
# and F is the width inside the MLP.
#
# **Predict, before you measure.** Write your guesses into the cell below; sections 4 and 10 measure them.
#
# 1. The two layers of an MLP are cut over 8 ranks. How often do the ranks have to talk to each other in forward: never,
#    once, twice?
# 2. The same MLP is cut over 8 ranks instead of 2. How many times as many bytes does each rank send: a quarter, as many,
#    less than twice as many, four times as many?
# 3. A model is cut over 4 ranks, and has the same data and the same start as on one. After twenty steps its loss has
#    changed in the second digit, in the seventh, or not at all?

# %% demo=true
guesses = predict(
    "06_tensor_parallel",
    times_the_ranks_talk_in_forward=None,
    times_as_many_bytes_with_8_ranks=None,
    digit_after_the_point_where_the_loss_has_changed=None,
)

# %% [markdown]
# ## 1 Two ways to cut a matrix
#
# A layer computes $Y = XA$. $X$ has a row for each token, $A$ a column for each output. There are two ways to give each
# rank a part of $A$:

# %% demo=true
cut_picture(2)

# %% [markdown]
# - **By columns.** A rank computes some of the outputs, completely, from all of $X$. Nothing has to be added.
# - **By rows.** A rank multiplies only some of the inputs, and needs only these. What it computes is one of $p$ summands
#   of every output, for $p$ ranks.
#
# (`nn.Linear` keeps $A$ transposed: its `weight` is `[outputs, inputs]`, so a cut by columns is one along dimension 0.
# The names are Megatron-LM's.)

# %% demo=true
torch.manual_seed(0)
X, A = torch.randn(3, 8), torch.randn(8, 6)
by_columns = torch.cat([X @ part for part in A.tensor_split(2, dim=1)], dim=1)
by_rows = sum(x @ a for x, a in zip(X.tensor_split(2, dim=1), A.tensor_split(2, dim=0), strict=True))
for name, Y in (("columns", by_columns), ("rows", by_rows)):
    print(f"by {name}: largest difference to X @ A {(Y - X @ A).abs().max():.0e}")

# %% demo=true jupyter={"source_hidden": true}
torch.testing.assert_close(by_columns, X @ A)
torch.testing.assert_close(by_rows, X @ A)

# %% [markdown]
# Both are right to rounding. By rows, the sums come in another order, so the last digit may differ.
#
# Between the two layers of an MLP stands GELU. It is not linear, so it has to see complete sums:

# %% demo=true
gelu = functional.gelu
own = [x @ a for x, a in zip(X.tensor_split(2, dim=1), A.tensor_split(2, dim=0), strict=True)]
cut_by_columns = torch.cat([gelu(X @ part) for part in A.tensor_split(2, dim=1)], dim=1)
off = {
    "columns": (cut_by_columns - gelu(X @ A)).abs().max().item(),
    "rows": (gelu(own[0]) + gelu(own[1]) - gelu(X @ A)).abs().max().item(),
}
for name, difference in off.items():
    print(f"GELU on each rank of a cut by {name}: off by {difference:.1g}")

# %% demo=true jupyter={"source_hidden": true}
assert off["columns"] < 1e-5
assert off["rows"] > 0.5

# %% [markdown]
# After a cut by columns each rank can go on with its own outputs. After a cut by rows it first has to add up with the
# others. So it matters which cut comes first.
#
# Here both cuts follow each other, on ranks that stay (unit 00, section 5): $A$ by columns, GELU, and then a matrix $B$
# by rows. Each rank compares what it has with the whole result.

# %% demo=true
# %ranks start $ranks --on $on

# %% demo=true
# %%ranks
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
X, A, B = torch.randn(3, 8), torch.randn(8, 8), torch.randn(8, 6)
whole = functional.gelu(X @ A) @ B
hidden = functional.gelu(X @ A.tensor_split(size, dim=1)[rank])
Y = hidden @ B.tensor_split(size, dim=0)[rank]
before = (Y - whole).abs().max().item()
print(f"{list(hidden.shape)} of the hidden numbers, {list(Y.shape)} outputs, off by {before:.1f}")

# %% demo=true
# %%ranks
dist.all_reduce(Y)
after = (Y - whole).abs().max().item()
print(f"off by {after:.0e}")

# %% demo=true jupyter={"source_hidden": true}
from course_lib.notebook.staying_magics import present

assert all(ranks == 1 or present()[rank]["before"] > 0.1 for rank in range(ranks))
assert all(present()[rank]["after"] < 1e-5 for rank in range(ranks))

# %% demo=true
# %ranks stop

# %% [markdown]
# Each rank has some of the hidden numbers, completely, and no rank has sent anything for them. Its `Y` has the full
# shape, but it is only a summand: wrong on every rank, until one all-reduce adds them up.
#
# ## 2 Two functions for two passes
#
# In both cuts there is a place where a rank's tensor meets those of the other ranks, and in both they meet in one pass
# only.
#
# - **Where branches begin**: a tensor that all ranks have goes into one branch on each rank. Forward needs no
#   communication. But each rank's backward gives only what *its* branch adds to the gradient. The whole gradient is the
#   sum over the branches.
# - **Where branches end**: the value is a sum over ranks. Its derivative by each summand is 1, so backward needs no
#   communication.
#
# Megatron-LM calls these two places $f$ and $g$:
#
# | | forward | backward |
# |---|---|---|
# | $f$, where branches begin | the identity | an all-reduce |
# | $g$, where they end | an all-reduce | the identity |
#
# They are **conjugate**: what one does in forward the other does in backward. `dist.all_reduce` knows nothing of
# autograd, and autograd nothing of other ranks. So you have to say what happens in each pass, by a
# `torch.autograd.Function`. Here is one that doubles gradients, and changes nothing else:


# %% demo=true
class DoubleInBackward(torch.autograd.Function):
    """Forward the identity, backward twice what arrives."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # for backward, which gets nothing else from here
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None  # a gradient for each argument of forward; factor has none


leaf = torch.ones(2, requires_grad=True)
DoubleInBackward.apply(leaf, 2.0).sum().backward()
leaf.grad

# %% demo=true jupyter={"source_hidden": true}
assert leaf.grad.tolist() == [2, 2]

# %% [markdown]
# **What holds for all exercises that ranks call.** All ranks of `group` call together; None is the default group. It has
# p ranks. *Part r* of a tensor, for the rank at place r of the group, is that of `torch.tensor_split`: the first parts
# may be longer by one, and none is empty.
#
# - Gradients are those of the uncut computation. What is cut gets its part of them. What all ranks have gets the whole
#   gradient, on each rank.
# - A result that all ranks have is the same on all of them, to the last bit. It comes out under `torch.no_grad()`, too,
#   and for an x that needs no gradient.
# - What is given stays as it is, modules too. Tensors may be views, with any strides. What you make of a whole module, or
#   instead of one, keeps this rank's part in memory and no other.
# - *Calls* lists all calls of `torch.distributed` that are allowed.
#
# Now the two of Megatron-LM. `SumInBackward` and `SumInForward` are yours to fill in; `f` and `g` call them.


# %% exercise="f" points=8
def f(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Megatron's f: the identity in forward, an all-reduce in backward.

    x: of any shape and floating dtype. Returns a tensor with x's numbers. The gradient that x gets
    through f is the sum, over ranks, of those that arrive, which may be expanded tensors; what x
    gets by other ways stays as it is.

    Calls: one dist.all_reduce in backward.
    """
    return SumInBackward.apply(x, group)


class SumInBackward(torch.autograd.Function):
    """The two passes of f."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        return x
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
        ### END SOLUTION


# %% exercise="g" points=7
def g(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Megatron's g: an all-reduce in forward, the identity in backward.

    x: of any shape and floating dtype, the same ones on all ranks. Returns the sum of all ranks' x.
    The gradient that x gets through g is the one that arrives.

    Calls: one dist.all_reduce in forward.
    """
    return SumInForward.apply(x, group)


class SumInForward(torch.autograd.Function):
    """The two passes of g."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        return gradient, None
        ### END SOLUTION


# %% [markdown]
# Two ranks with a branch each: rank 0 multiplies x by 1 and rank 1 by 2, and y is the sum of the branches. For x = 1 both
# y and its derivative by x are 3.


# %% demo=true
# %%needs f g
def two_branches(begin: bool, end: bool) -> tuple[float, float]:
    """y, and the gradient of x, with f at the beginning, and g at the end, or without."""
    x = torch.ones(1, requires_grad=True)
    branch = (dist.get_rank() + 1) * (f(x) if begin else x)
    y = g(branch) if end else branch
    y.backward()
    return y.item(), x.grad.item()


branches = {}
for begin, end in ((True, True), (False, True), (True, False)):
    branches[begin, end] = launch(two_branches, begin, end, ranks=2, on=on).results
    print(
        f"f {'there' if begin else 'missing':7}  g {'there' if end else 'missing':7}  {branches[begin, end]}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g
assert branches[True, True] == [(3, 3), (3, 3)]
assert branches[False, True] == [(3, 1), (3, 2)]
assert branches[True, False] == [(1, 3), (2, 3)]

# %% [markdown]
# Without $g$ each rank goes on with its own branch alone. The values show that at once; the gradient of x is still right.
# Without $f$ forward is right, but each rank has another gradient. What stands before the branches should be the same on
# all ranks, and drifts apart. Nothing fails, and the loss may even fall. So this is the mistake to look for.

# %% [markdown]
# ## 3 Layers that are cut
#
# A layer that is cut is used like `nn.Linear`, by a program that runs on all ranks.
#
# How should its weights be drawn? Suppose that each rank makes an `nn.Linear` of its part's size. Then two things go
# wrong. All ranks have the same seed, so all parts are equal, and the whole matrix repeats itself. And `nn.Linear` draws
# from a range that depends on the number of inputs, which in a row-parallel layer is only the rank's part. Instead, a
# model that is cut over 8 ranks should begin as it would on one. Only then can you compare the two.


# %% exercise="ColumnParallelLinear" points=14
class ColumnParallelLinear(nn.Module):
    """A linear layer, cut by its outputs: x [..., inputs] to this rank's part of [..., outputs].

        layer = ColumnParallelLinear(inputs, outputs, bias=True, group=None)

    Constructor: all ranks are in the same random state. `weight` and `bias` (None with bias=False)
    are this rank's part of what nn.Linear(inputs, outputs, bias) would draw, cut along outputs; the
    random state afterwards is the one that it would leave.

    forward: x is the same on all ranks.

    Calls: one all_reduce of x's bytes in backward.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.tensor_split(size)[rank].clone())
        self.bias = nn.Parameter(whole.bias.tensor_split(size)[rank].clone()) if bias else None
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return functional.linear(f(x, self.group), self.weight, self.bias)
        ### END SOLUTION


# %% exercise="RowParallelLinear" points=14
class RowParallelLinear(nn.Module):
    """A linear layer, cut by its inputs: this rank's part of x [..., inputs] to all of [..., outputs].

        layer = RowParallelLinear(inputs, outputs, bias=True, group=None)

    As ColumnParallelLinear, but `weight` is cut along inputs, and `bias` is whole on every rank,
    with its whole gradient.

    Calls: one all_reduce of the result's bytes in forward.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.tensor_split(size, dim=1)[rank].clone())
        self.bias = whole.bias
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        y = g(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


# %% [markdown]
# Made on 1, 2 and 4 ranks, the parts always add up to one matrix, that of `nn.Linear`:


# %% demo=true
# %%needs ColumnParallelLinear RowParallelLinear
def first_weights() -> tuple[Tensor, Tensor]:
    """This rank's parts of two layers, right after they are made."""
    torch.manual_seed(1)
    column, row = ColumnParallelLinear(8, 12), RowParallelLinear(12, 8)
    return column.weight.detach(), row.weight.detach()


made = {}
for size in (1, 2, 4):
    columns, rows = zip(*launch(first_weights, ranks=size, on=on).results, strict=True)
    made[size] = torch.cat(columns), torch.cat(rows, dim=1)
    shapes = f"{list(columns[0].shape)} and {list(rows[0].shape)}"
    print(
        f"{size} ranks: weights {shapes} on each, sums {made[size][0].sum():.6f} and {made[size][1].sum():.6f}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds ColumnParallelLinear RowParallelLinear
torch.manual_seed(1)
whole = nn.Linear(8, 12).weight, nn.Linear(12, 8).weight
for parts in made.values():
    assert all(torch.equal(part, layer) for part, layer in zip(parts, whole, strict=True))

# %% [markdown]
# ## 4 Two layers, one all-reduce
#
# An MLP is two layers with GELU between them, $Y = \mathrm{GELU}(XA)\,B$. There are four ways to choose the cuts. By rows
# first, the ranks must add up before GELU. By columns twice, every rank needs all hidden units for the second layer. By
# columns and then by rows, the outputs of the first cut are just the inputs of the second, and GELU in between works on
# each hidden unit alone:

# %% demo=true
branches_picture("mlp")

# %% [markdown]
# Each rank computes some hidden units of its own from beginning to end. The transformer of this course keeps its MLP in
# two `nn.Linear`s:

# %% demo=true
print(inspect.getsource(MLP))

# %% [markdown]
# Cut it:


# %% exercise="parallel_mlp" points=12
def parallel_mlp(mlp: MLP, group: dist.ProcessGroup | None = None) -> nn.Module:
    """This rank's part of an MLP: some of its F hidden units.

    mlp: one of course_lib.models, the same on all ranks. Returns a module with mlp's parameters, of
    the same names and dtype, of which up.weight, up.bias and down.weight are cut along F. It makes
    of x_BTD, the same on all ranks, what mlp makes of it.

    Calls: one all_reduce of x's bytes in forward, and one in backward.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    cut = copy.deepcopy(mlp)
    cut.up = ColumnParallelLinear(mlp.up.in_features, mlp.up.out_features, group=group)
    cut.down = RowParallelLinear(mlp.down.in_features, mlp.down.out_features, group=group)
    cut.to(mlp.up.weight)  # its dtype, and its device
    with torch.no_grad():
        cut.up.weight.copy_(mlp.up.weight.tensor_split(size)[rank])
        cut.up.bias.copy_(mlp.up.bias.tensor_split(size)[rank])
        cut.down.weight.copy_(mlp.down.weight.tensor_split(size, dim=1)[rank])
        cut.down.bias.copy_(mlp.down.bias)
    return cut
    ### END SOLUTION


# %% [markdown]
# The first two predictions, with one MLP on a virtual machine of eight NVLinked GPUs:

# %% demo=true
# %%needs f g parallel_mlp
config = TransformerConfig(width=512)
x_BTD = torch.randn(1, 256, 512)


def step_of_mlp(x_BTD: Tensor) -> Tensor:
    """Forward and backward of an MLP that is cut over all ranks; the gradient of x."""
    torch.manual_seed(0)
    mlp = parallel_mlp(MLP(config))
    x_BTD = x_BTD.clone().requires_grad_()
    mlp(x_BTD).square().sum().backward()
    return x_BTD.grad


mlp_runs = {
    size: launch(step_of_mlp, x_BTD, ranks=size, cluster=presets.nvlink_node(8)) for size in (2, 4, 8)
}
for size, run in mlp_runs.items():
    calls = [event.op for event in run.events if event.rank == 0 and event.kind == "collective"]
    sent = run.traffic.ranks[0].sent / x_BTD.nbytes
    print(
        f"{size} ranks: {', '.join(calls)}; a rank sends {sent:.2f} times the bytes of x, {run.seconds * 1e6:.0f} µs"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_mlp
for size, run in mlp_runs.items():
    assert [event.op for event in run.events if event.rank == 0 and event.kind == "collective"] == [
        "all_reduce"
    ] * 2
    assert run.traffic.ranks[0].sent == 2 * 2 * (size - 1) / size * x_BTD.nbytes
    torch.testing.assert_close(run.results[0], mlp_runs[2].results[0], rtol=1e-3, atol=1e-3)
assert mlp_runs[8].traffic.ranks[0].sent / mlp_runs[2].traffic.ranks[0].sent == 1.75
assert mlp_runs[4].seconds < min(mlp_runs[2].seconds, mlp_runs[8].seconds)
guesses.measured(
    # Half of the calls are those of backward.
    times_the_ranks_talk_in_forward=len(calls) // 2,
    times_as_many_bytes_with_8_ranks=mlp_runs[8].traffic.ranks[0].sent / mlp_runs[2].traffic.ranks[0].sent,
)

# %% [markdown]
# One all-reduce forward and one backward, of the bytes of `x_BTD`. In a ring a rank sends $2\frac{p-1}{p}$ times these
# bytes (unit 07): with 8 ranks 1.75 times as much as with 2, and never more than twice. But it computes only a quarter of
# what it did. So the more ranks, the larger the part of the time in which they talk: this small MLP takes longer on 8
# GPUs than on 4. That, and not memory, is why nobody cuts a layer over a thousand GPUs.

# %% [markdown]
# ## 5 Attention by heads
#
# Attention is parallel by itself: a head needs its own queries, keys and values, and nothing of the other heads. Query,
# key and value are cut by columns, some heads to each rank, and the output layer by rows.

# %% demo=true
branches_picture("attention")

# %% [markdown]
# Two mistakes are easily made. Query, key and value are three layers. If each has an $f$ of its own, backward makes three
# all-reduces. One is enough: add up the three gradients of x on each rank first, with one $f$ in front of all three. And
# the cut has to fall between heads. Many models keep query, key and value in one matrix, all queries first. This is the
# first half of such a matrix:

# %% demo=true
heads, head_width = 4, 2
rows = [f"{name}{head}" for name in "qkv" for head in range(heads) for _ in range(head_width)]
half = rows[: len(rows) // 2]
print("first half of the rows:", *dict.fromkeys(half))

# %% demo=true jupyter={"source_hidden": true}
assert list(dict.fromkeys(half)) == ["q0", "q1", "q2", "q3", "k0", "k1"]

# %% [markdown]
# All queries, half of the keys and no value: no head is complete. Cut such a matrix into its three parts first, and each
# of them by heads. Our model has three matrices:

# %% demo=true
print(inspect.getsource(Attention))

# %% [markdown]
# Its heads need not be a multiple of the ranks: GPT-2's largest model has 25. Its dropout acts on the attention weights
# of each head, so every rank drops some of its own heads' weights. Section 6 says with which random numbers.


# %% exercise="parallel_attention" points=14
def parallel_attention(attention: Attention, group: dist.ProcessGroup | None = None) -> nn.Module:
    """This rank's part of an attention: some of its heads.

    attention: one of course_lib.models, the same on all ranks. Returns a module as parallel_mlp
    does, with the same calls. Its parameters are cut along the heads: head h of width K has the
    rows h K to (h + 1) K of query, key and value, and these columns of output.weight.
    """
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    cut = copy.deepcopy(attention)
    width = attention.output.out_features
    own = torch.arange(width).view(-1, attention.head_width).tensor_split(size)[rank].flatten()
    for layer in (cut.query, cut.key, cut.value):
        layer.weight = nn.Parameter(layer.weight[own])
        layer.bias = nn.Parameter(layer.bias[own])
    cut.output = RowParallelLinear(width, width, group=group)
    cut.output.weight = nn.Parameter(attention.output.weight[:, own])
    cut.output.bias = nn.Parameter(attention.output.bias.clone())
    cut.register_forward_pre_hook(lambda module, inputs: (f(*inputs, group),))
    return cut
    ### END SOLUTION


# %% demo=true
# %%needs f g parallel_attention
def step_of_attention(x_BTD: Tensor) -> int:
    """Forward and backward of an attention that is cut over all ranks; how many numbers of it this rank has."""
    torch.manual_seed(0)
    attention = parallel_attention(Attention(TransformerConfig(width=100, heads=25)))
    attention(x_BTD.requires_grad_()).square().sum().backward()
    return parameter_count(attention)


uneven = launch(step_of_attention, torch.randn(2, 8, 100), ranks=4, on=on)
calls = [event.op for event in uneven.events if event.rank == 0 and event.kind == "collective"]
print(f"25 heads on 4 ranks: {uneven.results} numbers; {', '.join(calls)}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_attention
# A head of 4 numbers: 3 x (4 x 100 + 4) rows, 100 x 4 columns; 100 biases of the output on every rank.
assert uneven.results == [heads * (3 * 404 + 400) + 100 for heads in (7, 6, 6, 6)]
assert calls == ["all_reduce"] * 2

# %% [markdown]
# The first rank has seven heads and the others six, so they wait a seventh of the time. With 24 heads nobody would wait.

# %% [markdown]
# ## 6 A dropout mask for many ranks
#
# Dropout sets numbers to zero at random. Every rank has its own random generator. Seeded alike, the generators draw
# alike, until one rank draws more than another. So whoever cuts a model has to say where the ranks draw the same numbers,
# and where they do not:
#
# - **Behind g** all ranks hold the same numbers. If their masks differ there, the ranks go on with different numbers, and
#   no error says so: every later all-reduce adds up parts of different models.
# - **Between f and g** each rank holds other columns, or other heads. If all draw the same mask there, the first column
#   of rank 0 is dropped exactly when the first column of rank 1 is. Masks that should be independent repeat from rank to
#   rank.
#
# So a rank needs two streams of random numbers. Neither may disturb the other: parts are not always equally large, and a
# rank with more columns draws more numbers.


# %% exercise="RandomStreams" points=10
class RandomStreams:
    """Two streams of random numbers for torch: one the same on all ranks, one of this rank's own.

    seed: at least 0, the same on all ranks. rank: this rank's number.

    Outside of `with streams.own():` torch draws what it draws after torch.manual_seed(seed), as if
    there were no such blocks. Within, it draws from a stream that is neither that one nor another
    rank's. Each block goes on where the last one ended, also after an exception. The same seed and
    rank give the same numbers once more, another seed others. Calls: none.
    """

    def __init__(self, seed: int, rank: int) -> None:
        ### BEGIN SOLUTION
        self._own = torch.Generator().manual_seed(seed + 1 + rank).get_state()
        torch.manual_seed(seed)
        ### END SOLUTION

    @contextmanager
    def own(self) -> Iterator[None]:
        """Within the block torch draws from this rank's own stream."""
        ### BEGIN SOLUTION
        shared = torch.get_rng_state()
        torch.set_rng_state(self._own)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(shared)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: Megatron-LM's two seeds</summary>
#
# Megatron-LM keeps two streams as well, seeded with `seed` and `seed + 2718 + rank`: `tensor_parallel/random.py`.
#
# </details>
#
# Five columns on four ranks: rank 0 has two of them, the others have one. Each rank draws a mask for its columns of 8
# samples, then one for 4 columns that all ranks hold. White is kept, black is dropped. The upper row has torch's single
# stream, the lower row your two:


# %% demo=true
# %%needs RandomStreams
def two_masks(apart: bool) -> tuple[Tensor, Tensor]:
    """A mask for this rank's columns [8, 1 or 2], and one for what is the same on all ranks [8, 4]."""
    rank, size = dist.get_rank(), dist.get_world_size()
    columns = len(torch.arange(size + 1).tensor_split(size)[rank])
    torch.manual_seed(7)
    with RandomStreams(7, rank).own() if apart else nullcontext():
        own = torch.rand(8, columns) < 0.5
    return own, torch.rand(8, 4) < 0.5


masks = {apart: launch(two_masks, apart, ranks=4, on=on).results for apart in (False, True)}
figure, panels = new_figure(
    rows=2,
    columns=8,
    height=4.2,
    width_ratios=[1, 2] * 4,
    alt="The masks of four ranks in black and white, in two rows. With one stream the columns of ranks 1 to 3 "
    "have one mask, and what all hold has another mask on rank 0 than on the others. With two streams no two "
    "ranks have one mask for their columns, and all have one for what all hold.",
)
for row, apart in zip(panels, masks):
    for rank, drawn in enumerate(masks[apart]):
        for axes, mask, what in zip(row[2 * rank :], drawn, ("its own", "of all")):
            axes.imshow(mask, cmap="gray", vmin=0, vmax=1, aspect="auto")
            axes.set(xticks=[], yticks=[], title=f"rank {rank}", xlabel=what)
            axes.spines[:].set_visible(True)
    row[0].set_ylabel("two streams: 8 samples" if apart else "one stream: 8 samples")
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds RandomStreams
one, two = masks.values()
assert all(torch.equal(one[rank][0], one[1][0]) for rank in (2, 3))
assert not torch.equal(one[0][1], one[1][1])
assert all(torch.equal(shared, two[0][1]) for _, shared in two)
assert not any(torch.equal(two[rank][0], two[other][0]) for rank, other in ((1, 2), (1, 3), (2, 3)))

# %% [markdown]
# ## 7 Cutting the vocabulary
#
# The embedding is often a model's largest matrix. GPT-2's has 50,257 rows, one for each token. Megatron-LM adds rows that
# no token has, up to a multiple of 128 times the number of ranks: 51,200 for 8 ranks, so that all have equally many. Here
# nothing is added. Parts are those of `torch.tensor_split`, and may differ by a row.
#
# A rank can look up the tokens whose rows it has. What should it return for all others?


# %% exercise="VocabParallelEmbedding" points=12
class VocabParallelEmbedding(nn.Module):
    """An embedding of V tokens, of which every rank holds some of the rows.

    embedding: the whole layer, with a weight [V, D], the same on all ranks. The one parameter that
    you make is `weight` [V_r, D], this rank's part of the rows.
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        place, size = dist.get_rank(group), dist.get_world_size(group)
        self.first = sum(len(part) for part in embedding.weight.tensor_split(size)[:place])
        self.weight = nn.Parameter(embedding.weight.detach().tensor_split(size)[place].clone())
        self.group = group
        ### END SOLUTION

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the tokens, [..., D], on every rank.

        tokens: int64 [...], the same on every rank. Calls: one all_reduce of the result's bytes in
        forward.
        """
        ### BEGIN SOLUTION
        row = tokens - self.first
        here = (row >= 0) & (row < len(self.weight))
        rows = functional.embedding(row.where(here, 0), self.weight) * here.unsqueeze(-1)
        return g(rows, self.group)
        ### END SOLUTION


# %% [markdown]
# The tokens are the bytes of Python's documentation, on four ranks. How many does each rank find?


# %% demo=true
# %%needs VocabParallelEmbedding g
def rows_found(tokens: Tensor, whole: nn.Embedding) -> tuple[int, int, Tensor]:
    """How many rows this rank has, how many of the tokens T it finds there, and the result [T, D]."""
    cut = VocabParallelEmbedding(whole)
    here = tokens // len(cut.weight) == dist.get_rank()
    return len(cut.weight), here.sum().item(), cut(tokens).detach()


tokens = load_text().train.tokens.long()
whole = nn.Embedding(256, 8)
found = launch(rows_found, tokens, whole, ranks=4, on=on).results
for rank, (rows, here, _) in enumerate(found):
    print(f"rank {rank} has {rows} rows, and among them those of {here:7,} of the {len(tokens):,} tokens")

# %% demo=true jupyter={"source_hidden": true}
# %%holds VocabParallelEmbedding g
assert all(torch.equal(result, whole(tokens)) for *_, result in found)
assert found[1][1] > 0.65 * len(tokens)
assert found[3][1] < 0.01 * len(tokens)

# %% [markdown]
# The result is the whole layer's, bit by bit. Rank 1 has the bytes 64 to 127, the letters among them, and so two thirds
# of the text; rank 3 has less than one token in a hundred.
#
# <details><summary>Answer: what a rank returns for all others</summary>
#
# Zeros: of the numbers that the all-reduce adds up, all but one are zero. An uneven share costs no time, since a rank
# looks up some row for every token, its own or not.
#
# </details>

# %% [markdown]
# ## 8 A loss without all the logits
#
# At the other end of the model the same matrix is the head, cut by columns: rank r has the logits of its part of the
# vocabulary, for all tokens. The loss of a token with logits $z$ and target $t$ is
#
# $$ \ln \sum_j e^{z_j} - z_t, $$
#
# where $j$ runs over the whole vocabulary. One way is to gather the logits and call `cross_entropy`. In float32, 51,200
# logits are 204,800 bytes a token, on every rank. The token's vector in the largest model of Megatron-LM's authors has
# 3,072 numbers, which are 12,288 bytes. For a micro-batch of 8 sequences of 1,024 tokens the gathered logits are 1.68 GB.
#
# **Predict:** how many numbers of a token must a rank learn from the others, to compute the loss and the gradient of its
# own logits? Which are they?

# %% demo=true
guesses.ask(numbers_of_a_token_that_all_ranks_need=None)

# %% demo=true jupyter={"source_hidden": true}
assert (51_200 * 4, 3072 * 4, round(51_200 * 4 * 8 * 1024 / 1e9, 2)) == (204_800, 12_288, 1.68)


# %% exercise="vocab_parallel_cross_entropy" points=15
def vocab_parallel_cross_entropy(
    logits_shard: Tensor, target: Tensor, vocabulary: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The cross-entropy of each of N tokens [N], on every rank, from logits cut by columns.

    logits_shard: this rank's part [N, V_r] of logits [N, V], of a floating dtype that the result
    has too; they may be large. target: int64 [N], the same on every rank. vocabulary: V.

    Calls: in forward alone; a rank sends at most 3 (p - 1) numbers a token.
    """
    ### BEGIN SOLUTION
    parts = torch.arange(vocabulary).tensor_split(dist.get_world_size(group))
    column = target - parts[dist.get_rank(group)][0]
    here = (column >= 0) & (column < logits_shard.shape[1])
    largest = logits_shard.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    shifted = logits_shard - largest.unsqueeze(1)
    of_target = shifted.gather(1, column.where(here, 0).unsqueeze(1)).squeeze(1).where(here, 0)
    total, of_target = g(torch.stack([shifted.exp().sum(1), of_target]), group)
    return total.log() - of_target
    ### END SOLUTION


# %% [markdown]
# <details><summary>Answer: the numbers of a token</summary>
#
# Three: the largest logit, the sum, and the target's logit.
#
# </details>
#
# Beside gathering, for 64 tokens on four ranks:


# %% demo=true
# %%needs vocab_parallel_cross_entropy g
def gathered_cross_entropy(logits_shard: Tensor, target: Tensor, vocabulary: int) -> Tensor:
    """The same from gathered logits, where all parts are equally wide; without a gradient."""
    parts = [torch.empty_like(logits_shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits_shard)
    return functional.cross_entropy(torch.cat(parts, 1), target, reduction="none")


vocabularies = [256, 2048, 16_384, 51_200]
sent = {vocab_parallel_cross_entropy: [], gathered_cross_entropy: []}
for vocabulary in vocabularies:
    logits, target = 30 * torch.randn(64, vocabulary), torch.randint(vocabulary, (64,))
    shards = per_rank(list(logits.tensor_split(4, 1)))
    for function, bytes_sent in sent.items():
        run = launch(function, shards, target, vocabulary, ranks=4, on=on)
        bytes_sent.append(run.traffic[0].sent)
        expected = functional.cross_entropy(logits, target, reduction="none")
        assert all(torch.allclose(loss, expected, rtol=1e-5, atol=1e-5) for loss in run.results)
line_figure(
    {
        "three numbers a token": (vocabularies, sent[vocab_parallel_cross_entropy]),
        "logits gathered": (vocabularies, sent[gathered_cross_entropy]),
    },
    x="tokens in the vocabulary",
    y="bytes that a rank sends",
    log_x=True,
    log_y=True,
    alt="Bytes that each of four ranks sends for the loss of 64 tokens, against the size of the vocabulary, on "
    "logarithmic axes. Gathering grows in proportion to it; three numbers a token stay the same.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds vocab_parallel_cross_entropy g
assert len(set(sent[vocab_parallel_cross_entropy])) == 1
assert sent[vocab_parallel_cross_entropy][0] <= 3 * 3 * 64 * 4
assert sent[gathered_cross_entropy] == [3 * 64 * vocabulary // 4 * 4 for vocabulary in vocabularies]
given = launch(vocab_parallel_cross_entropy, shards, target, vocabulary, ranks=4)
given_bytes = sum(event.nbytes for event in given.events if event.rank == 0 and event.kind == "collective")
guesses.measured(numbers_of_a_token_that_all_ranks_need=given_bytes / 4 / 64)

# %% [markdown]
# ### Megatron-LM's own
#
# Megatron-core, NVIDIA's library of these layers, runs here beside yours, on two real processes and on CPUs. A token goes
# through the embedding, a column- and a row-parallel matrix with a residual sum, the head, and the loss. Both get the
# same weights.


# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:megatron-core VocabParallelEmbedding ColumnParallelLinear RowParallelLinear vocab_parallel_cross_entropy f g
def load_part(layer: nn.Module, whole: Tensor, dim: int) -> nn.Module:
    """The layer, with this rank's part of a weight."""
    with torch.no_grad():
        layer.weight.copy_(whole.tensor_split(dist.get_world_size(), dim)[dist.get_rank()])
    return layer


def both_passes(embedding, up, down, head, loss, tokens: Tensor, target: Tensor) -> list[Tensor]:
    """The losses [N], then each layer's gradient on this rank."""
    x_ND = embedding(tokens)
    x_ND = x_ND + down(functional.gelu(up(x_ND)))
    losses = loss(head(x_ND), target)
    losses.mean().backward()
    return [losses.detach(), *(layer.weight.grad for layer in (embedding, up, down, head))]


def with_yours(whole: list[Tensor], tokens: Tensor, target: Tensor) -> list[Tensor]:
    """whole: the weights of embedding and head [V, D], up [F, D] and down [D, F]."""
    rows, up, down, head = whole
    (inner, width), vocabulary = up.shape, len(rows)
    return both_passes(
        VocabParallelEmbedding(nn.Embedding.from_pretrained(rows, freeze=False)),
        load_part(ColumnParallelLinear(width, inner, bias=False), up, 0),
        load_part(RowParallelLinear(inner, width, bias=False), down, 1),
        load_part(ColumnParallelLinear(width, vocabulary, bias=False), head, 0),
        lambda logits, target: vocab_parallel_cross_entropy(logits, target, vocabulary),
        tokens,
        target,
    )


class Output(nn.Module):
    """A linear layer's output, without the bias."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.weight = layer, layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def with_megatron(whole: list[Tensor], tokens: Tensor, target: Tensor) -> list[Tensor]:
    """The same from Megatron-core's layers; their linear layers return the bias as well."""
    from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(dist.get_world_size())
    rows, up, down, head = whole
    (inner, width), vocabulary = up.shape, len(rows)
    config = ModelParallelConfig(
        tensor_model_parallel_size=dist.get_world_size(),
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        params_dtype=torch.float32,
    )
    told = {"config": config, "init_method": nn.init.normal_}
    column = {**told, "bias": False, "gather_output": False}
    row = {**told, "bias": False, "input_is_parallel": True, "skip_bias_add": False}

    return both_passes(
        load_part(tensor_parallel.VocabParallelEmbedding(vocabulary, width, **told), rows, 0),
        load_part(Output(tensor_parallel.ColumnParallelLinear(width, inner, **column)), up, 0),
        load_part(Output(tensor_parallel.RowParallelLinear(inner, width, **row)), down, 1),
        load_part(Output(tensor_parallel.ColumnParallelLinear(width, vocabulary, **column)), head, 0),
        tensor_parallel.vocab_parallel_cross_entropy,
        tokens,
        target,
    )


V, D, F, N = 96, 16, 64, 24
weights = [torch.randn(shape) / 4 for shape in ((V, D), (F, D), (D, F), (V, D))]
batch = torch.randint(V, (N,)), torch.randint(V, (N,))
yours = launch(with_yours, weights, *batch, ranks=2, on="processes", timeout=120)
theirs = launch(
    with_megatron, weights, *batch, ranks=2, on="processes", beside="megatron-core", timeout=240, quiet=True
)
for rank, (own, other) in enumerate(zip(yours.results, theirs.results)):
    off = [f"{(a - b).abs().max():.0e}" for a, b in zip(own, other)]
    print(f"rank {rank}: losses differ by at most {off[0]}, gradients by {', '.join(off[1:])}")
print("your calls:    ", yours.traffic[0].calls)
print("Megatron-core's:", theirs.traffic[0].calls)

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:megatron-core VocabParallelEmbedding ColumnParallelLinear RowParallelLinear vocab_parallel_cross_entropy f g
for own, other in zip(yours.results, theirs.results):
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(own, other))
assert theirs.traffic[0].calls == {"all_reduce": 7}

# %% [markdown]
# Megatron-core makes seven all-reduces: one behind the embedding, one behind the row-parallel matrix, two in backward,
# for what goes into the two column-parallel matrices, and three for the loss, one for each of the three numbers.

# %% [markdown]
# ## 9 Cutting the sequence
#
# Outside of f and g every rank still computes everything for all tokens: norms, dropout, the residual sum. That is little
# computing, but all these activations are kept for backward, on each of p ranks. These operations treat each token by
# itself. So Korthikanti et al. (2022) cut them along the sequence: between the blocks, each rank holds some of the
# tokens, all D numbers wide.
#
# A column-parallel layer needs all tokens, so what stands before it must now gather them. That takes the place of f. A
# row-parallel layer returns a sum for all tokens, but each rank needs the sum for its own tokens only. Adding up just
# these takes the place of g. The two are conjugate again: what one does in forward the other does in backward.


# %% exercise="gather_sequence" points=9
def gather_sequence(x_BTD: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """All tokens [B, T, D], on every rank, from some of them on each.

    x_BTD: float [B, T / p, D], this rank's part of all tokens, cut along T. The gradients that
    arrive differ from rank to rank; x_BTD gets its part of their sum.

    Calls: one in each pass, in which no rank sends more than (p - 1) / p of the whole.
    """
    return GatherSequence.apply(x_BTD, group)


class GatherSequence(torch.autograd.Function):
    """The two passes of gather_sequence."""

    @staticmethod
    def forward(ctx, x_BTD: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        own = x_BTD.contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own, group=group)
        return torch.cat(parts, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        parts = [part.contiguous() for part in gradient_BTD.chunk(dist.get_world_size(ctx.group), dim=1)]
        own = torch.empty_like(parts[dist.get_rank(ctx.group)])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None
        ### END SOLUTION


# %% exercise="scatter_sequence" points=8
def scatter_sequence(x_BTD: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Some tokens of a sum on each rank, from a summand for all tokens on each.

    x_BTD: float [B, T, D], another one on each rank; p divides T. Returns [B, T / p, D], this
    rank's part, cut along T, of the sum of all ranks' x_BTD.

    Calls: one in each pass, in which no rank sends more than (p - 1) / p of what x_BTD has.
    """
    return ScatterSequence.apply(x_BTD, group)


class ScatterSequence(torch.autograd.Function):
    """The two passes of scatter_sequence."""

    @staticmethod
    def forward(ctx, x_BTD: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        parts = [part.contiguous() for part in x_BTD.chunk(dist.get_world_size(group), dim=1)]
        own = torch.empty_like(parts[dist.get_rank(group)])
        dist.reduce_scatter(own, parts, group=group)
        return own
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        own = gradient_BTD.contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, own, group=ctx.group)
        return torch.cat(parts, dim=1), None
        ### END SOLUTION


# %% [markdown]
# There is a trap. A norm's weight is the same on every rank, but each rank now uses it for other tokens.
#
# **Predict:** what does its gradient lack on a rank, and which function of this unit, applied to the *weight*, would fix
# that?

# %% demo=true
guesses.ask(function_that_mends_a_norms_gradient=None)


# %% exercise="sequence_parallel_mlp" points=14
def sequence_parallel_mlp(
    x_BTD: Tensor,
    norm: nn.LayerNorm,
    up: nn.Linear,
    down: nn.Linear,
    bias: Tensor,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """x + down(gelu(up(norm(x)))) + bias, of the whole layer, for this rank's tokens.

    x_BTD: float [B, T / p, D], as in gather_sequence; so is the result. norm and bias [D] are the
    same on all ranks; up, from D to F / p, and down, from F / p to D without a bias, are this
    rank's parts. gelu is functional.gelu. All gradients are right in every step.

    Calls: one all-gather and one reduce-scatter in each pass; besides, in backward, all_reduces of
    at most 3 D numbers.
    """
    ### BEGIN SOLUTION
    weight, shift = f(norm.weight, group), f(norm.bias, group)
    h_BTD = functional.layer_norm(x_BTD, norm.normalized_shape, weight, shift, norm.eps)
    y_BTD = down(functional.gelu(up(gather_sequence(h_BTD, group))))
    return x_BTD + scatter_sequence(y_BTD, group) + f(bias, group)
    ### END SOLUTION


# %% [markdown]
# What each rank sends, beside the same MLP between f and g:
#
# | | tensor parallel | and sequence parallel |
# |---|---|---|
# | forward | an all-reduce behind `down` | an all-gather before `up`, a reduce-scatter behind `down` |
# | backward | an all-reduce before `up` | an all-gather behind `down`, a reduce-scatter before `up` |
#
# Now measure the bytes sent in both passes, and the bytes kept for backward: all tensors that autograd saves, without
# parameters, each counted once.


# %% demo=true
# %%needs sequence_parallel_mlp gather_sequence scatter_sequence f g
def tensor_parallel_mlp(x_BTD, norm, up, down, bias):
    """The same with all tokens on every rank."""
    h_BTD = f(norm(x_BTD))
    return x_BTD + g(down(functional.gelu(up(h_BTD)))) + bias


def one_layer(mlp, samples: int, tokens: int, width: int) -> int:
    """Bytes that this rank keeps for backward, of one layer."""
    size = dist.get_world_size()
    norm, up = nn.LayerNorm(width), nn.Linear(width, 4 * width // size)
    down, bias = nn.Linear(4 * width // size, width, bias=False), nn.Parameter(torch.zeros(width))
    own = tokens // size if mlp is sequence_parallel_mlp else tokens
    x_BTD = torch.randn(samples, own, width, requires_grad=True)
    with KeptForBackward([*norm.parameters(), *up.parameters(), *down.parameters(), bias]) as kept:
        y_BTD = mlp(x_BTD, norm, up, down, bias)
    y_BTD.sum().backward()
    return kept.nbytes


layer = {"samples": 4, "tokens": 64, "width": 128}
whole_bytes = 4 * layer["samples"] * layer["tokens"] * layer["width"]
kept, moved = {}, {}
for name, mlp in {
    "tensor parallel": tensor_parallel_mlp,
    "and sequence parallel": sequence_parallel_mlp,
}.items():
    run = launch(one_layer, mlp, *layer.values(), ranks=4, on=on)
    kept[name], moved[name] = run.results[0] / whole_bytes, run.traffic[0].sent / whole_bytes
    print(f"{name:22} kept for backward: {kept[name]:.2f} x_BTD    sent: {moved[name]:.2f} x_BTD")

# %% demo=true jupyter={"source_hidden": true}
# %%holds sequence_parallel_mlp gather_sequence scatter_sequence f g
assert math.isclose(kept["tensor parallel"], 4, rel_tol=0.01), kept
assert math.isclose(kept["and sequence parallel"], 3.25, rel_tol=0.01), kept
assert moved["tensor parallel"] == 3, moved
guesses.measured(function_that_mends_a_norms_gradient="f: the others' tokens are missing")
assert math.isclose(moved["and sequence parallel"], 3, rel_tol=0.01), moved

# %% [markdown]
# The bytes sent are the same, but for the gradients of the norm and the bias: an all-reduce *is* a reduce-scatter and an
# all-gather, which here stand in two places. What is kept falls from 4 to 3.25, in units of x:
#
# | | tensor parallel | and sequence parallel |
# |---|---|---|
# | the norm's input | 1 | 1/4: a quarter on each of four ranks |
# | what goes into `up` | 1 | 1: `gather_sequence` has brought it together |
# | two tensors inside the MLP, each 4 wide, cut over four ranks | 2 | 2 |
#
# The gathered tensor does not shrink with more ranks. Korthikanti et al. get rid of that too: they keep their own part
# only, and gather once more in backward, while another gradient is computed.

# %% [markdown]
# ## 10 A whole model on real text
#
# In each block of the transformer the attention and the MLP are replaced by this rank's part of them. All else, the
# embedding, the norms and the head, stays whole on every rank (sections 6 to 9 say what more can be cut).


# %% demo=true
# %%needs f g parallel_mlp parallel_attention
by_hand = runpy.run_path(str(examples / "by_hand.py"))["cut"]
text = load_text(32)


def new_model() -> Transformer:
    """The whole model, the same on every rank."""
    torch.manual_seed(0)
    return Transformer(TransformerConfig(context=32))


def cut_model() -> Transformer:
    """This rank's part of the same model; a mark when it is made."""
    model = new_model()
    by_hand(model, parallel_attention, parallel_mlp)
    mark("made")
    return model


def train(new_model: Callable[[], nn.Module], steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Adam on the same batches of text on every rank; each step's loss, and the first step's gradients."""
    model, order = new_model(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        tokens_BT, next_BT = text.train.batch(torch.randint(len(text.train), (4,), generator=order))
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens_BT), next_BT)
        mark("backward")
        loss.backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


losses, gradients = launch(train, new_model, 20, ranks=1).results[0]
trained = {size: launch(train, cut_model, 20, ranks=size) for size in (2, 4)}
print(f"one rank: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after 20 steps")
off = {}
for size, run in trained.items():
    off[size] = max(abs(a - b) for cut, _ in run.results for a, b in zip(cut, losses, strict=True))
    print(f"{size} ranks: every loss on every rank within {off[size]:.0e} of that")

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_mlp parallel_attention
assert losses[0] - losses[-1] > 1
assert 0 < max(off.values()) < 1e-4
guesses.measured(digit_after_the_point_where_the_loss_has_changed=-math.floor(math.log10(off[4])))

# %% [markdown]
# The third prediction: about the seventh digit. Sums over ranks add up in another order, and nothing else is different. So
# before you train for a week, compare losses over some steps and to their last digits. One step is not enough: a
# forgotten $f$ leaves the first loss as it is.
#
# There are two kinds of parameters here, and the gradients of both have to be right:

# %% demo=true
# %%needs f g parallel_mlp parallel_attention
kinds = {"whole": [], "cut": []}
for name, whole in gradients.items():
    parts = [found[name] for _, found in trained[4].results]
    if parts[0].shape == whole.shape:
        kinds["whole"].append((name, max((part - whole).abs().max().item() for part in parts)))
    else:
        along = next(d for d in range(whole.dim()) if parts[0].shape[d] != whole.shape[d])
        kinds["cut"].append((name, (torch.cat(parts, along) - whole).abs().max().item()))
largest = max(gradient.abs().max().item() for gradient in gradients.values())
for kind, found in kinds.items():
    print(
        f"{len(found)} parameters {kind} on each rank, gradients off by {max(d for _, d in found):.0e} at most"
    )
print(f"(the largest gradient is {largest:.2f})")

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_mlp parallel_attention
assert [len(found) for found in kinds.values()] == [16, 20]
assert all(difference < 1e-5 for found in kinds.values() for _, difference in found)
assert largest > 0.1

# %% [markdown]
# - **Whole** parameters (embedding, norms, the biases behind $g$) have the same gradient on every rank. What goes into
#   them and what comes back is the same everywhere, so they need no all-reduce of gradients, unlike in data parallelism.
#   If the ranks' copies drift apart, an $f$ is missing somewhere.
# - **Cut** parameters have their part of the gradient, and no other rank needs it.
#
# So an optimizer works on each rank as on one. But the norm of the gradient, by which gradients are clipped, is counted
# over all parameters: what is cut counts on all ranks, what is whole counts once (unit 12).

# %% [markdown]
# ## 11 The same with DTensor
#
# PyTorch has all this as well, without a line of communication in the model. A `DTensor` knows how it is cut: `Shard(0)`
# along its first dimension, `Replicate()` whole everywhere, `Partial()` as summands that nobody has added up yet. Every
# operation on it knows what comes out. A whole matrix times columns in a `Shard` is a `Shard`; columns in a `Shard` times
# rows in a `Shard` are a `Partial`. Where a whole tensor is wanted, a collective turns the one into the other (section
# 12). `parallelize_module` takes a model as it is, and a plan of how its layers are cut. The two ways beside each other:

# %% demo=true
from course_lib.notebook.side_by_side import side_by_side

side_by_side(examples / "by_hand.py", examples / "by_plan.py")

# %% [markdown]
# By hand you write what happens, by plan how tensors lie. Both are run for a step, and a third plan, which leaves
# something out:


# %% demo=true
# %%needs f g parallel_mlp parallel_attention
by_plan = runpy.run_path(str(examples / "by_plan.py"))["cut"]


def planned_model(without: tuple[str, ...] = ()) -> Transformer:
    """The same model, cut by DTensor; a mark when it is made. without: parts of the plan to leave out."""
    model = new_model()
    by_plan(model, without)
    mark("made")
    return model


def all_reduces(run: Run) -> list[int]:
    """The bytes of rank 0's collectives after the mark, all of which are all-reduces."""
    mine = [event for event in run.events if event.rank == 0]
    made = next(event.sequence for event in mine if event.op == "made")
    after = [event for event in mine if event.kind == "collective" and event.sequence >= made]
    assert {event.op for event in after} == {"all_reduce"}
    return [event.nbytes for event in after]


ways = {
    "by hand": cut_model,
    "by plan": planned_model,
    "by plan, attention left out": partial(planned_model, ("attention",)),
}
one_step = {name: launch(train, way, 1, ranks=2) for name, way in ways.items()}
for name, run in one_step.items():
    off = abs(run.results[0][0][0] - losses[0])
    sizes = all_reduces(run)
    print(f"{name:28} loss off by {off:.0e}, {len(sizes):2} all-reduces of {sizes[0]:,} bytes")
    assert off < 1e-5

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_mlp parallel_attention
nbytes = 4 * 32 * 64 * 4  # of x_BTD: 4 samples of 32 tokens, 64 numbers of 4 bytes
by_hand_sizes, planned_sizes, without_sizes = (all_reduces(run) for run in one_step.values())
assert by_hand_sizes == planned_sizes == [nbytes] * 8
assert without_sizes == [nbytes] * 12

# %% [markdown]
# The loss is the same, and so are the collectives, number for number: in each of the two blocks two all-reduces forward
# and two backward. Now look at the last line. That plan speaks of the layers only. It is right too, but each of query,
# key and value turns x into a DTensor of its own, and each of these has an $f$: 12 all-reduces where 8 are enough.
# `PrepareModuleInput` says that what goes into the attention is one whole tensor. No warning tells that it is missing,
# but the timeline shows it. Before "backward" stand four all-reduces, those of g, and behind it eight (at half height,
# for DTensor's are asynchronous):

# %% demo=true
# %%needs f g parallel_mlp parallel_attention
run = one_step["by plan, attention left out"]
made = next(event.start for event in run.events if event.op == "made")
run.timeline(title="by plan, attention left out", start=made)

# %% [markdown]
# ## 12 Which collective a layout needs
#
# One rule gives column and row, f and g. It is Mesh-TensorFlow's (Shazeer et al., 2018). Name every dimension with a
# letter, and arrange the ranks as a mesh with named axes. A **layout** says which letter is cut along which axis. A
# tensor that has such a letter is cut there, in every operation. A tensor that has none is whole on all ranks. An MLP is
# two sums of products, with B samples of D numbers:
#
# | | `einsum` |
# |---|---|
# | hidden = x up | `"bd,df->bf"` |
# | y = hidden down | `"bf,fd->bd"` |
#
# Each rank multiplies what it holds. Sometimes that is its part of the result, and sometimes it is only one summand of
# it. **Predict.** For the layouts `{"b": "all"}` and `{"f": "all"}`, on a mesh with the one axis `all`: of hidden, y, and
# the gradients of x, up, hidden and down, which need an all-reduce?

# %% demo=true
guesses.ask(needs_an_all_reduce_with_b_cut=None, needs_an_all_reduce_with_f_cut=None)


# %% exercise="required_collectives" points=10
def required_collectives(einsum: str, layout: dict[str, str]) -> list[list[str]]:
    """Along which axes of the mesh what the ranks have computed has to be added up.

    einsum: such as "bd,df->bf"; each letter stands in at least two of the tensors, and at most once
    in each. layout: letter -> axis; so are all tensors cut, gradients too. Other letters are not
    cut.

    Returns lists of axes, sorted: for the result, in forward; then for each operand's gradient, in
    backward. All-reduces along these make the tensor right on every rank.

    Raises ValueError if two letters of the einsum are cut along one axis: no rank would have the
    parts that belong together.
    """
    ### BEGIN SOLUTION
    operands, result = einsum.split("->")
    tensors = [result, *operands.split(",")]
    cut = {letter: layout[letter] for letter in set("".join(tensors)) if letter in layout}
    if len(set(cut.values())) < len(cut):
        raise ValueError(f"{einsum}: two letters are cut along one axis, {cut}.")
    return [sorted(cut[letter] for letter in set(cut) - set(tensor)) for tensor in tensors]
    ### END SOLUTION


# %% [markdown]
# For the MLP under three layouts, the last one on a mesh of 2 x 2:

# %% demo=true
# %%needs required_collectives
LAYOUTS = {
    "data parallel": {"b": "all"},
    "tensor parallel": {"f": "all"},
    "both": {"b": "rows", "f": "columns"},
}
for name, layout in LAYOUTS.items():
    print(f"{name}: {layout}")
    for einsum in ("bd,df->bf", "bf,fd->bd"):
        tensors = [
            einsum.split("->")[1],
            *(f"gradient of {each}" for each in einsum.split("->")[0].split(",")),
        ]
        sums = zip(tensors, required_collectives(einsum, layout))
        print(
            f"    {einsum}: "
            + "; ".join(f"{tensor} over {', '.join(axes) or 'nothing'}" for tensor, axes in sums)
        )

# %% demo=true jupyter={"source_hidden": true}
# %%holds required_collectives
assert required_collectives("bd,df->bf", {"b": "all"}) == [[], [], ["all"]]
assert required_collectives("bf,fd->bd", {"b": "all"}) == [[], [], ["all"]]
assert required_collectives("bd,df->bf", {"f": "all"}) == [[], ["all"], []]
assert required_collectives("bf,fd->bd", {"f": "all"}) == [["all"], [], []]
guesses.measured(
    needs_an_all_reduce_with_b_cut="the gradients of up and down",
    needs_an_all_reduce_with_f_cut="y, and the gradient of x",
)

# %% [markdown]
# The second layout has an all-reduce of y in forward, which is g, and one of x's gradient in backward, which is f. The
# first layout has all-reduces of both weights' gradients, and no others: data parallelism. It is the same rule; another
# letter is cut.
#
# Now test the rule: each rank takes its parts out of drawn tensors, multiplies, and adds up along the axes that your
# function names, and along no other.


# %% demo=true
# %%needs required_collectives
def run_einsum(
    einsum: str, layout: dict[str, str], mesh: dict[str, int], operands: list[Tensor], arriving: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """On this rank: the result and each operand's gradient, each beside its part of what the whole einsum gives."""
    place = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    inputs, result = einsum.split("->")
    names = [result, *inputs.split(",")]

    def part(whole: Tensor, letters: str) -> Tensor:
        for dim, axis in enumerate(map(layout.get, letters)):
            if axis is not None:
                whole = whole.tensor_split(mesh[axis], dim)[place.get_local_rank(axis)]
        return whole.contiguous()

    def both_passes(tensors: list[Tensor], gradient: Tensor) -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        y = torch.einsum(einsum, *leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]

    own = both_passes(list(map(part, operands, names[1:])), part(arriving, result))
    for tensor, axes in zip(own, required_collectives(einsum, layout)):
        for axis in axes:
            dist.all_reduce(tensor, group=place.get_group(axis))
    return list(zip(own, map(part, both_passes(operands, arriving), names)))


sizes = {"b": 4, "d": 6, "f": 8, "h": 4, "q": 4, "k": 6, "e": 2}
# The scores of attention: q queries, k keys, h heads, e numbers each.
trials = [
    *((einsum, layout) for einsum in ("bd,df->bf", "bf,fd->bd") for layout in LAYOUTS.values()),
    ("bqhe,bkhe->bhqk", {"h": "all"}),
    ("bqhe,bkhe->bhqk", {"b": "rows", "k": "columns"}),
    ("bqhe,bkhe->bhqk", {"h": "rows", "e": "columns"}),
]
for einsum, layout in trials:
    mesh = {"all": 4} if "all" in layout.values() else {"rows": 2, "columns": 2}
    inputs, result = einsum.split("->")
    operands = [torch.randn([sizes[letter] for letter in letters]) for letters in inputs.split(",")]
    arriving = torch.randn([sizes[letter] for letter in result])
    run = launch(run_einsum, einsum, layout, mesh, operands, arriving, ranks=4, on=on)
    off = max((own - part).abs().max().item() for results in run.results for own, part in results)
    print(f"{einsum:16} {layout!s:34} off by at most {off:.0e}")
    assert off < 1e-4

# %% [markdown]
# ### Mesh-TensorFlow itself
#
# Mesh-TensorFlow counts the numbers that it gives to all-reduces. `examples/mesh_tensorflow/layouts.py` builds an MLP of
# 8 samples, 4 to 12 to 2 numbers, with its loss and the gradients of both matrices, for each of the layouts. What to
# expect follows from your function and the sizes:

# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:mesh-tensorflow required_collectives
import json
import subprocess
from pathlib import Path

import course_lib
from course_lib.beside import interpreter

mlp_sizes = {"b": 8, "d": 4, "f": 12, "v": 2}
meshes = {"data parallel": {"all": 4}, "tensor parallel": {"all": 4}, "both": {"rows": 2, "columns": 2}}


def expected_sums(layout: dict[str, str], mesh: dict[str, int]) -> dict[str, int]:
    """Axis -> how many numbers all 4 ranks give to all-reduces along it, where x needs no gradient."""
    sums = dict.fromkeys(mesh, 0)
    for einsum, wanted in {"bd,df->bf": (0, 2), "bf,fv->bv": (0, 1, 2)}.items():
        inputs, result = einsum.split("->")
        tensors, needed = [result, *inputs.split(",")], required_collectives(einsum, layout)
        for tensor, axes in ((tensors[place], needed[place]) for place in wanted):
            numbers = 4 * math.prod(mlp_sizes[a] // mesh.get(layout.get(a, ""), 1) for a in tensor)
            for axis in axes:
                sums[axis] += numbers
    return sums


def with_mesh_tensorflow(asked: dict) -> dict:
    """What the script answers."""
    script = Path(course_lib.__file__).parents[1] / "examples" / "mesh_tensorflow" / "layouts.py"
    command = [str(interpreter("mesh-tensorflow")), str(script), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def written(pairs: dict) -> str:
    """As Mesh-TensorFlow writes meshes and layouts: "rows:2;columns:2"."""
    return ";".join(f"{name}:{value}" for name, value in pairs.items())


SEARCHES = [
    ({"b": 1024, "d": 64, "f": 64, "v": 64}, "all:4"),
    ({"b": 16, "d": 4096, "f": 16_384, "v": 4096}, "all:4"),
    ({"b": 1024, "d": 4096, "f": 4096, "v": 4096}, "rows:2;columns:4"),
]
told = with_mesh_tensorflow(
    {
        "layouts": [(mlp_sizes, "all:1", "")]
        + [(mlp_sizes, written(meshes[name]), written(LAYOUTS[name])) for name in LAYOUTS],
        "searched": SEARCHES,
    }
)
one_rank, *several = told["layouts"]
for name, lowered in zip(LAYOUTS, several):
    print(
        f"{name}: expected {expected_sums(LAYOUTS[name], meshes[name])}, Mesh-TensorFlow counts {lowered['sums']}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:mesh-tensorflow required_collectives
for name, lowered in zip(LAYOUTS, several):
    assert list(expected_sums(LAYOUTS[name], meshes[name]).values()) == lowered["sums"]
    assert math.isclose(lowered["loss"], one_rank["loss"], rel_tol=1e-5)
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(lowered["gradients"], one_rank["gradients"]))

# %% [markdown]
# All layouts give one rank's loss and gradients. Mesh-TensorFlow can also choose the layout. Its search, `auto_mtf`,
# estimates the memory of each layout, and a constraint solver finds the least:

# %% demo=true
# %%needs beside:mesh-tensorflow required_collectives
for (shape, mesh), layout in zip(SEARCHES, told["searched"]):
    print(f"{written(shape):36} on {mesh:17} {layout}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:mesh-tensorflow required_collectives
assert told["searched"][:2] == ["b:all", "f:all"]
assert set(told["searched"][2].split(";")) == {"d:columns", "f:rows", "v:columns"}

# %% [markdown]
# With many samples and small matrices it finds data parallelism; with few samples and large matrices it finds Megatron's
# cut. On a mesh of 2 x 4 it cuts the weights along both axes: since no einsum has both `d` and `v`, both may use one
# axis. But it looks at memory alone, and not at what a layout sends. Unit 13 adds that.

# %% [markdown]
# ## 13 What it costs
#
# There are four ways to share the same work: B samples of T tokens go through p layers, on p ranks. A layer is
# `x + down(gelu(up(norm(x))))`, D wide with 4 D inside, without biases, and with a norm that has no weights.
#
# - **data**: each rank has all layers and B / p of the samples; gradients are all-reduced, each layer's once;
# - **pipeline**: each rank has one layer, and all samples pass through it, in micro-batches;
# - **tensor**: each rank has 1 / p of every layer, between f and g;
# - **sequence**: the same, between `gather_sequence` and `scatter_sequence`.
#
# Before you measure, predict four numbers for a rank: what it sends, what parameters it has, what it keeps for backward,
# what it computes.


# %% exercise="stack_costs" points=12
def stack_costs(way: str, samples: int, tokens: int, width: int, ranks: int) -> dict[str, int]:
    """What a step, forward and backward, of the stack above costs a rank (of a pipeline: one in the
    middle).

    way: "data", "pipeline", "tensor" or "sequence". samples, tokens, width, ranks: B, T, D and p,
    which is at least 3 and divides the others. Returns
        "sent"        numbers that it sends: in an all-reduce 2 (p - 1) / p of what it is given, in a
                      reduce-scatter or an all-gather half as much
        "parameters"  numbers in the weights that it has
        "kept"        numbers that autograd keeps after forward of all its samples: the inputs of norm,
                      up, gelu and down
        "flops"       of matrix products, two for each multiplication; the first layer's input gets a
                      gradient, too
    """
    ### BEGIN SOLUTION
    layer, stream, p = 8 * width**2, samples * tokens * width, ranks
    cut = {
        "data": {"sent": 2 * (p - 1) * layer, "parameters": p * layer, "kept": 10 * stream},
        "pipeline": {"sent": 2 * stream, "parameters": layer, "kept": 10 * stream},
        "tensor": {"sent": 4 * (p - 1) * stream, "parameters": layer, "kept": (2 * p + 8) * stream},
        "sequence": {"sent": 4 * (p - 1) * stream, "parameters": layer, "kept": (p + 9) * stream},
    }
    return {**cut[way], "flops": 6 * layer * samples * tokens}
    ### END SOLUTION


# %% [markdown]
# Now build all four, and measure.

# %% demo=true jupyter={"source_hidden": true}
# %%needs stack_costs gather_sequence scatter_sequence f g
from torch.utils.flop_counter import FlopCounterMode


def as_it_is(x: Tensor) -> Tensor:
    return x


class StackedLayer(nn.Module):
    """One layer, or a rank's part of it; before and behind: what stands around its two matrices."""

    def __init__(self, width: int, parts: int = 1, before=as_it_is, behind=as_it_is, device=None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.up = nn.Linear(width, 4 * width // parts, bias=False, device=device)
        self.down = nn.Linear(4 * width // parts, width, bias=False, device=device)
        self.around = before, behind

    def forward(self, x_BTD: Tensor) -> Tensor:
        before, behind = self.around
        return x_BTD + behind(self.down(functional.gelu(self.up(before(self.norm(x_BTD))))))


def all_at_once(way: str, shape: tuple[int, int, int], device: str) -> tuple[list[nn.Module], int]:
    """A step of "data", "tensor" or "sequence": this rank's layers, and the bytes that they kept."""
    (samples, tokens, width), p = shape, dist.get_world_size()
    around = {"data": (1,), "tensor": (p, f, g), "sequence": (p, gather_sequence, scatter_sequence)}[way]
    layers = [StackedLayer(width, *around, device=device) for _ in range(p)]
    x_BTD = torch.empty(
        samples // (p if way == "data" else 1),
        tokens // (p if way == "sequence" else 1),
        width,
        device=device,
    )
    model = nn.Sequential(*layers)
    with KeptForBackward(model.parameters()) as kept:
        y_BTD = model(x_BTD.requires_grad_())
    y_BTD.sum().backward()
    if way == "data":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    return layers, kept.nbytes


def in_a_pipeline(
    shape: tuple[int, int, int], device: str, micro_batches: int
) -> tuple[list[nn.Module], int]:
    """A step of "pipeline", all forward passes before all backward passes: this rank's layer, and the bytes kept."""
    (samples, tokens, width), p, rank = shape, dist.get_world_size(), dist.get_rank()
    layer, passes = StackedLayer(width, device=device), []
    with KeptForBackward(layer.parameters()) as kept:
        for _ in range(micro_batches):
            x_BTD = torch.empty(samples // micro_batches, tokens, width, device=device)
            if rank > 0:
                dist.recv(x_BTD, rank - 1)
            passes.append((x_BTD, layer(x_BTD.requires_grad_())))
            if rank < p - 1:
                dist.send(passes[-1][1].detach(), rank + 1)
    for x_BTD, y_BTD in passes:
        gradient_BTD = torch.ones_like(y_BTD)
        if rank < p - 1:
            dist.recv(gradient_BTD, rank + 1)
        y_BTD.backward(gradient_BTD)
        if rank > 0:
            dist.send(x_BTD.grad, rank - 1)
    return [layer], kept.nbytes


def costs(
    way: str, shape: tuple[int, int, int], micro_batches: int = 4, device: str = "cpu"
) -> dict[str, int]:
    """What this rank has learnt, kept and computed, in numbers and FLOP."""
    with FlopCounterMode(display=False) as counter:
        if way == "pipeline":
            layers, kept = in_a_pipeline(shape, device, micro_batches)
        else:
            layers, kept = all_at_once(way, shape, device)
    learnt = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    return {"parameters": learnt, "kept": kept // 4, "flops": counter.get_total_flops()}


WAYS = "data", "pipeline", "tensor", "sequence"
shape = samples, length, width = 8, 32, 128
measured = {}
print(f"{'':10}" + "".join(f"{name:>26}" for name in ("sent", "parameters", "kept", "flops")))
print(f"{'':10}" + f"{'predicted':>13}{'measured':>13}" * 4)
for way in WAYS:
    run = launch(costs, way, shape, ranks=4, on=on)
    measured[way] = {"sent": run.traffic[1].sent // 4, **run.results[1]}
    predicted = stack_costs(way, *shape, 4)
    print(
        f"{way:10}" + "".join(f"{predicted[name]:>13,}{measured[way][name]:>13,}" for name in measured[way])
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds stack_costs gather_sequence scatter_sequence f g
for way in WAYS:
    predicted = stack_costs(way, *shape, 4)
    for name in ("sent", "parameters", "flops"):
        assert predicted[name] == measured[way][name], (way, name)
    assert math.isclose(predicted["kept"], measured[way]["kept"], rel_tol=0.02), way
border = (4, 2 * (4 - 1) * width, width, 4)
assert stack_costs("data", *border)["sent"] == stack_costs("pipeline", *border)["sent"]

# %% [markdown]
# All compute the same number of operations. Only data parallelism has all the parameters on every rank. What it sends
# depends on these alone; what the other three send depends on the tokens. Here a pipeline sends least by far; with more
# than 8 (p - 1) D tokens in B T, data parallelism would. Tensor parallelism sends 2 (p - 1) times as much as a pipeline,
# for all sizes.
#
# But bytes are not all. Alpa (Zheng et al., 2022) says: splitting *between* operators, as a pipeline does, means less
# communication and more idle time; splitting *within* them means more communication and less idle time. To measure that,
# take layers of the width of Megatron-LM's 8.3 billion parameters on four A100 GPUs of a node. A rank is **idle** while
# it neither computes nor has a byte on its way. (The tensors are meta tensors, which have shapes and no data.)

# %% demo=true
# %%needs stack_costs gather_sequence scatter_sequence f g
from dataclasses import replace

from course_lib.cluster import presets


def shares(run) -> tuple[float, float, float]:
    """Of all ranks' time the parts in which they compute, in which bytes of theirs are on their way, and the rest."""
    computing = sum(event.seconds for event in run.events if event.kind == "compute")
    link, moving = run.cluster.intra_node, 0.0
    for event in run.events:
        if event.kind == "collective":
            moving += event.seconds
        elif event.kind == "point-to-point":
            moving += link.seconds(event.sent or event.received)
    whole = run.seconds * run.ranks
    return computing / whole, moving / whole, 1 - (computing + moving) / whole


wide = (8, 1024, 3072)
node = presets.nvlink_node(4)
runs = {way: launch(costs, way, wide, 4, "meta", cluster=node) for way in ("pipeline", "tensor")}
print(f"{'':10} {'time':>10} {'sent a rank':>14} {'computing':>11} {'sending':>9} {'idle':>7}")
split = {}
for way, run in runs.items():
    split[way] = shares(run)
    sent = max(rank.sent for rank in run.traffic.ranks)
    computing, moving, idle = split[way]
    print(
        f"{way:10} {run.seconds * 1e3:7.1f} ms {sent / 1e6:11.0f} MB {computing:11.0%} {moving:9.1%} {idle:7.1%}"
    )
figure = runs["pipeline"].timeline(title="a pipeline of four layers, 4 micro-batches")
figure

# %% demo=true
# %%needs stack_costs gather_sequence scatter_sequence f g
runs["tensor"].timeline(title="the same four layers, each cut into four")

# %% demo=true jupyter={"source_hidden": true}
# %%holds stack_costs gather_sequence scatter_sequence f g
assert math.isclose(split["pipeline"][2], 3 / 7, abs_tol=0.06), split
assert split["tensor"][2] < 0.01, split
assert split["tensor"][1] > 2 * split["pipeline"][1], split
assert runs["tensor"].seconds < runs["pipeline"].seconds

# %% [markdown]
# That is Alpa's trade-off. The pipeline is idle for (p - 1) / (m + p - 1) = 3/7 of the time with its m = 4 micro-batches,
# as in unit 05, and it sends a sixth of what tensor parallelism sends. Between GPUs of one node idle time costs more than
# bytes. Now the same with the four GPUs in four nodes, behind 10 Gbit/s each, and 8 micro-batches:

# %% demo=true
# %%needs stack_costs gather_sequence scatter_sequence f g
slow_nodes = replace(node, nodes=4, devices_per_node=1, inter_node=Link(latency=14e-6, bandwidth=1.25e9))
far = {way: launch(costs, way, wide, 8, "meta", cluster=slow_nodes) for way in ("pipeline", "tensor")}
for way, run in far.items():
    print(f"{way:10} {run.seconds * 1e3:7.1f} ms")

# %% demo=true jupyter={"source_hidden": true}
# %%holds stack_costs gather_sequence scatter_sequence f g
assert 0.5 < far["pipeline"].seconds / far["tensor"].seconds < 0.6, far

# %% [markdown]
# There the pipeline takes little more than half the time. Hence the usual rule: tensor parallelism inside a node, and
# between nodes what sends less. How much does it matter which GPUs form a tensor-parallel group? Take one layer on 16
# H100 GPUs in two nodes, 8-way tensor parallel, twice over for data parallelism. The groups are nodes, or they have four
# GPUs of each node:


# %% demo=true
# %%needs stack_costs gather_sequence scatter_sequence f g
def one_hybrid_layer(names: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """A step of one layer. names: the axes of the mesh; ranks that follow each other differ in the last one first."""
    samples, tokens, width = shape
    mesh = init_device_mesh(
        "cpu", tuple({"data": 2, "tensor": 8}[name] for name in names), mesh_dim_names=names
    )
    tensor = mesh.get_group("tensor")
    layer = StackedLayer(width, 8, lambda x: f(x, tensor), lambda x: g(x, tensor), device="meta")
    x_BTD = torch.empty(samples // 2, tokens, width, device="meta", requires_grad=True)
    layer(x_BTD).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("data"))


grouped = {}
for name, axes in {"a node": ("data", "tensor"), "half of each node": ("tensor", "data")}.items():
    run = launch(one_hybrid_layer, axes, wide, cluster=presets.h100_pod(2))
    sums = [event for event in run.events if event.rank == 0 and event.op == "all_reduce"]
    grouped[name] = (
        run.seconds,
        *(sum(event.seconds for event in sums if len(event.group) == size) for size in (8, 2)),
    )
    whole, within, across = (seconds * 1e3 for seconds in grouped[name])
    print(
        f"tensor-parallel group: {name:18} {whole:5.1f} ms, in its all-reduces {within:4.1f} ms, for data {across:4.1f} ms"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds stack_costs gather_sequence scatter_sequence f g
good, bad = grouped.values()
assert bad[0] > 1.3 * good[0], grouped
assert bad[1] > 5 * good[1], grouped

# %% [markdown]
# The all-reduces of f and g take more than five times as long, and the whole layer more than 1.3 times. They are hard to
# hide, for what follows needs their result (section 15 tries), while a data-parallel all-reduce can wait for the end of
# backward. Megatron-LM's model of 8.3 billion parameters was cut into 8, in servers of 16 GPUs (DGX-2H), so that no group
# left its server. 64 such groups made up 512 GPUs.

# %% [markdown]
# ## 14 On real processes, and on nodes
#
# So far ranks were threads of this kernel, with virtual time. Here are the same functions on two real processes, with
# Gloo between them:

# %% demo=true
# %%needs f g parallel_mlp parallel_attention
real = launch(train, cut_model, 20, ranks=2, on="processes")
off = max(abs(a - b) for cut, _ in real.results for a, b in zip(cut, losses, strict=True))
counted = {name: run.traffic.ranks[0].sent for name, run in (("simulated", trained[2]), ("real", real))}
print(f"every loss within {off:.0e} of one rank's; a rank sends {counted}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds f g parallel_mlp parallel_attention
assert off < 1e-4
assert counted["simulated"] == counted["real"] == 20 * 8 * 4 * 32 * 64 * 4

# %% [markdown]
# On a cluster a job has more GPUs than one layer should be cut over. They form a grid: along one axis the ranks of a
# tensor-parallel group, along the other the replicas of data parallelism. `init_device_mesh` makes all groups. The rest
# is what you have written, with `group=`:
#
# ```python
# mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("data", "tensor"))
# tensor, data = mesh["tensor"].get_group(), mesh["data"].get_group()
# block.mlp = parallel_mlp(block.mlp, group=tensor)  # ranks of one node, neighbours by number
# # Broadcasts, and averages, this part of the model on all nodes.
# model = DistributedDataParallel(model, process_group=data)
# ```
#
# The last dimension of a mesh has neighbouring ranks, and Slurm numbers the tasks of a node one after another. So the
# groups that talk in every layer stay within a node:


# %% demo=true
def groups_of_a_mesh() -> tuple[list[int], list[int]]:
    """The ranks of this rank's tensor-parallel group, and of its data-parallel one."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))
    return tuple(dist.get_process_group_ranks(mesh[name].get_group()) for name in ("tensor", "data"))


two_nodes = Cluster(nodes=2, devices_per_node=4)
groups = launch(groups_of_a_mesh, cluster=two_nodes).results
print("rank 5: tensor", groups[5][0], "data", groups[5][1])

# %% demo=true jupyter={"source_hidden": true}
assert groups[5] == ([4, 5, 6, 7], [1, 5])
assert all(len({two_nodes.node_of(rank) for rank in tensor}) == 1 for tensor, _ in groups)

# %% [markdown]
# The batch script is that of unit 03, with a task for each GPU. If tasks are numbered across nodes instead
# (`--distribution=cyclic`), every tensor-parallel group spans all nodes. The training is still right, but slow (section
# 13).

# %% [markdown]
# ## 15 Open task
#
# The all-reduce of $g$ makes the GPU wait. But in an MLP the tokens do not need each other. Cut them into chunks: with
# `async_op=True` the sums of one chunk travel while the next one is computed. More chunks hide more, but every chunk has
# latencies of its own, and reads the weights again. (Megatron-LM, DeepSpeed and others do this on GPUs: S. Wang et al.,
# *Overlap Communication with Dependent Computation via Decomposition*, ASPLOS 2023.)
#
# What is best depends on the machine. These functions say how long things take on a virtual one, as the simulator
# reckons:


# %%
def product_seconds(rows: int, inputs: int, outputs: int, cluster: Cluster) -> float:
    """Seconds that a GPU takes for [rows, inputs] times [inputs, outputs], plus a bias, in float32."""
    numbers = rows * inputs + inputs * outputs + outputs + rows * outputs
    return max(2 * rows * inputs * outputs / cluster.flops, 4 * numbers / cluster.memory_bandwidth)


def mlp_seconds(rows: int, up: nn.Linear, down: nn.Linear, cluster: Cluster) -> float:
    """Seconds for both products of so many tokens, and for GELU, which reads and writes each hidden unit."""
    width, inner = up.in_features, up.out_features
    products = product_seconds(rows, width, inner, cluster) + product_seconds(rows, inner, width, cluster)
    return products + 8 * rows * inner / cluster.memory_bandwidth


def all_reduce_seconds(nbytes: float, ranks: int, cluster: Cluster) -> float:
    """Seconds that an all-reduce round a ring takes; a second one begins when the first one has ended."""
    link = cluster.intra_node
    return 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)


# %% exercise="overlapped_mlp" points=8
def overlapped_mlp(x_TD: Tensor, up: nn.Linear, down: nn.Linear, cluster: Cluster) -> Tensor:
    """An MLP that is cut over all ranks, forward only, in as little time as possible.

    x_TD: T tokens, the same on all ranks. up: D to this rank's part of F. down: from there to D;
    its bias is whole on every rank. All are without gradients. cluster: this machine, all
    ranks in one node.

    Returns what the whole MLP makes of x_TD, on every rank. The score is the virtual time until the
    last rank has it. There are points for half of what can be saved, and for at most a tenth, and a
    thirtieth, above the best known time. Reading and writing all of y, as to add a bias at the end,
    takes time too.
    """
    ### BEGIN SOLUTION
    ranks, tokens = dist.get_world_size(), len(x_TD)
    computing = [mlp_seconds(size, up, down, cluster) for size in range(tokens + 1)]
    summing = [all_reduce_seconds(x_TD[:size].nbytes, ranks, cluster) for size in range(tokens + 1)]

    def chunks(size: int) -> list[int]:
        """The first of this size, then each as large as can be computed while the last one is summed."""
        sizes = []
        while sum(sizes) < tokens:
            sizes.append(min(size, tokens - sum(sizes)))
            size = max(1, bisect(computing, summing[sizes[-1]]) - 1)
        return sizes

    def seconds(sizes: list[int]) -> float:
        """When the last all-reduce of chunks of these sizes has ended."""
        ended = 0.0
        for size, ready in zip(sizes, accumulate(computing[size] for size in sizes), strict=True):
            ended = max(ended, ready) + summing[size]
        return ended

    bias = down.bias if dist.get_rank() == 0 else None
    parts, works = [], []
    for x in x_TD.split(min(map(chunks, range(4, tokens, 4)), key=seconds)):
        parts.append(functional.linear(functional.gelu(up(x)), down.weight, bias))
        works.append(dist.all_reduce(parts[-1], async_op=True))
    for work in works:
        work.wait()
    return torch.cat(parts)
    ### END SOLUTION


# %% [markdown]
# A machine on which communicating takes about as long as computing:


# %% demo=true
# %%needs overlapped_mlp
def plain_mlp(x_TD: Tensor, up: nn.Linear, down: nn.Linear, cluster: Cluster) -> Tensor:
    """All tokens at once, then the sum."""
    y_TD = functional.linear(functional.gelu(up(x_TD)), down.weight)
    dist.all_reduce(y_TD)
    return y_TD + down.bias


slow = Cluster(devices_per_node=4, intra_node=Link(2e-6, 90e6), flops=4e9, memory_bandwidth=4e9)
up, down = nn.Linear(32, 64).requires_grad_(False), nn.Linear(64, 32).requires_grad_(False)
x_TD = torch.randn(256, 32)
took = {}
for name, way in (("all at once", plain_mlp), ("in chunks", overlapped_mlp)):
    run = launch(way, x_TD, up, down, slow, ranks=4, cluster=slow)
    took[name] = run.seconds
    print(f"{name:12} {run.seconds * 1e6:.0f} µs")
run.timeline(title="in chunks")

# %% demo=true jupyter={"source_hidden": true}
# %%holds overlapped_mlp
at_once = mlp_seconds(256, up, down, slow) + all_reduce_seconds(x_TD.nbytes, 4, slow)
last_sum = 3 * x_TD.nbytes / slow.memory_bandwidth
assert abs(took["all at once"] - at_once - last_sum) < 0.03 * at_once
assert took["in chunks"] < 0.8 * took["all at once"]

# %% [markdown]
# Sums are under way nearly from the beginning to the end, and products too. Nothing hides the first chunk's product and
# the last one's sum, so neither may be large.
#
# Backward can hide more. While $f$'s all-reduce is under way, the gradients of the weights are still to be computed, and
# nobody waits for these: Megatron-LM starts the sum, computes the weights' gradients, and then waits.

# %% [markdown]
# ## Where it comes from
#
# - N. Shazeer et al., Mesh-TensorFlow, NeurIPS 2018 (arXiv:1811.02084): layouts, and one rule for all of them.
# - M. Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053): f and g, attention by heads, the vocabulary cut. It is a
#   PyTorch model with a few calls of all_reduce, and "does not require a new compiler or library changes".
# - V. Korthikanti et al., Reducing activation recomputation in large transformer models, MLSys 2023 (arXiv:2205.05198):
#   sequence parallelism, and recomputing only what is cheap.
# - D. Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, SC21
#   (arXiv:2104.04473): tensor parallelism inside a node, pipelines between nodes, data parallelism around both.
# - L. Zheng et al., Alpa, OSDI 2022 (arXiv:2201.12023): inter- and intra-operator parallelism, the trade-off, and a
#   search over both.
# - Y. Xu et al., GSPMD, 2021 (arXiv:2105.04663): layouts as annotations, which a compiler completes; the same idea is
#   behind PyTorch's DTensor.
#
# ## What goes wrong in practice
#
# - **g without f.** The loss falls, and nothing raises, but weights that all ranks have drift apart. Compare them between
#   ranks now and then: they have to be the same to the last bit.
# - **An all-reduce too many.** `torch.distributed.nn.all_reduce` sums in both passes. As g it makes gradients p times too
#   large, for each g that they come through. Adam divides by their size, so the loss falls all the same.
# - **The bias p times.** In a row-parallel layer it is added behind the sum.
# - **Clipping.** The norm has to count what all ranks have once, and what is cut on every rank. Megatron-LM asks
#   `param_is_not_tensor_parallel_duplicate` of every parameter.
# - **Gradients of norms under sequence parallelism** lack the other ranks' tokens. Megatron-LM sums them in
#   `finalize_model_grads`; a new layer has to mark its parameters for that.
# - **Different batches.** Ranks of a tensor-parallel group need the same samples. With a sampler for all ranks every
#   shape fits, and the all-reduce adds up parts of different samples. Megatron-LM reads on one rank of the group and
#   broadcasts (`broadcast_data`).
# - **Padding of the vocabulary.** Columns that no token has take part in the loss's sum, unless their logits are -inf.
# - **Checkpoints of parts** fit the number of ranks that wrote them. PyTorch's distributed checkpoints load into other
#   cuts.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
