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
# - list every way to compute an operator on a mesh of ranks.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import itertools
import bisect
import heapq
import math
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from course_lib import Link, launch, per_rank
from course_lib.planner import Einsum, Placements, Strategy, written
from course_lib.planner.timelines import Task, Timeline, Watched
from graders import check, hint, progress, reset

Plan = TypeVar("Plan")
"""A plan of any kind."""

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics
# DTensor advises on what it could send in fewer calls; here all that counts is that it comes out right.
import logging

logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

# %% [markdown]
# ## 1 All ways to compute an operator
#
# A program that is to choose must know first what there is to choose from. Take one operator of a model and a mesh of ranks:
# in how many ways can the ranks share the work?
#
# A **layout** says how one tensor lies on the mesh. In PyTorch's words it is a **placement** for each axis of the mesh:
#
# - `Replicate()`: the ranks along this axis all have the same;
# - `Shard(dim)`: the tensor is cut along `dim` into equal parts, and each rank along the axis has one of them, in order;
# - `Partial()`: each rank has a tensor of the same shape, and what is meant is their sum, which nobody has added up yet.
#
# For short we write R, S(dim) and P. On a mesh of 2 x 4 ranks S(0)R is cut in two parts along its dimension 0, and each part lies whole on
# four ranks; RP is a sum of four tensors, and both halves of the mesh have them.
#
# Most of a model's work is products, so let the operator be an einsum, as in unit 06. `Einsum` and `Strategy` come from
# `course_lib.planner`:

# %%
product = Einsum("bd,df->bf", {"b": 8, "d": 6, "f": 4})
print(product.operands, product.result, product.shape("bf"), product.flops)
by_samples = Strategy(operands=((Shard(0),), (Replicate(),)), result=(Shard(0),))
print(by_samples)

# %% demo=true jupyter={"source_hidden": true}
assert (product.operands, product.result, product.shape("bf")) == (("bd", "df"), "bf", (8, 4))
assert product.flops == 2 * 8 * 6 * 4
assert str(by_samples) == "S(0), R -> S(0)"

# %% [markdown]
# A **strategy** is one way to compute the operator: how the operands have to lie, and how the result lies afterwards. The one
# above is data parallelism: every rank multiplies its samples by the whole matrix. Between the two no rank talks to another.
# What has to be sent so that operands come to lie as a strategy wants them is the next section's subject.


# %% exercise="op_strategies" points=8
def op_strategies(op: Einsum, mesh: tuple[int, ...]) -> list[Strategy]:
    """All strategies of an operator on a mesh, in any order, each once.

    op: of one operand or more, whose letters stand at most once in a tensor; each letter of the result stands
    in an operand too. op.sizes may name other letters as well. mesh: the lengths of its axes, at least 1 each;
    it may have no axis at all. Both stay as they are.

    Along each axis of the mesh the work is either done by all ranks alike, and nothing is cut, or it is shared:
    one letter's range is cut into equal parts, and each rank computes with its part only. Letters may differ
    from axis to axis; one letter may be cut along several axes, and is then cut by all of them together. Only
    what divides without a rest is a strategy, and along an axis of length 1 nothing is cut.

    Each rank computes its part with no word from others, with torch.einsum on what it has. An operand is
    Shard(dim) or Replicate() along an axis, never Partial(), and lies whole on more ranks than one only where
    each of them needs all of it. The result is what then comes out.
    """
    ### BEGIN SOLUTION
    letters = sorted(set("".join(op.operands)))
    choices = [(None, *letters) if length > 1 else (None,) for length in mesh]

    def placed(tensor: str, cut: tuple[str | None, ...], without: Placement) -> Placements:
        """The layout of a tensor with these letters; without: its placement where it lacks the cut letter."""
        return tuple(
            Replicate() if letter is None else Shard(tensor.index(letter)) if letter in tensor else without
            for letter in cut
        )

    def divides(cut: tuple[str | None, ...]) -> bool:
        parts = dict.fromkeys(letters, 1)
        for letter, length in zip(cut, mesh, strict=True):
            if letter is not None:
                parts[letter] *= length
        return all(op.sizes[letter] % parts[letter] == 0 for letter in letters)

    return [
        Strategy(
            tuple(placed(operand, cut, Replicate()) for operand in op.operands),
            placed(op.result, cut, Partial()),
        )
        for cut in itertools.product(*choices)
        if divides(cut)
    ]
    ### END SOLUTION


# %% demo=true
# %%needs op_strategies
for mesh in ((2,), (4,), (2, 2)):
    found = op_strategies(product, mesh)
    print(f"on a mesh of {' x '.join(map(str, mesh))}: {len(found)}")
    for strategy in found:
        print(f"    {strategy}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds op_strategies
assert [len(op_strategies(product, mesh)) for mesh in ((2,), (4,), (2, 2))] == [4, 3, 15]
assert {str(each) for each in op_strategies(product, (4,))} == {
    "R, R -> R",
    "S(0), R -> S(0)",
    "R, S(1) -> S(1)",
}

# %% [markdown]
# On four ranks in a row `d` cannot be cut, for 6 is no multiple of 4. On a mesh of 2 x 2 it can, along one of the axes but not along
# both. You know most of the four on two ranks by name: samples are cut in data parallelism, `f` in Megatron's column-parallel
# layer, and `d` in its row-parallel one, whose result is a sum that is still to be added up. The first is what a rank does with nobody's help.
#
# Does each of them compute the product? Let it be done. Every rank takes its parts of two drawn matrices, multiplies, and
# says how its result lies; PyTorch's `DTensor` puts the parts together, and adds up where they are summands.


# %% demo=true
# %%needs op_strategies
def compute(op: Einsum, strategy: Strategy, mesh: tuple[int, ...], operands: list[Tensor]) -> Tensor:
    """The whole result, of what each rank computes from its own parts."""
    place = init_device_mesh("cpu", mesh)
    parts = [
        distribute_tensor(whole, place, layout).to_local()
        for whole, layout in zip(operands, strategy.operands, strict=True)
    ]
    own = torch.einsum(op.spec, *parts)
    return DTensor.from_local(own, place, strategy.result, run_check=False).full_tensor()


attention = Einsum("bqhe,bkhe->bhqk", {"b": 4, "q": 3, "k": 6, "h": 2, "e": 5})
tried = 0
for op, mesh in ((product, (2,)), (product, (4,)), (product, (2, 2)), (attention, (2,)), (attention, (2, 2))):
    operands = [torch.randn(op.shape(letters)) for letters in op.operands]
    for strategy in op_strategies(op, mesh):
        whole = launch(compute, op, strategy, mesh, operands, ranks=math.prod(mesh), on=on).results[0]
        torch.testing.assert_close(whole, torch.einsum(op.spec, *operands), atol=1e-4, rtol=1e-4)
        tried += 1
print(f"{tried} strategies, and all give the product")

# %% demo=true jupyter={"source_hidden": true}
# %%holds op_strategies
choices = {
    count: len(op_strategies(Einsum("bd,df->bf", dict.fromkeys("bdf", 64)), (2,) * count))
    for count in range(5)
}
assert choices == {count: 4**count for count in range(5)}
assert 4**2 == 16
assert 16**6 == 16_777_216

# %% [markdown]
# All of them compute the same, and so nothing in the result says which is best. There are many, too. A product of two matrices with
# lengths that divide has 4 strategies on one axis, 16 on two, and each operator of a model has its own choice: six products on a
# mesh with two axes make $16^6$, some 17 million plans. So they have to be priced, and searched with some thought.

# %% [markdown]
# ## 2 What it costs to change a layout
#
# Between two operators a tensor may have to change its layout: one strategy leaves it as S(0), the next wants it as R. Along one axis of the mesh
# there are three kinds of placement, and so a small table of changes.

# %% [markdown]
# What does such a change cost? A call has the time of its usual algorithm on the ranks along the axis. The library has these times in
# `course_lib.runtime.communication.costs`, and the simulator goes by them too:

# %%
from course_lib.runtime.communication.costs import seconds_of

link = Link(latency=10e-6, bandwidth=10e9)
for call in ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor", "all_to_all_single"):
    print(
        f"{call:24} {1e6 * seconds_of(call, 1_000_000, ranks, link):6.1f} microseconds for a payload of 1 MB"
    )

# %% [markdown]
# The payload is what a rank gives to the call: for an all-gather that is its own part, for a reduce-scatter and an all-to-all all that it has.


# %% exercise="reshard_cost" points=6
def reshard_cost(source: Placement, target: Placement, nbytes: int, ranks: int, link: Link) -> float:
    """Seconds that it takes to bring a tensor from one layout into another, along one axis of a mesh.

    source, target: Replicate(), Shard(dim) for any dim, or Partial(), a sum. nbytes: of the tensor when it lies
    whole. It is a multiple of ranks², and every dim a multiple of ranks, the length of the axis, at least 1. link:
    between any two ranks of the axis.

    What each rank can do by itself takes no time. Otherwise one call of a collective does it, the one that
    takes the least time, and each rank gives it no more than the call needs; its time is that of `seconds_of`.
    """
    ### BEGIN SOLUTION
    if source == target or isinstance(source, Replicate) or isinstance(target, Partial):
        return 0.0
    if isinstance(source, Partial):
        return seconds_of(
            "all_reduce" if isinstance(target, Replicate) else "reduce_scatter", nbytes, ranks, link
        )
    call = "all_gather" if isinstance(target, Replicate) else "all_to_all"
    return seconds_of(call, nbytes // ranks, ranks, link)
    ### END SOLUTION


# %% demo=true
# %%needs reshard_cost
kinds = (Replicate(), Shard(0), Shard(1), Partial())
print("microseconds for 16 MB on 4 ranks, from the layout on the left to the one above")
print("from    " + "".join(f"{written((target,)):>8}" for target in kinds))
for source in kinds:
    row = [1e6 * reshard_cost(source, target, 16_000_000, 4, link) for target in kinds]
    print(f"{written((source,)):8}" + "".join(f"{each:8.0f}" for each in row))

# %% [markdown]
# ## 3 The best of all plans
#
# The operators of a model pass tensors to each other. Choose a strategy for each: the operators' own seconds add up,
# and on each edge between two of them the change of the layout is added. A plan is such a choice, and the best one has the smallest sum.
#
# The catch is that the parts depend on each other. The cheapest strategy of one operator may leave its result in a
# layout from which all ways on are dear. In a chain of n operators with S strategies each there are Sⁿ plans.
# They need not all be looked at: what comes after an operator depends on what came before it only by its own
# strategy.


# %% exercise="best_chain" points=8
def best_chain(node_cost: list[list[float]], edge_cost: list[list[list[float]]]) -> tuple[float, list[int]]:
    """The cheapest choice of strategies for operators in a chain, and what it costs.

    node_cost[i][s]: seconds of operator i with its strategy s. There are n operators, at least one, each with
    at least one strategy, and they may have different numbers of them. edge_cost[i][s][t]: seconds from
    strategy s of operator i to strategy t of operator i + 1; n - 1 tables. All are at least 0, and math.inf
    where it cannot be done; some choice has finite costs only. All lists stay as they are.

    Returns the least sum of seconds, of all operators and edges, and a choice that has it: for each operator
    the number of its strategy. With S strategies for each the time grows no faster than n S²: 400 operators
    with 12 strategies each take less than two seconds.
    """
    ### BEGIN SOLUTION
    seconds, came_from = node_cost[0], []
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        arriving = [
            [before + row[t] for before, row in zip(seconds, table, strict=True)] for t in range(len(own))
        ]
        came_from.append([column.index(min(column)) for column in arriving])
        seconds = [min(column) + each for column, each in zip(arriving, own, strict=True)]
    choices = [seconds.index(min(seconds))]
    for back in reversed(came_from):
        choices.append(back[choices[-1]])
    return min(seconds), choices[::-1]
    ### END SOLUTION


# %% [markdown]
# A model is seldom a chain. A block's input goes into its first product and is added to its last, and then a choice has
# two ways on. For such graphs there is no table that one fills from left to right. Alpa (Zheng et al., 2022) writes the choice as an integer
# program, and a solver finds the best plan, with a bound for the memory if one is wanted. Such a solver comes with SciPy,
# which is installed already: `scipy.optimize.milp` takes a sum to be made small, bounds, and linear constraints; of each
# variable it is said whether it is an integer. It is documented for floating-point numbers of ordinary size, and has tolerances that are made for those.
# Two plans of a small model may differ by nanoseconds.


# %% exercise="best_intra" points=16
def best_intra(
    graph: list[tuple[int, int]],
    node_cost: list[list[float]],
    edge_cost: list[list[list[float]]],
    memory: list[list[int]] | None = None,
    capacity: int | None = None,
) -> tuple[float, list[int]]:
    """The cheapest choice of strategies for the operators of a graph, and what it costs.

    graph: edges (i, j) between different operators; a pair may stand there several times, and as (j, i), and
    some operators may have no edge. node_cost[i][s]: seconds of operator i with its strategy s, as in
    best_chain. edge_cost[e][s][t]: for edge number e = (i, j) the seconds from strategy s of i to strategy t of
    j. All are at least 0, and math.inf where it cannot be done; they may be as small as nanoseconds. memory[i][s]:
    bytes of a device, perhaps 0; capacity: how many all chosen strategies may have together, just so many
    included. Without a capacity memory does not count. All arguments stay as they are.

    Returns the sum of seconds and the choice, for each operator the number of its strategy. The sum is the least
    that is possible, but for a part in 100,000. Raises ValueError if no choice fits, or all have infinite costs.
    16 operators with 29 edges and 4 strategies each take less than 5 seconds.
    """
    ### BEGIN SOLUTION
    tables = [np.array(own, dtype=float) for own in (*node_cost, *edge_cost)]
    starts = np.cumsum([0, *(table.size for table in tables)])
    seconds = np.concatenate([table.flatten() for table in tables])
    finite = np.isfinite(seconds)
    scale = max(seconds[finite].max(initial=0.0), 1e-300)

    def numbers(table: int) -> np.ndarray:
        """The numbers of a table's variables, in its shape."""
        return np.arange(starts[table], starts[table + 1]).reshape(tables[table].shape)

    rows: list[tuple[np.ndarray, np.ndarray]] = []  # in each: these variables add up to those
    nodes = [numbers(place) for place in range(len(node_cost))]
    for place, ends in enumerate(graph, start=len(node_cost)):
        for axis, end in enumerate(ends):
            pairs = np.moveaxis(numbers(place), axis, 0)
            rows += [(own, each) for own, each in zip(pairs, nodes[end], strict=True)]
    once = lil_array((len(nodes), len(seconds)))
    for row, own in enumerate(nodes):
        once[row, own] = 1
    constraints = [LinearConstraint(once.tocsr(), 1, 1)]
    if rows:
        agree = lil_array((len(rows), len(seconds)))
        for row, (own, each) in enumerate(rows):
            agree[row, own], agree[row, each] = 1, -1
        constraints.append(LinearConstraint(agree.tocsr(), 0, 0))
    if capacity is not None:
        assert memory is not None
        weights = np.zeros(len(seconds))
        weights[: starts[len(nodes)]] = [each for own in memory for each in own]
        weights /= max(capacity, 1)
        constraints.append(LinearConstraint(weights[None], ub=min(capacity, 1)))
    found = milp(
        np.where(finite, seconds, 0) / scale,
        integrality=np.arange(len(seconds)) < starts[len(nodes)],
        bounds=Bounds(0, finite.astype(float)),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise ValueError(f"No choice of strategies is possible within {capacity} bytes: {found.message}")
    choices = [int(found.x[own].argmax()) for own in nodes]
    total = sum(own[choice] for own, choice in zip(node_cost, choices, strict=True))
    total += sum(table[choices[i]][choices[j]] for (i, j), table in zip(graph, edge_cost, strict=True))
    return total, choices
    ### END SOLUTION


# %% [markdown]
# ## 4 What others choose

# %% [markdown]
# ## 5 Stages and the devices that they get

# %% [markdown]
# ## 6 A simulation that is told what changed
#
# The costs of sections 3 and 5 are sums and maxima that leave something out: that two messages want one link at the same time,
# that an operator waits although its device is free. Executing a step would show it. But a plan has to be set up before it can run, and
# steps of large models take seconds. FlexFlow (Jia, Zaharia and Aiken 2019) **simulates** the step instead. A step is a graph of
# **tasks**: a task is a part of an operator on a device, forward or backward, or a message on a link. A link is a device too. An
# edge says that one task needs what another one made. FlexFlow assumes
#
# - that a task takes as long each time, whatever the numbers in its tensors are, so that each *kind* of task is measured once;
# - that a message takes its bytes divided by the link's bandwidth;
# - that a device runs its tasks in the order in which they become ready: first come, first served;
# - and that the runtime itself takes no time.
#
# `Task` has a device and seconds, and `Timeline` is what a simulation finds out: when each task is ready and when it has ended, and each device's
# tasks in the order in which it runs them.


# %% exercise="simulate" points=8
def simulate(tasks: list[Task], edges: list[tuple[int, int]], devices: int) -> Timeline:
    """When each task runs.

    tasks: what there is to do, on devices 0 to devices - 1; seconds may be 0. A task goes by its place in the
    list. edges: (a, b), a < b, each once, in any order: task b waits for task a. All stay as they are.

    A task is ready when all before it have ended; where there is none, at 0. A device runs its tasks one at a
    time, in the order in which they become ready, of those ready at the same moment the lowest number first. It
    begins a task as soon as the task is ready and the one in front of it has ended.

    Returns the Timeline: tasks, a list of its own, equal to the one given; for each task before and after,
    lists of numbers in any order, and ready and end, in seconds; for each device its queue, empty where it has
    nothing to do. There may be no task at all, or 3,000 of which each waits for the one before.
    """
    ### BEGIN SOLUTION
    before: list[list[int]] = [[] for _ in tasks]
    after: list[list[int]] = [[] for _ in tasks]
    for first, second in edges:
        before[second].append(first)
        after[first].append(second)
    timeline = Timeline(
        list(tasks), before, after, [0.0] * len(tasks), [0.0] * len(tasks), [[] for _ in range(devices)]
    )

    free = [0.0] * devices
    missing = [len(each) for each in before]
    # In order already, and so a heap.
    waiting = [(0.0, number) for number, count in enumerate(missing) if count == 0]
    while waiting:
        # Whatever becomes ready from now on is ready later than this, or has a higher number.
        ready, number = heapq.heappop(waiting)
        task = tasks[number]
        timeline.ready[number] = ready
        timeline.end[number] = free[task.device] = max(ready, free[task.device]) + task.seconds
        timeline.queues[task.device].append(number)
        for later in after[number]:
            missing[later] -= 1
            if missing[later] == 0:
                heapq.heappush(waiting, (max(timeline.end[each] for each in before[later]), later))
    return timeline
    ### END SOLUTION


# %% exercise="resimulate" points=16
def resimulate(timeline: Timeline, changes: dict[int, Task]) -> set[int]:
    """Bring a timeline up to date after some of its tasks have changed, and say which have moved.

    timeline: as from simulate. It is changed in place: afterwards it is what simulate would make of the changed
    tasks; before and after stay as they are. changes: for some tasks, perhaps none, what stands there from now
    on, perhaps on another device, perhaps what stood there already; it stays as it is. Edges do not change.

    Returns the numbers of the tasks for which `ready` or `end` is now another than before the call.

    Of `timeline.tasks` only what is needed is read: for n tasks that change or move at most 4 n + 4 different
    ones. Writing into that list is free.
    """
    ### BEGIN SOLUTION
    tasks, ready, end = timeline.tasks, timeline.ready, timeline.end
    old: dict[int, tuple[float, float]] = {}
    waiting: list[tuple[float, int]] = []

    def arrives(number: int) -> float:
        return max((end[each] for each in timeline.before[number]), default=0.0)

    def may_move(numbers: Iterable[int]) -> None:
        for number in numbers:
            heapq.heappush(waiting, (min(ready[number], arrives(number)), number))

    def place(queue: list[int], number: int) -> int:
        return bisect.bisect_left(queue, (ready[number], number), key=lambda each: (ready[each], each))

    def leave(queue: list[int], number: int) -> None:
        where = place(queue, number)
        del queue[where]
        may_move(queue[where : where + 1])

    def enter(queue: list[int], number: int) -> None:
        where = place(queue, number)
        queue.insert(where, number)
        may_move(queue[where : where + 2])

    for number, task in changes.items():
        was, tasks[number] = tasks[number], task
        may_move([number])
        if task.device != was.device:
            leave(timeline.queues[was.device], number)
            enter(timeline.queues[task.device], number)

    while waiting:
        _, number = heapq.heappop(waiting)
        old.setdefault(number, (ready[number], end[number]))
        task = tasks[number]
        queue = timeline.queues[task.device]
        if ready[number] != arrives(number):
            leave(queue, number)
            ready[number] = arrives(number)
            enter(queue, number)
            continue
        where = place(queue, number)
        begin = max(ready[number], end[queue[where - 1]] if where else 0.0)
        if begin + task.seconds != end[number]:
            end[number] = begin + task.seconds
            may_move(timeline.after[number])
            may_move(queue[where + 1 : where + 2])
    return {number for number, times in old.items() if times != (ready[number], end[number])}
    ### END SOLUTION


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

    plan: where the walk begins; a value of any kind, perhaps one that cannot be hashed.
    propose(plan, generator): a plan that differs a little from this one, which stays as it is. It is as likely
    to lead from A to B as from B to A. cost(plan): how bad a plan is; math.inf for one that cannot run. It is
    dear: call it once for the first plan, and once for each that is proposed.

    The walk has so many steps, 0 or more. In each a change of the plan where it stands is proposed, and the walk
    goes there, or stays. It always goes where it is no dearer, and never to an infinite cost from a
    finite one. In the long run it stands at plans in proportion to exp(-beta * cost). Costs are from 0 to
    1e12, or math.inf.

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
