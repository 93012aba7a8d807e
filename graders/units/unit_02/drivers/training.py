"""Drivers of unit 02: a script for many processes, which trains on numbered samples."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.gpu import HOST, Gpu, gpu, on_host, plain
from graders.units.models import load_values
from graders.units.optimizers import PlainSGD

RATE = 0.5


class Numbered(nn.Module):
    """Two linear layers; writes down which samples a forward pass with a graph had. Inputs [B, 1 + F, 1], of
    which the first number is the sample's own.
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        """values: weight [H, F] and bias [H] of the first layer, weight [K, H] and bias [K] of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        load_values(self.parameters(), values)
        self.passed: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.passed += inputs[:, 0, 0].long().tolist()
        logits: Tensor = self.second(torch.tanh(self.first(inputs[:, 1:, 0])))
        return logits


class Descent(PlainSGD):
    """Plain gradient descent. Each step puts the mark "step" on the timeline, and notes which samples the
    model has had since the last.
    """

    def __init__(self, model: Numbered) -> None:
        super().__init__(model.parameters(), RATE, momentum=0.0)
        self._model = model
        self.batches: list[list[int]] = []

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See the base class."""
        loss = super().step(closure)
        mark("step")
        self.batches.append(self._model.passed)
        self._model.passed = []
        return loss


@dataclass(frozen=True, slots=True)
class TrainingReply(DriverReply):
    """How one rank trained.

    history: what the answer returned. parameters: copies, afterwards. batches[t]: the numbers of the samples
    that went through the model before the optimizer's step t. devices: the kinds on which it left them.
    draws: the next random numbers of torch and NumPy.
    """

    history: PlainData
    parameters: list[Tensor]
    batches: list[list[int]]
    devices: list[str]
    draws: tuple[float, float]


def many_processes(
    answer: AnswerFunction,
    values: list[Tensor],
    samples: tuple[Tensor, Tensor],
    epochs: int,
    batch_size: int,
    seed: int,
    on_gpu: bool,
) -> TrainingReply:
    """How the answer trains a `Numbered` with these values on samples: inputs [N, 1 + F, 1] and labels [N].
    on_gpu: the device is a GPU; if not, it is the processor. Each rank has random numbers of its own.
    """
    warnings.simplefilter("ignore")  # such as that there is no GPU to pin memory for; what grades undoes it
    rank = dist.get_rank()
    torch.default_generator.manual_seed(1000 + rank)
    np.random.seed(1000 + rank)
    model = Numbered(values)
    optimizer = Descent(model)
    with torch.enable_grad(), Gpu([]) if on_gpu else nullcontext():
        device = gpu() if on_gpu else HOST
        history = answer(model, TensorDataset(*samples), optimizer, epochs, batch_size, seed, device)
    devices = sorted({parameter.device.type for parameter in model.parameters()})
    draws = float(torch.rand(())), float(np.random.random())
    return TrainingReply(
        plain(history), [*map(on_host, model.parameters())], optimizer.batches, devices, draws
    )
