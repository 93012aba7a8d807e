"""Drivers of unit 01: each builds a small model from drawn numbers, or a slow device, lets the answer work on
it, and returns what became of it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.answer import AnswerFunction
from graders.units.gpu import HOST, Gpu, gpu, on_host, plain
from graders.units.random_states import random_states
from graders.units.unit_01.replies import (
    AccumulationReply,
    EvaluationReply,
    FitReply,
    StepReply,
    ThroughputReply,
)
from graders.units.unit_01.slow_device import SlowDevice
from graders.units.unit_01.watched import Batch, Watched, mode_of

RATES: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def steps(
    answer: AnswerFunction,
    values: list[Tensor],
    stale: list[Tensor] | None,
    batches: list[Batch],
    training: bool,
    on_gpu: bool,
) -> list[StepReply]:
    """What each of several steps did.

    values: as for Watched. stale: gradients that are there before the first step. batches: inputs [B, F, 1]
    and labels [B] each. training: the mode in which the model comes. on_gpu: whether model and batches are on
    one.
    """
    model = Watched(values).train(training)
    for parameter, gradient in zip(model.parameters(), stale or (), strict=False):
        parameter.grad = gradient.clone()
    if on_gpu:
        batches = _moved(model, batches)
    groups = [{"params": [*layer.parameters()]} for layer in (model.first, model.second)]
    optimizer = torch.optim.SGD(groups, **RATES)
    seen = []
    for inputs, targets in batches:
        model.log, model.modes = [], []
        waits: list[str] = []
        with _with_gpu(on_gpu, waits):
            loss = answer(model, inputs, targets, optimizer)
        parameters = [*map(on_host, model.parameters())]
        how = model.log, model.modes, mode_of(model), waits
        seen.append(StepReply(plain(loss), _has_history(loss), parameters, *how))
        if stale is None:
            optimizer.zero_grad()
    return seen


def evaluation(
    answer: AnswerFunction, values: list[Tensor], batches: list[Batch], training: bool, on_gpu: bool
) -> EvaluationReply:
    """How the answer evaluates a model found in the given mode. The loader is a generator: it has no length,
    and can be gone through once. on_gpu: whether model and batches are on one.
    """
    model = Watched(values).train(training)
    if on_gpu:
        batches = _moved(model, batches)
    # An answer that turns gradients off and not on again must not do so to the whole kernel.
    with torch.enable_grad():
        with _with_gpu(on_gpu, []):
            result = answer(model, (batch for batch in batches))
        trained = [parameter.requires_grad for parameter in model.parameters()]
        records = torch.is_grad_enabled() and all(trained)
    return EvaluationReply(plain(result), model.modes, model.graphs, mode_of(model), records)


def turned(batches: Sequence[Batch], epoch: int) -> list[Batch]:
    """Batches in the order of this epoch."""
    first = epoch % len(batches)
    return [*batches[first:], *batches[:first]]


class Loader:
    """Batches in another order in each epoch. It has no length, and nothing but iteration."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self.passes = 0
        """How often somebody began to go through it."""

    def __iter__(self) -> Iterator[Batch]:
        self.passes += 1
        yield from turned(self._batches, self.passes - 1)


def used_before(model: Watched, on_gpu: bool) -> torch.optim.Optimizer:
    """An optimizer that has taken a step along ones already. One of a model that moves keeps nothing: what it
    kept would stay where it was.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if on_gpu else 0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def fitting(
    answer: AnswerFunction,
    values: list[Tensor],
    batches: tuple[list[Batch], list[Batch]],
    epochs: int,
    training: bool,
    on_gpu: bool,
) -> FitReply:
    """How the answer trains. batches: for training and for validation, inputs [B, F, 1] and labels [B].
    on_gpu: the device is a GPU; if not, it is the processor.
    """
    model = Watched(values).train(training)
    optimizer = used_before(model, on_gpu)
    train, validation = map(Loader, batches)
    before = random_states()
    with torch.enable_grad(), _with_gpu(on_gpu, model.log):
        history = answer(model, train, validation, optimizer, epochs, gpu() if on_gpu else HOST)
    left = sorted({each.device.type for each in (*model.parameters(), *model.buffers())})
    how = model.log, model.modes, model.graphs, (train.passes, validation.passes), left
    return FitReply(plain(history), [*map(on_host, model.parameters())], *how, before == random_states())


def accumulation(
    answer: AnswerFunction, values: list[Tensor], micro_batches: list[Batch], training: bool, on_gpu: bool
) -> AccumulationReply:
    """How the answer accumulates gradients of cross-entropy. micro_batches: inputs [m, F, 1], labels [m].
    training: the mode in which the model comes. on_gpu: whether model and batches are on one.
    """
    model = Watched(values).train(training)
    if on_gpu:
        micro_batches = _moved(model, micro_batches)
    given, tensors = micro_batches.copy(), [*chain(*micro_batches), *model.parameters()]
    before = [*map(on_host, tensors)]
    waits: list[str] = []
    with _with_gpu(on_gpu, waits):
        result = answer(model, micro_batches, functional.cross_entropy)
    kept = [*map(id, micro_batches)] == [*map(id, given)] and all(
        map(torch.equal, map(on_host, tensors), before)
    )
    gradients = [None if p.grad is None else on_host(p.grad) for p in model.parameters()]
    how = model.log, model.modes, mode_of(model), waits, kept
    return AccumulationReply(plain(result), _has_history(result), gradients, *how)


def throughput(answer: AnswerFunction, batch_size: int, warmup: int, steps: int) -> ThroughputReply:
    """How the answer measures a slow device."""
    device = SlowDevice(warmup)
    result = answer(device.step, batch_size, warmup, steps, device.synchronize)
    return ThroughputReply(result, device.calls, time.perf_counter())


def _with_gpu(there: bool, log: list[str]) -> AbstractContextManager[Any]:
    """What an answer runs in. there: whether there is a GPU. log: as for Gpu."""
    return Gpu(log) if there else nullcontext()


def _moved(model: Watched, batches: list[Batch]) -> list[Batch]:
    """Move a model to the GPU; the batches there."""
    with Gpu([]):
        model.to(gpu())
        return [(inputs.to(gpu()), targets.to(gpu())) for inputs, targets in batches]


def _has_history(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
