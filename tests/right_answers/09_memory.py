"""Right answers of unit 09, written differently."""

import contextlib
import functools
import itertools
import math
import random
import weakref
from math import ceil

import torch

from course_lib.training.memory_plan import Plan, plan_cost
from course_lib.training.out_of_core import DoesNotFit, step
from tests.answers import right


@right("zero_memory")
def by_cases(parameters, ranks, stage, state_bytes=12):
    shard = ceil(parameters / ranks)
    match stage:
        case 0:
            return (4 + state_bytes) * parameters
        case 1:
            return 4 * parameters + state_bytes * shard
        case 2:
            return 2 * parameters + (2 + state_bytes) * shard
        case 3:
            return (4 + state_bytes) * shard
    raise ValueError(stage)


@right("zero_memory")
def counts_what_is_not_kept(parameters, ranks, stage, state_bytes=12):
    if not 0 <= stage <= 3:
        raise ValueError(stage)
    elsewhere = parameters - (parameters + ranks - 1) // ranks
    return parameters * (4 + state_bytes) - elsewhere * sum((state_bytes, 2, 2)[:stage])


@right("shard_range")
def cuts_what_there_is(numel, ranks, rank):
    length = (numel + ranks - 1) // ranks
    own = range(numel)[rank * length : (rank + 1) * length]
    return own.start, own.stop


@right("shard_range")
def one_part_after_another(numel, ranks, rank):
    length, begin = ceil(numel / ranks), 0
    for _ in range(rank):
        begin += min(length, numel - begin)
    return begin, begin + min(length, numel - begin)


# ---------------------------------------------------------------------------------------------- HostOffload


@right("HostOffload")
class ByNumbers:
    """Numbers what it packs; a dictionary of weak values has what a graph still refers to."""

    class Packed:
        def __init__(self, number, held):
            self.number, self.held, self.arriving = number, held, None

    def __init__(self, host, stays, ahead=1):
        self.host, self.ahead, self.count = host, ahead, 0
        self.stays = [tensor.untyped_storage() for tensor in stays]
        self.packed = weakref.WeakValueDictionary()

    def pack(self, tensor):
        if any(tensor.untyped_storage().data_ptr() == storage.data_ptr() for storage in self.stays):
            return tensor
        self.count += 1
        self.packed[self.count] = packed = self.Packed(self.count, self.host.to_host(tensor))
        return packed

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        before = sorted((number for number in self.packed if number < packed.number), reverse=True)
        for each in [packed, *map(self.packed.get, before[: self.ahead])]:
            each.arriving = each.arriving or each.held.to_device()
        arriving, packed.arriving = packed.arriving, None
        return arriving.wait()


@right("HostOffload")
class LinkedList:
    """Each refers weakly to the one before it."""

    class Packed:
        def __init__(self, held, before):
            self.held, self.before, self.copy = held, before, None

        def begin(self):
            if self.copy is None:
                self.copy = self.held.to_device()

    def __init__(self, host, stays, ahead=1):
        self.host, self.ahead = host, ahead
        self.stays = tuple(stays)
        self.last = lambda: None

    def pack(self, tensor):
        shared = {kept.untyped_storage().data_ptr() for kept in self.stays}
        if tensor.untyped_storage().data_ptr() in shared:
            return (tensor,)
        packed = self.Packed(self.host.to_host(tensor), self.last)
        self.last = weakref.ref(packed)
        return packed

    def unpack(self, packed):
        if isinstance(packed, tuple):
            return packed[0]
        packed.begin()
        each = packed
        for _ in range(self.ahead):
            each = each.before()
            if each is None:
                break
            each.begin()
        copy, packed.copy = packed.copy, None
        return copy.wait()


# ---------------------------------------------------------------------------------------- checkpoint_segments


@right("checkpoint_segments")
def by_halving_a_bound(layers):
    """The smallest bound within which a cut is possible; the cut with the fewest bytes of checkpoints."""
    until = [0, *itertools.accumulate(map(sum, layers))]

    def cut(bound):
        fewest, came_from = [0], [0]
        for end in range(1, len(until)):
            fewest.append(math.inf)
            came_from.append(0)
            for begin in range(end):
                held = fewest[begin] + layers[begin][0]
                if fewest[begin] + until[end] - until[begin] <= bound and held < fewest[end]:
                    fewest[end], came_from[end] = held, begin
        if fewest[-1] == math.inf:
            return None
        lengths, end = [], len(layers)
        while end:
            lengths.insert(0, end - came_from[end])
            end = came_from[end]
        return lengths

    low, high = 0, until[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(middle) else (middle + 1, high)
    return cut(low)


@right("checkpoint_segments")
def remembers_from_the_front(layers):
    """By recursion: where does the first segment end?"""

    @functools.cache
    def best(begin):
        if begin == len(layers):
            return 0, ()
        own, found = 0, []
        for end in range(begin + 1, len(layers) + 1):
            own += sum(layers[end - 1])
            later, cut = best(end)
            found.append((max(own, layers[begin][0] + later), (end - begin, *cut)))
        return min(found)

    return list(best(0)[1])


# ------------------------------------------------------------------------------------------- out_of_core_plan


def _seconds(plan, *task):
    try:
        return step(plan, *task).seconds
    except DoesNotFit:
        return math.inf


@right("out_of_core_plan")
def keeps_the_best_few(bytes_, seconds, capacity, bandwidth):
    """A beam: of all plans that differ in one layer from the best few, the best few again."""
    task = bytes_, seconds, capacity, bandwidth
    ways = ("keep", "swap", "recompute")
    few = {("recompute",) * len(bytes_), ("swap",) * len(bytes_)}
    for _ in range(3 * len(bytes_)):
        more = {
            (*plan[:layer], way, *plan[layer + 1 :])
            for plan in few
            for layer in range(len(plan))
            for way in ways
        }
        few_after = set(sorted(more | few, key=lambda plan: (_seconds(plan, *task), plan))[:25])
        if few_after == few:
            break
        few = few_after
    return list(min(few, key=lambda plan: _seconds(plan, *task)))


@right("out_of_core_plan")
def from_several_starts(bytes_, seconds, capacity, bandwidth):
    """Changes one layer or two, from plans drawn at random; all plans where there are few."""
    task, count = (bytes_, seconds, capacity, bandwidth), len(bytes_)
    ways = ("keep", "swap", "recompute")
    if count < 7:
        return list(min(itertools.product(ways, repeat=count), key=lambda plan: _seconds(plan, *task)))
    draw, tried = random.Random(0), []
    for start in range(4):
        plan = [draw.choice(ways[1:]) if start else "recompute" for _ in range(count)]
        best, before = _seconds(plan, *task), None
        while best != before:
            before = best
            for first, second in itertools.combinations(range(count), 2):
                for pair in itertools.product(ways, repeat=2):
                    changed = list(plan)
                    changed[first], changed[second] = pair
                    taken = _seconds(changed, *task)
                    if taken < best:
                        plan, best = changed, taken
        tried.append((best, plan))
    return min(tried)[1]


# ------------------------------------------------------------------------------------------------ plan_memory


@right("plan_memory")
def tries_everything(task):
    """Few layers, few divisors: all plans."""
    found = []
    for stage, parts in itertools.product(range(4), range(1, task.samples + 1)):
        for chosen in itertools.product(("keep", "swap", "recompute"), repeat=len(task.layers)):
            with contextlib.suppress(ValueError):
                plan = Plan(stage, parts, chosen)
                found.append((plan_cost(plan, task).seconds, stage, parts, chosen))
    return Plan(*min(found)[1:])


@right("plan_memory")
def goes_downhill(task):
    """From the plan that needs least, one layer at a time, for each stage and number of micro-batches."""

    def seconds(plan):
        try:
            return plan_cost(plan, task).seconds
        except ValueError:
            return math.inf

    best = Plan(3, task.samples, ["recompute"] * len(task.layers))
    for stage, parts in itertools.product(range(4), range(1, task.samples + 1)):
        plan = Plan(stage, parts, ["recompute"] * len(task.layers))
        for _ in range(4):
            for places in itertools.combinations(range(len(task.layers)), 3):
                for chosen in itertools.product(("keep", "swap", "recompute"), repeat=3):
                    ways = list(plan.ways)
                    for place, way in zip(places, chosen, strict=True):
                        ways[place] = way
                    plan = min(plan, Plan(stage, parts, ways), key=seconds)
        best = min(best, plan, key=seconds)
    return best
