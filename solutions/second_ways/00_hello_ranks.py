"""Second ways to do exercises of unit 00, shown once they are solved. Each docstring says how it differs."""

import torch
import torch.distributed as dist


def amdahl_speedup(parallel_fraction, workers):
    """One fraction: both sides of Amdahl's are multiplied by the number of workers."""
    return workers / (workers - parallel_fraction * (workers - 1))


def rank_coordinates(rank, gpus, cyclic):
    """Whole nodes or whole rounds are taken off until the rank is in the first."""
    if not cyclic:
        node = 0
        while rank >= gpus[node]:
            rank -= gpus[node]
            node += 1
        return node, rank
    left, local = [node for node, count in enumerate(gpus) if count > 0], 0
    while rank >= len(left):
        rank -= len(left)
        local += 1
        left = [node for node in left if gpus[node] > local]
    return left[rank], local


def pass_the_token(token):
    """`recv` without a source takes the first message that comes, and in this ring there is only one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, group_dst=1)
        dist.recv(token)
    else:
        dist.recv(token)
        token.add_(rank)
        dist.send(token, group_dst=(rank + 1) % size)
    return token


def mend_statistics(mine):
    """Two calls: sum and count in one tensor, and the smallest of the negatives."""
    both = torch.tensor([mine.sum().item(), len(mine)])
    dist.all_reduce(both)
    smallest = torch.cat([-mine, torch.tensor([torch.inf])]).min().reshape(1)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return (both[0] / both[1]).item(), -smallest.item()
