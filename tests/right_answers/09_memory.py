"""Right answers of unit 09, written differently."""

import contextlib
import copy
import functools
import itertools
import math
import random
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from course_lib.training.memory_plan import Plan, plan_cost
from course_lib.training.out_of_core import DoesNotFit, step
from tests.answers import right


@right("zero_memory")
def by_cases(parameters, ranks, stage, state_bytes=12):
    shard = len(range(0, parameters, ranks))
    match stage:
        case 0:
            return (4 + state_bytes) * parameters
        case 1:
            return 4 * parameters + state_bytes * shard
        case 2:
            return 2 * parameters + (2 + state_bytes) * shard
        case _:
            return (4 + state_bytes) * shard


@right("zero_memory")
def counts_what_is_not_kept(parameters, ranks, stage, state_bytes=12):
    elsewhere = parameters - (parameters + ranks - 1) // ranks
    return parameters * (4 + state_bytes) - elsewhere * sum((state_bytes, 2, 2)[:stage])


@right("shard_range")
def cuts_what_there_is(numel, ranks, rank):
    length = (numel + ranks - 1) // ranks
    own = range(numel)[rank * length : (rank + 1) * length]
    return own.start, own.stop


@right("shard_range")
def one_part_after_another(numel, ranks, rank):
    length, begin = len(range(0, numel, ranks)), 0
    for _ in range(rank):
        begin += min(length, numel - begin)
    return begin, begin + min(length, numel - begin)


def _ends(numel, ranks, rank):
    length = -(-numel // ranks)
    return min(rank * length, numel), min((rank + 1) * length, numel)


def _padded(numbers, length):
    return functional.pad(numbers, (0, length - len(numbers)))


@right("ShardedOptimizer")
class AnOptimizerItself(torch.optim.Optimizer):
    """A torch.optim.Optimizer, whose groups have the parameters; a step passes on their options."""

    def __init__(self, parameters, optimizer_class, **options):
        given = list(parameters)
        groups = [dict(each) for each in given] if isinstance(given[0], dict) else given
        super().__init__(groups, options)
        ranks, rank = dist.get_world_size(), dist.get_rank()
        self.trained = [[p for p in group["params"] if p.requires_grad] for group in self.param_groups]
        self.parts = []
        for own in self.trained:
            numbers = torch.cat([p.detach().flatten() for p in own])
            length = -(-len(numbers) // ranks)
            self.parts.append(nn.Parameter(_padded(numbers, ranks * length).view(ranks, -1)[rank].clone()))
        self.inner = optimizer_class([{"params": [part]} for part in self.parts], **options)
        self.pass_on()

    def pass_on(self):
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({name: value for name, value in group.items() if name != "params"})

    @torch.no_grad()
    def step(self, closure=None):
        self.pass_on()
        ranks, works = dist.get_world_size(), []
        for own, part in zip(self.trained, self.parts, strict=True):
            given = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
            whole = _padded(torch.cat([gradient.flatten() for gradient in given]), ranks * len(part))
            part.grad = torch.empty_like(part)
            works.append((dist.reduce_scatter_tensor(part.grad, whole, async_op=True), whole))
        for work, _ in works:
            work.wait()
        for part in self.parts:
            part.grad /= ranks
        self.inner.step()
        for own, part in zip(self.trained, self.parts, strict=True):
            whole = part.new_empty(ranks * len(part))
            dist.all_gather_into_tensor(whole, part)
            for parameter, values in zip(
                own,
                whole.split([p.numel() for p in own] + [len(whole) - sum(p.numel() for p in own)]),
                strict=False,
            ):
                parameter.copy_(values.view_as(parameter))
            part.grad = None


@right("ShardedGradients")
class SumsAndDividesLater:
    """Finds the next bucket in a list of those that are left, and divides when all are there."""

    def __init__(self, model, bucket_bytes):
        self.buckets = []
        for parameter in list(model.parameters())[::-1]:
            if parameter.requires_grad:
                last = self.buckets[-1] if self.buckets else []
                if last and sum(p.nbytes for p in [*last, parameter]) <= bucket_bytes:
                    last.append(parameter)
                else:
                    self.buckets.append([parameter])
                parameter.register_post_accumulate_grad_hook(self.note)
        self.ranks, self.again = dist.get_world_size(), {}
        self.there, self.left, self.shards, self.handle = set(), list(self.buckets), [], None

    def note(self, parameter):
        self.there.add(parameter)
        while self.left and self.there.issuperset(self.left[0]):
            self.send()

    def send(self):
        if self.handle is not None:
            self.handle.wait()
            self.handle = None
        bucket, ranks = self.left.pop(0), dist.get_world_size()
        numel = sum(p.numel() for p in bucket)
        length = -(-numel // ranks)
        flat = bucket[0].new_zeros(length * ranks).detach()
        place = 0
        for parameter in bucket:
            if parameter.grad is not None:
                flat[place : place + parameter.numel()] = parameter.grad.flatten()
            place += parameter.numel()
            parameter.grad = None
        # The same tensors in every pass.
        shard = self.again.setdefault(len(self.left), flat.new_empty(length))
        self.handle = dist.reduce_scatter_tensor(shard, flat, async_op=True)
        self.shards.append(shard)

    def finish(self):
        while self.left:
            self.send()
        self.handle.wait()
        found = [shard.div_(self.ranks) for shard in self.shards]
        self.there, self.left, self.shards, self.handle = set(), list(self.buckets), [], None
        return found


@right("ShardedGradients")
class InPartsOfAList(SumsAndDividesLater):
    """A reduce-scatter of a list, one part a rank."""

    def send(self):
        if self.handle is not None:
            self.handle.wait()
        bucket, ranks = self.left.pop(0), dist.get_world_size()
        numbers = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        for parameter in bucket:
            parameter.grad = None
        length = -(-len(numbers) // ranks)
        parts = list(_padded(numbers, length * ranks).split(length))
        shard = torch.empty_like(parts[0])
        self.handle = dist.reduce_scatter(shard, parts, async_op=True)
        self.shards.append(shard)


class _Shard(nn.Module):
    """What the two units below have in common."""

    def __init__(self, module):
        super().__init__()
        self.named = {name: p.shape for name, p in module.named_parameters()}
        ranks = dist.get_world_size()
        numbers = torch.cat([p.detach().flatten() for p in module.parameters()])
        self.length = -(-len(numbers) // ranks)
        own = numbers[slice(*_ends(len(numbers), ranks, dist.get_rank()))]
        self.shard = nn.Parameter(_padded(own, self.length).clone())
        empty = {id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in module.parameters()}
        self.__dict__["module"] = copy.deepcopy(module, empty)
        self.handle = None

    def views(self, whole):
        found, place = {}, 0
        for name, shape in self.named.items():
            found[name] = whole[place : place + shape.numel()].view(shape)
            place += shape.numel()
        return found


class _Again(torch.autograd.Function):
    """Computes forward once more in backward, and keeps nothing but the inputs."""

    @staticmethod
    def forward(ctx, unit, shard, *inputs):
        ctx.unit, ctx.inputs, ctx.drawn = unit, inputs, torch.get_rng_state()
        result = functional_call(unit.module, unit.views(unit.gathered()), inputs)
        unit.handle = None
        return result

    @staticmethod
    def backward(ctx, *gradients):
        unit = ctx.unit
        whole = unit.gathered().requires_grad_()
        leaves = [each.detach().requires_grad_(each.requires_grad) for each in ctx.inputs]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.drawn)
            result = functional_call(unit.module, unit.views(whole), tuple(leaves))
        torch.autograd.backward(result, gradients)
        unit.handle = None
        own = torch.empty_like(unit.shard)
        dist.reduce_scatter_tensor(own, whole.grad / dist.get_world_size())
        return None, own, *(leaf.grad for leaf in leaves)


@right("FullyShardedUnit")
class Recomputing(_Shard):
    """Recomputation, as in checkpointing: then autograd never sees the weights of forward."""

    def start(self):
        if self.handle is None:
            whole = torch.empty(self.length * dist.get_world_size(), dtype=self.shard.dtype)
            self.handle = dist.all_gather_into_tensor(whole, self.shard.detach(), async_op=True), whole

    def gathered(self):
        self.start()
        handle, whole = self.handle
        handle.wait()
        return whole

    def forward(self, *inputs):
        return _Again.apply(self, self.shard, *inputs)


class _Resized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, unit):
        ctx.unit = unit
        unit.fill()
        return unit.whole.view_as(unit.whole)

    @staticmethod
    def backward(ctx, gradient):
        unit = ctx.unit
        if unit.handle is not None:
            unit.fill()
        unit.whole.untyped_storage().resize_(0)
        own = torch.empty_like(unit.shard)
        dist.reduce_scatter_tensor(own, gradient / dist.get_world_size())
        return own, None


class _Refill(torch.autograd.Function):
    """The identity, whose backward has the weights filled in again."""

    @staticmethod
    def forward(ctx, x, unit):
        ctx.unit = unit
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.unit.fill()
        return gradient, None


@right("FullyShardedUnit")
class Resizing(_Shard):
    """As FSDP: one storage, which is made empty and filled again, and which autograd keeps."""

    def __init__(self, module):
        super().__init__(module)
        self.whole = torch.empty(self.length * dist.get_world_size(), dtype=self.shard.dtype)
        self.bytes = self.whole.nbytes
        self.whole.untyped_storage().resize_(0)

    def start(self):
        if self.whole.untyped_storage().nbytes() == 0:
            self.whole.untyped_storage().resize_(self.bytes)
            # .data: what autograd has kept is not changed by this, as far as it knows.
            self.handle = dist.all_gather_into_tensor(self.whole.data, self.shard.detach(), async_op=True)

    def fill(self):
        self.start()
        if self.handle is not None:
            self.handle.wait()
            self.handle = None

    def forward(self, *inputs):
        weights = self.views(_Resized.apply(self.shard, self))
        result = functional_call(self.module, weights, inputs)
        several = isinstance(result, tuple)
        results = tuple(_Refill.apply(each, self) for each in (result if several else (result,)))
        self.whole.untyped_storage().resize_(0)
        return results if several else results[0]


@right("prefetch")
def in_a_list(modules):
    """Each unit's forward and backward hooks look up the neighbours in a list."""
    units = [Recomputing(module) for module in modules]

    def ahead(unit, by):
        place = units.index(unit)
        unit.start()
        if 0 <= place + by < len(units):
            units[place + by].start()

    for unit in units:
        unit.register_forward_pre_hook(lambda unit, inputs: ahead(unit, 1))
        unit.register_full_backward_pre_hook(lambda unit, gradients: ahead(unit, -1))
    return nn.Sequential(*units)


@right("prefetch")
def own_sequential(modules):
    """A Sequential whose forward starts units itself; in backward hooks do."""

    class Ahead(nn.Sequential):
        def forward(self, x):
            for unit, following in zip(self, [*list(self)[1:], None], strict=True):
                unit.start()
                if following is not None:
                    following.start()
                x = unit(x)
            return x

    units = [Resizing(module) for module in modules]
    for before, unit in zip([None, *units], units, strict=False):
        if before is not None:
            unit.register_full_backward_pre_hook(
                lambda unit, _, before=before: (unit.start(), before.start())[2:] or None
            )
    return Ahead(*units)


@right("clip_grad_norm")
def bounded_factor(shards, max_norm):
    total, there = torch.zeros(1), []
    for shard in shards:
        if shard.grad is not None:
            there.append(shard)
            total += shard.grad.to(torch.float32).pow(2).sum()
    dist.all_reduce(total)
    norm = torch.sqrt(total)[0]
    factor = min(1.0, max_norm / max(norm.item(), 1e-30))
    for shard in there:
        shard.grad *= factor
    return norm


@right("gather_state")
def rank_by_rank(shards, shapes):
    """Rank 0 makes all tensors first, and takes the ranks one after the other."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if rank:
        for shard in shards.values():
            dist.send(shard, 0)
        return None
    state = {name: torch.empty(shape, dtype=shards[name].dtype) for name, shape in shapes.items()}
    for source in range(ranks):
        for name, whole in state.items():
            begin, end = _ends(whole.numel(), ranks, source)
            if source:
                dist.recv(whole.view(-1)[begin:end], source)
            else:
                whole.view(-1)[begin:end] = shards[name]
    return state


# ---------------------------------------------------------------------------------------------- HostOffload


@right("HostOffload")
class ListOfWeakReferences:
    """A list of all that was packed, without those whose graph is gone."""

    class Packed:
        def __init__(self, held):
            self.held, self.copy, self.asked = held, None, 0

        def begin(self, times):
            if self.copy is None and self.asked < times:
                self.copy = self.held.to_device()

    def __init__(self, host, stays, ahead=1):
        self.host, self.ahead = host, ahead
        self.stays = tuple(stays)
        self.packed = []

    def pack(self, tensor):
        shared = {kept.untyped_storage().data_ptr() for kept in self.stays}
        if tensor.untyped_storage().data_ptr() in shared:
            return (tensor,)
        packed = self.Packed(self.host.to_host(tensor))
        self.packed.append(weakref.ref(packed))
        return packed

    def unpack(self, packed):
        if isinstance(packed, tuple):
            return packed[0]
        self.packed = [each for each in self.packed if each() is not None]
        end = self.packed.index(weakref.ref(packed)) + 1
        # How often this backward has asked for a tensor, and those before it, once it is over.
        for each in reversed(self.packed[max(0, end - 1 - self.ahead) : end]):
            each().begin(packed.asked + 1)
        copy, packed.copy = packed.copy, None
        packed.asked += 1
        return copy.wait()


# ---------------------------------------------------------------------------------------- checkpoint_segments


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
