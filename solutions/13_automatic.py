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
import math
import random
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch, per_rank
from graders import check, hint, progress, reset

Plan = TypeVar("Plan")
"""A plan of any kind."""

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
#
# A simulated plan takes milliseconds. How many plans are there? If each of 20 operators may be on any of four devices, $4^{20}$,
# about $10^{12}$, and a year has $3 \cdot 10^{10}$ milliseconds. Sections 3 and 5 found the best plan all the same: the costs there were sums, of which one part
# can be settled without the others. The time of a simulated step is no such sum: operators wait for each other, and one
# link is shared by several messages. What remains is to look at some plans, and to choose well which.
#
# Start somewhere, change a random thing, and keep the change if the plan gets better. This is called hill climbing, and it ends on
# the first hill, where no *single* change helps, as when two operators would have to move together. FlexFlow therefore takes a change
# for the worse now and then; the worse, the more seldom. How often exactly? It asks for a walk that, in the long run, is at
# a plan of cost $c$ in proportion to $e^{-\beta c}$. With a large $\beta$ the walk stays near the best plans; with $\beta = 0$ it
# roams about everywhere. Where the next plan depends on the present one and on chance alone, such a walk is a **Markov chain**, and
# the way to get those proportions is from Metropolis et al. (1953).


# %% exercise="search" points=10
def search(
    plan: Plan,
    propose: Callable[[Plan, random.Random], Plan],
    cost: Callable[[Plan], float],
    steps: int,
    seed: int,
    beta: float = 1.0,
) -> tuple[Plan, float]:
    """Walk through plans, and return the best one that was seen, with its cost; of equal ones the first seen.

    plan: where the walk begins; a value of any kind, perhaps one that cannot be hashed. propose(plan, generator):
    a plan that differs a little from this one, which stays as it is. It is as likely to lead from A to B as from
    B to A. cost(plan): how bad a plan is; math.inf for one that cannot run. It is dear: call it once for the
    first plan, and once for each that is proposed.

    The walk has so many steps, 0 or more. In each a change of the plan where it stands is proposed, and the walk
    goes there, or stays. It always goes where it is no dearer, and never to an infinite cost from a
    finite one. In the long run it stands at plans in proportion to exp(-beta * cost). Costs are from -1e12 to 1e12, or math.inf.

    seed: of a random.Random, from which all chance comes, that of propose too. The same seed gives the same walk;
    the state of the module `random` stays as it is.
    """
    ### BEGIN SOLUTION
    generator = random.Random(seed)
    here = cost(plan)
    best, least = plan, here
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        if there < least:
            best, least = proposed, there
        if there <= here or generator.random() < math.exp(beta * (here - there)):
            plan, here = proposed, there
    return best, least
    ### END SOLUTION


# %% [markdown]
# Seven plans in a row, and each step proposes a neighbour. From plan 1 the way to the best one leads over a hill. (At both ends a
# neighbour that does not exist is proposed as staying where one is; so from A to B is as likely as from B to A.)


# %% demo=true
# %%needs search
hill = [3.0, 1.0, 2.0, 3.0, 2.0, 0.5, 2.0]


def neighbour(place: int, generator: random.Random) -> int:
    """The place to the left or to the right, if there is one."""
    return min(max(place + generator.choice((-1, 1)), 0), len(hill) - 1)


def visits(beta: float, steps: int = 20_000) -> list[float]:
    """The share of a walk's steps in each place."""
    seen = [0] * len(hill)

    def counted(place: int, generator: random.Random) -> int:
        seen[place] += 1
        return neighbour(place, generator)

    search(1, counted, hill.__getitem__, steps, seed=0, beta=beta)
    return [count / steps for count in seen]


shares = {beta: visits(beta) for beta in (0.0, 1.0, 3.0)}
for beta, share in shares.items():
    print(f"beta {beta:g}: " + "  ".join(f"{each:4.2f}" for each in share))

# %% demo=true jupyter={"source_hidden": true}
# %%holds search
for beta, share in shares.items():
    weights = [math.exp(-beta * height) for height in hill]
    assert all(abs(seen - weight / sum(weights)) < 0.1 for seen, weight in zip(share, weights))
found = [
    [search(1, neighbour, hill.__getitem__, 60, seed, beta)[1] for seed in range(200)]
    for beta in (1.0, 1000.0)
]
arrived = [each.count(0.5) for each in found]
assert arrived[0] > 120
assert arrived[1] == 0

# %% [markdown]
# With $\beta = 3$ the walk is at plans 1 and 5 nearly all of the time. Yet it has crossed the hill, which hill climbing never does: of 200 walks
# of 60 steps with $\beta = 1$ more than half have seen plan 5, of those with $\beta = 1000$, which amounts to hill climbing, none. So $\beta$ has to fit
# the differences between costs. A search for a plan divides by the cost of a good plan first, so that $\beta$ needs no unit.

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
