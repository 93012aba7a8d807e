"""Mistakes that people make in unit 13."""

import bisect
import functools
import heapq
import itertools
import math
import random
import time
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import Bounds, LinearConstraint, milp
from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import Strategy
from course_lib.planner.timelines import Task, Timeline
from course_lib.runtime.communication.costs import seconds_of
from tests.answers import solved, wrong
from tests.planning import Search, inner_first, shapes_of

# ------------------------------------------------------------------------------------------------ strategies


def _cuts(op, mesh, parts_of=prod, without=Partial, letters=None, trivial=False):
    """All strategies, with one thing changed.

    parts_of: lengths of the axes along which a letter is cut -> into how many parts its length has to divide.
    without: what the result is along an axis whose letter it lacks. letters: those that may be cut.
    trivial: whether axes of length 1 are cut, too.
    """
    letters = sorted(set("".join(op.operands))) if letters is None else letters

    def layout(tensor, cut, missing):
        return tuple(
            Replicate() if each is None else Shard(tensor.index(each)) if each in tensor else missing()
            for each in cut
        )

    found = []
    for cut in itertools.product(*([None, *letters] if n > 1 or trivial else [None] for n in mesh)):
        along = {each: [n for n, c in zip(mesh, cut, strict=True) if c == each] for each in letters}
        if all(op.sizes[each] % parts_of(axes) == 0 for each, axes in along.items()):
            operands = tuple(layout(each, cut, Replicate) for each in op.operands)
            found.append(Strategy(operands, layout(op.result, cut, without)))
    return found


@wrong("op_strategies", fails="along one axis")
def the_result_is_never_a_sum(op, mesh):
    """Takes each rank's summand for the whole result."""
    return _cuts(op, mesh, without=Replicate)


@wrong("op_strategies", fails="along one axis")
def cuts_letters_of_the_result_only(op, mesh):
    """Forgets that what is summed over can be cut."""
    return _cuts(op, mesh, letters=sorted(op.result))


@wrong("op_strategies", fails="what divides")
def cuts_what_does_not_divide(op, mesh):
    """Parts need not be equal, it thinks."""
    return _cuts(op, mesh, parts_of=lambda axes: 1)


@wrong("op_strategies", fails="what divides")
def at_least_one_for_each_rank(op, mesh):
    """Long enough is not divisible."""
    return [
        each
        for each in _cuts(op, mesh, parts_of=lambda axes: 1)
        if all(
            op.sizes[tensor[place.dim]] >= length
            for tensor, layout in zip(op.operands, each.operands, strict=True)
            for place, length in zip(layout, mesh, strict=True)
            if isinstance(place, Shard)
        )
    ]


@wrong("op_strategies", fails="what divides")
def each_axis_by_itself(op, mesh):
    """6 divides by 2 and by 2, but not by both."""
    return _cuts(op, mesh, parts_of=lambda axes: max(axes, default=1))


@wrong("op_strategies", fails="along several axes")
def a_letter_along_one_axis_only(op, mesh):
    """As Mesh-TensorFlow's layouts, in which a letter has one axis."""
    return _cuts(op, mesh, parts_of=lambda axes: prod(axes) if len(axes) < 2 else 10**9)


@wrong("op_strategies", fails="axes with nothing to cut")
def cuts_in_one_part(op, mesh):
    """Along an axis of length 1 each letter divides."""
    return _cuts(op, mesh, trivial=True)


# -------------------------------------------------------------------------------------------- changed layouts


def _kinds(source, target):
    """Such as "SR"; "same" where nothing is to be done."""
    return "same" if source == target else type(source).__name__[0] + type(target).__name__[0]


def _move(x, source, target, group=None, **changed):
    """The solution, but for the kinds of change that are given: kind -> function of the same arguments."""
    instead = changed.get(_kinds(source, target), solved("13_automatic")["reshard"])
    return instead(x, source, target, group)


def _all_of(x, source, group):
    """The whole tensor of a cut one, as it should be."""
    return solved("13_automatic")["reshard"](x, source, Replicate(), group)


def _own_part(x, target, group):
    return x.tensor_split(dist.get_world_size(group), target.dim)[dist.get_rank(group)].clone()


@wrong("reshard", fails="whole on every rank")
def joins_along_dimension_0(x, source, target, group=None):
    """Leaves the parts where the all-gather has put them, and calls that the tensor."""

    def joined(x, source, target, group):
        whole = _all_of(x, Shard(0), group)
        return whole.reshape(
            [n * dist.get_world_size(group) if d == source.dim else n for d, n in enumerate(x.shape)]
        )

    return _move(x, source, target, group, SR=joined)


@wrong("reshard", fails="whole on every rank")
def a_summand_for_the_sum(x, source, target, group=None):
    """What is a sum is taken as it lies here."""
    return _move(x, source, target, group, PR=lambda x, *_: x.clone())


@wrong("reshard", fails="any numbers")
def sends_floats(x, source, target, group=None):
    """Sends numbers as float64, which has not all digits of an int64."""

    def exchanged(x, source, target, group):
        return _move(x if x.is_complex() else x.double(), source, target, group).to(x.dtype)

    return _move(x, source, target, group, SS=exchanged)


@wrong("reshard", fails="cut, from a sum or from another cut")
def cuts_a_summand(x, source, target, group=None):
    """Takes its part of its own summand."""
    return _move(x, source, target, group, PS=lambda x, source, target, group: _own_part(x, target, group))


@wrong("reshard", fails="without a word")
def everybody_keeps_all(x, source, target, group=None):
    """Every rank keeps the whole as its summand: the sum is p times too large."""
    return _move(x, source, target, group, RP=lambda x, *_: x.clone())


@wrong("reshard", fails="any numbers")
def a_share_for_each(x, source, target, group=None):
    """Divides by the ranks: right for even numbers on two of them, not for integers."""
    return _move(x, source, target, group, RP=lambda x, s, t, g: (x / dist.get_world_size(g)).to(x.dtype))


@wrong("reshard", fails="in a group")
def place_in_the_world(x, source, target, group=None):
    """Takes the part of its rank among all."""

    def part(x, source, target, group):
        parts = x.tensor_split(dist.get_world_size(group), target.dim)
        return parts[dist.get_rank() % len(parts)].clone()

    return _move(x, source, target, group, RS=part)


@wrong("reshard", fails="in a group")
def adds_up_over_everybody(x, source, target, group=None):
    """Forgets the group where a sum becomes whole."""
    return _move(x, source, target, group, PR=lambda x, s, t, _: _move(x, s, t))


@wrong("reshard", fails="what is sent")
def adds_up_all_of_it(x, source, target, group=None):
    """An all-reduce where a reduce-scatter does."""

    def added(x, source, target, group):
        return _own_part(_move(x, source, Replicate(), group), target, group)

    return _move(x, source, target, group, PS=added)


@wrong("reshard", fails="what is sent")
def adds_up_in_32_bits(x, source, target, group=None):
    """Sends a sum of 16 bits as one of 32, which is more exact and twice as many bytes."""
    if source == Partial() and x.dtype == torch.bfloat16:
        return _move(x.float(), source, target, group).to(x.dtype)
    return _move(x, source, target, group)


@wrong("reshard", fails="x is left alone")
def a_view_of_x(x, source, target, group=None):
    """Hands back x itself where nothing is to be done."""
    return _move(x, source, target, group, same=lambda x, *_: x)


# ------------------------------------------------------------------------------------------- layouts' prices


def _prices(source, target, nbytes, ranks, link, **changed):
    """What a change costs, with some entries changed: "RS" is from Replicate() to Shard(dim)."""
    n, part = nbytes, nbytes / ranks

    def seconds(call, payload):
        return seconds_of(call, payload, ranks, link)

    table = {
        "SR": seconds("all_gather", part),
        "PR": seconds("all_reduce", n),
        "PS": seconds("reduce_scatter", n),
        "SS": 0.0 if source == target else seconds("all_to_all", part),
        **{name: entry(seconds, n, part) for name, entry in changed.items()},
    }
    kind = "".join(type(each).__name__[0] for each in (source, target))
    return table.get(kind, 0.0)


@wrong("reshard_cost", fails="whole on every rank")
def each_gives_the_whole(*change):
    """Takes an all-gather's payload for what comes out of it."""
    return _prices(*change, SR=lambda seconds, n, part: seconds("all_gather", n))


@wrong("reshard_cost", fails="whole on every rank")
def adds_up_in_two_calls(*change):
    """A reduce, and then a broadcast."""
    return _prices(*change, PR=lambda seconds, n, part: seconds("reduce", n) + seconds("broadcast", n))


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def adds_up_all_and_cuts(*change):
    """An all-reduce, of which each rank keeps a part."""
    return _prices(*change, PS=lambda seconds, n, part: seconds("all_reduce", n))


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def gathers_all_and_cuts(*change):
    """As PyTorch prices an all-to-all: nearly as an all-gather."""
    other = change[0] != change[1]
    return _prices(*change, SS=lambda seconds, n, part: seconds("all_gather", part) if other else 0.0)


@wrong("reshard_cost", fails="without a word")
def hands_out_parts(*change):
    """Scatters what every rank has already."""
    return _prices(*change, RS=lambda seconds, n, part: seconds("scatter", part))


@wrong("reshard_cost", fails="without a word")
def never_becomes_a_sum(*change):
    """As PyTorch, in which a cut tensor cannot become a sum."""
    return _prices(*change, SP=lambda seconds, n, part: math.inf)


# ------------------------------------------------------------------------------------------------------ ways


def _step_price(layout, axis, new, nbytes, mesh, links, cuts=Shard):
    """Seconds of one step. cuts: the kinds of placement by which the bytes are divided."""
    others = [n for k, n in enumerate(mesh) if k != axis and isinstance(layout[k], cuts)]
    return _prices(layout[axis], new, nbytes // prod(others), mesh[axis], links[axis])


def _in_this_order(axes, source, target, nbytes, mesh, links):
    """Each axis straight to its target."""
    seconds, way = 0.0, [source]
    for axis in axes:
        if way[-1][axis] != target[axis]:
            seconds += _step_price(way[-1], axis, target[axis], nbytes, mesh, links)
            way.append((*way[-1][:axis], target[axis], *way[-1][axis + 1 :]))
    return seconds, way


def _in_order(old, new, later):
    """No later axis cuts what goes or comes."""
    return not {old, new} & later


def _shortest(source, target, nbytes, mesh, links, dims, ordered=_in_order, cuts=Shard, most=99):
    """Dijkstra's algorithm. ordered: whether a step is allowed, given the cuts along later axes. most: of
    all steps.
    """
    kinds = [Replicate(), Partial(), *(Shard(dim) for dim in range(dims))]
    count = itertools.count()
    heap, done = [(0.0, next(count), [source])], set()
    while heap:
        seconds, _, way = heapq.heappop(heap)
        here = way[-1]
        if here == target:
            return seconds, way
        if (here, len(way) * (most < 99)) in done or len(way) > most:
            continue
        done.add((here, len(way) * (most < 99)))
        for axis, new in itertools.product(range(len(mesh)), kinds):
            later = {each for each in here[axis + 1 :] if isinstance(each, Shard)}
            if new != here[axis] and ordered(here[axis], new, later):
                price = _step_price(here, axis, new, nbytes, mesh, links, cuts)
                heapq.heappush(
                    heap, (seconds + price, next(count), [*way, (*here[:axis], new, *here[axis + 1 :])])
                )
    return math.inf, []


@wrong("reshard_path", fails="least seconds")
def axis_after_axis(source, target, nbytes, mesh, links, dims):
    """Goes through the axes in their order."""
    return _in_this_order(range(len(mesh)), source, target, nbytes, mesh, links)


@wrong("reshard_path", fails="least seconds")
def the_best_order_of_axes(source, target, nbytes, mesh, links, dims):
    """Tries every order, and never a detour."""
    orders = itertools.permutations(range(len(mesh)))
    return min(
        (_in_this_order(order, source, target, nbytes, mesh, links) for order in orders), key=lambda w: w[0]
    )


@wrong("reshard_path", fails="a way that takes them")
def only_where_it_gets(*asked):
    """Leaves out where it begins."""
    seconds, way = _shortest(*asked)
    return seconds, way[1:] or way


@wrong("reshard_path", fails="a way that takes them")
def from_the_target_back(*asked):
    """The way in the wrong direction."""
    seconds, way = _shortest(*asked)
    return seconds, way[::-1]


@wrong("reshard_path", fails="one dim along several axes")
def any_order_of_cuts(*asked):
    """Joins the first axis of S(0)S(0) as if the parts lay side by side."""
    return _shortest(*asked, ordered=lambda old, new, later: True)


@wrong("reshard_path", fails="one dim along several axes")
def only_what_goes(*asked):
    """Looks at the cut that a step takes away, and not at the one that it brings."""
    return _shortest(*asked, ordered=lambda old, new, later: old not in later)


@wrong("reshard_path", fails="many layouts")
def every_way(source, target, nbytes, mesh, links, dims):
    """Looks at every way without a circle, of which there are too many."""
    if len(mesh) > 2:
        time.sleep(6)
    return _shortest(source, target, nbytes, mesh, links, dims)


@wrong("reshard_path", fails="many layouts")
def four_steps_at_most(*asked):
    """Nobody needs more than four steps, it thinks."""
    return _shortest(*asked, most=4)


@wrong("reshard_path", fails="nothing to do")
def no_way_at_all(*asked):
    """From a layout to itself: an empty list."""
    seconds, way = _shortest(*asked)
    return seconds, way if len(way) > 1 else []


# --------------------------------------------------------------------------------------------------- choices


def _along(node_cost, edge_cost, at_the_end=min, table=lambda each: each):
    """The chain's dynamic program. at_the_end: which strategy of the last. table: what becomes of a table."""
    seconds, origins = list(node_cost[0]), []
    for own, given in zip(node_cost[1:], map(table, edge_cost), strict=True):
        columns = [[a + row[t] for a, row in zip(seconds, given, strict=True)] for t in range(len(own))]
        origins.append([column.index(min(column)) for column in columns])
        seconds = [min(column) + each for column, each in zip(columns, own, strict=True)]
    plan = [seconds.index(at_the_end(seconds))]
    for origin in reversed(origins):
        plan.append(origin[plan[-1]])
    return seconds[plan[0]], plan[::-1]


def _seconds(plan, node_cost, edges, edge_cost):
    own = sum(costs[choice] for costs, choice in zip(node_cost, plan, strict=True))
    return own + sum(t[plan[i]][plan[j]] for (i, j), t in zip(edges, edge_cost, strict=True))


def _neighbours(node_cost):
    return list(itertools.pairwise(range(len(node_cost))))


def _try_all(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Looks at all plans."""
    plans = [
        plan
        for plan in itertools.product(*(range(len(own)) for own in node_cost))
        if capacity is None or sum(own[s] for own, s in zip(memory, plan, strict=True)) <= capacity
    ]
    seconds = [_seconds(plan, node_cost, graph, edge_cost) for plan in plans]
    if not seconds or min(seconds) == math.inf:
        raise ValueError("There is no plan.")
    return min(seconds), list(plans[seconds.index(min(seconds))])


@wrong("best_chain", fails="least seconds")
def the_cheapest_next_step(node_cost, edge_cost):
    """Greedy: for each operator what is cheapest after the last choice."""
    plan = [node_cost[0].index(min(node_cost[0]))]
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        costs = [edge + each for edge, each in zip(table[plan[-1]], own, strict=True)]
        plan.append(costs.index(min(costs)))
    return _seconds(plan, node_cost, _neighbours(node_cost), edge_cost), plan


@wrong("best_chain", fails="least seconds")
def each_by_itself(node_cost, edge_cost):
    """The cheapest strategy of each operator, wherever the tensors lie."""
    plan = [own.index(min(own)) for own in node_cost]
    return _seconds(plan, node_cost, _neighbours(node_cost), edge_cost), plan


@wrong("best_chain", fails="a choice that has them")
def backwards(node_cost, edge_cost):
    """Forgets to turn the way back round."""
    seconds, plan = _along(node_cost, edge_cost)
    return seconds, plan[::-1]


@wrong("best_chain", fails="a choice that has them")
def the_least_of_each_row(node_cost, edge_cost):
    """The right sum; and of each operator the strategy to which the best way so far leads."""
    seconds, plan = list(node_cost[0]), [node_cost[0].index(min(node_cost[0]))]
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        seconds = [
            min(map(sum, zip(seconds, column, strict=True))) + c
            for column, c in zip(zip(*table, strict=True), own, strict=True)
        ]
        plan.append(seconds.index(min(seconds)))
    return min(seconds), plan


@wrong("best_chain", fails="what cannot be done")
def infinity_is_nothing(node_cost, edge_cost):
    """Takes what cannot be done for what costs nothing."""
    return _along(
        node_cost,
        edge_cost,
        table=lambda each: [[c if math.isfinite(c) else 0.0 for c in row] for row in each],
    )


@wrong("best_chain", fails="what cannot be done")
def refuses_infinity(node_cost, edge_cost):
    """Raises where something cannot be done."""
    if math.inf in [c for own in itertools.chain(node_cost, *edge_cost) for c in own]:
        raise ValueError("A cost is infinite.")
    return _along(node_cost, edge_cost)


@wrong("best_chain", fails="long chains")
def all_plans_of_a_chain(node_cost, edge_cost):
    """Looks at all plans, of which there are too many."""
    if len(node_cost) > 20:
        time.sleep(5)
    return _try_all(_neighbours(node_cost), node_cost, edge_cost)


def _program(
    graph, node_cost, edge_cost, memory=None, capacity=None,
    unit=None, upper=None, spare=1.0, tie=(0, 1), gap=0.0, once=False, integers=1,
):  # fmt: skip
    """The integer program, with one thing changed.

    unit: what costs are divided by. upper: the bound of a variable whose cost is infinite, and that cost.
    spare: by what the capacity is multiplied. tie: which ends of an edge its pairs are tied to. gap: how near
    is near enough. once: not again without what is dearer than the plan that was found. integers: whether
    variables have to be 0 or 1.
    """
    place, costs = itertools.count(), []
    nodes = [[next(place) for _ in own] for own in node_cost]
    pairs = [[[next(place) for _ in row] for row in table] for table in edge_cost]
    for own in itertools.chain(node_cost, *edge_cost):
        costs += own
    limit, instead = upper or (0.0, 0.0)
    bounds = [1.0 if math.isfinite(each) else limit for each in costs]
    costs = [each if math.isfinite(each) else instead for each in costs]
    rows, low, high = [], [], []

    def row(weights, least, most):
        rows.append([weights.get(number, 0.0) for number in range(len(costs))])
        low.append(least)
        high.append(most)

    for own in nodes:
        row(dict.fromkeys(own, 1), 1, 1)
    for (i, j), table in zip(graph, pairs, strict=True):
        row({number: 1 for own in table for number in own}, 1, 1)
        if 0 in tie:
            for own, chosen in zip(table, nodes[i], strict=True):
                row({**dict.fromkeys(own, 1), chosen: -1}, 0, 0)
        if 1 in tie:
            for own, chosen in zip(zip(*table, strict=True), nodes[j], strict=True):
                row({**dict.fromkeys(own, 1), chosen: -1}, 0, 0)
    if capacity is not None:
        largest = max(capacity, 1)
        weights = {
            n: m / largest
            for own, sizes in zip(nodes, memory, strict=True)
            for n, m in zip(own, sizes, strict=True)
        }
        row(weights, 0, spare * capacity / largest)
    found = milp(
        [each / (unit or max(costs) or 1.0) for each in costs],
        integrality=integers,
        bounds=Bounds(0, bounds),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"mip_rel_gap": gap},
    )
    if found.x is None:
        raise ValueError(found.message)
    plan = [max(range(len(own)), key=lambda s, own=own: found.x[own[s]]) for own in nodes]
    total = _seconds(plan, node_cost, graph, edge_cost)
    if once or unit or upper or 2 * total >= max(costs):
        return total, plan
    node_cost = [_closed(own, total) for own in node_cost]
    edge_cost = [[_closed(row, total) for row in table] for table in edge_cost]
    return _program(
        graph, node_cost, edge_cost, memory, capacity, None, None, spare, tie, gap, False, integers
    )


def _closed(costs, limit):
    """What is dearer cannot be done."""
    return [each if each <= limit else math.inf for each in costs]


def _right(*problem):
    """What is right elsewhere than in the place of a mistake."""
    return solved("13_automatic")["best_intra"](*problem)


def _any_infinite(node_cost, edge_cost):
    return any(math.isinf(each) for own in (*node_cost, *itertools.chain(*edge_cost)) for each in own)


@wrong("best_intra", fails="least seconds")
def as_if_it_were_a_chain(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Only edges between neighbours count."""
    chain = [
        edge_cost[graph.index((i, i + 1))] if (i, i + 1) in graph else [[0.0] * len(b) for _ in a]
        for i, (a, b) in enumerate(itertools.pairwise(node_cost))
    ]
    _, plan = _along(node_cost, chain)
    return _seconds(plan, node_cost, graph, edge_cost), plan


@wrong("best_intra", fails="several edges")
def one_table_for_a_pair(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A dictionary of edges, in which the last of two between the same operators remains."""
    tables = dict(zip(graph, edge_cost, strict=True))
    return _program(list(tables), node_cost, list(tables.values()), memory, capacity)


@wrong("best_intra", fails="a choice that has them")
def floats_as_choices(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Returns what the solver has, rounded, and not as integers."""
    seconds, plan = _program(graph, node_cost, edge_cost, memory, capacity)
    return seconds, [float(each) for each in plan]


@wrong("best_intra", fails="what cannot be done")
def a_dear_change(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Has a large number for infinity, and returns a plan in any case."""
    if not _any_infinite(node_cost, edge_cost):
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return _program(graph, node_cost, edge_cost, memory, capacity, upper=(1.0, 1e3))


@wrong("best_intra", fails="what cannot be done")
def a_free_change(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Has 0 for infinity."""
    if not _any_infinite(node_cost, edge_cost):
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return _program(graph, node_cost, edge_cost, memory, capacity, upper=(1.0, 0.0))


@wrong("best_intra", fails="in nanoseconds")
def in_seconds(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Gives the solver seconds, as they are."""
    if capacity is not None:
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return _program(graph, node_cost, edge_cost, unit=1.0)


@wrong("best_intra", fails="in nanoseconds")
def divides_by_the_largest(graph, node_cost, edge_cost, memory=None, capacity=None):
    """One dear strategy, which is in no good plan, makes all others alike."""
    if capacity is not None:
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return _program(graph, node_cost, edge_cost, once=True)


@wrong("best_intra", fails="to the byte")
def trusts_the_constraint(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Does not add up the bytes: a plan may have too many by a millionth of the capacity."""
    return _program(graph, node_cost, edge_cost, memory, capacity)


@wrong("best_intra", fails="to the byte")
def a_part_in_a_thousand(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A capacity that is exceeded by a thousandth."""
    return _program(graph, node_cost, edge_cost, memory, capacity, spare=1.001)


@wrong("best_intra", fails="a larger graph")
def a_percent_is_near_enough(graph, node_cost, edge_cost, memory=None, capacity=None):
    """The solver may stop at a plan that is within a percent of its bound."""
    total, plan = _program(graph, node_cost, edge_cost, memory, capacity, gap=1e-2)
    if capacity is not None and sum(own[s] for own, s in zip(memory, plan, strict=True)) > capacity:
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return total, plan


# ---------------------------------------------------------------------------------------------------- search


def metropolis(
    *,
    no_dearer=lambda here, there: there <= here,
    share=lambda here, there, beta: math.exp(-beta * (there - here)),
    of_steps=lambda steps: steps,
    returns=lambda best, last: best,
    makes=random.Random,
    again=False,
):
    """The walk, with something else in one place."""

    def walk(plan, propose, cost, steps, seed, beta=1.0):
        generator = makes(seed)
        here = cost(plan)
        best = plan, here
        for _ in range(of_steps(steps)):
            proposed = propose(plan, generator)
            if again:
                here = cost(plan)
            there = cost(proposed)
            if there < best[1]:
                best = proposed, there
            if no_dearer(here, there) or generator.random() < share(here, there, beta):
                plan, here = proposed, there
        return returns(best, (plan, here))

    return walk


@wrong("search", fails="the best plan seen")
def returns_where_it_ends(*arguments):
    """The last plan of the walk instead of the best."""
    return metropolis(returns=lambda best, last: last)(*arguments)


@wrong("search", fails="the best plan seen")
def one_step_too_few(*arguments):
    """Takes the first plan for a step."""
    return metropolis(of_steps=lambda steps: max(0, steps - 1))(*arguments)


@wrong("search", fails="how often it is where")
def stops_at_what_costs_nothing(plan, propose, cost, steps, seed, beta=1.0):
    """Nothing is cheaper; but the walk has so many steps."""
    generator, here = random.Random(seed), cost(plan)
    best, least = plan, here
    for _ in range(steps):
        if least == 0:
            break
        proposed = propose(plan, generator)
        there = cost(proposed)
        if there < least:
            best, least = proposed, there
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best, least


@wrong("search", fails="never refuses what is no dearer")
def computes_the_power_of_any_gain(*arguments):
    """A gain of a million is a power too large for a float."""
    return metropolis(no_dearer=lambda here, there: False)(*arguments)


@wrong("search", fails="never refuses what is no dearer")
def heat_bath(*arguments):
    """The same proportions in the long run, but it stays half the time when costs are equal."""

    def share(here, there, beta):
        return 1 / (1 + math.exp(min(700.0, beta * (there - here)))) if there > here else 0.5

    return metropolis(no_dearer=lambda here, there: False, share=share)(*arguments)


@wrong("search", fails="how often it is where")
def hill_climbing(*arguments):
    """Never goes where it is dearer."""
    return metropolis(share=lambda here, there, beta: 0.0)(*arguments)


@wrong("search", fails="the same again")
def without_the_seed(*arguments):
    """Another walk at every call."""
    return metropolis(makes=lambda seed: random.Random())(*arguments)


@wrong("search", fails="the same again")
def always_one_seed(*arguments):
    """The same walk, whatever the seed is."""
    return metropolis(makes=lambda seed: random.Random(0))(*arguments)


@wrong("search", fails="each plan priced once")
def prices_where_it_stands(*arguments):
    """Asks for the cost of the present plan in every step."""
    return metropolis(again=True)(*arguments)


# -------------------------------------------------------------------------------------------------- simulate


def neighbours(count, edges):
    """For each task those before it, and those after it."""
    before, after = [[] for _ in range(count)], [[] for _ in range(count)]
    for first, second in edges:
        before[second].append(first)
        after[first].append(second)
    return before, after


def simulated(
    *,
    key=lambda ready, number, found, seconds: (ready, number),
    arrives=max,
    waits=True,
    ready_is=lambda ready, begin: ready,
):
    """The simulation, with something else in one place."""

    def run(tasks, edges, devices):
        before, after = neighbours(len(tasks), edges)
        ready, end, free = [0.0] * len(tasks), [0.0] * len(tasks), [0.0] * devices
        queues = [[] for _ in range(devices)]
        missing = [len(each) for each in before]
        found = itertools.count()
        heap = []

        def put(moment, number):
            rank = key(moment, number, next(found), tasks[number].seconds)
            heapq.heappush(heap, (rank, moment, number))

        for number, each in enumerate(before):
            if not each:
                put(0.0, number)
        while heap:
            _, moment, number = heapq.heappop(heap)
            task = tasks[number]
            begin = max(moment, free[task.device]) if waits else moment
            ready[number] = ready_is(moment, begin)
            end[number] = free[task.device] = begin + task.seconds
            queues[task.device].append(number)
            for later in after[number]:
                missing[later] -= 1
                if missing[later] == 0:
                    put(arrives([end[each] for each in before[later]]), later)
        return Timeline(list(tasks), before, after, ready, end, queues)

    return run


@wrong("simulate", fails="waits for all before it")
def waits_for_the_first(tasks, edges, devices):
    """A task begins when one of those before it has ended."""
    return simulated(arrives=min)(tasks, edges, devices)


@wrong("simulate", fails="waits for all before it")
def adds_up_what_is_before(tasks, edges, devices):
    """As if those before a task ran one after another."""
    return simulated(arrives=sum)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def all_at_once(tasks, edges, devices):
    """A device runs whatever is ready, several tasks together."""
    return simulated(waits=False)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def the_lowest_number_first(tasks, edges, devices):
    """Of the tasks that are ready the one with the lowest number, whenever it became so."""
    return simulated(key=lambda ready, number, found, seconds: number)(tasks, edges, devices)


@wrong("simulate", fails="ready at the same moment")
def ties_by_discovery(tasks, edges, devices):
    """Of those ready at the same moment the one that was found first."""
    return simulated(key=lambda ready, number, found, seconds: (ready, found))(tasks, edges, devices)


@wrong("simulate", fails="ready at the same moment")
def ties_by_length(tasks, edges, devices):
    """Of those ready at the same moment the shorter one: tuples compare what comes next."""
    return simulated(key=lambda ready, number, found, seconds: (ready, seconds, number))(
        tasks, edges, devices
    )


@wrong("simulate", fails="a long chain")
def settles_by_recursion(tasks, edges, devices):
    """Each task that is settled calls for the next one."""
    before, after = neighbours(len(tasks), edges)
    ready, end = [0.0] * len(tasks), [None] * len(tasks)
    queues = [[] for _ in range(devices)]
    heap = [(0.0, number) for number, each in enumerate(before) if not each]

    def settle():
        if not heap:
            return
        moment, number = heapq.heappop(heap)
        ready[number] = moment
        queue = queues[tasks[number].device]
        end[number] = max(ready[number], end[queue[-1]] if queue else 0.0) + tasks[number].seconds
        queue.append(number)
        for later in after[number]:
            ends = [end[each] for each in before[later]]
            if None not in ends:
                heapq.heappush(heap, (max(ends), later))
        settle()

    settle()
    return Timeline(list(tasks), before, after, ready, end, queues)


@wrong("simulate", fails="what waits for what")
def shares_the_list(tasks, edges, devices):
    """The timeline's list is the caller's."""
    timeline = simulated()(tasks, edges, devices)
    timeline.tasks = tasks
    return timeline


@wrong("simulate", fails="what waits for what")
def before_and_after_swapped(tasks, edges, devices):
    """Puts each list in the other's place."""
    timeline = simulated()(tasks, edges, devices)
    timeline.before, timeline.after = timeline.after, timeline.before
    return timeline


# ------------------------------------------------------------------------------------------------ resimulate


def updated(
    *,
    stops=True,
    tells_behind=True,
    tells_after=True,
    reorders=True,
    leaves_gap=False,
    at_the_end=False,
    never_earlier=False,
    asks_first=True,
    differs=lambda old, new: old != new,
    chosen=lambda changes: changes.items(),
    returns=lambda seen, timeline, moved: {
        n for n, was in seen.items() if was != (timeline.ready[n], timeline.end[n])
    },
):
    """The update, with something else in one place."""

    def run(timeline, changes):
        tasks, ready, end = timeline.tasks, timeline.ready, timeline.end
        seen, heap, settled, moved = {}, [], set(), set()

        def arrives(number):
            return max((end[each] for each in timeline.before[number]), default=0.0)

        def doubt(numbers):
            for number in numbers:
                heapq.heappush(heap, (min(ready[number], arrives(number)), number))

        def leave(device, number):
            queue = timeline.queues[device]
            place = queue.index(number)
            del queue[place]
            if not leaves_gap:
                doubt(queue[place : place + 1])

        def enter(device, number, last=False):
            queue = timeline.queues[device]
            if last:
                queue.append(number)
            else:
                bisect.insort(queue, number, key=lambda each: (ready[each], each))
            doubt(queue[queue.index(number) :][:2])

        for number, task in chosen(changes):
            was, tasks[number] = tasks[number], task
            doubt([number])
            if task.device != was.device:
                leave(was.device, number)
                enter(task.device, number, at_the_end)
        while heap:
            _, number = heapq.heappop(heap)
            seen.setdefault(number, (ready[number], end[number]))
            task = tasks[number]
            if differs(ready[number], arrives(number)):
                moved.add(number)
                if reorders:
                    leave(task.device, number)
                ready[number] = arrives(number)
                if reorders:
                    enter(task.device, number)
                    continue
            queue = timeline.queues[task.device]
            place = queue.index(number)
            new = max(ready[number], end[queue[place - 1]] if place else 0.0) + task.seconds
            if never_earlier:
                new = max(new, end[number])
            if differs(end[number], new) or (not stops and number not in settled):
                moved |= {number} if new != end[number] else set()
                end[number] = new
                after = timeline.after[number] if tells_after else []
                doubt(each for each in after if not (stops and asks_first) or ready[each] != arrives(each))
                doubt(queue[place + 1 : place + 2] if tells_behind else [])
            settled.add(number)
        return returns(seen, timeline, moved)

    return run


@wrong("resimulate", fails="another duration")
def the_task_alone(timeline, changes):
    """What follows from it stays as it was."""
    return updated(tells_after=False, tells_behind=False)(timeline, changes)


@wrong("resimulate", fails="another duration")
def forgets_its_device(timeline, changes):
    """Tells those that wait for the task, not the one behind it."""
    return updated(tells_behind=False)(timeline, changes)


@wrong("resimulate", fails="another device")
def behind_the_others(timeline, changes):
    """On its new device a task goes to the end of the queue."""
    return updated(at_the_end=True)(timeline, changes)


@wrong("resimulate", fails="another device")
def stays_in_its_queue(timeline, changes):
    """Only the seconds of a change count."""
    same = {number: Task(timeline.tasks[number].device, task.seconds) for number, task in changes.items()}
    return updated()(timeline, same)


@wrong("resimulate", fails="several changes")
def the_first_change_only(timeline, changes):
    """A call with three changes makes one of them."""
    return updated(chosen=lambda changes: [*changes.items()][:1])(timeline, changes)


@wrong("resimulate", fails="which have moved")
def all_that_was_looked_at(timeline, changes):
    """Returns also what has not moved in the end."""
    return updated(returns=lambda seen, timeline, moved: set(seen))(timeline, changes)


@wrong("resimulate", fails="which have moved")
def those_that_end_elsewhere(timeline, changes):
    """A task that is ready earlier and ends as before has moved, too."""
    return updated(
        returns=lambda seen, timeline, moved: {n for n, (_, end) in seen.items() if end != timeline.end[n]}
    )(timeline, changes)


@wrong("resimulate", fails="reads what it needs")
def looks_at_all_that_wait(timeline, changes):
    """Also at those that wait for another one, which ends later."""
    return updated(asks_first=False)(timeline, changes)


def from_scratch(timeline, changes, kept=lambda number: False):
    """A whole simulation, of which what was kept is written again."""
    was = list(zip(timeline.ready, timeline.end, strict=True))
    for number, task in changes.items():
        timeline.tasks[number] = task
    edges = [(a, b) for a, after in enumerate(timeline.after) for b in after]
    new = simulated()([*timeline.tasks], edges, len(timeline.queues))
    timeline.ready, timeline.end, timeline.queues = new.ready, new.end, new.queues
    return {n for n, times in enumerate(zip(new.ready, new.end, strict=True)) if times != was[n]}


@wrong("resimulate", fails="reads what it needs")
def simulates_all_of_it(timeline, changes):
    """Right, and as slow as before."""
    return from_scratch(timeline, changes)


def anew(timeline, changes, tasks):
    """A whole simulation of these tasks, but for the changes, put in the timeline's place."""
    for number, task in changes.items():
        tasks[number] = timeline.tasks[number] = task
    edges = [(first, second) for second, own in enumerate(timeline.before) for first in own]
    new = simulated()(tasks, edges, len(timeline.queues))
    old = list(zip(timeline.ready, timeline.end, strict=True))
    timeline.ready, timeline.end, timeline.queues = new.ready, new.end, new.queues
    return {
        number for number, times in enumerate(zip(new.ready, new.end, strict=True)) if times != old[number]
    }


# ------------------------------------------------------------------------------------------------ best_inter


def inter(
    *,
    worth=lambda total, slowest, m: total + (m - 1) * slowest,
    idle=False,
    prefix=False,
    keeps=True,
    checks=True,
    equal=False,
    one_less=False,
):
    """All plans of which none is better in both, with something else in one place."""

    def run(stage_seconds, layers, devices, micro_batches, sizes):
        priced = functools.cache(stage_seconds) if keeps else stage_seconds

        def kept(found):
            if prefix:
                return [min(found, key=lambda plan: worth(*plan[:2], micro_batches))] if found else []
            best = []
            for plan in sorted(found):
                if not best or plan[1] < best[-1][1]:
                    best.append(plan)
            return best

        reached = {(0, 0): [(0.0, 0.0, [])]}
        for end in range(1, layers + 1):
            for used in range(1, devices + 1):
                found = [
                    (total + taken, max(slowest, taken), [*plan, (end - begin, size)])
                    for begin in range(end)
                    for size in sizes
                    if size <= used
                    for total, slowest, plan in reached.get((begin, used - size), [])
                    if not equal or all(size == other for _, other in plan)
                    for taken in [priced(begin, end, size)]
                    if not (checks and math.isinf(taken))
                ]
                reached[end, used] = kept(found)
        allowed = range(1, devices + 1) if idle else [devices - one_less or 1]
        found = [plan for used in allowed for plan in reached[layers, used]]
        if not found:
            raise ValueError("nothing fits")
        return min(found, key=lambda plan: worth(*plan[:2], micro_batches))[2]

    return run


@wrong("best_inter", fails="a few micro-batches")
def the_slowest_stage_alone(*arguments):
    """As PipeDream's planner, whose pipeline never runs empty."""
    return inter(worth=lambda total, slowest, m: (slowest, -total))(*arguments)


@wrong("best_inter", fails="a few micro-batches")
def the_sum_alone(*arguments):
    """The latency of one micro-batch, however many there are."""
    return inter(worth=lambda total, slowest, m: total)(*arguments)


@wrong("best_inter", fails="a few micro-batches")
def the_best_of_the_first_layers(*arguments):
    """Takes the best plan of the first layers into that of all."""
    return inter(prefix=True)(*arguments)


@wrong("best_inter", fails="one micro-batch, or many")
def the_slowest_first_where_there_are_many(stage_seconds, layers, devices, micro_batches, sizes):
    """From 32 micro-batches on it asks for the sum only where the slowest stages are equal."""
    found = inter(worth=lambda total, slowest, m: (slowest, total)) if micro_batches >= 32 else inter()
    return found(stage_seconds, layers, devices, micro_batches, sizes)


@wrong("best_inter", fails="one micro-batch, or many")
def two_micro_batches_at_least(stage_seconds, layers, devices, micro_batches, sizes):
    """The slowest stage counts twice even if there is a single micro-batch."""
    return inter()(stage_seconds, layers, devices, max(2, micro_batches), sizes)


@wrong("best_inter", fails="any seconds")
def in_microseconds(stage_seconds, *sizes):
    """Rounds what it is told to six digits."""
    return inter()(lambda *stage: round(stage_seconds(*stage), 6), *sizes)


@wrong("best_inter", fails="a few micro-batches")
def few_or_many(stage_seconds, layers, devices, micro_batches, sizes):
    """The best by the sum or the best by the slowest stage, whichever is better; nothing between them."""
    priced = functools.cache(stage_seconds)
    plans = [
        inter(worth=worth)(priced, layers, devices, micro_batches, sizes)
        for worth in (lambda total, slowest, m: total, lambda total, slowest, m: (slowest, total))
    ]

    def step(plan):
        ends = itertools.accumulate(length for length, _ in plan)
        each = [priced(end - length, end, size) for end, (length, size) in zip(ends, plan, strict=True)]
        return sum(each) + (micro_batches - 1) * max(each)

    return min(plans, key=step)


@wrong("best_inter", fails="what does not fit")
def returns_what_does_not_fit(*arguments):
    """A plan with a stage of infinite cost is a plan."""
    return inter(checks=False)(*arguments)


@wrong("best_inter", fails="what does not fit")
def returns_no_stages(*arguments):
    """An empty list where nothing fits."""
    try:
        return inter()(*arguments)
    except ValueError:
        return []


@wrong("best_inter", fails="each stage asked for once")
def asks_again_and_again(*arguments):
    """Has each stage measured anew for every plan that contains it."""
    return inter(keeps=False)(*arguments)


@wrong("best_inter", fails="a large model")
def tries_all_plans(stage_seconds, layers, devices, micro_batches, sizes):
    """Right, and for large models too slow."""
    priced = functools.cache(stage_seconds)

    def plans(begin, left):
        if begin == layers and left == 0:
            yield 0.0, 0.0, []
        for end, size in itertools.product(range(begin + 1, layers + 1), sizes):
            if size <= left and not math.isinf(taken := priced(begin, end, size)):
                for total, slowest, plan in plans(end, left - size):
                    yield total + taken, max(slowest, taken), [(end - begin, size), *plan]

    found = min(plans(0, devices), key=lambda each: each[0] + (micro_batches - 1) * each[1], default=None)
    if found is None:
        raise ValueError("nothing fits")
    return found[2]


@wrong("best_inter", fails="each stage asked for once")
def asks_for_more_than_there_are(stage_seconds, layers, devices, micro_batches, sizes):
    """Has every size measured, also those larger than the cluster."""
    for size in sizes:
        if size > devices:
            stage_seconds(0, layers, size)
    return inter()(stage_seconds, layers, devices, micro_batches, sizes)


# --------------------------------------------------------------------------------------- pipedream_hierarchy


def by_levels(
    *,
    bandwidth_of=lambda levels, level: levels[level][1],
    crossings=2,
    most=lambda units, level, levels: units,
    exchange=lambda seconds, gpus, replicas: seconds / gpus,
    cuts_within=True,
    shares_all=lambda level, levels: False,
    sum_of=max,
    fits=lambda replicas: True,
    cuts=lambda begin, end, level, levels: range(begin + 1, end),
):
    """The planner, level by level, with something else in one place."""

    def run(seconds, activation_bytes, weight_bytes, levels):
        count = len(seconds)
        runs = [(end - n, end) for end in range(1, count + 1) for n in range(1, end + 1)]
        alone = {each: (sum(seconds[slice(*each)]), []) for each in runs}
        gpus = 1
        for level, (units, _) in enumerate(levels):
            bandwidth, best = bandwidth_of(levels, level), {}

            def stage(begin, end, replicas, alone=alone, gpus=gpus, bandwidth=bandwidth):
                sent = 2 * (replicas - 1) * sum(weight_bytes[begin:end]) / bandwidth
                return sum_of(alone[begin, end][0], exchange(sent, gpus, replicas)) / replicas

            for begin, end in runs:
                for used in range(1, units + 1):
                    found = [(stage(begin, end, used), [(end - begin, used, alone[begin, end][1])])]
                    splits = itertools.product(cuts(begin, end, level, levels), range(1, used))
                    for middle, replicas in () if shares_all(level, levels) else splits:
                        if replicas > most(units, level, levels) or not fits(replicas):
                            continue
                        before, plan = best[begin, middle, used - replicas]
                        cut = crossings * activation_bytes[middle - 1] / bandwidth
                        cut = cut if cuts_within or level == len(levels) - 1 else 0.0
                        slowest = max(before, cut, stage(middle, end, replicas))
                        found.append((slowest, [*plan, (end - middle, replicas, alone[middle, end][1])]))
                    best[begin, end, used] = min(found, key=lambda pair: pair[0])
            alone = {each: best[(*each, units)] for each in runs}
            gpus *= units
        return alone[0, count][1]

    return run


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def a_cut_is_crossed_once(*arguments):
    """Forgets the gradients that come back."""
    return by_levels(crossings=1)(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def the_last_stage_on_one(*arguments):
    """Only the first stage is replicated."""
    return by_levels(most=lambda units, level, levels: 1)(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def an_exchange_in_whole_seconds(*arguments):
    """Divides by the GPUs with //, and what takes less than a second is nothing."""
    return by_levels(exchange=lambda seconds, gpus, replicas: seconds // gpus if gpus > 1 else seconds)(
        *arguments
    )


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def the_slowest_network_everywhere(*arguments):
    """GPUs of one server as far apart as servers."""
    return by_levels(bandwidth_of=lambda levels, level: levels[-1][1])(*arguments)


@wrong("pipedream_hierarchy", fails="one level")
def takes_the_levels_out(seconds, activation_bytes, weight_bytes, levels):
    """In the end the caller's list is empty."""
    plan = by_levels()(seconds, activation_bytes, weight_bytes, levels)
    while levels:
        levels.pop(0)
    return plan


@wrong("pipedream_hierarchy", fails="three levels")
def stages_on_the_outer_levels(*arguments):
    """Where there are racks, the GPUs of a server share the batches."""
    return by_levels(shares_all=lambda level, levels: level == 0 and len(levels) > 2)(*arguments)


@wrong("pipedream_hierarchy", fails="three levels")
def shared_by_the_level_below(seconds, activation_bytes, weight_bytes, levels):
    """Divides the exchange by the units of one level below, not by all GPUs."""
    below = iter([1, *(units for units, _ in levels)])
    last = {}

    def exchange(sent, gpus, replicas):
        if gpus not in last:
            last[gpus] = next(below)
        return sent / last[gpus]

    return by_levels(exchange=exchange)(seconds, activation_bytes, weight_bytes, levels)


# ------------------------------------------------------------------------------------------------ plans


@wrong("plan", fails="runs within the memory")
def has_never_heard_of_memory(model, cluster, memory):
    """The fastest of all plans, wherever it fits."""
    return Search(within=False)(model, cluster, memory)


@wrong("plan", fails="runs within the memory")
def leaves_ranks_idle(model, cluster, memory):
    """Plans for half of the ranks: that needs less memory for gradients of replicas."""
    return Search(shapes=lambda ranks: shapes_of(ranks // 2), within=False)(model, cluster, memory)


@wrong("plan", fails="within a tenth of the best known")
def never_replicates(model, cluster, memory):
    """Stages and split operators only."""
    return Search(shapes=lambda ranks: [each for each in shapes_of(ranks) if each[1] == 1])(
        model, cluster, memory
    )


@wrong("plan", fails="no slower than one kind of parallelism")
def always_in_two_stages(model, cluster, memory):
    """The recipe that was right for the last model."""
    return Search(shapes=lambda ranks: [each for each in shapes_of(ranks) if each[0] == 2])(
        model, cluster, memory
    )


@wrong("plan", fails="no slower than one kind of parallelism")
def trusts_the_formula(model, cluster, memory):
    """Takes what sum t + (m - 1) max t says for the truth, and forgets that messages take time."""
    return Search(predicted=1)(model, cluster, memory)


@wrong("plan", fails="within a tenth of the best known")
def as_many_micro_batches_as_stages(model, cluster, memory):
    """Enough for every stage to have something to do, and half of the time they still wait."""
    return Search(micro_batches=1)(model, cluster, memory)


@wrong("plan", fails="within 3 % of the best known")
def shares_the_samples_too(model, cluster, memory):
    """What is left shares the samples: then nothing is computed twice, and much has to move."""
    return Search(orders=lambda graph: inner_first(graph)[2:])(model, cluster, memory)
