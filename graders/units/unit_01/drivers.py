"""Drivers of unit 01: each builds a small model from drawn numbers, or a slow device, lets the answer work on
it, and returns what became of it.
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from graders.grading.answer import PlainData

Answer = Callable[..., Any]
Batch = tuple[Tensor, Tensor]

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": lambda outputs, targets: functional.mse_loss(
        outputs, functional.one_hot(targets, outputs.shape[1]).float()
    ),
}
"""Mean-reduced losses of logits [B, classes] and labels [B]."""


class _Saved:
    """A tensor that a graph keeps for backward; it lives as long as the graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Watched(nn.Module):
    """Two linear layers that write down how they are used."""

    def __init__(self, values: list[Tensor]) -> None:
        """values: weight and bias of the first layer, weight and bias of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        self.log: list[str] = []
        """"forward 8" for a forward pass of 8 samples, "backward 8" when backward reaches its outputs."""
        self.modes: list[bool] = []
        """Whether a forward pass found the model in training mode."""
        self.graphs: list[bool] = []
        """Whether a forward pass could record a graph."""
        self.kept: list[int] = []
        """How many tensors of earlier graphs were still kept when a forward pass began."""
        self._saved: list[weakref.ref[_Saved]] = []
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values, strict=True):
                parameter.copy_(value)

    def forward(self, inputs: Tensor) -> Tensor:
        samples = len(inputs)
        self.log.append(f"forward {samples}")
        self.modes.append(self.training)
        self.graphs.append(torch.is_grad_enabled())
        self.kept.append(sum(saved() is not None for saved in self._saved))
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved.tensor):
            logits: Tensor = self.second(torch.tanh(self.first(inputs)))
        if logits.requires_grad:
            logits.register_hook(lambda _: self.log.append(f"backward {samples}"))  # type: ignore[no-untyped-call]
        return logits

    def _save(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._saved.append(weakref.ref(saved))
        return saved


def steps(
    answer: Answer,
    values: list[Tensor],
    stale: list[Tensor] | None,
    batches: list[Batch],
    rates: dict[str, float],
) -> PlainData:
    """What each of several steps returned, the parameters after it, and how it used the model.

    stale: gradients that are there before the first step. rates: the arguments of torch.optim.SGD.
    """
    model = Watched(values)
    if stale is not None:
        for parameter, gradient in zip(model.parameters(), stale, strict=True):
            parameter.grad = gradient.clone()
    optimizer = torch.optim.SGD(model.parameters(), **rates)  # type: ignore[arg-type]
    seen = []
    for inputs, targets in batches:
        model.log, model.modes = [], []
        loss = answer(model, inputs, targets, optimizer)
        seen.append(
            {
                "loss": _plain(loss),
                "history": _has_history(loss),
                "parameters": [parameter.detach().clone() for parameter in model.parameters()],
                "log": model.log,
                "modes": model.modes,
            }
        )
    return seen


def evaluation(
    answer: Answer, values: list[Tensor], samples: Batch, batch_size: int, training: bool
) -> PlainData:
    """The answer's pair, and how it used the model, which it finds in the given mode."""
    model = Watched(values).train(training)
    # An answer that turns gradients off and not on again must not do so to the whole kernel.
    with torch.enable_grad():
        result = answer(model, DataLoader(TensorDataset(*samples), batch_size=batch_size))
        grad_enabled = torch.is_grad_enabled()
    return {
        "result": result,
        "modes": model.modes,
        "graphs": model.graphs,
        "training": model.training,
        "grad_enabled": grad_enabled,
        "trainable": all(parameter.requires_grad for parameter in model.parameters()),
    }


def accumulation(answer: Answer, values: list[Tensor], micro_batches: list[Batch], loss: str) -> PlainData:
    """What the answer returned, the gradients it left, and the order of forward and backward passes."""
    model = Watched(values)
    result = answer(model, micro_batches, LOSSES[loss])
    gradients = [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]
    return {
        "loss": _plain(result),
        "history": _has_history(result),
        "gradients": gradients,
        "log": model.log,
        "kept": model.kept,
    }


class SlowDevice:
    """A device that works off a queue, as a GPU does: `step` adds to it, `synchronize` waits for the end."""

    def __init__(self, slow_steps: int) -> None:
        """slow_steps: so many steps at first take much longer, as compiling and caching make them."""
        self._slow_steps = slow_steps
        self._free_at = time.perf_counter()
        self.calls: list[tuple[str, float, float]] = []
        """Name of the call, and the seconds at which it began and ended."""

    def step(self) -> None:
        started = time.perf_counter()
        slow = self.count("step") < self._slow_steps
        self._free_at = max(self._free_at, started) + (SLOW_STEP_SECONDS if slow else STEP_SECONDS)
        self.calls.append(("step", started, time.perf_counter()))

    def synchronize(self) -> None:
        started = time.perf_counter()
        time.sleep(max(0.0, self._free_at - started))
        self.calls.append(("synchronize", started, time.perf_counter()))

    def count(self, name: str) -> int:
        return sum(called == name for called, _, _ in self.calls)


STEP_SECONDS = 0.01
SLOW_STEP_SECONDS = 0.04


def throughput(answer: Answer, batch_size: int, warmup: int, steps: int) -> PlainData:
    """What the answer returned, every call that it made, and when it returned."""
    device = SlowDevice(warmup)
    result = answer(device.step, batch_size, warmup, steps, device.synchronize)
    return {"result": result, "calls": device.calls, "returned": time.perf_counter()}


def _plain(value: Any) -> PlainData:
    return value.detach().clone() if type(value) is Tensor else value


def _has_history(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
