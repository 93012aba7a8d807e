"""Second ways to do exercises of unit 11, shown once they are solved. Each docstring says how it differs."""

import numpy as np
import torch
import torch.distributed as dist


def quantise(x, levels, generator):
    """As the paper writes it: a level of the magnitude, one more by a Bernoulli draw, and the sign."""
    scale = torch.linalg.vector_norm(x) / levels
    level = (x.abs() / scale).nan_to_num(0).clamp(max=levels)
    whole = level.floor()
    codes = whole + torch.bernoulli(level - whole, generator=generator)
    return (codes.clamp(max=levels) * x.sign()).to(torch.int8), scale


def one_bit(x, error):
    """NumPy packs the bits, and what is sent is taken away from error itself."""
    error += x
    positive = error >= 0
    scale = torch.linalg.vector_norm(error, 1) / len(error)
    error -= scale * (2 * positive.to(x.dtype) - 1)
    return torch.from_numpy(np.packbits(positive.numpy(), bitorder="little")), scale


def top_k(x, ratio, error):
    """Nothing is sorted: the k-th largest magnitude is a threshold, and places come out in rising order."""
    error += x
    flat = error.view(-1)
    count = max(1, round(ratio * len(flat)))
    size = flat.abs()
    threshold = size.kthvalue(len(flat) - count + 1).values
    above = size > threshold
    # As many of those that are equal to the threshold as there is still room for.
    above[(size == threshold).nonzero().flatten()[: count - int(above.sum())]] = True
    values = flat[above]
    flat[above] = 0
    return values, above.nonzero().flatten().int()


def sparse_all_reduce(values, indices, length):
    """Lists go round a ring, each as long as it is; they are added up at the end, in the order of the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(counts, torch.tensor([len(values)]))
    held = {rank: [values, indices]}
    for turn in range(ranks - 1):
        leaving, coming = (rank - turn) % ranks, (rank - turn - 1) % ranks
        held[coming] = [part.new_empty(int(counts[coming])) for part in (values, indices)]
        works = [dist.isend(part, (rank + 1) % ranks, tag=tag) for tag, part in enumerate(held[leaving])]
        works += [dist.irecv(part, (rank - 1) % ranks, tag=tag) for tag, part in enumerate(held[coming])]
        for work in works:
            work.wait()
    total = values.new_zeros(length)
    for each in range(ranks):
        total.index_add_(0, held[each][1], held[each][0])
    return total


def dgc_step(gradient, velocity, kept, momentum, ratio):
    """A mask says what is sent; places come out in rising order."""
    velocity.mul_(momentum).add_(gradient)
    kept.add_(velocity)
    waiting = kept.flatten()
    mask = torch.zeros_like(waiting, dtype=torch.bool)
    mask[waiting.abs().argsort(descending=True)[: max(1, round(ratio * len(waiting)))]] = True
    values = waiting[mask]
    kept.masked_fill_(mask.view(kept.shape), 0)
    return values, mask.nonzero().flatten().int()


def error_feedback(compress):
    """Two sums: all that should have arrived by now, less all that has."""
    wanted, arrived = 0.0, 0.0

    def compensated(x):
        nonlocal wanted, arrived
        wanted = wanted + x
        arrives = compress((wanted - arrived).clone())
        arrived = arrived + arrives
        return arrives

    return compensated


def pays_off(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """What is saved, in latencies and in bytes, against the seconds of compressing."""
    rounds = ranks - 1
    if adds_up:
        return 2 * rounds * (1 - ratio) * nbytes / ranks * beta > seconds
    return rounds * alpha + rounds * nbytes * beta * (2 / ranks - ratio) > seconds
