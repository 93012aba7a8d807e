"""Drivers of unit 02: each builds a small model from drawn numbers, lets the answer work on it, and returns
what became of it.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import mark, span
from graders.grading.answer import PlainData

Answer = Callable[..., Any]

LOAD_SIDE = 64
"""Side of the square matrices that the drivers' `load` multiplies, so that loading takes virtual time."""


def combine(answer: Answer, gradients: list[Tensor], counts: list[int]) -> PlainData:
    """The combination, the gradients as the answer left them, and whether the two share memory."""
    result = answer(gradients, counts)
    memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    shared = isinstance(result, Tensor) and result.untyped_storage().data_ptr() in memory
    return {"result": result, "gradients": gradients, "shared": shared}


def shards(answer: Answer, length: int, epochs: list[int], seeds: list[int]) -> PlainData:
    """This rank's indices for every (epoch, seed), twice, and the libraries whose random state changed.

    The ranks' own random states differ, as they do in training with dropout or augmentation.
    """
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    before = _random_states()
    pairs = list(zip(epochs, seeds, strict=True))
    first = [answer(length, epoch, seed) for epoch, seed in pairs]
    after = _random_states()
    torch.rand(1 + dist.get_rank())
    again = [answer(length, epoch, seed) for epoch, seed in pairs]
    return {
        "first": first,
        "again": again,
        "changed": [library for library, state in before.items() if after[library] != state],
    }


def _random_states() -> dict[str, bytes]:
    """This rank's random state in each library that has one."""
    numpy_state = np.random.get_state()
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "random": repr(random.getstate()).encode(),
        "numpy.random": repr(
            [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy_state]
        ).encode(),
    }


class Normed(nn.Module):
    """Two trainable layers round a batch norm, one frozen layer, and a buffer outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("positions", torch.zeros(4), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.last(self.norm(self.first(inputs)) + self.positions))
        return hidden


def state_of(model: nn.Module) -> list[Tensor]:
    """Parameters, then buffers."""
    return [*model.parameters(), *model.buffers()]


def load_values(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the drawn values into a model's tensors."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def broadcast(answer: Answer, values: list[Tensor], src: int) -> PlainData:
    """The state after the broadcast, and whether its tensors are the ones that were there before."""
    model = Normed()
    load_values(state_of(model), values)
    before = [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)]
    answer(model, src)
    return {
        "parameters": _copies(model.parameters()),
        "buffers": _copies(model.buffers()),
        "in_place": before == [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)],
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
    }


def average(answer: Answer, values: list[Tensor], gradients: list[Tensor | None]) -> PlainData:
    """The gradients of all parameters after averaging.

    The model is a chain of linear layers of which the last is frozen. None: no gradient on this rank.
    """
    model = _chain_of(values)
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, gradients, strict=False):
        parameter.grad = None if gradient is None else gradient.clone()
    before = [parameter.grad for parameter in parameters]
    answer(model)
    return {
        "gradients": _gradients(model),
        "parameters": _copies(parameters),
        "in_place": all(
            old is None or old is parameter.grad for old, parameter in zip(before, parameters, strict=True)
        ),
    }


def _chain_of(values: list[Tensor]) -> nn.Sequential:
    """Linear layers with the given weights and biases, the last one frozen."""
    pairs = list(zip(values[::2], values[1::2], strict=True))
    layers = [nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype) for weight, _ in pairs]
    layers[-1].requires_grad_(False)
    model = nn.Sequential(*layers)
    load_values(list(model.parameters()), values)
    return model


class _MarkInBackward(torch.autograd.Function):
    """The identity, whose backward puts a mark on the timeline."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, label: str) -> Tensor:
        ctx.label = label
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        mark(ctx.label)
        return gradients[0], None


class Chain(nn.Module):
    """Linear layers with tanh between them; backward marks when it reaches each."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for number, layer in enumerate(self.layers):
            hidden = _MarkInBackward.apply(layer(torch.tanh(hidden)), reaches(number))  # type: ignore[no-untyped-call]
        return hidden


def reaches(layer: int) -> str:
    """The mark that backward makes before it computes this layer's gradients."""
    return f"backward reaches layer {layer}"


def constructed(answer: Answer, values: list[Tensor], inputs: Tensor) -> PlainData:
    """The state after wrapping a model without frozen layers, and its output beside the model's own."""
    model = Normed().eval().requires_grad_()
    load_values(state_of(model), values)
    wrapped = answer(model, 64)
    with torch.no_grad():
        seen, expected = wrapped(inputs), model(inputs)
    return {"state": _copies(state_of(model)), "output": seen, "own_output": expected}


def steps(
    answer: Answer,
    widths: list[int],
    values: list[Tensor],
    batches: list[tuple[Tensor, Tensor]],
    rate: float,
    bucket_bytes: int,
) -> PlainData:
    """The gradients that every step of plain gradient descent used: one step a batch."""
    model = Chain(widths)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    used = []
    for inputs, targets in batches:
        mark("step begins")
        model.zero_grad()
        loss = functional.mse_loss(wrapped(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        mark("backward ends")
        wrapped.finish()
        mark("finished")
        used.append(_gradients(model))
        _descend(model, rate)
    return used


def _descend(model: nn.Module, rate: float) -> None:
    """One step of plain gradient descent; importing torch.optim's would take longer than all the rest."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=rate)


class Branches(nn.Module):
    """A shared first layer and three branches, of which each call uses one: the others get no gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = nn.Linear(width, width)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        hidden: Tensor = self.branches[branch](torch.tanh(self.shared(inputs)))
        return hidden


def branches(
    answer: Answer,
    width: int,
    values: list[Tensor],
    inputs: Tensor,
    used: list[int],
    bucket_bytes: int,
) -> PlainData:
    """The gradients after steps in which this rank used the given branches."""
    model = Branches(width)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    collected = []
    for branch in used:
        model.zero_grad()
        wrapped(inputs, branch=branch).square().mean().backward()
        wrapped.finish()
        collected.append(_gradients(model))
    return collected


class Tied(nn.Module):
    """Words to words: the embedding is also the weight of the last layer; the layer between is frozen."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.mixing = nn.Linear(width, width)
        self.output = nn.Linear(width, words, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.output(self.mixing(torch.tanh(self.frozen(self.embedding(words)))))
        return scores


def tied(
    answer: Answer,
    sizes: tuple[int, int],
    values: list[Tensor],
    words: Tensor,
    targets: Tensor,
    bucket_bytes: int,
) -> PlainData:
    """The gradients after one step of a model with a tied and two frozen parameters."""
    model = Tied(*sizes)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    mark("step begins")
    loss = functional.cross_entropy(wrapped(words), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    wrapped.finish()
    mark("finished")
    return _gradients(model)


def accuracy(answer: Answer, correct: int, total: int) -> PlainData:
    """What the answer returns on this rank."""
    return answer(correct, total)


def loading(answer: Answer, value: Tensor | None) -> PlainData:
    """What the answer returned on this rank, and how often it called `load`.

    `load` takes virtual time on a cluster with `flops`, and marks its phase "load".
    """
    calls = 0

    def load() -> Tensor | None:
        nonlocal calls
        calls += 1
        _take_time()
        return value

    return {"result": answer(load), "calls": calls}


def failing_load(answer: Answer, value: Tensor, failing: int) -> PlainData:
    """What the answer raised on this rank, as text, None where it returned, and how often it called `load`,
    which fails on rank `failing`.

    Every rank's exception is caught, so that the run ends unless some rank is left waiting.
    """
    calls = 0

    def load() -> Tensor:
        nonlocal calls
        calls += 1
        _take_time()
        if dist.get_rank() == failing:
            raise OSError("no space left on this device")
        return value

    try:
        answer(load)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "calls": calls}
    return {"raised": None, "calls": calls}


def _take_time() -> None:
    with span("load"):
        square = torch.ones(LOAD_SIDE, LOAD_SIDE)
        torch.mm(square, square)


def _copies(tensors: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _gradients(model: nn.Module) -> list[Tensor | None]:
    """A copy of each parameter's gradient, None where there is none."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]
