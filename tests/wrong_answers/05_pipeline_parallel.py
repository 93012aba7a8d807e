"""Mistakes that people make in unit 05."""

import itertools

import numpy as np
import torch
import torch.distributed as dist

from tests.answers import wrong

# ------------------------------------------------------------------------------------------- balance_stages


def _checked(costs, stages):
    if len(costs) < stages:
        raise ValueError(f"{len(costs)} layers cannot fill {stages} stages.")


def _all_cuts(costs, stages):
    """Every cut, as a list of lengths."""
    for cut in itertools.combinations(range(1, len(costs)), stages - 1):
        yield [b - a for a, b in itertools.pairwise((0, *cut, len(costs)))]


def _stage_sums(costs, lengths):
    ends = list(itertools.accumulate(lengths))
    return [sum(costs[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _by_bisection(costs, stages):
    """Which bound on a stage's sum is the smallest that can be kept: the sums of all runs are tried."""
    _checked(costs, stages)
    until = [0.0, *itertools.accumulate(costs)]
    bounds = sorted({b - a for a, b in itertools.combinations(until, 2)})
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if _filled(costs, stages, bounds[middle]):
            high = middle
        else:
            low = middle + 1
    return _filled(costs, stages, bounds[low])


def _filled(costs, stages, bound):
    """Fill each stage up to the bound, from behind; None if that takes too many stages."""
    lengths, total, taken = [], 0.0, 0
    for place in reversed(range(len(costs))):
        must_close = place + 1 == stages - len(lengths) - 1
        if taken and (total + costs[place] > bound * (1 + 1e-12) or must_close):
            lengths.append(taken)
            total, taken = 0.0, 0
        total, taken = total + costs[place], taken + 1
        if costs[place] > bound * (1 + 1e-12):
            return None
    lengths.append(taken)
    return lengths[::-1] if len(lengths) == stages else None


@wrong("balance_stages", fails="the slowest stage")
def equal_numbers_of_layers(costs, stages):
    """As if all layers cost the same."""
    _checked(costs, stages)
    return [len(part) for part in np.array_split(costs, stages)]


@wrong("balance_stages", fails="the slowest stage")
def closes_at_the_mean(costs, stages):
    """Greedy: the last stage gets what is left."""
    _checked(costs, stages)
    lengths, filled, taken = [], 0.0, 0
    for layer, seconds in enumerate(costs):
        filled, taken = filled + seconds, taken + 1
        to_come = stages - len(lengths) - 1
        if to_come and (filled >= sum(costs) / stages or len(costs) - layer - 1 == to_come):
            lengths.append(taken)
            filled, taken = 0.0, 0
    return [*lengths, taken]


@wrong("balance_stages", fails="the slowest stage")
def halves_again_and_again(costs, stages):
    """Cuts into two as equal parts as can be, and each of these again; only the first cut is the best one."""
    _checked(costs, stages)
    if stages == 1:
        return [len(costs)]
    left = stages // 2
    cut = min(
        range(left, len(costs) - (stages - left) + 1),
        key=lambda k: max(sum(costs[:k]) / left, sum(costs[k:]) / (stages - left)),
    )
    return halves_again_and_again(costs[:cut], left) + halves_again_and_again(costs[cut:], stages - left)


@wrong("balance_stages", fails="the slowest stage")
def least_variance(costs, stages):
    """Makes stages alike instead of making the slowest one fast."""
    _checked(costs, stages)
    mean = sum(costs) / stages
    return min(
        _all_cuts(costs, stages),
        key=lambda lengths: sum((s - mean) ** 2 for s in _stage_sums(costs, lengths)),
    )


@wrong("balance_stages", fails="the slowest stage")
def borders_for_lengths(costs, stages):
    """Returns where stages begin."""
    return [0, *itertools.accumulate(_by_bisection(costs, stages))][:-1]


@wrong("balance_stages", fails="arguments unchanged")
def eats_the_costs(costs, stages):
    """Takes the layers out of the caller's list."""
    lengths = _by_bisection(costs, stages)
    costs.clear()
    return lengths


@wrong("balance_stages", fails="no empty stage")
def stages_without_layers(costs, stages):
    """A layer that costs nothing opens no stage, so some stages stay empty."""
    _checked(costs, stages)
    if min(costs) > 0:
        return _by_bisection(costs, stages)
    return [len(costs)] + [0] * (stages - 1)


@wrong("balance_stages", fails="too few layers")
def fewer_stages_than_asked(costs, stages):
    """Returns as many stages as there are layers, without a word."""
    return _by_bisection(costs, min(stages, len(costs)))


@wrong("balance_stages", fails="many layers")
def tries_all_cuts(costs, stages):
    """Right, and for ever."""
    _checked(costs, stages)
    return min(_all_cuts(costs, stages), key=lambda lengths: max(_stage_sums(costs, lengths)))


# ------------------------------------------------------------------------------------------------ run_stage


def _ends():
    return dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1


def _arrived(x):
    """x on rank 0; on the others what the rank before sends."""
    if dist.get_rank() == 0:
        return x
    arrived = torch.empty_like(x)
    dist.recv(arrived, dist.get_rank() - 1)
    return arrived.requires_grad_()


def _back(output):
    """The gradient of the output, once the next rank has had it."""
    dist.send(output.detach().contiguous(), dist.get_rank() + 1)
    gradient = torch.empty(output.shape, dtype=output.dtype)
    dist.recv(gradient, dist.get_rank() + 1)
    return gradient


def _step(stage, x, target, loss_function, share=1.0):
    """All of it, with the loss times `share`."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        (loss * share).backward()
        loss = loss.detach()
    else:
        gradient = _back(output)
        if output.requires_grad:
            output.backward(gradient)
    if not first:
        dist.send(arrived.grad.contiguous(), dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="loss")
def broadcasts_the_loss(stage, x, target, loss_function):
    """Every rank gets it, though it is asked of the last one."""
    loss = _step(stage, x, target, loss_function)
    told = torch.zeros(()) if loss is None else loss.float()
    dist.broadcast(told, dist.get_world_size() - 1)
    return told


@wrong("run_stage", fails="loss")
def keeps_the_graph(stage, x, target, loss_function):
    """Returns the loss with all that autograd holds for it."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    if last:
        output = loss_function(output, target)
        output.backward()
    else:
        output.backward(_back(output))
    if not first:
        dist.send(arrived.grad, dist.get_rank() - 1)
    return output if last else None


@wrong("run_stage", fails="gradients")
def no_gradient_for_the_input(stage, x, target, loss_function):
    """What has arrived asks for no gradient; zeros are sent back."""
    first, last = _ends()
    arrived = _arrived(x).detach()
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        output.backward(_back(output))
    if not first:
        dist.send(torch.zeros_like(arrived), dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="gradients")
def sends_the_outputs_gradient_on(stage, x, target, loss_function):
    """Backward by ones: as if each stage's output were the loss."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        output.backward(torch.ones_like(_back(output)))
    if not first:
        dist.send(arrived.grad, dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="gradients")
def divides_by_the_number_of_stages(stage, x, target, loss_function):
    """As data parallelism divides by the number of ranks."""
    return _step(stage, x, target, loss_function, share=1 / dist.get_world_size())


@wrong("run_stage", fails="once more")
def clears_gradients_first(stage, x, target, loss_function):
    """The second micro-batch wipes out the first."""
    stage.zero_grad()
    return _step(stage, x, target, loss_function)


@wrong("run_stage", fails="once more")
def receives_into_x(stage, x, target, loss_function):
    """The buffer keeps its gradient, to which the next call adds."""
    first, last = _ends()
    if not first:
        dist.recv(x.detach(), dist.get_rank() - 1)
        x.requires_grad_()
    output = stage(x)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        gradient = _back(output)
        if output.requires_grad:
            output.backward(gradient)
    if not first:
        dist.send(x.grad, dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="any number of stages")
def one_stage_sends_to_itself(stage, x, target, loss_function):
    """The first rank always sends, and there is nobody to send to."""
    if dist.get_rank() == 0:
        output = stage(x)
        dist.send(output.detach().contiguous(), 1)
        gradient = torch.empty(output.shape, dtype=output.dtype)
        dist.recv(gradient, 1)
        if output.requires_grad:
            output.backward(gradient)
        return None
    return _step(stage, x, target, loss_function)


@wrong("run_stage", fails="any layout")
def sends_what_the_stage_returns(stage, x, target, loss_function):
    """Column by column in memory, which a message cannot carry."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        dist.send(output.detach(), dist.get_rank() + 1)
        gradient = torch.empty(output.shape, dtype=output.dtype)
        dist.recv(gradient, dist.get_rank() + 1)
        if output.requires_grad:
            output.backward(gradient)
    if not first:
        dist.send(arrived.grad, dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="tokens and doubles")
def gradient_of_the_batch_too(stage, x, target, loss_function):
    """Asks for the gradient of the batch itself, which tokens cannot have."""
    arrived = x.detach().requires_grad_() if dist.get_rank() == 0 else x
    return _step(stage, arrived, target, loss_function)


@wrong("run_stage", fails="tokens and doubles")
def room_for_float32(stage, x, target, loss_function):
    """The gradient arrives in PyTorch's default dtype."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        dist.send(output.detach().contiguous(), dist.get_rank() + 1)
        gradient = torch.empty(output.shape)
        dist.recv(gradient, dist.get_rank() + 1)
        if output.requires_grad:
            output.backward(gradient)
    if not first:
        dist.send(arrived.grad.contiguous(), dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="frozen stage")
def backward_of_a_frozen_stage(stage, x, target, loss_function):
    """No parameter of it is trained, so there is nothing to go backward through."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = loss_function(output, target)
        loss.backward()
        loss = loss.detach()
    else:
        output.backward(_back(output))
    if not first:
        dist.send(arrived.grad.contiguous(), dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="messages and bytes")
def sends_the_batch_size_first(stage, x, target, loss_function):
    """Asks for what everyone knows."""
    first, last = _ends()
    if not last:
        dist.send(torch.tensor([len(x)]), dist.get_rank() + 1)
    if not first:
        dist.recv(torch.zeros(1, dtype=torch.int64), dist.get_rank() - 1)
    return _step(stage, x, target, loss_function)


@wrong("run_stage", fails="messages and bytes")
def meets_in_a_barrier(stage, x, target, loss_function):
    """Waits for all, after each batch."""
    loss = _step(stage, x, target, loss_function)
    dist.barrier()
    return loss


# ---------------------------------------------------------------------------------------------- example


@wrong("pipeline_parallel_example", fails="mean over ranks")
def forgets_to_divide(x):
    """The sum instead of the mean."""
    total = x.clone()
    dist.all_reduce(total)
    return total


@wrong("pipeline_parallel_example", fails="mean over ranks")
def divides_by_two(x):
    """As if there were always two ranks."""
    total = x.clone()
    dist.all_reduce(total)
    return total / 2


@wrong("pipeline_parallel_example", fails="mean over ranks")
def mean_of_its_own(x):
    """Averages what one rank holds; nobody is asked."""
    return torch.full_like(x, x.mean().item())


@wrong("pipeline_parallel_example", fails="x unchanged")
def overwrites_x(x):
    """Gives its own argument to all_reduce."""
    dist.all_reduce(x)
    return x / dist.get_world_size()


@wrong("pipeline_parallel_example", fails="one collective")
def asks_for_the_number_of_ranks(x):
    """A second collective, for a number that every rank knows."""
    total, ranks = x.clone(), torch.ones(1)
    dist.all_reduce(total)
    dist.all_reduce(ranks)
    return total / ranks
