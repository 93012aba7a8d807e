"""Mistakes that people make in unit 04, each with the criterion that must find it."""

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
import torch.distributed as dist

from tests.answers import instead, wrong

# ------------------------------------------------------------------------------------------------ warmup_lr


@wrong("warmup_lr", fails="after the warm-up")
def never_scales(step, warmup_steps, base_lr, size):
    """Warms up to the rate of one worker."""
    return base_lr * min(1, (step + 1) / max(1, warmup_steps))


@wrong("warmup_lr", fails="the first step")
def begins_at_nothing(step, warmup_steps, base_lr, size):
    """From 0, as most schedulers do."""
    return base_lr * size * (min(1, step / warmup_steps) if warmup_steps else 1)


@wrong("warmup_lr", fails="between")
def by_a_factor(step, warmup_steps, base_lr, size):
    """Grows by the same factor in every step."""
    return base_lr * size ** (min(1, step / warmup_steps) if warmup_steps else 1)


@wrong("warmup_lr", fails="no warm-up")
def divides_by_none(step, warmup_steps, base_lr, size):
    """Step 0 of 0."""
    return base_lr * (1 + (size - 1) * min(1, step / warmup_steps))


@wrong("warmup_lr", fails="no warm-up")
def warms_up_all_the_same(step, warmup_steps, base_lr, size):
    """Takes no warm-up for one of one step."""
    return base_lr * (1 + (size - 1) * min(1, step / max(1, warmup_steps)))


# ---------------------------------------------------------------------------------------------- mend_warmup


@dataclass
class Warmup:
    """As in the notebook."""

    optimizer: Any
    initial_lr: float
    warmup_steps: int
    size: int


@wrong("mend_warmup", fails="the rates")
def as_in_the_tutorial(new_optimizer, learning_rate, size, steps_per_epoch):
    """Leaves the number that was right for another model."""
    return Warmup(new_optimizer(learning_rate * size), 1e-3 * size, 3 * steps_per_epoch, size)


@wrong("mend_warmup", fails="the rates")
def mends_the_wrong_one(new_optimizer, learning_rate, size, steps_per_epoch):
    """Gives the optimizer the callback's number."""
    return Warmup(new_optimizer(1e-3 * size), 1e-3 * size, 3 * steps_per_epoch, size)


@wrong("mend_warmup", fails="three epochs")
def three_steps(new_optimizer, learning_rate, size, steps_per_epoch):
    """Overlooks that the callback counts steps."""
    scaled = learning_rate * size
    return Warmup(new_optimizer(scaled), scaled, 3, size)


@wrong("mend_warmup", fails="the optimizer")
def optimizer_not_scaled(new_optimizer, learning_rate, size, steps_per_epoch):
    """Leaves the scaling to the callback."""
    return Warmup(new_optimizer(learning_rate), learning_rate * size, 3 * steps_per_epoch, size)


@wrong("mend_warmup", fails="the optimizer")
def a_second_optimizer(new_optimizer, learning_rate, size, steps_per_epoch):
    """Makes one for the model and one for the callback."""
    scaled = learning_rate * size
    new_optimizer(scaled)
    return Warmup(new_optimizer(scaled), scaled, 3 * steps_per_epoch, size)


# ------------------------------------------------------------------------------------------ broadcast_state


def _parameters_and_buffers(model):
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def _from_rank_0(value):
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


@wrong("broadcast_state", fails="parameters")
def does_nothing(model, optimizer):
    """Trusts that all have the same seed."""


@wrong("broadcast_state", fails="buffers and frozen parameters")
def only_parameters(model, optimizer):
    """Forgets the buffers."""
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    optimizer.load_state_dict(_from_rank_0(optimizer.state_dict()))


@wrong("broadcast_state", fails="options")
def only_the_state(model, optimizer):
    """Keeps the options of its own."""
    _parameters_and_buffers(model)
    own = optimizer.state_dict()["param_groups"]
    state = _from_rank_0(optimizer.state_dict()["state"])
    optimizer.load_state_dict({"state": state, "param_groups": own})


@wrong("broadcast_state", fails="state")
def no_state(model, optimizer):
    """Only the options: momentum begins anew."""
    _parameters_and_buffers(model)
    saved = _from_rank_0(optimizer.state_dict())
    own = optimizer.state_dict()["state"]
    optimizer.load_state_dict({"state": own, "param_groups": saved["param_groups"]})


@wrong("broadcast_state", fails="state")
def adds_to_what_is_there(model, optimizer):
    """What a rank has and rank 0 has not, stays."""
    _parameters_and_buffers(model)
    saved, own = _from_rank_0(optimizer.state_dict()), optimizer.state_dict()
    optimizer.load_state_dict({**saved, "state": {**own["state"], **saved["state"]}})


@wrong("broadcast_state", fails="in place")
def replaces_parameters(model, optimizer):
    """New parameters, which the optimizer does not know."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            value = parameter.detach().clone()
            dist.broadcast(value, src=0)
            setattr(module, name, torch.nn.Parameter(value, parameter.requires_grad))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    optimizer.load_state_dict(_from_rank_0(optimizer.state_dict()))


# ------------------------------------------------------------------------------------------ average_metrics


def _all_reduced(numbers):
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


@wrong("average_metrics", fails="means over samples")
def mean_of_means(metrics, samples):
    """As Horovod's MetricAverageCallback: every rank counts alike."""
    means = [value / dist.get_world_size() for value in metrics.values()]
    return dict(zip(metrics, _all_reduced(means), strict=True))


@wrong("average_metrics", fails="in double precision")
def in_single_precision(metrics, samples):
    """A tensor of the default dtype."""
    names = sorted(metrics)
    total = torch.tensor([*(metrics[name] * samples if samples else 0.0 for name in names), samples])
    dist.all_reduce(total)
    return {name: (total[names.index(name)] / total[-1]).item() for name in metrics}


@wrong("average_metrics", fails="names in any order")
def as_they_come(metrics, samples):
    """Lays the metrics side by side in each rank's own order."""
    sums = [value * samples if samples else 0.0 for value in metrics.values()]
    *totals, count = _all_reduced([*sums, samples])
    return {name: total / count for name, total in zip(metrics, totals, strict=True)}


@wrong("average_metrics", fails="ranks without samples")
def nothing_times_nan(metrics, samples):
    """0 * NaN is NaN."""
    names = sorted(metrics)
    *totals, count = _all_reduced([*(metrics[name] * samples for name in names), samples])
    means = dict(zip(names, (total / count for total in totals), strict=True))
    return {name: means[name] for name in metrics}


@wrong("average_metrics", fails="one all_reduce")
def gathers_dictionaries(metrics, samples):
    """All dictionaries to all ranks."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (metrics, samples))
    count = sum(own for _, own in everyone)
    return {name: sum(each[name] * own for each, own in everyone if own) / count for name in metrics}


# ---------------------------------------------------------------------------------------------- plan_fusion


def _planned(sizes, dtypes, threshold, fits=None, may_pass=None):
    """Messages by two rules: fits(held, size) and may_pass(held, passed, size, same), of bytes; by default
    Horovod's.
    """
    fits = fits or (lambda held, size: held + size <= threshold)
    may_pass = may_pass or (lambda held, passed, size, _: held + sum(passed) + size <= threshold)
    left, plan = list(range(len(sizes))), []
    while left:
        first, *others = left
        message, passed, held = [first], [], sizes[first]
        while others:
            position, size = others[0], sizes[others[0]]
            if dtypes[position] == dtypes[first] and fits(held, size):
                message.append(position)
                held += size
            elif may_pass(held, [sizes[each] for each in passed], size, dtypes[position] == dtypes[first]):
                passed.append(position)
            else:
                break
            others.pop(0)
        plan.append(message)
        left = passed + others
    return plan


@wrong("plan_fusion", fails="one dtype")
def one_a_message(sizes, dtypes, threshold):
    """No fusion."""
    return [[position] for position in range(len(sizes))]


@wrong("plan_fusion", fails="full, too large, or empty")
def strictly_below(sizes, dtypes, threshold):
    """A message may not be full."""
    return _planned(
        sizes,
        dtypes,
        threshold,
        lambda held, size: held + size < threshold,
        lambda held, passed, size, same: not same and held + sum(passed) + size <= threshold,
    )


@wrong("plan_fusion", fails="several dtypes")
def blind_to_dtypes(sizes, dtypes, threshold):
    """Lays different dtypes into one message."""
    return _planned(sizes, [""] * len(sizes), threshold)


@wrong("plan_fusion", fails="how far it looks ahead")
def looks_ahead_without_end(sizes, dtypes, threshold):
    """Passes over as much as there is."""
    return _planned(sizes, dtypes, threshold, may_pass=lambda held, passed, size, same: not same)


@wrong("plan_fusion", fails="lists unchanged")
def takes_the_lists_apart(sizes, dtypes, threshold):
    """What was planned is gone from the arguments."""
    plan = _planned(sizes, dtypes, threshold)
    sizes.clear()
    return plan


# --------------------------------------------------------------------------------------------- fuse, unfuse


@wrong("fuse", fails="end to end")
def stacks(tensors):
    """One row a tensor: they have different shapes."""
    return torch.stack([tensor.detach() for tensor in tensors])


@wrong("fuse", fails="end to end")
def cats_shapes(tensors):
    """Lays them end to end along their first dimension."""
    return torch.cat([tensor.detach() for tensor in tensors])


@wrong("fuse", fails="any layout")
def views_only(tensors):
    """view() takes contiguous tensors only."""
    return torch.cat([tensor.detach().view(-1) for tensor in tensors])


@wrong("fuse", fails="memory of its own")
def with_history(tensors):
    """Autograd follows the gradients into the buffer."""
    return torch.cat([tensor.flatten() for tensor in tensors])


@wrong("fuse", fails="memory of its own")
def one_is_no_buffer(tensors):
    """A single tensor is taken as it is."""
    if len(tensors) == 1:
        return tensors[0].detach().flatten()
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@wrong("unfuse", fails="the tensors")
def always_from_the_beginning(flat, shapes):
    """Does not go on where the last one ended."""
    _refuse(flat, shapes)
    return [flat[: shape.numel()].view(shape) for shape in shapes]


def _refuse(flat, shapes):
    if sum(shape.numel() for shape in shapes) != len(flat):
        raise ValueError("the shapes do not fit")


@wrong("unfuse", fails="the tensors")
def leaves_them_flat(flat, shapes):
    """Cuts, and forgets the shapes."""
    _refuse(flat, shapes)
    return list(flat.split([shape.numel() for shape in shapes]))


@wrong("unfuse", fails="no copies")
def copies(flat, shapes):
    """Clones, to be safe."""
    _refuse(flat, shapes)
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape).clone() for part, shape in zip(parts, shapes, strict=True)]


@wrong("unfuse", fails="what does not fit")
def takes_what_it_needs(flat, shapes):
    """Leaves the rest of a buffer that is too long."""
    starts = [0, *accumulate(shape.numel() for shape in shapes)]
    if starts[-1] > len(flat):
        raise ValueError("the buffer is too short")
    return [
        flat[start : start + shape.numel()].view(shape) for start, shape in zip(starts, shapes, strict=False)
    ]


@wrong("unfuse", fails="what does not fit")
def leaves_it_to_split(flat, shapes):
    """split() raises RuntimeError."""
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# ----------------------------------------------------------------------------------------- ready_everywhere


def _cycle(requests, answered_by_0):
    """One gather, one broadcast. answered_by_0: what rank 0 makes of the lists of all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = [None] * size if rank == 0 else None
    dist.gather_object(requests, everyone, dst=0)
    return _from_rank_0(answered_by_0(everyone) if rank == 0 else None)


def _counted(everyone, table):
    for names in everyone:
        for name in names:
            table[name] = table.get(name, 0) + 1
    return [name for name, count in table.items() if count == len(everyone)]


def _forgotten(names, table):
    for name in names:
        del table[name]
    return names


@wrong("ready_everywhere", fails="requested by all")
def without_memory(requests, table):
    """Takes only what all ranks request in the same cycle."""
    return _cycle(requests, lambda everyone: sorted(set.intersection(*map(set, everyone))))


@wrong("ready_everywhere", fails="nothing held back")
def one_tensor_a_round(requests, table):
    """Negotiates one tensor a cycle."""
    return _cycle(requests, lambda everyone: _forgotten(_counted(everyone, table)[:1], table))


@wrong("ready_everywhere", fails="one order")
def in_its_own_order(requests, table):
    """Sorts the answer by the order of its own requests."""
    own = table.setdefault("own order", [])
    own += requests
    counts = table.setdefault("counts", {})
    ready = _cycle(requests, lambda everyone: _forgotten(_counted(everyone, counts), counts))
    table["own order"] = [name for name in own if name not in ready]
    return sorted(ready, key=own.index)


@wrong("ready_everywhere", fails="every step")
def once_in_a_life(requests, table):
    """Remembers what it has answered, and never answers it again."""

    def answer(everyone):
        done = table.setdefault("", set())
        counts = table.setdefault(" ", {})
        new = [name for name in _counted(everyone, counts) if name not in done]
        done.update(new)
        return new

    return _cycle(requests, answer)


@wrong("ready_everywhere", fails="one question, one answer")
def a_round_for_each_name(requests, table):
    """Tells how many names there are, and answers each by itself."""
    ready = _cycle(requests, lambda everyone: _forgotten(_counted(everyone, table), table))
    return [_from_rank_0(name) for name in ready]


# ------------------------------------------------------------------------------------- DistributedOptimizer


@instead("DistributedOptimizer", ("flat /= dist.get_world_size()", "pass"), fails="averages and steps")
def sums_gradients():
    """Does not divide."""


@instead(
    "DistributedOptimizer",
    ("parameter.grad.copy_(mean)", "parameter.grad = mean.clone()"),
    fails="the optimizer's own",
)
def gradients_in_other_tensors():
    """Puts another tensor in the place of each gradient."""


@instead(
    "DistributedOptimizer",
    ("        while len(self.under_way) < len(self.messages):\n            self.start_next()\n", ""),
    ("self.under_way, strict=True", "self.under_way, strict=False"),
    fails="other orders, unused parameters",
)
def full_messages_only():
    """Never sends the messages that no hook has started."""


@instead("DistributedOptimizer", ("p.requires_grad))[::-1]", "p.requires_grad))"), fails="fusion plan")
def forward_order():
    """Fuses from the first parameter on."""


@instead("DistributedOptimizer", ("self.missing[number] -= 1", "pass"), fails="starts during backward")
def all_at_the_end():
    """Starts nothing before step()."""


@instead(
    "DistributedOptimizer",
    ("async_op=True)))", "async_op=True)))\n        self.under_way[-1][1].wait()"),
    fails="never waits in backward",
)
def waits_in_hooks():
    """Each hook waits for what it has started."""


@instead(
    "DistributedOptimizer",
    ("self.passes[parameter] == self.backward_passes_per_step", "self.passes[parameter] == 1"),
    fails="several passes",
)
def first_pass_starts():
    """Sends what the first pass brings, and the others are not in it."""


@instead(
    "DistributedOptimizer",
    ("for _, p in named_parameters if p.requires_grad", "for _, p in named_parameters"),
    ("parameter.register_post", "parameter.requires_grad and parameter.register_post"),
    fails="dtypes, tied and frozen parameters",
)
def frozen_ones_too():
    """Plans all parameters; frozen ones are sent as zeros."""


# ----------------------------------------------------------------------------------------- overlap_fraction


def _spans(trace):
    """Spans of a timeline as (pid, name, start, end), each "E" with the last "B" of its pid in the list."""
    begun, found = {}, []
    for event in trace:
        if event["ph"] == "B":
            begun.setdefault(event["pid"], []).append(event)
        elif event["ph"] == "E":
            begin = begun[event["pid"]].pop()
            found.append((event["pid"], begin["name"], begin["ts"], event["ts"]))
    return found


def _by_step(spans, of_network=lambda name: name.endswith("_ALLREDUCE") and not name.startswith("NEG")):
    """For each step the ends of its negotiations, and its spans on the network."""
    negotiated, network = {}, {}
    for pid, name, start, end in sorted(spans, key=lambda span: span[2]):
        if name == "NEGOTIATE_ALLREDUCE":
            negotiated.setdefault(pid, []).append(end)
        elif of_network(name):
            network.setdefault(pid, []).append((start, end))
    return list(zip(zip(*negotiated.values(), strict=True), zip(*network.values(), strict=True), strict=True))


def _shares(steps, backward_end=max):
    busy = hidden = 0
    for ends, spans in steps:
        reached = 0
        for start, end in sorted(spans):
            start, reached = max(start, reached), max(end, reached)
            busy += reached - start
            hidden += max(0, min(reached, backward_end(ends)) - start)
    return hidden / busy


def _in_time(trace):
    return sorted(trace, key=lambda event: event.get("ts", -1))


@wrong("overlap_fraction", fails="one step")
def exposed_instead(trace):
    """The share that is not hidden."""
    return 1 - _shares(_by_step(_spans(_in_time(trace))))


@wrong("overlap_fraction", fails="fused tensors")
def every_tensor_counts(trace):
    """Adds up over tensors: a message of many counts many times."""
    busy = hidden = 0
    for ends, spans in _by_step(_spans(_in_time(trace))):
        busy += sum(end - start for start, end in spans)
        hidden += sum(max(0, min(end, max(ends)) - start) for start, end in spans)
    return hidden / busy


@wrong("overlap_fraction", fails="every step")
def one_backward(trace):
    """The last negotiation of all ends the only backward pass."""
    steps = _by_step(_spans(_in_time(trace)))
    last = max(end for ends, _ in steps for end in ends)
    return _shares([((last,), spans) for _, spans in steps])


@wrong("overlap_fraction", fails="what else is there")
def gloo_only(trace):
    """Knows one name."""
    of_gloo = _by_step(_spans(_in_time(trace)), of_network=lambda name: name == "GLOO_ALLREDUCE")
    return _shares(of_gloo)


@wrong("overlap_fraction", fails="any order")
def as_they_stand(trace):
    """Trusts the order of the list."""
    return _shares(_by_step(_spans(trace)))


# ------------------------------------------------------------------------------------------------ six_steps


@instead(
    "six_steps",
    ('data["inputs"][rank::size], data["labels"][rank::size]', 'data["inputs"], data["labels"]'),
    fails="its part of the samples",
)
def everybody_all_samples():
    """Does not partition the data: every process trains on everything."""


@instead(
    "six_steps", ("hvd.broadcast_parameters(model.state_dict(), root_rank=0)", "pass"), fails="the same start"
)
def no_broadcast():
    """Every process begins with weights of its own."""


@instead(
    "six_steps",
    (
        "hvd.broadcast_parameters(model.state_dict(), ",
        "hvd.broadcast_parameters(list(model.named_parameters()), ",
    ),
    fails="the same start",
)
def no_buffers():
    """Sends the parameters, but not the buffers."""


@instead(
    "six_steps",
    ("hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())", "plain"),
    fails="averaged gradients",
)
def plain_optimizer():
    """Forgets to wrap the optimizer."""


@instead("six_steps", ("0.05 * size", "0.05"), fails="scaled learning rate")
def rate_of_one():
    """Keeps the learning rate of one process."""


@instead("six_steps", ("hvd.local_rank()", "hvd.rank()"), fails="one GPU a process")
def gpu_by_rank():
    """Counts GPUs over all nodes."""


@instead(
    "six_steps",
    ('data["test_inputs"][rank::size]', 'data["test_inputs"]'),
    ('data["test_labels"][rank::size]', 'data["test_labels"]'),
    ('hvd.allreduce(right, name="right", op=hvd.Sum).item()', "right.item()"),
    fails="accuracy over all",
)
def everybody_tests_all():
    """Every rank tests on all samples, so that no metric has to be summed."""


@instead("six_steps", ("        if rank == 0:", "        if True:"), fails="checkpoints of rank 0")
def everybody_writes():
    """All processes save."""


@instead(
    "six_steps",
    ('"optimizer": optimizer.state_dict(), ', ""),
    ('        optimizer.load_state_dict(saved["optimizer"])\n', ""),
    fails="goes on",
)
def saves_no_optimizer():
    """Saves the weights and the epochs, but not the momentum."""


# ---------------------------------------------------------------------------------------------- tune_fusion


@wrong("tune_fusion", fails="a third of what can be saved")
def the_defaults(sizes, ready, ranks, link):
    """What Horovod begins with."""
    return 128 * 2**20, 1e-3


@wrong("tune_fusion", fails="a third of what can be saved")
def no_fusion(sizes, ready, ranks, link):
    """Sends each gradient at once."""
    return 1, 1e-4


@wrong("tune_fusion", fails="a third of what can be saved")
def all_after_backward(sizes, ready, ranks, link):
    """One message, when all is there."""
    return sum(sizes), ready[-1]


@wrong("tune_fusion", fails="a third of what can be saved")
def in_milliseconds(sizes, ready, ranks, link):
    """A cycle time in the unit of HOROVOD_CYCLE_TIME."""
    return sum(sizes), max(0.1, 1e3 * ready[-1] / 3)


@wrong("tune_fusion", fails="a third of what can be saved")
def thresholds_in_mebibytes(sizes, ready, ranks, link):
    """A threshold of a few bytes."""
    return 64, max(1e-4, ready[-1] / 2)
