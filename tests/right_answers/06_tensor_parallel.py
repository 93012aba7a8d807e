"""Right answers of unit 06, written differently."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

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


@right("ColumnParallelLinear")
class PartOfALinear(nn.Linear):
    """An nn.Linear whose parameters are replaced."""

    def __init__(self, inputs, outputs, bias=True, group=None):
        super().__init__(inputs, outputs, bias)
        self.group, rank = group, dist.get_rank(group)
        for name, whole in list(self.named_parameters()):
            part = torch.tensor_split(whole, dist.get_world_size(group))[rank]
            setattr(self, name, nn.Parameter(torch.tensor(part.tolist())))

    def forward(self, x):
        return super().forward(hook_on_a_view(x, self.group))


@right("ColumnParallelLinear")
class DrawnByHand(nn.Module):
    """Draws the whole with nn.init, as nn.Linear does, and sums up in one function with the product."""

    def __init__(self, inputs, outputs, bias=True, group=None):
        super().__init__()
        self.group = group
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        rows = torch.arange(outputs).tensor_split(size)[rank]
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound)[rows])
        self.register_parameter("bias", None)
        if bias:
            self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound)[rows])

    def forward(self, x):
        y = _Waits.apply(x, self.group) @ self.weight.T
        return y if self.bias is None else y + self.bias


@right("RowParallelLinear")
class ColumnsOfALinear(nn.Linear):
    """An nn.Linear whose weight is replaced, and whose bias waits."""

    def __init__(self, inputs, outputs, bias=True, group=None):
        super().__init__(inputs, outputs, bias)
        self.group = group
        columns = torch.arange(inputs).tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
        self.weight = nn.Parameter(self.weight.detach()[:, columns])

    def forward(self, x):
        y = straight_through(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


@right("RowParallelLinear")
class BiasOfOneRank(nn.Module):
    """One rank's sum begins with the bias; the others' copies get its gradient from a zero."""

    def __init__(self, inputs, outputs, bias=True, group=None):
        super().__init__()
        whole = nn.Linear(inputs, outputs, bias)
        self.group, self.bias, self.first = group, whole.bias, dist.get_rank(group) == 0
        with torch.no_grad():
            parts = whole.weight.split([len(part) for part in self._parts(inputs)], dim=1)
        self.weight = nn.Parameter(parts[dist.get_rank(group)].clone())

    def _parts(self, inputs):
        return torch.arange(inputs).tensor_split(dist.get_world_size(self.group))

    def forward(self, x):
        y = functional.linear(x, self.weight)
        if self.bias is not None:
            y = y + (self.bias if self.first else self.bias - self.bias.detach())
        return fills_an_empty_one(y, self.group)
