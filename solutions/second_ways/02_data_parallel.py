"""Second ways to do exercises of unit 02, shown once they are solved. Each docstring says how it differs."""

import torch
import torch.distributed as dist


def combine_gradients(gradients, counts):
    """One contraction, over the workers that had samples."""
    used = [(gradient, count) for gradient, count in zip(gradients, counts, strict=True) if count]
    stacked = torch.stack([gradient for gradient, _ in used])
    weights = torch.tensor([count for _, count in used], dtype=stacked.dtype)
    return torch.tensordot(weights / weights.sum(), stacked, dims=1)


def global_accuracy(correct, total):
    """All ranks get all counts, and each adds them up: more bytes than a sum, and you see who had which share."""
    counts = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([correct, total]))
    all_correct, all_total = torch.stack(counts).sum(0)
    return (all_correct / all_total).item()
