# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Parameter servers and asynchrony
#
# Who keeps the weights, who waits for whom, and what it costs when nobody does.
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
# ## 1 One server
#
# A collective is called by every rank, and `dist.all_reduce` leaves the sum over all ranks in each rank's tensor.


# %% exercise="asynchrony_example" points=4
def asynchrony_example(x: Tensor) -> Tensor:
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
# %%needs asynchrony_example
held = [torch.full((2,), float(rank)) for rank in range(ranks)]
run = launch(asynchrony_example, per_rank(held), ranks=ranks, on=on)
run.results[0]

# %% [markdown]
# ## 2 A step with a server

# %% [markdown]
# ## 3 Several servers

# %% [markdown]
# ## 4 Whose turn is it

# %% [markdown]
# ## 5 Nobody waits

# %% [markdown]
# ## 6 A bound on how far ahead

# %% [markdown]
# ## 7 A tree instead of a server

# %% [markdown]
# ## 8 Backup workers

# %% [markdown]
# ## 9 Local steps

# %% [markdown]
# ## 10 Data that stays where it is

# %% [markdown]
# ## 11 On real processes

# %% [markdown]
# ## 12 A worker that dies

# %% [markdown]
# ## 13 Replicas that come back

# %% [markdown]
# ## 14 Now on nodes

# %% [markdown]
# ## 15 Open task

# %% [markdown]
# ## Where it comes from

# %% [markdown]
# ## What goes wrong in practice
