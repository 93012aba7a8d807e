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
from torch import Tensor

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
# A collective is called by every rank, and `dist.all_reduce` leaves the sum over all ranks in each rank's tensor.


# %% exercise="tensor_parallel_example" points=4
def tensor_parallel_example(x: Tensor) -> Tensor:
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
# %%needs tensor_parallel_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(tensor_parallel_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 3 Layers that are cut

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
