"""Mistakes that people make in unit 09."""

import contextlib
import copy
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
class ClearsNothing(_Sharded):
    """Takes it that step() has cleared them."""

    def zero_grad(self):
        pass


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


@wrong("ShardedGradients", fails="buckets")
class BucketsFromTheFirst(_Gradients):
    """Begins with the first layer, which is the last to be complete."""

    def parameters(self, model):
        return [p for p in model.parameters() if p.requires_grad]


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


@wrong("ShardedGradients", fails="calls")
class ReducesAll(_Gradients):
    """An all-reduce, of which each rank then takes its part: twice the bytes, and the whole on every rank."""

    def send(self, bucket):
        self.wait()
        whole = self.whole(bucket)
        self.shards.append(whole.view(dist.get_world_size(), -1)[dist.get_rank()])
        self.handle = dist.all_reduce(whole, async_op=True)


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


@wrong("FullyShardedUnit", fails="every step, any ranks and inputs")
class OneInput(_Unit):
    """Takes one tensor, as the layers of a Sequential do."""

    def forward(self, x):
        return super().forward(x)


@wrong("FullyShardedUnit", fails="lets go in forward")
class KnowsAWeightByItsShape(_Unit):
    """Lets go of what has a parameter's shape; a linear layer saves the transposed one."""

    def packed(self, tensor):
        return super().packed(tensor) if tensor.shape in self.shapes.values() else tensor


@wrong("FullyShardedUnit", fails="every step, any ranks and inputs")
class OverwritesGradients(_Unit):
    """Each backward replaces shard.grad."""

    def scatter(self, gradient):
        own = super().scatter(gradient)
        self.shard.grad = None
        return own


@wrong("FullyShardedUnit", fails="lets go in forward")
class ViewOfTheFlat(_Unit):
    """The shard is a view of the flat tensor, which lives as long as the shard does."""

    def part(self, whole):
        return whole.view(dist.get_world_size(), -1)[dist.get_rank()]


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
def starts_itself(modules):
    """Starts the unit that is about to compute, and waits for it right away."""
    return _prefetching(modules, lambda place: (place,), lambda place: (place,))


@wrong("prefetch", fails="ahead in backward")
def forward_only(modules):
    """Backward gathers each unit when it is needed."""
    return _prefetching(modules, _next_too, lambda place: ())


@wrong("prefetch", fails="ahead in backward")
def neighbour_first_in_backward(modules):
    """In backward the last unit's own weights come behind those of the one before it."""
    return _prefetching(modules, _next_too, lambda place: (place - 1, place))


@wrong("prefetch", fails="ahead in forward")
def all_at_once(modules):
    """Starts every unit before the first computes."""
    return _prefetching(modules, lambda place: range(place, len(modules)), _before_too)


@wrong("prefetch", fails="computes as without")
def plain_modules(modules):
    """The modules as they are: nothing is cut."""
    return nn.Sequential(*modules)


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


@wrong("clip_grad_norm", fails="left alone")
def always_scales(shards, max_norm):
    """Small gradients become large."""
    gradients = _gradients(shards)
    total = _total(gradients)
    for gradient in gradients:
        gradient.mul_(max_norm / total.sqrt())
    return total.sqrt()


@wrong("clip_grad_norm", fails="ranks without gradients, and bfloat16")
def only_who_has_any(shards, max_norm):
    """A rank without gradients does not take part, and the others wait for it."""
    gradients = _gradients(shards)
    return _clip(gradients, max_norm, _total(gradients).sqrt()) if gradients else torch.zeros(())


@wrong("clip_grad_norm", fails="one number")
def all_gradients_to_all(shards, max_norm):
    """Every rank tells every other its sum of squares; each adds them up."""
    gradients = _gradients(shards)
    total = sum((g.float().square().sum() for g in gradients), torch.zeros(()))
    sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, total)
    return _clip(gradients, max_norm, torch.stack(sums).sum().sqrt())


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


@wrong("gather_state", fails="arguments unchanged")
def empties_the_shards(shards, shapes):
    """Takes each shard out of the dict once it is sent."""
    state = _to_rank_0(shards, shapes)
    shards.clear()
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


@wrong("gather_state", fails="memory")
def a_whole_one_to_receive_into(shards, shapes):
    """Every rank makes room for the whole tensor, though only rank 0 fills it."""
    for name, shape in shapes.items():
        shards[name].new_empty(shape)
    return _to_rank_0(shards, shapes)


@wrong("gather_state", fails="memory")
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


@wrong("HostOffload", fails="what is copied")
class CopiesTheWeights(_Offload):
    """All that autograd saves goes to the host, as with save_on_cpu."""

    def __init__(self, host, stays, ahead=1):
        super().__init__(host, [], ahead)


@wrong("HostOffload", fails="on the way ahead")
class TwiceInABackward(_Offload):
    """Copies once more what backward has had: of two that an operation saved, it asks for the first first."""

    def unpack(self, packed):
        self.had.clear()
        return super().unpack(packed)


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


@wrong("checkpoint_segments", fails="equal layers")
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


@wrong("out_of_core_plan", fails="within a fifth of the best")
def computes_all_again(bytes_, seconds, capacity, bandwidth):
    """Always fits."""
    return ["recompute"] * len(bytes_)


@wrong("out_of_core_plan", fails="within 5 % of the best")
def one_change_after_another(bytes_, seconds, capacity, bandwidth):
    """From all computed again, as long as one change, or two at once, make it faster."""
    task = bytes_, seconds, capacity, bandwidth
    plan = ["recompute"] * len(bytes_)
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


@wrong("out_of_core_plan", fails="within the memory")
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


@wrong("plan_memory", fails="within a fifth of the best")
def saves_as_much_as_it_can(task):
    """Stage 3, one sample at a time, everything computed again."""
    return Plan(3, task.samples, ["recompute"] * len(task.layers))


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
