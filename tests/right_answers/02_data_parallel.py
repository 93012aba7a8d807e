"""Right answers to unit 02 that are written otherwise than the solution."""

from contextlib import contextmanager
from itertools import chain, repeat

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler

from tests.answers import right


@right("combine_gradients")
def sum_of_sums(gradients, counts):
    """Adds up the gradients of the summed losses, divides once at the end."""
    total = torch.zeros_like(gradients[0])
    for gradient, count in zip(gradients, counts, strict=True):
        total.add_(gradient.nan_to_num() if count == 0 else gradient, alpha=count)
    return total / sum(counts)


@right("shard_indices")
def blocks(length, epoch, seed):
    """Contiguous blocks of the permutation, by tensor_split."""
    generator = torch.Generator()
    generator.manual_seed(hash((seed, epoch)) % 2**63)
    return torch.randperm(length, generator=generator).tensor_split(dist.get_world_size())[dist.get_rank()]


@right("shard_indices")
def by_numpy(length, epoch, seed):
    """NumPy's generator, whose seed may be a pair."""
    order = np.random.default_rng([seed, epoch]).permutation(length)
    mine = [int(sample) for position, sample in enumerate(order) if position % _ranks() == dist.get_rank()]
    return torch.tensor(mine, dtype=torch.int64)


def _ranks():
    return dist.get_world_size()


@right("broadcast_parameters")
def asynchronously(model, src):
    """Starts all broadcasts, then waits for them."""
    tensors = [parameter.data for parameter in model.parameters()] + list(model.buffers())
    for handle in [dist.broadcast(tensor, src, async_op=True) for tensor in tensors]:
        handle.wait()


@right("average_gradients")
def into_a_buffer(model):
    """Copies into one buffer, divided before it is sent."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffer = parameters[0].new_zeros(sum(parameter.numel() for parameter in parameters))
    views = [
        part.view_as(p)
        for p, part in zip(parameters, buffer.split([p.numel() for p in parameters]), strict=True)
    ]
    for parameter, view in zip(parameters, views, strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad / _ranks())
    dist.all_reduce(buffer)
    for parameter, view in zip(parameters, views, strict=True):
        if parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.copy_(view)


@right("make_buckets")
def with_tuples_of_names(model, bucket_bytes):
    """By name, with the sizes added up first."""
    named = {name: p for name, p in reversed(list(model.named_parameters())) if p.requires_grad}
    buckets, filled = [], bucket_bytes
    for parameter in named.values():
        size = parameter.numel() * parameter.element_size()
        if filled + size > bucket_bytes or not buckets:
            buckets.append([])
            filled = 0
        filled += size
        buckets[-1].append(parameter)
    return buckets


@right("Bucket")
class WithASet:
    """Knows who is missing, divides before sending, and exchanges the gradient tensors."""

    def __init__(self, parameters):
        self.all = list(parameters)
        self.absent = set(self.all)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.came)

    def came(self, parameter):
        self.absent.discard(parameter)
        if not self.absent:
            self.sum = torch.cat([p.grad.reshape(-1) / _ranks() for p in self.all])
            self.work = dist.all_reduce(self.sum, async_op=True)

    def finish(self):
        self.work.wait()
        start = 0
        for parameter in self.all:
            parameter.grad = self.sum[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()
        self.absent.update(self.all)


@right("Bucket")
class WithAFixedBuffer:
    """Each hook copies its gradient into one buffer; AVG divides, and a counter goes round."""

    def __init__(self, parameters):
        self.buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        self.views = {}
        self.arrived = 0
        start = 0
        for parameter in parameters:
            self.views[parameter] = self.buffer[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
            parameter.register_post_accumulate_grad_hook(self.copy)

    def copy(self, parameter):
        self.views[parameter].copy_(parameter.grad)
        self.arrived += 1
        if self.arrived % len(self.views) == 0:
            self.work = dist.all_reduce(self.buffer, op=dist.ReduceOp.AVG, async_op=True)

    def finish(self):
        self.work.wait()
        for parameter, view in self.views.items():
            parameter.grad.copy_(view)


class _Silent:
    """no_sync of the wrappers below: a number says how many blocks one is in."""

    blocks = 0

    @contextmanager
    def no_sync(self):
        self.blocks += 1
        try:
            yield self
        finally:
            self.blocks -= 1


class _Bucket:
    """Some parameters, and the one buffer that their gradients travel in."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.buffer = parameters[0].detach().new_zeros(sum(p.numel() for p in parameters))
        parts = self.buffer.split([p.numel() for p in parameters])
        self.views = {p: part.view(p.shape) for p, part in zip(parameters, parts, strict=True)}
        self.arrived = set()
        self.handle = None

    def start(self):
        for parameter, view in self.views.items():
            if parameter.grad is not None:
                torch.div(parameter.grad, _ranks(), out=view)
            else:
                view.zero_()
        self.handle = dist.all_reduce(self.buffer, async_op=True)

    def finish(self):
        self.handle.wait()
        for parameter, view in self.views.items():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)
        self.arrived.clear()
        self.handle = None


@right("BucketedDDP")
class WithBucketObjects(_Silent, nn.Module):
    """Buckets with buffers of their own, divided before they are sent."""

    def __init__(self, model, bucket_bytes):
        super().__init__()
        self.wrapped = model
        for tensor in chain(model.parameters(), model.buffers()):
            dist.broadcast(tensor.detach(), 0)
        groups = [[]]
        for parameter in [p for p in model.parameters() if p.requires_grad][::-1]:
            if groups[-1] and sum(p.nbytes for p in [*groups[-1], parameter]) > bucket_bytes:
                groups.append([])
            groups[-1].append(parameter)
        self.buckets = [_Bucket(group) for group in groups]
        self.home = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        for parameter in self.home:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def forward(self, *inputs, **named):
        return self.wrapped(*inputs, **named)

    def on_gradient(self, parameter):
        if self.blocks:
            return
        self.home[parameter].arrived.add(parameter)
        for bucket in self.buckets:
            if bucket.handle is None:
                if len(bucket.arrived) < len(bucket.parameters):
                    return
                bucket.start()

    def finish(self):
        for bucket in self.buckets:
            if bucket.handle is None:
                bucket.start()
        for bucket in self.buckets:
            bucket.finish()


@right("BucketedDDP")
class WithFutures(_Silent, nn.Module):
    """The mean is taken by what follows each all_reduce, and finish() waits for that."""

    def __init__(self, model, bucket_bytes):
        super().__init__()
        self.module = model
        for tensor in chain(model.parameters(), model.buffers()):
            dist.broadcast(tensor.data, 0)
        self.buckets = []
        for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
            full = self.buckets and sum(p.nbytes for p in [*self.buckets[-1], parameter]) > bucket_bytes
            if full or not self.buckets:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.on_gradient)
        self.ready, self.futures = set(), []

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def on_gradient(self, parameter):
        if self.blocks:
            return
        self.ready.add(parameter)
        while len(self.futures) < len(self.buckets) and self.ready.issuperset(self.next_bucket):
            self.send()

    @property
    def next_bucket(self):
        return self.buckets[len(self.futures)]

    def send(self):
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.next_bucket]
        work = dist.all_reduce(torch.cat([part.flatten() for part in parts]), async_op=True)
        self.futures.append(work.get_future().then(lambda done: done.value()[0].div_(_ranks())))

    def finish(self):
        while len(self.futures) < len(self.buckets):
            self.send()
        for bucket, future in zip(self.buckets, self.futures, strict=True):
            for parameter, mean in zip(bucket, future.wait().split([p.numel() for p in bucket]), strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(mean.view_as(parameter))
        self.ready, self.futures = set(), []


@right("global_accuracy")
def in_double(correct, total):
    """Sums in 64-bit floating point."""
    sums = torch.tensor([correct, total], dtype=torch.float64)
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    return float(sums[0] / sums[1])


@contextmanager
def _first_on_its_node():
    """The body runs on the first rank of a node before it runs on the others."""
    if dist.get_node_local_rank() != 0:
        dist.barrier()
    try:
        yield
    finally:
        if dist.get_node_local_rank() == 0:
            dist.barrier()


@right("load_once")
def with_a_context_manager(load):
    """The pattern that libraries offer as a context manager."""
    with _first_on_its_node():
        return load()


@right("load_once")
def tells_the_others(load):
    """The barrier is an all_reduce that carries whether the first ranks succeeded."""
    value, error = None, None
    first = dist.get_node_local_rank() == 0
    if first:
        try:
            value = load()
        except Exception as caught:
            error = caught
    failed = torch.tensor(int(error is not None))
    dist.all_reduce(failed)
    if error is not None:
        raise error
    if failed.item():
        raise RuntimeError("the first rank of some node could not load the data")
    return value if first else load()


# ------------------------------------------------------------------------------------------------ train_ddp


@right("train_ddp")
def with_pytorchs_ddp(model, dataset, optimizer, epochs, batch_size, seed, device):
    """PyTorch's wrapper, and all samples on the device at once; a rank without some takes an empty batch."""
    ddp = nn.parallel.DistributedDataParallel(model.to(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    longest = -(-len(dataset) // ranks)
    samples = [dataset[index] for index in range(len(dataset))]
    everything = [torch.stack(parts).to(device) for parts in zip(*samples, strict=True)]
    told = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        mine = torch.randperm(len(dataset), generator=generator)[rank::ranks]
        lost = torch.zeros(2, dtype=torch.float64, device=device)
        for first in range(0, longest, batch_size):
            inputs, targets = (each[mine[first : first + batch_size]] for each in everything)
            whole = sum(len(range(r + first * ranks, len(dataset), ranks)[:batch_size]) for r in range(ranks))
            losses = functional.cross_entropy(ddp(inputs), targets, reduction="none")
            optimizer.zero_grad(set_to_none=False)
            (losses.sum() / whole * ranks).backward()
            optimizer.step()
            lost += torch.stack([losses.sum(), torch.tensor(len(targets), device=device)]).detach()
        dist.all_reduce(lost)
        told.append((lost[0] / lost[1]).item())
        rank or print("epoch", epoch, told[-1])
    return told


class _Dealt(Sampler):
    """DistributedSampler without padding."""

    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        return iter(order[dist.get_rank() :: dist.get_world_size()])

    def __len__(self):
        return len(range(dist.get_rank(), self.length, dist.get_world_size()))


@right("train_ddp")
def with_buckets_and_a_sampler(model, dataset, optimizer, epochs, batch_size, seed, device):
    """One loader with a sampler, buckets that overlap, and an epoch's loss gathered from all."""
    model.to(device)
    ddp = WithBucketObjects(model, 100)
    sampler = _Dealt(len(dataset), seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    most = -(-len(range(0, len(dataset), ranks)) // batch_size)
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        mine = 0.0
        for step, batch in zip(range(most), chain(loader, repeat(None)), strict=False):
            optimizer.zero_grad()
            if batch is not None:
                inputs, targets = (each.to(device) for each in batch)
                left = len(dataset) - step * ranks * batch_size
                share = len(targets) * ranks / min(left, ranks * batch_size)
                loss = functional.cross_entropy(ddp(inputs), targets)
                (share * loss).backward()
                mine += loss.item() * len(targets)
            ddp.finish()
            optimizer.step()
        parts = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(parts, torch.tensor([mine], dtype=torch.float64))
        history.append(sum(parts).item() / len(dataset))
        if rank == 0:
            print(f"{history[-1]:.3f}")
    return history
