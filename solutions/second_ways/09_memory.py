"""Second ways to do exercises of unit 09, shown once they are solved. Each docstring says how it differs."""

import itertools
import math
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from course_lib.training.out_of_core import DoesNotFit, step


class ShardedOptimizer:
    """Collectives that take a list, a tensor a rank, on parts without padding: only for the journey they are all as
    long as the longest."""

    def __init__(self, parameters, optimizer_class, **options):
        groups = list(parameters)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.trained = [[p for p in group["params"] if p.requires_grad] for group in groups]
        self.parts = [
            nn.Parameter(self.cut(torch.cat([p.detach().flatten() for p in own]))[dist.get_rank()].clone())
            for own in self.trained
        ]
        made = [{**group, "params": [part]} for group, part in zip(groups, self.parts, strict=True)]
        self.optimizer = optimizer_class(made, **options)
        self.param_groups = self.optimizer.param_groups

    def cut(self, numbers):
        """The numbers in a part for each rank, of which the last ones may be shorter, or empty."""
        ranks = dist.get_world_size()
        length = -(-len(numbers) // ranks)
        return [numbers[rank * length : (rank + 1) * length] for rank in range(ranks)]

    def step(self):
        for own, part in zip(self.trained, self.parts, strict=True):
            given = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
            pieces = self.cut(torch.cat([gradient.flatten() for gradient in given]))
            pieces = [functional.pad(piece, (0, len(pieces[0]) - len(piece))) for piece in pieces]
            total = torch.empty_like(pieces[0])
            dist.reduce_scatter(total, pieces)
            part.grad = total[: len(part)] / dist.get_world_size()
        self.optimizer.step()
        for own, part in zip(self.trained, self.parts, strict=True):
            length = -(-sum(p.numel() for p in own) // dist.get_world_size())
            pieces = [part.new_empty(length) for _ in range(dist.get_world_size())]
            dist.all_gather(pieces, functional.pad(part.detach(), (0, length - len(part))))
            left = torch.cat(pieces)
            with torch.no_grad():
                for parameter in own:
                    parameter.copy_(left[: parameter.numel()].view_as(parameter))
                    left = left[parameter.numel() :]

    def zero_grad(self):
        for own in self.trained:
            for parameter in own:
                parameter.grad = None


def clip_grad_norm(shards, max_norm):
    """The norm of norms, as in torch.nn.utils: of each gradient its norm in float32, then the root of the sum of their
    squares. One call multiplies all gradients."""
    there = [shard.grad for shard in shards if shard.grad is not None]
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in there]
    squares = torch.stack([torch.zeros(()), *norms]).square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if there and norm > max_norm:
        torch._foreach_mul_(there, max_norm / norm.item())
    return norm


def gather_state(shards, shapes):
    """A gather for each tensor, in place of messages: all parts have to be of one length for that, so the last ones are
    padded."""
    ranks, rank, state = dist.get_world_size(), dist.get_rank(), {}
    for name, shape in shapes.items():
        length = -(-shape.numel() // ranks)
        parts = [shards[name].new_empty(length) for _ in range(ranks)] if rank == 0 else None
        dist.gather(functional.pad(shards[name], (0, length - len(shards[name]))), parts, dst=0)
        if parts:
            state[name] = torch.cat(parts)[: shape.numel()].view(shape)
    return None if rank else state


class HostOffload:
    """Numbers what it packs. Which numbers are still held, a dictionary knows that forgets what nobody else refers
    to; what is on its way stands in what was packed."""

    class Packed:
        def __init__(self, number, held):
            self.number, self.held, self.arriving, self.had = number, held, None, False

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
        if packed.had:  # another backward
            for each in self.packed.values():
                each.had = False
        before = sorted((number for number in self.packed if number < packed.number), reverse=True)
        for each in [packed, *map(self.packed.get, before[: self.ahead])]:
            if not each.had:
                each.arriving = each.arriving or each.held.to_device()
        arriving, packed.arriving, packed.had = packed.arriving, None, True
        return arriving.wait()


def checkpoint_segments(layers):
    """Guesses the peak and halves the guess: within a bound, the cut with the fewest bytes of checkpoints."""
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


def out_of_core_plan(bytes_, seconds, capacity, bandwidth):
    """A beam: of all plans that differ in one layer from the best 25, the best 25 again. Several that are not best
    are remembered, so that two changes may help of which none does alone."""
    ways = ("keep", "swap", "recompute")

    def taken(plan):
        try:
            return step(plan, bytes_, seconds, capacity, bandwidth).seconds
        except DoesNotFit:
            return math.inf

    best, before = {("recompute",) * len(bytes_), ("swap",) * len(bytes_)}, None
    while best != before:
        before = best
        places = range(len(bytes_))
        near = {(*plan[:n], way, *plan[n + 1 :]) for plan in best for n in places for way in ways}
        best = set(sorted(near | best, key=lambda plan: (taken(plan), plan))[:25])
    return list(min(best, key=taken))
