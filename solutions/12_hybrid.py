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
# Data, pipeline and tensor parallelism at once; convolutions cut in space; many trainers.
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
from torch import Tensor

from course_lib import launch, per_rank
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## 0 One number for all
#
# A collective is called by every rank, and `dist.all_reduce` leaves the sum over all ranks in each rank's tensor.


# %% exercise="hybrid_example" points=4
def hybrid_example(x: Tensor) -> Tensor:
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
# %%needs hybrid_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(hybrid_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 1 A mesh of ranks

# %% [markdown]
# ## 2 Shards within a node, copies across nodes

# %% [markdown]
# ## 3 A step along three axes

# %% [markdown]
# ## 4 The norm of all gradients

# %% [markdown]
# ## 5 Images cut in space

# %% [markdown]
# ## 6 Convolutions cut three ways

# %% [markdown]
# ## 7 Statistics of all samples

# %% [markdown]
# ## 8 A tournament of trainers

# %% [markdown]
# ## 9 What each axis costs

# %% [markdown]
# ## 10 The whole against published tables

# %% [markdown]
# ## 11 PyTorch's own, on real processes

# %% [markdown]
# ## 12 Now on nodes

# %% [markdown]
# ## 13 Open task: a mesh for a model

# %% [markdown]
# ## Where it comes from
#
# Papers, with their numbers.
#
# ## What goes wrong in practice
#
# Mistakes that people make, and how they show.
