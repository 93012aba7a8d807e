"""Right answers of unit 04, written differently."""

import heapq
import pickle
import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from tests.answers import right


@right("warmup_lr")
def weighted_ends(step, warmup_steps, base_lr, size):
    """Between two rates, as torch.lerp."""
    if step >= warmup_steps:
        return size * base_lr
    share = step / warmup_steps
    return (1 - share) * base_lr + share * size * base_lr


@right("warmup_lr")
def workers_at_work(step, warmup_steps, base_lr, size):
    """As if one worker after the other joined."""
    workers = size if step >= warmup_steps else np.interp(step, [0, warmup_steps], [1, size])
    return float(base_lr * workers)


@dataclass
class Warmup:
    """As in the notebook."""

    optimizer: Any
    initial_lr: float
    warmup_steps: int
    size: int


@right("mend_warmup")
def rate_of_the_optimizer(new_optimizer, learning_rate, size, steps_per_epoch):
    """Asks the optimizer for its rate."""
    optimizer = new_optimizer(size * learning_rate)
    rate = optimizer.param_groups[0]["lr"]
    return Warmup(optimizer, initial_lr=rate, warmup_steps=steps_per_epoch * 3, size=size)


@right("mend_warmup")
def set_afterwards(new_optimizer, learning_rate, size, steps_per_epoch):
    """Makes the tutorial's callback, and mends it."""
    callback = Warmup(new_optimizer(learning_rate * size), 1e-3 * size, 3, size)
    callback.initial_lr = learning_rate * callback.size
    callback.warmup_steps *= steps_per_epoch
    return callback


@right("broadcast_state")
def state_tensor_by_tensor(model, optimizer):
    """First what there is, then each tensor, by a broadcast of its own."""
    rank = dist.get_rank()
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.data, 0)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    described = {
        number: {
            name: ("tensor", value.shape, value.dtype) if torch.is_tensor(value) else ("value", value)
            for name, value in optimizer.state[parameter].items()
        }
        for number, parameter in enumerate(parameters)
        if rank == 0 and optimizer.state.get(parameter)
    }
    held = [(options, described)]
    dist.broadcast_object_list(held, src=0)
    options, described = held[0]
    for group, own in zip(optimizer.param_groups, options, strict=True):
        held = group["params"]
        group.clear()
        group.update({**own, "params": held})
    if rank != 0:
        optimizer.state.clear()
    for number, state in described.items():
        for name, (kind, *what) in state.items():
            if rank != 0:
                value = torch.empty(what[0], dtype=what[1]) if kind == "tensor" else what[0]
                optimizer.state[parameters[number]][name] = value
            if kind == "tensor":
                dist.broadcast(optimizer.state[parameters[number]][name], 0)


@right("broadcast_state")
def pickled_at_once(model, optimizer):
    """Everything as bytes, in one tensor whose length is told first."""
    tensors = [*model.parameters(), *model.buffers()]
    data = pickle.dumps(([tensor.detach() for tensor in tensors], optimizer.state_dict()))
    length = torch.tensor([len(data)])
    dist.broadcast(length, 0)
    sent = torch.zeros(int(length), dtype=torch.uint8)
    if dist.get_rank() == 0:
        sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(sent, 0)
    if dist.get_rank() == 0:
        return
    values, state = pickle.loads(sent.numpy().tobytes())
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
    optimizer.load_state_dict(state)


@right("average_metrics")
def nan_to_num(metrics, samples):
    """A tensor of sums, in the order of the sorted names."""
    order = sorted(range(len(metrics)), key=list(metrics).__getitem__)
    values = torch.tensor([*metrics.values(), 1.0], dtype=torch.float64)
    sums = (values[[*order, -1]] if samples else torch.zeros(len(values), dtype=torch.float64)) * samples
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    means = torch.empty(len(metrics), dtype=torch.float64)
    means[order] = sums[:-1] / sums[-1]
    return dict(zip(metrics, means.tolist(), strict=True))


@right("average_metrics")
def count_first(metrics, samples):
    """The number of samples stands in front."""
    packed = np.array([1.0, *(metrics[name] for name in sorted(metrics))])
    packed = np.where(samples > 0, packed, 0.0) * samples
    total = torch.from_numpy(packed)
    dist.all_reduce(total)
    count, *sums = total.tolist()
    means = {name: value / count for name, value in zip(sorted(metrics), sums, strict=True)}
    return {name: means[name] for name in metrics}


@right("plan_fusion")
def recursive(sizes, dtypes, threshold):
    """One message, then the plan of what is left."""

    def plan(waiting):
        if not waiting:
            return []
        head, *rest = waiting
        taken, passed = [head], []
        held, skipped = sizes[head], 0
        for number, position in enumerate(rest):
            size = sizes[position]
            if dtypes[position] == dtypes[head] and held + size <= threshold:
                taken.append(position)
                held += size
            elif dtypes[position] != dtypes[head] and held + skipped + size <= threshold:
                passed.append(position)
                skipped += size
            else:
                return [taken, *plan(passed + rest[number:])]
        return [taken, *plan(passed)]

    return plan(list(range(len(sizes))))


@right("plan_fusion")
def with_a_heap(sizes, dtypes, threshold):
    """What waits is a heap of positions."""
    waiting, plan = list(range(len(sizes))), []
    while waiting:
        message = [heapq.heappop(waiting)]
        room, passed = threshold - sizes[message[0]], []
        while waiting:
            position = waiting[0]
            same = dtypes[position] == dtypes[message[0]]
            need = sizes[position] + (0 if same else sum(sizes[each] for each in passed))
            if need > room:
                break
            heapq.heappop(waiting)
            if same:
                message.append(position)
                room -= sizes[position]
            else:
                passed.append(position)
        for position in passed:
            heapq.heappush(waiting, position)
        plan.append(message)
    return plan


@right("fuse")
def copied_into_place(tensors):
    """A buffer that is made first."""
    flat = torch.empty(sum(map(torch.numel, tensors)), dtype=tensors[0].dtype)
    start = 0
    with torch.no_grad():
        for tensor in tensors:
            flat[start : start + tensor.numel()].copy_(tensor.reshape(-1))
            start += tensor.numel()
    return flat


@right("fuse")
@torch.no_grad()
def hstacked(tensors):
    """Without gradients, by hstack."""
    return torch.hstack([tensor.reshape(-1) for tensor in tensors])


@right("unfuse")
def by_narrow(flat, shapes):
    """Narrowed, one after the other."""
    parts, start = [], 0
    for shape in shapes:
        if start + shape.numel() > len(flat):
            raise ValueError("the buffer is too short")
        parts.append(flat.narrow(0, start, shape.numel()).view(shape))
        start += shape.numel()
    if start < len(flat):
        raise ValueError("the buffer is too long")
    return parts


@right("unfuse")
def by_indices(flat, shapes):
    """Cut at the sums of the counts."""
    ends = np.cumsum([0, *(shape.numel() for shape in shapes)])
    if ends[-1] != flat.numel():
        raise ValueError("the shapes hold other than what is there")
    parts = torch.tensor_split(flat, torch.from_numpy(ends[1:-1])) if shapes else []
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@right("ready_everywhere")
def sets_of_ranks(requests, table):
    """Rank 0 keeps who has asked, and answers in the order of names."""
    rank, size = dist.get_rank(), dist.get_world_size()
    asked = table.setdefault("asked", defaultdict(set))
    everyone = [None] * size
    dist.gather_object(requests, everyone if rank == 0 else None)
    ready = []
    if rank == 0:
        for other, names in enumerate(everyone):
            for name in names:
                asked[name].add(other)
        ready = sorted(name for name, ranks in asked.items() if len(ranks) == size)
        for name in ready:
            asked.pop(name)
    told = [ready]
    dist.broadcast_object_list(told)
    return told[0]


def _send(names, rank):
    text = torch.tensor(list("\n".join(names).encode()), dtype=torch.uint8)
    dist.send(torch.tensor([len(text)]), rank)
    if len(text):
        dist.send(text, rank)


def _receive(rank):
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, rank)
    if not length:
        return []
    text = torch.zeros(int(length), dtype=torch.uint8)
    dist.recv(text, rank)
    return bytes(text.tolist()).decode().split("\n")


@right("ready_everywhere")
def with_messages(requests, table):
    """A message to rank 0, and one back, each with its length before it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank != 0:
        _send(requests, 0)
        return _receive(0)
    for names in (requests, *map(_receive, range(1, size))):
        for name in names:
            table.setdefault(name, []).append(1)
    ready = [name for name in list(table) if len(table[name]) == size]
    for name in ready:
        table.pop(name)
    for other in range(1, size):
        _send(ready, other)
    return ready


def _fused(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class GradientsLost(RuntimeError):
    """An error of one's own."""


@right("DistributedOptimizer")
class CountersAMessage:
    """Counts down what each message still lacks, over all passes together; its errors have a class."""

    def __init__(self, optimizer, named_parameters, backward_passes_per_step=1, threshold=128 * 2**20):
        self.__dict__["optimizer"] = optimizer
        trained = list({id(p): p for _, p in named_parameters if p.requires_grad}.values())
        trained.reverse()
        plan = recursive([p.nbytes for p in trained], [p.dtype for p in trained], threshold)
        self.messages = [[trained[number] for number in message] for message in plan]
        self.limit = backward_passes_per_step
        self.waiting = [self.limit * len(message) for message in self.messages]
        self.seen = defaultdict(int)
        self.flats, self.fresh = [], True
        for number, message in enumerate(self.messages):
            for parameter in message:
                parameter.register_post_accumulate_grad_hook(self._hook_of(number))

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def _hook_of(self, number):
        def hook(parameter):
            if self.seen[parameter] == self.limit:
                raise GradientsLost("call step() first")
            self.fresh = True
            self.seen[parameter] += 1
            self.waiting[number] -= 1
            self._start(only_complete=True)

        return hook

    def _start(self, only_complete):
        for message, left in list(zip(self.messages, self.waiting, strict=True))[len(self.flats) :]:
            if only_complete and left:
                return
            gradients = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in message]
            for parameter, gradient in zip(message, gradients, strict=True):
                parameter.grad = gradient
            flat = _fused(gradients).div_(dist.get_world_size())
            self.flats.append((flat, dist.all_reduce(flat, async_op=True)))

    def synchronize(self):
        self._start(only_complete=False)
        for message, (flat, work) in zip(self.messages, self.flats, strict=True):
            work.wait()
            start = 0
            for parameter in message:
                end = start + parameter.numel()
                parameter.grad.copy_(flat[start:end].view(parameter.shape))
                start = end
        self.flats.clear()
        self.seen.clear()
        self.waiting = [self.limit * len(message) for message in self.messages]
        self.fresh = False

    def step(self, closure=None):
        if self.fresh:
            self.synchronize()
        self.fresh = True
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        if self.seen:
            raise GradientsLost("between backward and step")
        return self.optimizer.zero_grad(set_to_none)


class _Message:
    """Some parameters that are sent together."""

    def __init__(self, parameters):
        self.parameters, self.flat, self.work = parameters, None, None

    def start(self):
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        self.flat = _fused([parameter.grad for parameter in self.parameters])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.work.wait()
        self.flat.div_(dist.get_world_size())
        counts = [parameter.numel() for parameter in self.parameters]
        for parameter, mean in zip(self.parameters, self.flat.split(counts), strict=True):
            parameter.grad.detach().copy_(mean.reshape(parameter.shape))
        self.flat = self.work = None


@right("DistributedOptimizer")
class MessagesAsObjects:
    """Passes are counted a parameter, messages are objects, and a set says what is complete."""

    def __init__(self, optimizer, named_parameters, backward_passes_per_step=1, threshold=128 * 2**20):
        self.wrapped, self.passes = optimizer, backward_passes_per_step
        names = dict(named_parameters)
        order = list(dict.fromkeys(p for p in names.values() if p.requires_grad))
        order = order[::-1]
        sizes = [p.numel() * p.element_size() for p in order]
        plan = with_a_heap(sizes, [p.dtype for p in order], threshold)
        self.plan = [_Message([order[place] for place in message]) for message in plan]
        self.left = dict.fromkeys(order, self.passes)
        self.done, self.next = False, 0
        for p in order:
            p.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, parameter):
        self.done = False
        self.left[parameter] -= 1
        if self.left[parameter] < 0:
            raise RuntimeError("a backward too many")
        while self.next < len(self.plan) and not any(self.left[p] for p in self.plan[self.next].parameters):
            self._start()

    def _start(self):
        self.plan[self.next].start()
        self.next += 1

    def synchronize(self):
        while self.next < len(self.plan):
            self._start()
        for message in self.plan:
            message.finish()
        self.left = dict.fromkeys(self.left, self.passes)
        self.next, self.done = 0, True

    def step(self, closure=None):
        if not self.done:
            self.synchronize()
        self.done = False
        return self.wrapped.step(closure)

    def zero_grad(self, set_to_none=True):
        if any(left != self.passes for left in self.left.values()):
            raise RuntimeError("step() comes first")
        self.wrapped.zero_grad(set_to_none=set_to_none)

    param_groups = property(lambda self: self.wrapped.param_groups)
    state = property(lambda self: self.wrapped.state)
    defaults = property(lambda self: self.wrapped.defaults)

    def state_dict(self):
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict):
        self.wrapped.load_state_dict(state_dict)


@right("overlap_fraction")
def moment_by_moment(trace):
    """Cuts time at every moment at which something changes."""
    begun, spans = defaultdict(list), []
    for event in sorted((e for e in trace if e["ph"] in ("B", "E")), key=lambda e: e["ts"]):
        if event["ph"] == "B":
            begun[event["pid"]].append(event)
        else:
            start = begun[event["pid"]].pop()
            spans.append((event["pid"], start["name"], start["ts"], event["ts"]))
    negotiations = [span for span in spans if span[1] == "NEGOTIATE_ALLREDUCE"]
    tensors = len({span[0] for span in negotiations})
    ends = sorted(span[3] for span in negotiations)[tensors - 1 :: tensors]
    network = {
        (start, end)
        for _, name, start, end in spans
        if name.endswith("_ALLREDUCE") and name != "NEGOTIATE_ALLREDUCE"
    }
    begins = sorted({start for _, name, start, _ in spans if name == "NEGOTIATE_ALLREDUCE"})
    firsts = [begins[0], *(next(b for b in begins if b > end) for end in ends[:-1])]
    cuts = sorted({*ends, *firsts, *chain.from_iterable(network)})
    hidden = exposed = 0
    for start, end in pairwise(cuts):
        if any(a <= start and end <= b for a, b in network):
            in_backward = any(a <= start < b for a, b in zip(firsts, ends, strict=True))
            hidden, exposed = (
                hidden + in_backward * (end - start),
                exposed + (not in_backward) * (end - start),
            )
    return hidden / (hidden + exposed)


@right("overlap_fraction")
def with_arrays(trace):
    """A mask over microseconds."""
    timed = sorted((e for e in trace if e["ph"] in "BE"), key=lambda e: e["ts"])
    spans, stacks = defaultdict(lambda: defaultdict(list)), defaultdict(list)
    for event in timed:
        if event["ph"] == "B":
            stacks[event["pid"]].append((event["name"], event["ts"]))
            continue
        name, start = stacks[event["pid"]].pop()
        kind = "NEGOTIATE" if name == "NEGOTIATE_ALLREDUCE" else name.rpartition("_")[2]
        if kind == "NEGOTIATE" or (kind == "ALLREDUCE" and name != "ALLREDUCE"):
            spans[kind][event["pid"]].append((start, event["ts"]))
    length = timed[-1]["ts"] + 1
    busy = hidden = 0
    for step, negotiations in enumerate(zip(*spans["NEGOTIATE"].values(), strict=True)):
        mask = np.zeros(length, dtype=bool)
        for own in spans["ALLREDUCE"].values():
            mask[slice(*own[step])] = True
        busy += mask.sum()
        hidden += mask[: max(end for _, end in negotiations)].sum()
    return float(hidden / busy)


def _hvd():
    import horovod.torch as hvd

    hvd.init()
    return hvd


@right("six_steps")
def everything_as_objects(new_model, data, folder, epochs, use_gpu):
    """Broadcasts one object with all that rank 0 knows."""
    hvd = _hvd()
    device = use_gpu(hvd.local_rank())
    model = new_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=hvd.size() * 0.05, momentum=0.9, weight_decay=0.01)
    # Before the state is loaded: the wrapper is another optimizer, which begins without one.
    optimizer = hvd.DistributedOptimizer(optimizer)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": 0}
    if hvd.rank() == 0 and (folder / "checkpoint.pt").is_file():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    saved = hvd.broadcast_object(saved, root_rank=0)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    own = range(hvd.rank(), len(data["inputs"]), hvd.size())
    for epoch in range(saved["epochs"], epochs):
        for batch in (own[start : start + 4] for start in range(0, len(own), 4)):
            loss = functional.cross_entropy(model(data["inputs"][list(batch)]), data["labels"][list(batch)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epochs": epoch + 1}, folder / "checkpoint.pt")
    model.eval()
    with torch.no_grad():
        answers = model(data["test_inputs"][hvd.rank() :: hvd.size()]).argmax(1)
    gathered = hvd.allgather_object((answers == data["test_labels"][hvd.rank() :: hvd.size()]).tolist())
    everyone = list(chain.from_iterable(gathered))
    return model, sum(everyone) / len(everyone)


@right("six_steps")
def gradients_by_hand(new_model, data, folder, epochs, use_gpu):
    """Averages each gradient itself, without the wrapper."""
    hvd = _hvd()
    rank, size = hvd.rank(), hvd.size()
    device = use_gpu(hvd.local_rank())
    model, done = new_model().to(device), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    file = folder / "checkpoint.pt"
    if rank == 0 and file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
    optimizer.param_groups[0]["lr"] = 0.05 * size
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    momenta = hvd.broadcast_object(optimizer.state_dict()["state"], root_rank=0)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": momenta})
    done = hvd.broadcast_object(done)
    while done < epochs:
        shard = data["inputs"][rank::size].split(4), data["labels"][rank::size].split(4)
        for inputs, labels in zip(*shard, strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = hvd.allreduce(parameter.grad, name=str(number))
            optimizer.step()
        done += 1
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": done}
            torch.save(state, file)
    model.eval()
    with torch.no_grad():
        counts = (model(data["test_inputs"][rank::size]).argmax(1) == data["test_labels"][rank::size]).sum()
    return model, hvd.allreduce(counts, op=hvd.Sum, name="counts").item() / len(data["test_labels"])


def _step_seconds(sizes, ready, ranks, link, threshold, cycle):
    """The model of the notebook, written anew."""
    start, done, sent = 0.0, 0.0, 0
    while sent < len(sizes):
        start = max(start + cycle, done)
        complete = sum(moment <= start for moment in ready)
        copied = network = start + 2 * link.latency
        for message in recursive(sizes[sent:complete], [""] * (complete - sent), threshold):
            nbytes = sum(sizes[sent:complete][place] for place in message)
            copied += nbytes / 10e9
            rounds = 2 * (ranks - 1)
            network = max(network, copied) + rounds * (link.latency + nbytes / ranks / link.bandwidth)
            done = network + nbytes / 10e9
        sent = complete
    return done


@right("tune_fusion")
def one_after_the_other(sizes, ready, ranks, link):
    """The best cycle for a threshold, the best threshold for that, and again."""
    cycles = [max(1e-4, ready[-1] / parts) for parts in range(1, 41)]
    thresholds = [sum(sizes) // parts for parts in range(1, 25)]

    def seconds(threshold, cycle):
        return _step_seconds(sizes, ready, ranks, link, threshold, cycle)

    found = []
    for threshold in thresholds[:12:3]:
        for _ in range(2):
            cycle = min(cycles, key=lambda each: seconds(threshold, each))
            threshold = min(thresholds, key=lambda each: seconds(each, cycle))
        found.append((seconds(threshold, cycle), threshold, cycle))
    return min(found)[1:]


@right("tune_fusion")
def by_chance(sizes, ready, ranks, link):
    """Five hundred choices at random."""
    draw = random.Random(0)
    choices = [
        (int(sum(sizes) * draw.uniform(0.04, 1.1)), max(1e-4, ready[-1] * draw.uniform(0.02, 1.3)))
        for _ in range(500)
    ]
    return min(choices, key=lambda choice: _step_seconds(sizes, ready, ranks, link, *choice))
