"""What is trained, and how: the same for one device, for any number of ranks, for a job that is resumed."""

from dataclasses import dataclass

import torch
from torch import nn

from course_lib.data import Dataset
from course_lib.models import SmallCNN


@dataclass(frozen=True, slots=True)
class Recipe:
    """A classifier's training, wherever it happens.

    batch_size: samples of one step, of all ranks together. seed: of the weights and of the shuffling.
    warmup_steps: over so many steps the learning rate grows up to `learning_rate`, by equal parts.
    """

    dataset: str = "digits"
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 0
    warmup_steps: int = 0

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step >= self.warmup_steps:
            return self.learning_rate
        return self.learning_rate * (step + 1) / (self.warmup_steps + 1)


def build_model(data: Dataset, seed: int, device: torch.device) -> nn.Module:
    """The classifier of unit 01 for this data, on the device, with weights drawn from `seed`.

    They are drawn on the CPU, so that a seed means the same weights on every device.
    """
    channels, _, size = data.image_shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(channels, len(data.classes), size).to(device)


def build_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Stochastic gradient descent as the recipe says; its state lives where the parameters do."""
    return torch.optim.SGD(module.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """What the next step is taken with."""
    for group in optimizer.param_groups:
        group["lr"] = rate
