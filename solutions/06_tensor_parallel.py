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
# A layer that does not fit into one GPU is cut itself: each GPU holds a part of every matrix and computes a part of every product.
#
# After this unit you can
#
# - write the mean over all ranks with one collective call.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import launch, per_rank
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## 1 Two ways to cut a matrix

# %% [markdown]
# ## 2 Two functions for two passes
#
# Both cuts have a place where a rank's tensor meets those of the others, and in both the place is in one pass only. Where a
# tensor that all ranks have goes into branches, one on each rank, forward needs nobody. But each rank's backward brings only what *its* branch
# adds to the gradient, and the whole gradient is the sum over the branches. Where the branches end, it is the other way
# round: the value is a sum over ranks, and its derivative by each summand is 1. Megatron-LM calls these two places $f$ and $g$:
#
# | | forward | backward |
# |---|---|---|
# | $f$, where branches begin | the identity | an all-reduce |
# | $g$, where they end | an all-reduce | the identity |
#
# They are conjugates: what one does in forward the other does in backward. Autograd does not know of other ranks, so you
# have to tell it what to do in each pass. That is what `torch.autograd.Function` is for. Here is one that doubles gradients, and
# changes nothing else:


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
# Now the two of Megatron-LM. `SumInBackward` and `SumInForward` are yours to fill in; `f` and `g` call them.


# %% exercise="f" points=8
def f(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Megatron's f: the identity in forward, an all-reduce in backward.

    x: of any shape and floating dtype, on every rank of the group (None: the default group). Returns a tensor
    with x's numbers. The gradient that x gets from it is the sum, over the ranks of the group, of the gradients that
    arrive at it; what x gets by other ways stays as it is.

    Calls: none in forward; in backward one dist.all_reduce, and no other. x stays as it is, and so does the
    gradient that arrives, which may be an expanded tensor.
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

    x: of any shape and floating dtype, both the same on all ranks of the group (None: the default group). Returns
    the sum of all ranks' x. The gradient that x gets from it is the one that arrives at it; what x gets by other
    ways stays as it is.

    Calls: in forward one dist.all_reduce, and no other; none in backward. x stays as it is, and so does the
    gradient that arrives.
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
# ## 3 Layers that are cut
#
# Unit 07's rule cuts here too: `tensor_split`, in which the first ranks' parts may be one longer. A layer is used like `nn.Linear`,
# by a program that runs on all ranks.
#
# How should its weights be drawn? If each rank made an `nn.Linear` of its part's size, two things would go wrong. All ranks have
# the same seed, so all parts would be equal: the whole matrix would repeat itself. And `nn.Linear` draws from a range that depends
# on the number of inputs, which in a row-parallel layer is the rank's part. A model that is cut over 8 ranks should begin as
# it would on one: only then can you compare the two.


# %% exercise="ColumnParallelLinear" points=14
class ColumnParallelLinear(nn.Module):
    """A linear layer, cut by its outputs: x [..., inputs] to this rank's part of nn.Linear's [..., outputs].

    layer = ColumnParallelLinear(inputs, outputs, bias=True, group=None)

    Constructor: called on all ranks of the group (None: the default group), in the same random state. `weight`
    [part of outputs, inputs] and `bias` [part of outputs] (None with bias=False) are this rank's part of
    torch.tensor_split, outputs at least as many as ranks. They hold what nn.Linear(inputs, outputs, bias) would have
    there, and leave the random state that it would leave. While it is made the whole may be in memory, afterwards
    its part alone. No communication.

    forward: x is the same on all ranks, with any number of dimensions, and stays as it is. x gets the gradient that
    it has in nn.Linear, the same on all ranks; weight and bias their part of it.

    Calls: none in forward; in backward one all_reduce of x's bytes.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().tensor_split(size)[rank].clone()) if bias else None
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return functional.linear(f(x, self.group), self.weight, self.bias)
        ### END SOLUTION


# %% exercise="RowParallelLinear" points=14
class RowParallelLinear(nn.Module):
    """A linear layer, cut by its inputs: this rank's part of x [..., inputs] to the whole [..., outputs].

    layer = RowParallelLinear(inputs, outputs, bias=True, group=None)

    Constructor: as that of ColumnParallelLinear, but `weight` [outputs, part of inputs] is cut along its other
    dimension, inputs at least as many as ranks, and `bias` [outputs] is whole on every rank.

    forward: x [..., part of inputs] is this rank's part of an x, cut along its last dimension; it stays as it is.
    Returns what nn.Linear makes of the whole x, the same on all ranks. x and weight get their part of the
    gradients in nn.Linear; bias gets the whole of its own, on every rank, so that all copies stay the same.

    Calls: in forward one all_reduce of the result's bytes; none in backward.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size, dim=1)[rank].clone())
        self.bias = whole.bias
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        y = g(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


# %% [markdown]
# ## 4 Two layers, one all-reduce

# %% [markdown]
# ## 5 Attention by heads

# %% [markdown]
# ## 6 A dropout mask for many ranks

# %% [markdown]
# ## 7 Cutting the vocabulary

# %% [markdown]
# ## 8 A loss without all the logits

# %% [markdown]
# ## 9 Cutting the sequence

# %% [markdown]
# ## 10 A whole model on real text

# %% [markdown]
# ## 11 The same with DTensor

# %% [markdown]
# ## 12 Which collective a layout needs

# %% [markdown]
# ## 13 What it costs

# %% [markdown]
# ## 14 On real processes, and on nodes

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
