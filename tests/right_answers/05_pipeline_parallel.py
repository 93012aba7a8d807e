"""Right answers of unit 05, written differently."""

import bisect
import functools
import itertools

import torch
import torch.distributed as dist

from tests.answers import right

# ------------------------------------------------------------------------------------------- balance_stages


@right("balance_stages")
def remembers_what_it_has_found(costs, stages):
    """From the front, by recursion: where does the first stage end?"""
    if len(costs) < stages:
        raise ValueError(f"{stages} stages need {stages} layers; there are {len(costs)}.")
    until = [0.0, *itertools.accumulate(costs)]

    @functools.cache
    def best(begin, left):
        """The slowest of the stages that are left, and the length of the first of them."""
        if left == 1:
            return until[-1] - until[begin], len(costs) - begin
        return min(
            (max(until[end] - until[begin], best(end, left - 1)[0]), end - begin)
            for end in range(begin + 1, len(costs) - left + 2)
        )

    lengths, begin = [], 0
    for left in range(stages, 0, -1):
        lengths.append(best(begin, left)[1])
        begin += lengths[-1]
    return lengths


@right("balance_stages")
def by_a_bound(costs, stages):
    """The smallest bound that can be kept by filling stages from the front, found by halving."""
    if len(costs) < stages:
        raise ValueError("Each stage needs a layer.")

    def filled(bound):
        lengths, total = [0], 0.0
        for place, seconds in enumerate(costs):
            left = stages - len(lengths)
            full = total + seconds > bound or len(costs) - place == left
            if lengths[-1] and left and full:
                lengths.append(0)
                total = 0.0
            total += seconds
            lengths[-1] += 1
            if total > bound:
                return None
        return lengths

    until = [0.0, *itertools.accumulate(costs)]
    bounds = sorted({b - a for a, b in itertools.combinations(until, 2)})
    # A hair more, so that a sum in another order fits as well.
    kept = bisect.bisect_left(bounds, True, key=lambda bound: filled(bound * (1 + 1e-12)) is not None)
    return filled(bounds[kept] * (1 + 1e-12))


# ------------------------------------------------------------------------------------------------ run_stage


@right("run_stage")
def asks_autograd_for_all(stage, x, target, loss_function):
    """No backward(): gradients come as values, and are added by hand. Messages by irecv and isend."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    wanted = list(trained)
    given = x
    if rank:
        given = torch.zeros(x.shape, dtype=x.dtype)
        dist.irecv(given, rank - 1).wait()
        wanted.append(given.requires_grad_(True))
    output = stage(given)
    if rank == ranks - 1:
        loss = loss_function(output, target)
        gradients = torch.autograd.grad(loss, wanted) if wanted else []
    else:
        sending = dist.isend(output.detach().clone(memory_format=torch.contiguous_format), rank + 1)
        gradient = torch.zeros(output.shape, dtype=output.dtype)
        dist.irecv(gradient, rank + 1).wait()
        sending.wait()
        gradients = torch.autograd.grad(output, wanted, gradient) if wanted else []
    for parameter, found in zip(trained, gradients, strict=False):
        parameter.grad = found if parameter.grad is None else parameter.grad + found
    if rank:
        dist.isend(gradients[-1].contiguous(), rank - 1).wait()
    return loss.detach() if rank == ranks - 1 else None


@right("run_stage")
def an_inner_product(stage, x, target, loss_function):
    """The gradient of (output * gradient).sum() is that of the output times this gradient."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    given = x.clone()
    if rank > 0:
        dist.recv(given, rank - 1)
        given.requires_grad = True
    output = stage(given)
    if rank < last:
        gradient = output.detach().contiguous().clone()
        dist.send(gradient, rank + 1)
        dist.recv(gradient, rank + 1)
        total = (output * gradient).sum()
    else:
        total = loss_function(output, target)
    if total.requires_grad:
        total.backward()
    if rank > 0:
        dist.send(given.grad.contiguous(), rank - 1)
    return total.detach() if rank == last else None


# ---------------------------------------------------------------------------------------------- example


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
