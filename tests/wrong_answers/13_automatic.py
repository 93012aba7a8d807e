"""Mistakes that people make in unit 13."""

import bisect
import functools
import heapq
import itertools
import math
import random
import string
import time
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import Bounds, LinearConstraint, milp
from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import ParallelPlan, Strategy
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


@wrong("op_strategies", fails="along one axis")
def leaves_out_all_alike(op, mesh):
    """Every rank has to share in the work."""
    return [each for each in _cuts(op, mesh) if any(p != Replicate() for t in each.operands for p in t)]


@wrong("op_strategies", fails="along one axis")
def once_for_each_tensor(op, mesh):
    """Goes over the tensors and their letters, so that a letter of two comes twice."""
    return [each for letters in op.operands for each in _cuts(op, mesh, letters=sorted(letters))]


@wrong("op_strategies", fails="along one axis")
def knows_small_letters_only(op, mesh):
    """Looks for letters among a to z."""
    return _cuts(op, mesh, letters=[each for each in string.ascii_lowercase if each in op.spec])


@wrong("op_strategies", fails="along one axis")
def a_number_cannot_be_a_sum(op, mesh):
    """Where the result has no dimension there is nothing to cut, it thinks."""
    return _cuts(op, mesh, letters=None if op.result else [])


@wrong("op_strategies", fails="along one axis")
def a_letter_in_two_operands_at_most(op, mesh):
    """As in a product of two: the third operand with a letter stays whole."""

    def at_most_two(each):
        kept, left = [], 2
        letters = [
            next((t[p.dim] for p in own if isinstance(p, Shard)), "")
            for t, own in zip(op.operands, each, strict=True)
        ]
        for own, letter in zip(each, letters, strict=True):
            left -= bool(letter)
            kept.append(own if left >= 0 else (Replicate(),) * len(own))
        return tuple(kept)

    return [Strategy(at_most_two(each.operands), each.result) for each in _cuts(op, mesh)]


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


@wrong("op_strategies", fails="along several axes")
def each_axis_by_itself(op, mesh):
    """6 divides by 2 and by 2, but not by both."""
    return _cuts(op, mesh, parts_of=lambda axes: max(axes, default=1))


@wrong("op_strategies", fails="along several axes")
def a_letter_along_one_axis_only(op, mesh):
    """As Mesh-TensorFlow's layouts, in which a letter has one axis."""
    return _cuts(op, mesh, parts_of=lambda axes: prod(axes) if len(axes) < 2 else 10**9)


@wrong("op_strategies", fails="along several axes")
def a_letter_has_room_for_one_axis(op, mesh):
    """Adds up the lengths of the axes that cut a letter."""
    return _cuts(op, mesh, parts_of=lambda axes: max(sum(axes), 1))


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


@wrong("reshard", fails="whole on every rank")
def adds_up_in_floats(x, source, target, group=None):
    """Adds up in float32, whatever x is."""

    def added(x, source, target, group):
        total = x.float() if not x.is_complex() else x.clone()
        dist.all_reduce(total, group=group)
        return total.to(x.dtype).clone()

    return _move(x, source, target, group, PR=added)


@wrong("reshard", fails="whole on every rank")
def joins_rows_or_columns(x, source, target, group=None):
    """A matrix has no other dims."""

    def joined(x, source, target, group):
        parts = _all_of(x, source, group).chunk(dist.get_world_size(group), source.dim)
        return torch.cat(parts, -1 if source.dim else 0)

    return _move(x, source, target, group, SR=joined)


@wrong("reshard", fails="cut, from a sum or from another cut")
def sends_floats(x, source, target, group=None):
    """Sends numbers as float64, which has not all digits of an int64."""

    def exchanged(x, source, target, group):
        return _move(x if x.is_complex() else x.double(), source, target, group).to(x.dtype)

    return _move(x, source, target, group, SS=exchanged)


@wrong("reshard", fails="cut, from a sum or from another cut")
def cuts_a_summand(x, source, target, group=None):
    """Takes its part of its own summand."""
    return _move(x, source, target, group, PS=lambda x, source, target, group: _own_part(x, target, group))


@wrong("reshard", fails="cut, from a sum or from another cut")
def exchanges_along_dimension_0(x, source, target, group=None):
    """Gives x itself to the all-to-all, which cuts along dimension 0 whatever the target is."""

    def exchanged(x, source, target, group):
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return torch.cat(received.chunk(dist.get_world_size(group)), source.dim)

    return _move(x, source, target, group, SS=exchanged)


@wrong("reshard", fails="cut, from a sum or from another cut")
def joins_along_the_target(x, source, target, group=None):
    """Puts the parts that come one after another along the new dim instead of the old one."""

    def exchanged(x, source, target, group):
        sent = torch.stack(x.tensor_split(dist.get_world_size(group), target.dim))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(), target.dim)

    return _move(x, source, target, group, SS=exchanged)


@wrong("reshard", fails="without a word")
def everybody_keeps_all(x, source, target, group=None):
    """Every rank keeps the whole as its summand: the sum is p times too large."""
    return _move(x, source, target, group, RP=lambda x, *_: x.clone())


@wrong("reshard", fails="without a word")
def a_share_for_each(x, source, target, group=None):
    """Divides by the ranks: right for even numbers on two of them, not for integers."""
    return _move(x, source, target, group, RP=lambda x, s, t, g: (x / dist.get_world_size(g)).to(x.dtype))


@wrong("reshard", fails="without a word")
def puts_its_part_first(x, source, target, group=None):
    """A summand that has this rank's part at the beginning."""

    def padded(x, source, target, group):
        return torch.cat([x] + [torch.zeros_like(x)] * (dist.get_world_size(group) - 1), source.dim)

    return _move(x, source, target, group, SP=padded)


@wrong("reshard", fails="without a word")
def nothing_times_infinity(x, source, target, group=None):
    """Multiplies by 0 on all ranks but one: inf becomes NaN."""
    return _move(x, source, target, group, RP=lambda x, s, t, g: x * (dist.get_rank(g) == 0))


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


@wrong("reshard", fails="what is sent")
def adds_up_in_64_bits(x, source, target, group=None):
    """Sends a sum of 32 bits as one of 64, which is more exact and twice as many bytes."""
    if source == Partial() and x.dtype == torch.float32:
        return _move(x.double(), source, target, group).to(x.dtype)
    return _move(x, source, target, group)


@wrong("reshard", fails="what is sent")
def gathers_all_of_it(x, source, target, group=None):
    """An all-gather where an all-to-all does."""
    return _move(x, source, target, group, SS=lambda x, s, t, g: _own_part(_all_of(x, s, g), t, g))


@wrong("reshard", fails="x is left alone")
def a_view_of_x(x, source, target, group=None):
    """Hands back x itself where nothing is to be done."""
    return _move(x, source, target, group, same=lambda x, *_: x)


@wrong("reshard", fails="x is left alone")
def adds_up_in_place(x, source, target, group=None):
    """The all-reduce goes into x."""

    def added(x, source, target, group):
        dist.all_reduce(x, group=group)
        return x.clone()

    return _move(x, source, target, group, PR=added)


_SENT = {}


@wrong("reshard", fails="x is left alone")
def keeps_what_it_returns(x, source, target, group=None):
    """Adds up in memory that it keeps from call to call."""

    def added(x, source, target, group):
        key = dist.get_rank(), x.shape, x.dtype
        total = _SENT.setdefault(key, torch.empty_like(x, memory_format=torch.contiguous_format)).copy_(x)
        dist.all_reduce(total, group=group)
        return total

    return _move(x, source, target, group, PR=added)


@wrong("reshard", fails="x is left alone")
def one_zero_for_all(x, source, target, group=None):
    """Its zeros are one number, expanded."""

    def one_has_it(x, source, target, group):
        return x.new_zeros(()).expand(x.shape) if dist.get_rank(group) else x.clone()

    return _move(x, source, target, group, RP=one_has_it)


@wrong("reshard", fails="what is sent")
def in_messages_of_its_own(x, source, target, group=None):
    """A send and a receive for each other rank, of as many bytes as an all-to-all has."""

    def exchanged(x, source, target, group):
        p, me = dist.get_world_size(group), dist.get_rank(group)
        sent = [each.contiguous() for each in x.tensor_split(p, target.dim)]
        parts = [torch.empty_like(each) for each in sent]
        parts[me].copy_(sent[me])
        calls = []
        for k in range(1, p):
            calls.append(dist.isend(sent[(me + k) % p], group=group, group_dst=(me + k) % p))
            calls.append(dist.irecv(parts[me - k], group=group, group_src=(me - k) % p))
        for each in calls:
            each.wait()
        return torch.cat(parts, source.dim)

    return _move(x, source, target, group, SS=exchanged)


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


@wrong("reshard_cost", fails="whole on every rank")
def a_sum_costs_nothing(*change):
    """Leaves the sum to somebody else."""
    return _prices(*change, PR=lambda seconds, n, part: 0.0)


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def adds_up_all_and_cuts(*change):
    """An all-reduce, of which each rank keeps a part."""
    return _prices(*change, PS=lambda seconds, n, part: seconds("all_reduce", n))


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def gathers_all_and_cuts(*change):
    """As PyTorch prices an all-to-all: nearly as an all-gather."""
    other = change[0] != change[1]
    return _prices(*change, SS=lambda seconds, n, part: seconds("all_gather", part) if other else 0.0)


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def exchanges_the_whole(*change):
    """Gives an all-to-all the bytes of the whole tensor."""
    other = change[0] != change[1]
    return _prices(*change, SS=lambda seconds, n, part: seconds("all_to_all", n) if other else 0.0)


@wrong("reshard_cost", fails="cut, from a sum or from another cut")
def cut_is_cut(*change):
    """Does not look at the dimension."""
    return _prices(*change, SS=lambda seconds, n, part: 0.0)


@wrong("reshard_cost", fails="without a word")
def hands_out_parts(*change):
    """Scatters what every rank has already."""
    return _prices(*change, RS=lambda seconds, n, part: seconds("scatter", part))


@wrong("reshard_cost", fails="without a word")
def never_becomes_a_sum(*change):
    """As PyTorch, in which a cut tensor cannot become a sum."""
    return _prices(*change, SP=lambda seconds, n, part: math.inf)


@wrong("reshard_cost", fails="without a word")
def exchanges_with_itself(*change):
    """An all-to-all between two cuts that are the same."""
    return _prices(*change, SS=lambda seconds, n, part: seconds("all_to_all", part))


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


@wrong("reshard_path", fails="least seconds")
def the_whole_tensor_each_time(*asked):
    """Forgets that along one axis only a part is moved if another cuts."""
    return _shortest(*asked, cuts=())


@wrong("reshard_path", fails="least seconds")
def divides_by_summands(*asked):
    """Takes a sum for something that is cut."""
    return _shortest(*asked, cuts=(Shard, Partial))


@wrong("reshard_path", fails="least seconds")
def uses_up_the_links(source, target, nbytes, mesh, links, dims):
    """The caller's list is empty afterwards."""
    found = _shortest(source, target, nbytes, mesh, links, dims)
    links.clear()
    return found


@wrong("reshard_path", fails="least seconds")
def links_the_other_way_round(source, target, nbytes, mesh, links, dims):
    """The first axis has the last link."""
    return _shortest(source, target, nbytes, mesh, links[::-1], dims)


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


@wrong("reshard_path", fails="one dim along several axes")
def only_what_comes(*asked):
    """The other way round."""
    return _shortest(*asked, ordered=lambda old, new, later: new not in later)


@wrong("reshard_path", fails="one dim along several axes")
def two_dims_at_least(source, target, nbytes, mesh, links, dims):
    """Takes every tensor for a matrix: a way may cut a dimension that there is not."""
    return _shortest(source, target, nbytes, mesh, links, max(2, dims))


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


@wrong("best_chain", fails="least seconds")
def free_changes(node_cost, edge_cost):
    """Does not count the edges."""
    return _along(node_cost, edge_cost, table=lambda each: [[0.0] * len(row) for row in each])


@wrong("best_chain", fails="least seconds")
def the_dearest_end(node_cost, edge_cost):
    """Begins its way back at the wrong end."""
    return _along(node_cost, edge_cost, at_the_end=max)


@wrong("best_chain", fails="least seconds")
def nothing_is_none_yet(node_cost, edge_cost):
    """Takes a least sum of 0 for one that has not been found: `if not best`."""
    seconds, plan = _along(node_cost, edge_cost)
    if seconds == 0:
        return max(min(own[1:], default=own[0]) for own in node_cost), plan
    return seconds, plan


@wrong("best_chain", fails="least seconds")
def keeps_a_beam(node_cost, edge_cost):
    """Keeps the six cheapest beginnings only."""
    beam = sorted((cost, [s]) for s, cost in enumerate(node_cost[0]))[:6]
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        longer = [
            (c + table[plan[-1]][t] + each, [*plan, t]) for c, plan in beam for t, each in enumerate(own)
        ]
        ends = {}
        for cost, plan in sorted(longer):
            ends.setdefault(plan[-1], (cost, plan))
        beam = sorted(ends.values())[:6]
    return beam[0]


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


@wrong("best_intra", fails="least seconds")
def one_table_for_a_pair(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A dictionary of edges, in which the last of two between the same operators remains."""
    tables = dict(zip(graph, edge_cost, strict=True))
    return _program(list(tables), node_cost, list(tables.values()), memory, capacity)


@wrong("best_intra", fails="least seconds")
def ties_pairs_to_one_end(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A pair has to agree with the strategy of the first operator only."""
    return _program(graph, node_cost, edge_cost, memory, capacity, tie=(0,))


@wrong("best_intra", fails="least seconds")
def parts_of_strategies(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A linear program, which it takes for one that ends at integers, as it does in a chain."""
    return _program(graph, node_cost, edge_cost, memory, capacity, integers=0)


@wrong("best_intra", fails="least seconds")
def greedy_in_a_graph(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Operator by operator, what is cheapest beside those chosen."""
    plan = []
    for i, own in enumerate(node_cost):
        costs = list(own)
        for (a, b), table in zip(graph, edge_cost, strict=True):
            if max(a, b) == i:
                for s in range(len(own)):
                    costs[s] += table[plan[a]][s] if b == i else table[s][plan[b]]
        plan.append(costs.index(min(costs)))
    return _seconds(plan, node_cost, graph, edge_cost), plan


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


@wrong("best_intra", fails="in nanoseconds")
def something_has_to_cost(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Divides by the largest cost, and that is 0."""
    tables = (*((own,) for own in node_cost), *edge_cost)
    if not any(each for table in tables for row in table for each in row):
        raise ValueError("c must be finite")
    return _right(graph, node_cost, edge_cost, memory, capacity)


@wrong("best_intra", fails="memory")
def trusts_the_constraint(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Does not add up the bytes: a plan may have too many by a millionth of the capacity."""
    return _program(graph, node_cost, edge_cost, memory, capacity)


@wrong("best_intra", fails="memory")
def a_part_in_a_thousand(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A capacity that is exceeded by a thousandth."""
    return _program(graph, node_cost, edge_cost, memory, capacity, spare=1.001)


@wrong("best_intra", fails="memory")
def forgets_memory(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Has no row for the bytes."""
    return _program(graph, node_cost, edge_cost)


@wrong("best_intra", fails="memory")
def less_than_the_capacity(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Leaves a part in a hundred free."""
    return _program(graph, node_cost, edge_cost, memory, capacity, spare=0.99)


@wrong("best_intra", fails="memory")
def no_capacity_is_none(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Takes a capacity of 0 for no bound: `if capacity`."""
    return _program(graph, node_cost, edge_cost, memory, capacity or None)


@wrong("best_intra", fails="a larger graph")
def a_percent_is_near_enough(graph, node_cost, edge_cost, memory=None, capacity=None):
    """The solver may stop at a plan that is within a percent of its bound."""
    total, plan = _program(graph, node_cost, edge_cost, memory, capacity, gap=1e-2)
    if capacity is not None and sum(own[s] for own, s in zip(memory, plan, strict=True)) > capacity:
        return _right(graph, node_cost, edge_cost, memory, capacity)
    return total, plan


@wrong("best_intra", fails="a larger graph")
def all_plans_of_a_graph(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Looks at all plans."""
    if len(node_cost) > 11:
        time.sleep(11)
    return _try_all(graph, node_cost, edge_cost, memory, capacity)


@wrong("best_intra", fails="a larger graph")
def all_plans_that_fit(graph, node_cost, edge_cost, memory=None, capacity=None):
    """The program, but with a capacity all plans one by one."""
    if capacity is None:
        return _program(graph, node_cost, edge_cost)
    return all_plans_of_a_graph(graph, node_cost, edge_cost, memory, capacity)


@wrong("best_intra", fails="what cannot be done")
def infinite_seconds_for_nothing(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Where nothing can be done it returns a plan that takes for ever."""
    try:
        return _right(graph, node_cost, edge_cost, memory, capacity)
    except ValueError:
        if capacity is not None:
            raise
        return math.inf, [0] * len(node_cost)


@wrong("best_intra", fails="a larger graph")
def from_fifty_plans_downhill(graph, node_cost, edge_cost, memory=None, capacity=None):
    """From fifty drawn plans one change after another, as long as it gets better; small graphs by looking."""
    if len(node_cost) < 8:
        return _try_all(graph, node_cost, edge_cost, memory, capacity)

    def price(plan):
        held = 0 if capacity is None else sum(own[s] for own, s in zip(memory, plan, strict=True))
        return math.inf if capacity is not None and held > capacity else _seconds(plan, *tables)

    tables, generator, best = (node_cost, graph, edge_cost), random.Random(0), (math.inf, [])
    for _ in range(50):
        plan, better = [generator.randrange(len(own)) for own in node_cost], None
        while better is None or better[0] < price(plan):
            plan = better[1] if better else plan
            better = min(
                (price(each), each)
                for i, own in enumerate(node_cost)
                for each in ([*plan[:i], s, *plan[i + 1 :]] for s in range(len(own)))
            )
        best = min(best, (price(plan), plan))
    return best


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


@wrong("search", fails="the best plan seen")
def forgets_the_first_plan(plan, propose, cost, steps, seed, beta=1.0):
    """Only plans that were proposed can be the best."""
    generator, here, best = random.Random(seed), cost(plan), (plan, math.inf)
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        best = min(best, (proposed, there), key=lambda pair: pair[1])
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best


@wrong("search", fails="the best plan seen")
def keeps_the_last_of_equal_ones(plan, propose, cost, steps, seed, beta=1.0):
    """A plan as good as the best takes its place."""
    generator, here = random.Random(seed), cost(plan)
    best, least = plan, here
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        if there <= least:
            best, least = proposed, there
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best, least


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


@wrong("search", fails="how often it is where")
def without_beta(*arguments):
    """The difference itself in the power."""
    return metropolis(share=lambda here, there, beta: math.exp(here - there))(*arguments)


@wrong("search", fails="how often it is where")
def beta_as_a_temperature(*arguments):
    """Divides by beta."""
    return metropolis(share=lambda here, there, beta: math.exp((here - there) / beta))(*arguments)


@wrong("search", fails="how often it is where")
def power_of_the_new_cost(*arguments):
    """Asks how good the proposed plan is, not how much worse."""
    return metropolis(share=lambda here, there, beta: math.exp(-beta * there))(*arguments)


@wrong("search", fails="how often it is where")
def a_fixed_chance(*arguments):
    """Takes any plan that is worse, and possible, with one probability."""
    return metropolis(share=lambda here, there, beta: 0.0 if math.isinf(there) else 0.3)(*arguments)


@wrong("search", fails="how often it is where")
def relative_to_the_cost(*arguments):
    """A share of the cost instead of a difference."""

    def share(here, there, beta):
        return math.exp(-beta * (there - here) / here)

    return metropolis(share=share)(*arguments)


@wrong("search", fails="the same again")
def without_the_seed(*arguments):
    """Another walk at every call."""
    return metropolis(makes=lambda seed: random.Random())(*arguments)


@wrong("search", fails="the same again")
def always_one_seed(*arguments):
    """The same walk, whatever the seed is."""
    return metropolis(makes=lambda seed: random.Random(0))(*arguments)


@wrong("search", fails="the same again")
def seeds_the_module(*arguments):
    """Draws from the module's own generator, and so from that of everyone else."""

    def makes(seed):
        random.seed(seed)
        return random

    return metropolis(makes=makes)(*arguments)


@wrong("search", fails="how often it is where")
def beta_a_fifth_too_large(plan, propose, cost, steps, seed, beta=1.0):
    """Nearly the right shares."""
    return metropolis()(plan, propose, cost, steps, seed, 1.2 * beta)


@wrong("search", fails="how often it is where")
def cools_down(plan, propose, cost, steps, seed, beta=1.0):
    """Simulated annealing: beta grows, and is right on average."""
    done = []

    def proposed(plan, generator):
        done.append(plan)
        return propose(plan, generator)

    def share(here, there, beta):
        return math.exp(-beta * (0.7 + 0.6 * len(done) / steps) * (there - here))

    return metropolis(share=share)(plan, proposed, cost, steps, seed, beta)


@wrong("search", fails="the same again")
def two_generators(plan, propose, cost, steps, seed, beta=1.0):
    """One for the proposals and one for the walk, with one seed."""
    other = random.Random(seed)
    return metropolis()(plan, lambda plan, _: propose(plan, other), cost, steps, seed, beta)


@wrong("search", fails="the same again")
def numpys_own_generator(plan, propose, cost, steps, seed, beta=1.0):
    """Seeds what the whole process shares."""
    np.random.seed(seed)
    walk = metropolis(
        no_dearer=lambda here, there: there <= here or np.random.random() < math.exp(-beta * (there - here)),
        share=lambda here, there, beta: -1.0,
    )
    return walk(plan, propose, cost, steps, seed, beta)


@wrong("search", fails="the best plan seen")
def stays_where_it_is_proposed(plan, propose, cost, steps, seed, beta=1.0):
    """Does not price a plan that equals the one where it stands: not all plans can be compared."""
    generator, here = random.Random(seed), cost(plan)
    best, least = plan, here
    for _ in range(steps):
        proposed = propose(plan, generator)
        if proposed == plan:
            continue
        there = cost(proposed)
        if there < least:
            best, least = proposed, there
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best, least


@wrong("search", fails="the best plan seen")
def walks_in_the_callers_plan(plan, propose, cost, steps, seed, beta=1.0):
    """Copies the best one, and overwrites the one that was handed in."""
    generator, here = random.Random(seed), cost(plan)
    best, least = plan[:], here
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        if there < least:
            best, least = proposed[:], there
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan[:], here = proposed, there
    return best, least


@wrong("search", fails="each plan priced once")
def prices_where_it_stands(*arguments):
    """Asks for the cost of the present plan in every step."""
    return metropolis(again=True)(*arguments)


@wrong("search", fails="how often it is where")
def a_ratio_of_two_powers(*arguments):
    """Divides one proportion by the other: of large costs both are 0."""

    def share(here, there, beta):
        below = math.exp(-beta * here) if beta else 1.0
        often = math.exp(-beta * there) / below if below else 1.0
        return often if there < math.inf else 0.0

    return metropolis(share=share)(*arguments)


@wrong("search", fails="how often it is where")
def goes_where_nothing_runs(*arguments):
    """Stays only where a draw says so: with beta = 0 an infinite cost makes that a comparison with NaN."""

    def share(here, there, beta):
        often = math.exp(beta * (here - there))
        return 1.0 if math.isnan(often) else often

    return metropolis(share=share)(*arguments)


def walking(*, differs=0.0, allowed=lambda generator, often: generator.random() < often, restart=0):
    """A walk with something else in one place."""

    def run(plan, propose, cost, steps, seed, beta=1.0):
        generator = random.Random(seed)
        here = cost(plan)
        best, least = plan, here
        for step in range(steps):
            if restart and step and step % restart == 0:
                plan, here = best, least
            proposed = propose(plan, generator)
            there = cost(proposed)
            if there < least - differs:
                best, least = proposed, there
            if there <= here or allowed(generator, math.exp(beta * (here - there))):
                plan, here = proposed, there
        return best, least

    return run


@wrong("search", fails="the best plan seen")
def the_best_so_far_is_nothing(plan, propose, cost, steps, seed, beta=1.0):
    """Begins with nothing, at an infinite cost: if no plan can run, nothing is what comes back."""
    best, least = None, math.inf

    def priced(each):
        nonlocal best, least
        price = cost(each)
        if price < least:
            best, least = each, price
        return price

    walking()(plan, propose, priced, steps, seed, beta)
    return best, least


@wrong("search", fails="the best plan seen")
def better_by_a_billionth(*arguments):
    """Floats that differ by less count as equal, it has learnt."""
    return walking(differs=1e-9)(*arguments)


@wrong("search", fails="how often it is where")
def returns_to_the_best(*arguments):
    """Every thousand steps it goes back to the best plan so far."""
    return walking(restart=1000)(*arguments)


@wrong("search", fails="how often it is where")
def a_die_with_ten_sides(*arguments):
    """Draws one of ten numbers."""
    return walking(allowed=lambda generator, often: generator.randint(1, 10) / 10 <= often)(*arguments)


@wrong("search", fails="how often it is where")
def a_percentage(*arguments):
    """Draws a percentage, and 0 is below any number, however small."""
    return walking(allowed=lambda generator, often: generator.randint(0, 100) / 100 < often)(*arguments)


@wrong("search", fails="the best plan seen")
def in_floats_of_32_bits(plan, propose, cost, steps, seed, beta=1.0):
    """Keeps costs in an array of NumPy's float32."""
    return walking()(plan, propose, lambda each: float(np.float32(cost(each))), steps, seed, beta)


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


@wrong("simulate", fails="waits for all before it")
def waits_for_none(tasks, edges, devices):
    """Each device runs its tasks without asking for others."""
    return simulated(arrives=lambda ends: 0.0)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def all_at_once(tasks, edges, devices):
    """A device runs whatever is ready, several tasks together."""
    return simulated(waits=False)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def the_lowest_number_first(tasks, edges, devices):
    """Of the tasks that are ready the one with the lowest number, whenever it became so."""
    return simulated(key=lambda ready, number, found, seconds: number)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def in_the_order_of_discovery(tasks, edges, devices):
    """A queue of the whole graph, breadth first."""
    return simulated(key=lambda ready, number, found, seconds: found)(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def the_shortest_first(tasks, edges, devices):
    """As a scheduler that wants to please many might."""
    return simulated(key=lambda ready, number, found, seconds: (seconds, number))(tasks, edges, devices)


@wrong("simulate", fails="one at a time, in the order of readiness")
def ready_when_it_begins(tasks, edges, devices):
    """Calls a task ready when its device has come to it."""
    return simulated(ready_is=lambda ready, begin: begin)(tasks, edges, devices)


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


@wrong("simulate", fails="ready at the same moment")
def ties_by_nanoseconds(tasks, edges, devices):
    """Takes moments for the same that are less than a nanosecond apart."""
    return simulated(key=lambda ready, number, found, seconds: (round(ready, 9), number))(
        tasks, edges, devices
    )


@wrong("simulate", fails="waits for all before it")
def whole_seconds(tasks, edges, devices):
    """A clock that ticks in whole seconds."""
    timeline = simulated()([Task(each.device, int(each.seconds)) for each in tasks], edges, devices)
    timeline.tasks = list(tasks)
    return timeline


@wrong("simulate", fails="ready at the same moment")
def moment_by_moment(tasks, edges, devices):
    """All that ends at a moment ends, then idle devices begin: what takes no time lets others in too late."""
    before, after = neighbours(len(tasks), edges)
    missing = [len(each) for each in before]
    ready, end = [0.0] * len(tasks), [0.0] * len(tasks)
    queues, busy = [[] for _ in range(devices)], [False] * devices
    waiting, ends, now = [[] for _ in range(devices)], [], 0.0
    for number, task in enumerate(tasks):
        if not missing[number]:
            heapq.heappush(waiting[task.device], (0.0, number))
    while any(busy) or any(waiting):
        for device in range(devices):
            if waiting[device] and not busy[device]:
                _, number = heapq.heappop(waiting[device])
                queues[device].append(number)
                busy[device], end[number] = True, now + tasks[number].seconds
                heapq.heappush(ends, (end[number], number))
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, number = heapq.heappop(ends)
            busy[tasks[number].device] = False
            for later in after[number]:
                missing[later] -= 1
                if not missing[later]:
                    ready[later] = now
                    heapq.heappush(waiting[tasks[later].device], (now, later))
    return Timeline(list(tasks), before, after, ready, end, queues)


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


@wrong("simulate", fails="what waits for what")
def sorts_the_edges(tasks, edges, devices):
    """In place, where the caller has them."""
    edges.sort()
    return simulated()(tasks, edges, devices)


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


@wrong("resimulate", fails="another duration")
def keeps_the_queues(timeline, changes):
    """Devices run their tasks in the old order."""
    return updated(reorders=False)(timeline, changes)


@wrong("resimulate", fails="another duration")
def only_later(timeline, changes):
    """What a task gains by a change is not passed on."""
    return updated(never_earlier=True)(timeline, changes)


@wrong("resimulate", fails="another duration")
def uses_up_the_changes(timeline, changes):
    """Takes the changes out of their dictionary one by one."""

    def chosen(changes):
        while changes:
            yield changes.popitem()

    return updated(chosen=chosen)(timeline, changes)


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


@wrong("resimulate", fails="which have moved")
def returns_nothing(timeline, changes):
    """Changes the timeline and says nothing."""
    return updated(returns=lambda seen, timeline, moved: None)(timeline, changes)


@wrong("resimulate", fails="which have moved")
def what_moved_and_came_back(timeline, changes):
    """Notes each task that it moves, also if it moves back before the call ends."""
    return updated(returns=lambda seen, timeline, moved: moved)(timeline, changes)


@wrong("resimulate", fails="which have moved")
def one_change_after_another(timeline, changes):
    """Brings the timeline up to date for each change, and returns all that has moved on the way."""
    return set().union(*(updated()(timeline, {number: task}) for number, task in changes.items()))


@wrong("resimulate", fails="another duration")
def what_is_nearly_as_before(timeline, changes):
    """Never compares floats, it has learnt, without a tolerance."""
    return updated(differs=lambda old, new: not math.isclose(old, new))(timeline, changes)


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


@wrong("resimulate", fails="reads what it needs")
def goes_on_when_nothing_moves(timeline, changes):
    """Looks at all that can be reached from the change."""
    return updated(stops=False)(timeline, changes)


@wrong("resimulate", fails="reads what it needs")
def all_from_that_moment_on(timeline, changes):
    """Goes back to the first moment at which something differs, and simulates the rest."""
    moments = [timeline.ready[number] for number in changes]
    late = [n for n, end in enumerate(timeline.end) if moments and end >= min(moments)]
    for number in late:
        assert timeline.tasks[number].seconds >= 0
    return updated()(timeline, changes)


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


@wrong("resimulate", fails="another duration")
def seconds_from_times(timeline, changes):
    """Takes a task's seconds for what lies between its beginning and its end."""
    tasks = [None] * len(timeline.ready)
    for device, queue in enumerate(timeline.queues):
        free = 0.0
        for number in queue:
            tasks[number] = Task(device, timeline.end[number] - max(free, timeline.ready[number]))
            free = timeline.end[number]
    return anew(timeline, changes, tasks)


@wrong("resimulate", fails="which have moved")
def a_sorted_list(timeline, changes):
    """The right numbers, and no set."""
    return sorted(updated()(timeline, changes))


@wrong("resimulate", fails="reads what it needs")
def a_whole_simulation_of_a_copy(timeline, changes):
    """All anew, from a copy of the list."""
    return anew(timeline, changes, timeline.tasks.copy())


@wrong("resimulate", fails="reads what it needs")
def all_anew_for_another_device(timeline, changes):
    """Only another duration of one task is worth the trouble."""
    if len(changes) == 1:
        ((number, task),) = changes.items()
        if task.device == timeline.tasks[number].device:
            return updated()(timeline, changes)
    return anew(timeline, changes, list(timeline.tasks))


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


@wrong("best_inter", fails="one micro-batch")
def the_slowest_stage_alone(*arguments):
    """As PipeDream's planner, whose pipeline never runs empty."""
    return inter(worth=lambda total, slowest, m: (slowest, -total))(*arguments)


@wrong("best_inter", fails="one micro-batch")
def one_batch_too_many(*arguments):
    """The slowest stage counts once in the sum and m times more."""
    return inter(worth=lambda total, slowest, m: total + m * slowest)(*arguments)


@wrong("best_inter", fails="one micro-batch")
def leaves_devices_idle(*arguments):
    """Where fewer devices are faster it takes fewer."""
    return inter(idle=True)(*arguments)


@wrong("best_inter", fails="many micro-batches")
def the_sum_alone(*arguments):
    """The latency of one micro-batch, however many there are."""
    return inter(worth=lambda total, slowest, m: total)(*arguments)


@wrong("best_inter", fails="one micro-batch")
def submeshes_of_one_size(*arguments):
    """All stages have as many devices."""
    return inter(equal=True)(*arguments)


@wrong("best_inter", fails="between the two")
def the_best_of_the_first_layers(*arguments):
    """Takes the best plan of the first layers into that of all."""
    return inter(prefix=True)(*arguments)


@wrong("best_inter", fails="between the two")
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


@wrong("best_inter", fails="one micro-batch")
def powers_of_two(stage_seconds, layers, devices, micro_batches, sizes):
    """Each size is twice the one before, it thinks."""
    doubled = [sizes[0] << power for power in range(8) if sizes[0] << power <= sizes[-1]]
    return inter()(stage_seconds, layers, devices, micro_batches, doubled)


def under_bounds(chosen, monotone=False):
    """The least sum under each of some bounds. chosen: all bounds, and how good one is -> those to try."""

    def run(stage_seconds, layers, devices, micro_batches, sizes):
        priced = functools.cache(stage_seconds)
        usable = [size for size in sizes if size <= devices]
        runs = itertools.combinations(range(layers + 1), 2)
        bounds = sorted({priced(*run, size) for run in runs for size in usable} - {math.inf})

        @functools.cache
        def best_under(bound):
            def within(begin, end, size):
                taken = [priced(begin, each, size) for each in range(begin + 1 if monotone else end, end + 1)]
                return taken[-1] if max(taken) <= bound else math.inf

            try:
                found = inter(worth=lambda total, slowest, m: total)(within, layers, devices, 1, usable)
            except ValueError:
                return math.inf, []
            ends = list(itertools.accumulate(length for length, _ in found))
            each = [priced(end - length, end, size) for end, (length, size) in zip(ends, found, strict=True)]
            return sum(each) + (micro_batches - 1) * bound, found

        tried = chosen(bounds, lambda bound: best_under(bound)[0])
        found = min(map(best_under, tried), default=(math.inf, []))[1]
        if not found:
            raise ValueError("nothing fits")
        return found

    return run


def no_nearer(gap):
    """Of the bounds those that are so much above the last one, and the largest."""

    def chosen(bounds, value):
        last = 0.0
        for bound in bounds:
            if bound - last >= gap(bound) or bound == bounds[-1]:
                last = bound
                yield bound

    return chosen


@wrong("best_inter", fails="between the two")
def bounds_a_percent_apart(*arguments):
    """Tries no bound that is less than a percent above the last one."""
    return under_bounds(no_nearer(lambda bound: 0.01 * bound))(*arguments)


@wrong("best_inter", fails="between the two")
def bounds_a_microsecond_apart(*arguments):
    """As Alpa's program does, whose stages take longer."""
    return under_bounds(no_nearer(lambda bound: 1e-6))(*arguments)


@wrong("best_inter", fails="between the two")
def no_longer_than_what_is_too_slow(*arguments):
    """Where a run of layers is too slow it looks at no longer ones."""
    return under_bounds(lambda bounds, value: bounds, monotone=True)(*arguments)


@wrong("best_inter", fails="many micro-batches")
def the_slowest_first_where_there_are_many(stage_seconds, layers, devices, micro_batches, sizes):
    """From 32 micro-batches on it asks for the sum only where the slowest stages are equal."""
    found = inter(worth=lambda total, slowest, m: (slowest, total)) if micro_batches >= 32 else inter()
    return found(stage_seconds, layers, devices, micro_batches, sizes)


@wrong("best_inter", fails="between the two")
def no_bound_below_a_layer_alone(*arguments):
    """Each layer has to be in a stage, so no bound is below what the slowest layer takes, it thinks."""

    def chosen(bounds, value):
        return [bound for bound in bounds if bound >= least]

    stage_seconds, layers, devices, _, sizes = arguments
    priced = functools.cache(stage_seconds)
    usable = [size for size in sizes if size <= devices]
    alone = [[priced(layer, layer + 1, size) for size in usable] for layer in range(layers)]
    least = max(min(each, default=math.inf) for each in alone)
    return under_bounds(chosen)(priced, *arguments[1:])


@wrong("best_inter", fails="between the two")
def the_bound_by_thirds(*arguments):
    """Narrows the bound down as if there were only one valley."""

    def chosen(bounds, value):
        low, high = 0, len(bounds) - 1
        while high - low > 3:
            third = (high - low) // 3
            if (
                value(bounds[low + third]) <= value(bounds[high - third])
                and value(bounds[low + third]) < math.inf
            ):
                high -= third
            else:
                low += third
        return bounds[low : high + 1]

    return under_bounds(chosen)(*arguments)


@wrong("best_inter", fails="between the two")
def the_eight_best_so_far(stage_seconds, layers, devices, micro_batches, sizes):
    """A beam: of the plans for the first layers it keeps eight, by what a step of these takes."""
    priced, reached = functools.cache(stage_seconds), {(0, 0): [(0.0, 0.0, [])]}

    def step(plan):
        return plan[0] + (micro_batches - 1) * plan[1]

    for end, used in itertools.product(range(1, layers + 1), range(1, devices + 1)):
        found = [
            (total + taken, max(slowest, taken), [*plan, (end - begin, size)])
            for begin, size in itertools.product(range(end), sizes)
            if size <= used
            for total, slowest, plan in reached.get((begin, used - size), [])
            if (taken := priced(begin, end, size)) < math.inf
        ]
        reached[end, used] = sorted(found, key=step)[:8]
    if not reached[layers, devices]:
        raise ValueError("nothing fits")
    return min(reached[layers, devices], key=step)[2]


@wrong("best_inter", fails="what does not fit")
def infinity_times_nothing(stage_seconds, layers, devices, micro_batches, sizes):
    """Looks at the end whether a step takes for ever; with one micro-batch that is no number."""
    priced = functools.cache(stage_seconds)
    plan = inter(checks=False)(priced, layers, devices, micro_batches, sizes)
    ends = itertools.accumulate(length for length, _ in plan)
    each = [priced(end - length, end, size) for end, (length, size) in zip(ends, plan, strict=True)]
    if sum(each) + (micro_batches - 1) * max(each) == math.inf:
        raise ValueError("nothing fits")
    return plan


@wrong("best_inter", fails="each stage asked for once")
def a_single_micro_batch_by_the_way(stage_seconds, layers, devices, micro_batches, sizes):
    """For one micro-batch it has a shorter way, on which it forgets what it has asked for."""
    return inter(keeps=micro_batches > 1)(stage_seconds, layers, devices, micro_batches, sizes)


@wrong("best_inter", fails="one micro-batch")
def takes_large_sizes_out(stage_seconds, layers, devices, micro_batches, sizes):
    """In the caller's own sequence, which may be a tuple."""
    while sizes[-1] > devices:
        sizes.pop()
    sizes.reverse()
    return inter()(stage_seconds, layers, devices, micro_batches, sizes)


def limited(kept=lambda plans, step: plans, fits=lambda stages: True, backwards=False):
    """Plans of which none is better in both, of which not all are kept. step: what a plan takes."""

    def run(stage_seconds, layers, devices, micro_batches, sizes):
        priced, reached = functools.cache(stage_seconds), {(0, 0): [(0.0, 0.0, [])]}

        def seconds(begin, end, size):
            return priced(layers - end, layers - begin, size) if backwards else priced(begin, end, size)

        def step(plan):
            return plan[0] + (micro_batches - 1) * plan[1]

        for end, used in itertools.product(range(1, layers + 1), range(1, devices + 1)):
            found = sorted(
                (total + taken, max(slowest, taken), [*plan, (end - begin, size)])
                for begin, size in itertools.product(range(end), sizes)
                for total, slowest, plan in reached.get((begin, used - size), [])
                if fits([*plan, size]) and (taken := seconds(begin, end, size)) < math.inf
            )
            least = itertools.accumulate((plan[1] for plan in found), min, initial=math.inf)
            front = [plan for plan, before in zip(found, least, strict=False) if plan[1] < before]
            reached[end, used] = kept(front, step)
        if not reached[layers, devices]:
            raise ValueError("nothing fits")
        best = min(reached[layers, devices], key=step)[2]
        return best[::-1] if backwards else best

    return run


@wrong("best_inter", fails="between the two")
def the_eight_best_of_those_that_cross(*arguments):
    """A beam again, of plans of which none is better in both sum and slowest stage."""
    return limited(lambda plans, step: sorted(plans, key=step)[:8])(*arguments)


@wrong("best_inter", fails="between the two")
def the_sixteen_best_from_the_end(*arguments):
    """A beam from the last layer on."""
    return limited(lambda plans, step: sorted(plans, key=step)[:16], backwards=True)(*arguments)


@wrong("best_inter", fails="between the two")
def few_of_either_kind(*arguments):
    """Keeps the four with the least sum, and the four with the least slowest stage."""
    return limited(lambda plans, step: plans if len(plans) < 9 else plans[:4] + plans[-4:])(*arguments)


@wrong("best_inter", fails="between the two")
def nearly_as_fast_is_as_fast(*arguments):
    """Of plans whose slowest stages are less than a percent apart it keeps the one with the least sum."""

    def kept(plans, step):
        apart = []
        for plan in plans:
            if not apart or plan[1] < 0.99 * apart[-1][1]:
                apart.append(plan)
        return apart

    return limited(kept)(*arguments)


@wrong("best_inter", fails="many micro-batches")
def eight_stages_at_most(*arguments):
    """A pipeline has 2, 4 or 8 stages, it has been told."""
    return limited(fits=lambda stages: len(stages) <= 8)(*arguments)


def until_worse(bounds, value, most):
    """The bounds, until so many one after another were no better."""
    best, worse = math.inf, 0
    for bound in bounds:
        found = value(bound)
        best, worse = (found, 0) if found < best else (best, worse + (best < math.inf))
        yield bound
        if worse == most:
            return


@wrong("best_inter", fails="between the two")
def gives_up_after_twenty(*arguments):
    """Twenty bounds without a better plan, and it looks no further."""
    return under_bounds(lambda bounds, value: until_worse(bounds, value, 20))(*arguments)


@wrong("best_inter", fails="between the two")
def gives_up_on_the_way_down(*arguments):
    """From the largest bound downwards, until twenty have brought nothing."""
    return under_bounds(lambda bounds, value: until_worse(bounds[::-1], value, 20))(*arguments)


@wrong("best_inter", fails="between the two")
def no_more_than_thrice_the_least(*arguments):
    """A slowest stage three times as slow as it could be is in no good plan, it thinks."""

    def chosen(bounds, value):
        least = next((bound for bound in bounds if value(bound) < math.inf), 0.0)
        return [bound for bound in bounds if bound <= 3 * least]

    return under_bounds(chosen)(*arguments)


@wrong("best_inter", fails="between the two")
def fifty_of_the_bounds(*arguments):
    """Every so many-th bound: fifty are enough, it thinks."""
    return under_bounds(lambda bounds, value: [bounds[k * (len(bounds) - 1) // 50] for k in range(51)])(
        *arguments
    )


@wrong("best_inter", fails="between the two")
def gains_less_than_a_nanosecond(*arguments):
    """Takes plans for equally good that differ by less than a billionth of a second."""

    def chosen(bounds, value):
        best = math.inf, []
        for bound in bounds:
            if value(bound) < best[0] - 1e-9:
                best = value(bound), [bound]
        return best[1]

    return under_bounds(chosen)(*arguments)


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


@wrong("pipedream_hierarchy", fails="one level")
def a_cut_is_crossed_once(*arguments):
    """Forgets the gradients that come back."""
    return by_levels(crossings=1)(*arguments)


@wrong("pipedream_hierarchy", fails="one level")
def the_last_stage_on_one(*arguments):
    """Only the first stage is replicated."""
    return by_levels(most=lambda units, level, levels: 1)(*arguments)


@wrong("pipedream_hierarchy", fails="one level")
def computing_and_exchange_in_turn(*arguments):
    """As if a stage could not compute while gradients are under way."""
    return by_levels(sum_of=lambda computing, exchange: computing + exchange)(*arguments)


@wrong("pipedream_hierarchy", fails="one level")
def last_stages_of_powers_of_two(*arguments):
    """A stage behind a cut has 1, 2 or 4 replicas."""
    return by_levels(fits=lambda replicas: replicas & (replicas - 1) == 0)(*arguments)


@wrong("pipedream_hierarchy", fails="one level")
def takes_the_levels_out(seconds, activation_bytes, weight_bytes, levels):
    """In the end the caller's list is empty."""
    plan = by_levels()(seconds, activation_bytes, weight_bytes, levels)
    while levels:
        levels.pop(0)
    return plan


@wrong("pipedream_hierarchy", fails="one level")
def data_parallelism(*arguments):
    """One stage on every level."""
    return by_levels(shares_all=lambda level, levels: True)(*arguments)


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


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def the_fastest_network_everywhere(*arguments):
    """All GPUs in one server."""
    return by_levels(bandwidth_of=lambda levels, level: levels[0][1])(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def servers_exchange_for_each_batch(*arguments):
    """Each GPU of a server sends its gradients out by itself: the paper's formula as it is printed."""
    return by_levels(exchange=lambda seconds, gpus, replicas: seconds)(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def servers_without_stages(*arguments):
    """Within a server the GPUs always share the batches."""
    return by_levels(shares_all=lambda level, levels: level < len(levels) - 1)(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def cuts_within_a_server_are_free(*arguments):
    """Only what leaves a server costs."""
    return by_levels(cuts_within=False)(*arguments)


def _inner(level, levels):
    return level < len(levels) - 1


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def cuts_a_server_at_the_front(*arguments):
    """Within a server each stage but the last is a single layer."""
    return by_levels(
        cuts=lambda begin, end, level, levels: range(
            begin + 1, min(end, begin + 2) if _inner(level, levels) else end
        )
    )(*arguments)


@wrong("pipedream_hierarchy", fails="servers of several GPUs")
def cuts_a_server_in_the_middle(*arguments):
    """Within a server stages are cut in halves, however long their layers take."""
    return by_levels(
        cuts=lambda begin, end, level, levels: (
            [(begin + end) // 2][: end - begin - 1] if _inner(level, levels) else range(begin + 1, end)
        )
    )(*arguments)


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


@wrong("plan", fails="runs within the memory")
def never_splits_an_operator(model, cluster, memory):
    """Stages and replicas only, even where a stage is then too large."""
    return Search(shapes=lambda ranks: [each for each in shapes_of(ranks) if each[2] == 1], within=False)(
        model, cluster, memory
    )


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


@wrong("plan", fails="no slower than one kind of parallelism")
def leaves_a_fifth_free(model, cluster, memory):
    """To be on the safe side: what fits by a tenth does not fit any more."""
    return Search()(model, cluster, 0.8 * memory)


@wrong("plan", fails="within a tenth of the best known")
def cuts_evenly(model, cluster, memory):
    """As many pieces in each stage as in the others, however large they are."""
    return Search(
        cuts=lambda pieces, stages: [tuple(pieces * stage // stages for stage in range(1, stages))]
    )(model, cluster, memory)


@wrong("plan", fails="runs within the memory")
def forgets_to_return_it(model, cluster, memory):
    """Finds a plan, and returns nothing."""
    found = ParallelPlan(data=cluster.size)
    assert found.ranks == cluster.size


@wrong("plan", fails="within 3 % of the best known")
def shares_the_samples_too(model, cluster, memory):
    """What is left shares the samples: then nothing is computed twice, and much has to move."""
    return Search(orders=lambda graph: inner_first(graph)[2:])(model, cluster, memory)


@wrong("plan", fails="runs within the memory")
def gives_the_model_data(model, cluster, memory):
    """Makes room for the parameters, so that they can be looked at, and leaves it there."""
    found = Search()(model, cluster, memory)
    for piece in model.pieces:
        piece.to_empty(device="cpu")
    return found


@wrong("plan", fails="runs within the memory")
def freezes_the_model(model, cluster, memory):
    """A plan needs no gradients, but whoever trains by it does."""
    found = Search()(model, cluster, memory)
    for piece in model.pieces:
        piece.requires_grad_(False)
    return found
