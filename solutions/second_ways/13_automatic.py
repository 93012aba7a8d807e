"""Second ways to do exercises of unit 13, shown once they are solved. Each docstring says how it differs."""

import bisect
import math
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import Strategy
from course_lib.planner.timelines import Timeline
from course_lib.runtime.communication.costs import seconds_of


def op_strategies(op, mesh):
    """Starts with one strategy without axes and adds an axis to all of them, with the parts still left."""
    grown = [([[] for _ in op.operands], [], dict(op.sizes))]
    for length in mesh:
        longer = []
        for operands, result, left in grown:
            longer.append(([[*own, Replicate()] for own in operands], [*result, Replicate()], left))
            for letter in dict.fromkeys("".join(op.operands)) if length != 1 else ():
                if left[letter] % length == 0:
                    cut = [
                        [*own, Shard(names.index(letter)) if letter in names else Replicate()]
                        for names, own in zip(op.operands, operands, strict=True)
                    ]
                    last = Shard(op.result.index(letter)) if letter in op.result else Partial("sum")
                    longer.append((cut, [*result, last], {**left, letter: left[letter] // length}))
        grown = longer
    return [Strategy(tuple(map(tuple, operands)), tuple(result)) for operands, result, _ in grown]


def reshard(x, source, target, group=None):
    """The dim that is cut moves to the front, where collectives cut and join, and back afterwards."""
    p, place = dist.get_world_size(group), dist.get_rank(group)
    if source == target:
        return x.clone()
    if isinstance(source, Replicate):
        if isinstance(target, Partial):
            return torch.zeros_like(x) if place else x.clone()
        return x.movedim(target.dim, 0).chunk(p)[place].clone().movedim(0, target.dim)
    if isinstance(source, Partial) and isinstance(target, Replicate):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
    if not isinstance(target, Shard):
        front = x.movedim(source.dim, 0).contiguous()
        whole = front.new_zeros(p * len(front), *front.shape[1:])
        if isinstance(target, Partial):
            whole.chunk(p)[place].copy_(front)
        else:
            dist.all_gather_into_tensor(whole, front, group=group)
        return whole.movedim(0, source.dim)
    front = x.movedim(target.dim, 0).contiguous()
    if isinstance(source, Partial):
        own = front.new_empty(len(front) // p, *front.shape[1:])
        dist.reduce_scatter_tensor(own, front, group=group)
        return own.movedim(0, target.dim)
    received = torch.empty_like(front)
    dist.all_to_all_single(received, front, group=group)
    return torch.cat([part.movedim(0, target.dim) for part in received.chunk(p)], source.dim)


def reshard_cost(source, target, nbytes, ranks, link):
    """Asks whether all has to come, and whether all has to go."""
    if target.is_partial() or source.is_replicate() or (source.is_shard() and source == target):
        return 0.0
    calls = []
    if source.is_partial():
        calls.append(("reduce_scatter_tensor", nbytes))
    elif target.is_shard():
        calls.append(("all_to_all", nbytes / ranks))
    if target.is_replicate():
        calls.append(("all_gather", nbytes / ranks))
    return sum(seconds_of(name, payload, ranks, link) for name, payload in calls)


def best_chain(node_cost, edge_cost):
    """The table with NumPy."""
    seconds, origins = np.array(node_cost[0]), []
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        arriving = seconds[:, None] + np.array(table)
        origins.append(arriving.argmin(0))
        seconds = arriving.min(0) + np.array(own)
    plan = [int(seconds.argmin())]
    for origin in reversed(origins):
        plan.insert(0, int(origin[plan[0]]))
    return float(seconds.min()), plan


def simulate(tasks, edges, devices):
    """No heap: of all tasks that are ready the first is looked for each time. It is shorter, and slower."""
    before, after = [[] for _ in tasks], [[] for _ in tasks]
    for first, second in edges:
        before[second].append(first)
        after[first].append(second)
    ready = [None if each else 0.0 for each in before]
    end = [None for _ in tasks]
    queues = [[] for _ in range(devices)]
    left = {number for number, moment in enumerate(ready) if moment is not None}
    while left:
        number = min(left, key=lambda each: (ready[each], each))
        left.remove(number)
        queue = queues[tasks[number].device]
        end[number] = max(ready[number], end[queue[-1]] if queue else 0.0) + tasks[number].seconds
        queue.append(number)
        for each in after[number]:
            if all(end[first] is not None for first in before[each]):
                ready[each] = max(end[first] for first in before[each])
                left.add(each)
    return Timeline(list(tasks), before, after, ready, end, queues)


def resimulate(timeline, changes):
    """First come, first served: looks at whatever may have moved, again and again, in no order of time."""
    ready, end, tasks = timeline.ready, timeline.end, timeline.tasks
    was = {}
    doubtful = dict.fromkeys(changes)

    def moment(number):
        return ready[number], number

    def arrival(number):
        return max([0.0, *(end[each] for each in timeline.before[number])])

    def take_out(number, device):
        queue = timeline.queues[device]
        place = queue.index(number)
        doubtful.update(dict.fromkeys(queue[place + 1 : place + 2]))
        queue.remove(number)

    def put_in(number, device):
        queue = timeline.queues[device]
        bisect.insort(queue, number, key=moment)
        doubtful.update(dict.fromkeys(queue[queue.index(number) :][:2]))

    for number, task in changes.items():
        take_out(number, tasks[number].device)
        tasks[number] = task
        put_in(number, task.device)
    while doubtful:
        number = min(doubtful, key=moment)
        del doubtful[number]
        was.setdefault(number, (ready[number], end[number]))
        task = tasks[number]
        arrived = arrival(number)
        if arrived != ready[number]:
            take_out(number, task.device)
            ready[number] = arrived
            put_in(number, task.device)
            continue
        queue = timeline.queues[task.device]
        place = queue.index(number)
        ended = max(ready[number], end[queue[place - 1]] if place else 0.0) + task.seconds
        if ended != end[number]:
            end[number] = ended
            late = [each for each in timeline.after[number] if arrival(each) != ready[each]]
            doubtful.update(dict.fromkeys([*late, *queue[place + 1 : place + 2]]))
    return {number for number, before in was.items() if before != (ready[number], end[number])}


def search(plan, propose, cost, steps, seed, beta=1.0):
    """Draws how much dearer a plan may be: an exponential distribution, whose mean is 1 / beta."""
    generator = random.Random(seed)
    walk = [(cost(plan), plan)]
    best = walk[0]
    while len(walk) <= steps:
        here, plan = walk[-1]
        proposed = propose(plan, generator)
        there = cost(proposed)
        best = min(best, (there, proposed), key=lambda pair: pair[0])
        allowed = generator.expovariate(1.0)
        goes = there <= here or beta * (there - here) < allowed
        walk.append((there, proposed) if goes else walk[-1])
    return best[1], best[0]
