"""Right answers to unit 00, written in other ways than the solutions."""

from functools import cache

import torch
import torch.distributed as dist

from tests.answers import right


@right("rank_coordinates")
def by_dealing(rank, gpus, cyclic):
    """Puts the ranks on nodes one after another, as a launcher does."""
    on_node, node = [0] * len(gpus), 0
    for _ in range(rank + 1):
        while on_node[node] == gpus[node]:
            node = (node + 1) % len(gpus)
        place = node, on_node[node]
        on_node[node] += 1
        node = (node + cyclic) % len(gpus)
    return place


@right("pass_the_token")
def with_isend_and_irecv(token):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return token.clone()
    held = token.clone() if rank == 0 else torch.empty_like(token)
    if rank > 0:
        dist.irecv(held, rank - 1).wait()
        held += rank
    sending = dist.isend(held, (rank + 1) % size)
    sending.wait()
    if rank == 0:
        dist.irecv(held, size - 1).wait()
    return held


@right("pass_the_token")
def rank_0_posts_its_receive_early(token):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return token
    result = torch.zeros_like(token)
    arriving = dist.irecv(result, src=(rank - 1) % size)
    if rank == 0:
        dist.send(token, dst=1)
    arriving.wait()
    if rank > 0:
        result = result + rank
        dist.send(result, dst=(rank + 1) % size)
    return result


@cache
@right("amdahl_speedup")
def by_times(parallel_fraction, workers):
    serial = 1 - parallel_fraction
    shared = parallel_fraction / workers
    return (serial + parallel_fraction) / (serial + shared)


@right("amdahl_speedup")
def of_lists(parallel_fraction, workers):
    """Keeps the time of each worker, as the unit's example does."""
    rest, parts = 1 - parallel_fraction, [parallel_fraction / workers] * workers
    return (rest + sum(parts)) / (rest + max(parts))


@right("mend_statistics")
def gathered(mine):
    """Gathers each rank's results, in double precision."""

    def of_all(number):
        every = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(every, torch.tensor([number], dtype=torch.float64))
        return [each.item() for each in every]

    sums, counts = of_all(mine.double().sum().item()), of_all(len(mine))
    return sum(sums) / sum(counts), max(of_all(max(mine.tolist(), default=float("-inf"))))
