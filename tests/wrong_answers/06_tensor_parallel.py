"""Mistakes that people make in unit 06."""

import copy
from contextlib import contextmanager

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


@wrong("f", fails="group")
def f_of_all(x, group=None):
    """Forgets the group."""
    return _conjugate(x, None, ["backward"])


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
    return torch.stack(parts).sum(0) + (x - x.detach())


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


@wrong("ColumnParallelLinear", fails="gradients")
class WithoutF(_Column):
    """x gets the gradient of this rank's outputs alone."""

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


@wrong("ColumnParallelLinear", fails="gradients")
class SumsAtX(_Column):
    """A hook of x itself, which sums up what x gets from elsewhere too."""

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: _summed(gradient, self.group))
        return functional.linear(x, self.weight, self.bias)


@wrong("ColumnParallelLinear", fails="initial values")
class DrawsItsPart(_Column):
    """All ranks draw the same part, from one random state."""

    def make(self, whole):
        super().make(whole)
        part = nn.Linear(whole.in_features, len(self.weight), self.bias is not None)
        self.weight, self.bias = part.weight, part.bias


@wrong("ColumnParallelLinear", fails="initial values")
class KeepsTheWhole(_Column):
    """A slice of the whole matrix, which lives as long as the slice."""

    def make(self, whole):
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size)[rank])
        self.bias = None if whole.bias is None else nn.Parameter(_part(whole.bias, self.group))


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


@wrong("RowParallelLinear", fails="other shapes")
class ViewsX(_Row):
    """A view of x as a matrix, which a transposed x does not have."""

    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1])).view(*x.shape[:-1], -1)


@wrong("RowParallelLinear", fails="gradients")
class BiasOfRankZero(_Row):
    """The bias once in the sum, and one rank's copy of it alone learns."""

    def forward(self, x):
        first = dist.get_rank(self.group) == 0
        return _g(functional.linear(x, self.weight, self.bias if first else None), self.group)


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


# ------------------------------------------------------------------------------------------ halves of a block


def _into(layer, weight, bias):
    layer.weight = nn.Parameter(weight)
    layer.bias = None if bias is None else nn.Parameter(bias)


def _cut_mlp(mlp, group, column=_Column, row=_Row, cut=None, part=_part):
    """Right, with these layers."""
    cut = cut or copy.deepcopy(mlp)
    up, down = mlp.up, mlp.down
    cut.up, cut.down = (
        kind(layer.in_features, layer.out_features, True, group)
        for kind, layer in ((column, up), (row, down))
    )
    _into(cut.up, part(up.weight, group), part(up.bias, group))
    _into(cut.down, part(down.weight, group, 1), down.bias.detach().clone())
    return cut


@wrong("parallel_mlp", fails="outputs")
def every_rank_has_all_hidden_units(mlp, group=None):
    """Nothing is cut, and the sum has everything p times."""
    return _cut_mlp(mlp, group, part=lambda tensor, group, dim=0: tensor.detach().clone())


@wrong("parallel_mlp", fails="parts")
def every_pth_hidden_unit(mlp, group=None):
    """Right outputs from other parts than asked for: checkpoints of two programs would not fit together."""

    def part(tensor, group, dim=0):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return tensor.detach().index_select(dim, torch.arange(rank, tensor.shape[dim], size))

    return _cut_mlp(mlp, group, part=part)


@wrong("parallel_mlp", fails="gradients")
def no_f_in_mlp(mlp, group=None):
    """x gets the gradient of this rank's hidden units alone."""
    return _cut_mlp(mlp, group, column=WithoutF)


@wrong("parallel_mlp", fails="gradients")
def sums_at_x(mlp, group=None):
    """A hook of x itself, which sums up what a residual connection gives it too."""
    return _cut_mlp(mlp, group, column=SumsAtX)


@wrong("parallel_mlp", fails="memory")
def keeps_a_copy(mlp, group=None):
    """The whole MLP in a list, for checkpoints."""
    cut = _cut_mlp(mlp, group)
    cut.whole = [copy.deepcopy(mlp)]
    return cut


def _rows_of_heads(attention, group):
    rows = torch.arange(attention.output.out_features).unflatten(0, (-1, attention.head_width))
    return _part(rows, group).flatten()


def _cut_attention(attention, group, own=None, row=_Row, f_of=_f, cut=None):
    """Right, with these rows."""
    own = _rows_of_heads(attention, group) if own is None else own
    cut = cut or copy.deepcopy(attention)
    whole = attention.output
    for layer in (cut.query, cut.key, cut.value):
        _into(layer, layer.weight.detach()[own], layer.bias.detach()[own])
    cut.output = row(whole.in_features, whole.out_features, True, group)
    _into(cut.output, whole.weight.detach()[:, own], whole.bias.detach().clone())
    cut.register_forward_pre_hook(lambda module, inputs: (f_of(inputs[0], group),))
    return cut


@wrong("parallel_attention", fails="outputs")
def bias_of_output_on_every_rank(attention, group=None):
    """p biases in the sum."""
    return _cut_attention(attention, group, row=BiasOnEveryRank)


@wrong("parallel_attention", fails="gradients")
def no_f_in_attention(attention, group=None):
    """x gets the gradient of this rank's heads alone."""
    return _cut_attention(attention, group, f_of=lambda x, group: x)


@wrong("parallel_attention", fails="calls and bytes")
def three_column_parallel_layers(attention, group=None):
    """Query, key and value each with an f of its own: three all-reduces in backward."""
    cut = _cut_attention(attention, group, f_of=lambda x, group: x)
    for layer in (cut.query, cut.key, cut.value):
        layer.register_forward_pre_hook(lambda module, inputs: (_f(inputs[0], group),))
    return cut


@wrong("parallel_attention", fails="heads that cannot be shared out evenly")
def cuts_through_heads(attention, group=None):
    """tensor_split of the rows, wherever that falls."""
    own = _part(torch.arange(attention.output.out_features), group)
    return _cut_attention(attention, group, own=own)


@wrong("parallel_attention", fails="group")
def attention_of_all(attention, group=None):
    """The heads are the group's, one sum that of all ranks."""
    return _cut_attention(attention, group, row=RowOfAll)


# ------------------------------------------------------------------------------------------- RandomStreams


@wrong("RandomStreams", fails="other on every rank")
class OneSeedForAll:
    """The same mask on every rank's columns."""

    def __init__(self, seed, rank):
        self.state = torch.Generator().manual_seed(seed + 1).get_state()
        torch.manual_seed(seed)

    @contextmanager
    def own(self):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            try:
                yield
            finally:
                self.state = torch.get_rng_state()


class _Own:
    """Right but for what its children do."""

    def __init__(self, seed, rank):
        self.state = torch.Generator().manual_seed(self.number(seed, rank)).get_state()
        torch.manual_seed(seed)

    def number(self, seed, rank):
        return seed + 2718 + rank

    @contextmanager
    def own(self):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            try:
                yield
            finally:
                self.state = torch.get_rng_state()


@wrong("RandomStreams", fails="blocks go on")
class BeginsAnew(_Own):
    """Every block seeds its stream again: the same mask in every layer, and in every step."""

    @contextmanager
    def own(self):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            yield


@wrong("RandomStreams", fails="after an exception")
class ForgetsToClean(_Own):
    """No finally: an exception leaves the rank in its own stream."""

    @contextmanager
    def own(self):
        shared = torch.get_rng_state()
        torch.set_rng_state(self.state)
        yield
        self.state = torch.get_rng_state()
        torch.set_rng_state(shared)


@wrong("RandomStreams", fails="other with another seed")
class WithoutTheSeed(_Own):
    """The rank's own stream does not depend on the seed: every experiment drops the same."""

    def number(self, seed, rank):
        return 2718 + rank


@wrong("RandomStreams", fails="nobody communicates")
class AsksForTheSeed(_Own):
    """Takes rank 0's seed, though all have it."""

    def __init__(self, seed, rank):
        told = torch.tensor([seed])
        dist.broadcast(told, 0)
        super().__init__(int(told), rank)


# --------------------------------------------------------------------------------- VocabParallelEmbedding


class _Rows(nn.Module):
    """Right but for what its children do."""

    def __init__(self, embedding, group=None):
        super().__init__()
        self.group, self.place = group, dist.get_rank(group)
        self.size = dist.get_world_size(group)
        parts = embedding.weight.detach().tensor_split(self.size)
        self.start = sum(map(len, parts[: self.place]))
        self.weight = nn.Parameter(parts[self.place].clone())

    def forward(self, tokens):
        row = tokens - self.start
        here = (row >= 0) & (row < len(self.weight))
        return self.summed(functional.embedding(row.where(here, 0), self.weight) * here.unsqueeze(-1))

    def summed(self, rows):
        return _Conjugate.apply(rows, self.group, ("forward",), False)


@wrong("VocabParallelEmbedding", fails="the rows of the tokens")
class StrangersGetRowZero(_Rows):
    """Every rank adds its first row for tokens that it does not have."""

    def forward(self, tokens):
        row = tokens - self.start
        here = (row >= 0) & (row < len(self.weight))
        return self.summed(functional.embedding(row.where(here, 0), self.weight))


@wrong("VocabParallelEmbedding", fails="a vocabulary that does not divide")
class EqualParts(_Rows):
    """Begins at rank times its own number of rows."""

    def __init__(self, embedding, group=None):
        super().__init__(embedding, group)
        self.start = self.place * len(self.weight)


@wrong("VocabParallelEmbedding", fails="gradient")
class SummedInBackwardToo(_Rows):
    """torch.distributed.nn's all_reduce adds up the gradients as well, which all have: p times too much."""

    def summed(self, rows):
        return _Conjugate.apply(rows, self.group, ("forward", "backward"), False)


@wrong("VocabParallelEmbedding", fails="gradient")
class Unlearned(_Rows):
    """dist.all_reduce knows nothing of gradients: the result has none, so it is given one of its own."""

    def summed(self, rows):
        total = rows.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total + 0 * rows


@wrong("VocabParallelEmbedding", fails="its rows only")
class ViewsTheWhole(_Rows):
    """A view of the whole weight, which stays in memory with it."""

    def __init__(self, embedding, group=None):
        super().__init__(embedding, group)
        self.weight = nn.Parameter(embedding.weight.detach().tensor_split(self.size)[self.place])


# --------------------------------------------------------------------------- vocab_parallel_cross_entropy


def _start(vocabulary, group):
    parts = torch.arange(vocabulary).tensor_split(dist.get_world_size(group))
    return int(parts[dist.get_rank(group)][0])


def _entropy(logits, target, start, group, shift="global", passes=("forward",)):
    """Right as it is called with four arguments."""
    column = target - start
    here = (column >= 0) & (column < logits.shape[1])
    largest = logits.detach().amax(1) if shift else torch.zeros_like(target, dtype=logits.dtype)
    if shift == "global":
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    shifted = logits - largest.unsqueeze(1)
    picked = shifted.gather(1, column.where(here, 0).unsqueeze(1)).squeeze(1)
    both = torch.stack([shifted.exp().sum(1), picked.where(here, 0)])
    total, of_target = _Conjugate.apply(both, group, passes, False)
    return total.log() - of_target


@wrong("vocab_parallel_cross_entropy", fails="loss")
def largest_of_its_own(logits_shard, target, vocabulary, group=None):
    """Subtracts another number on every rank, and adds up the exponentials."""
    return _entropy(logits_shard, target, _start(vocabulary, group), group, shift="local")


@wrong("vocab_parallel_cross_entropy", fails="a vocabulary that does not divide")
def begins_at_rank_times_columns(logits_shard, target, vocabulary, group=None):
    """As if all parts were as wide as this rank's."""
    return _entropy(logits_shard, target, dist.get_rank(group) * logits_shard.shape[1], group)


@wrong("vocab_parallel_cross_entropy", fails="any logits")
def unshifted(logits_shard, target, vocabulary, group=None):
    """exp of the logits as they are."""
    return _entropy(logits_shard, target, _start(vocabulary, group), group, shift="")


@wrong("vocab_parallel_cross_entropy", fails="gradient")
def gradients_added_up(logits_shard, target, vocabulary, group=None):
    """All ranks have the same gradient in backward, and it is added up once more: p times too much."""
    return _entropy(logits_shard, target, _start(vocabulary, group), group, passes=("forward", "backward"))


@wrong("vocab_parallel_cross_entropy", fails="bytes")
def gathers_the_logits(logits_shard, target, vocabulary, group=None):
    """Right, and V numbers a token from rank to rank."""
    widths = [len(part) for part in torch.arange(vocabulary).tensor_split(dist.get_world_size(group))]
    padded = functional.pad(logits_shard, (0, max(widths) - logits_shard.shape[1]))
    parts = [torch.empty_like(padded) for _ in widths]
    dist.all_gather(parts, padded.detach().contiguous(), group=group)
    parts = [part[:, :width] for part, width in zip(parts, widths, strict=True)]
    parts[dist.get_rank(group)] = logits_shard
    return functional.cross_entropy(torch.cat(parts, 1), target, reduction="none")


# ----------------------------------------------------------------------- gather_sequence, scatter_sequence


def _gathered(part, group, dim=1):
    own = part.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.cat(parts, dim)


def _scattered(whole, group, dim=1):
    parts = [part.contiguous() for part in whole.chunk(dist.get_world_size(group), dim)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


def _cut(whole, group):
    return whole.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _as_in_memory(x):
    """The numbers of x in the order in which they stand in memory."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride())


def _summed_and_cut(whole, group):
    return _cut(_summed(whole.contiguous(), group), group)


class _Passes(torch.autograd.Function):
    """Two functions of a tensor and a group, one a pass."""

    @staticmethod
    def forward(ctx, x, forward, backward, group):
        ctx.backward_pass, ctx.group = backward, group
        return forward(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_pass(gradient, ctx.group), None, None, None


@wrong("gather_sequence", fails="all tokens")
def along_the_samples(x_BTD, group=None):
    """all_gather_into_tensor joins the parts in the first dimension, and a view makes it fit."""

    def forward(x, group):
        whole = _gathered(x, group, 0)
        return whole.view(len(x), -1, x.shape[2])

    return _Passes.apply(x_BTD, forward, _scattered, group)


@wrong("gather_sequence", fails="gradient")
def keeps_its_own_gradient(x_BTD, group=None):
    """Cuts its part out of its own gradient: what other ranks made of its tokens is lost."""
    return _Passes.apply(x_BTD, _gathered, _cut, group)


@wrong("gather_sequence", fails="any layout in memory")
def takes_memory_as_it_is(x_BTD, group=None):
    """Reads the numbers in the order in which they stand in memory."""
    return _Passes.apply(x_BTD, lambda x, group: _gathered(_as_in_memory(x), group), _scattered, group)


@wrong("gather_sequence", fails="one collective a pass")
def all_reduce_and_cut(x_BTD, group=None):
    """Right, and in backward twice the bytes: everyone gets everyone's sums."""
    return _Passes.apply(x_BTD, _gathered, _summed_and_cut, group)


@wrong("gather_sequence", fails="group")
def gathers_from_the_world(x_BTD, group=None):
    """The group is not handed to backward."""
    backward = lambda gradient, _: _scattered(gradient, None)  # noqa: E731
    size = dist.get_world_size(group) == dist.get_world_size()
    return _Passes.apply(x_BTD, _gathered, backward if size else lambda g, _: _cut(g, group), group)


@wrong("scatter_sequence", fails="its tokens of the sum")
def cuts_without_adding(x_BTD, group=None):
    """Keeps its tokens of its own part of the sum."""
    return _Passes.apply(x_BTD, _cut, _gathered, group)


@wrong("scatter_sequence", fails="gradient")
def zeros_for_the_others(x_BTD, group=None):
    """What backpropagation of a cut would be: nothing for the tokens of other ranks."""

    def backward(gradient, group):
        parts = [torch.zeros_like(gradient) for _ in range(dist.get_world_size(group))]
        parts[dist.get_rank(group)] = gradient
        return torch.cat(parts, 1)

    return _Passes.apply(x_BTD, _scattered, backward, group)


@wrong("scatter_sequence", fails="any layout in memory")
def scatters_memory_as_it_is(x_BTD, group=None):
    """Reads the numbers in the order in which they stand in memory."""
    return _Passes.apply(x_BTD, lambda x, group: _scattered(_as_in_memory(x), group), _gathered, group)


@wrong("scatter_sequence", fails="one collective a pass")
def all_reduce_then_cut(x_BTD, group=None):
    """g, and a cut behind it: twice the bytes."""
    return _Passes.apply(x_BTD, _summed_and_cut, _gathered, group)


@wrong("scatter_sequence", fails="group")
def backward_in_the_world(x_BTD, group=None):
    """The group is not handed to backward, which gathers from all ranks and takes the first of them."""

    def backward(gradient, group):
        return _gathered(gradient, None)[:, : x_BTD.shape[1]]

    return _Passes.apply(x_BTD, _scattered, backward, group)


# ----------------------------------------------------------------------------------- sequence_parallel_mlp


def _replicated(parameter, group):
    return _Conjugate.apply(parameter, group, ("backward",), False)


def _layer(
    x, norm, up, down, bias, group, gather=(_gathered, _scattered), scatter=(_scattered, _gathered), **change
):
    """Right as it is called with six arguments."""
    replicated = change.get("replicated", _replicated)
    weight, shift = replicated(norm.weight, group), replicated(norm.bias, group)
    h = functional.layer_norm(x, weight.shape, weight, shift, change.get("epsilon", norm.eps))
    y = down(functional.gelu(up(_Passes.apply(h, *gather, group))))
    y = change.get("before", lambda y: y)(y)
    y = _Passes.apply(y, *scatter, group)
    residual = change.get("residual", x)
    return residual + y + change.get("offset", replicated(bias, group))


@wrong("sequence_parallel_mlp", fails="its tokens")
def bias_on_every_rank(x_BTD, norm, up, down, bias, group=None):
    """Added before the sum, so p times."""
    before = lambda y: y + bias  # noqa: E731
    return _layer(x_BTD, norm, up, down, bias, group, before=before, offset=0)


@wrong("sequence_parallel_mlp", fails="gradients of what is cut")
def gathers_with_a_cut_behind(x_BTD, norm, up, down, bias, group=None):
    """The gathered tokens' gradient is not added up over ranks."""
    return _layer(x_BTD, norm, up, down, bias, group, gather=(_gathered, _cut))


@wrong("sequence_parallel_mlp", fails="gradients of what all have")
def norm_not_reduced(x_BTD, norm, up, down, bias, group=None):
    """The norm's and the bias's gradients are of this rank's tokens: the copies drift apart, unnoticed."""
    return _layer(x_BTD, norm, up, down, bias, group, replicated=lambda parameter, group: parameter)


@wrong("sequence_parallel_mlp", fails="collectives")
def whole_sum_then_cut(x_BTD, norm, up, down, bias, group=None):
    """All-reduces the sum, and cuts: the bytes of tensor and of sequence parallelism."""
    return _layer(x_BTD, norm, up, down, bias, group, scatter=(_summed_and_cut, _gathered))


@wrong("sequence_parallel_mlp", fails="group")
def reduced_in_the_world(x_BTD, norm, up, down, bias, group=None):
    """The gradients of norm and bias are added up over all ranks."""
    replicated = lambda parameter, _: _replicated(parameter, None)  # noqa: E731
    return _layer(x_BTD, norm, up, down, bias, group, replicated=replicated)


# ----------------------------------------------------------------------- required_collectives, stack_costs


def _needed(einsum, layout, refuses=True, backward=True):
    """Right as it is called with two arguments."""
    inputs, result = einsum.split("->")
    tensors = [result, *inputs.split(",")]
    cut = {letter: layout[letter] for letter in {*inputs, *result} & set(layout)}
    if refuses and len(set(cut.values())) < len(cut):
        raise ValueError(cut)
    lists = [sorted({cut[letter] for letter in cut if letter not in tensor}) for tensor in tensors]
    return lists if backward else [lists[0]] + [[] for _ in lists[1:]]


@wrong("required_collectives", fails="forward")
def what_the_result_has(einsum, layout):
    """Adds up where the result is cut, in place of where the sum is."""
    needed = _needed(einsum, layout)
    result = einsum.split("->")[1]
    return [sorted(layout[letter] for letter in result if letter in layout), *needed[1:]]


@wrong("required_collectives", fails="backward")
def nothing_in_backward(einsum, layout):
    """As if gradients needed nothing: g without f, and no data parallelism."""
    return _needed(einsum, layout, backward=False)


@wrong("required_collectives", fails="several axes")
def one_at_most(einsum, layout):
    """Stops at the first axis that it finds."""
    return [axes[:1] for axes in _needed(einsum, layout)]


@wrong("required_collectives", fails="two letters along one axis")
def takes_any_layout(einsum, layout):
    """Two letters along one axis are as good as one."""
    return _needed(einsum, layout, refuses=False)


@wrong("required_collectives", fails="arguments unchanged")
def tidies_the_layout(einsum, layout):
    """Takes the letters that it has used out of the layout."""
    needed = _needed(einsum, layout)
    for letter in set(einsum) & set(layout):
        del layout[letter]
    return needed


def _stack(way, samples, tokens, width, ranks, **change):
    """Right as it is called with five arguments."""
    stream, layer, p = samples * tokens * width, 8 * width**2, ranks
    split = way in ("tensor", "sequence")
    told = {
        "sent": 4 * (p - 1) * stream if split else 2 * stream if way == "pipeline" else 2 * (p - 1) * layer,
        "parameters": p * layer if way == "data" else layer,
        "kept": stream * {"tensor": 2 * p + 8, "sequence": p + 9}.get(way, 10),
        "flops": 6 * layer * samples * tokens,
    }
    return {**told, **{name: number for name, number in change.items() if number is not None}}


@wrong("stack_costs", fails="sent")
def forward_pass_alone(way, samples, tokens, width, ranks):
    """g and no f: half of what tensor parallelism sends."""
    sent = 2 * (ranks - 1) * samples * tokens * width if way == "tensor" else None
    return _stack(way, samples, tokens, width, ranks, sent=sent)


@wrong("stack_costs", fails="sent")
def sequence_sends_half(way, samples, tokens, width, ranks):
    """Counts reduce-scatter and all-gather as one of the two."""
    sent = 2 * (ranks - 1) * samples * tokens * width if way == "sequence" else None
    return _stack(way, samples, tokens, width, ranks, sent=sent)


@wrong("stack_costs", fails="parameters")
def shared_by_all(way, samples, tokens, width, ranks):
    """As if data parallelism, too, cut the layers."""
    return _stack(way, samples, tokens, width, ranks, parameters=8 * width**2)


@wrong("stack_costs", fails="kept")
def all_of_it_cut(way, samples, tokens, width, ranks):
    """Tensor parallelism keeps the whole of what stands outside of f and g, on every rank."""
    return _stack(way, samples, tokens, width, ranks, kept=10 * samples * tokens * width)


@wrong("stack_costs", fails="flops")
def backward_like_forward(way, samples, tokens, width, ranks):
    """Backward has two products for each of forward's."""
    return _stack(way, samples, tokens, width, ranks, flops=4 * 8 * width**2 * samples * tokens)


# ------------------------------------------------------------------------------------------- overlapped_mlp


def _in_chunks(x, up, down, sizes, bias_of=(0,), wait=True, starts=True):
    """Chunks of these sizes; on which ranks the bias is added, and whether anybody waits."""
    bias = down.bias if dist.get_rank() in bias_of else None
    parts, works = [], []
    for chunk in x.split(sizes):
        parts.append(functional.linear(functional.gelu(up(chunk)), down.weight, bias))
        works.append(dist.all_reduce(parts[-1], async_op=True))
        if not starts:
            works[-1].wait()
    for work in works:
        if wait:
            work.wait()
    return torch.cat(parts)


def _equal_chunks(x, count):
    return [len(part) for part in x.tensor_split(count)]


@wrong("overlapped_mlp", fails="result")
def bias_from_every_rank(x_TD, up, down, cluster):
    """p biases in the sum."""
    return _in_chunks(x_TD, up, down, _equal_chunks(x_TD, 4), bias_of=range(8))


@wrong("overlapped_mlp", fails="half of what can be saved")
def all_tokens_at_once(x_TD, up, down, cluster):
    """Nothing to do while the sum is under way."""
    return _in_chunks(x_TD, up, down, [len(x_TD)])


@wrong("overlapped_mlp", fails="half of what can be saved")
def waits_for_each_chunk(x_TD, up, down, cluster):
    """Chunks, one after another: latencies added, nothing hidden."""
    return _in_chunks(x_TD, up, down, _equal_chunks(x_TD, 6), starts=False)


@wrong("overlapped_mlp", fails="within a tenth of the best known")
def three_chunks(x_TD, up, down, cluster):
    """Whatever the machine."""
    return _in_chunks(x_TD, up, down, _equal_chunks(x_TD, 3))


@wrong("overlapped_mlp", fails="within a thirtieth of the best known")
def equal_chunks_for_any_machine(x_TD, up, down, cluster):
    """Six of one size."""
    return _in_chunks(x_TD, up, down, _equal_chunks(x_TD, 6))
