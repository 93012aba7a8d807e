"""Mistakes that people make in unit 09."""

import contextlib
import copy
import dataclasses
import itertools
import math
import weakref
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional

from course_lib.training.memory_plan import Plan, plan_cost
from course_lib.training.out_of_core import DoesNotFit, step
from tests.answers import wrong

# --------------------------------------------------------------------------------------- zero_memory


def _memory(whole, shard, stage, state_bytes):
    held = [shard if stage >= begins else whole for begins in (3, 2, 1)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


@wrong("zero_memory", fails="the optimizer's numbers")
def weights_of_four_bytes(parameters, ranks, stage, state_bytes=12):
    """Counts weights as if in single precision; they are among the optimizer's 12 bytes already."""
    return _memory(parameters, -(-parameters // ranks), stage, state_bytes) + 2 * parameters


@wrong("zero_memory", fails="nothing cut, and other optimizers")
def sixteen_bytes(parameters, ranks, stage, state_bytes=12):
    """The 12 bytes of Adam, whatever the optimizer is."""
    return _memory(parameters, -(-parameters // ranks), stage, 12)


@wrong("zero_memory", fails="the optimizer's numbers")
def cuts_the_model_in_stage_one(parameters, ranks, stage, state_bytes=12):
    """Takes stage 1 for that which cuts the weights: counts from the wrong end."""
    shard = -(-parameters // ranks)
    held = [shard if stage >= begins else parameters for begins in (1, 2, 3)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


@wrong("zero_memory", fails="gradients too")
def gradients_instead(parameters, ranks, stage, state_bytes=12):
    """Stage 2 cuts gradients and leaves the optimizer's numbers whole."""
    shard = -(-parameters // ranks)
    states = parameters if stage == 2 else shard
    return _memory(parameters, shard, min(stage, 2), 0) + state_bytes * (states if stage else parameters)


@wrong("zero_memory", fails="weights too")
def never_cuts_weights(parameters, ranks, stage, state_bytes=12):
    """Weights have to be there when the rank computes, so they are counted whole."""
    return _memory(parameters, -(-parameters // ranks), min(stage, 2), state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_down(parameters, ranks, stage, state_bytes=12):
    """The smallest shard, not the largest."""
    return _memory(parameters, parameters // ranks, stage, state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_bytes(parameters, ranks, stage, state_bytes=12):
    """Divides the bytes, so that a shard may end within a number."""
    cut, whole = {
        0: (0, 4 + state_bytes),
        1: (state_bytes, 4),
        2: (2 + state_bytes, 2),
        3: (4 + state_bytes, 0),
    }[stage]
    return whole * parameters + -(-cut * parameters // ranks)


# --------------------------------------------------------------------------------------- shard_range


@wrong("shard_range", fails="parts of one length")
def begin_and_length(numel, ranks, rank):
    """How many numbers there are, where the end was asked for."""
    length = -(-numel // ranks)
    begin = min(rank * length, numel)
    return begin, min(length, numel - begin)


@wrong("shard_range", fails="parts of one length")
def end_included(numel, ranks, rank):
    """The last number, not the one behind it."""
    length = -(-numel // ranks)
    return min(rank * length, numel), min((rank + 1) * length, numel) - 1


@wrong("shard_range", fails="a shorter part at the end")
def as_tensor_split(numel, ranks, rank):
    """Unit 07's parts: the first ones are longer by one."""
    length, longer = divmod(numel, ranks)
    begin = rank * length + min(rank, longer)
    return begin, begin + length + (rank < longer)


@wrong("shard_range", fails="a shorter part at the end")
def the_last_takes_the_rest(numel, ranks, rank):
    """Rounds the length down, and the last rank has what is left."""
    length = numel // ranks
    return rank * length, numel if rank == ranks - 1 else (rank + 1) * length


@wrong("shard_range", fails="ranks without numbers")
def begins_behind_the_end(numel, ranks, rank):
    """Bounds the end only: a rank that has nothing begins behind it."""
    length = -(-numel // ranks)
    return rank * length, min((rank + 1) * length, numel)


@wrong("shard_range", fails="ranks without numbers")
def only_the_last_is_shorter(numel, ranks, rank):
    """Only the last rank's shard ends before its part does."""
    length = -(-numel // ranks)
    return rank * length, numel if rank == ranks - 1 else (rank + 1) * length


# ----------------------------------------------------------------------------------- ShardedOptimizer


def _flat(tensors, ranks):
    numbers = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return functional.pad(numbers, (0, -len(numbers) % ranks))


def _unflat(whole, shapes):
    sizes = [shape.numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(whole[: sum(sizes)].split(sizes), shapes, strict=True)]


class _Sharded:
    """A right one, of parts that the wrong ones replace."""

    def __init__(self, parameters, optimizer_class, **options):
        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.own = [self.trained(group["params"]) for group in groups]
        shards = [self.shard(own) for own in self.own]
        self.optimizer = optimizer_class(
            [{**group, "params": [shard]} for group, shard in zip(groups, shards, strict=True)], **options
        )
        self.param_groups = self.optimizer.param_groups

    def trained(self, parameters):
        return [p for p in parameters if p.requires_grad]

    def shard(self, own):
        return nn.Parameter(
            _flat(own, dist.get_world_size()).view(dist.get_world_size(), -1)[dist.get_rank()].clone()
        )

    def gradient(self, own):
        return _flat((torch.zeros_like(p) if p.grad is None else p.grad for p in own), dist.get_world_size())

    def reduce(self, shard, own):
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, self.gradient(own) / dist.get_world_size())

    def gather(self, shard, own):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_into_tensor(whole, shard)
        for parameter, values in zip(own, _unflat(whole, [p.shape for p in own]), strict=True):
            parameter.copy_(values)

    @torch.no_grad()
    def step(self):
        for own, group in zip(self.own, self.optimizer.param_groups, strict=True):
            self.reduce(group["params"][0], own)
        self.optimizer.step()
        for own, group in zip(self.own, self.optimizer.param_groups, strict=True):
            self.gather(group["params"][0], own)

    def zero_grad(self):
        for own in self.own:
            for parameter in own:
                parameter.grad = None


@wrong("ShardedOptimizer", fails="the first step")
class SumsGradients(_Sharded):
    """The sum over ranks, not the mean: with Adam it hardly shows."""

    def reduce(self, shard, own):
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, self.gradient(own))


@wrong("ShardedOptimizer", fails="the first step")
class ItsOwnGradients(_Sharded):
    """Each rank updates its part with the gradients of its own samples."""

    def reduce(self, shard, own):
        shard.grad = self.gradient(own).view(dist.get_world_size(), -1)[dist.get_rank()].clone()


@wrong("ShardedOptimizer", fails="groups and their options")
class OverwritesTheDicts(_Sharded):
    """Puts its shards into the caller's dicts."""

    def __init__(self, parameters, optimizer_class, **options):
        given = list(parameters)
        super().__init__(given, optimizer_class, **options)
        for group, made in zip(given, self.param_groups, strict=False):
            if isinstance(group, dict):
                group["params"] = made["params"]


@wrong("ShardedOptimizer", fails="every step")
class TurnsGradientsOff(_Sharded):
    """So that copying into parameters is allowed, and forgets to turn them on again."""

    def step(self):
        for own in self.own:
            for parameter in own:
                parameter.requires_grad_(False)
        super().step()


@wrong("ShardedOptimizer", fails="groups and their options")
class CopiesOfTheOptions(_Sharded):
    """param_groups that nobody reads."""

    def __init__(self, parameters, optimizer_class, **options):
        super().__init__(parameters, optimizer_class, **options)
        self.param_groups = [dict(group) for group in self.optimizer.param_groups]


@wrong("ShardedOptimizer", fails="zero_grad")
class ClearsNothing(_Sharded):
    """Takes it that step() has cleared them."""

    def zero_grad(self):
        pass


@wrong("ShardedOptimizer", fails="groups and their options")
class TheLastRateOnly(_Sharded):
    """Hands on the last group's rate, and no other option."""

    def __init__(self, parameters, optimizer_class, **options):
        super().__init__(parameters, optimizer_class, **options)
        self.param_groups = [dict(group) for group in self.optimizer.param_groups]

    def step(self):
        self.optimizer.param_groups[-1]["lr"] = self.param_groups[-1]["lr"]
        super().step()


@wrong("ShardedOptimizer", fails="zero_grad")
class ClearsTheShards(_Sharded):
    """Hands zero_grad() on to the optimizer, which knows the shards only."""

    def zero_grad(self):
        self.optimizer.zero_grad()


@wrong("ShardedOptimizer", fails="a part of the state")
class WholeState(_Sharded):
    """Every rank updates everything, and then takes over what each rank has in its part."""

    def shard(self, own):
        return nn.Parameter(_flat(own, dist.get_world_size()))

    def reduce(self, shard, own):
        part = shard.new_empty(len(shard) // dist.get_world_size())
        dist.reduce_scatter_tensor(part, self.gradient(own) / dist.get_world_size())
        shard.grad = torch.zeros_like(shard)
        shard.grad.view(dist.get_world_size(), -1)[dist.get_rank()] = part

    def gather(self, shard, own):
        part = shard.view(dist.get_world_size(), -1)[dist.get_rank()].clone()
        dist.all_gather_into_tensor(shard, part)
        for parameter, values in zip(own, _unflat(shard, [p.shape for p in own]), strict=True):
            parameter.copy_(values)


@wrong("ShardedOptimizer", fails="nothing else is kept")
class KeepsTheFlat(_Sharded):
    """Keeps flat tensors of whole groups, to make them once only."""

    def gather(self, shard, own):
        self.kept = getattr(self, "kept", {})
        whole = self.kept.setdefault(id(shard), shard.new_empty(4 * dist.get_world_size() * len(shard)))
        whole = whole[: dist.get_world_size() * len(shard)]
        dist.all_gather_into_tensor(whole, shard)
        for parameter, values in zip(own, _unflat(whole, [p.shape for p in own]), strict=True):
            parameter.copy_(values)


@wrong("ShardedOptimizer", fails="calls")
class AllReducesGradients(_Sharded):
    """Averages all gradients on all ranks first, as data parallelism does: half as many bytes again."""

    def reduce(self, shard, own):
        whole = self.gradient(own)
        dist.all_reduce(whole)
        shard.grad = (whole / dist.get_world_size()).view(dist.get_world_size(), -1)[dist.get_rank()].clone()


# ----------------------------------------------------------------------------------- ShardedGradients


class _Gradients:
    """A right one, of parts that the wrong ones replace."""

    def __init__(self, model, bucket_bytes):
        self.buckets = self.cut(model, bucket_bytes)
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: self.arrived(number))
        self.begin()

    def parameters(self, model):
        return [p for p in reversed(list(model.parameters())) if p.requires_grad]

    def cut(self, model, bucket_bytes):
        buckets = []
        for parameter in self.parameters(model):
            if not buckets or sum(p.nbytes for p in buckets[-1]) + parameter.nbytes > bucket_bytes:
                buckets.append([])
            buckets[-1].append(parameter)
        return buckets

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.shards, self.handle, self.sent = [], None, None

    def arrived(self, number):
        self.missing[number] -= 1
        self.send_complete()

    def send_complete(self):
        while len(self.shards) < len(self.buckets) and self.missing[len(self.shards)] == 0:
            self.send(self.buckets[len(self.shards)])

    def wait(self):
        if self.handle:
            self.handle.wait()
            self.handle = self.sent = None

    def whole(self, bucket):
        ranks = dist.get_world_size()
        whole = _flat((torch.zeros_like(p) if p.grad is None else p.grad for p in bucket), ranks) / ranks
        for parameter in bucket:
            parameter.grad = None
        return whole

    def send(self, bucket):
        self.wait()
        whole = self.whole(bucket)
        self.shards.append(whole.new_empty(len(whole) // dist.get_world_size()))
        self.handle = dist.reduce_scatter_tensor(self.shards[-1], whole, async_op=True)

    def finish(self):
        while len(self.shards) < len(self.buckets):
            self.send(self.buckets[len(self.shards)])
        self.wait()
        shards = self.shards
        self.begin()
        return shards


@wrong("ShardedGradients", fails="shards of the mean")
class SumsInShards(_Gradients):
    """Forgets to divide."""

    def whole(self, bucket):
        return super().whole(bucket) * dist.get_world_size()


@wrong("ShardedGradients", fails="any ranks and parameters")
class PartsThatAreNotEven(_Gradients):
    """Cuts without padding, as tensor_split does."""

    def finish(self):
        shards = super().finish()
        place, ranks = dist.get_rank(), dist.get_world_size()
        lengths = [sum(p.numel() for p in bucket) for bucket in self.buckets]
        return [
            shard[: len(torch.empty(length).tensor_split(ranks)[place])]
            for shard, length in zip(shards, lengths, strict=True)
        ]


@wrong("ShardedGradients", fails="every pass")
class CountsOnce(_Gradients):
    """Never counts anew: in the second pass finish() returns the shards of the first."""

    def finish(self):
        while len(self.shards) < len(self.buckets):
            self.send(self.buckets[len(self.shards)])
        self.wait()
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.grad = None
        return self.shards


@wrong("ShardedGradients", fails="buckets")
class BucketsFromTheFirst(_Gradients):
    """Begins with the first layer, which is the last to be complete."""

    def parameters(self, model):
        return [p for p in model.parameters() if p.requires_grad]


@wrong("ShardedGradients", fails="buckets")
class OverfullBuckets(_Gradients):
    """Closes a bucket when it has become too large, one parameter too late."""

    def cut(self, model, bucket_bytes):
        buckets = []
        for parameter in self.parameters(model):
            if not buckets or sum(p.nbytes for p in buckets[-1]) >= bucket_bytes:
                buckets.append([])
            buckets[-1].append(parameter)
        return buckets


@wrong("ShardedGradients", fails="layers that a rank does not use")
class SendsAsTheyCome(_Gradients):
    """Sends whichever bucket is complete: ranks in another order add up what does not belong together."""

    def begin(self):
        super().begin()
        self.found = {}

    def arrived(self, number):
        self.missing[number] -= 1
        if self.missing[number] == 0:
            self.send(self.buckets[number])
            self.found[number] = self.shards[-1]

    def finish(self):
        for number in range(len(self.buckets)):
            if number not in self.found:
                self.send(self.buckets[number])
                self.found[number] = self.shards[-1]
        self.wait()
        shards = [self.found[number] for number in range(len(self.buckets))]
        self.begin()
        return shards


@wrong("ShardedGradients", fails="layers that a rank does not use")
class OnlyWhatIsThere(_Gradients):
    """Takes it that every parameter has a gradient."""

    def whole(self, bucket):
        whole = _flat((p.grad for p in bucket), dist.get_world_size()) / dist.get_world_size()
        for parameter in bucket:
            parameter.grad = None
        return whole


@wrong("ShardedGradients", fails="calls")
class ReducesAll(_Gradients):
    """An all-reduce, of which each rank then takes its part: twice the bytes, and the whole on every rank."""

    def send(self, bucket):
        self.wait()
        whole = self.whole(bucket)
        self.shards.append(whole.view(dist.get_world_size(), -1)[dist.get_rank()])
        self.handle = dist.all_reduce(whole, async_op=True)


@wrong("ShardedGradients", fails="sent in backward")
class SendsInFinish(_Gradients):
    """Nothing is sent before finish()."""

    def send_complete(self):
        pass


@wrong("ShardedGradients", fails="sent in backward")
class LeavesTheBlocked(_Gradients):
    """A bucket that had to wait for one before it is sent in finish() only."""

    def send_complete(self):
        if len(self.shards) < len(self.buckets) and self.missing[len(self.shards)] == 0:
            self.send(self.buckets[len(self.shards)])


@wrong("ShardedGradients", fails="no more than a bucket beside the shards")
class AllUnderWay(_Gradients):
    """Waits in finish() only: until then every flat bucket is there, all gradients together."""

    def begin(self):
        super().begin()
        self.handles = []

    def send(self, bucket):
        whole = self.whole(bucket)
        self.shards.append(whole.new_empty(len(whole) // dist.get_world_size()))
        self.handles.append((dist.reduce_scatter_tensor(self.shards[-1], whole, async_op=True), whole))

    def wait(self):
        for handle, _ in self.handles:
            handle.wait()


# ----------------------------------------------------------------------- FullyShardedUnit and prefetch


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, unit):
        ctx.unit = unit
        return unit.gather().view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.unit.scatter(gradient), None


class _Unit(nn.Module):
    """A right one, of parts that the wrong ones replace."""

    def __init__(self, module):
        super().__init__()
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.shard = nn.Parameter(self.part(_flat(parameters.values(), dist.get_world_size())))
        empty = {id(parameter): nn.Parameter(parameter.new_empty(0)) for parameter in parameters.values()}
        self.code = [copy.deepcopy(module, empty)]
        self.whole = self.handle = None

    def part(self, whole):
        return whole.view(dist.get_world_size(), -1)[dist.get_rank()].clone()

    def start(self):
        if self.whole is None:
            self.whole = self.shard.new_empty(dist.get_world_size() * len(self.shard)).detach()
            self.handle = dist.all_gather_into_tensor(self.whole, self.shard.detach(), async_op=True)

    def gather(self):
        self.start()
        if self.handle:
            self.handle.wait()
            self.handle = None
        return self.whole

    def scatter(self, gradient):
        self.gather()
        self.whole = None
        own = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(own, gradient / dist.get_world_size())
        return own

    def compute(self, inputs):
        weights = _unflat(_Gathered.apply(self.shard, self), list(self.shapes.values()))
        return functional_call(self.code[0], dict(zip(self.shapes, weights, strict=True)), inputs)

    def packed(self, tensor):
        if tensor.untyped_storage().data_ptr() != self.whole.untyped_storage().data_ptr():
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpacked(self, kept):
        return kept if isinstance(kept, Tensor) else self.gather().as_strided(*kept)

    def forward(self, *inputs):
        self.gather()
        with saved_tensors_hooks(self.packed, self.unpacked):
            result = self.compute(inputs)
        self.whole = None
        return result


@wrong("FullyShardedUnit", fails="the shard")
class ModuleInside(_Unit):
    """Keeps the module as its own: an optimizer finds its parameters too."""

    def __init__(self, module):
        super().__init__(module)
        self.module = module


@wrong("FullyShardedUnit", fails="the shard")
class PartsOfParameters(_Unit):
    """Cuts each parameter by itself, so that a part is not a piece of the whole."""

    def __init__(self, module):
        super().__init__(module)
        ranks, rank = dist.get_world_size(), dist.get_rank()
        pieces = [_flat([p], ranks).view(ranks, -1)[rank] for p in module.parameters()]
        self.shard = nn.Parameter(torch.cat(pieces))


@wrong("FullyShardedUnit", fails="forward")
class GathersOnce(_Unit):
    """Computes with the weights that it was made with."""

    def __init__(self, module):
        super().__init__(module)
        self.first = _flat(module.parameters(), dist.get_world_size())

    def gather(self):
        super().gather()
        return self.whole.copy_(self.first)


@wrong("FullyShardedUnit", fails="forward")
class LearnsNothing(_Unit):
    """Gathers what it copied when it was made, not what the optimizer has made of it."""

    def __init__(self, module):
        super().__init__(module)
        self.old = self.shard.detach().clone()

    def start(self):
        new = self.shard.detach().clone()
        with torch.no_grad():
            self.shard.copy_(self.old)
            super().start()
            self.shard.copy_(new)


@wrong("FullyShardedUnit", fails="inputs and results of all kinds")
class OneInput(_Unit):
    """Takes one tensor, as the layers of a Sequential do."""

    def forward(self, x):
        return super().forward(x)


@wrong("FullyShardedUnit", fails="gradients")
class NeedsGradientsOfInputs(_Unit):
    """Has every input ask for a gradient, which whole numbers cannot have."""

    def forward(self, *inputs):
        return super().forward(*(each if each.requires_grad else each.requires_grad_() for each in inputs))


@wrong("FullyShardedUnit", fails="inputs and results of all kinds")
class DrawsAnew(_Unit):
    """Computes forward again in backward, with another dropout."""

    def forward(self, *inputs):
        result = super().forward(*inputs)
        if not isinstance(result, tuple):
            return result
        again = super().forward(*inputs)
        return tuple(a.detach() + b - b.detach() for a, b in zip(result, again, strict=True))


@wrong("FullyShardedUnit", fails="any ranks and parameters")
class FillsThePadding(_Unit):
    """Leaves in the padding what happens to be there."""

    def scatter(self, gradient):
        own = super().scatter(gradient)
        padding = self.shard.numel() * dist.get_world_size() - sum(map(math.prod, self.shapes.values()))
        if dist.get_rank() == dist.get_world_size() - 1 and padding:
            own[-padding:] = 7.0
        return own


@wrong("FullyShardedUnit", fails="lets go in forward")
class KnowsAWeightByItsShape(_Unit):
    """Lets go of what has a parameter's shape; a linear layer saves the transposed one."""

    def packed(self, tensor):
        return super().packed(tensor) if tensor.shape in self.shapes.values() else tensor


@wrong("FullyShardedUnit", fails="every step")
class OverwritesGradients(_Unit):
    """Each backward replaces shard.grad."""

    def scatter(self, gradient):
        own = super().scatter(gradient)
        self.shard.grad = None
        return own


@wrong("FullyShardedUnit", fails="keeps a shard")
class ViewOfTheFlat(_Unit):
    """The shard is a view of the flat tensor, which lives as long as the shard does."""

    def part(self, whole):
        return whole.view(dist.get_world_size(), -1)[dist.get_rank()]


@wrong("FullyShardedUnit", fails="start")
class StartedInVain(_Unit):
    """Forgets weights that were asked for, and that backward did not need."""

    def scatter(self, gradient):
        self.whole = None
        own = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(own, gradient / dist.get_world_size())
        return own


@wrong("FullyShardedUnit", fails="lets go in backward")
class KeepsAfterBackward(_Unit):
    """Gathers in backward, and lets go only where the next forward begins."""

    def scatter(self, gradient):
        own = super().scatter(gradient)
        self.kept = self.shard.new_empty(dist.get_world_size() * len(self.shard))
        return own

    def forward(self, *inputs):
        self.kept = None
        return super().forward(*inputs)


@wrong("FullyShardedUnit", fails="calls")
class CallForEachParameter(_Unit):
    """Sends each parameter's gradient by itself."""

    def scatter(self, gradient):
        own = super().scatter(gradient)
        for _ in self.shapes:
            dist.barrier()
        return own


def _prefetching(modules, forward, backward, unit=_Unit):
    """forward, backward: from a unit's place to the places of those to be started before it computes."""
    units = [unit(module) for module in modules]

    def start(places):
        for place in places:
            if 0 <= place < len(units):
                units[place].start()

    for each, first, second in zip(units, map(forward, count()), map(backward, count()), strict=False):
        each.register_forward_pre_hook(lambda *_, places=first: start(places))
        each.register_full_backward_pre_hook(lambda *_, places=second: start(places))
    return nn.Sequential(*units)


def _next_too(place):
    return place, place + 1


def _before_too(place):
    return place, place - 1


@wrong("prefetch", fails="ahead in forward")
def no_prefetching(modules):
    """Units alone."""
    return nn.Sequential(*map(_Unit, modules))


@wrong("prefetch", fails="ahead in forward")
def starts_itself(modules):
    """Starts the unit that is about to compute, and waits for it right away."""
    return _prefetching(modules, lambda place: (place,), lambda place: (place,))


@wrong("prefetch", fails="ahead in backward")
def forward_only(modules):
    """Backward gathers each unit when it is needed."""
    return _prefetching(modules, _next_too, lambda place: ())


@wrong("prefetch", fails="ahead in backward")
def one_order_for_both(modules):
    """Starts the next unit in backward too, which has just let go of its weights."""
    return _prefetching(modules, _next_too, lambda place: (place,))


@wrong("prefetch", fails="nobody waits for the neighbour")
def neighbour_first_in_backward(modules):
    """In backward the last unit's own weights come behind those of the one before it."""
    return _prefetching(modules, _next_too, lambda place: (place - 1, place))


@wrong("prefetch", fails="two units at most")
def all_at_once(modules):
    """Starts every unit before the first computes."""
    return _prefetching(modules, lambda place: range(place, len(modules)), _before_too)


@wrong("prefetch", fails="two units at most")
def two_ahead(modules):
    """Three units have weights."""
    return _prefetching(
        modules, lambda place: (place, place + 1, place + 2), lambda place: (place, place - 1, place - 2)
    )


@wrong("prefetch", fails="computes as without")
def plain_modules(modules):
    """The modules as they are: nothing is cut."""
    return nn.Sequential(*modules)


@wrong("prefetch", fails="computes as without")
def in_reverse(modules):
    """A model that calls them from the last."""
    return _prefetching(list(modules)[::-1], _next_too, _before_too)


# ------------------------------------------------------------------------------------ clip_grad_norm


def _clip(gradients, max_norm, norm):
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm


def _gradients(shards):
    return [shard.grad for shard in shards if shard.grad is not None]


def _total(gradients):
    total = sum((g.float().square().sum() for g in gradients), torch.zeros(()))
    dist.all_reduce(total)
    return total


@wrong("clip_grad_norm", fails="the norm")
def norm_of_its_own(shards, max_norm):
    """Each rank clips with the norm of its own shards."""
    gradients = _gradients(shards)
    norm = sum((g.float().square().sum() for g in gradients), torch.zeros(())).sqrt()
    dist.all_reduce(norm.clone())
    return _clip(gradients, max_norm, norm)


@wrong("clip_grad_norm", fails="the norm")
def sum_of_norms(shards, max_norm):
    """Adds up norms instead of their squares."""
    gradients = _gradients(shards)
    norm = sum((g.float().square().sum() for g in gradients), torch.zeros(())).sqrt()
    dist.all_reduce(norm)
    return _clip(gradients, max_norm, norm)


@wrong("clip_grad_norm", fails="scaled down")
def new_tensors(shards, max_norm):
    """Scales copies."""
    gradients = [g.clone() for g in _gradients(shards)]
    total = _total(gradients)
    return _clip(gradients, max_norm, total.sqrt())


@wrong("clip_grad_norm", fails="scaled down")
def new_gradients(shards, max_norm):
    """Sets .grad to another tensor; who refers to the one before sees nothing of it."""
    own = [shard for shard in shards if shard.grad is not None]
    total = sum((shard.grad.float().square().sum() for shard in own), torch.zeros(()))
    dist.all_reduce(total)
    if total.sqrt() > max_norm:
        for shard in own:
            shard.grad = shard.grad * (max_norm / total.sqrt()).to(shard.dtype)
    return total.sqrt()


@wrong("clip_grad_norm", fails="left alone")
def always_scales(shards, max_norm):
    """Small gradients become large."""
    gradients = _gradients(shards)
    total = _total(gradients)
    for gradient in gradients:
        gradient.mul_(max_norm / total.sqrt())
    return total.sqrt()


@wrong("clip_grad_norm", fails="left alone")
def unless_it_is_small(shards, max_norm):
    """Scales where the norm is not small: a NaN is not."""
    gradients = _gradients(shards)
    total = _total(gradients)
    for gradient in gradients if not total.sqrt() <= max_norm else []:
        gradient.mul_(max_norm / total.sqrt())
    return total.sqrt()


@wrong("clip_grad_norm", fails="ranks without gradients, and bfloat16")
def only_who_has_any(shards, max_norm):
    """A rank without gradients does not take part, and the others wait for it."""
    gradients = _gradients(shards)
    return _clip(gradients, max_norm, _total(gradients).sqrt()) if gradients else torch.zeros(())


@wrong("clip_grad_norm", fails="ranks without gradients, and bfloat16")
def needs_a_shard(shards, max_norm):
    """torch.cat of nothing is an error."""
    gradients = _gradients(shards)
    total = torch.cat([g.float().flatten() for g in gradients]).square().sum()
    dist.all_reduce(total)
    return _clip(gradients, max_norm, total.sqrt())


@wrong("clip_grad_norm", fails="one number")
def all_gradients_to_all(shards, max_norm):
    """Every rank tells every other its sum of squares; each adds them up."""
    gradients = _gradients(shards)
    total = sum((g.float().square().sum() for g in gradients), torch.zeros(()))
    sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, total)
    return _clip(gradients, max_norm, torch.stack(sums).sum().sqrt())


@wrong("clip_grad_norm", fails="one number")
def in_double(shards, max_norm):
    """Eight bytes where four were asked for."""
    gradients = _gradients(shards)
    total = sum((g.double().square().sum() for g in gradients), torch.zeros((), dtype=torch.float64))
    dist.all_reduce(total)
    return _clip(gradients, max_norm, total.sqrt().float())


# -------------------------------------------------------------------------------------- gather_state


def _length(shape):
    return -(-shape.numel() // dist.get_world_size())


def _to_rank_0(shards, shapes, finished=lambda name, state: state, skip=lambda numel, rank: False):
    """A right one."""
    rank, ranks, state = dist.get_rank(), dist.get_world_size(), {}
    for name, shape in shapes.items():
        length = _length(shape)
        padded = functional.pad(shards[name], (0, length - len(shards[name])))
        parts = [torch.empty_like(padded) for _ in range(ranks)] if rank == 0 else None
        dist.gather(padded, parts, dst=0)
        if rank == 0:
            state[name] = torch.cat(parts)[: shape.numel()].view(shape)
    return state if rank == 0 else None


@wrong("gather_state", fails="whole tensors")
def with_the_padding_in(shards, shapes):
    """Leaves the padding at the end of the flat tensors."""
    rank, ranks, state = dist.get_rank(), dist.get_world_size(), {}
    for name, shape in shapes.items():
        padded = functional.pad(shards[name], (0, _length(shape) - len(shards[name])))
        parts = [torch.empty_like(padded) for _ in range(ranks)] if rank == 0 else None
        dist.gather(padded, parts, dst=0)
        if rank == 0:
            state[name] = torch.cat(parts)
    return state if rank == 0 else None


@wrong("gather_state", fails="whole tensors")
def everyone_has_it(shards, shapes):
    """Returns a dict on every rank."""
    return _to_rank_0(shards, shapes) or {}


@wrong("gather_state", fails="ranks without numbers")
def parts_of_one_length(shards, shapes):
    """Takes it that the last rank has the shorter part, and everyone some: a scalar cannot be cut."""
    rank, ranks, state = dist.get_rank(), dist.get_world_size(), {}
    for name, shape in shapes.items():
        if rank:
            dist.send(shards[name], 0)
        else:
            length = len(shards[name])
            lengths = [length] * (ranks - 1) + [shape.numel() - length * (ranks - 1)] * (ranks > 1)
            parts = [shards[name]] + [shards[name].new_empty(each) for each in lengths[1:]]
            for source in range(1, ranks):
                dist.recv(parts[source], source)
            state[name] = torch.cat(parts)[: shape.numel()].view(shape)
    return state if rank == 0 else None


@wrong("gather_state", fails="arguments unchanged")
def empties_the_shards(shards, shapes):
    """Takes each shard out of the dict once it is sent."""
    state = _to_rank_0(shards, shapes)
    shards.clear()
    return state


@wrong("gather_state", fails="arguments unchanged")
def empties_the_shapes(shards, shapes):
    """Takes out what is done."""
    state = _to_rank_0(shards, shapes)
    shapes.clear()
    return state


@wrong("gather_state", fails="shards that are not equal")
def in_single_precision(shards, shapes):
    """Receives into float32, whatever was sent."""
    return _to_rank_0({name: shard.float() for name, shard in shards.items()}, shapes)


@wrong("gather_state", fails="each shard once")
def all_to_all_ranks(shards, shapes):
    """An all-gather: everyone gets everything."""
    rank, ranks, state = dist.get_rank(), dist.get_world_size(), {}
    for name, shape in shapes.items():
        padded = functional.pad(shards[name], (0, _length(shape) - len(shards[name])))
        whole = padded.new_empty(ranks * len(padded))
        dist.all_gather_into_tensor(whole, padded)
        if rank == 0:
            state[name] = whole[: shape.numel()].view(shape)
    return state if rank == 0 else None


@wrong("gather_state", fails="each shard once")
def whole_by_reduce(shards, shapes):
    """Each rank sends a whole tensor with zeros where it has nothing, and rank 0 adds them up."""
    rank, state = dist.get_rank(), {}
    for name, shape in shapes.items():
        whole = shards[name].new_zeros(shape.numel())
        begin = min(rank * _length(shape), shape.numel())
        whole[begin : begin + len(shards[name])] = shards[name]
        dist.reduce(whole, 0)
        if rank == 0:
            state[name] = whole.view(shape)
    return state if rank == 0 else None


@wrong("gather_state", fails="memory of the others")
def a_whole_one_to_receive_into(shards, shapes):
    """Every rank makes room for the whole tensor, though only rank 0 fills it."""
    for name, shape in shapes.items():
        shards[name].new_empty(shape)
    return _to_rank_0(shards, shapes)


@wrong("gather_state", fails="memory of rank 0")
def a_flat_state(shards, shapes):
    """All tensors of a dtype in one flat tensor, cut up afterwards: rank 0 holds all twice."""
    state = _to_rank_0(shards, shapes)
    kept = [each.clone() for each in state.values()] if state else []
    return state if kept or state is None else None


# ---------------------------------------------------------------------------------------------- HostOffload


class _Offload:
    """What most of these share: the right one, in parts."""

    asked = False

    def __init__(self, host, stays, ahead=1):
        self.host, self.ahead = host, ahead
        self.stays = list(stays)
        self.known = {tensor.untyped_storage().data_ptr() for tensor in self.stays}
        self.arriving, self.had = weakref.WeakKeyDictionary(), weakref.WeakSet()

    def pack(self, tensor):
        if tensor.untyped_storage().data_ptr() in self.known:
            return tensor
        held = self.host.to_host(tensor)
        self.arriving[held] = None
        return held

    def due(self, packed):
        order = list(self.arriving)
        place = order.index(packed)
        return reversed(order[max(0, place - self.ahead) : place + 1])

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        if packed in self.had:
            self.had.clear()
        for each in self.due(packed):
            if self.arriving[each] is None and each not in self.had:
                self.arriving[each] = each.to_device()
        self.had.add(packed)
        arriving, self.arriving[packed] = self.arriving[packed], None
        return arriving.wait()


@wrong("HostOffload", fails="every backward")
class TakesEachOnce(_Offload):
    """Forgets what it has packed once backward has had it: a second backward finds nothing."""

    def unpack(self, packed):
        tensor = super().unpack(packed)
        self.arriving.pop(packed, None)
        return tensor


@wrong("HostOffload", fails="gradients")
class RemembersByShape(_Offload):
    """Gives back the last tensor of the same shape."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.by_shape = {}

    def pack(self, tensor):
        packed = super().pack(tensor)
        if not isinstance(packed, torch.Tensor):
            self.by_shape[tensor.shape] = packed
            return tensor.shape
        return packed

    def unpack(self, packed):
        return super().unpack(self.by_shape.get(packed) if isinstance(packed, torch.Size) else packed)


@wrong("HostOffload", fails="on the way ahead")
class OneListForAll(_Offload):
    """One dictionary, made with the function, for all objects: what another has packed is in between."""

    def __init__(self, *arguments, everybodys=weakref.WeakKeyDictionary()):  # noqa: B006
        super().__init__(*arguments)
        self.arriving = everybodys


@wrong("HostOffload", fails="what is copied")
class CopiesTheWeights(_Offload):
    """All that autograd saves goes to the host, as with save_on_cpu."""

    def __init__(self, host, stays, ahead=1):
        super().__init__(host, [], ahead)


@wrong("HostOffload", fails="what is copied")
class AsksWhetherItIsAParameter(_Offload):
    """A view of a parameter is no parameter."""

    def pack(self, tensor):
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        self.known = set()
        return super().pack(tensor)


@wrong("HostOffload", fails="on the way ahead")
class TwiceInABackward(_Offload):
    """Copies once more what backward has had: of two that an operation saved, it asks for the first first."""

    def unpack(self, packed):
        self.had.clear()
        return super().unpack(packed)


@wrong("HostOffload", fails="the device's memory")
class HoldsTheTensor(_Offload):
    """Remembers what it has packed, and so keeps it on the device too."""

    def pack(self, tensor):
        packed = super().pack(tensor)
        if packed is not tensor:
            packed.tensor = tensor
        return packed


@wrong("HostOffload", fails="the device's memory")
class HoldsWhatHasArrived(_Offload):
    """Backward has had it, and it is still referred to."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.arrived = []

    def unpack(self, packed):
        self.arrived.append(super().unpack(packed))
        return self.arrived[-1]


@wrong("HostOffload", fails="the host's memory")
class HoldsWhatLiesOnTheHost(_Offload):
    """A list of all that was ever packed: the host fills up, step by step."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.all = []

    def pack(self, tensor):
        self.all.append(super().pack(tensor))
        return self.all[-1]


# ---------------------------------------------------------------------------------------- checkpoint_segments


def _cut(layers, ends):
    """The lengths of segments that end there."""
    ends = sorted({*ends, len(layers)} - {0})
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


@wrong("checkpoint_segments", fails="equal layers")
def root_of_the_number(layers):
    """Segments of equal length, as many as the root of the number of layers."""
    length = max(1, round(len(layers) ** 0.5))
    return _cut(layers, range(length, len(layers), length))


def _least(layers, peak):
    """The cut with the lowest peak, of all."""
    cuts = (
        _cut(layers, ends)
        for count in range(len(layers))
        for ends in itertools.combinations(range(1, len(layers)), count)
    )
    return min(cuts, key=lambda lengths: peak(lengths, layers))


def _segments(lengths, layers):
    """The layers of each segment."""
    ends = list(itertools.accumulate(lengths))
    return [layers[end - length : end] for end, length in zip(ends, lengths, strict=True)]


@wrong("checkpoint_segments", fails="equal layers")
def all_checkpoints_all_the_while(layers):
    """As in the paper: the sum of all checkpoints, and the largest segment."""

    def peak(lengths, layers):
        parts = _segments(lengths, layers)
        return sum(part[0][0] for part in parts) + max(sum(map(sum, part)) - part[0][0] for part in parts)

    return _least(layers, peak) if len(layers) < 12 else [len(layers)]


@wrong("checkpoint_segments", fails="layers that differ")
def input_counts_twice(layers):
    """As a checkpoint, and within its segment again."""

    def peak(lengths, layers):
        held, most = 0, 0
        for part in _segments(lengths, layers):
            held += part[0][0]
            most = max(most, held + sum(map(sum, part)))
        return most

    return _least(layers, peak) if len(layers) < 12 else [len(layers)]


@wrong("checkpoint_segments", fails="arguments unchanged")
def takes_layers_away(layers):
    """Takes layers from the caller's list."""
    result = _best_cut(layers)
    layers.clear()
    return result


def _best_cut(layers):
    best = [(0, [])] * (len(layers) + 1)
    for begin in reversed(range(len(layers))):
        best[begin] = min(
            (
                max(sum(map(sum, layers[begin:end])), layers[begin][0] + best[end][0]),
                [end - begin, *best[end][1]],
            )
            for end in range(begin + 1, len(layers) + 1)
        )
    return best[0][1]


@wrong("checkpoint_segments", fails="layers that differ")
def as_if_all_were_alike(layers):
    """The best cut of as many layers that are all like the mean."""
    count = len(layers)
    mean = [sum(numbers) / count for numbers in zip(*layers, strict=True)]
    return _best_cut([tuple(mean)] * count)


@wrong("checkpoint_segments", fails="many layers")
def tries_all_cuts(layers):
    """Right, but there are too many."""

    def peak(lengths, layers):
        held, most = 0, 0
        for part in _segments(lengths, layers):
            held += part[0][0]
            most = max(most, held + sum(map(sum, part)) - part[0][0])
        return most

    return _least(layers, peak)


# ------------------------------------------------------------------------------------------- out_of_core_plan


def _seconds(plan, *task):
    try:
        return step(plan, *task).seconds
    except DoesNotFit:
        return math.inf


@wrong("out_of_core_plan", fails="within the memory")
def keeps_all(bytes_, seconds, capacity, bandwidth):
    """The fastest plan, if there is memory."""
    return ["keep"] * len(bytes_)


@wrong("out_of_core_plan", fails="within the memory")
def keeps_until_it_is_full(bytes_, seconds, capacity, bandwidth):
    """Keeps the first layers that fit, and leaves no room for the others to be computed."""
    plan, held = [], 0
    for nbytes in bytes_:
        held += nbytes
        plan.append("keep" if held <= capacity else "recompute")
    return plan


@wrong("out_of_core_plan", fails="better than one way for all")
def computes_all_again(bytes_, seconds, capacity, bandwidth):
    """Always fits."""
    return ["recompute"] * len(bytes_)


@wrong("out_of_core_plan", fails="better than one way for all")
def swaps_all(bytes_, seconds, capacity, bandwidth):
    """Also what is needed at once."""
    return ["swap"] * len(bytes_)


@wrong("out_of_core_plan", fails="within 5 % of the best")
def best_of_the_simple_ones(bytes_, seconds, capacity, bandwidth):
    """One way for all but the first or the last layers, which are kept."""
    count = len(bytes_)
    plans = [[way] * count for way in ("keep", "swap", "recompute")]
    for kept, way in itertools.product(range(count), ("swap", "recompute")):
        plans += [["keep"] * kept + [way] * (count - kept), [way] * (count - kept) + ["keep"] * kept]
    return min(plans, key=lambda plan: _seconds(plan, bytes_, seconds, capacity, bandwidth))


@wrong("out_of_core_plan", fails="within 5 % of the best")
def one_change_after_another(bytes_, seconds, capacity, bandwidth):
    """From the best of the simple plans, as long as one change, or two at once, make it faster."""
    task = bytes_, seconds, capacity, bandwidth
    plan = best_of_the_simple_ones(*task)
    best, before = _seconds(plan, *task), math.inf
    while best < before:
        before = best
        for places in itertools.combinations_with_replacement(range(len(plan)), 2):
            for ways in itertools.product(("keep", "swap", "recompute"), repeat=2):
                changed = list(plan)
                for place, way in zip(places, ways, strict=True):
                    changed[place] = way
                if _seconds(changed, *task) < best:
                    plan, best = changed, _seconds(changed, *task)
    return plan


@wrong("out_of_core_plan", fails="arguments unchanged")
def sorts_the_layers(bytes_, seconds, capacity, bandwidth):
    """Leaves the caller's bytes in another order."""
    few = len(bytes_) < 8
    plan = _by_trying(bytes_, seconds, capacity, bandwidth) if few else ["recompute"] * len(bytes_)
    bytes_.append(bytes_.pop(0))
    return plan


def _by_trying(*task):
    plans = itertools.product(("keep", "swap", "recompute"), repeat=len(task[0]))
    return list(min(plans, key=lambda plan: _seconds(plan, *task)))


@wrong("out_of_core_plan", fails="many layers")
def tries_all_plans(bytes_, seconds, capacity, bandwidth):
    """Right, but there are too many."""
    return _by_trying(bytes_, seconds, capacity, bandwidth)


# ------------------------------------------------------------------------------------------------ plan_memory


def _affordable(task, ways=("keep", "swap", "recompute"), stages=range(4), alike=False, micro_batches=None):
    """Plans that fit, with their seconds."""
    divisors = [m for m in range(1, task.samples + 1) if task.samples % m == 0]
    each = itertools.product(ways, repeat=len(task.layers))
    for stage, m, chosen in itertools.product(stages, micro_batches or divisors, list(each)):
        if alike and len(set(chosen)) > 1:
            continue
        with contextlib.suppress(DoesNotFit):
            plan = Plan(stage, m, chosen)
            yield plan_cost(plan, task).seconds, stage, m, chosen


def _fastest(found):
    _, stage, m, chosen = min(found)
    return Plan(stage, m, chosen)


@wrong("plan_memory", fails="fits")
def as_if_there_were_room(task):
    """Stage 0, the whole batch, everything kept."""
    return Plan(0, 1, ["keep"] * len(task.layers))


@wrong("plan_memory", fails="fits")
def forgets_the_states(task):
    """Fills the whole device with activations."""
    free = dataclasses.replace(task, states=(0.0, 0.0, 0.0, 0.0))
    return _fastest(_affordable(free))


@wrong("plan_memory", fails="no slower than a single lever")
def saves_as_much_as_it_can(task):
    """Stage 3, one sample at a time, everything computed again."""
    return Plan(3, task.samples, ["recompute"] * len(task.layers))


@wrong("plan_memory", fails="no slower than a single lever")
def least_communication(task):
    """The lowest stage that fits at all, with the ways that fit first."""
    found = list(_affordable(task))
    lowest = min(stage for _, stage, _, _ in found)
    most = max(m for _, stage, m, _ in found if stage == lowest)
    return next(
        Plan(stage, m, chosen)
        for _, stage, m, chosen in sorted(found, reverse=True)
        if (stage, m) == (lowest, most)
    )


@wrong("plan_memory", fails="within a fifth of the best")
def one_way_for_all(task):
    """Every layer alike."""
    return _fastest(_affordable(task, alike=True))


@wrong("plan_memory", fails="within 5 % of the best")
def keeps_the_last_layers(task):
    """Keeps as many of the last layers as there is room for, and treats all others alike."""

    def rest(ways):
        return ways[: max((place + 1 for place, way in enumerate(ways) if way != "keep"), default=0)]

    return _fastest(each for each in _affordable(task) if len(set(rest(each[-1]))) <= 1)


@wrong("plan_memory", fails="within a fifth of the best")
def memory_before_messages(task):
    """Cuts as much as it can: stages 2 and 3 only."""
    return _fastest(_affordable(task, stages=(2, 3)))
