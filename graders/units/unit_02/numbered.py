"""What train_ddp trains in a driver: numbered samples, a model that writes the numbers down."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from course_lib import mark
from graders.units.models import load_values
from graders.units.optimizers import PlainSGD

FIRST = 1000
"""The number of the first sample, so that what somebody makes up, of zeros or at random, is none of them."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """inputs [N, 1 + F, 1], of which the first number is the sample's own; labels [N]."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, Tensor]:
        # A list of samples has no more than one for an index.
        number = operator.index(index)
        return self._inputs[number], self._labels[number]


class Numbered(nn.Module):
    """Two linear layers; writes down which samples a forward pass with a graph had. Inputs [B, 1 + F, 1]."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        """values: weight [H, F] and bias [H] of the first layer, weight [K, H] and bias [K] of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        load_values(self.parameters(), values)
        self.passes: list[list[int]] = []
        self.devices: set[str] = set()
        """Of which kinds the inputs were."""
        self.drawn: float | None = None
        """A random number that was drawn in the first of these passes, as dropout draws some."""

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            numbers: list[int] = inputs[:, 0, 0].nan_to_num().long().tolist()
            self.passes.append([number - FIRST for number in numbers if number >= FIRST])
            self.devices.add(inputs.device.type)
            if self.drawn is None:
                self.drawn = float(torch.rand(()))
        logits: Tensor = self.second(torch.tanh(self.first(inputs[:, 1:, 0])))
        return logits


class Descent(PlainSGD):
    """Plain gradient descent.

    Each step puts the mark "step" on the timeline, and notes which samples the model has had since the last.
    """

    def __init__(self, model: Numbered, rate: float, uphill: bool) -> None:
        """uphill: whether to go along the gradient, and not against it."""
        super().__init__(model.parameters(), rate, momentum=0.0)
        self._model = model
        self.param_groups[0]["maximize"] = uphill
        self.batches: list[list[int]] = []
        self.sums: list[float] = []
        """Of all weights after each step; NaN counts as 0."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See the base class."""
        with torch.enable_grad():
            loss = closure() if closure else None
        mark("step")
        self.batches.append([number for numbers in self._model.passes for number in numbers])
        self._model.passes.clear()
        [group] = self.param_groups
        with torch.no_grad():
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=group["lr"] * (1 if group["maximize"] else -1))
            weights = (each.detach().nan_to_num().double().sum() for each in self._model.parameters())
            self.sums.append(float(sum(weights)))
        return loss
