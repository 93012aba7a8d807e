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
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch, per_rank
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## 1 Four layers on four workers

# %% [markdown]
# ## 2 Where to cut

# %% [markdown]
# ## 3 One stage

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
