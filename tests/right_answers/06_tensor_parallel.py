"""Right answers of unit 06, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right


def _sum_of(tensor, group):
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


@right("f")
def hook_on_a_view(x, group=None):
    """A hook of the tensor that it returns."""
    result = x.view_as(x)
    if result.requires_grad:
        result.register_hook(lambda gradient: _sum_of(gradient, group))
    return result


class _Waits(torch.autograd.Function):
    """Starts the sum, and waits."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        total = torch.zeros_like(gradient).contiguous() + gradient
        dist.all_reduce(total, group=ctx.group, async_op=True).wait()
        return total, None


@right("f")
def waits_for_it(x, group=None):
    """Asynchronously."""
    return _Waits.apply(x, group)


@right("g")
def straight_through(x, group=None):
    """The sum as a constant beside x, whose derivative stays 1."""
    return x + (_sum_of(x, group) - x).detach()


class _Places(torch.autograd.Function):
    """The group by its keyword, an empty tensor to begin with."""

    @staticmethod
    def forward(ctx, x, group):
        total = torch.empty(x.shape, dtype=x.dtype).copy_(x)
        dist.all_reduce(total, dist.ReduceOp.SUM, group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), None


@right("g")
def fills_an_empty_one(x, group=None):
    """Another copy, another call."""
    return _Places.apply(x, group)
