"""Mistakes that people make in unit 06."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

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


# ---------------------------------------------------------------------------------------- layers that are cut


def _f(x, group):
    return _conjugate(x, group, ["backward"])


def _g(x, group):
    return _conjugate(x, group, ["forward"])


def _part(tensor, group, dim=0):
    return tensor.detach().tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()


class _Column(nn.Module):
    """Right; its daughters are not."""

    def __init__(self, inputs, outputs, bias=True, group=None):
        super().__init__()
        self.group = group
        self.make(nn.Linear(inputs, outputs, bias))

    def make(self, whole):
        self.weight = nn.Parameter(_part(whole.weight, self.group))
        self.bias = None if whole.bias is None else nn.Parameter(_part(whole.bias, self.group))

    def forward(self, x):
        return functional.linear(_f(x, self.group), self.weight, self.bias)


class _Row(_Column):
    def make(self, whole):
        self.weight = nn.Parameter(_part(whole.weight, self.group, 1))
        self.bias = whole.bias

    def forward(self, x):
        y = _g(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


@wrong("ColumnParallelLinear", fails="outputs")
class GathersItsOutputs(_Column):
    """The whole output on every rank: what comes next could not work on a part."""

    def forward(self, x):
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        y = super().forward(x)
        parts = [torch.empty_like(y) for _ in range(size)]
        dist.all_gather(parts, y.detach().contiguous(), group=self.group)
        parts[rank] = y
        return torch.cat(parts, -1)


@wrong("ColumnParallelLinear", fails="gradients")
class WithoutF(_Column):
    """x gets the gradient of this rank's outputs alone."""

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


@wrong("ColumnParallelLinear", fails="gradients")
class FAtTheEnd(_Column):
    """Sums up gradients of outputs, of which each rank has others."""

    def forward(self, x):
        return _f(functional.linear(x, self.weight, self.bias), self.group)


@wrong("ColumnParallelLinear", fails="other widths and shapes")
class RoundsDown(_Column):
    """outputs // p for each rank; the rest belongs to nobody."""

    def make(self, whole):
        each, rank = whole.out_features // dist.get_world_size(self.group), dist.get_rank(self.group)
        rows = slice(rank * each, (rank + 1) * each)
        self.weight = nn.Parameter(whole.weight.detach()[rows].clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach()[rows].clone())


@wrong("ColumnParallelLinear", fails="other widths and shapes")
class TransposesPlainly(_Column):
    """x W^T written out for matrices."""

    def forward(self, x):
        bias = 0 if self.bias is None else self.bias
        return torch.einsum("bi,oi->bo", _f(x, self.group), self.weight) + bias


@wrong("ColumnParallelLinear", fails="initial values")
class DrawsItsPart(_Column):
    """All ranks draw the same part, from one random state."""

    def make(self, whole):
        super().make(whole)
        part = nn.Linear(whole.in_features, len(self.weight), self.bias is not None)
        self.weight, self.bias = part.weight, part.bias


@wrong("ColumnParallelLinear", fails="initial values")
class AnotherSeedEach(_Column):
    """Different parts, and a random state that is no longer the same on all ranks."""

    def make(self, whole):
        super().make(whole)
        torch.manual_seed(torch.initial_seed() + dist.get_rank(self.group))


@wrong("ColumnParallelLinear", fails="memory")
class KeepsTheWhole(_Column):
    """A slice of the whole matrix, which lives as long as the slice."""

    def make(self, whole):
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size)[rank])
        self.bias = None if whole.bias is None else nn.Parameter(_part(whole.bias, self.group))


@wrong("ColumnParallelLinear", fails="calls and bytes")
class AFForEach(_Column):
    """One f for the product and one for nothing: two all-reduces in backward."""

    def forward(self, x):
        return functional.linear(_f(x / 2, self.group) + _f(x / 2, self.group), self.weight, self.bias)


@wrong("ColumnParallelLinear", fails="arguments unchanged")
class ClearsX(_Column):
    """It has what it needs, and others may need x no more."""

    def forward(self, x):
        y = super().forward(x.clone())
        x.data.zero_()
        return y


@wrong("ColumnParallelLinear", fails="group")
class ColumnOfAll(_Column):
    """The part is the group's, the sum that of all ranks."""

    def forward(self, x):
        return functional.linear(_f(x, None), self.weight, self.bias)


@wrong("RowParallelLinear", fails="outputs")
class BiasOnEveryRank(_Row):
    """The bias p times in the sum."""

    def forward(self, x):
        return _g(functional.linear(x, self.weight, self.bias), self.group)


@wrong("RowParallelLinear", fails="outputs")
class NeverAddsUp(_Row):
    """Each rank goes on with its own part of the sum."""

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


@wrong("RowParallelLinear", fails="gradients")
class BiasOfRankZero(_Row):
    """The bias once in the sum, and one rank's copy of it alone learns."""

    def forward(self, x):
        first = dist.get_rank(self.group) == 0
        return _g(functional.linear(x, self.weight, self.bias if first else None), self.group)


@wrong("RowParallelLinear", fails="gradients")
class BiasInParts(_Row):
    """A p-th of the bias on every rank, with a p-th of its gradient."""

    def forward(self, x):
        bias = None if self.bias is None else self.bias / dist.get_world_size(self.group)
        return _g(functional.linear(x, self.weight, bias), self.group)


@wrong("RowParallelLinear", fails="gradients")
class SumsInBothPasses(_Row):
    """A gradient that all ranks have already, summed up over them."""

    def forward(self, x):
        y = _conjugate(functional.linear(x, self.weight), self.group, ["forward", "backward"])
        return y if self.bias is None else y + self.bias


@wrong("RowParallelLinear", fails="initial values")
class DrawsItsColumns(_Row):
    """A layer of its part's size: equal parts, drawn from too wide a range."""

    def make(self, whole):
        super().make(whole)
        part = nn.Linear(self.weight.shape[1], whole.out_features, whole.bias is not None)
        self.weight, self.bias = part.weight, part.bias


@wrong("RowParallelLinear", fails="memory")
class KeepsAllColumns(_Row):
    """A slice of the whole matrix, which lives as long as the slice."""

    def make(self, whole):
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size, 1)[rank])
        self.bias = whole.bias


@wrong("RowParallelLinear", fails="calls and bytes")
class WaitsForAll(_Row):
    """A barrier after the sum, to be sure."""

    def forward(self, x):
        y = _g(functional.linear(x, self.weight), self.group)
        dist.barrier(self.group)
        return y if self.bias is None else y + self.bias


@wrong("RowParallelLinear", fails="group")
class RowOfAll(_Row):
    """The part is the group's, the sum that of all ranks."""

    def forward(self, x):
        y = _g(functional.linear(x, self.weight), None)
        return y if self.bias is None else y + self.bias
