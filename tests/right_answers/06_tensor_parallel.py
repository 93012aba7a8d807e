"""Right answers of unit 06, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right


@right("tensor_parallel_example")
def divides_first(x):
    share = x / dist.get_world_size()
    dist.all_reduce(share)
    return share


@right("tensor_parallel_example")
def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return torch.stack(everything).mean(0)
