"""Right answers of unit 13, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right


@right("automatic_example")
def divides_first(x):
    share = x / dist.get_world_size()
    dist.all_reduce(share)
    return share


@right("automatic_example")
def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return torch.stack(everything).mean(0)
