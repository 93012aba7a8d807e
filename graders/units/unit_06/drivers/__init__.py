"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import Cluster, Link, mark
from graders.grading.answer import AnswerFunction
from graders.units.groups import group_option
from graders.units.models import floating_bytes, load_values, sent
from graders.units.unit_06.modules import (
    changes,
    load_named,
    named_copies,
    passes_of,
    whole_half,
    without_gradient,
)
from graders.units.unit_06.replies import (
    DrawnReply,
    EmbeddingReply,
    HalfReply,
    LayoutReply,
    LossReply,
    OverlapReply,
    SequenceReply,
)


def gradient_of(leaf: Tensor, result: Tensor, arriving: Tensor) -> Tensor | None:
    """What the leaf gets where `arriving`, of its shape, arrives at the result; None without a history."""
    return torch.autograd.grad(sent(result, arriving), leaf)[0] if result.requires_grad else None


def half(
    answer: AnswerFunction,
    kind: str,
    sizes: tuple[int, int, int],
    parameters: dict[str, Tensor],
    x: Tensor,
    arriving: Tensor,
    groups: list[list[int]],
    training: bool,
) -> HalfReply:
    """Both passes of what the answer makes of a whole half of a block. See `whole_half` and `own_group`."""
    options = group_option(groups)
    whole = whole_half(kind, sizes).to(x.dtype).train(training)
    load_named(whole, parameters)
    mark("making")
    cut = answer(whole, **options).train(training)
    kept, parts = floating_bytes(cut), named_copies(cut)
    changed = list(changes(whole, cut, training))
    found = passes_of(cut, x, arriving)
    changed += [f"{name} has a gradient" for name, each in whole.named_parameters() if each.grad is not None]
    mark("the one given")
    leaf = x.clone().requires_grad_()
    result = whole(leaf)
    (gradient,) = torch.autograd.grad(sent(result, arriving), leaf)
    return HalfReply(parts, kept, named_copies(whole), changed, (result.detach(), gradient), *found)


def random_states(
    answer: AnswerFunction, seed: int, blocks: list[tuple[str, list[int]]], apart: int
) -> DrawnReply:
    """Draw so many numbers, block by block. "shared": outside of own(); "own": within; "raises": within, and
    an exception ends the block. apart: from the number that a rank is given to the next one's.
    """
    states = answer(seed, apart * dist.get_rank())
    drawn: list[list[Tensor]] = []
    escaped = []
    for number, (kind, counts) in enumerate(blocks):
        try:
            with nullcontext() if kind == "shared" else states.own():
                drawn.append([torch.rand(count, dtype=torch.float64) for count in counts])
                if kind == "raises":
                    raise InterruptedError
        except InterruptedError:
            escaped.append(number)
    return DrawnReply(drawn, escaped)


def embedding(
    answer: AnswerFunction, weight: Tensor, tokens: Tensor, arriving: Tensor, groups: list[list[int]]
) -> EmbeddingReply:
    """Both passes of the answer's layer, made of a weight [V, D], and forward once more."""
    whole = nn.Embedding(len(weight), weight.shape[1], dtype=weight.dtype)
    load_values([whole.weight], [weight])
    storage = whole.weight.untyped_storage()
    before = torch._C._storage_Use_Count(storage._cdata)
    layer = answer(whole, **group_option(groups))
    gc.collect()
    held = torch._C._storage_Use_Count(storage._cdata) - before
    mark("forward")
    result = layer(tokens)
    mark("backward")
    if result.requires_grad:
        torch.autograd.backward(sent(result, arriving))
    mark("forward again")
    again = layer(tokens.flip(0))
    named = dict(layer.named_parameters())
    first = next(iter(named.values()))
    values = {name: parameter.detach().clone() for name, parameter in named.items()}
    return EmbeddingReply(
        result.detach(),
        again.detach(),
        values,
        first.grad,
        held,
        floating_bytes(layer),
        whole.weight.detach(),
        tokens,
    )


def loss(
    answer: AnswerFunction,
    logits: Tensor,
    target: Tensor,
    vocabulary: int,
    arriving: Tensor,
    groups: list[list[int]],
) -> LossReply:
    """Both passes of the answer on this rank's logits [N, V_r]. target, arriving: [N]."""
    leaf = logits.clone().requires_grad_()
    given = leaf.clone()
    options = group_option(groups)
    mark("forward")
    result = answer(given, target, vocabulary, **options)
    mark("backward")
    gradient = gradient_of(leaf, result, arriving)
    without = without_gradient(lambda x: answer(x, target, vocabulary, **options), logits)
    return LossReply(result.detach(), without, gradient, given.detach(), target)


def sequence_mlp(
    answer: AnswerFunction,
    x_BTD: Tensor,
    values: list[Tensor],
    arriving_BTD: Tensor,
    epsilon: float,
    groups: list[list[int]],
) -> SequenceReply:
    """Both passes of the answer, twice; told is of the second time. norm and bias are used beside it too,
    which gives each number of theirs a gradient of one.

    values: of norm's weight and bias [D], up's [F / p, D] and [F / p], down's [D, F / p], and the bias [D].
    """
    width, inner = x_BTD.shape[2], values[2].shape[0]
    norm = nn.LayerNorm(width, eps=epsilon, dtype=x_BTD.dtype)
    up = nn.Linear(width, inner, dtype=x_BTD.dtype)
    down = nn.Linear(inner, width, bias=False, dtype=x_BTD.dtype)
    bias = nn.Parameter(torch.empty_like(values[-1]))
    parameters = [norm.weight, norm.bias, up.weight, up.bias, down.weight, bias]
    load_values(parameters, values)
    options = group_option(groups)
    # What an answer leaves at the parameters, such as hooks, shows in a second step.
    for forward, backward in (("first forward", "first backward"), ("forward", "backward")):
        leaf = x_BTD.clone().requires_grad_()
        given = leaf.clone()
        for parameter in parameters:
            parameter.grad = None
        mark(forward)
        result = answer(given, norm, up, down, bias, **options)
        mark(backward)
        beside = [sent(each, torch.ones_like(each)) for each in (norm.weight, norm.bias, bias)]
        torch.autograd.backward([sent(result, arriving_BTD), *beside])
    gradients = [None if each.grad is None else each.grad.clone() for each in (leaf, *parameters)]
    return SequenceReply(result.detach(), gradients, given.detach())


def layouts(answer: AnswerFunction, cases: list[tuple[str, dict[str, str]]]) -> list[LayoutReply]:
    """What the answer makes of each einsum and layout."""
    replies = []
    for einsum, layout in cases:
        given = dict(layout)
        try:
            replies.append(LayoutReply(answer(einsum, given), "", given))
        except (ValueError, KeyError) as error:
            kind = ValueError if isinstance(error, ValueError) else KeyError
            replies.append(LayoutReply(None, kind.__name__, given))
    return replies


def overlapped(
    answer: AnswerFunction,
    x: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    numbers: tuple[float, float, float, float],
) -> OverlapReply:
    """What the answer makes of x [T, D] with a part of an MLP, between two marks. numbers: see `machine`."""
    layers = [nn.Linear(part.shape[1], part.shape[0]) for part in (up, down)]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, (up, down), (up_bias, down_bias), strict=True):
            layer.weight, layer.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        mark("begins")
        result = answer(x, *layers, machine(dist.get_world_size(), *numbers))
    mark("done")
    return OverlapReply(result, x, [dict(layer.named_parameters()) for layer in layers])


def machine(ranks: int, latency: float, bandwidth: float, flops: float, memory: float) -> Cluster:
    """One node of so many devices."""
    link = Link(latency, bandwidth)
    return Cluster(devices_per_node=ranks, intra_node=link, flops=flops, memory_bandwidth=memory)
