"""The functions that are launched; as a script, what torchrun runs."""

import torch
import torch.distributed as dist
from torch import Tensor


def small_all_reduce() -> Tensor:
    """An all-reduce of four numbers: next to nothing, so that a launch costs only itself."""
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x


def ring_steps(x: Tensor, steps: int) -> None:
    """So many steps round the ring, with all of x each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x)
    for _ in range(steps):
        work = dist.isend(x, (rank + 1) % ranks)
        dist.recv(received, (rank - 1) % ranks)
        work.wait()


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


def recursive_doubling(x: Tensor) -> Tensor:
    """All-reduce in log2 p rounds with the whole of x each; p is a power of two."""
    rank, arriving = dist.get_rank(), torch.empty_like(x)
    distance = 1
    while distance < dist.get_world_size():
        work = dist.isend(x, rank ^ distance)
        dist.recv(arriving, rank ^ distance)
        work.wait()
        x += arriving
        distance *= 2
    return x


def incast(x: Tensor) -> None:
    """All others send to rank 0 at once."""
    if dist.get_rank():
        dist.send(x, 0)
        return
    for work in [dist.irecv(torch.empty_like(x), other) for other in range(1, dist.get_world_size())]:
        work.wait()


def pairs(x: Tensor) -> None:
    """Each rank of the first half sends to its partner in the second."""
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    if rank < half:
        dist.send(x, rank + half)
    else:
        dist.recv(x, rank - half)


def pair_rounds(x: Tensor) -> None:
    """The same ten times in a row."""
    for _ in range(10):
        pairs(x)


def send_cycle(x: Tensor) -> None:
    """Everyone sends to the right before it receives from the left."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.send(x, (rank + 1) % ranks, tag=5)
    dist.recv(torch.empty_like(x), (rank - 1) % ranks, tag=5)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    small_all_reduce()
    dist.destroy_process_group()
