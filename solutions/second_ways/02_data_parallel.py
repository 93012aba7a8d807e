"""Second ways to do exercises of unit 02, shown once they are solved. Each docstring says how it differs."""

from itertools import chain

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector


def combine_gradients(gradients, counts):
    """One contraction, over the workers that had samples."""
    used = [(gradient, count) for gradient, count in zip(gradients, counts, strict=True) if count]
    stacked = torch.stack([gradient for gradient, _ in used])
    weights = torch.tensor([count for _, count in used], dtype=stacked.dtype)
    return torch.tensordot(weights / weights.sum(), stacked, dims=1)


def broadcast_parameters(model, src):
    """One broadcast for all tensors of a dtype."""
    tensors = [tensor.detach() for tensor in chain(model.parameters(), model.buffers())]
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in alike])
        dist.broadcast(flat, src)
        for tensor, part in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(part.view_as(tensor))


def average_gradients(model):
    """torch's own flattening, and AVG."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    gradients = [parameter.grad for parameter in parameters]
    flat = parameters_to_vector([gradient.contiguous() for gradient in gradients])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def make_buckets(model, bucket_bytes):
    """Takes as many from the end as have room, and goes on with the rest."""
    left = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buckets = []
    while left:
        taken = [left.pop()]
        while left and sum(p.nbytes for p in taken) + left[-1].nbytes <= bucket_bytes:
            taken.append(left.pop())
        buckets.append(taken)
    return buckets


def global_accuracy(correct, total):
    """All ranks get all counts, and each adds them up: more bytes than a sum, and you see who had which share."""
    counts = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([correct, total]))
    all_correct, all_total = torch.stack(counts).sum(0)
    return (all_correct / all_total).item()
