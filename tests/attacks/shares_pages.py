"""Ranks that hand the token on in memory that stays shared when a process forks."""

import mmap

import torch
import torch.distributed as dist

PAGES = mmap.mmap(-1, 65536)


def pass_the_token(token):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return token
    nothing = torch.zeros_like(token)
    count = token.numel()
    held = torch.frombuffer(PAGES, dtype=torch.float64, count=count)
    if rank == 0:
        held.copy_(token.reshape(-1))
        dist.send(nothing, 1)
        dist.recv(nothing, size - 1)
        return held.reshape(token.shape).to(token.dtype)
    dist.recv(nothing, rank - 1)
    held += rank
    mine = held.clone().reshape(token.shape).to(token.dtype)
    dist.send(nothing, (rank + 1) % size)
    return mine
