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
# In every unit so far somebody had said how the work is shared: cut the samples, cut this matrix by columns, put these
# layers on that rank. But the best plan for one model on one cluster is not the best for the next. A program that finds
# it needs three things: a list of what can be done, a price for each item, and a search that does not look at all
# plans. FlexFlow and Alpa are such programs. You write the parts of both, and put a plan together that runs.
#
# After this unit you can
#
# - list every way to compute an operator on a mesh of ranks;
# - bring a tensor from one layout into another with the fewest bytes, and say what that takes;
# - find the best plan within operators, of a chain by a table and of a graph by an integer program, within the memory
#   that there is;
# - cut a model into stages, each with a mesh of its own, so that a pipeline of them is fastest;
# - simulate a plan, and once more when a little of it has changed;
# - search among more plans than any table holds;
# - take a real model apart, plan it, and run it by the plan.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes".
ranks = 4
on = "simulated"

# %%
import bisect
import itertools
import json
import heapq
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional

from course_lib import Cluster, Link, launch, per_rank
from course_lib.cluster import presets
from course_lib.figures.pictures.walks import search_figure, visits_figure
from course_lib.figures.plots import line_figure
from course_lib.figures.style import COLOURS, look, new_figure
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from course_lib.planner import (
    Einsum,
    Graph,
    Model,
    ParallelPlan,
    Placements,
    PlannedRank,
    Planner,
    Prediction,
    Strategy,
    dimensions,
    execute,
    parameters_of,
    split_along,
    seconds_of_step,
    torchs_1f1b,
    trace,
    written,
)
from course_lib.planner.placements import Machine, PlacedStep, Places, branches, chain_of
from course_lib.planner.profiles import resnet50, vgg16
from course_lib.planner.timelines import Task, Timeline, Watched
from course_lib.runtime.communication.costs import traffic_of
from course_lib.torchvision_compat import import_torchvision
from course_lib.training.pipeline.actions import Backward, Forward
from course_lib.training.pipeline.costs import Costs, cost
from course_lib.training.pipeline.drawing import schedule_figure
from graders import check, hint, predict, progress, reset

AnyPlan = TypeVar("AnyPlan")  # a plan of any kind

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below; the sections in parentheses have the answers.
#
# 1. On two ranks a product of two matrices can be shared in 4 ways, one of which is that both do all of it. In how many
#    on a mesh of 2 x 2 ranks, if all lengths divide (section 1)?
# 2. The best plan for a block of a transformer on 4 GPUs of one node has whole weights on each. How many percent longer
#    does a step take if each has room for a quarter of them (section 3)?
# 3. PyTorch's DTensor chooses operator by operator what is cheapest at once. For `relu(x @ w)`, with two layouts that
#    do not fit each other: by its own prices, how many times the cost of the best way does its way have (section 4)?
# 4. A step of VGG-16 is simulated as a graph of a few hundred tasks. How many times as fast is that as executing its
#    convolutions for one image on this machine (section 6)?
# 5. VGG-16 on four GPUs, two on each of two nodes with a slow network between them. What percentage of the time of data
#    parallelism does the best placement of its operators take (section 7)?

# %% demo=true
guesses = predict(
    "13_automatic",
    ways_on_a_mesh_of_2_x_2=None,
    percent_longer_with_a_quarter_of_the_weights=None,
    times_as_dear_as_the_best_when_chosen_greedily=None,
    times_faster_to_simulate_than_to_execute=None,
    percent_of_the_time_that_the_walk_leaves=None,
)

# %% [markdown]
# ## 1 All ways to compute an operator
#
# Before a program can choose, it has to know what there is to choose from. In how many ways can the ranks of a mesh
# share the work of one operator?
#
# A **layout** says how one tensor lies on the mesh. In PyTorch's words it is a **placement** for each axis of the mesh:
#
# - `Replicate()`: the ranks along this axis all have the same;
# - `Shard(dim)`: the tensor is cut along `dim` into equal parts, and each rank along the axis has one of them, in
#   order;
# - `Partial()`: each rank has a tensor of the same shape; the tensor that is meant is their sum, which has not been
#   added up yet.
#
# For short we write R, S(dim) and P. On a mesh of 2 x 4 ranks S(0)R is cut in two parts along its dimension 0, and each
# part lies whole on four ranks. RP is a sum of four tensors, and both halves of the mesh have them.
#
# In all exercises of this unit arguments stay as they are, unless it is said otherwise, and where several answers are
# equally good, any of them is right.
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
# A **strategy** is one way to compute the operator: how the operands have to lie, and how the result lies afterwards.
# Along each axis of the mesh one letter is cut into equal parts, or all ranks do the same. Operands that have the
# letter are cut there, and others lie whole. The strategy above cuts `b`. That is data parallelism: every rank
# multiplies its samples by the whole matrix. While it computes, no rank talks to another. How operands come to lie as a
# strategy wants them is the next section's subject.


# %% exercise="op_strategies" points=8
def op_strategies(op: Einsum, mesh: tuple[int, ...]) -> list[Strategy]:
    """All strategies of an operator on a mesh, in any order, each once.

    op: an einsum in which no tensor has a letter twice. mesh: the lengths of its axes.

    Several axes may cut one letter, by all of them together. What does not divide is no strategy, and
    along an axis of length 1 nothing is cut. The result lies as it comes out of torch.einsum on each
    rank's parts.
    """
    ### BEGIN SOLUTION
    letters = sorted(set("".join(op.operands)))
    choices = [(None, *letters) if length > 1 else (None,) for length in mesh]

    def placed(tensor: str, cut: tuple[str | None, ...], without: Placement) -> Placements:
        """The layout of a tensor with these letters; without: its placement where it lacks the cut
        letter.
        """
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
# On four ranks in a row `d` cannot be cut, for 6 is no multiple of 4. On a mesh of 2 x 2 it can, along one of the axes
# but not along both. On two ranks data parallelism cuts the samples `b`, Megatron's column-parallel layer cuts `f`, and
# its row-parallel layer `d`, so that its result is a sum.
#
# The next cell checks that each strategy computes the product. Every rank multiplies its parts of two drawn matrices
# and says how its result lies; PyTorch's `DTensor` puts the parts together, and adds up sums.


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
for op, mesh in itertools.product((product, attention), ((2,), (4,), (2, 2))):
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
guesses.measured(ways_on_a_mesh_of_2_x_2=choices[2])
assert 4**2 == 16
assert 16**6 == 16_777_216

# %% [markdown]
# All of them compute the same, so nothing in the result says which is best. Where all lengths divide, a product of two
# matrices has 4 strategies on one axis and 16 on two. Each operator of a model has its own choice: six products on a
# mesh with two axes make $16^6$, some 17 million plans. So they have to be priced, and searched without looking at
# each.

# %% [markdown]
# ## 2 What it costs to change a layout
#
# Between two operators a tensor may have to change its layout: one strategy leaves it as S(0), the next wants it as R.
# With three kinds of placement there are few kinds of change along one axis. Before you go on, write down which of them
# need nothing from another rank, and which collective does each of the others.


# %% exercise="reshard" points=12
def reshard(
    x: Tensor, source: Placement, target: Placement, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Bring a tensor from one layout into another, along the ranks of a group.

    x: what this rank has of it in the layout source, of any dtype.
    source, target: Replicate(), Shard(dim) or Partial().
    group: the ranks along the axis, in order (None: all).

    Returns a new tensor: what this rank has in the layout target. If that is Partial(), any summands
    with the right sum will do; from Partial() to Partial() they stay as they are.

    One collective call, the one with which a rank sends the fewest bytes; none where each rank can do
    it by itself.
    """
    ### BEGIN SOLUTION
    p, place = dist.get_world_size(group), dist.get_rank(group)
    if source == target:
        return x.clone()
    if isinstance(source, Replicate):
        if isinstance(target, Shard):
            return x.tensor_split(p, target.dim)[place].clone()
        return torch.zeros_like(x) if place else x.clone()
    if isinstance(target, Partial):
        others = torch.zeros_like(x)
        return torch.cat([x if each == place else others for each in range(p)], source.dim)
    if isinstance(source, Partial) and isinstance(target, Replicate):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
    if isinstance(target, Replicate):
        parts = x.new_empty(p * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(parts, x.contiguous(), group=group)
        return torch.cat(parts.chunk(p), source.dim)
    sent = torch.cat(x.tensor_split(p, target.dim))
    if isinstance(source, Partial):
        own = sent.new_empty(len(sent) // p, *sent.shape[1:])
        dist.reduce_scatter_tensor(own, sent, group=group)
        return own
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.chunk(p), source.dim)
    ### END SOLUTION


# %% [markdown]
# A call takes the time of its usual algorithm on the ranks along the axis. The simulator takes these times from
# `course_lib.runtime.communication.costs`, and so can you:

# %%
from course_lib.runtime.communication.costs import seconds_of

link = Link(latency=10e-6, bandwidth=10e9)
for call in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"):
    microseconds = 1e6 * seconds_of(call, 1_000_000, ranks, link)
    print(f"{call:14} {microseconds:6.1f} microseconds for a payload of 1 MB")

# %% [markdown]
# The payload is what a rank gives to the call: its own part if the tensor is cut, and else as many bytes as the whole
# tensor has.


# %% exercise="reshard_cost" points=6
def reshard_cost(source: Placement, target: Placement, nbytes: int, ranks: int, link: Link) -> float:
    """Seconds that it takes to bring a tensor from one layout into another, along one axis of a mesh.

    source, target: Replicate(), Shard(dim) or Partial(). nbytes: of the tensor when it lies whole.
    ranks: the length of the axis. link: between any two of its ranks.

    They are those of the one call that reshard makes, by `seconds_of`; 0 where it makes none.
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
print("       " + "".join(f"{written((target,)):>8}" for target in kinds))
for source in kinds:
    row = [1e6 * reshard_cost(source, target, 16_000_000, 4, link) for target in kinds]
    print(f"{written((source,)):7}" + "".join(f"{each:8.0f}" for each in row))

# %% demo=true jupyter={"source_hidden": true}
# %%holds reshard_cost
prices = {written((a, b)): reshard_cost(a, b, 16_000_000, 4, link) for a in kinds for b in kinds}
assert prices["PR"] == 2 * prices["PS(0)"]
assert prices["S(0)R"] == prices["PS(0)"]
assert 3.7 < prices["S(0)R"] / prices["S(0)S(1)"] < 4
assert all(prices[name] == 0 for name in ("RS(0)", "RP", "S(0)P", "RR", "PP"))

# %% [markdown]
# <details><summary>Answer: what each change sends</summary>
#
# To get out of a sum costs most: to have it whole on every rank takes both passes of a ring, and to have it cut takes
# one. From one cut to another an all-to-all sends a quarter of what an all-gather does, on four ranks. From a whole
# tensor every change is free.
#
# </details>
#
# The simulator does not know these prices. It runs your `reshard`, message by message, and its clock says how long each
# change took:

# %% demo=true
# %%needs reshard reshard_cost
machine = Cluster(devices_per_node=4, intra_node=link)
whole = torch.randn(64, 32)
off = []
for source, target in itertools.product(kinds, repeat=2):
    # Of a sum every rank has a summand.
    given = [
        whole.tensor_split(4, source.dim)[rank] if isinstance(source, Shard) else whole for rank in range(4)
    ]
    run = launch(reshard, per_rank(given), source, target, ranks=4, cluster=machine)
    off.append(abs(run.seconds - reshard_cost(source, target, whole.nbytes, 4, link)))
print(f"{len(off)} changes of layout; the clock and the price differ by at most {max(off):.1e} s")

# %% demo=true jupyter={"source_hidden": true}
# %%holds reshard reshard_cost
assert len(off) == 16
assert max(off) < 1e-12

# %% [markdown]
# The same function runs on real processes. (The tensor has whole numbers, so that sums in any order are equal.)


# %% demo=true
# %%needs reshard reshard_cost
def all_changes(whole: Tensor, move: Callable[..., Tensor]) -> list[Tensor]:
    """What this rank has after each of the 16 changes."""
    p, rank = dist.get_world_size(), dist.get_rank()
    return [
        move(whole.tensor_split(p, a.dim)[rank] if isinstance(a, Shard) else whole, a, b)
        for a, b in itertools.product(kinds, repeat=2)
    ]


counted = torch.arange(64 * 32).view(64, 32)
engines = [
    launch(all_changes, counted, reshard, ranks=4, on=each).results for each in ("simulated", "processes")
]
alike = [torch.equal(a, b) for a, b in zip(*map(itertools.chain.from_iterable, engines), strict=True)]
print(f"{alike.count(True)} of {len(alike)} tensors are the same on both engines")

# %% demo=true jupyter={"source_hidden": true}
# %%holds reshard reshard_cost
assert alike == [True] * 64

# %% [markdown]
# ### Several axes
#
# On a mesh with several axes a tensor is changed along one axis after another, and the price depends on the order.
# Along an axis only the part is moved that its ranks have between them: an eighth of the tensor, if it is cut in eight
# along another axis. So such a step has the price of `reshard_cost` for the tensor's bytes, divided by the lengths of
# the other axes that cut it. And the axes have links of their own, a slow one between nodes and a fast one within. So a
# detour may be faster.
#
# One rule has to be kept. If one dimension is cut along two axes, then first by the earlier axis, and each of its parts
# by the later one. In S(0)S(0) on 2 x 2 ranks the first row of the mesh has quarters 0 and 1. If the first axis alone
# were joined, a rank would have quarters 0 and 2, for which there is no layout here. So `Shard(dim)` may come or go
# along an axis only while no later axis cuts the same dim.


# %% exercise="reshard_path" points=14
def reshard_path(
    source: Placements,
    target: Placements,
    nbytes: int,
    mesh: tuple[int, ...],
    links: Sequence[Link],
    dims: int,
) -> tuple[float, list[Placements]]:
    """The fastest way from one layout into another on a mesh, by the prices and the rule above.

    source, target: a placement for each of at most three axes. mesh, links: their lengths and links.
    nbytes, dims: of the whole tensor; all lengths divide.

    Returns the least seconds, and a way that takes them: a list of its layouts, from source to
    target; of one, if these are the same.
    """
    ### BEGIN SOLUTION
    anything = [Replicate(), Partial(), *(Shard(dim) for dim in range(dims))]

    def steps(layout: Placements) -> Iterator[tuple[float, Placements]]:
        """Every layout that is one step away, and the seconds to it."""
        for axis, (old, length, link) in enumerate(zip(layout, mesh, links, strict=True)):
            others = [
                n for place, (n, each) in enumerate(zip(mesh, layout, strict=True))
                if place != axis and isinstance(each, Shard)
            ]  # fmt: skip
            for new in anything:
                if new != old and not any(
                    isinstance(each, Shard) and each in (old, new) for each in layout[axis + 1 :]
                ):
                    price = reshard_cost(old, new, nbytes // math.prod(others), length, link)
                    yield price, (*layout[:axis], new, *layout[axis + 1 :])

    order = itertools.count()  # Layouts have no order; of equal seconds the older goes first.
    heap: list[tuple[float, int, list[Placements]]] = [(0.0, next(order), [source])]
    done = set()
    while True:  # Every layout leads to every other.
        seconds, _, way = heapq.heappop(heap)
        if way[-1] == target:
            return seconds, way
        if way[-1] not in done:
            done.add(way[-1])
            for price, layout in steps(way[-1]):
                heapq.heappush(heap, (seconds + price, next(order), [*way, layout]))
    ### END SOLUTION


# %% [markdown]
# Try it on two nodes with eight GPUs each: a sum over all 16 that is wanted whole everywhere, and a tensor that is cut
# between the nodes and wanted cut within them. Each way found is followed by the one that changes the first axis and
# then the second.

# %% demo=true
# %%needs reshard_cost reshard_path
nodes = presets.h100_pod(nodes=2)
between_and_within = (nodes.inter_node, nodes.intra_node)
R, P, S0 = Replicate(), Partial(), Shard(0)
ways = {}
for source, target in (((P, P), (R, R)), ((S0, R), (R, S0))):
    seconds, way = reshard_path(source, target, 2**28, (2, 8), between_and_within, dims=2)
    straight = [source, (target[0], source[1]), target]
    direct = sum(
        reshard_cost(a[axis], b[axis], 2**28, (2, 8)[axis], between_and_within[axis])
        for axis, (a, b) in enumerate(itertools.pairwise(straight))
    )
    ways[written(source)] = seconds, direct, [written(layout) for layout in way]
    print(f"{1e3 * seconds:5.2f} ms: {' -> '.join(map(written, way))}")
    print(f"{1e3 * direct:5.2f} ms: {' -> '.join(map(written, straight))}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds reshard_cost reshard_path
whole_again = ways["PP"][2]
assert len(whole_again) == 4
assert whole_again[1] in ("PS(0)", "PS(1)")
assert whole_again[2] in ("RS(0)", "RS(1)")
assert ways["S(0)R"][2] == ["S(0)R", "S(0)S(1)", "RS(1)", "RS(0)"]
assert all(3 < direct / seconds < 7 for seconds, direct, _ in ways.values())

# %% [markdown]
# The first way is the hierarchical all-reduce: sums are cut within the nodes, the eighths are added up between the
# nodes, and every node joins them. In the second way each GPU first drops seven eighths of what its node has whole.
# Only an eighth then crosses to the other node, and the rest comes from the neighbours.

# %% [markdown]
# ## 3 The best of all plans
#
# A model's operators pass tensors to each other. Choose a strategy for each. The operators' own seconds add up, and on
# each edge between two of them the change of layout is added. A **plan** is such a choice, and the best one has the
# smallest sum.
#
# The parts depend on each other: the cheapest strategy of one operator may leave a layout from which every change is
# expensive. A chain of n operators with S strategies each has Sⁿ plans. But what comes after an operator depends on
# what came before it only through the operator's own strategy.


# %% exercise="best_chain" points=8
def best_chain(node_cost: list[list[float]], edge_cost: list[list[list[float]]]) -> tuple[float, list[int]]:
    """The cheapest choice of strategies for operators in a chain.

    node_cost[i][s]: seconds of operator i with its strategy s.
    edge_cost[i][s][t]: seconds from strategy s of operator i to strategy t of operator i + 1.
    What cannot be done costs math.inf; some choice is possible.

    Returns the least sum of seconds, and a choice that has it: for each operator the number of its
    strategy. 150 operators with 20 strategies take less than two seconds.
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
# Now price a model. A `Step` is an operator and where its operands come from: an earlier step, the weights, or the
# data, of which each rank reads what it needs. A strategy takes the seconds of its products, forward and twice that
# backward, and those of summing the weights' gradients: if ranks share the work and each has the whole weight, its
# gradient is a sum. An edge is paid twice, for the tensor forward and for its gradient backward. The gradient of an
# operand that lies whole is a sum, too, where the work is shared; and a result that is a sum wants its gradient whole.


# %% demo=true
class Step(NamedTuple):
    """An operator. inputs: for each operand the number of the step that makes it, "weight" or "data"."""

    op: Einsum
    inputs: tuple[int | str, ...]


class Tables(NamedTuple):
    """What best_intra is asked, and for each step the strategies that are numbered there."""

    graph: list[tuple[int, int]]
    node_cost: list[list[float]]
    edge_cost: list[list[list[float]]]
    memory: list[list[int]]
    strategies: list[list[Strategy]]


def nbytes(op: Einsum, letters: str) -> int:
    """Of a whole tensor in float32."""
    return 4 * math.prod(op.shape(letters))


def is_shared(strategy: Strategy) -> bool:
    """Whether the ranks share the work."""
    return any(placed != (Replicate(),) for placed in strategy.operands)


def operand_gradient(strategy: Strategy, place: int) -> Placement:
    """How the gradient of an operand lies when it is computed."""
    (placement,) = strategy.operands[place]
    return Partial() if is_shared(strategy) and isinstance(placement, Replicate) else placement


def priced(steps: list[Step], count: int, link: Link, flops: float) -> Tables:
    """What each strategy and each change of a layout costs in a step, on one axis of so many ranks."""
    tables = Tables([], [], [], [], [op_strategies(step.op, (count,)) for step in steps])
    for number, (op, inputs) in enumerate(steps):
        weights = [place for place, source in enumerate(inputs) if source == "weight"]
        seconds, held = [], []
        for strategy in tables.strategies[number]:
            sums = [
                reshard_cost(
                    operand_gradient(strategy, k),
                    strategy.operands[k][0],
                    nbytes(op, op.operands[k]),
                    count,
                    link,
                )
                for k in weights
            ]
            seconds.append(3 * op.flops / flops / (count if is_shared(strategy) else 1) + sum(sums))
            parts = [count if isinstance(strategy.operands[k][0], Shard) else 1 for k in weights]
            held.append(
                sum(nbytes(op, op.operands[k]) // part for k, part in zip(weights, parts, strict=True))
            )
        tables.node_cost.append(seconds)
        tables.memory.append(held)
        for place, source in enumerate(inputs):
            if isinstance(source, int):
                tables.graph.append((source, number))
                size = nbytes(op, op.operands[place])
                tables.edge_cost.append(
                    [
                        [there_and_back(a, b, place, size, count, link) for b in tables.strategies[number]]
                        for a in tables.strategies[source]
                    ]
                )
    return tables


def there_and_back(maker: Strategy, user: Strategy, place: int, size: int, count: int, link: Link) -> float:
    """Seconds for a tensor of so many bytes, and for its gradient."""
    (left,) = maker.result
    wanted = Replicate() if isinstance(left, Partial) else left
    forward = reshard_cost(left, user.operands[place][0], size, count, link)
    return forward + reshard_cost(operand_gradient(user, place), wanted, size, count, link)


# %% [markdown]
# A transformer's MLP and a loss, on the four A100s of an NVLink node: once with many samples and small matrices, once
# with few samples and large ones. (The loss is taken number by number. It stands for all that follows and does not take
# a sum.)


# %% demo=true
# %%needs op_strategies reshard_cost best_chain
def mlp(samples: int, width: int, inner: int) -> list[Step]:
    """Two products, a function between them, and a loss."""
    sizes = {"b": samples, "d": width, "f": inner, "e": width}
    return [
        Step(Einsum("bd,df->bf", sizes), ("data", "weight")),
        Step(Einsum("bf->bf", sizes), (0,)),
        Step(Einsum("bf,fe->be", sizes), (1, "weight")),
        Step(Einsum("be->be", sizes), (2,)),
    ]


node = presets.nvlink_node(4)
found = {}
for name, sizes in (("many samples", (16_384, 1024, 4096)), ("large matrices", (256, 4096, 16_384))):
    tables = priced(mlp(*sizes), 4, node.intra_node, node.flops)
    seconds, plan = best_chain(tables.node_cost, tables.edge_cost)
    found[name] = tables, seconds, plan
    print(f"{name}: {1e6 * seconds:,.0f} microseconds")
    for step, strategies, choice in zip(mlp(*sizes), tables.strategies, plan, strict=True):
        print(f"    {step.op.spec:10}  {strategies[choice]}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds op_strategies reshard_cost best_chain
chosen = {
    name: [str(strategies[choice]) for strategies, choice in zip(tables.strategies, plan, strict=True)]
    for name, (tables, _, plan) in found.items()
}
assert chosen["many samples"] == ["S(0), R -> S(0)", "S(0) -> S(0)", "S(0), R -> S(0)", "S(0) -> S(0)"]
assert chosen["large matrices"][:3] == ["R, S(1) -> S(1)", "S(1) -> S(1)", "S(1), S(0) -> P"]

# %% [markdown]
# The program finds data parallelism and Megatron-LM's plan, without having been told of either. With many samples it
# cuts the samples everywhere, and pays for the weights' gradients. With large matrices that would cost more; it cuts
# the first matrix by columns and the second by rows, and pays for the sum behind them.
#
# A model is seldom a chain. A block's input goes into its first product and is added to its last, so a choice affects
# two ways on. No table that is filled from left to right does for such graphs. Alpa (Zheng et al., 2022) writes the
# choice as an integer program, with a bound for the memory if one is wanted, and a solver finds the best plan. SciPy
# has such a solver: `scipy.optimize.milp` takes a sum to be made small, bounds, linear constraints, and for each
# variable whether it is an integer. Its tolerances are made for numbers of ordinary size, while two plans of a small
# model may differ by nanoseconds.


# %% exercise="best_intra" points=16
def best_intra(
    graph: list[tuple[int, int]],
    node_cost: list[list[float]],
    edge_cost: list[list[list[float]]],
    memory: list[list[int]] | None = None,
    capacity: int | None = None,
) -> tuple[float, list[int]]:
    """As best_chain, for operators of any graph, and within a bound for the memory.

    node_cost, and what is returned: as there.
    graph: edges (i, j) between different operators; a pair may have several.
    edge_cost[e][s][t]: for edge e = (i, j), from strategy s of i to strategy t of j.
    memory[i][s]: bytes. capacity: how many all chosen strategies may have together (None: memory does
        not count).

    The seconds are right to a relative 1e-5. Raises ValueError if no choice is possible. 12 operators
    with 4 strategies and 21 edges take less than 5 seconds.
    """
    ### BEGIN SOLUTION
    tables = [np.array(own, dtype=float) for own in (*node_cost, *edge_cost)]
    starts = np.cumsum([0, *(table.size for table in tables)])
    seconds = np.concatenate([table.flatten() for table in tables])

    def numbers(table: int) -> np.ndarray:
        """The numbers of a table's variables, in its shape."""
        return np.arange(starts[table], starts[table + 1]).reshape(tables[table].shape)

    nodes = [numbers(place) for place in range(len(node_cost))]
    held = [each for own in memory or () for each in own]

    rows, least, most = [], [], []

    def between(low: float, factors: dict[int, float], high: float) -> None:
        """Bounds of a sum. factors: the variables that are in it, and by what they are multiplied."""
        rows.append(np.zeros(len(seconds)))
        rows[-1][list(factors)] = list(factors.values())
        least.append(low)
        most.append(high)

    for own in nodes:
        between(1, dict.fromkeys(own.tolist(), 1.0), 1)
    for place, ends in enumerate(graph, start=len(nodes)):
        for axis, end in enumerate(ends):
            pairs = np.moveaxis(numbers(place), axis, 0).tolist()
            for own, each in zip(pairs, nodes[end].tolist(), strict=True):
                between(0, {**dict.fromkeys(own, 1.0), each: -1.0}, 0)
    if capacity is not None:
        weights = {number: each / max(capacity, 1) for number, each in enumerate(held)}
        between(0, weights, min(capacity, 1))
    limit = seconds[np.isfinite(seconds)].max(initial=0.0)
    while True:
        # What is dearer than the limit is in no plan that matters, and the solver's unit is the limit.
        found = milp(
            np.where(seconds <= limit, seconds, 0) / max(limit, 1e-300),
            integrality=np.arange(len(seconds)) < starts[len(nodes)],
            bounds=Bounds(0, (seconds <= limit).astype(float)),
            constraints=LinearConstraint(np.array(rows), least, most),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            raise ValueError(f"No choice of strategies is possible within {capacity} bytes: {found.message}")
        choices = [int(found.x[own].argmax()) for own in nodes]
        chosen = [int(own[choice]) for own, choice in zip(nodes, choices, strict=True)]
        total = sum(own[choice] for own, choice in zip(node_cost, choices, strict=True))
        total += sum(table[choices[i]][choices[j]] for (i, j), table in zip(graph, edge_cost, strict=True))
        if capacity is not None and sum(held[number] for number in chosen) > capacity:
            # Too much by less than the solver's tolerance: anything but this choice.
            between(0, dict.fromkeys(chosen, 1.0), len(nodes) - 1)
        elif total == 0 or 2 * total >= limit:
            return total, choices
        else:
            limit = total
    ### END SOLUTION


# %% [markdown]
# The same MLP within a block: its input comes from another product, and is added to its result. Now the memory of the
# weights counts: once all of them may lie on every rank, and once each rank has room for a quarter.


# %% demo=true
# %%needs op_strategies reshard_cost best_chain best_intra
def block(samples: int, width: int, inner: int) -> list[Step]:
    """A product, and an MLP beside which its input passes by."""
    sizes = {"b": samples, "a": width, "d": width, "f": inner}
    return [
        Step(Einsum("ba,ad->bd", sizes), ("data", "weight")),
        Step(Einsum("bd,df->bf", sizes), (0, "weight")),
        Step(Einsum("bf->bf", sizes), (1,)),
        Step(Einsum("bf,fd->bd", sizes), (2, "weight")),
        Step(Einsum("bd,bd->bd", sizes), (0, 3)),
        Step(Einsum("bd->bd", sizes), (4,)),
    ]


steps = block(16_384, 1024, 4096)
blocks = priced(steps, 4, node.intra_node, node.flops)
all_weights = sum(max(own) for own in blocks.memory)
bounded = {}
for share in (1.0, 0.25):
    seconds, plan = best_intra(*blocks[:4], int(share * all_weights))
    bounded[share] = seconds, plan
    print(f"room for {share:4.0%} of the weights: {1e6 * seconds:6,.0f} microseconds")
    for step, strategies, choice in zip(steps, blocks.strategies, plan, strict=True):
        print(f"    {step.op.spec:10}  {strategies[choice]}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds op_strategies reshard_cost best_chain best_intra
longer = bounded[0.25][0] / bounded[1.0][0]
assert 1.04 < longer < 1.06
guesses.measured(percent_longer_with_a_quarter_of_the_weights=100 * (longer - 1))
cut = [str(own[choice]) for own, choice in zip(blocks.strategies, bounded[0.25][1], strict=True)]
assert cut[1:5] == ["R, S(1) -> S(1)", "S(1) -> S(1)", "S(1), S(0) -> P", "S(1), S(1) -> S(1)"]
for tables, seconds, _ in found.values():
    assert math.isclose(best_intra(*tables[:3])[0], seconds, rel_tol=1e-6)
plans = math.prod(map(len, blocks.strategies))
for share, (least, _) in bounded.items():
    brute = min(
        sum(own[s] for own, s in zip(blocks.node_cost, plan, strict=True))
        + sum(t[plan[i]][plan[j]] for (i, j), t in zip(blocks.graph, blocks.edge_cost, strict=True))
        for plan in itertools.product(*(range(len(own)) for own in blocks.node_cost))
        if sum(own[s] for own, s in zip(blocks.memory, plan, strict=True)) <= int(share * all_weights)
    )
    assert math.isclose(brute, least, rel_tol=1e-6)
    print(f"{plans:,} plans, with room for {share:.0%}: the least is {1e6 * brute:,.0f} microseconds")

# %% [markdown]
# With room for everything it is data parallelism again. With a quarter no weight may lie whole anywhere, and the step
# becomes 5 % slower. Round the MLP its input lies cut, an all-gather makes it whole, and the sum that comes out is cut
# again by a reduce-scatter. Megatron-LM's sequence parallelism does so too, but cuts the tokens there. The folded cell
# compares with all plans, one by one: none that fits is faster.

# %% [markdown]
# ## 4 What others choose
#
# ### Alpa, Galvatron and Mesh-TensorFlow
#
# Alpa's program within operators is one function of its source, which asks another solver, CBC.
# `examples/alpa/solvers.py` takes that function as it is, and gives it the tables of section 3.

# %% demo=true jupyter={"source_hidden": true}
import subprocess
from pathlib import Path

import course_lib
from course_lib.beside import interpreter


def beside(name: str, script: str, asked: dict) -> dict:
    """What a script of examples/ answers in the environment of a library that stands beside."""
    path = Path(course_lib.__file__).parents[1] / "examples" / script
    as_argument = name == "mesh-tensorflow"
    command = [str(interpreter(name)), str(path), *([json.dumps(asked)] if as_argument else [])]
    given = "" if as_argument else json.dumps(asked)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:alpa op_strategies reshard_cost best_chain best_intra
def as_alpa_asks(tables: Tables, capacity: int) -> dict:
    """In microseconds, for its solver has tolerances as well."""
    return {
        "nodes": [[1e6 * each for each in own] for own in tables.node_cost],
        "edges": [
            [i, j, [[1e6 * each for each in row] for row in table]]
            for (i, j), table in zip(tables.graph, tables.edge_cost, strict=True)
        ],
        "memory": tables.memory,
        "capacity": capacity,
    }


questions = {
    "MLP, many samples": (found["many samples"][0], 0),
    "MLP, large matrices": (found["large matrices"][0], 0),
    "block, room for all": (blocks, 0),
    "block, room for a quarter": (blocks, int(0.25 * all_weights)),
}
told = beside("alpa", "alpa/solvers.py", {"intra": [as_alpa_asks(*each) for each in questions.values()]})
alpa_and_mine = {
    name: (theirs["seconds"], 1e6 * best_intra(*tables[:4], capacity or None)[0])
    for (name, (tables, capacity)), theirs in zip(questions.items(), told["intra"], strict=True)
}
for name, (theirs, mine) in alpa_and_mine.items():
    print(f"{name:26} Alpa {theirs:9,.1f} microseconds, yours {mine:9,.1f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:alpa op_strategies reshard_cost best_chain best_intra
for theirs, mine in alpa_and_mine.values():
    assert math.isclose(theirs, mine, rel_tol=1e-6)

# %% [markdown]
# The optimum is the same.
#
# Galvatron asks the question of whole layers: a strategy is a way to compute a layer, and the memory of a device is a
# bound. A chain with a bound needs no integer program; a table with a row for each unit of memory does.
# `examples/galvatron/layers.py` gives Galvatron's own loop the MLP of section 3, in units of 1 MiB.

# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:galvatron op_strategies reshard_cost best_chain best_intra
MIB = 2**20
bounds = {
    (name, share): int(share * sum(max(own) for own in tables.memory))
    for name, (tables, _, _) in found.items()
    for share in (1.0, 0.5, 0.25)
}
chains = [
    {
        "nodes": found[name][0].node_cost,
        "edges": found[name][0].edge_cost,
        "memory": [[each // MIB for each in own] for own in found[name][0].memory],
        "capacity": capacity // MIB,
    }
    for (name, _), capacity in bounds.items()
]
told = beside("galvatron", "galvatron/layers.py", {"chains": chains})["chains"]
galvatron_and_mine = {
    asked: (theirs["seconds"], best_intra(*found[asked[0]][0][:4], capacity)[0])
    for (asked, capacity), theirs in zip(bounds.items(), told, strict=True)
}
for (name, share), (theirs, mine) in galvatron_and_mine.items():
    print(
        f"{name:15} room for {share:4.0%} of the weights: "
        f"Galvatron {1e6 * theirs:8,.1f} microseconds, yours {1e6 * mine:8,.1f}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:galvatron op_strategies reshard_cost best_chain best_intra
assert all(each % MIB == 0 for tables, _, _ in found.values() for own in tables.memory for each in own)
for theirs, mine in galvatron_and_mine.values():
    assert math.isclose(theirs, mine, rel_tol=1e-5)

# %% [markdown]
# The optimum is the same again, with each bound.
#
# The search of Mesh-TensorFlow, `auto_mtf` (unit 06), looks at memory and not at time, and cuts a letter in all
# operators or in none. Your `best_intra` can answer that too: the costs are bytes, and any change but adding up a sum
# is impossible.


# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:mesh-tensorflow op_strategies reshard_cost best_chain best_intra
def by_memory(steps: list[Step], count: int) -> list[str]:
    """The strategies with the fewest bytes on a device, of operands and results."""
    tables = priced(steps, count, link, 1.0)
    weigh = [
        [
            sum(
                nbytes(op, letters) // (count if isinstance(placement, Shard) else 1)
                for letters, (placement,) in zip(
                    (*op.operands, op.result), (*each.operands, each.result), strict=True
                )
            )
            for each in strategies
        ]
        for (op, _), strategies in zip(steps, tables.strategies, strict=True)
    ]
    stays = [
        [
            [
                0.0 if a.result == b.operands[0] or isinstance(a.result[0], Partial) else math.inf
                for b in tables.strategies[j]
            ]
            for a in tables.strategies[i]
        ]
        for i, j in tables.graph
    ]
    _, plan = best_intra(tables.graph, weigh, stays)
    return [str(own[choice]) for own, choice in zip(tables.strategies, plan, strict=True)]


shapes = {"many samples": (1024, 64, 64), "large matrices": (16, 4096, 16_384)}
asked = [({"b": b, "d": d, "f": f, "v": d}, "all:4") for b, d, f in shapes.values()]
searched = beside("mesh-tensorflow", "mesh_tensorflow/layouts.py", {"layouts": [], "searched": asked})[
    "searched"
]
mine = [by_memory(mlp(*shape), 4) for shape in shapes.values()]
for name, theirs, own in zip(shapes, searched, mine, strict=True):
    print(f"{name:15} Mesh-TensorFlow cuts {theirs};  yours: {'  |  '.join(own[:3])}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:mesh-tensorflow op_strategies reshard_cost best_chain best_intra
assert searched == ["b:all", "f:all"]
assert mine[0][:3] == ["S(0), R -> S(0)", "S(0) -> S(0)", "S(0), R -> S(0)"]
assert mine[1][:3] == ["R, S(1) -> S(1)", "S(1) -> S(1)", "S(1), S(0) -> P"]

# %% [markdown]
# ### DTensor
#
# PyTorch's `DTensor` has a list of strategies for each operator too, and a table of what a change of layout costs. Here
# are both for a product of two matrices with 1,024 rows and columns on 4 ranks.


# %% demo=true jupyter={"source_hidden": true}
# %%needs torch>=2.8 op_strategies best_chain
import logging


def of_dtensor(size: int) -> tuple[list[str], list[list[float]]]:
    """Its strategies for a product of two square matrices; prices, in microseconds, between layouts."""
    from torch.distributed.tensor._collective_utils import redistribute_cost
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy

    place = init_device_mesh("cpu", (dist.get_world_size(),))
    meta = TensorMeta(torch.Size([size, size]), (size, 1), torch.float32)
    lying = {written((kind,)): DTensorSpec(place, (kind,), meta) for kind in kinds}
    product = torch.ops.aten.mm.default
    given = OpSchema(product, tuple(OpStrategy([OpSpec(lying[name])]) for name in ("S(0)", "S(1)")), {})
    propagator = DTensor._op_dispatcher.sharding_propagator
    if product in propagator.op_strategy_funcs:
        found = propagator.op_strategy_funcs[product](given)
    else:
        # PyTorch 2.14 writes them down for one axis, and makes those of the mesh out of them.
        from torch.distributed.tensor._ops.single_dim_strategy import _expand_single_dim_strategy_to_mesh

        of_one_axis = propagator.op_single_dim_strategy_funcs[product]
        found = _expand_single_dim_strategy_to_mesh(place, given, of_one_axis, meta)(
            product, given.args_meta, {}
        )
    spelled = [
        str(Strategy(tuple(own.placements for own in each.input_specs), each.output_spec.placements))
        for each in found.strategies
    ]
    return spelled, [[redistribute_cost(a, b) for b in lying.values()] for a in lying.values()]


# On CPUs it gathers where its plan has an all-to-all, and would say so here.
logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)
kinds = (Replicate(), Shard(0), Shard(1), Partial())
theirs, their_prices = launch(of_dtensor, 1024, ranks=4).results[0]
print("DTensor's strategies:", *(f"\n    {each}" for each in sorted(theirs)))
print("microseconds from the layout on the left to the one above")
print("       " + "".join(f"{written((target,)):>8}" for target in kinds))
for source, row in zip(kinds, their_prices, strict=True):
    print(f"{written((source,)):7}" + "".join(f"{each:8.0f}" for each in row))

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 op_strategies best_chain
square = Einsum("ab,bc->ac", dict.fromkeys("abc", 1024))
of_no_sums = [each for each in theirs if "P" not in each.partition(" -> ")[0]]
assert sorted(of_no_sums) == sorted(map(str, op_strategies(square, (4,))))
assert their_prices[1][3] == math.inf
assert all(price == 0 for price in their_prices[0])
assert 1.9 < their_prices[3][0] / their_prices[3][1] < 2.1

# %% [markdown]
# The strategies are those of `op_strategies`; PyTorch 2.14 has some more, which leave one operand a sum. The prices are
# of the same kind as yours, for links that are built in, and DTensor knows no way from a cut to a sum. But it does not
# search. DTensor runs a program line by line, and at each operator takes the strategy whose operands are cheapest to
# bring there: a greedy choice. Let x lie as S(0) and w as S(1), and ask for `relu(x @ w)`:


# %% demo=true
# %%needs torch>=2.8 op_strategies best_chain
def as_dtensor_does(size: int) -> list[str]:
    """The layouts of x @ w and of its relu."""
    place = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.randn(size, size), place, (Shard(0),))
    w = distribute_tensor(torch.randn(size, size), place, (Shard(1),))
    y = x @ w
    return [written(each.placements) for each in (y, torch.relu(y))]


greedy = launch(as_dtensor_does, 1024, ranks=4).results[0]
print(f"DTensor: the product comes out as {greedy[0]}, and relu as {greedy[1]}")

place_of = {kind: number for number, kind in enumerate(kinds)}


def their_price(source: Placement, target: Placement) -> float:
    """Of DTensor's table, in microseconds."""
    return their_prices[place_of[source]][place_of[target]]


products = op_strategies(Einsum("ab,bc->ac", dict.fromkeys("abc", 1024)), (4,))
after = (Replicate(), Shard(0), Shard(1))
bring = [
    their_price(Shard(0), each.operands[0][0]) + their_price(Shard(1), each.operands[1][0])
    for each in products
]
seconds, plan = best_chain(
    [bring, [0.0] * 3], [[[their_price(each.result[0], kind) for kind in after] for each in products]]
)
whole_way = {
    str(each): own + min(their_price(each.result[0], kind) for kind in after)
    for each, own in zip(products, bring, strict=True)
}
for (name, price), own in zip(whole_way.items(), bring, strict=True):
    print(f"{name:18} operands {own:5.0f}, with the way to relu {price:5.0f} microseconds")
print(f"best_chain: {products[plan[0]]}, {seconds:.0f} microseconds")

# %% demo=true jupyter={"source_hidden": true}
# %%holds torch>=2.8 op_strategies best_chain
assert greedy == ["P", "R"]
assert bring.index(min(bring)) == [str(each) for each in products].index("S(1), S(0) -> P")
assert str(products[plan[0]]) in ("S(0), R -> S(0)", "R, S(1) -> S(1)")
greedy_price = min(bring) + their_price(Partial(), Replicate())
assert math.isclose(seconds, min(whole_way.values()))
assert 2 < greedy_price / seconds < 2.7
guesses.measured(times_as_dear_as_the_best_when_chosen_greedily=greedy_price / seconds)

# %% [markdown]
# To bring x and w where the sum is computed takes two all-to-alls, the cheapest changes in its table, so DTensor does
# that. But relu wants no sum, and now the most expensive change is due. By DTensor's own prices its way costs more than
# twice as much as the best, which gathers one matrix and has no sum. DTensor is made to run what a person has planned:
# whoever writes the program has to say where tensors lie.

# %% [markdown]
# ## 5 Stages and the devices that they get
#
# Section 3 chose layouts on one group of devices: the lower of Alpa's two levels. The upper one cuts the model into
# **stages**, each a run of layers, and the cluster into **submeshes**, groups of devices, one for each stage. Within a
# stage operators are split, which costs collectives. Between stages there is a pipeline, which costs few and small
# messages, and idle time. A submesh has, say, 1, 2, 4 or 8 devices of one node, or whole nodes, so that any list of
# sizes that adds up to all devices can be laid out.
#
# How long does a step take? Let stage $k$ need $t_k$ seconds for a micro-batch, forward and backward together. The
# first of $m$ micro-batches goes through all stages; the others queue at the slowest stage:
#
# $$\sum_k t_k + (m - 1) \operatorname{max}_k t_k$$
#
# Here is a schedule of four unequal stages, all forwards before all backwards, in the pipeline simulation of unit 05:

# %% demo=true jupyter={"source_hidden": true}
uneven = [1.0, 2.5, 1.5, 2.0]
flushed = [[*map(Forward, range(6)), *map(Backward, range(6))] for _ in uneven]
timing = cost(flushed, 6, Costs(forward=uneven, backward=[2 * seconds for seconds in uneven]))
assert timing.seconds == 3 * sum(uneven) + 5 * 3 * max(uneven)
schedule_figure(timing, "Six micro-batches", unit="s")

# %% [markdown]
# The formula gives the same, 21 + 5 · 7.5 = 58.5 seconds. It is exact for such a schedule if backward takes the same
# multiple of forward on all stages. Like Alpa it leaves out what messages between stages take.
#
# With few micro-batches the sum counts most: whatever makes a single layer fast. With many the slowest stage does, so
# stages should be alike. A stage's seconds depend on its submesh: what section 3 finds for each run of layers on each
# size of submesh is the input of this level. Alpa measures each of them, which takes long.


# %% exercise="best_inter" points=12
def best_inter(
    stage_seconds: Callable[[int, int, int], float],
    layers: int,
    devices: int,
    micro_batches: int,
    sizes: Sequence[int],
) -> list[tuple[int, int]]:
    """The stages with which a step takes least, by the formula above.

    stage_seconds(begin, end, size): seconds of layers begin to end - 1 for a micro-batch, on so many
        devices; math.inf where they do not fit. Ask for each at most once, and for no more devices
        than there are.
    sizes: how many devices a submesh can have.

    Returns (layers, devices) of each stage, in order: all layers, and exactly all devices. Raises
    ValueError if no plan fits. 20 layers on 16 devices take less than three seconds.
    """
    ### BEGIN SOLUTION
    usable = [size for size in sizes if size <= devices]
    runs = itertools.combinations(range(layers + 1), 2)
    seconds = {(begin, end, size): stage_seconds(begin, end, size) for begin, end in runs for size in usable}
    # In this order whatever ends where a stage begins has been settled before it.
    stages = sorted((key for key, value in seconds.items() if value < math.inf), key=lambda key: key[1])

    def least_sum(slowest: float) -> tuple[float, list[tuple[int, int]]]:
        """The least sum of all stages' seconds where none takes longer than this, and its plan."""
        least: dict[tuple[int, int], tuple[float, list[tuple[int, int]]]] = {(0, 0): (0.0, [])}
        for begin, end, size in stages:
            taken = seconds[begin, end, size]
            if taken > slowest:
                continue
            for used in range(devices - size + 1):
                if (begin, used) in least:
                    before, plan = least[begin, used]
                    if before + taken < least.get((end, used + size), (math.inf, []))[0]:
                        least[end, used + size] = before + taken, [*plan, (end - begin, size)]
        return least.get((layers, devices), (math.inf, []))

    best: tuple[float, list[tuple[int, int]]] = math.inf, []
    for slowest in sorted({seconds[key] for key in stages}):
        if micro_batches * slowest >= best[0]:
            break  # The sum has the slowest stage in it.
        total, plan = least_sum(slowest)
        best = min(best, (total + (micro_batches - 1) * slowest, plan))
    if best[0] == math.inf:
        raise ValueError(f"No stages of {layers} layers fit onto {devices} devices.")
    return best[1]
    ### END SOLUTION


# %% [markdown]
# Sixteen equal layers, and two nodes of four devices. A layer takes 8 ms on one device, and $1/d$ of that on $d$
# devices, plus collectives: 0.5 ms on two or four devices, and 8 ms on eight, which are on two nodes.

# %% demo=true
# %%needs best_inter
COLLECTIVES = {1: 0.0, 2: 0.5, 4: 0.5, 8: 8.0}  # ms a layer


def layer_ms(begin: int, end: int, size: int) -> float:
    """Milliseconds of a run of these layers, which are all alike."""
    return (end - begin) * (8.0 / size + COLLECTIVES[size])


def step_ms(plan: list[tuple[int, int]], micro_batches: int) -> float:
    """Milliseconds of a step with these stages."""
    each = [layer_ms(0, length, size) for length, size in plan]
    return sum(each) + (micro_batches - 1) * max(each)


by_count = {m: best_inter(layer_ms, 16, 8, m, (1, 2, 4, 8)) for m in (1, 4, 16, 24, 64, 256)}
for m, found in by_count.items():
    print(f"{m:3} micro-batches: {step_ms(found, m) / m:5.1f} ms each, stages (layers, devices)", *found)

# %% demo=true jupyter={"source_hidden": true}
# %%holds best_inter
assert all(size < 8 for found in by_count.values() for _, size in found)
stages_of = [len(found) for found in by_count.values()]
assert stages_of == [2, 2, 2, 4, 8, 8]
assert all(step_ms([(16, 8)], m) > step_ms(found, m) for m, found in by_count.items())

# %% [markdown]
# None of these plans splits a layer over both nodes. The more micro-batches, the more stages, until each device is a
# stage of its own and no layer is split. So the right mix of tensor and pipeline parallelism depends on $m$.
#
# Alpa's own program for this level, `training_dp`, is taken out of its source by the script of section 4, and gets
# drawn stages:

# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:alpa best_inter
SIZES, LAYERS, DEVICES = (1, 2, 4), 4, 4


def drawn_stages(generator: random.Random) -> dict[tuple[int, int, int], float]:
    """Seconds of each stage, by begin, end and size."""
    runs = itertools.combinations(range(LAYERS + 1), 2)
    return {
        (begin, end, size): generator.randint(8, 64) * (end - begin) / size
        for begin, end in runs
        for size in SIZES
    }


def stages_as_alpa_asks(stages: dict[tuple[int, int, int], float], micro_batches: int) -> dict:
    """Alpa counts a stage's layers from the first to the last, which is in it."""
    cost = [
        [[stages.get((first, last + 1, size)) for size in SIZES] for last in range(LAYERS)]
        for first in range(LAYERS)
    ]
    submeshes = [(1, size) for size in SIZES]
    counts = {"layers": LAYERS, "devices": DEVICES, "micro_batches": micro_batches}
    return {**counts, "submeshes": submeshes, "cost": cost}


generator = random.Random(0)
drawn = [(drawn_stages(generator), micro_batches) for micro_batches in (1, 2, 4, 8, 32) for _ in range(4)]
asked = [stages_as_alpa_asks(*each) for each in drawn]
told = beside("alpa", "alpa/solvers.py", {"inter": asked})["inter"]
differences = []
for (stages, micro_batches), theirs in zip(drawn, told, strict=True):
    mine = best_inter(lambda *stage, of=stages: of[stage], LAYERS, DEVICES, micro_batches, SIZES)
    ends = itertools.accumulate(length for length, _ in mine)
    each = [stages[end - length, end, size] for end, (length, size) in zip(ends, mine, strict=True)]
    differences.append(abs(sum(each) + (micro_batches - 1) * max(each) - theirs["seconds"]))
print(
    f"{len(drawn)} models, 4 layers on 4 devices: yours and Alpa's differ by at most {max(differences):.1g} s"
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:alpa best_inter
assert max(differences) < 1e-3

# %% [markdown]
# Both agree on all 20 drawn models. Alpa also knows that with 1F1B a stage keeps the activations of as many
# micro-batches as there are stages from it on.
#
# ### Levels of a network
#
# PipeDream's planner of unit 05 had one bandwidth for all workers. But a network has levels: GPUs within a server,
# servers within a rack. The planner in the paper (section 3.1) goes level by level, from the innermost outwards. Its
# plan is nested: a stage on three of four servers says how many layers it has, that it has three replicas, and how each
# replica is laid out on the GPUs of its server.


# %%
GPU_SPEED = 0.3 * 15.7e12
"""Operations a second of a V100, as they were guessed in unit 05."""

Nested = list[tuple[int, int, list]]
"""For each stage its layers, replicas, and one replica's plan on the level below; [] on the innermost."""


def nested_seconds(
    plan: Nested,
    seconds: list[float],
    activation_bytes: list[int],
    weight_bytes: list[int],
    levels: list[tuple[int, float]],
) -> float:
    """Seconds a batch of a nested plan: the slowest part of it.

    seconds, activation_bytes, weight_bytes: of each layer, as in unit 05. levels: for each, the innermost first,
    how many units it has (GPUs of a server, servers of a rack) and the bytes a second of its network.

    k replicas are k times as fast as one, and average their gradients when every GPU in them has had a batch,
    as the authors' program has it. Cuts are crossed by activations and by their gradients.
    """
    *inner, (_, bandwidth) = levels
    gpus = math.prod(count for count, _ in inner)
    slowest, layer = 0.0, 0
    for length, replicas, inside in plan:
        own = slice(layer, layer + length)
        parts = seconds[own], activation_bytes[own], weight_bytes[own]
        alone = nested_seconds(inside, *parts, inner) if inner else sum(parts[0])
        exchange = 2 * (replicas - 1) * sum(parts[2]) / bandwidth / gpus
        cut = 2 * activation_bytes[layer - 1] / bandwidth if layer else 0.0
        slowest = max(slowest, alone / replicas, exchange / replicas, cut)
        layer += length
    return slowest


# %% exercise="pipedream_hierarchy" points=10
def pipedream_hierarchy(
    seconds: list[float],
    activation_bytes: list[int],
    weight_bytes: list[int],
    levels: list[tuple[int, float]],
) -> Nested:
    """The nested plan with the least `nested_seconds`, whose arguments these are.

    Returns the plan on the outermost level: (layers, replicas, plan of a replica) for each stage, in
    order. On each level all layers are planned, and all units used. Within a stage of the innermost
    level stands []. 30 layers on 4 servers of 4 GPUs take less than five seconds.
    """
    ### BEGIN SOLUTION
    count = len(seconds)
    computing = [0.0, *itertools.accumulate(seconds)]
    weights = [0, *itertools.accumulate(weight_bytes)]
    runs = sorted(itertools.combinations(range(count + 1), 2), key=lambda run: run[1])
    # Of each run of layers its seconds on one unit of a level, and its plan there.
    alone: dict[tuple[int, int], tuple[float, Nested]]
    alone = {(begin, end): (computing[end] - computing[begin], []) for begin, end in runs}
    gpus = 1
    for units, bandwidth in levels:
        best: dict[tuple[int, int, int], tuple[float, Nested]] = {}

        def stage(begin: int, end: int, replicas: int, bandwidth=bandwidth, alone=alone, gpus=gpus) -> float:
            exchange = 2 * (replicas - 1) * (weights[end] - weights[begin]) / bandwidth / gpus
            return max(alone[begin, end][0], exchange) / replicas

        for (begin, end), used in itertools.product(runs, range(1, units + 1)):
            least, plan = stage(begin, end, used), [(end - begin, used, alone[begin, end][1])]
            for middle, replicas in itertools.product(range(begin + 1, end), range(1, used)):
                before, first = best[begin, middle, used - replicas]
                cut = 2 * activation_bytes[middle - 1] / bandwidth
                slowest = max(before, cut, stage(middle, end, replicas))
                if slowest < least:
                    least, plan = slowest, [*first, (end - middle, replicas, alone[middle, end][1])]
            best[begin, end, used] = least, plan
        alone = {run: best[(*run, units)] for run in runs}
        gpus *= units
    return alone[0, count][1]
    ### END SOLUTION


# %% [markdown]
# The two models of unit 05, on four servers with four GPUs each: 10 Gbit/s between servers, as in the paper's first
# cluster, and 10 GB/s assumed within a server.

# %% demo=true
# %%needs pipedream_hierarchy
SERVERS = [(4, 10e9), (4, 10e9 / 8)]
nested = {}
for name, model in {"VGG-16": vgg16(batch=64), "ResNet-50": resnet50(batch=128)}.items():
    of_layers = ([n / GPU_SPEED for n in model.operations], model.activation_bytes, model.weight_bytes)
    planned = pipedream_hierarchy(*of_layers, SERVERS)
    length = len(model.operations)
    everywhere = [(length, 4, [(length, 4, [])])]
    speeds = [sum(of_layers[0]) / nested_seconds(each, *of_layers, SERVERS) for each in (planned, everywhere)]
    nested[name] = planned, *speeds
    print(f"{name}: {planned}")
    print(f"    {speeds[0]:.1f} times as fast as one GPU; data parallelism {speeds[1]:.1f} times")

# %% demo=true jupyter={"source_hidden": true}
# %%holds pipedream_hierarchy
assert nested["ResNet-50"][0] == [(23, 4, [(23, 4, [])])]
(first, replicas, inside), (_, rest, at_the_end) = nested["VGG-16"][0]
assert (replicas, rest) == (3, 1)
assert inside == [(first, 4, [])]
assert [each for _, each, _ in at_the_end] == [3, 1]
last_worker = vgg16(batch=64).weight_bytes[-at_the_end[1][0] :]
assert sorted(last_worker)[-3:] == sorted(vgg16(batch=64).weight_bytes)[-3:]
assert nested["VGG-16"][1] > 1.5 * nested["VGG-16"][2]

# %% [markdown]
# For ResNet-50 the planner finds data parallelism on all 16 workers, as PipeDream's authors report. For VGG-16 twelve
# workers share the layers with few weights, then come three, and the last worker alone has the large linear layers,
# whose weights are sent nowhere. The authors report 15 and 1, which no plan of this kind can say: a stage on the outer
# level has whole servers. A planner finds the best plan of its *search space*, and nothing outside it.

# %% [markdown]
# ## 6 A simulation that is told what changed
#
# The costs of sections 3 and 5 leave something out: that two messages want one link at the same time, and that an
# operator waits although its device is free. Executing a step would show both, but it takes seconds, and the plan has
# to be set up first. FlexFlow (Jia, Zaharia and Aiken 2019) **simulates** the step instead. A step is a graph of
# **tasks**: a task is a part of an operator on a device, forward or backward, or a message on a link. A link counts as
# a device too. An edge says that one task needs what another one made. FlexFlow assumes
#
# - that a task takes the same time each time, whatever its numbers are, so that each *kind* of task is measured once;
# - that a message takes its bytes divided by the link's bandwidth;
# - that a device runs its tasks in the order in which they become ready: first come, first served;
# - and that the runtime itself takes no time.
#
# A `Task` has a device and seconds, and goes by its number in the list of all tasks. It is ready when all tasks that it
# waits for have ended, or at 0 if there are none. Its device runs one task at a time, in the order in which they become
# ready; of those ready at the same moment, the lowest number first. A `Timeline` is what a simulation finds out:
#
# | Field | What it says |
# |---|---|
# | `tasks` | the list of tasks |
# | `before`, `after` | for each task the numbers of those that it waits for, and of those that wait for it |
# | `ready`, `end` | for each task when it is ready, and when it has ended |
# | `queues` | for each device the numbers of its tasks, in the order in which it runs them |


# %% exercise="simulate" points=8
def simulate(tasks: list[Task], edges: list[tuple[int, int]], devices: int) -> Timeline:
    """When each task runs, by the rules above.

    tasks: what devices 0 to devices - 1 do.
    edges: (a, b), a < b, in any order: task b waits for task a.

    Returns a Timeline whose list of tasks is its own, a copy. There may be a thousand tasks of which
    each waits for the one before.
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


# %% [markdown]
# Seven tasks on two devices and the link from one to the other. When device 1 has done task 1, at 6 s, tasks 5 and 6
# are waiting for it. Task 6 has been ready since 5 s, so it comes first.

# %% demo=true
# %%needs simulate
few = [Task(0, 2), Task(1, 6), Task(2, 3), Task(0, 1), Task(2, 1), Task(1, 2), Task(1, 1)]
waits_for = [(0, 2), (0, 3), (3, 4), (2, 6), (4, 5)]
small = simulate(few, waits_for, 3)
small.ready, small.end, small.queues

# %% demo=true jupyter={"source_hidden": true}
# %%needs simulate
figure, axes = new_figure(
    height=2.2,
    alt="A bar for each task, in three rows, over 9 seconds. Device 0 runs tasks 0 and 3, the link tasks 2 "
    "and 4, and device 1 tasks 1, 6 and 5: task 6 became ready before task 5.",
)
with look():
    for row, queue in enumerate(small.queues):
        for task in queue:
            begin = small.end[task] - few[task].seconds
            axes.barh(
                row, few[task].seconds, left=begin, height=0.6, color=COLOURS["sky_blue"], edgecolor="white"
            )
            axes.text(
                begin + few[task].seconds / 2, row, f"task {task}", ha="center", va="center", color="black"
            )
axes.set(yticks=range(3), yticklabels=["device 0", "device 1", "link"], xlabel="time (s)")
axes.invert_yaxis()
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds simulate
assert small.queues == [[0, 3], [1, 6, 5], [2, 4]]
assert (small.ready[5], small.ready[6]) == (6, 5)
assert small.seconds == 9

# %% [markdown]
# Now a whole step. `PlacedStep` makes its tasks: each operator's batch is cut into parts, and a plan says which device
# computes which part. Each pair of devices has links of its own. An all-reduce for each operator's gradients follows
# its backwards, and all of these share one network. VGG-16 on two nodes with two GPUs each, 10 Gbit/s between nodes:

# %% demo=true
# %%needs simulate
vgg_step = PlacedStep(chain_of(vgg16(batch=64)), Machine(4, 2, GPU_SPEED, 10e9, 10e9 / 8), parts=4)
spread = vgg_step.data_parallel()
on_one = ((0, 0, 0, 0),) * len(spread)
step_seconds = {
    name: simulate(vgg_step.tasks(each), vgg_step.edges, vgg_step.devices).seconds
    for name, each in {"one GPU": on_one, "data parallelism on four": spread}.items()
}
for name, seconds in step_seconds.items():
    print(f"{name}: {seconds:.2f} s a step")

# %% demo=true jupyter={"source_hidden": true}
# %%holds simulate
assert 1.5 < step_seconds["one GPU"] / step_seconds["data parallelism on four"] < 1.8

# %% [markdown]
# Four GPUs are not even twice as fast as one: the gradients have to cross between the nodes. Section 7 looks for
# something better.
#
# How fast is such a simulation? FlexFlow's authors say that theirs is a thousand times faster than executing the plan.
# Here forward and backward of VGG-16's convolutions are executed, for one image, on this machine's processor:

# %% demo=true jupyter={"source_hidden": true}
# %%needs simulate
convolutions = import_torchvision().models.vgg16().features
picture = torch.rand(1, 3, 224, 224)


def least_seconds(call: Callable[[], object], times: int) -> float:
    """The least wall time of several calls."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


executed = least_seconds(lambda: convolutions(picture).sum().backward(), 1)
step_tasks = vgg_step.tasks(spread)
simulated = least_seconds(lambda: simulate(step_tasks, vgg_step.edges, vgg_step.devices), 9)
print(
    f"executed in {executed:.2f} s, its {len(step_tasks)} tasks simulated in {1e3 * simulated:.2f} ms: ",
    end="",
)
print(f"{executed / simulated:,.0f} times faster")

# %% demo=true jupyter={"source_hidden": true}
# %%holds simulate
assert executed / simulated > 200
guesses.measured(times_faster_to_simulate_than_to_execute=round(executed / simulated))

# %% [markdown]
# That is hundreds of times at the least, on most machines thousands; and the simulated step has four GPUs and a batch
# of 64.
#
# A search changes a plan in one place and asks again. FlexFlow's **delta simulation** begins with the last plan's
# timeline, and computes only what moves: a task that takes longer pushes those behind it, until nothing moves any more.
# The result has to be *exactly* that of the whole simulation, queues included.


# %% exercise="resimulate" points=16
def resimulate(timeline: Timeline, changes: dict[int, Task]) -> set[int]:
    """Bring a timeline up to date after some of its tasks have changed, and say which have moved.

    timeline: as from simulate. It is changed in place, to what simulate would make of changed tasks.
    changes: for some tasks, perhaps none, what stands there from now on, perhaps on another device.

    Returns the numbers of the tasks whose `ready` or `end` is another than before the call.

    If n tasks change or move, at most 4 n + 4 different ones are read from `timeline.tasks`; to go
    through the list, or to copy it, reads all of it.
    """
    ### BEGIN SOLUTION
    tasks, ready, end = timeline.tasks, timeline.ready, timeline.end
    old: dict[int, tuple[float, float]] = {}
    waiting: list[tuple[float, int]] = []
    queued: set[int] = set()

    def moment(number: int) -> tuple[float, int]:
        return ready[number], number

    def arrival(number: int) -> float:
        return max((end[each] for each in timeline.before[number]), default=0.0)

    def may_move(numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in queued:
                queued.add(number)
                heapq.heappush(waiting, moment(number))

    def leave(number: int, queue: list[int]) -> None:
        where = bisect.bisect_left(queue, moment(number), key=moment)
        del queue[where]
        may_move(queue[where : where + 1])

    def enter(number: int, queue: list[int]) -> None:
        where = bisect.bisect_left(queue, moment(number), key=moment)
        may_move(queue[where : where + 1])
        queue.insert(where, number)

    for number, task in changes.items():
        was, tasks[number] = tasks[number], task
        if task.device != was.device:
            leave(number, timeline.queues[was.device])
            enter(number, timeline.queues[task.device])
        may_move([number])

    while waiting:
        _, number = heapq.heappop(waiting)
        queued.remove(number)
        old.setdefault(number, (ready[number], end[number]))
        task = tasks[number]
        queue = timeline.queues[task.device]
        arrived = arrival(number)
        if arrived != ready[number]:
            leave(number, queue)
            ready[number] = arrived
            enter(number, queue)
        where = bisect.bisect_left(queue, moment(number), key=moment)
        begin = max(arrived, end[queue[where - 1]]) if where else arrived
        if begin + task.seconds != end[number]:
            end[number] = begin + task.seconds
            may_move(each for each in timeline.after[number] if arrival(each) != ready[each])
            may_move(queue[where + 1 : where + 2])
    return {number for number, times in old.items() if times != (ready[number], end[number])}
    ### END SOLUTION


# %% [markdown]
# How much is gained depends on what a change moves. Two models: VGG-16, a chain of operators on all four GPUs; and 64
# branches, each on a GPU of its own, that meet in one last operator. In both a random operator is moved, nine times.
# (`Watched` keeps which tasks were read.)

# %% demo=true jupyter={"source_hidden": true}
# %%needs simulate resimulate
wide_step = PlacedStep(branches(64), Machine(64, 8, GPU_SPEED, 10e9, 10e9 / 8), parts=4)
each_its_own = tuple((number // 4 % 64,) * 4 for number in range(len(wide_step.operators)))


def whole_and_delta(step: PlacedStep, plan: Places, tries: int = 9) -> dict[str, float]:
    """Of random changes of one operator: shares of tasks read and moved, and how much faster delta is."""
    generator, found = random.Random(0), []
    timeline = simulate(step.tasks(plan), step.edges, step.devices)
    for _ in range(tries):
        number, device = generator.randrange(len(plan)), generator.randrange(step.machine.devices)
        changed = (*plan[:number], (device,) * step.parts, *plan[number + 1 :])
        timeline.tasks = watched = Watched(timeline.tasks)
        moved = resimulate(timeline, step.changes(plan, changed))
        read = len(watched.read)
        back, tasks = step.changes(changed, plan), step.tasks(changed)
        delta = least_seconds(partial(resimulate, timeline, back), 1)
        resimulate(timeline, step.changes(plan, changed))
        whole = least_seconds(partial(simulate, tasks, step.edges, step.devices), 2)
        assert timeline.end == simulate(tasks, step.edges, step.devices).end
        resimulate(timeline, back)
        found.append((read / len(tasks), len(moved) / len(tasks), whole / delta))
    return dict(
        zip(("read", "moved", "faster"), map(statistics.median, zip(*found, strict=True)), strict=True)
    )


gains = {
    "VGG-16, a chain": whole_and_delta(vgg_step, spread),
    "64 branches": whole_and_delta(wide_step, each_its_own),
}
for name, gain in gains.items():
    print(
        f"{name}: {gain['moved']:.0%} of the tasks move, {gain['read']:.0%} are read; "
        f"delta is {gain['faster']:.1f} times as fast"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds simulate resimulate
chained, branched = gains.values()
assert chained["moved"] > 0.5
assert chained["faster"] < 1
assert branched["moved"] < 0.05
assert branched["faster"] > 3

# %% [markdown]
# In a chain nearly everything waits for what has changed: most tasks move, and to move a task costs more than to
# simulate it afresh, so the whole simulation is faster. Where branches have time to spare, only the branch moves, and
# delta is several times as fast. Both give exactly the same times; the cell asserts it.

# %% [markdown]
# ## 7 A walk through plans
#
# A simulated plan takes milliseconds. If each of 20 operators may be on any of four devices, there are $4^{20}$ plans,
# about $10^{12}$, and a year has $3 \cdot 10^{10}$ milliseconds. Sections 3 and 5 found the best plan since costs there
# were sums, of which one part can be settled without the others. The time of a simulated step is no such sum. What
# remains is to look at some plans only.
#
# Start somewhere, change a random thing, and keep the change if the plan gets better. This is hill climbing. It ends
# where no *single* change helps. FlexFlow therefore sometimes accepts a change for the worse, less often the worse it
# is. So in each step of its walk a plan is proposed, and the walk goes there, or stays where it is. How often does it
# go to a worse plan? In the long run the walk is to be at a plan of cost $c$ in proportion to $e^{-\beta c}$. With a
# large $\beta$ it stays near the best plans; with $\beta = 0$ it visits all alike. Where the next plan depends on the
# present one and on chance alone, such a walk is a **Markov chain**. Metropolis et al. (1953) say how to get those
# proportions, if plan B is proposed at A as often as A is at B.


# %% exercise="search" points=10
def search(
    plan: AnyPlan,
    propose: Callable[[AnyPlan, random.Random], AnyPlan],
    cost: Callable[[AnyPlan], float],
    steps: int,
    seed: int,
    beta: float = 1.0,
) -> tuple[AnyPlan, float]:
    """Walk through plans, and return the best one seen, with its cost; of equal ones the first.

    plan: where it begins. propose(plan, generator): a plan that differs a little.
    cost(plan): from 0 to 1e12, or math.inf. It takes long: call it once for the first plan, and once
        for each proposed.
    seed: of the one random.Random from which all chance comes.

    The walk always goes where the cost is no higher. In the long run it is at plans in the proportions
    above.
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
# Seven plans in a row, and each step proposes a neighbour. The way from plan 1 to the best one leads over a hill. (At
# the ends, a neighbour that does not exist is proposed as staying, so from A to B is as likely as from B to A.) How
# often is a walk of 20,000 steps at each plan? A dot shows what is expected in the long run: $e^{-\beta c}$, divided by
# the sum over all seven.


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
visits_figure(hill, shares)

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
# With $\beta = 3$ the walk is at plans 1 and 5 nearly all of the time, and yet it has crossed the hill. Of 200 walks of
# 60 steps with $\beta = 1$ more than half have seen plan 5; with $\beta = 1000$, which amounts to hill climbing, none
# has. So $\beta$ has to fit the differences between costs. A search for a plan first divides by the cost of a good
# plan, so that $\beta$ needs no unit.

# %% [markdown]
# Now VGG-16 on the two nodes of section 6. A proposal picks an operator and one of seven places for it: all four GPUs,
# the two of a node, or one. The cost of a plan is its simulated step, divided by that of data parallelism. Beside each
# walk, as many plans are drawn at random.

# %% demo=true
# %%needs simulate search
PLACES = [(0, 1, 2, 3), (0, 0, 1, 1), (2, 2, 3, 3), *((gpu,) * 4 for gpu in range(4))]


def beside_data_parallelism(plan: Places) -> float:
    """A plan's step, in steps of data parallelism."""
    return (
        simulate(vgg_step.tasks(plan), vgg_step.edges, vgg_step.devices).seconds
        / step_seconds["data parallelism on four"]
    )


def elsewhere(plan: Places, generator: random.Random) -> Places:
    """The plan with one operator in another place, or perhaps in the same."""
    number = generator.randrange(len(plan))
    return (*plan[:number], generator.choice(PLACES), *plan[number + 1 :])


def walk(seed: int, seen: list[float]) -> tuple[Places, float]:
    """What a walk of 700 steps finds; `seen` receives the costs of the plans that it looks at."""

    def cost(plan: Places) -> float:
        seen.append(beside_data_parallelism(plan))
        return seen[-1]

    return search(spread, elsewhere, cost, 700, seed, beta=100.0)


looked_at: list[list[float]] = [[], [], []]
walks = [walk(seed, seen) for seed, seen in enumerate(looked_at)]
at_random = [
    [beside_data_parallelism(tuple(generator.choices(PLACES, k=len(spread)))) for _ in range(701)]
    for generator in map(random.Random, range(3))
]
found = min(walks, key=lambda pair: pair[1])[0]
millions = [operator.weight_bytes / 4e6 for operator in vgg_step.operators]
search_figure(looked_at, at_random, found, millions, devices=4)

# %% demo=true jupyter={"source_hidden": true}
# %%holds simulate search
assert all(cost < 0.9 * min(drawn) for (_, cost), drawn in zip(walks, at_random, strict=True))
assert max(cost for _, cost in walks) < 0.5
assert walks[0] == walk(0, [])
assert all(len({gpu // 2 for gpu in where}) == 1 for where in found[13:15])
assert sum(len(set(where)) == 4 for where in found[:13]) >= 11
assert 0.85 < sum(op.weight_bytes for op in vgg_step.operators[13:15]) / (4 * 138_357_544) < 0.9
guesses.measured(percent_of_the_time_that_the_walk_leaves=100 * min(cost for _, cost in walks))

# %% [markdown]
# A step takes less than half as long as with data parallelism. All three walks end near there, and the best of as many
# random plans are far behind. In the plan found nearly all convolutions are on all GPUs. The two large linear layers,
# which have nearly nine tenths of all weights, are within one node, so that their gradients do not cross the slow
# network. PipeDream's planner found much the same in section 5.

# %% [markdown]
# ## 8 A model as a graph
#
# So far somebody wrote down what there was to compute. A planner should read it from the model. PyTorch has two tools
# for this. `torch.export` turns a model into PyTorch's basic operators, with fixed shapes. `torch.fx` runs the model's
# Python code on placeholders and notes what is called; that is the one used here. `trace` does so for each piece of a
# model, and adds an einsum to each call, from which the rules of section 1 say how it can be shared. A linear layer's
# bias becomes an addition of its own: if ranks share the contracted letter, each has a part of the sum, and a bias that
# each added would count several times.

# %% demo=true
config = TransformerConfig(layers=2, width=512, heads=8, vocabulary=4096, context=256, tied=False)
with torch.device("meta"):
    tokens = torch.empty(32, 256, dtype=torch.int64)
    transformer = Model(Transformer(config).pieces, tokens, tokens, next_token_loss)
graph = transformer.graph(samples=4)
for operator in graph.of_piece(1)[-9:]:
    print(f"{operator.name:14} {operator.einsum.spec:14} of {', '.join(operator.operands)}")

# %% demo=true jupyter={"source_hidden": true}
assert len(graph.of_piece(1)) == 34
assert [graph[name].einsum.spec for name in ("1.linear_4", "1.gelu", "1.linear_5")] == [
    "abi,oi->abo",
    "abc->abc",
    "abi,oi->abo",
]
assert all(each.einsum.sizes["d"] == 1 for each in graph.of_piece(1) if each.kind == "softmax")

# %% [markdown]
# These are the last nine of a block's 34 operators, its MLP. Each operator names its letters anew, but an edge ties
# letters together: the columns `o` that the first layer makes are the `i` over which the second one sums. Followed
# through the whole model, such ties put the letters into classes. (A letter that must stay whole, such as the row of a
# softmax, belongs to none.)

# %% demo=true
for name, where in dimensions(graph).items():
    operator, letter = where[0]
    if len(where) > 4:
        print(f"{name:15} length {graph[operator].einsum.sizes[letter]:4}, in {len(where)} places")

# %% demo=true jupyter={"source_hidden": true}
classes = {name: where for name, where in dimensions(graph).items() if len(where) > 4}
lengths = [graph[where[0][0]].einsum.sizes[where[0][1]] for where in classes.values()]
assert lengths == [4, 256, 512, 512, 64, 64, 2048]
assert ("2.matmul", "b") in classes["1.linear.o"]
assert ("2.linear_5", "i") in classes["1.linear_4.o"]

# %% [markdown]
# The classes are the dimensions that people name: samples, tokens, the width of the model, heads (their columns, 8
# times 64), the numbers of one head (of queries and keys, which are multiplied, and of values), and the units inside
# the MLP. Blocks that are alike share them. In Mesh-TensorFlow (unit 06) the programmer names these dimensions, and a
# layout says which of them an axis of the mesh shares. `split_along` makes such a layout: each operator shares the
# first dimension of a list that it has. With heads and units inside, that is Megatron's plan:

# %% demo=true
megatron = split_along(graph, ["1.linear.o", "1.linear_4.o"], ranks=8)
for name in ("1.linear", "1.softmax", "1.linear_3", "1.linear_4", "1.gelu", "1.linear_5"):
    print(f"{name:11} {graph[name].einsum.spec:12} shares {megatron[name]}")

# %% demo=true jupyter={"source_hidden": true}
shared = {
    name: megatron[f"1.{name}"] for name in ("linear", "softmax", "linear_3", "linear_4", "gelu", "linear_5")
}
assert shared == {
    "linear": "o",
    "softmax": "b",
    "linear_3": "i",
    "linear_4": "o",
    "gelu": "c",
    "linear_5": "i",
}
assert not {"1.layer_norm", "0.embedding"} & set(megatron)

# %% [markdown]
# ## 9 Plans that run
#
# A plan is data:
#
# | Field of `ParallelPlan` | What it says |
# |---|---|
# | `cuts` | for each stage of the pipeline the first of its pieces: `(0, 3)` are two stages |
# | `data` | replicas of each stage, which share the samples of each micro-batch |
# | `tensor` | ranks that share the operators of a replica |
# | `micro_batches` | how many a step has |
# | `split` | operator → the letter that the `tensor` ranks share; an operator that is not there is computed whole by each |
#
# So the ranks are a mesh (stages, data, tensor), the last axis innermost. What enters and leaves a stage is whole along
# the last axis. A step takes forward and backward of all micro-batches, by PyTorch's own 1F1B, and in the end each
# gradient is the mean over all samples.
#
# `PlannedRank` carries out a plan. Each rank keeps its parts of its stage's parameters. When it comes to an operator,
# it moves the operands to the layout that the operator's letter asks for, by the collectives of section 2; in backward
# the gradient goes the same way back. Operators that want the same tensor in the same layout share one move. Nothing in
# it knows attention or MLPs:


# %% demo=true
def gradients_of(
    graph: Graph, plan: ParallelPlan, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> dict[str, tuple[Tensor, int | None]]:
    """A step of a plan: this rank's gradients, and along which dim each is a part, if it is one."""
    rank = PlannedRank(graph, plan, parameters, next_token_loss)
    actions = torchs_1f1b(rank.stage, len(plan.cuts), plan.micro_batches)
    rank.step(actions, inputs.chunk(plan.micro_batches), targets.chunk(plan.micro_batches))
    found = {}
    for name, parameter in rank.pieces.named_parts():
        lies = rank.pieces.layouts[name].value
        found[name] = parameter.grad, lies.dim if isinstance(lies, Shard) and plan.tensor > 1 else None
    return found


def off_from_one_rank(plan: ParallelPlan, model: Transformer, engine: str) -> float:
    """By how much any gradient of a plan differs from that of the model on one rank, at most."""
    inputs, targets = (torch.randint(64, (8, 8)) for _ in range(2))
    model.zero_grad()
    next_token_loss(model(inputs), targets).backward()
    parameters = parameters_of(model.pieces)
    graph = trace(model.pieces, inputs[: 8 // (plan.data * plan.micro_batches)])
    run = launch(gradients_of, graph, plan, parameters, inputs, targets, ranks=plan.ranks, on=engine)
    worst = 0.0
    for rank, found in enumerate(run.results):
        for name, (gradient, dim) in found.items():
            whole = parameters[name].grad
            part = whole if dim is None else whole.chunk(plan.tensor, dim)[plan.place(rank)[2]]
            worst = max(worst, (gradient - part).abs().max().item())
    return worst


def any_letters(graph: Graph, ranks: int, generator: random.Random) -> dict[str, str]:
    """For each operator a letter that so many ranks can share, or none, at random."""
    split = {}
    for operator in graph.operators:
        sizes = operator.einsum.sizes
        choice = generator.choice(
            [None] + [each for each in sizes if sizes[each] > 1 and sizes[each] % ranks == 0]
        )
        if choice:
            split[operator.name] = choice
    return split


torch.manual_seed(0)
small = Transformer(TransformerConfig(layers=2, width=16, heads=4, vocabulary=64, context=8, tied=False))
example = trace(small.pieces, torch.zeros(2, 8, dtype=torch.int64))
off = []
for seed in range(4):
    split = any_letters(example, 2, random.Random(seed))
    off.append(off_from_one_rank(ParallelPlan((0, 2), 2, 2, 2, split), small, "simulated"))
off.append(off_from_one_rank(ParallelPlan((0, 2), 1, 2, 4, split), small, "processes"))
print("off by at most", *(f"{each:.0e}" for each in off))

# %% demo=true jupyter={"source_hidden": true}
assert max(off) < 1e-6

# %% [markdown]
# Four plans on eight simulated ranks, with letters drawn at random, and the last of them on four real processes: all
# compute the gradients of one rank. So a search may propose anything; a plan can be slow, but not wrong.
#
# `Planner.predict` says how slow, without running it. Each stage is run once, alone, on tensors without data: its
# computing is counted by the roofline, and its collectives are written down. Then the schedule is gone through with one
# rank for each stage, and collectives and messages take the time that the cluster's links need. FlexFlow and Alpa work
# like that too, with profiles of operators from a real machine. Here predictions stand beside what is measured when the
# plan is carried out on the simulated cluster:

# %% demo=true
cluster = presets.h100_pod(nodes=1)
planner = Planner(transformer, cluster, torchs_1f1b)
tried = {
    "data": ParallelPlan((0,), 8, 1, 1),
    "stages and data": ParallelPlan((0, 1, 2, 3), 2, 1, 4),
    "operators": ParallelPlan((0,), 1, 8, 2, megatron),
    "stages and operators": ParallelPlan((0, 2), 1, 4, 4, megatron),
    "all three": ParallelPlan((0, 2), 2, 2, 4, megatron),
}
measured = {}
for name, each in tried.items():
    run = execute(transformer, cluster, each, torchs_1f1b)
    measured[name] = planner.predict(each), seconds_of_step(run), run
    print(
        f"{name:21} predicted {measured[name][0].seconds * 1e3:5.2f} ms, "
        f"carried out {measured[name][1] * 1e3:5.2f} ms"
    )

# %% demo=true jupyter={"source_hidden": true}
for name, each in tried.items():
    step, seconds, run = measured[name]
    assert abs(step.seconds / seconds - 1) < 0.05
    begin = min(event.start for event in run.events if event.op == "step")
    for rank in range(each.ranks):
        own = [event for event in run.events if event.rank == rank and event.start >= begin]
        calls = Counter(
            (event.op, event.nbytes) for event in own if event.kind == "collective" and event.nbytes
        )
        planned = Counter()
        for (_, operation, nbytes), times in step.calls[each.place(rank)[0]].items():
            planned[operation, nbytes] += times
        assert calls == planned

# %% [markdown]
# All five are right to 5 %, and each rank made the very collectives that were planned, as the folded cell checks.
# `predict` also says how full the fullest rank of each stage is: four numbers for each parameter (itself, its gradient,
# two of Adam's), and the activations of as many micro-batches as wait there at once.

# %% [markdown]
# ## 10 Between operators, within operators
#
# Alpa sorts all parallelism into two kinds. **Intra-operator**: ranks share an operator, as in data, tensor and expert
# parallelism. **Inter-operator**: different ranks have different operators, as in a pipeline. The rule of thumb is that
# inter-operator parallelism communicates less, and leaves devices idle more. Here is the transformer on eight GCDs of a
# LUMI-G node, with 8 micro-batches:


# %% demo=true
def sent(plan: ParallelPlan, step: Prediction) -> float:
    """Bytes that a rank sends in a step; the mean over stages."""
    axes = {"data": plan.data, "tensor": plan.tensor}
    collectives = sum(
        times * traffic_of(operation, nbytes, axes[axis]).sent
        for calls in step.calls
        for (axis, operation, nbytes), times in calls.items()
    )
    return (collectives + sum(step.messages)) / len(step.calls)


wider = TransformerConfig(layers=6, width=1024, heads=8, vocabulary=4096, context=256, tied=False)
with torch.device("meta"):
    wide = Model(Transformer(wider).pieces, tokens, tokens, next_token_loss)
lumi = Planner(wide, presets.lumi_g(nodes=1), torchs_1f1b)
inside = [name for name in dimensions(wide.graph(4)) if name in ("1.linear.o", "1.linear_4.o")]
between = {}
for stages in (1, 2, 4, 8):
    cuts = tuple(8 * stage // stages for stage in range(stages))
    each = ParallelPlan(cuts, 1, 8 // stages, 8, split_along(wide.graph(4), inside, 8 // stages))
    between[stages] = lumi.predict(each), sent(each, lumi.predict(each))
    step, nbytes = between[stages]
    print(
        f"stages x ranks of each: {stages} x {8 // stages}, {nbytes / 2**20:5.0f} MiB sent by a rank, "
        f"idle {step.idle:4.0%} of the time, a step takes {step.seconds * 1e3:5.1f} ms"
    )

# %% demo=true jupyter={"source_hidden": true}
traffic = [nbytes for _, nbytes in between.values()]
idle = [step.idle for step, _ in between.values()]
assert traffic == sorted(traffic, reverse=True)
assert idle == sorted(idle)
assert min(between, key=lambda stages: between[stages][0].seconds) in (2, 4)
assert idle[-1] > 0.5
# What stages alone do while they are not idle is about what there is to compute.
assert (1 - idle[-1]) * between[8][0].seconds < 0.5 * between[1][0].seconds
in_mib, in_percent = [each / 2**20 for each in traffic], [100 * each for each in idle]
figure = line_figure(
    {"8 ranks": (in_mib, in_percent)},
    x="sent by a rank in a step (MiB)",
    y="time idle (%)",
    alt="Four points: with 1, 2, 4 and 8 stages a rank sends less and less, and is idle more and more.",
)
for stages, *point in zip(between, in_mib, in_percent, strict=True):
    words = f"{stages} stage{'s' * (stages > 1)}"
    figure.axes[0].annotate(words, point, (4, 6), textcoords="offset points")
figure.axes[0].margins(0.12)
figure

# %% [markdown]
# Both halves of the rule hold, and neither end is the best: with stages alone most of the time is idle, with split
# operators alone most is communication. So Alpa plans in two levels, as in sections 3 and 5.
#
# Zheng et al. (2022, section 8.1) measured a mixture of experts on up to 8 nodes of 8 GPUs, with a slow network between
# them. Intra-operator parallelism alone is as fast as Alpa within a node and falls behind on several. Inter-operator
# parallelism alone suffers from uneven stages and idle time. Here is a small model for the same question, on nodes with
# four GPUs and one network card, as in Frontera's rtx queue. Each expert gets weighted means of tokens instead of some
# of them, so that the graph is fixed (J. Puigcerver et al., ICLR 2024). There are as many experts as GPUs:


# %% demo=true
class SoftExperts(nn.Module):
    """x [B, T, D] + what E experts make of it, each of C slots that are weighted means of the tokens."""

    def __init__(self, width: int, inner: int, experts: int, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.gate = nn.Parameter(torch.empty(experts, slots, width))
        self.up, self.down = (
            nn.Parameter(torch.empty(experts, *shape)) for shape in ((width, inner), (inner, width))
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        logits = torch.einsum("btd,ecd->btec", x_BTD, self.gate)
        slots = torch.einsum("btec,btd->becd", logits.softmax(1), x_BTD)
        inner = functional.gelu(torch.einsum("becd,edf->becf", slots, self.up))
        outer = torch.einsum("becf,efd->becd", inner, self.down)
        back = logits.flatten(2).softmax(-1).unflatten(2, (-1, self.slots))
        return x_BTD + torch.einsum("btec,becd->btd", back, outer)


def mixture(devices: int, layers: int = 8) -> Model:
    """Layers of as many experts as devices, and a batch of 64 sequences of 128 tokens."""
    with torch.device("meta"):
        x_BTD = torch.empty(64, 128, 512)
        pieces = [SoftExperts(512, 2048, devices, 256 // devices) for _ in range(layers)]
        return Model(pieces, x_BTD, x_BTD, functional.mse_loss)


def best_of_kind(nodes: int) -> dict[str, float]:
    """Samples a second of the best plan of each kind that the small search below finds."""
    machine = presets.frontera_rtx(nodes)
    model, found = mixture(machine.size), {}
    planner = Planner(model, machine, torchs_1f1b)
    for stages, data in itertools.product((1, 2, 4, 8, 16), repeat=2):
        if machine.size % (stages * data) or stages > len(model.pieces):
            continue
        tensor = machine.size // (stages * data)
        for micro_batches in (1,) if stages == 1 else (2 * stages, 4 * stages):
            if model.samples % (micro_batches * data):
                continue
            graph = model.graph(model.part(data, micro_batches))
            experts = next(name for name in dimensions(graph) if name.endswith("einsum.e"))
            cuts = tuple(len(model.pieces) * stage // stages for stage in range(stages))
            each = ParallelPlan(cuts, data, tensor, micro_batches, split_along(graph, [experts], tensor))
            speed = model.samples / planner.predict(each).seconds
            kinds = ["both"] + ["intra-operator"] * (stages == 1) + ["inter-operator"] * (data == tensor == 1)
            for kind in kinds:
                found[kind] = max(found.get(kind, 0.0), speed)
    return found


speeds = {nodes: best_of_kind(nodes) for nodes in (1, 2, 4)}
for nodes, each in speeds.items():
    print(
        f"{nodes} node{'s' * (nodes > 1)}:",
        ", ".join(f"{kind} {each.get(kind, 0):6,.0f} samples/s" for kind in sorted(each)),
    )

# %% demo=true jupyter={"source_hidden": true}
for each in speeds.values():
    assert each["both"] == max(each.values())
assert "inter-operator" not in speeds[4]
for nodes in (1, 2):
    assert speeds[nodes]["both"] == speeds[nodes]["inter-operator"]
assert 0.85 < speeds[1]["intra-operator"] / speeds[1]["both"] < 0.92
assert all(0.9 < speeds[nodes]["intra-operator"] / speeds[1]["intra-operator"] < 1.0 for nodes in (2, 4))
assert speeds[4]["both"] > 1.5 * speeds[1]["both"]

# %% [markdown]
# As in Alpa's figure, intra-operator parallelism alone gains nothing from more nodes: what an operator's ranks exchange
# has to pass the one network card of a node. Unlike there, stages alone are the best on one node and on two, since all
# layers are equal here. But eight layers make eight stages at most, so on 16 GPUs only both together go on.

# %% [markdown]
# ## 11 Now on nodes
#
# A plan is found on a login node, without any GPU. Write it into a file, and let the job read it.
#
# ```python
# # before the job
# Path("plan.json").write_text(json.dumps(asdict(plan)))
#
# # in each of its tasks
# plan = ParallelPlan(**json.loads(Path("plan.json").read_text()))
# rank = PlannedRank(graph, plan, parameters_of(model.pieces), next_token_loss)
# actions = list(torchs_1f1b(rank.stage, len(plan.cuts), plan.micro_batches))
# for inputs, targets in loader:  # whole micro-batches, on every rank
#     rank.step(actions, inputs, targets)
#     optimizer.step()  # of this rank's parts: rank.pieces.parameters()
# ```
#
# Ranks are numbered node by node, so the last axis, `tensor`, lies within nodes as long as it is no larger than one.
# `launch(gradients_of, ..., on="slurm")` carries out section 9's demonstration on an allocation. The cluster's numbers
# have to be measured there: latency and bandwidth of its links (section 10 of unit 07 fits them), and what a device
# really computes, which is below its peak.

# %% demo=true jupyter={"source_hidden": true}
as_text = json.dumps(asdict(tried["all three"]))
again = ParallelPlan(**json.loads(as_text))
assert planner.predict(again) == measured["all three"][0]

# %% [markdown]
# ## 12 Open task: a plan for a model
#
# Given a model, a cluster and the memory of its devices, find the plan whose step is the fastest. There are too many
# plans to predict them all, and no method is known to be always best. Alpa solves one integer program for each possible
# stage and mesh, and a dynamic program above them. Yours may be simpler.
#
# It is tried with two small tasks, of at most 4 pieces and 8 ranks. Points are for plans that run within the memory;
# for steps no slower than with one kind of parallelism alone (data, stages, or units inside of the MLPs shared); and
# for steps within 10 % and within 3 % of the best plan known.


# %% exercise="plan" points=16
def plan(model: Model, cluster: Cluster, memory: float) -> ParallelPlan:
    """A plan for all ranks of a cluster, whose step is as fast as you can find and fits into memory.

    model: as in section 9. memory: bytes of a device; some plan fits. A plan is rated by
    Planner(model, cluster, torchs_1f1b).predict(plan): `seconds`, and `memory`, of which no stage may
    have more than a device. Each of the two small tasks takes less than five seconds.
    """
    ### BEGIN SOLUTION
    planner, pieces = Planner(model, cluster, torchs_1f1b), len(model.pieces)

    def divisors(number: int) -> list[int]:
        return [each for each in range(1, number + 1) if number % each == 0]

    def seconds(graph: Graph, piece: int, split: dict[str, str], shape: tuple[int, int, int]) -> float:
        counted = planner.count(graph, range(piece, piece + 1), split, shape[2])
        return sum(planner.parts(counted, shape).seconds)

    def ordered(graph: Graph, shape: tuple[int, int, int]) -> list[str]:
        """Dimensions to share: as long as it saves time, one more, the one that saves most."""

        def taken(order: list[str]) -> float:
            split = split_along(graph, order, shape[2])
            return sum(seconds(graph, piece, split, shape) for piece in range(pieces))

        # The samples, the first of them, come in elsewhere.
        order, (_, *names) = [], dimensions(graph)
        while True:
            longer = min(([*order, name] for name in names), key=taken)
            if taken(longer) >= taken(order):
                return order
            order = longer

    def cut(found: ParallelPlan, graph: Graph) -> tuple[float, tuple[int, ...]] | None:
        """What a step takes, about, if the slowest stage is as fast as can be within the memory; and
        its cuts.
        """
        stages, micro_batches = found.shape[0], found.micro_batches
        counted = [
            planner.count(graph, range(each, each + 1), found.split, found.tensor) for each in range(pieces)
        ]
        taken = [seconds(graph, each, found.split, found.shape) for each in range(pieces)]
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for stage in range(stages):
            following: dict[int, tuple[float, tuple[int, ...]]] = {}
            for first, (slowest, cuts) in best.items():
                held = spent = 0.0
                for piece in range(first, pieces):
                    held += 4 * counted[piece].parameters
                    held += min(micro_batches, stages - stage) * counted[piece].kept
                    spent += taken[piece]
                    if held <= memory:
                        way = max(slowest, spent), (*cuts, first)
                        following[piece + 1] = min(following.get(piece + 1, way), way)
            best = following
        if pieces not in best:
            return None
        slowest, cuts = best[pieces]
        parts = [counted[first:end] for first, end in itertools.pairwise([*cuts, pieces])]
        added = max(sum(each.parameters for each in part) for part in parts)
        adding = planner.network(found.shape).call("all_reduce", added, 1)
        return sum(taken) + (micro_batches - 1) * slowest + adding, cuts

    def candidates() -> Iterator[tuple[float, ParallelPlan]]:
        orders: dict[int, list[list[str]]] = {1: [[]]}
        for stages, data in itertools.product(divisors(cluster.size), repeat=2):
            if cluster.size % (stages * data) or stages > pieces:
                continue
            tensor = cluster.size // (stages * data)
            for micro_batches in divisors(model.samples):
                if micro_batches > 4 * stages or model.samples % (micro_batches * data):
                    continue
                graph = model.graph(model.part(data, micro_batches))
                if tensor not in orders:
                    order, samples = ordered(graph, (stages, data, tensor)), next(iter(dimensions(graph)))
                    orders[tensor] = [order, [*order, samples]]
                for order in orders[tensor]:
                    even = tuple(range(stages))
                    rough = ParallelPlan(even, data, tensor, micro_batches, split_along(graph, order, tensor))
                    if found := cut(rough, graph):
                        yield found[0], replace(rough, cuts=found[1])

    def near(found: ParallelPlan) -> Iterator[ParallelPlan]:
        """The plan, and those with one cut a piece earlier or later."""
        yield found
        for number, step in itertools.product(range(1, len(found.cuts)), (-1, 1)):
            cuts = [*found.cuts]
            cuts[number] += step
            if cuts == sorted({*cuts, 0}) and cuts[-1] < pieces:
                yield replace(found, cuts=tuple(cuts))

    def predicted(found: ParallelPlan) -> float:
        step = planner.predict(found)
        return step.seconds if max(step.memory) <= memory else math.inf

    likely = [found for _, found in sorted(candidates(), key=lambda each: each[0])]
    good = sorted(likely[:10], key=predicted)
    return min((each for found in good[:3] for each in near(found)), key=predicted)
    ### END SOLUTION


# %% [markdown]
# Two nodes with two devices each, and layers of very different sizes: your plan for devices with enough memory, and
# with little.


# %% demo=true
# %%needs plan
class Residual(nn.Module):
    """x [B, width] + an MLP of it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


two_by_two = Cluster(2, 2, Link(1e-6, 20e9), Link(10e-6, 5e9), flops=1e13, memory_bandwidth=1e12)
with torch.device("meta"):
    rows = torch.empty(2048, 1024)
    uneven = Model(
        [Residual(1024, inner) for inner in (4096, 1024, 1024, 2048, 1024)], rows, rows, functional.mse_loss
    )
planned = {}
for name, bytes_each in (("1 GB", 1e9), ("150 MB", 150e6)):
    each = plan(uneven, two_by_two, bytes_each)
    planned[name] = each, Planner(uneven, two_by_two, torchs_1f1b).predict(each)
    step = planned[name][1]
    print(
        f"{name:>6}: (stages, data, tensor) = {each.shape}, cuts {each.cuts}, "
        f"{each.micro_batches} micro-batches: {step.seconds * 1e3:.1f} ms, {max(step.memory) / 1e6:.0f} MB"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds plan
for name, bytes_each in (("1 GB", 1e9), ("150 MB", 150e6)):
    assert max(planned[name][1].memory) <= bytes_each
assert planned["1 GB"][1].seconds <= 1.1 * planned["150 MB"][1].seconds

# %% [markdown]
# ## Where it comes from
#
# <details><summary>More: the papers</summary>
#
# - Z. Jia, M. Zaharia, A. Aiken, Beyond data and model parallelism for deep neural networks, MLSys 2019
#   (arXiv:1807.05358): FlexFlow, with the simulator of section 6 and a Markov chain over plans.
# - L. Zheng et al., Alpa: automating inter- and intra-operator parallelism for distributed deep learning, OSDI 2022
#   (arXiv:2201.12023): the two levels of this unit.
# - N. Shazeer et al., Mesh-TensorFlow: deep learning for supercomputers, NeurIPS 2018 (arXiv:1811.02084).
# - Y. Xu et al., GSPMD: general and scalable parallelization for ML computation graphs, arXiv:2105.04663, 2021: a
#   person says how a few tensors lie, and the compiler completes the rest. Its layouts are those of section 1.
# - N. Metropolis et al., Equation of state calculations by fast computing machines, Journal of Chemical Physics 21,
#   1953: the walk of section 7.
# - D. Narayanan et al., PipeDream: generalized pipeline parallelism for DNN training, SOSP 2019.
# - X. Miao et al., Galvatron: efficient transformer training over multiple GPUs using automatic parallelism, PVLDB
#   16(3), 2022 (arXiv:2211.13878).
# - J. Puigcerver et al., From sparse to soft mixtures of experts, ICLR 2024.
#
# </details>
#
# ## What goes wrong in practice
#
# - **Costs that nobody has checked.** A search exploits every error of the prices: a change that is priced at nothing,
#   a link that is thought to be nobody else's. Run the plan that was found, and compare.
# - **A solver's tolerances.** To the solver, costs in seconds, far below 1, are equal, and it stops at a plan that is
#   nearly the best. Give it microseconds. To divide by the largest cost is not enough if others are a million times as
#   small: leave out what costs more than a plan that you know, and divide by that plan's cost. Constraints have
#   tolerances, too: add up the bytes of its plan yourself.
# - **Memory that was not counted.** Gradients, the optimizer's states and the activations of all micro-batches that are
#   under way need room, too.
# - **A walk that accepts everything.** With costs in seconds, and $\beta = 1$, every plan is as good as any other.
#   Divide by the cost of a plan that you know.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
