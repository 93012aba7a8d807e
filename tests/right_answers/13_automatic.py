"""Right answers of unit 13, written differently."""

import functools
import heapq
import itertools
import math
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csgraph
from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import ParallelPlan, Strategy, split_along
from course_lib.planner.timelines import Timeline
from tests.answers import right, solved
from tests.planning import Search, inner_first, planner_of, shapes_of

# ------------------------------------------------------------------------------------------------ strategies


@right("op_strategies")
def axis_by_axis(op, mesh):
    """Recursion: the strategies on the other axes, of an operator whose letter is shorter."""
    if not mesh:
        return [Strategy(((),) * len(op.operands), ())]
    length, found = mesh[0], []
    for letter in [None] + (
        [a for a in sorted(set(op.spec) - set(",->")) if length > 1] if length > 1 else []
    ):
        if letter is not None and op.sizes[letter] % length:
            continue
        rest = type(op)(op.spec, {a: n // length if a == letter else n for a, n in op.sizes.items()})

        def first(tensor, otherwise, letter=letter):
            if letter is None:
                return Replicate()
            return Shard(tensor.index(letter)) if letter in tensor else otherwise

        for each in axis_by_axis(rest, mesh[1:]):
            operands = tuple(
                (first(t, Replicate()), *own) for t, own in zip(op.operands, each.operands, strict=True)
            )
            found.append(Strategy(operands, (first(op.result, Partial()), *each.result)))
    return found


# -------------------------------------------------------------------------------------------- changed layouts


@right("reshard")
def by_functional_collectives(x, source, target, group=None):
    """What these return is waited for when it is used; what is alone by pads and views."""
    p, me = dist.get_world_size(group), dist.get_rank(group)
    group = group or dist.group.WORLD
    kinds = type(source).__name__[0] + type(target).__name__[0]
    if source == target or kinds == "RS":
        return (x if source == target else x.chunk(p, target.dim)[me]).clone()
    if kinds == "RP":
        return x.clone() if me == 0 else torch.zeros_like(x)
    if kinds == "SP":
        sides = [0, 0] * (x.dim() - 1 - source.dim)
        sides += [me * x.shape[source.dim], (p - 1 - me) * x.shape[source.dim]]
        return torch.nn.functional.pad(x, sides).clone()
    if kinds == "PR":
        return funcol.all_reduce(x.contiguous(), "sum", group)
    if kinds == "PS":
        return funcol.reduce_scatter_tensor(x.contiguous(), "sum", target.dim, group)
    if kinds == "SR":
        return funcol.all_gather_tensor(x.contiguous(), source.dim, group)
    sent = x.movedim(target.dim, 0).contiguous()
    came = funcol.all_to_all_single(sent, None, None, group).chunk(p)
    return torch.cat([each.movedim(0, target.dim) for each in came], source.dim)


# ------------------------------------------------------------------------------------------- layouts' prices


@right("reshard_cost")
def by_formulas(source, target, nbytes, ranks, link):
    """The times written out, and a table of how often they count."""
    kinds = {"Replicate": 0, "Shard": 1, "Partial": 2}
    one_way = (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)
    across = (ranks - 1) * (link.latency + nbytes / ranks**2 / link.bandwidth)
    if source == target:
        return 0
    table = [[0, 0, 0], [one_way, across, 0], [2 * one_way, one_way, 0]]
    return table[kinds[type(source).__name__]][kinds[type(target).__name__]]


# ------------------------------------------------------------------------------------------------------ ways


def all_steps(nbytes, mesh, links, dims):
    """Seconds of every step between two layouts."""
    kinds = [Replicate(), Partial(), *(Shard(dim) for dim in range(dims))]
    price = solved("13_automatic")["reshard_cost"]
    prices = {}
    for here in itertools.product(kinds, repeat=len(mesh)):
        for axis, new in itertools.product(range(len(mesh)), kinds):
            later = [each for each in here[axis + 1 :] if each.is_shard()]
            if new != here[axis] and new not in later and here[axis] not in later:
                size = nbytes
                for k, n in enumerate(mesh):
                    size //= n if k != axis and here[k].is_shard() else 1
                there = (*here[:axis], new, *here[axis + 1 :])
                prices[here, there] = price(here[axis], new, size, mesh[axis], links[axis])
    return prices


@right("reshard_path")
def again_and_again(source, target, nbytes, mesh, links, dims):
    """Bellman and Ford: tries every step until nothing becomes faster."""
    prices = all_steps(nbytes, mesh, links, dims)
    best = {source: (0.0, [source])}
    changed = True
    while changed:
        changed = False
        for (here, there), price in prices.items():
            if here in best:
                seconds, way = best[here]
                if seconds + price < best.get(there, (math.inf, []))[0]:
                    best[there], changed = (seconds + price, [*way, there]), True
    return best[target]


@right("reshard_path")
def every_pair(source, target, nbytes, mesh, links, dims):
    """SciPy's shortest paths, where what is free costs 1, a billionth of the smallest price."""
    prices = all_steps(nbytes, mesh, links, dims)
    layouts = sorted({here for here, _ in prices}, key=str)
    number = {layout: place for place, layout in enumerate(layouts)}
    table = np.full((len(layouts), len(layouts)), np.inf)
    free = 1e-9 * min(price for price in prices.values() if price)
    for (here, there), price in prices.items():
        table[number[here], number[there]] = price / free or 1.0
    _, before = csgraph.dijkstra(table, indices=number[source], return_predecessors=True)
    way = [target]
    while way[0] != source:
        way.insert(0, layouts[before[number[way[0]]]])
    return sum(prices[step] for step in itertools.pairwise(way)), way


# --------------------------------------------------------------------------------------------------- choices


@right("best_chain")
def calls_itself_for_the_rest(node_cost, edge_cost):
    """What a strategy costs with all that comes after it, kept for whoever asks again; recursion."""

    @functools.cache
    def rest(i, s):
        if i == len(edge_cost):
            return node_cost[i][s], ()

        def onward(t):
            seconds, plan = rest(i + 1, t)
            return edge_cost[i][s][t] + seconds, (t, *plan)

        seconds, plan = min(onward(t) for t in range(len(node_cost[i + 1])))
        return node_cost[i][s] + seconds, plan

    first = min(range(len(node_cost[0])), key=lambda s: rest(0, s)[0])
    seconds, plan = rest(0, first)
    return seconds, [first, *plan]


@right("best_intra")
def one_by_one(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A table keeps the best of what is behind for each choice of those that have edges ahead."""
    bounded = capacity is not None
    plans = {(): [(0.0, 0, ())]}  # choices still open -> seconds, bytes, all choices, none of them in vain
    last = {i: max([max(e) for e in graph if i in e], default=i) for i in range(len(node_cost))}
    for i, own in enumerate(node_cost):
        longer = {}
        for kept in plans.values():
            for seconds, held, plan in kept:
                for s, cost in enumerate(own):
                    whole = (*plan, s)
                    new = seconds + cost
                    for (a, b), table in zip(graph, edge_cost, strict=True):
                        if max(a, b) == i:
                            new += table[whole[a]][whole[b]]
                    bytes_now = held + (memory[i][s] if bounded else 0)
                    if new < math.inf and (not bounded or bytes_now <= capacity):
                        open_now = tuple((k, whole[k]) for k in range(i + 1) if last[k] > i)
                        longer.setdefault(open_now, []).append((new, bytes_now, whole))
        plans = {key: not_in_vain(options) for key, options in longer.items()}
    if not plans:
        raise ValueError("Nothing fits.")
    seconds, _, plan = min(option for options in plans.values() for option in options)
    return seconds, list(plan)


def not_in_vain(options):
    """Those that are not worse than another in seconds and in bytes."""
    best, least = [], math.inf
    for option in sorted(options):
        if option[1] < least:
            best.append(option)
            least = option[1]
    return best


@right("best_intra")
class WeakerProgram:
    """One variable a pair that is at least the sum of both strategies less one; in units of the mean cost."""

    def __new__(cls, graph, node_cost, edge_cost, memory=None, capacity=None):
        """Closes what is dearer than the plan that was found until that finds nothing better."""
        forbidden, best = [], (math.inf, [])
        while True:
            seconds, plan = cls.solved(graph, node_cost, edge_cost, memory, capacity, forbidden)
            if capacity is not None and sum(m[s] for m, s in zip(memory, plan, strict=True)) > capacity:
                forbidden.append(plan)
                continue
            if seconds >= best[0] * (1 - 1e-9):
                return best
            rows = [*node_cost, *(row for table in edge_cost for row in table)]
            if 2 * seconds >= max(c for row in rows for c in row if c < math.inf):
                return seconds, plan
            best = seconds, plan
            node_cost = [[c if c <= seconds else math.inf for c in own] for own in node_cost]
            edge_cost = [[[c if c <= seconds else math.inf for c in row] for row in t] for t in edge_cost]

    @staticmethod
    def solved(graph, node_cost, edge_cost, memory, capacity, forbidden):
        numbers, pairs = {}, {}
        for i, own in enumerate(node_cost):
            numbers.update({(i, s): len(numbers) + s for s in range(len(own))})
        for e, (i, j) in enumerate(graph):
            for s, t in itertools.product(range(len(node_cost[i])), range(len(node_cost[j]))):
                pairs[e, s, t] = len(numbers) + len(pairs)
        costs = [node_cost[i][s] for i, s in numbers] + [edge_cost[e][s][t] for e, s, t in pairs]
        upper = [math.isfinite(each) for each in costs]
        costs = [each if math.isfinite(each) else 0.0 for each in costs]
        unit = sum(costs) / len(costs) or 1.0
        rows, low, high = [], [], []

        def row(weights, least, most):
            rows.append([weights.get(place, 0.0) for place in range(len(costs))])
            low.append(least)
            high.append(most)

        for i, own in enumerate(node_cost):
            row({numbers[i, s]: 1 for s in range(len(own))}, 1, 1)
        for e, (i, j) in enumerate(graph):
            row({pairs[key]: 1 for key in pairs if key[0] == e}, 1, 1)
            for s in range(len(node_cost[i])):
                own = {pairs[key]: 1 for key in pairs if key[:2] == (e, s)}
                row({**own, numbers[i, s]: -1}, -math.inf, 0)
            for t in range(len(node_cost[j])):
                own = {pairs[key]: 1 for key in pairs if (key[0], key[2]) == (e, t)}
                row({**own, numbers[j, t]: -1}, -math.inf, 0)
        if capacity is not None:
            unit_of = max(capacity, 1)
            row({numbers[i, s]: memory[i][s] / unit_of for i, s in numbers}, 0, min(capacity, 1))
        for plan in forbidden:
            row({numbers[i, s]: 1 for i, s in enumerate(plan)}, 0, len(plan) - 1)
        found = milp(
            [each / unit for each in costs],
            integrality=1,
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(np.array(rows), low, high),
            options={"mip_rel_gap": 0},
        )
        if not found.success:
            raise ValueError(found.message)
        plan = [
            max(range(len(own)), key=lambda s, i=i: found.x[numbers[i, s]]) for i, own in enumerate(node_cost)
        ]
        seconds = sum(own[s] for own, s in zip(node_cost, plan, strict=True))
        tables = zip(graph, edge_cost, strict=True)
        return seconds + sum(table[plan[i]][plan[j]] for (i, j), table in tables), plan


# ---------------------------------------------------------------------------------------------------- search


@right("search")
class AsSteps:
    """A generator of what is seen, and the best of it."""

    def __new__(cls, plan, propose, cost, steps, seed, beta=1.0):
        def seen(plan, generator):
            here = cost(plan)
            yield plan, here
            for _ in range(steps):
                proposed = propose(plan, generator)
                there = cost(proposed)
                yield proposed, there
                worse = max(0.0, there - here) if there != here else 0.0
                if generator.random() < math.exp(-beta * worse):
                    plan, here = proposed, there

        return min(seen(plan, random.Random(seed)), key=lambda pair: pair[1])


# -------------------------------------------------------------------------------------------------- simulate


def neighbours(count, edges):
    """For each task those before it, and those after it."""
    before, after = [[] for _ in range(count)], [[] for _ in range(count)]
    for first, second in edges:
        before[second].append(first)
        after[first].append(second)
    return before, after


@right("simulate")
class ByDevices:
    """Each device is an object with a heap of its own; the one whose next task was ready first goes on."""

    def __new__(cls, tasks, edges, devices):
        before, after = neighbours(len(tasks), edges[::-1])
        timeline = Timeline(
            [*tasks], before, after, [0.0] * len(tasks), [0.0] * len(tasks), [[] for _ in range(devices)]
        )
        self = super().__new__(cls)
        self.waiting = [[] for _ in range(devices)]
        self.left = {number: set(each) for number, each in enumerate(before) if each}
        for number, each in enumerate(before):
            if not each:
                self.waiting[tasks[number].device].append((0.0, number))
        while any(self.waiting):
            device = min((own[0], device) for device, own in enumerate(self.waiting) if own)[1]
            self.run(timeline, device)
        return timeline

    def run(self, timeline, device):
        moment, number = heapq.heappop(self.waiting[device])
        queue = timeline.queues[device]
        free = timeline.end[queue[-1]] if queue else 0.0
        timeline.ready[number] = moment
        timeline.end[number] = max(free, moment) + timeline.tasks[number].seconds
        queue.append(number)
        for later in timeline.after[number]:
            timeline.ready[later] = max(timeline.ready[later], timeline.end[number])
            self.left[later].discard(number)
            if not self.left[later]:
                target = self.waiting[timeline.tasks[later].device]
                heapq.heappush(target, (timeline.ready[later], later))


# ------------------------------------------------------------------------------------------------ resimulate


@right("resimulate")
class Update:
    """An object for the call: marks what is not settled, and settles the earliest of it."""

    def __new__(cls, timeline, changes):
        self = super().__new__(cls)
        self.timeline, self.first, self.marked = timeline, {}, set()
        for number, task in changes.items():
            self.change(number, task)
        while self.marked:
            self.settle(
                min(self.marked, key=lambda each: (min(self.arrival(each), timeline.ready[each]), each))
            )
        return {
            number
            for number, times in self.first.items()
            if times != (timeline.ready[number], timeline.end[number])
        }

    def arrival(self, number):
        return max((self.timeline.end[each] for each in self.timeline.before[number]), default=0.0)

    def change(self, number, task, ready=None):
        """Another task in this place, or another moment at which it is ready; its queue is sorted anew."""
        timeline = self.timeline
        self.first.setdefault(number, (timeline.ready[number], timeline.end[number]))
        for queue in (timeline.queues[timeline.tasks[number].device], timeline.queues[task.device]):
            self.marked |= {b for a, b in itertools.pairwise(queue) if a == number}
            if number in queue:
                queue.remove(number)
        timeline.tasks[number] = task
        if ready is not None:
            timeline.ready[number] = ready
        queue = timeline.queues[task.device]
        queue.append(number)
        queue.sort(key=lambda each: (timeline.ready[each], each))
        self.marked |= {number, *(b for a, b in itertools.pairwise(queue) if a == number)}

    def settle(self, number):
        timeline = self.timeline
        self.marked.remove(number)
        self.first.setdefault(number, (timeline.ready[number], timeline.end[number]))
        task = timeline.tasks[number]
        if timeline.ready[number] != self.arrival(number):
            self.change(number, task, self.arrival(number))
            return
        queue = timeline.queues[task.device]
        place = queue.index(number)
        begin = max(
            [timeline.ready[number], *(timeline.end[each] for each in queue[max(0, place - 1) : place])]
        )
        if timeline.end[number] != begin + task.seconds:
            timeline.end[number] = begin + task.seconds
            later = {each for each in timeline.after[number] if self.arrival(each) != timeline.ready[each]}
            self.marked |= {*later, *queue[place + 1 : place + 2]}


# ------------------------------------------------------------------------------------------------ best_inter


@right("best_inter")
def pairs_worth_having(stage_seconds, layers, devices, micro_batches, sizes):
    """From the last layer on: all plans of which none is better in both sum and slowest stage."""
    priced = functools.cache(stage_seconds)

    @functools.cache
    def plans(begin, left):
        if begin == layers:
            return [(0.0, 0.0, ())] if left == 0 else []
        found = []
        for size, end in itertools.product(sizes, range(begin + 1, layers + 1)):
            if size <= left and not math.isinf(taken := priced(begin, end, size)):
                found += [
                    (taken + total, max(taken, slowest), ((end - begin, size), *rest))
                    for total, slowest, rest in plans(end, left - size)
                ]
        kept = []
        for plan in sorted(found):
            if not kept or plan[1] < kept[-1][1]:
                kept.append(plan)
        return kept

    found = plans(0, devices)
    if not found:
        raise ValueError("nothing fits")
    return list(min(found, key=lambda plan: plan[0] + (micro_batches - 1) * plan[1])[2])


@right("best_inter")
def shortest_way_below_a_bound(stage_seconds, layers, devices, micro_batches, sizes):
    """Dijkstra's algorithm: places are (layers done, devices used); stages above a bound are closed."""
    ways = {}
    for begin, end in itertools.combinations(range(layers + 1), 2):
        for size in sizes:
            if size <= devices:
                taken = stage_seconds(begin, end, size)
                if taken != math.inf:
                    ways.setdefault(begin, []).append((taken, end, size))

    def shortest(bound):
        heap, seen = [(0.0, 0, 0, ())], set()
        while heap:
            total, done, used, plan = heapq.heappop(heap)
            if (done, used) == (layers, devices):
                return total, plan
            if (done, used) not in seen:
                seen.add((done, used))
                for taken, end, size in ways.get(done, []):
                    if taken <= bound and used + size <= devices:
                        heapq.heappush(heap, (total + taken, end, used + size, (*plan, (end - done, size))))
        return math.inf, None

    best = math.inf, None
    for bound in sorted({taken for each in ways.values() for taken, _, _ in each}):
        if bound * micro_batches < best[0]:
            total, plan = shortest(bound)
            best = min(best, (total + (micro_batches - 1) * bound, plan), key=lambda pair: pair[0])
    if best[1] is None:
        raise ValueError("nothing fits")
    return list(best[1])


# --------------------------------------------------------------------------------------- pipedream_hierarchy


@right("pipedream_hierarchy")
def from_the_outermost_level(seconds, activation_bytes, weight_bytes, levels):
    """Recursion from the whole model on all levels down to runs of layers on one GPU."""

    @functools.cache
    def on_a_unit(begin, end, level):
        """Seconds and plan on one unit of this level, that is on all units of the one below."""
        if level == 0:
            return sum(seconds[begin:end]), ()
        return on_units(begin, end, levels[level - 1][0], level - 1)

    @functools.cache
    def on_units(begin, end, units, level):
        bandwidth = levels[level][1]
        gpus = math.prod(count for count, _ in levels[:level])
        best = math.inf, None
        for middle in range(begin + 1, end + 1):
            for replicas in [units] if middle == end else range(1, units):
                alone, inside = on_a_unit(begin, middle, level)
                exchange = 2 * (replicas - 1) * sum(weight_bytes[begin:middle]) / (bandwidth * gpus)
                slowest, rest = max(alone, exchange) / replicas, ()
                if middle < end:
                    slowest = max(slowest, 2 * activation_bytes[middle - 1] / bandwidth)
                    if slowest >= best[0]:
                        continue
                    after, rest = on_units(middle, end, units - replicas, level)
                    slowest = max(slowest, after)
                if slowest < best[0]:
                    best = slowest, ((middle - begin, replicas, inside), *rest)
        return best

    def as_lists(plan):
        return [(length, replicas, as_lists(inside)) for length, replicas, inside in plan]

    return as_lists(on_a_unit(0, len(seconds), len(levels))[1])


@right("pipedream_hierarchy")
class LevelByLevel:
    """A table of runs for each level, made from the one below; plans are walked back in the end."""

    def __new__(cls, seconds, activation_bytes, weight_bytes, levels):
        self = super().__new__(cls)
        self.count, self.cuts, self.weights = len(seconds), activation_bytes, weight_bytes
        self.alone = [{run: sum(seconds[slice(*run)]) for run in self.runs()}]
        self.choices = []
        gpus = 1
        for units, bandwidth in levels:
            self.add_level(units, bandwidth, gpus)
            gpus *= units
        return self.plan(0, self.count, len(levels) - 1, levels)

    def runs(self):
        return [
            (end - length, end)
            for length in range(1, self.count + 1)
            for end in range(length, self.count + 1)
        ]

    def add_level(self, units, bandwidth, gpus):
        alone, best, choice = self.alone[-1], {}, {}
        for begin, end in self.runs():
            for used in range(1, units + 1):
                found = []
                for middle, left in [(begin, 0), *itertools.product(range(begin + 1, end), range(1, used))]:
                    exchange = 2 * (used - left - 1) * sum(self.weights[middle:end]) / bandwidth / gpus
                    last = max(alone[middle, end], exchange) / (used - left)
                    if left:
                        last = max(last, best[begin, middle, left], 2 * self.cuts[middle - 1] / bandwidth)
                    found.append((last, middle, left))
                best[begin, end, used], *choice[begin, end, used] = min(found)
        self.choices.append(choice)
        self.alone.append({run: best[(*run, units)] for run in self.runs()})

    def plan(self, begin, end, level, levels):
        if level < 0:
            return []
        stages, used = [], levels[level][0]
        while end > begin:
            middle, left = self.choices[level][begin, end, used]
            stages.append((end - middle, used - left, self.plan(middle, end, level - 1, levels)))
            end, used = middle, left
        return stages[::-1]


# ------------------------------------------------------------------------------------------------ plans


@right("plan")
def all_cuts_by_an_estimate(model, cluster, memory):
    """Every shape and cut is estimated; which dimensions are shared follows from where they begin and end."""
    return Search()(model, cluster, memory)


@right("plan")
def climbs_from_the_plain_plans(model, cluster, memory):
    """From an even plan of each shape, one change at a time: of micro-batches, a cut, an order."""
    planner, pieces = planner_of(model, cluster), len(model.pieces)
    known = {}

    def price(shape, count, cuts, order):
        key = shape, count, cuts, order
        if key not in known:
            known[key] = math.inf, None
            if count >= 1 and model.samples % (shape[1] * count) == 0:
                graph = model.graph(model.part(shape[1], count))
                split = split_along(graph, inner_first(graph)[order], shape[2])
                plan = ParallelPlan(cuts, shape[1], shape[2], count, split)
                step = planner.predict(plan)
                fits = max(step.memory) <= memory
                # What does not fit is rated behind all that fits, by how far it is from fitting.
                known[key] = step.seconds if fits else 1e6 + max(step.memory), plan
        return known[key]

    def neighbours(shape, count, cuts, order):
        yield from ((shape, changed, cuts, order) for changed in (2 * count, count // 2))
        if shape[2] > 1:
            yield from ((shape, count, cuts, changed) for changed in range(3) if changed != order)
        for place in range(1, len(cuts)):
            for step in (-1, 1):
                moved = (*cuts[:place], cuts[place] + step, *cuts[place + 1 :])
                if sorted({*moved, pieces}) == [*moved, pieces]:
                    yield shape, count, moved, order

    ends, starts = [], []
    for shape in shapes_of(cluster.size):
        if shape[0] <= pieces:
            even = tuple(pieces * stage // shape[0] for stage in range(shape[0]))
            starts.append((shape, math.gcd(2 * shape[0], model.samples // shape[1]), even, int(shape[2] > 1)))
    for start in sorted(starts, key=lambda each: price(*each)[0])[:4]:
        at = start
        while True:
            better = min(neighbours(*at), key=lambda each: price(*each)[0])
            if price(*better)[0] >= price(*at)[0]:
                break
            at = better
        ends.append(price(*at))
    return min(ends, key=lambda each: each[0])[1]
