"""Drivers of unit 01: each builds a small model from drawn numbers, or a slow device, lets the answer work on
it, and returns what became of it.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from graders.grading.answer import AnswerFunction
from graders.units.gpu import HOST, Gpu, gpu, on_host, plain
from graders.units.unit_01.loader import Loader
from graders.units.unit_01.optimizers import settings_of, used_before
from graders.units.unit_01.replies import (
    AccumulationReply,
    EvaluationReply,
    FitReply,
    StepReply,
    ThroughputReply,
)
from graders.units.unit_01.seeds import SeedsNoted
from graders.units.unit_01.slow_device import SlowDevice
from graders.units.unit_01.watched import Batch, Watched, mode_of

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": lambda outputs, targets: functional.mse_loss(
        outputs, functional.one_hot(targets, outputs.shape[1]).float()
    ),
}
"""Mean-reduced losses of logits [B, classes] and labels [B]."""


def steps(
    answer: AnswerFunction,
    values: list[Tensor],
    stale: list[Tensor] | None,
    batches: list[Batch],
    rates: dict[str, float],
    training: bool,
    on_gpu: bool,
) -> list[StepReply]:
    """What each of several steps did.

    values: as for Watched. stale: gradients that are there before the first step; if None, there are none
    before any step. batches: inputs [B, F, 1] and labels [B] each. rates: the arguments of torch.optim.SGD,
    which has a group for each layer. training: the mode in which the model comes. on_gpu: whether model and
    batches are on one.
    """
    model = Watched(values).train(training)
    if stale is not None:
        for parameter, gradient in zip(model.parameters(), stale, strict=True):
            parameter.grad = gradient.clone()
    if on_gpu:
        batches = _moved(model, batches)
    groups = [{"params": [*layer.parameters()]} for layer in (model.first, model.second)]
    optimizer = torch.optim.SGD(groups, **rates)  # type: ignore[arg-type]
    seen = []
    for inputs, targets in batches:
        model.log, model.modes = [], []
        waits: list[str] = []
        if stale is None:
            optimizer.zero_grad()
        with _with_gpu(on_gpu, waits):
            loss = answer(model, inputs, targets, optimizer)
        parameters = [*map(on_host, model.parameters())]
        how = model.log, model.modes, mode_of(model), waits
        seen.append(StepReply(plain(loss), _has_history(loss), parameters, *how))
    return seen


def evaluation(
    answer: AnswerFunction,
    values: list[Tensor],
    samples: Batch,
    batch_size: int,
    training: bool,
    on_gpu: bool,
    spare: int,
) -> EvaluationReply:
    """How the answer evaluates a model found in the given mode. samples: inputs [N, F, 1], labels [N].
    on_gpu: whether model and batches are on one.

    The loader is a generator: it has no length and no data set, and can be gone through once. Or, if some
    samples are to spare, it is one of torch's, whose data set has these as well, and which leaves them out.
    """
    model = Watched(values).train(training)
    data = TensorDataset(*(torch.cat([each, each[:spare]]) for each in samples))
    loader = DataLoader(data, batch_size, sampler=range(len(samples[1])))
    batches = _moved(model, [*loader]) if on_gpu else loader
    # An answer that turns gradients off and not on again must not do so to the whole kernel.
    with torch.enable_grad():
        with _with_gpu(on_gpu, []):
            result = answer(model, batches if spare else (batch for batch in batches))
        grad_enabled = torch.is_grad_enabled()
    trainable = all(parameter.requires_grad for parameter in model.parameters())
    left = [module.training for module in model.modules()]
    how = model.modes, model.graphs, model.devices
    return EvaluationReply(plain(result), *how, left, grad_enabled, trainable)


def fitting(
    answer: AnswerFunction,
    values: list[Tensor],
    batches: tuple[list[Batch], list[Batch]],
    rates: dict[str, float],
    epochs: int,
    training: bool,
    on_gpu: bool,
    from_gpu: bool,
) -> FitReply:
    """How the answer trains. batches: for training and for validation, inputs [B, F, 1] and labels [B].

    on_gpu: the device is a GPU; if not, it is the processor. from_gpu: the model lies on a GPU; if not, on
    the host, where the batches lie.
    """
    model = Watched(values).train(training)
    optimizer = used_before(model, rates)
    settings = settings_of(optimizer)
    if from_gpu:
        _moved(model, [])
    with SeedsNoted() as seeds:
        train, validation = (Loader(part, shuffle=seeds.shuffle) for part in batches)
        with torch.enable_grad(), _with_gpu(on_gpu or from_gpu, model.log):
            history = answer(model, train, validation, optimizer, epochs, gpu() if on_gpu else HOST)
    passes = train.passes, validation.passes
    left = sorted({each.device.type for each in (*model.parameters(), *model.buffers())})
    how = model.log, model.modes, model.graphs, passes, model.devices, left
    kept = settings == settings_of(optimizer), seeds.drawn
    return FitReply(plain(history), [*map(on_host, model.parameters())], *how, *kept)


def accumulation(
    answer: AnswerFunction,
    values: list[Tensor],
    micro_batches: list[Batch],
    loss: str,
    training: bool,
    on_gpu: bool,
) -> AccumulationReply:
    """How the answer accumulates gradients. micro_batches: inputs [m, F, 1], labels [m]. loss: of LOSSES.
    training: the mode in which the model comes. on_gpu: whether model and batches are on one.
    """
    model = Watched(values).train(training)
    if on_gpu:
        micro_batches = _moved(model, micro_batches)
    given, tensors = micro_batches.copy(), [*chain(*micro_batches), *model.parameters()]
    before, trained = [*map(on_host, tensors)], [tensor.requires_grad for tensor in tensors]
    waits: list[str] = []
    with _with_gpu(on_gpu, waits):
        result = answer(model, micro_batches, LOSSES[loss])
    kept = {
        "The list of micro-batches": [*map(id, micro_batches)] == [*map(id, given)],
        "A tensor of a micro-batch, or a parameter,": all(map(_alike, map(on_host, tensors), before)),
        "What hooks a parameter has": not any(
            parameter._backward_hooks or parameter._post_accumulate_grad_hooks
            for parameter in model.parameters()
        ),
        "Which tensors of micro-batches, or parameters, require grad": trained
        == [t.requires_grad for t in tensors],
    }
    gradients = [None if p.grad is None else on_host(p.grad) for p in model.parameters()]
    seen = plain(result), _has_history(result), gradients, model.log, model.kept, model.modes
    changed = [what for what, same in kept.items() if not same]
    return AccumulationReply(*seen, changed, mode_of(model), waits)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same numbers, NaN too."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())


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
