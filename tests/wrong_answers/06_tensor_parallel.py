"""Mistakes that people make in unit 06."""

import torch
import torch.distributed as dist

from tests.answers import wrong

# ------------------------------------------------------------------------------------------------ f and g


class _Conjugate(torch.autograd.Function):
    """Sums up in the passes named; in place if asked."""

    @staticmethod
    def forward(ctx, x, group, passes, in_place):
        ctx.group, ctx.passes, ctx.in_place = group, passes, in_place
        return _summed(x, group, in_place) if "forward" in passes else x

    @staticmethod
    def backward(ctx, gradient):
        sums = "backward" in ctx.passes
        return (_summed(gradient, ctx.group, ctx.in_place) if sums else gradient), None, None, None


def _summed(tensor, group, in_place=False):
    total = tensor if in_place else tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _conjugate(x, group, passes, in_place=False):
    return _Conjugate.apply(x, group, passes, in_place)


@wrong("f", fails="gradient")
def nothing_at_all(x, group=None):
    """Each rank trains with its own branch's gradient."""
    return x.view_as(x)


@wrong("f", fails="gradient")
def f_is_g(x, group=None):
    """The two mixed up."""
    return _conjugate(x, group, ["forward"])


@wrong("f", fails="gradient")
def mean_of_gradients(x, group=None):
    """As in data parallelism."""
    result = x.view_as(x)
    if result.requires_grad:
        result.register_hook(lambda gradient: _summed(gradient, group) / dist.get_world_size(group))
    return result


@wrong("f", fails="value")
def sums_in_both_passes(x, group=None):
    """An all-reduce that autograd differentiates has one in its backward."""
    return _conjugate(x, group, ["forward", "backward"])


@wrong("f", fails="other ways keep their gradient")
def hook_on_x(x, group=None):
    """Sums up all that arrives at x, by whichever way."""
    if x.requires_grad:
        x.register_hook(lambda gradient: _summed(gradient, group))
    return x.view_as(x)


@wrong("f", fails="arguments unchanged")
def into_the_gradient(x, group=None):
    """Sums up into the gradient that arrives."""
    return _conjugate(x, group, ["backward"], in_place=True)


@wrong("f", fails="calls")
def twice(x, group=None):
    """Reduces to one rank, which then sends to all."""
    result = x.view_as(x)

    def to_one_and_back(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.reduce(total, group_dst=0, group=group)
        dist.broadcast(total, group_src=0, group=group)
        return total

    if result.requires_grad:
        result.register_hook(to_one_and_back)
    return result


@wrong("f", fails="group")
def f_of_all(x, group=None):
    """Forgets the group."""
    return _conjugate(x, None, ["backward"])


@wrong("g", fails="value")
def g_is_f(x, group=None):
    """The two mixed up."""
    return _conjugate(x, group, ["backward"])


@wrong("g", fails="value")
def mean_of_values(x, group=None):
    """As in data parallelism."""
    return _conjugate(x, group, ["forward"]) / dist.get_world_size(group)


@wrong("g", fails="gradient")
def g_in_both_passes(x, group=None):
    """As torch.distributed.nn.functional.all_reduce does; gradients come out p times as large."""
    return _conjugate(x, group, ["forward", "backward"])


@wrong("g", fails="gradient")
def divides_backward(x, group=None):
    """Gives each rank its share of the gradient."""
    result = _conjugate(x, group, ["forward"])
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient / dist.get_world_size(group))
    return result


@wrong("g", fails="arguments unchanged")
def into_x(x, group=None):
    """Sums up into x, which the branch before it may still need for its backward."""
    return _conjugate(x, group, ["forward"], in_place=True)


@wrong("g", fails="calls")
def gathers_everything(x, group=None):
    """All tensors to all ranks, to add them up there."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.detach().contiguous(), group=group)
    return x + (torch.stack(parts).sum(0) - x).detach()


@wrong("g", fails="group")
def g_of_all(x, group=None):
    """Forgets the group."""
    return _conjugate(x, None, ["forward"])
