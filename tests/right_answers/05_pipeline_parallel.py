"""Right answers of unit 05, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right


@right("pipeline_parallel_example")
def divides_first(x):
    share = x / dist.get_world_size()
    dist.all_reduce(share)
    return share


@right("pipeline_parallel_example")
def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return torch.stack(everything).mean(0)
