"""The functions that are launched; as a script, what torchrun runs."""

import torch
import torch.distributed as dist
from torch import Tensor


def small_all_reduce() -> Tensor:
    """An all-reduce of four numbers: next to nothing, so that a launch costs only itself."""
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x


def ring_passes(x: Tensor) -> Tensor:
    """The messages of a ring all-reduce of x: 2 (p - 1) steps with a p-th of x each, sums and all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(ranks)
    received = [torch.empty_like(chunk) for chunk in chunks]
    for step in range(2 * (ranks - 1)):
        sent = (rank - step) % ranks
        work = dist.isend(chunks[sent], (rank + 1) % ranks)
        dist.recv(received[sent - 1], (rank - 1) % ranks)
        work.wait()
        if step < ranks - 1:
            chunks[sent - 1].add_(received[sent - 1])
        else:
            chunks[sent - 1].copy_(received[sent - 1])
    return x


if __name__ == "__main__":
    dist.init_process_group("gloo")
    small_all_reduce()
    dist.destroy_process_group()
