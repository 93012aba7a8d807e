# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Automatic parallelism
#
# A program finds how a model is spread over a cluster.
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


# %% exercise="automatic_example" points=4
def automatic_example(x: Tensor) -> Tensor:
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
# %%needs automatic_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(automatic_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 1 All ways to compute an operator

# %% [markdown]
# ## 2 What it costs to change a layout

# %% [markdown]
# ## 3 The best of all plans

# %% [markdown]
# ## 4 What others choose

# %% [markdown]
# ## 5 Stages and the devices that they get

# %% [markdown]
# ## 6 A simulation that is told what changed

# %% [markdown]
# ## 7 A walk through plans

# %% [markdown]
# ## 8 A model as a graph

# %% [markdown]
# ## 9 Plans that run

# %% [markdown]
# ## 10 Between operators, within operators

# %% [markdown]
# ## 11 Now on nodes

# %% [markdown]
# ## 12 Open task: a plan for a model

# %% [markdown]
# ## Where it comes from
#
# Papers, with their numbers.
#
# ## What goes wrong in practice
#
# Mistakes that people make, and how they show.
