"""Mistakes that people make in unit 09."""

import contextlib
import itertools
import math

import torch.distributed as dist
from torch import nn
from torch.nn import functional

from course_lib.training.memory_plan import Plan, plan_cost
from course_lib.training.out_of_core import DoesNotFit, step
from tests.answers import instead, wrong

# ----------------------------------------------------------------------------------------- zero_memory


@instead("zero_memory", ("return 2 * weights", "return 4 * weights"), fails="the optimizer's numbers")
def weights_of_four_bytes():
    """Counts weights as if in single precision; they are among the optimizer's 12 bytes already."""


@instead(
    "zero_memory",
    ("weights = shard if stage == 3", "weights = shard if stage >= 1"),
    ("states = shard if stage >= 1", "states = shard if stage == 3"),
    fails="the optimizer's numbers",
)
def cuts_the_model_in_stage_one():
    """Takes stage 1 for that which cuts the weights: counts from the wrong end."""


@instead(
    "zero_memory",
    ("states = shard if stage >= 1", "states = shard if stage in (1, 3)"),
    fails="gradients too",
)
def gradients_instead():
    """Stage 2 cuts gradients and leaves the optimizer's numbers whole."""


@instead(
    "zero_memory",
    ("weights = shard if stage == 3 else parameters", "weights = parameters"),
    fails="weights too",
)
def never_cuts_weights():
    """Weights have to be there when the rank computes, so they are counted whole."""


@instead("zero_memory", ("-(-parameters // ranks)", "parameters // ranks"), fails="shards that are not equal")
def rounds_down():
    """The smallest shard, not the largest."""


# ----------------------------------------------------------------------------------------- shard_range


@instead(
    "shard_range",
    ("min((rank + 1) * length, numel)", "min(length, numel - min(rank * length, numel))"),
    fails="parts of one length",
)
def begin_and_length():
    """How many numbers there are, where the end was asked for."""


@instead(
    "shard_range",
    ("min((rank + 1) * length, numel)", "min((rank + 1) * length, numel) - 1"),
    fails="parts of one length",
)
def end_included():
    """The last number, not the one behind it."""


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


@instead(
    "shard_range",
    ("return min(rank * length, numel),", "return rank * length,"),
    fails="ranks without numbers",
)
def begins_behind_the_end():
    """Bounds the end only: a rank that has nothing begins behind it."""


# ------------------------------------------------------------------------------------ ShardedOptimizer


@instead("ShardedOptimizer", ("            shard.grad /= ranks\n", ""), fails="the first step")
class SumsGradients:
    """The sum over ranks, not the mean: with Adam it hardly shows."""


@instead(
    "ShardedOptimizer",
    (
        "        self.param_groups = self.optimizer.param_groups\n",
        "        self.param_groups = self.optimizer.param_groups\n"
        "        for group, shard in zip(groups, shards, strict=True):\n"
        "            group['params'] = [shard]\n",
    ),
    fails="groups and their options",
)
class OverwritesTheDicts:
    """Puts its shards into the caller's dicts."""


@instead("ShardedOptimizer", ("parameter.grad = None", "pass"), fails="every step")
class ClearsNothing:
    """Takes it that step() has cleared them."""


@instead(
    "ShardedOptimizer",
    ("flat(own, ranks).view(ranks, -1)[rank].clone()", "flat(own, ranks)"),
    (
        "            shard.grad = torch.empty_like(shard)\n"
        "            dist.reduce_scatter_tensor(shard.grad, whole)\n",
        "            part = shard.new_empty(len(shard) // ranks)\n"
        "            dist.reduce_scatter_tensor(part, whole)\n"
        "            shard.grad = torch.zeros_like(shard)\n"
        "            shard.grad.view(ranks, -1)[dist.get_rank()] = part\n",
    ),
    (
        "            whole = shard.new_empty(ranks * len(shard))\n"
        "            dist.all_gather_into_tensor(whole, shard)\n",
        "            whole = shard\n"
        "            dist.all_gather_into_tensor(whole, shard.view(ranks, -1)[dist.get_rank()].clone())\n",
    ),
    fails="a part of the state",
)
class WholeState:
    """Every rank updates everything, and then takes over what each rank has in its part."""


@instead(
    "ShardedOptimizer",
    (
        "            shard.grad = torch.empty_like(shard)\n"
        "            dist.reduce_scatter_tensor(shard.grad, whole)\n",
        "            dist.all_reduce(whole)\n"
        "            shard.grad = whole.view(ranks, -1)[dist.get_rank()].clone()\n",
    ),
    fails="calls",
)
class AllReducesGradients:
    """Averages all gradients on all ranks first, as data parallelism does: half as many bytes again."""


# ------------------------------------------------------------------------------------ ShardedGradients


@instead("ShardedGradients", ("whole.div_(ranks)", "whole"), fails="shards of the mean")
class SumsInShards:
    """Forgets to divide."""


@instead(
    "ShardedGradients",
    (
        "reversed([p for p in model.parameters() if p.requires_grad])",
        "[p for p in model.parameters() if p.requires_grad]",
    ),
    fails="buckets",
)
class BucketsFromTheFirst:
    """Begins with the first layer, which is the last to be complete."""


@instead(
    "ShardedGradients",
    (
        "        while len(self.shards) < len(self.buckets):\n            self._send()\n",
        "        for number in range(len(self.buckets)):\n"
        "            if number not in self.shards:\n"
        "                self._send(number)\n",
    ),
    (
        "        shards = self.shards\n",
        "        shards = [self.shards[number] for number in range(len(self.buckets))]\n",
    ),
    ("self.shards: list[Tensor] = []", "self.shards = {}"),
    (
        "        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:\n"
        "            self._send()\n",
        "        if not self.missing[number]:\n            self._send(number)\n",
    ),
    ("def _send(self)", "def _send(self, number)"),
    ("self.buckets[len(self.shards)], dist", "self.buckets[number], dist"),
    (
        "self.shards.append(whole.new_empty(len(whole) // ranks))",
        "self.shards[number] = whole.new_empty(len(whole) // ranks)",
    ),
    ("self.shards[-1]", "self.shards[number]"),
    fails="layers that a rank does not use",
)
class SendsAsTheyCome:
    """Sends whichever bucket is complete: ranks in another order add up what does not belong together."""


@instead(
    "ShardedGradients",
    (
        "self.shards.append(whole.new_empty(len(whole) // ranks))",
        "self.shards.append(whole.div_(ranks).view(ranks, -1)[dist.get_rank()])",
    ),
    (
        "dist.reduce_scatter_tensor(self.shards[-1], whole.div_(ranks), async_op=True)",
        "dist.all_reduce(whole, async_op=True)",
    ),
    fails="calls",
)
class ReducesAll:
    """An all-reduce, of which each rank then takes its part: twice the bytes, and the whole on every rank."""


@instead(
    "ShardedGradients",
    (
        "            self.under_way.wait()\n            self.under_way = None\n",
        "            self.waiting.append(self.under_way)\n",
    ),
    (
        "        self.under_way.wait()\n        shards",
        "        for each in [*self.waiting, self.under_way]:\n            each.wait()\n        shards",
    ),
    (
        "        self.under_way: Any = None\n",
        "        self.under_way: Any = None\n        self.waiting: list[Any] = []\n",
    ),
    fails="no more than a bucket beside the shards",
)
class AllUnderWay:
    """Waits in finish() only: until then every flat bucket is there, all gradients together."""


# ----------------------------------------------------------------------- FullyShardedUnit and prefetch


@instead(
    "FullyShardedUnit",
    (
        "        self.arriving: Any = None\n",
        "        self.arriving: Any = None\n        self.module = module\n",
    ),
    fails="the shard",
)
class ModuleInside:
    """Keeps the module as its own: an optimizer finds its parameters too."""


@instead(
    "FullyShardedUnit",
    (
        "def forward(self, *inputs: Any) -> Any:\n",
        "def forward(self, x: Any) -> Any:\n        inputs = (x,)\n",
    ),
    fails="every step, any ranks and inputs",
)
class OneInput:
    """Takes one tensor, as the layers of a Sequential do."""


@instead(
    "FullyShardedUnit",
    (
        "        if tensor.untyped_storage()",
        "        if tensor.shape not in self.shapes.values():\n"
        "            return tensor\n"
        "        if tensor.untyped_storage()",
    ),
    fails="lets go in forward",
)
class KnowsAWeightByItsShape:
    """Lets go of what has a parameter's shape; a linear layer saves the transposed one."""


@instead(
    "FullyShardedUnit",
    (
        "        return own / unit.ranks, None",
        "        unit.shard.grad = None\n        return own / unit.ranks, None",
    ),
    fails="every step, any ranks and inputs",
)
class OverwritesGradients:
    """Each backward replaces shard.grad."""


@instead(
    "FullyShardedUnit",
    ("whole.view(self.ranks, -1)[dist.get_rank()].clone()", "whole.view(self.ranks, -1)[dist.get_rank()]"),
    fails="lets go in forward",
)
class ViewOfTheFlat:
    """The shard is a view of the flat tensor, which lives as long as the shard does."""


@instead("prefetch", ("        second.start()\n", ""), fails="ahead in forward")
def starts_itself():
    """Starts the unit that is about to compute, and waits for it right away."""


@instead(
    "prefetch",
    ("following.register_full_backward_pre_hook(lambda *_, pair=(following, unit): start(*pair))", "pass"),
    fails="ahead in backward",
)
def forward_only():
    """Backward gathers each unit when it is needed."""


@instead("prefetch", ("pair=(following, unit)", "pair=(unit, following)"), fails="ahead in backward")
def neighbour_first_in_backward():
    """In backward the last unit's own weights come behind those of the one before it."""


@instead(
    "prefetch",
    (
        "        first.start()\n        second.start()\n",
        "        for unit in [first, second] if units.index(first) > units.index(second) else units:\n"
        "            unit.start()\n",
    ),
    fails="ahead in forward",
)
def all_at_once():
    """Starts every unit before the first computes."""


@wrong("prefetch", fails="computes as without")
def plain_modules(modules):
    """The modules as they are: nothing is cut."""
    return nn.Sequential(*modules)


# -------------------------------------------------------------------------------------- clip_grad_norm


@instead(
    "clip_grad_norm",
    (
        "    dist.all_reduce(total)\n    norm = total.sqrt()\n",
        "    norm = total.sqrt()\n    dist.all_reduce(norm)\n",
    ),
    fails="the norm",
)
def sum_of_norms():
    """Adds up norms instead of their squares."""


@instead("clip_grad_norm", ("[shard.grad for shard", "[shard.grad.clone() for shard"), fails="scaled down")
def new_tensors():
    """Scales copies."""


@instead("clip_grad_norm", ("if norm > max_norm:", "if norm > 0:"), fails="left alone")
def always_scales():
    """Small gradients become large."""


@instead(
    "clip_grad_norm",
    (
        "    dist.all_reduce(total)\n",
        "    if not gradients:\n        return total\n    dist.all_reduce(total)\n",
    ),
    fails="ranks without gradients, and bfloat16",
)
def only_who_has_any():
    """A rank without gradients does not take part, and the others wait for it."""


@instead(
    "clip_grad_norm",
    (
        "    dist.all_reduce(total)\n",
        "    sums = [torch.zeros(()) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(sums, total)\n"
        "    total = torch.stack(sums).sum()\n",
    ),
    fails="one number",
)
def all_gradients_to_all():
    """Every rank tells every other its sum of squares; each adds them up."""


# ---------------------------------------------------------------------------------------- gather_state


@instead(
    "gather_state",
    ("    return None if rank else state\n", "    shards.clear()\n    return None if rank else state\n"),
    fails="arguments unchanged",
)
def empties_the_shards():
    """Takes each shard out of the dict once it is sent."""


@instead(
    "gather_state",
    (
        "    rank, ranks = dist.get_rank(), dist.get_world_size()\n",
        "    rank, ranks = dist.get_rank(), dist.get_world_size()\n"
        "    shards = {name: shard.float() for name, shard in shards.items()}\n",
    ),
    fails="shards that are not equal",
)
def in_single_precision():
    """Receives into float32, whatever was sent."""


@wrong("gather_state", fails="each shard once")
def all_to_all_ranks(shards, shapes):
    """An all-gather: everyone gets everything."""
    rank, ranks, state = dist.get_rank(), dist.get_world_size(), {}
    for name, shape in shapes.items():
        length = -(-shape.numel() // ranks)
        padded = functional.pad(shards[name], (0, length - len(shards[name])))
        whole = padded.new_empty(ranks * length)
        dist.all_gather_into_tensor(whole, padded)
        if rank == 0:
            state[name] = whole[: shape.numel()].view(shape)
    return state if rank == 0 else None


@instead(
    "gather_state",
    ("        if rank:\n", "        shards[name].new_empty(shape)\n        if rank:\n"),
    fails="memory",
)
def a_whole_one_to_receive_into():
    """Every rank makes room for the whole tensor, though only rank 0 fills it."""


@instead(
    "gather_state",
    (
        "    return None if rank else state\n",
        "    flat_state = [each.clone() for each in state.values()]\n"
        "    return None if rank else dict(zip(state, flat_state, strict=True))\n",
    ),
    fails="memory",
)
def a_flat_state():
    """All tensors of a dtype in one flat tensor, cut up afterwards: rank 0 holds all twice."""


# ----------------------------------------------------------------------------------------- HostOffload


@instead(
    "HostOffload",
    ("        return arriving.wait()", "        self.arriving.pop(packed)\n        return arriving.wait()"),
    fails="every backward",
)
class TakesEachOnce:
    """Forgets what it has packed once backward has had it: a second backward finds nothing."""


@instead(
    "HostOffload",
    ("        self.had: WeakSet", "        self.by_shape = {}\n        self.had: WeakSet"),
    ("        return held\n", "        self.by_shape[tensor.shape] = held\n        return tensor.shape\n"),
    (
        "        if packed in self.had:\n",
        "        packed = self.by_shape[packed]\n        if packed in self.had:\n",
    ),
    fails="gradients",
)
class RemembersByShape:
    """Gives back the last tensor of the same shape."""


@instead("HostOffload", ("self.stays = list(stays)", "self.stays = []"), fails="what is copied")
class CopiesTheWeights:
    """All that autograd saves goes to the host, as with save_on_cpu."""


@instead(
    "HostOffload",
    ("        if packed in self.had:\n            self.had.clear()\n", "        self.had.clear()\n"),
    fails="on the way ahead",
)
class TwiceInABackward:
    """Copies once more what backward has had: of two that an operation saved, it asks for the first first."""


@instead(
    "HostOffload",
    ("        return held\n", "        self.stays.append(held)\n        return held\n"),
    fails="the host's memory",
)
class HoldsWhatLiesOnTheHost:
    """A list of all that was ever packed: the host fills up, step by step."""


# --------------------------------------------------------------------------------- checkpoint_segments


def _cut(layers, ends):
    """The lengths of segments that end there."""
    ends = sorted({*ends, len(layers)} - {0})
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


@wrong("checkpoint_segments", fails="equal layers")
def root_of_the_number(layers):
    """Segments of equal length, as many as the root of the number of layers."""
    length = max(1, round(len(layers) ** 0.5))
    return _cut(layers, range(length, len(layers), length))


@instead(
    "checkpoint_segments",
    ("max(until[end] - until[begin],", "max(checkpoint + until[end] - until[begin],"),
    fails="layers that differ",
)
def input_counts_twice():
    """As a checkpoint, and within its segment again."""


@instead(
    "checkpoint_segments",
    ("    return lengths", "    layers.clear()\n    return lengths"),
    fails="equal layers",
)
def takes_layers_away():
    """Takes layers from the caller's list."""


@instead(
    "checkpoint_segments",
    (
        "    count = len(layers)\n",
        "    count = len(layers)\n"
        "    layers = [tuple(sum(each) / count for each in zip(*layers, strict=True))] * count\n",
    ),
    fails="layers that differ",
)
def as_if_all_were_alike():
    """The best cut of as many layers that are all like the mean."""


@wrong("checkpoint_segments", fails="many layers")
def tries_all_cuts(layers):
    """Right, but there are too many."""

    def peak(lengths):
        held, most, begin = 0, 0, 0
        for length in lengths:
            most = max(most, held + sum(map(sum, layers[begin : begin + length])))
            held += layers[begin][0]
            begin += length
        return most

    cuts = (
        _cut(layers, ends)
        for count in range(len(layers))
        for ends in itertools.combinations(range(1, len(layers)), count)
    )
    return min(cuts, key=peak)


# ------------------------------------------------------------------------------------ out_of_core_plan


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


@instead(
    "out_of_core_plan", ("for size in (1, 2, 3):", "for size in (1, 2):"), fails="within 5 % of the best"
)
def one_change_after_another():
    """From all computed again, as long as one change, or two at once, make it faster."""


@instead(
    "out_of_core_plan",
    ("    return plan\n", "    bytes_.append(bytes_.pop(0))\n    return plan\n"),
    fails="within the memory",
)
def sorts_the_layers():
    """Leaves the caller's bytes in another order."""


def _by_trying(*task):
    plans = itertools.product(("keep", "swap", "recompute"), repeat=len(task[0]))
    return list(min(plans, key=lambda plan: _seconds(plan, *task)))


@wrong("out_of_core_plan", fails="many layers")
def tries_all_plans(bytes_, seconds, capacity, bandwidth):
    """Right, but there are too many."""
    return _by_trying(bytes_, seconds, capacity, bandwidth)


# ----------------------------------------------------------------------------------------- plan_memory


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
