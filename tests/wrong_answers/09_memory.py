"""Mistakes that people make in unit 09."""

import contextlib
import dataclasses
import itertools
import math
import weakref

import torch

from course_lib.training.memory_plan import Plan, plan_cost
from course_lib.training.out_of_core import DoesNotFit, step
from tests.answers import wrong

# --------------------------------------------------------------------------------------- zero_memory


def _memory(whole, shard, stage, state_bytes):
    held = [shard if stage >= begins else whole for begins in (3, 2, 1)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


def _stage(stage):
    if stage not in range(4):
        raise ValueError("a stage that ZeRO does not have")
    return stage


@wrong("zero_memory", fails="nothing cut")
def weights_of_four_bytes(parameters, ranks, stage, state_bytes=12):
    """Counts weights as if in single precision; they are among the optimizer's 12 bytes already."""
    return _memory(parameters, -(-parameters // ranks), _stage(stage), state_bytes) + 2 * parameters


@wrong("zero_memory", fails="nothing cut")
def sixteen_bytes(parameters, ranks, stage, state_bytes=12):
    """The 12 bytes of Adam, whatever the optimizer is."""
    return _memory(parameters, -(-parameters // ranks), _stage(stage), 12)


@wrong("zero_memory", fails="the optimizer's numbers")
def cuts_the_model_in_stage_one(parameters, ranks, stage, state_bytes=12):
    """Takes stage 1 for that which cuts the weights: counts from the wrong end."""
    shard = -(-parameters // ranks)
    held = [shard if _stage(stage) >= begins else parameters for begins in (1, 2, 3)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


@wrong("zero_memory", fails="gradients too")
def gradients_instead(parameters, ranks, stage, state_bytes=12):
    """Stage 2 cuts gradients and leaves the optimizer's numbers whole."""
    shard = -(-parameters // ranks)
    states = parameters if _stage(stage) == 2 else shard
    return _memory(parameters, shard, min(stage, 2), 0) + state_bytes * (states if stage else parameters)


@wrong("zero_memory", fails="weights too")
def never_cuts_weights(parameters, ranks, stage, state_bytes=12):
    """Weights have to be there when the rank computes, so they are counted whole."""
    return _memory(parameters, -(-parameters // ranks), min(_stage(stage), 2), state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_down(parameters, ranks, stage, state_bytes=12):
    """The smallest shard, not the largest."""
    return _memory(parameters, parameters // ranks, _stage(stage), state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_bytes(parameters, ranks, stage, state_bytes=12):
    """Divides the bytes, so that a shard may end within a number."""
    cut, whole = {
        0: (0, 4 + state_bytes),
        1: (state_bytes, 4),
        2: (2 + state_bytes, 2),
        3: (4 + state_bytes, 0),
    }[_stage(stage)]
    return whole * parameters + -(-cut * parameters // ranks)


@wrong("zero_memory", fails="unknown stages")
def any_stage_will_do(parameters, ranks, stage, state_bytes=12):
    """A fourth stage is the third."""
    return _memory(parameters, -(-parameters // ranks), stage, state_bytes)


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


@wrong("shard_range", fails="a shorter part at the end")
def loses_the_rest(numel, ranks, rank):
    """Rounds the length down: the last numbers are nobody's."""
    length = numel // ranks
    return rank * length, (rank + 1) * length


@wrong("shard_range", fails="a shorter part at the end")
def with_the_padding(numel, ranks, rank):
    """Counts the padding among the numbers."""
    length = -(-numel // ranks)
    return rank * length, (rank + 1) * length


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


# ---------------------------------------------------------------------------------------------- HostOffload


class _Offload:
    """What most of these share: the right one, in parts."""

    def __init__(self, host, stays, ahead=1):
        self.host, self.ahead = host, ahead
        self.stays = list(stays)
        self.known = {tensor.untyped_storage().data_ptr() for tensor in self.stays}
        self.arriving = weakref.WeakKeyDictionary()

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
        for each in self.due(packed):
            if self.arriving[each] is None:
                self.arriving[each] = each.to_device()
        arriving, self.arriving[packed] = self.arriving[packed], None
        return arriving.wait()


@wrong("HostOffload", fails="gradients")
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


@wrong("HostOffload", fails="gradients")
class HalvesThem(_Offload):
    """Saves half of the bytes, and loses half of the digits."""

    def pack(self, tensor):
        return super().pack(tensor.float() if tensor.is_floating_point() else tensor)

    def unpack(self, packed):
        tensor = super().unpack(packed)
        return tensor.double() if tensor.is_floating_point() else tensor


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


@wrong("HostOffload", fails="what is copied")
class KeepsAll(_Offload):
    """Gives the right gradients, and copies nothing."""

    def pack(self, tensor):
        return tensor


@wrong("HostOffload", fails="on the way ahead")
class NeverAhead(_Offload):
    """Begins the copy when backward waits for it."""

    def due(self, packed):
        return [packed]


@wrong("HostOffload", fails="on the way ahead")
class InTheOrderOfForward(_Offload):
    """Has those on the way that were packed after it, which backward has had already."""

    def due(self, packed):
        order = list(self.arriving)
        place = order.index(packed)
        return order[place : place + 1 + self.ahead]


@wrong("HostOffload", fails="on the way ahead")
class AllAtOnce(_Offload):
    """Begins all copies as soon as backward asks for the first."""

    def due(self, packed):
        order = list(self.arriving)
        return reversed(order[: order.index(packed) + 1])


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
    cuts = [
        _cut(layers, ends)
        for count in range(len(layers))
        for ends in itertools.combinations(range(1, len(layers)), count)
    ]
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


@wrong("checkpoint_segments", fails="equal layers")
def never_cuts(layers):
    """One segment, which keeps everything."""
    return [len(layers)]


@wrong("checkpoint_segments", fails="equal layers")
def cuts_everywhere(layers):
    """Each layer a segment: the checkpoints are many."""
    return [1] * len(layers)


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
def by_number_only(layers):
    """The best lengths for equal layers, whatever the layers are."""
    lengths, length = [], 1
    while sum(lengths) < len(layers):
        lengths.insert(0, min(length, len(layers) - sum(lengths)))
        length += 1
    return sorted(lengths, reverse=True)


@wrong("checkpoint_segments", fails="equal layers")
def forgets_what_is_inside(layers):
    """Counts the inputs of the layers alone."""
    best = [(0, 0)] * (len(layers) + 1)
    for begin in reversed(range(len(layers))):
        best[begin] = min(
            (max(sum(x for x, _ in layers[begin:end]), layers[begin][0] + best[end][0]), end)
            for end in range(begin + 1, len(layers) + 1)
        )
    ends = []
    while not ends or ends[-1] < len(layers):
        ends.append(best[ends[-1] if ends else 0][1])
    return _cut(layers, ends)


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


@wrong("out_of_core_plan", fails="better than one way for all")
def keeps_the_dearest(bytes_, seconds, capacity, bandwidth):
    """Keeps what takes longest to compute, and computes the rest again; the link is idle."""
    plan = ["recompute"] * len(bytes_)
    for layer in sorted(range(len(bytes_)), key=lambda layer: -seconds[layer]):
        kept = [*plan[:layer], "keep", *plan[layer + 1 :]]
        plan = kept if _seconds(kept, bytes_, seconds, capacity, bandwidth) < math.inf else plan
    return plan


@wrong("out_of_core_plan", fails="within 5 % of the best")
def best_of_the_simple_ones(bytes_, seconds, capacity, bandwidth):
    """One way for all but the first or the last layers, which are kept."""
    count = len(bytes_)
    plans = [[way] * count for way in ("keep", "swap", "recompute")]
    for kept, way in itertools.product(range(count), ("swap", "recompute")):
        plans += [["keep"] * kept + [way] * (count - kept), [way] * (count - kept) + ["keep"] * kept]
    return min(plans, key=lambda plan: _seconds(plan, bytes_, seconds, capacity, bandwidth))


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


@wrong("plan_memory", fails="within 5 % of the best")
def one_way_for_all(task):
    """Every layer alike."""
    return _fastest(_affordable(task, alike=True))
