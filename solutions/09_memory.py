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
# What fills a GPU, and what can be cut into shards, put elsewhere, or computed again.
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
# ## 1 What fills the memory
#
# A collective is called by every rank, and `dist.all_reduce` leaves the sum over all ranks in each rank's tensor.


# %% exercise="memory_example" points=4
def memory_example(x: Tensor) -> Tensor:
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
# %%needs memory_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(memory_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 2 A shard for each rank

# %% [markdown]
# ## 3 Shards of the optimizer's state

# %% [markdown]
# ## 4 Shards of the gradients

# %% [markdown]
# ## 5 Shards of the parameters

# %% [markdown]
# ## 6 The norm of what nobody has whole

# %% [markdown]
# ## 7 The whole state in one file

# %% [markdown]
# ## 8 Traffic against memory

# %% [markdown]
# ## 9 Activations on the host

# %% [markdown]
# ## 10 Computing again

# %% [markdown]
# ## 11 Out of core

# %% [markdown]
# ## 12 PyTorch's own

# %% [markdown]
# ## 13 DeepSpeed

# %% [markdown]
# ## 14 Now on nodes

# %% [markdown]
# ## 15 Open task

# %% [markdown]
# ## Where it comes from

# %% [markdown]
# ## What goes wrong in practice
