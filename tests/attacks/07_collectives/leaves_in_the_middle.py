"""One rank ends its process while the others wait for its message."""

import os

import torch
import torch.distributed as dist


def mend_shift(x):
    if dist.get_rank() == 0:
        os._exit(0)
    arriving = torch.empty_like(x)
    dist.recv(arriving, (dist.get_rank() - 1) % dist.get_world_size())
    return arriving
