"""Second ways to do exercises of unit 00, shown once they are solved. Each docstring says how it differs."""

import torch.distributed as dist


def amdahl_speedup(parallel_fraction, workers):
    """One fraction: both sides of Amdahl's are multiplied by the number of workers."""
    return workers / (workers - parallel_fraction * (workers - 1))


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
