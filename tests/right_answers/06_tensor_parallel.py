"""Right answers of unit 06, written differently."""

import copy
import math
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.answers import right, solved


def _own(name):
    """The solution of an exercise that others build on."""
    return solved("06_tensor_parallel")[name]


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


@right("g")
def constant_beside_zero(x, group=None):
    """The sum as a constant, and x less itself, which is exactly 0 and has the derivative 1."""
    return _sum_of(x, group) + (x - x.detach())


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
        y = constant_beside_zero(functional.linear(x, self.weight), self.group)
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


class _Hidden(nn.Module):
    """Some hidden units: f, two products, g, the bias."""

    def __init__(self, mlp, group):
        super().__init__()
        self.group = group
        own = torch.arange(mlp.up.out_features).tensor_split(dist.get_world_size(group))
        own = own[dist.get_rank(group)]
        dtype = mlp.up.weight.dtype
        self.up = nn.Linear(mlp.up.in_features, len(own), dtype=dtype)
        self.down = nn.Linear(len(own), mlp.down.out_features, dtype=dtype)
        with torch.no_grad():
            self.up.weight.copy_(mlp.up.weight[own])
            self.up.bias.copy_(mlp.up.bias[own])
            self.down.weight.copy_(mlp.down.weight[:, own])
            self.down.bias.copy_(mlp.down.bias)

    def forward(self, x):
        inside = functional.gelu(self.up(_Waits.apply(x, self.group)))
        return constant_beside_zero(inside @ self.down.weight.T, self.group) + self.down.bias


@right("parallel_mlp")
def a_module_of_its_own(mlp, group=None):
    """Two small layers, and what is between ranks round them."""
    return _Hidden(mlp, group)


@right("parallel_mlp")
def cut_from_a_copy(mlp, group=None):
    """Shortens the parameters of a copy, and sums up in hooks."""
    cut, size, rank = copy.deepcopy(mlp), dist.get_world_size(group), dist.get_rank(group)
    for layer, name, dim in ((cut.up, "weight", 0), (cut.up, "bias", 0), (cut.down, "weight", 1)):
        part = getattr(layer, name).detach().tensor_split(size, dim)[rank]
        setattr(layer, name, nn.Parameter(part.clone()))
    cut.register_forward_pre_hook(lambda module, inputs: (hook_on_a_view(inputs[0], group),))
    cut.down.forward = lambda x: fills_an_empty_one(x @ cut.down.weight.mT, group) + cut.down.bias
    return cut


class _Heads(nn.Module):
    """Some heads, with torch's own attention."""

    def __init__(self, attention, group):
        super().__init__()
        self.group, self.width, self.dropout = group, attention.head_width, attention.dropout.p
        heads = attention.output.out_features // self.width
        own = [range(h * self.width, (h + 1) * self.width) for h in range(heads)]
        own = [
            own[h] for h in torch.arange(heads).tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
        ]
        own = torch.tensor([row for rows in own for row in rows])
        for name in ("query", "key", "value"):
            whole = getattr(attention, name)
            part = nn.Linear(whole.in_features, len(own), dtype=whole.weight.dtype)
            part.load_state_dict({"weight": whole.weight[own], "bias": whole.bias[own]})
            setattr(self, name, part)
        self.output = nn.Linear(len(own), heads * self.width, dtype=whole.weight.dtype)
        self.output.load_state_dict(
            {"weight": attention.output.weight[:, own], "bias": attention.output.bias}
        )

    def forward(self, x):
        x = hook_on_a_view(x, self.group)
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, None, dropout, is_causal=True)
        y = functional.linear(mixed.transpose(1, 2).flatten(2), self.output.weight)
        return constant_beside_zero(y, self.group) + self.output.bias


@right("parallel_attention")
def with_torchs_attention(attention, group=None):
    """A module of its own."""
    return _Heads(attention, group)


@right("parallel_attention")
def shortened_copy(attention, group=None):
    """Parameters of a copy made shorter by chunks of heads; sums in hooks."""
    cut, width = copy.deepcopy(attention), attention.head_width
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    for layer in (cut.query, cut.key, cut.value):
        for name, parameter in list(layer.named_parameters()):
            heads = parameter.detach().unflatten(0, (-1, width))
            setattr(layer, name, nn.Parameter(heads.tensor_split(size)[rank].flatten(0, 1).clone()))
    columns = cut.output.weight.detach().unflatten(1, (-1, width)).tensor_split(size, 1)[rank]
    cut.output.weight = nn.Parameter(columns.flatten(1).clone())
    cut.register_forward_pre_hook(lambda module, inputs: (_Waits.apply(inputs[0], group),))
    cut.output.forward = lambda x: constant_beside_zero(x @ cut.output.weight.T, group) + cut.output.bias
    return cut


# ------------------------------------------------------------------------------------------- RandomStreams


@right("RandomStreams")
class RandomStreamsSavedByForking:
    """torch's own fork_rng puts back the shared state; the generator of the own stream is kept whole."""

    def __init__(self, seed, rank):
        torch.manual_seed(seed)
        self.generator = torch.Generator()
        self.generator.manual_seed((seed + 1) * 1009 + rank)

    @contextmanager
    def own(self):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(self.generator.get_state())
            try:
                yield self
            finally:
                self.generator.set_state(torch.default_generator.get_state())


@right("RandomStreams")
class RandomStreamsInATable:
    """A table of states by name, as Megatron-LM has it, and a block that is a class."""

    def __init__(self, seed, rank):
        torch.manual_seed(seed + 2718 + rank)
        self.states = {"own": torch.get_rng_state()}
        torch.manual_seed(seed)

    def own(self):
        return self

    def __enter__(self):
        self.states["shared"] = torch.get_rng_state()
        torch.set_rng_state(self.states["own"])

    def __exit__(self, *error):
        self.states["own"] = torch.get_rng_state()
        torch.set_rng_state(self.states["shared"])


# --------------------------------------------------------------------------------- VocabParallelEmbedding


@right("VocabParallelEmbedding")
class OneHotRows(nn.Module):
    """A product with one-hot rows, which are all zero for tokens of other ranks."""

    def __init__(self, embedding, group=None):
        super().__init__()
        size, place = dist.get_world_size(group), dist.get_rank(group)
        words = torch.arange(embedding.num_embeddings).tensor_split(size)[place]
        self.weight = nn.Parameter(embedding.weight.data[words])
        self.words, self.group = words, group

    def forward(self, tokens):
        one_hot = (tokens.unsqueeze(-1) == self.words).to(self.weight.dtype)
        return _own("g")(one_hot @ self.weight, self.group)


@right("VocabParallelEmbedding")
class RowsPutIntoZeros(nn.Module):
    """Looks up the tokens that it has, and puts their rows among zeros."""

    def __init__(self, embedding, group=None):
        super().__init__()
        parts = embedding.weight.detach().tensor_split(dist.get_world_size(group))
        place = dist.get_rank(group)
        self.start = sum(map(len, parts[:place]))
        self.weight = nn.Parameter(parts[place].clone())
        self.group = group

    def forward(self, tokens):
        mine = (tokens >= self.start) & (tokens < self.start + len(self.weight))
        out = self.weight.new_zeros(*tokens.shape, self.weight.shape[1])
        out = out.masked_scatter(mine.unsqueeze(-1), self.weight[tokens[mine] - self.start])
        total = out.detach().clone()
        dist.all_reduce(total, group=self.group)
        return out + (total - out.detach())


# --------------------------------------------------------------------------- vocab_parallel_cross_entropy


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start, group):
        largest = logits.max(dim=1).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        powers = torch.exp(logits - largest[:, None])
        total = powers.sum(dim=1)
        dist.all_reduce(total, group=group)
        local = target - start
        mine = ((local >= 0) & (local < logits.shape[1])).nonzero().flatten()
        of_target = torch.zeros_like(total)
        of_target[mine] = logits[mine, local[mine]]
        dist.all_reduce(of_target, group=group)
        softmax = powers / total[:, None]
        ctx.save_for_backward(softmax, mine, local)
        return total.log() + largest - of_target

    @staticmethod
    def backward(ctx, arriving):
        softmax, mine, local = ctx.saved_tensors
        gradient = softmax.clone()
        gradient[mine, local[mine]] -= 1
        return gradient * arriving[:, None], None, None, None


@right("vocab_parallel_cross_entropy")
def by_hand(logits_shard, target, vocabulary, group=None):
    """Both passes written out, as in Megatron-LM."""
    bounds = torch.arange(vocabulary).tensor_split(dist.get_world_size(group))
    return _Loss.apply(logits_shard, target, int(bounds[dist.get_rank(group)][0]), group)


class _LossOfThree(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start, group):
        columns = torch.arange(logits.shape[1]) + start
        hit = columns == target[:, None]
        of_target = torch.where(hit, logits, 0).sum(1)
        own = torch.stack([logits.logsumexp(1), of_target])
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, own, group=group)
        total = torch.stack([each[0] for each in everyone]).logsumexp(0)
        ctx.save_for_backward((logits - total[:, None]).exp() - hit.to(logits.dtype))
        return total - torch.stack([each[1] for each in everyone]).sum(0)

    @staticmethod
    def backward(ctx, arriving):
        (difference,) = ctx.saved_tensors
        return difference * arriving[:, None], None, None, None


@right("vocab_parallel_cross_entropy")
def gathers_two_numbers(logits_shard, target, vocabulary, group=None):
    """Each rank's own log-sum-exp and its part of the target's logit, of which everyone gets all."""
    size, place = dist.get_world_size(group), dist.get_rank(group)
    start = sum(len(part) for part in torch.arange(vocabulary).tensor_split(size)[:place])
    return _LossOfThree.apply(logits_shard, target, start, group)


# ----------------------------------------------------------------------- gather_sequence, scatter_sequence


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _reduce_scatter(gradient, ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _all_gather(gradient, ctx.group), None


def _all_gather(x, group):
    """Along the first dimension, so T goes there and back."""
    first = x.transpose(0, 1).contiguous()
    whole = first.new_empty(len(first) * dist.get_world_size(group), *first.shape[1:])
    dist.all_gather_into_tensor(whole, first, group=group)
    return whole.transpose(0, 1)


def _reduce_scatter(x, group):
    first = x.transpose(0, 1).contiguous()
    own = first.new_empty(len(first) // dist.get_world_size(group), *first.shape[1:])
    dist.reduce_scatter_tensor(own, first, group=group)
    return own.transpose(0, 1)


@right("gather_sequence")
def gathers_along_the_first_dimension(x_BTD, group=None):
    return _Gather.apply(x_BTD, group)


@right("gather_sequence")
def one_tensor_cut_into_parts(x_BTD, group=None):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            whole = x.new_empty(dist.get_world_size(group), *x.shape)
            dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
            return whole.movedim(0, 1).flatten(1, 2)

        @staticmethod
        def backward(ctx, gradient):
            parts = gradient.unflatten(1, (dist.get_world_size(group), -1)).movedim(1, 0).contiguous()
            own = torch.empty_like(parts[0])
            dist.reduce_scatter_tensor(own, parts, group=group)
            return own

    return Both.apply(x_BTD)


@right("scatter_sequence")
def scatters_along_the_first_dimension(x_BTD, group=None):
    return _Scatter.apply(x_BTD, group)


@right("scatter_sequence")
def waits_for_both(x_BTD, group=None):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            parts = [part.contiguous() for part in x.tensor_split(dist.get_world_size(group), 1)]
            own = torch.zeros(parts[0].shape, dtype=x.dtype)
            dist.reduce_scatter(own, [part.clone() for part in parts], group=group)
            return own

        @staticmethod
        def backward(ctx, gradient):
            parts = [gradient.new_empty(gradient.shape) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, gradient.clone(memory_format=torch.contiguous_format), group=group)
            return torch.cat(parts, 1)

    return Both.apply(x_BTD)


# ----------------------------------------------------------------------------------- sequence_parallel_mlp


@right("sequence_parallel_mlp")
def sums_the_gradients_in_hooks(x_BTD, norm, up, down, bias, group=None):
    """No f: a hook of each parameter that all have adds up what arrives at it."""

    def sum_up(gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total

    shared = [parameter.view_as(parameter) for parameter in (norm.weight, norm.bias, bias)]
    for parameter in shared:
        parameter.register_hook(sum_up)
    h = functional.layer_norm(x_BTD, x_BTD.shape[-1:], shared[0], shared[1], norm.eps)
    y = down(functional.gelu(up(_Gather.apply(h, group))))
    return x_BTD + (_Scatter.apply(y, group) + shared[2])


@right("sequence_parallel_mlp")
def adds_the_bias_before_the_sum(x_BTD, norm, up, down, bias, group=None):
    """On the first rank alone; and one all-reduce for all three, end to end."""
    width = len(bias)
    weight, shift, offset = _own("f")(torch.cat([norm.weight, norm.bias, bias]), group).split(width)
    h = functional.layer_norm(x_BTD, (width,), weight, shift, norm.eps)
    y = functional.linear(functional.gelu(up(_own("gather_sequence")(h, group))), down.weight)
    return x_BTD + offset + _own("scatter_sequence")(y, group)


# ----------------------------------------------------------------------- required_collectives, stack_costs


@right("required_collectives")
def from_sets(einsum, layout):
    """Builds the einsum of each gradient, and sees what it sums."""
    inputs, result = einsum.split("->")
    names = inputs.split(",")
    axes = [layout[letter] for letter in {*inputs, *result} if letter in layout]
    for axis in axes:
        if axes.count(axis) > 1:
            raise ValueError(axis)
    needed = [{letter for name in names for letter in name} - set(result)]
    for place, name in enumerate(names):
        others = {*result, *"".join(names[:place] + names[place + 1 :])}
        needed.append(others - set(name))
    return [sorted({layout[letter] for letter in letters if letter in layout}) for letters in needed]


@right("required_collectives")
def axis_by_axis(einsum, layout):
    """For each axis the one letter that is cut along it, and the tensors without it."""
    inputs, result = einsum.split("->")
    tensors = [result, *inputs.split(",")]
    needed = [[] for _ in tensors]
    for axis in sorted(set(layout.values())):
        letters = [letter for letter in layout if layout[letter] == axis and letter in "".join(tensors)]
        if len(letters) > 1:
            raise ValueError(f"{letters} are both cut along {axis}")
        for letter in letters:
            for tensor, axes in zip(tensors, needed, strict=True):
                if letter not in tensor:
                    axes.append(axis)
    return needed


@right("stack_costs")
def way_by_way(way, samples, tokens, width, ranks):
    x = samples * tokens * width
    flops = 3 * 2 * samples * tokens * 8 * width * width
    match way:
        case "data":
            weights = ranks * 8 * width * width
            return {
                "sent": 2 * weights // ranks * (ranks - 1),
                "parameters": weights,
                "kept": 10 * x,
                "flops": flops,
            }
        case "pipeline":
            return {
                "sent": 2 * x,
                "parameters": 8 * width * width,
                "kept": x + x + 4 * x + 4 * x,
                "flops": flops,
            }
    border = x if way == "tensor" else x // ranks
    kept = ranks * (border + x) + 8 * x
    sent = ranks * 4 * (ranks - 1) * x // ranks
    return {"flops": flops, "kept": kept, "parameters": 8 * width**2, "sent": sent}


@right("stack_costs")
def as_a_table(way, samples, tokens, width, ranks):
    stream, matrices, p = samples * tokens * width, 2 * width * 4 * width, ranks
    place = ("data", "pipeline", "tensor", "sequence").index(way)
    return {
        "sent": (2 * (p - 1) * matrices, 2 * stream, *[4 * (p - 1) * stream] * 2)[place],
        "parameters": (p * matrices, *[matrices] * 3)[place],
        "kept": stream * (10, 10, 2 * p + 8, p + 9)[place],
        "flops": 48 * samples * tokens * width**2,
    }


# ------------------------------------------------------------------------------------------- overlapped_mlp


def _costs(rows, up, down, cluster):
    """Seconds of a chunk of so many tokens: of its products, and of its sum."""
    width, inner, ranks = up.in_features, up.out_features, dist.get_world_size()
    memory, link = cluster.memory_bandwidth, cluster.intra_node
    computing = 8 * rows * inner / memory
    for outputs in (width, inner):
        numbers = rows * (width + inner) + width * inner + outputs
        computing += max(2 * rows * width * inner / cluster.flops, 4 * numbers / memory)
    return computing, 2 * (ranks - 1) * (link.latency + 4 * rows * width / ranks / link.bandwidth)


def _end(sizes, up, down, cluster):
    """When the last of these chunks' sums has ended."""
    ready = done = 0.0
    for size in sizes:
        computing, summing = _costs(size, up, down, cluster)
        ready += computing
        done = max(ready, done) + summing
    return done


@right("overlapped_mlp")
def first_and_last_by_trial(x_TD, up, down, cluster):
    """A first and a last chunk of any size, and equal ones between them."""
    tokens, plans = len(x_TD), [[len(x_TD)]]
    for first in range(4, tokens // 2, 8):
        for last in range(4, tokens // 2, 8):
            for count in (1, 2, 3, 5, 8):
                ends = [first + (tokens - first - last) * place // count for place in range(count + 1)]
                plans.append([first, *(b - a for a, b in pairwise(ends)), last])
    sizes = min(plans, key=lambda each: _end(each, up, down, cluster) if min(each) > 0 else math.inf)
    y, works, start = torch.empty_like(x_TD), [], 0
    for size in sizes:
        hidden, part = functional.gelu(up(x_TD[start : start + size])), y[start : start + size]
        if dist.get_rank() == 0:
            torch.addmm(down.bias, hidden, down.weight.T, out=part)
        else:
            torch.mm(hidden, down.weight.T, out=part)
        works.append(dist.all_reduce(part, async_op=True))
        start += size
    return [work.wait() for work in works] and y


@right("overlapped_mlp")
def first_by_trial_then_growing(x_TD, up, down, cluster):
    """A first chunk of any size, then each by one factor larger; the bias on the last rank."""

    def plan(first, factor):
        sizes, size = [], float(first)
        while sum(sizes) < len(x_TD):
            sizes.append(min(max(round(size), 3), len(x_TD) - sum(sizes)))
            size *= factor
        return sizes

    factors = (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 1.6, 1.9)
    plans = [plan(first, factor) for first in range(4, len(x_TD) + 1, 3) for factor in factors]
    sizes = min(plans, key=lambda each: _end(each, up, down, cluster))
    last = dist.get_rank() == dist.get_world_size() - 1
    parts, works = [], []
    for chunk in x_TD.split(sizes):
        hidden = functional.gelu(functional.linear(chunk, up.weight, up.bias))
        parts.append(functional.linear(hidden, down.weight, down.bias if last else None))
        works.append(dist.all_reduce(parts[-1], async_op=True))
    for work in works:
        work.wait()
    return torch.cat(parts)
