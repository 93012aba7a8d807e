"""Right answers of unit 12, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right


@right("hybrid_example")
def divides_first(x):
    share = x / dist.get_world_size()
    dist.all_reduce(share)
    return share


@right("hybrid_example")
def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return torch.stack(everything).mean(0)
